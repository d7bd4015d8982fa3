//! A request waits for those that it overlaps, and a flush for the writes before it; for no other.
//! The tests use real files, on a file system that holds writes until the test releases them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::places::{Mount, command, image, on_disk, open, skip};
use common::{Op, Rig, bytes};
use vlane_engine::file::Cache;
use vlane_engine::{Engine, Status};

/// No request takes that long, unless it waits for an event that does not come.
const LIMIT: Duration = Duration::from_secs(60);
/// The longest time for which writes leave their threads after a slow one, and a little more.
const PAUSE: Duration = Duration::from_millis(10_100);

/// A file system on which each write waits until this is dropped.
struct Frozen {
    at: String,
    is_over: AtomicBool,
}

impl Frozen {
    fn new(at: &Path) -> Result<Frozen, String> {
        let at = at.to_string_lossy().into_owned();
        command("fsfreeze", &["--freeze", &at])?;
        Ok(Frozen { at, is_over: AtomicBool::new(false) })
    }

    fn thaw(&self) {
        if !self.is_over.swap(true, Ordering::SeqCst) {
            command("fsfreeze", &["--unfreeze", &self.at]).expect("it goes on");
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.thaw();
    }
}

/// Waits until a thread of this process stands still in the kernel, and cannot be woken.
fn until_it_stands_still(thread: u32) {
    let begin = Instant::now();
    loop {
        let stat =
            std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).expect("a thread");
        if stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('D')) {
            return;
        }
        assert!(begin.elapsed() < LIMIT, "its write does not wait");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Serves a request of `rig` to its end, however many others are out.
fn answered(rig: &mut Rig, op: Op) -> Status {
    let place = rig.start(op);
    rig.begin();
    let begin = Instant::now();
    loop {
        rig.reap(Instant::now());
        let answers = rig.collect();
        assert!(answers.len() <= 1, "a write that is held is answered: {answers:?}");
        if let Some(answer) = answers.first() {
            assert_eq!(answer.place, place, "a write that is held is answered");
            return answer.status;
        }
        assert!(begin.elapsed() < LIMIT, "it waits for another request");
        rig.lane.wait(Duration::from_millis(20));
    }
}

/// One lane's thread is held in a write that came without a warning. The lanes of other threads
/// serve all that does not write, and their writes hold no thread.
#[test]
fn held_write_delays_only_writes() {
    for cache in [Cache::Writeback, Cache::Pdc] {
        let dir = on_disk();
        let mount = match Mount::ext4(&image(dir.path(), 16 << 20), 512) {
            Ok(mount) => mount,
            Err(why) => return skip(why),
        };
        let engine: Arc<dyn Engine> = open(&image(mount.path(), 1 << 20), cache);
        let mut rig = Rig::new(Arc::clone(&engine));
        let begin = Instant::now();
        rig.ok(Op::write(0, bytes(1, 65536)));
        let mut slowest = begin.elapsed();
        rig.ok(Op::Flush);
        let begin = Instant::now();
        // So that the next flush has something to do.
        rig.ok(Op::write(0, bytes(2, 65536)));
        slowest = slowest.max(begin.elapsed());
        assert!(rig.stats().inline > 0, "{:?}", rig.stats());
        // After a slow write, others leave their threads for twenty times as long.
        std::thread::sleep((slowest * 20).clamp(Duration::from_millis(60), PAUSE));

        let frozen = match Frozen::new(mount.path()) {
            Ok(frozen) => Arc::new(frozen),
            Err(why) => return skip(why),
        };
        let (said, hears) = channel();
        let of = Arc::clone(&engine);
        let held = std::thread::spawn(move || {
            let mut rig = Rig::new(of);
            rig.start(Op::write(1024, bytes(3, 4096)));
            said.send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned())
                .expect("heard");
            rig.begin();
            rig.drain().into_iter().map(|answer| answer.status).collect::<Vec<_>>()
        });
        // A thread that waits for this one must not wait for ever.
        let (ends, waits) = channel::<()>();
        let late = Arc::clone(&frozen);
        let guard = std::thread::spawn(move || {
            let is_late = waits.recv_timeout(LIMIT).is_err();
            late.thaw();
            is_late
        });
        until_it_stands_still(hears.recv().expect("a thread"));
        // Then it is known that it takes long.
        std::thread::sleep(Duration::from_millis(2));

        for round in 0..4 {
            rig.start(Op::write(256 + round * 8, bytes(round, 4096)));
            rig.begin();
            assert_eq!(answered(&mut rig, Op::read(0, 65536)), Status::Ok);
            assert_eq!(answered(&mut rig, Op::Flush), Status::Ok);
            // Longer than a pause after a write that was slow.
            std::thread::sleep(Duration::from_millis(60));
        }
        assert_eq!(rig.in_flight(), 4);
        ends.send(()).expect("the guard");
        assert!(!guard.join().expect("the guard"), "{cache:?}: a thread was held");
        assert_eq!(held.join().expect("a lane"), [Status::Ok]);
        assert!(rig.drain().iter().all(|answer| answer.status == Status::Ok));
        assert_eq!(rig.in_flight(), 0);
    }
}
