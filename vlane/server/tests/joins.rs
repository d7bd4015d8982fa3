//! Back ends and the machines that they bring, as the scheduler's daemon hears of them: from a
//! separate thread.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod common;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use common::*;
use rustix::event::{PollFd, PollFlags, Timespec};
use tempfile::TempDir;
use vlane_policy::loan::Claim;
use vlane_sched::link::Link;
use vlane_sched::live::backends::Backends;
use vlane_sched::live::source::{Mark, Source};
use vlane_sched::live::state::Completions;
use vlane_server::Schedulers;

/// Threads of this process with this name.
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let comm = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
    tasks.filter_map(|task| comm(task).ok()).filter(|comm| comm.trim() == name).count()
}

/// Collects marks until a condition holds.
fn told_until(source: &mut impl Source, what: &str, mut holds: impl FnMut(&mut Vec<Mark>) -> bool) {
    let (limit, mut marks) = (Instant::now() + LIMIT, Vec::new());
    while !holds(&mut marks) {
        assert!(Instant::now() < limit, "never: {what}: {marks:?}");
        let mut fds = [PollFd::from_borrowed_fd(source.fd(), PollFlags::IN)];
        let wait = Timespec::try_from(Duration::from_millis(5)).unwrap();
        rustix::event::poll(&mut fds, Some(&wait)).unwrap();
        source.collect(&mut marks).unwrap();
    }
}

/// Their threads are opened outside the event loop.
#[test]
fn machines_join_with_their_back_ends() {
    let directory = TempDir::with_prefix("vlane-joins-").unwrap();
    let path = directory.path().join("sched.sock");
    // This process is the machine, too.
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let ended = std::sync::Arc::new(std::sync::Mutex::new(ended));
    let machine: Vec<_> = (0..3)
        .map(|n| {
            let ended = std::sync::Arc::clone(&ended);
            let sleep = move || drop(ended.lock().map(|ended| ended.recv()));
            std::thread::Builder::new().name(format!("vcpu{n}")).spawn(sleep).unwrap()
        })
        .collect();
    while (0..3).any(|n| threads(&format!("vcpu{n}")) != 1) {
        std::thread::yield_now();
    }

    let link = Link::bind(&path, 0o600).unwrap();
    let claims = Box::new(|process: vlane_sched::ProcessId| Claim::of(process.pid));
    let mut source = Backends::new(link, Completions::All, claims).unwrap().start().unwrap();
    let server = Server::telling(null(None), 2, 1, Duration::ZERO, Schedulers::At(path.clone()));
    let (wire, memory) = server.guest(USUAL);

    // No more than two vCPUs join at a time: events have their turn between them.
    let mut tokens = BTreeMap::new();
    told_until(&mut source, "three vCPUs", |marks| {
        assert!(marks.len() <= 2, "{marks:?}");
        for mark in marks.drain(..) {
            let Mark::Joined { token, vcpu, claim } = mark else { continue };
            assert_eq!((claim.vm, vcpu.pid), (std::process::id(), std::process::id()));
            tokens.insert(vcpu.index, (token, vcpu.tids));
        }
        tokens.len() == 3
    });
    // The last ones' threads are there already.
    let opened: Vec<u32> = tokens
        .values()
        .flat_map(|&(token, _)| source.opened(token))
        .map(|thread| thread.tid())
        .collect();
    assert!(!opened.is_empty());
    assert!(
        opened.iter().all(|tid| tokens.values().any(|(_, tids)| tids.contains(tid))),
        "{opened:?}"
    );

    // Lane 1's I/O is vCPU 1's.
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(1, &ring));
    let wanted = tokens[&1].0;
    let mut heard = 0;
    told_until(&mut source, "events", |marks| {
        for mark in marks.drain(..) {
            if let Mark::Event { token } = mark {
                assert_eq!(token, wanted);
                heard += 1;
            }
        }
        ring.submit(0, GET_ID, 0, 20);
        ring.wait(1);
        heard >= 3
    });

    drop(wire);
    assert_eq!(threads("sched-joins"), 1);
    drop(source);
    assert!(!path.exists(), "its socket is left");
    let limit = Instant::now() + LIMIT;
    while threads("sched-joins") > 0 {
        assert!(Instant::now() < limit, "its thread does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(end);
    machine.into_iter().for_each(|thread| thread.join().unwrap());
}
