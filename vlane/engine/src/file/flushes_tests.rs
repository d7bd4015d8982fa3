//! Beside the file and not in it, because checks/models compiles that a second time.

#![allow(clippy::unwrap_used, reason = "tests may")]

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use rustix::event::EventfdFlags;
use vlane_ring::Slot;

use super::flushes::{Asked, End, Flusher, Flushes, Syncer};
use crate::Writeback;
use crate::sync::Waker;

/// Requests of a lane at a time.
const DEPTH: u16 = 3;

/// Moments are numbered.
type Moment = u64;

/// An `fdatasync` that has begun.
#[derive(Debug, Clone, Copy)]
struct Sync {
    began: Moment,
    /// And whether it ended well.
    ended: Option<(Moment, bool)>,
}

struct Lane {
    flusher: Flusher,
    doorbell: Arc<Waker>,
    /// Flushes that are not answered, and when they were asked for.
    out: BTreeMap<u16, Moment>,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Write(usize),
    Ask(usize),
    /// The thread begins an `fdatasync`, if one is called for.
    Begin,
    /// The `fdatasync` that is under way ends.
    End(bool),
    /// A lane's thread wakes up, if there is a reason.
    Look(usize),
    Forget(usize),
    /// A lane ends, and another one begins in its place.
    Replace(usize),
}

/// A volume that is watched: each answer is checked against the writes, and against the
/// `fdatasync`s that there were.
struct World {
    flushes: Arc<Flushes>,
    syncer: Syncer,
    lanes: Vec<Lane>,
    now: Moment,
    /// The times at which the writes were answered; the first is the previous owner's.
    writes: Vec<Moment>,
    syncs: Vec<Sync>,
    /// The last of them has not ended.
    is_under_way: bool,
    answered: usize,
}

impl Lane {
    fn new(flushes: &Arc<Flushes>) -> Lane {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let doorbell = Arc::new(rustix::event::eventfd(0, flags).unwrap());
        Lane {
            flusher: Flusher::new(flushes, Arc::clone(&doorbell)),
            doorbell,
            out: BTreeMap::new(),
        }
    }
}

impl World {
    fn new(lanes: usize) -> World {
        let flushes = Flushes::new();
        let lanes = (0..lanes).map(|_| Lane::new(&flushes)).collect();
        let syncer = Syncer::new(&flushes);
        let (writes, syncs) = (vec![0], Vec::new());
        World { flushes, syncer, lanes, now: 0, writes, syncs, is_under_way: false, answered: 0 }
    }

    fn step(&mut self, step: Step) {
        self.now += 1;
        match step {
            Step::Write(lane) => {
                self.lanes[lane].flusher.count();
                self.writes.push(self.now);
            }
            Step::Ask(lane) => {
                let Some(slot) = (0..DEPTH).find(|slot| !self.lanes[lane].out.contains_key(slot))
                else {
                    return;
                };
                self.lanes[lane].out.insert(slot, self.now);
                match self.lanes[lane].flusher.ask(Slot(slot), Writeback::Flush) {
                    Asked::Durable => self.answer(lane, slot, true),
                    Asked::Wait => assert!(!self.is_durable(self.now), "it waits for nothing"),
                }
            }
            Step::Begin => self.begin(),
            Step::End(ok) => {
                if std::mem::take(&mut self.is_under_way) {
                    self.syncs.last_mut().unwrap().ended = Some((self.now, ok));
                    self.syncer.ended(if ok { End::Well } else { End::Failed(libc::EIO) });
                }
            }
            Step::Look(lane) => self.look(lane),
            Step::Forget(lane) => {
                let Some((slot, _)) = self.lanes[lane].out.pop_first() else { return };
                self.lanes[lane].flusher.forget(Slot(slot));
            }
            Step::Replace(lane) => self.lanes[lane] = Lane::new(&self.flushes),
        }
    }

