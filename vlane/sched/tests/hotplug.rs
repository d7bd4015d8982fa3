//! vCPUs that come and go while their machine runs; alone in its program, because threads are the
//! process's.

#![allow(clippy::unwrap_used, reason = "tests may")]

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vlane_hint::ProcessId;
use vlane_policy::loan::Claim;
use vlane_sched::link::Link;
use vlane_sched::live::backends::Backends;
use vlane_sched::live::source::{Mark, Source};
use vlane_sched::live::state::Completions;

/// A thread with this name, until it is asked to end.
struct Named {
    tid: u32,
    end: Option<Sender<()>>,
    join: Option<JoinHandle<()>>,
}

impl Named {
    fn new(name: &str) -> Self {
        let (end, ended) = channel();
        let (told, tid) = channel();
        let body = move || {
            told.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            let _ = ended.recv();
        };
        let join = std::thread::Builder::new().name(name.to_owned()).spawn(body).unwrap();
        let tid = u32::try_from(tid.recv().unwrap()).unwrap();
        Self { tid, end: Some(end), join: Some(join) }
    }

    fn end(&mut self) {
        self.end = None;
        let _ = self.join.take().map(JoinHandle::join);
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns the next mark.
fn next(backends: &mut dyn Source, waiting: &mut Vec<Mark>) -> Mark {
    let until = Instant::now() + Duration::from_secs(60);
    while waiting.is_empty() {
        assert!(Instant::now() < until, "nothing is told");
        backends.collect(waiting).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    waiting.remove(0)
}

fn joined(mark: Mark) -> (u64, u32, Vec<u32>) {
    match mark {
        Mark::Joined { token, vcpu, .. } => (token, vcpu.index, vcpu.tids),
        other => panic!("{other:?}"),
    }
}

#[test]
fn plugged_vcpu_joins_unplugged_one_leaves() {
    let dir = tempfile::tempdir().unwrap();
    let link = Link::bind(&dir.path().join("sched.sock"), 0o600).unwrap();
    let me = ProcessId::of(std::process::id()).unwrap();
    let first = Named::new("CPU 0/KVM");
    let mut second = Named::new("CPU 1/KVM");
    let backends =
        Backends::new(link, Completions::All, Box::new(|process| Claim::of(process.pid)));
    let mut backends = backends.unwrap();
    backends.expect(me);
    let (backends, marks) = (&mut backends.start().unwrap(), &mut Vec::new());
    let (zero, index, tids) = joined(next(backends, marks));
    assert_eq!((index, tids), (0, vec![first.tid]));
    let (one, index, tids) = joined(next(backends, marks));
    assert_eq!((index, tids), (1, vec![second.tid]));

    let mut third = Named::new("CPU 2/KVM");
    let (two, index, tids) = joined(next(backends, marks));
    assert_eq!((index, tids), (2, vec![third.tid]));
    assert!(zero != one && one != two && zero != two);

    third.end();
    assert_eq!(next(backends, marks), Mark::Left { token: two });
    // A vCPU in the middle is replaced: the new one is not the old one.
    second.end();
    assert_eq!(next(backends, marks), Mark::Left { token: one });
    let again = Named::new("CPU 1/KVM");
    let (token, index, tids) = joined(next(backends, marks));
    assert_eq!((index, tids), (1, vec![again.tid]));
    assert!(token != one);
    // The first one was never concerned, and no other mark came.
    for _ in 0..50 {
        backends.collect(marks).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(*marks, []);
}
