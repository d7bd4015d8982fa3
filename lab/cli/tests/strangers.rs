//! A request waits only for those that it overlaps, for its flush's writes, or for its class.
//!
//! `vlane serve` has an image on a file system that holds one operation until the test releases it.
//! Requests of other ranges are answered meanwhile, in the same lane and in another. Requests that
//! have a reason to wait are not. Only the order is asserted: a stranger is answered while the
//! operation is held. The clock is for a hang alone. The simulator has the same property with more
//! combinations: `checks/dst/src/strangers.rs`.
//!
//! | held | cache | go on | wait with a reason |
//! |---|---|---|---|
//! | a read | all | everything | |
//! | a write | `none` | everything | writes of parts of blocks |
//! | a write of a part of a block | `none` | everything, such writes elsewhere too | the same block |
//! | a write | `writethrough` | reads | |
//! | a write | `writeback`, `pdc` | reads of the other thread's lane | |
//! | a discard or zeroing | all | reads | |
//! | an fsync | `none`, `writeback`, `pdc` | reads | flushes |
//! | a write-back that a flush began | `writeback`, `pdc` | reads, of the same blocks too | flushes |
//!
//! These are excused:
//!
//! * Changes beside a buffered write, a discard, a zeroing or an fsync. FUSE holds the lock of the
//!   file (`inode_lock`) for these, so a change from any sender waits in the kernel.
//! * The lane of a buffered write that no rule foresaw: it holds its own thread
//!   (`docs/src/engines.md`, "Writes that leave their thread"). A write of another thread leaves
//!   before it begins.
//!
//! Only a worker of io_uring waits for the lock with `none`, with `writethrough`, and after a held
//! buffered write. There the test sends such a change, and its lane continues with reads.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod faulty;
mod served;

use std::process::Command;
use std::time::{Duration, Instant};

use faulty::{Fault, Faults, Faulty};
use served::{LIMIT, start, vlane};
use tempfile::TempDir;
use vlane_driver::ring::{Completion, Request, RequestKind};
use vlane_driver::{GuestQueue, Session, SessionOptions};
use vlane_guest::Backend;
use vlane_testing::skip;

const BYTES: usize = 16 << 20;
/// Bytes of a block of the storage.
const BLOCK: u32 = 4096;
/// Bytes of a part of a block.
const PART: u32 = 512;
/// The first sector of the held operation's block.
const HELD: u64 = (1 << 20) / 512;
/// Sectors between strangers: more than the kernel reads ahead.
const APART: u64 = (128 << 10) / 512;
const CACHES: [&str; 4] = ["none", "writeback", "writethrough", "pdc"];
const ALL: &[RequestKind] = &[
    RequestKind::Read,
    RequestKind::Write,
    RequestKind::Flush,
    RequestKind::Discard,
    RequestKind::WriteZeroes,
];

struct Lane {
    queue: GuestQueue,
    done: Vec<Completion>,
    /// The next request's slot.
    slot: u16,
}

/// A request that was sent.
#[derive(Debug, Clone, Copy)]
#[expect(dead_code, reason = "a failure shows all of it")]
struct Sent {
    lane: usize,
    slot: u16,
    kind: RequestKind,
    sector: u64,
}

/// A server with two lanes, each on a thread of its own, and its guest.
struct Bed {
    // The first to be dropped: it releases what the others wait for.
    faulty: Faulty,
    cache: &'static str,
    lanes: Vec<Lane>,
    session: Session,
    server: Backend,
    _sockets: TempDir,
    /// The next stranger's sector.
    fresh: u64,
    sent: Vec<Sent>,
}

impl Bed {
    fn new(cache: &'static str, is_late: bool) -> Option<Bed> {
        let faulty = Faulty::new(BYTES, is_late).map_err(skip).ok()?;
        let sockets = TempDir::with_prefix("vlane-strangers-").unwrap();
        let socket = sockets.path().join("disk.sock");
        let mut command = Command::new(vlane());
        command.arg("serve").arg(faulty.image()).arg("--socket").arg(&socket);
        command.args(["--queues", "2", "--threads", "2", "--cache", cache]);
        let server = start(&command, &socket).unwrap_or_else(|error| panic!("{error}"));
        let options =
            SessionOptions { queues: 2, depth: 64, data: BLOCK, ..SessionOptions::default() };
        let mut session = Session::connect(&socket, &options).unwrap();
        let (queues, _) = session.start().unwrap();
        let lanes =
            queues.into_iter().map(|queue| Lane { queue, done: Vec::new(), slot: 0 }).collect();
        let (fresh, sent) = (HELD + APART, Vec::new());
        let mut bed = Bed { faulty, cache, lanes, session, server, _sockets: sockets, fresh, sent };
        // The first of each kind may be served in another way than the next.
        for lane in [0, 1] {
            bed.goes_on(lane, ALL);
        }
        Some(bed)
    }

