//! vCPU threads are found by their names, in this very process; alone in its program, because
//! threads are the process's.

#![allow(clippy::unwrap_used, reason = "tests may")]

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vlane_sched::discover::{Machine, user_of, vcpus_of};
use vlane_sched::{ErrorKind, ProcessId};

/// A thread with this name, until the sender is dropped, and its number.
fn thread(name: &str) -> (u32, Sender<()>, JoinHandle<()>) {
    let (sender, end) = channel();
    let (told, tid) = channel();
    let body = move || {
        told.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        let _ = end.recv();
    };
    let join = std::thread::Builder::new().name(name.to_owned()).spawn(body).unwrap();
    (u32::try_from(tid.recv().unwrap()).unwrap(), sender, join)
}

/// The machine stays meanwhile.
#[test]
fn named_threads_come_and_go() {
    let me = ProcessId::of(std::process::id()).unwrap();
    let none = vcpus_of(me.pid).unwrap_err();
    assert!(none.kind() == ErrorKind::Invalid && none.to_string().contains("--tid"), "{none}");
    let (second, keep, second_join) = thread("CPU 1/KVM");
    let (first, end, join) = thread("CPU 0/KVM");
    let mut machine = Machine::find(me).unwrap();
    let found: Vec<_> =
        machine.vcpus().iter().map(|vcpu| (vcpu.index, vcpu.tids.clone())).collect();
    assert_eq!(found, [(0, vec![first]), (1, vec![second])]);
    assert_eq!(machine.vcpu(1).unwrap().tids, [second]);
    assert!(machine.vcpu(2).is_none());
    assert!(!machine.refresh().unwrap());
    let refreshed = |machine: &mut Machine| {
        // The kernel may take a moment to forget a joined thread, and the list is not read again at
        // once.
        let limit = Instant::now() + Duration::from_secs(60);
        loop {
            match machine.refresh() {
                Ok(false) => assert!(Instant::now() < limit, "nothing changes"),
                changed => break changed,
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    // Unplugged: the machine keeps the others.
    drop(end);
    join.join().unwrap();
    assert!(refreshed(&mut machine).unwrap());
    assert!(machine.vcpu(0).is_none());
    assert_eq!(machine.vcpu(1).unwrap().tids, [second]);
    // Plugged in.
    let (third, end, join) = thread("CPU 2/KVM");
    assert!(refreshed(&mut machine).unwrap());
    assert_eq!(machine.vcpu(2).unwrap().tids, [third]);
    // None is left.
    for (end, join) in [(end, join), (keep, second_join)] {
        drop(end);
        join.join().unwrap();
    }
    let gone = loop {
        if let Err(error) = refreshed(&mut machine) {
            break error;
        }
    };
    assert!(gone.kind() == ErrorKind::Gone && gone.to_string().contains("last vCPU"), "{gone}");
    // Another process with the same number, and an unused number.
    let reused = ProcessId { start: me.start + 1, ..me };
    assert_eq!(Machine::find(reused).unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(user_of(reused).unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(vcpus_of(0x7fff_fff0).unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(user_of(me).unwrap(), Some(rustix::process::geteuid().as_raw()));
}
