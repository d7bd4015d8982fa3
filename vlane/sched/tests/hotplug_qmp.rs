//! A QEMU that does not name its threads is asked again when it has others; this process stands for
//! it, alone in its program.

#![allow(clippy::unwrap_used, reason = "tests may")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use vlane_sched::discover::Machine;

/// A thread, until the sender is dropped.
fn thread() -> (u32, Sender<()>, std::thread::JoinHandle<()>) {
    let (end, ended) = channel::<()>();
    let (told, tid) = channel();
    let body = move || {
        told.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
        let _ = ended.recv();
    };
    let join = std::thread::spawn(body);
    (tid.recv().unwrap(), end, join)
}

#[test]
fn qmp_machine_is_asked_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("qmp.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let vcpus: Arc<Mutex<Vec<u32>>> = Arc::default();
    let asked = Arc::clone(&vcpus);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            writeln!(&stream, r#"{{"QMP":{{}}}}"#).unwrap();
            for line in BufReader::new(&stream).lines().map_while(Result::ok) {
                let answer = if line.contains("query-cpus-fast") {
                    let cpus = asked.lock().unwrap().clone();
                    let cpus = (0..).zip(cpus).map(|(index, tid): (u32, u32)| {
                        format!(r#"{{"cpu-index":{index},"thread-id":{tid}}}"#)
                    });
                    format!(r#"{{"return":[{}]}}"#, cpus.collect::<Vec<_>>().join(","))
                } else {
                    r#"{"return":{}}"#.into()
                };
                if writeln!(&stream, "{answer}").is_err() {
                    break;
                }
            }
        }
    });
    let (first, _keep, _join) = thread();
    vcpus.lock().unwrap().push(first);
    let mut machine = Machine::by_qmp(&path).unwrap();
    assert_eq!(machine.vcpus().len(), 1);
    assert!(!machine.refresh().unwrap());
    let changed = |machine: &mut Machine| {
        let limit = Instant::now() + Duration::from_secs(60);
        while !machine.refresh().unwrap() {
            assert!(Instant::now() < limit, "nothing changes");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let (second, end, join) = thread();
    vcpus.lock().unwrap().push(second);
    changed(&mut machine);
    assert_eq!(machine.vcpu(1).unwrap().tids, [second]);
    // Unplugged: its thread is gone before QEMU says so, and the other one stays.
    drop(end);
    join.join().unwrap();
    changed(&mut machine);
    assert!(machine.vcpu(1).is_none());
    assert_eq!(machine.vcpu(0).unwrap().tids, [first]);
}