    /// Sends a request, and does not wait.
    fn send(&mut self, lane: usize, kind: RequestKind, sector: u64, len: u32) -> Sent {
        let Lane { queue, slot: next, .. } = &mut self.lanes[lane];
        let slot = *next;
        *next += 1;
        let data = queue.blk.data_mut(slot).unwrap();
        let is_range = matches!(kind, RequestKind::Discard | RequestKind::WriteZeroes);
        if is_range {
            let mut range = [0; 16];
            range[..8].copy_from_slice(&sector.to_le_bytes());
            range[8..12].copy_from_slice(&(len / 512).to_le_bytes());
            data.copy_in(0, &range).unwrap();
        } else {
            data.fill(7);
        }
        let (at, len) = match kind {
            RequestKind::Flush => (0, 0),
            _ if is_range => (0, 16),
            _ => (sector, len),
        };
        queue.blk.submit(slot, Request { kind, sector: at, len, ioprio: 0 }).unwrap();
        queue.blk.publish();
        queue.kick().unwrap();
        let sent = Sent { lane, slot, kind, sector };
        self.sent.push(sent);
        sent
    }

    /// Sends a stranger: a request of a block that no other request has.
    fn stranger(&mut self, lane: usize, kind: RequestKind) -> Sent {
        let sector = self.fresh;
        self.fresh += APART;
        self.send(lane, kind, sector, BLOCK)
    }

    /// Sends a request of which one operation is held, and waits until it is.
    fn hold(&mut self, faults: Faults, kind: RequestKind, len: u32) -> Sent {
        let before = self.faulty.met();
        self.faulty.set(faults);
        let sent = self.send(0, kind, HELD, len);
        let begin = Instant::now();
        while self.faulty.met() == before {
            assert!(begin.elapsed() < LIMIT, "{}: no operation of {sent:?} came", self.cache);
            std::thread::yield_now();
        }
        sent
    }

    fn answer(&mut self, sent: Sent) -> Option<u8> {
        let Lane { queue, done, .. } = &mut self.lanes[sent.lane];
        queue.blk.reap(done).unwrap();
        done.iter().find(|done| done.slot == sent.slot).map(|done| done.status)
    }

    /// A request is answered, and well.
    fn is_answered(&mut self, sent: Sent) {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.answer(sent) {
                assert_eq!(status, 0, "{}: {sent:?}: {}", self.cache, self.server.log());
                return;
            }
            assert!(begin.elapsed() < LIMIT, "{}: {sent:?} waits for a stranger", self.cache);
            std::thread::yield_now();
        }
    }

    /// Strangers of these kinds, all sent at once, are answered.
    fn goes_on(&mut self, lane: usize, kinds: &[RequestKind]) {
        let sent: Vec<Sent> = kinds.iter().map(|kind| self.stranger(lane, *kind)).collect();
        sent.into_iter().for_each(|sent| self.is_answered(sent));
    }

    /// A write waits in the kernel for the lock of the file. If it is buffered, that may hold its
    /// own thread, which is excused. No other thread is held.
    fn writes_beside_a_lock(&mut self) {
        self.stranger(0, RequestKind::Write);
        self.goes_on(1, &[RequestKind::Read, RequestKind::Read]);
        if self.cache == "none" {
            // A part of a block, too: it is read and written back.
            let elsewhere = self.fresh;
            self.fresh += APART;
            self.send(0, RequestKind::Write, elsewhere, PART);
            self.goes_on(0, &[RequestKind::Read, RequestKind::Read]);
        }
    }

    /// A request with a reason to wait has no answer after those that were sent behind it.
    fn waits(&mut self, sent: Sent) {
        assert_eq!(self.answer(sent), None, "{}: {sent:?} did not wait", self.cache);
    }

    /// The operation is released; then every request is answered, and the server ends well.
    fn ends(mut self) {
        self.faulty.answer();
        for sent in self.sent.clone() {
            self.is_answered(sent);
        }
        drop((self.lanes, self.session));
        let stopped = self.server.stop(LIMIT).unwrap();
        assert!(stopped.status.success(), "{}: {}", self.cache, stopped.log);
    }
}

fn once(set: impl FnOnce(&mut Faults)) -> Faults {
    let mut faults = Faults::default();
    set(&mut faults);
    faults
}

fn write() -> Faults {
    once(|faults| faults.write = Fault::HangOnce)
}

#[test]
fn held_read_delays_no_other_request() {
    for cache in CACHES {
        let Some(mut bed) = Bed::new(cache, false) else { return };
        let held = bed.hold(once(|faults| faults.read = Fault::HangOnce), RequestKind::Read, BLOCK);
        for lane in [0, 1] {
            bed.goes_on(lane, ALL);
            // This flush has something to make durable.
            bed.goes_on(lane, &[RequestKind::Write]);
            bed.goes_on(lane, ALL);
        }
        bed.waits(held);
        bed.ends();
    }
}

