//! The storage threads of back ends: the lanes that serve machines' requests.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

use super::source::Mark;
use crate::hold;
use crate::thread::{Thread, is_gone, process_of};
use crate::vehicle::{MAX_THREADS, VcpuThreads};

/// A back end's threads are looked for so often.
const EVERY_NS: u64 = 1_000_000_000;
/// They are announced again after so long: the reason of a refusal may be over.
const AGAIN_NS: u64 = 10_000_000_000;
/// The limit for all back ends: the event loop looks at each thread 33 times a second.
const MAX_IN_ALL: usize = 1024;
/// A process may have any number of threads; so many are looked at.
const LOOKED_AT: usize = 1024;

#[derive(Debug)]
struct Known {
    token: u64,
    vm: u32,
    tids: Vec<u32>,
    threads: Vec<Arc<Thread>>,
    look_at: u64,
    again_at: u64,
}

/// The back ends whose threads were announced, by process.
#[derive(Debug)]
pub(super) struct StorageThreads {
    /// Users whose back ends may have real-time threads. A real-time thread can pass its priority
    /// on to another one by a lock, which then pays no budget. So the users are to be trusted.
    users: BTreeSet<u32>,
    known: HashMap<u32, Known>,
}

impl StorageThreads {
    /// Those of the back ends of these users.
    pub(super) fn of(users: BTreeSet<u32>) -> Self {
        Self { users, known: HashMap::new() }
    }

    /// Looks at a back end, whose machine `vm` pays. The mark, if its threads or its payer are
    /// others than at the last look.
    pub(super) fn look(
        &mut self,
        back_end: u32,
        vm: u32,
        now: u64,
        token: impl FnOnce() -> u64,
    ) -> Option<Mark> {
        if self.known.get(&back_end).is_some_and(|known| now < known.look_at) {
            return None;
        }
        // Its end is heard of otherwise. A want of descriptors is no end.
        let (_, user) = process_of(back_end).ok()?;
        let mut tids = if self.users.contains(&user) { lanes(back_end).ok()? } else { Vec::new() };
        let others = self.known.iter().filter(|(pid, _)| **pid != back_end);
        let taken: usize = others.map(|(_, known)| known.tids.len()).sum();
        tids.truncate(MAX_IN_ALL.saturating_sub(taken).min(MAX_THREADS));
        let known = self.known.entry(back_end).or_insert_with(|| Known {
            token: token(),
            vm,
            tids: Vec::new(),
            threads: Vec::new(),
            look_at: 0,
            again_at: 0,
        });
        known.look_at = now + EVERY_NS;
        let is_same = (known.vm, &known.tids) == (vm, &tids);
        if is_same && (tids.is_empty() || now < known.again_at) {
            return None;
        }
        (known.vm, known.tids, known.again_at) = (vm, tids, now + AGAIN_NS);
        Some(mark(back_end, known.token, known.tids.clone(), vm))
    }

    /// Opens the threads of a mark. Those that cannot be opened are left out of it.
    pub(super) fn open(&mut self, token: u64, back_end: &mut VcpuThreads) -> Vec<Arc<Thread>> {
        let Some(known) = self.known.values_mut().find(|known| known.token == token) else {
            return Vec::new();
        };
        let open = |tid: &u32| {
            let is_it = |thread: &&Arc<Thread>| thread.tid() == *tid && !thread.has_ended();
            if let Some(thread) = known.threads.iter().find(is_it) {
                return Some(Arc::clone(thread));
            }
            let taken = Thread::open(*tid)
                .and_then(|thread| hold::take(&thread, &back_end.name).map(|()| thread));
            taken.map(Arc::new).inspect_err(|error| tracing::debug!("{error}")).ok()
        };
        let threads: Vec<Arc<Thread>> = back_end.tids.iter().filter_map(open).collect();
        back_end.tids = threads.iter().map(|thread| thread.tid()).collect();
        known.threads.clone_from(&threads);
        threads
    }

    /// Forgets a back end that serves nobody any more; the mark, if it had threads.
    pub(super) fn forget(&mut self, back_end: u32) -> Option<Mark> {
        let known = self.known.remove(&back_end)?;
        (!known.tids.is_empty()).then(|| mark(back_end, known.token, Vec::new(), known.vm))
    }
}

fn mark(pid: u32, token: u64, tids: Vec<u32>, vm: u32) -> Mark {
    let name = format!("back end {pid}");
    Mark::Storage { token, back_end: VcpuThreads { pid, index: 0, tids, name }, vm }
}

