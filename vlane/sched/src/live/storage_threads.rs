//! The storage threads of back ends: the lanes that serve machines' requests.

use std::collections::HashMap;
use std::sync::Arc;

use super::backends::opened;
use super::source::Mark;
use crate::thread::{Thread, process_of};
use crate::vehicle::{MAX_THREADS, VcpuThreads};

/// A back end's threads are looked for so often.
const EVERY_NS: u64 = 1_000_000_000;
/// The limit for the back ends of a user other than root: the event loop looks at each thread 33
/// times a second.
const MAX_PER_USER: usize = 256;
/// A process may have any number of threads; so many are looked at.
const LOOKED_AT: usize = 1024;

#[derive(Debug)]
struct Known {
    token: u64,
    user: u32,
    tids: Vec<u32>,
    threads: Vec<Arc<Thread>>,
    look_at: u64,
}

/// The back ends whose threads were announced, by process.
#[derive(Debug, Default)]
pub(super) struct StorageThreads(HashMap<u32, Known>);

impl StorageThreads {
    /// Looks at a back end, whose machine `vm` pays. The mark, if its threads are others than at
    /// the last look.
    pub(super) fn look(
        &mut self,
        back_end: u32,
        vm: u32,
        now: u64,
        token: impl FnOnce() -> u64,
    ) -> Option<Mark> {
        if self.0.get(&back_end).is_some_and(|known| now < known.look_at) {
            return None;
        }
        // Its end is heard of otherwise.
        let (_, user) = process_of(back_end).ok()?;
        let mut tids = lanes(back_end);
        tids.truncate(self.room(user, back_end));
        let known = self.0.entry(back_end).or_insert_with(|| Known {
            token: token(),
            user,
            tids: Vec::new(),
            threads: Vec::new(),
            look_at: 0,
        });
        known.look_at = now + EVERY_NS;
        if known.tids == tids {
            return None;
        }
        known.tids = tids;
        Some(mark(back_end, known.token, known.tids.clone(), vm))
    }

    /// How many threads of a back end its user has room for.
    fn room(&self, user: u32, back_end: u32) -> usize {
        if user == 0 {
            return MAX_THREADS;
        }
        let others = self.0.iter().filter(|(pid, known)| **pid != back_end && known.user == user);
        let taken: usize = others.map(|(_, known)| known.tids.len()).sum();
        MAX_PER_USER.saturating_sub(taken).min(MAX_THREADS)
    }

    /// Opens the threads of a mark. Those that cannot be opened are left out of it.
    pub(super) fn open(&mut self, token: u64, back_end: &mut VcpuThreads) -> Vec<Arc<Thread>> {
        let Some(known) = self.0.values_mut().find(|known| known.token == token) else {
            return Vec::new();
        };
        // A failure is retried at the next look.
        known.threads = opened(back_end, &known.threads).unwrap_or_default();
        let is_open = |tid: &u32| known.threads.iter().any(|thread| thread.tid() == *tid);
        back_end.tids.retain(is_open);
        known.tids.clone_from(&back_end.tids);
        known.threads.clone()
    }

    /// Forgets a back end that serves nobody any more; the mark, if it had threads.
    pub(super) fn forget(&mut self, back_end: u32) -> Option<Mark> {
        let known = self.0.remove(&back_end)?;
        (!known.tids.is_empty()).then(|| mark(back_end, known.token, Vec::new(), 0))
    }
}

fn mark(pid: u32, token: u64, tids: Vec<u32>, vm: u32) -> Mark {
    let name = format!("back end {pid}");
    Mark::Storage { token, back_end: VcpuThreads { pid, index: 0, tids, name }, vm }
}

/// The lane threads of a process, by the names that vlane gives them.
fn lanes(pid: u32) -> Vec<u32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let number = |task: std::fs::DirEntry| task.file_name().to_str()?.parse().ok();
    let is_lane = |tid: &u32| {
        let name = std::fs::read(format!("/proc/{pid}/task/{tid}/comm"));
        name.is_ok_and(|name| name.starts_with(b"lane-"))
    };
    let mut tids: Vec<u32> =
        tasks.flatten().filter_map(number).take(LOOKED_AT).filter(is_lane).collect();
    tids.sort_unstable();
    tids
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

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
        let mut all = StorageThreads::default();
        let look = |all: &mut StorageThreads, now| all.look(me, 9, now, || 5);
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
        drop(one);
        let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let mut now = 3 * EVERY_NS;
        loop {
            if let Some(mark) = look(&mut all, now) {
                let Mark::Storage { back_end, .. } = mark else { panic!("{mark:?}") };
                assert!(back_end.tids.is_empty());
                break;
            }
            assert!(std::time::Instant::now() < limit, "its end is not seen");
            now += EVERY_NS;
        }
        assert_eq!(all.forget(me), None);
    }

    #[test]
    fn users_back_ends_have_limited_threads() {
        let mut all = StorageThreads::default();
        let known = |user, threads| Known {
            token: 1,
            user,
            tids: vec![7; threads],
            threads: Vec::new(),
            look_at: 0,
        };
        all.0.insert(1, known(1000, MAX_PER_USER - 3));
        all.0.insert(2, known(1001, 1));
        assert_eq!([all.room(1000, 3), all.room(1001, 3), all.room(0, 3)], [3, 32, 32]);
        // Its own do not count.
        assert_eq!(all.room(1000, 1), 32);
    }
}