#[test]
fn held_direct_write_delays_only_changes_of_blocks() {
    let Some(mut bed) = Bed::new("none", false) else { return };
    let held = bed.hold(write(), RequestKind::Write, BLOCK);
    for lane in [0, 1] {
        bed.goes_on(lane, &[RequestKind::Write]);
        bed.goes_on(lane, ALL);
    }
    let changes = [0, 1].map(|lane| bed.send(lane, RequestKind::Write, HELD, PART));
    // Whole blocks elsewhere pass the changes that wait.
    for lane in [0, 1] {
        bed.goes_on(lane, ALL);
    }
    changes.into_iter().chain([held]).for_each(|sent| bed.waits(sent));
    bed.ends();
}

#[test]
fn held_change_delays_only_its_own_block() {
    let Some(mut bed) = Bed::new("none", false) else { return };
    let held = bed.hold(write(), RequestKind::Write, PART);
    let mut reasons = vec![held];
    for lane in [0, 1] {
        reasons.push(bed.send(lane, RequestKind::Write, HELD + 1, PART));
        reasons.push(bed.send(lane, RequestKind::Write, HELD, BLOCK));
        // More of them than a lane has under way at a time.
        for _ in 0..3 {
            reasons.push(bed.send(lane, RequestKind::WriteZeroes, HELD, BLOCK));
            reasons.push(bed.send(lane, RequestKind::Discard, HELD, BLOCK));
        }
    }
    for lane in [0, 1] {
        let elsewhere = bed.fresh;
        bed.goes_on(lane, ALL);
        let change = bed.send(lane, RequestKind::Write, elsewhere, PART);
        bed.is_answered(change);
        bed.goes_on(lane, ALL);
    }
    reasons.into_iter().for_each(|sent| bed.waits(sent));
    bed.ends();
}

#[test]
fn held_durable_write_delays_no_reads() {
    let Some(mut bed) = Bed::new("writethrough", false) else { return };
    let held = bed.hold(write(), RequestKind::Write, BLOCK);
    for lane in [0, 1] {
        bed.goes_on(lane, &[RequestKind::Read]);
        // Excused: it waits in the kernel.
        bed.stranger(lane, RequestKind::Write);
        bed.goes_on(lane, &[RequestKind::Read, RequestKind::Read]);
    }
    bed.waits(held);
    bed.ends();
}

#[test]
fn held_buffered_write_delays_no_other_thread() {
    for cache in ["writeback", "pdc"] {
        let Some(mut bed) = Bed::new(cache, false) else { return };
        let held = bed.hold(write(), RequestKind::Write, BLOCK);
        bed.goes_on(1, &[RequestKind::Read]);
        // Only a write that has not ended for half a millisecond is seen by others.
        std::thread::sleep(Duration::from_millis(10));
        bed.stranger(1, RequestKind::Write);
        bed.goes_on(1, &[RequestKind::Read, RequestKind::Read]);
        bed.waits(held);
        bed.ends();
    }
}

#[test]
fn held_ranges_delay_no_reads() {
    for cache in CACHES {
        for kind in [RequestKind::Discard, RequestKind::WriteZeroes] {
            let Some(mut bed) = Bed::new(cache, false) else { return };
            let held = bed.hold(once(|faults| faults.range = Fault::HangOnce), kind, BLOCK);
            // As `fstrim` does: many, of which a lane begins some at a time.
            for _ in 0..8 {
                bed.stranger(0, kind);
            }
            for lane in [0, 1] {
                bed.goes_on(lane, &[RequestKind::Read]);
                if cache == "writethrough" {
                    bed.stranger(lane, RequestKind::Write);
                }
                bed.goes_on(lane, &[RequestKind::Read, RequestKind::Read]);
            }
            bed.writes_beside_a_lock();
            bed.waits(held);
            bed.ends();
        }
    }
}

#[test]
fn held_sync_delays_only_flushes() {
    for cache in ["none", "writeback", "pdc"] {
        let Some(mut bed) = Bed::new(cache, false) else { return };
        bed.goes_on(0, &[RequestKind::Write]);
        let held = bed.hold(once(|faults| faults.sync = Fault::HangOnce), RequestKind::Flush, 0);
        // No other request was answered since: they need this one alone.
        let flushes = [0, 1].map(|lane| bed.send(lane, RequestKind::Flush, 0, 0));
        for lane in [0, 1] {
            bed.goes_on(lane, &[RequestKind::Read, RequestKind::Read]);
        }
        bed.writes_beside_a_lock();
        flushes.into_iter().chain([held]).for_each(|sent| bed.waits(sent));
        bed.ends();
    }
}

#[test]
fn held_write_back_delays_only_flushes() {
    for cache in ["writeback", "pdc"] {
        let Some(mut bed) = Bed::new(cache, true) else { return };
        bed.faulty.set(write());
        let taken = bed.send(0, RequestKind::Write, HELD, BLOCK);
        bed.is_answered(taken);
        let held = bed.hold(write(), RequestKind::Flush, 0);
        let flush = bed.send(1, RequestKind::Flush, 0, 0);
        for lane in [0, 1] {
            bed.goes_on(lane, &[RequestKind::Read]);
            let same = bed.send(lane, RequestKind::Read, HELD, BLOCK);
            bed.is_answered(same);
        }
        [held, flush].into_iter().for_each(|sent| bed.waits(sent));
        bed.ends();
    }
}