    /// Acts as a lane does when its doorbell was rung.
    fn look(&mut self, lane: usize) {
        if rustix::io::read(&*self.lanes[lane].doorbell, &mut [0u8; 8]).is_ok() {
            self.read_news(lane);
        }
    }

    fn read_news(&mut self, lane: usize) {
        while let Some((Slot(slot), told)) = self.lanes[lane].flusher.next_result() {
            assert!(self.lanes[lane].out.contains_key(&slot), "{slot} waits for nothing");
            self.answer(lane, slot, told.end == End::Well);
        }
    }

    fn begin(&mut self) {
        if self.is_under_way {
            assert_eq!(self.syncer.try_next(), None, "one at a time");
        } else if self.syncer.try_next().is_some() {
            assert!(!self.is_durable(self.now), "an fdatasync with nothing to do");
            self.now += 1;
            self.syncs.push(Sync { began: self.now, ended: None });
            self.is_under_way = true;
        }
    }

    /// The rule, in plain words: a successful one that began after each write that was answered
    /// before `asked`, and has ended.
    fn is_durable(&self, asked: Moment) -> bool {
        let last = self.writes.iter().copied().filter(|write| *write < asked).max().unwrap_or(0);
        self.syncs.iter().any(|sync| sync.began > last && sync.ended.is_some_and(|(_, ok)| ok))
    }

    fn answer(&mut self, lane: usize, slot: u16, ok: bool) {
        let asked = self.lanes[lane].out.remove(&slot).expect("a flush that is out");
        self.answered += 1;
        match ok {
            true => assert!(
                self.is_durable(asked),
                "answered at {}, asked at {asked}: {:?}",
                self.now,
                self.syncs
            ),
            false => {
                let failed = |sync: &Sync| sync.ended.is_some_and(|(end, ok)| !ok && end > asked);
                assert!(self.syncs.iter().any(failed), "a failure that none was");
            }
        }
    }

    /// From now on all syncs succeed, and every lane looks when it is rung.
    fn settle(&mut self) {
        let out: usize = self.lanes.iter().map(|lane| lane.out.len()).sum();
        for _ in 0..=2 * out {
            self.step(Step::End(true));
            self.step(Step::Begin);
            (0..self.lanes.len()).for_each(|lane| self.look(lane));
        }
        let left: Vec<_> = self.lanes.iter().map(|lane| &lane.out).collect();
        assert!(left.iter().all(|out| out.is_empty()), "they wait for ever: {left:?}");
    }
}

fn step(lanes: usize) -> impl Strategy<Value = Step> {
    let lane = || 0..lanes;
    prop_oneof![
        6 => lane().prop_map(Step::Write),
        6 => lane().prop_map(Step::Ask),
        5 => Just(Step::Begin),
        4 => prop::bool::weighted(0.9).prop_map(Step::End),
        6 => lane().prop_map(Step::Look),
        1 => lane().prop_map(Step::Forget),
        1 => lane().prop_map(Step::Replace),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// For each order of the lanes' steps: each flush that is answered OK has its `fdatasync`, none
    /// runs without need, and no flush waits for ever.
    #[test]
    fn flush_is_answered_once_earlier_writes_are_durable(
        steps in prop::collection::vec(step(4), 1..120),
    ) {
        let mut world = World::new(4);
        steps.into_iter().for_each(|step| world.step(step));
        world.settle();
    }
}

#[test]
fn flushes_during_a_sync_share_the_next() {
    let mut world = World::new(8);
    for lane in 0..8 {
        world.step(Step::Write(lane));
        world.step(Step::Ask(lane));
        world.step(Step::Begin);
    }
    world.settle();
    assert_eq!((world.answered, world.syncs.len()), (8, 2));
}

#[test]
fn covered_flush_needs_no_further_sync() {
    let mut world = World::new(3);
    for lane in 0..3 {
        world.step(Step::Ask(lane));
        world.step(Step::Begin);
    }
    world.settle();
    assert_eq!((world.answered, world.syncs.len()), (3, 1));
}