/// The lane threads of a process, by the names that vlane gives them.
fn lanes(pid: u32) -> io::Result<Vec<u32>> {
    let mut tids = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))?.take(LOOKED_AT) {
        let task = task?.file_name();
        let Some(tid) = task.to_str().and_then(|name| name.parse().ok()) else { continue };
        match std::fs::read(format!("/proc/{pid}/task/{tid}/comm")) {
            Ok(name) if name.starts_with(b"lane-") => tids.push(tid),
            Ok(_) => {}
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    tids.sort_unstable();
    Ok(tids)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// One test has lanes in this process at a time.
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    /// A thread of this name until the sender is dropped; its number.
    fn thread(name: &str) -> (std::sync::mpsc::Sender<()>, u32) {
        let (tell, told) = channel();
        let (stop, stopped) = channel::<()>();
        let body = move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
            let _ = stopped.recv();
        };
        std::thread::Builder::new().name(name.into()).spawn(body).unwrap();
        (stop, told.recv().unwrap())
    }

    #[test]
    fn lanes_are_announced_when_they_change() {
        let me = std::process::id();
        let mut all = StorageThreads::of([rustix::process::geteuid().as_raw()].into());
        let look = |all: &mut StorageThreads, now| all.look(me, 9, now, || 5);
        // Lanes of the other tests come and go meanwhile.
        let _one = vlane_error::locked(&ONE);
        assert_eq!(look(&mut all, 0), None);
        let (_other, _) = thread("flush");
        let (one, first) = thread("lane-0");
        assert_eq!(look(&mut all, EVERY_NS - 1), None, "not looked for yet");
        let Some(Mark::Storage { token: 5, mut back_end, vm: 9 }) = look(&mut all, EVERY_NS) else {
            panic!("not announced")
        };
        assert_eq!((back_end.pid, back_end.tids.clone()), (me, vec![first]));
        assert_eq!(all.open(5, &mut back_end).len(), 1);
        assert_eq!(look(&mut all, 2 * EVERY_NS), None);
        // Refused threads may be possible later.
        let again = EVERY_NS + AGAIN_NS;
        assert_eq!(look(&mut all, again), Some(Mark::Storage { token: 5, back_end, vm: 9 }));
        drop(one);
        let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let mut now = again + EVERY_NS;
        loop {
            // Until its end is seen it is announced again.
            if let Some(Mark::Storage { back_end, .. }) = look(&mut all, now)
                && back_end.tids.is_empty()
            {
                break;
            }
            assert!(std::time::Instant::now() < limit, "its end is not seen");
            now += EVERY_NS;
        }
        assert_eq!(all.forget(me), None);
    }

    /// A back end whose machine leaves goes on for another one.
    #[test]
    fn lanes_follow_a_new_payer() {
        let _one = vlane_error::locked(&ONE);
        let (_lane, tid) = thread("lane-7");
        let me = std::process::id();
        let mut all = StorageThreads::of([rustix::process::geteuid().as_raw()].into());
        let mut payer = |vm, now| match all.look(me, vm, now, || 5) {
            Some(Mark::Storage { back_end, vm, .. }) => Some((back_end.tids, vm)),
            _ => None,
        };
        assert_eq!(payer(9, 0), Some((vec![tid], 9)));
        assert_eq!(payer(9, EVERY_NS), None);
        assert_eq!(payer(8, 2 * EVERY_NS), Some((vec![tid], 8)));
    }

    /// Another user's back end keeps its lanes as they are.
    #[test]
    fn untrusted_users_lanes_are_left_alone() {
        let _one = vlane_error::locked(&ONE);
        let (_lane, _) = thread("lane-9");
        let mut all = StorageThreads::of(BTreeSet::new());
        assert_eq!(all.look(std::process::id(), 9, 0, || 5), None);
    }

    #[test]
    fn back_ends_share_one_limit() {
        let known = |threads| Known {
            token: 1,
            vm: 1,
            tids: vec![7; threads],
            threads: Vec::new(),
            look_at: 0,
            again_at: 0,
        };
        let _one = vlane_error::locked(&ONE);
        let (_lane, _) = thread("lane-8");
        let mut all = StorageThreads::of([rustix::process::geteuid().as_raw()].into());
        all.known.insert(0, known(MAX_IN_ALL));
        assert_eq!(all.look(std::process::id(), 9, 0, || 5), None);
        all.known.insert(0, known(MAX_IN_ALL - 1));
        assert!(all.look(std::process::id(), 9, EVERY_NS, || 5).is_some());
    }
}
