//! Beside the file and not in it, because checks/models compiles that a second time.

#![allow(clippy::unwrap_used, reason = "tests may")]

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use proptest::prelude::*;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use vlane_ring::Slot;

use super::exclusion::{COMPARED, Exclusion, Hold, Holder};
use crate::sync::Waker;

const BLOCK: u64 = 4096;

struct Lane {
    holder: Holder,
    doorbell: Arc<Waker>,
}

impl Lane {
    fn new(exclusion: &Arc<Exclusion>) -> Lane {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let doorbell = Arc::new(rustix::event::eventfd(0, flags).unwrap());
        Lane { holder: Holder::new(exclusion, Arc::clone(&doorbell)), doorbell }
    }

    fn write(&mut self, slot: u16, range: Range<u64>) -> Option<Hold> {
        self.holder.begin_write(Slot(slot), range)
    }

    fn change(&mut self, slot: u16, range: Range<u64>) -> Option<Hold> {
        self.holder.begin_change(Slot(slot), range)
    }

    fn was_rung(&self) -> bool {
        rustix::io::read(&*self.doorbell, &mut [0u8; 8]).is_ok()
    }

    /// Looks for grants, as a channel does when its doorbell was rung.
    fn granted(&mut self) -> Vec<(u16, Hold)> {
        if !self.was_rung() {
            return Vec::new();
        }
        std::iter::from_fn(|| self.holder.granted()).map(|(slot, hold)| (slot.0, hold)).collect()
    }

    fn sleep_until_granted(&mut self) -> Hold {
        loop {
            let mut fds = [PollFd::new(&*self.doorbell, PollFlags::IN)];
            let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
            assert_ne!(
                rustix::event::poll(&mut fds, Some(&limit)).unwrap(),
                0,
                "a hold that never comes"
            );
            if let Some((_, hold)) = self.granted().pop() {
                return hold;
            }
        }
    }
}

fn lanes<const N: usize>() -> (Arc<Exclusion>, [Lane; N]) {
    let exclusion = Exclusion::new(BLOCK);
    let lanes = std::array::from_fn(|_| Lane::new(&exclusion));
    (exclusion, lanes)
}

fn slots(granted: &[(u16, Hold)]) -> Vec<u16> {
    granted.iter().map(|(slot, _)| *slot).collect()
}

#[test]
fn writes_without_changes_never_register() {
    let (exclusion, [mut one, mut other]) = lanes();
    let holds = [one.write(0, 0..BLOCK), one.write(1, 0..BLOCK), other.write(0, 0..BLOCK)]
        .map(Option::unwrap);
    assert!(holds.iter().all(|hold| !hold.is_registered()));
    assert!(exclusion.is_idle());
    let [a, b, c] = holds;
    one.holder.end(a);
    other.holder.end(c);
    assert!(one.holder.is_busy() && !other.holder.is_busy());
    one.holder.end(b);
    assert!(!one.holder.is_busy());
}

#[test]
fn change_waits_for_all_earlier_writes() {
    let (_, [mut one, mut other, mut third]) = lanes();
    let near = one.write(0, 0..BLOCK).unwrap();
    let far = other.write(0, 1 << 30..(1 << 30) + BLOCK).unwrap();
    assert!(third.change(7, 0..512).is_none());
    one.holder.end(near);
    assert!(third.granted().is_empty());
    other.holder.end(far);
    assert_eq!(slots(&third.granted()), [7]);
}

#[test]
fn change_holds_exactly_its_whole_blocks() {
    let (exclusion, [mut changer, mut writer]) = lanes();
    let change = changer.change(0, BLOCK + 512..2 * BLOCK + 1).unwrap();
    let before = writer.write(0, 0..BLOCK).unwrap();
    let after = writer.write(1, 3 * BLOCK..4 * BLOCK).unwrap();
    for (slot, block) in [(2, BLOCK), (3, 2 * BLOCK)] {
        assert!(writer.write(slot, block..block + BLOCK).is_none(), "{block}");
    }
    assert!(writer.write(4, 0..1 << 40).is_none());
    assert!(changer.change(1, 2 * BLOCK + 3000..2 * BLOCK + 3001).is_none());
    changer.holder.end(change);
    let granted = writer.granted();
    assert_eq!(slots(&granted), [2, 3, 4]);
    // The other change waits for the writes that were there before it.
    for (_, hold) in granted {
        assert!(changer.granted().is_empty());
        writer.holder.end(hold);
    }
    let granted = changer.granted();
    assert_eq!(slots(&granted), [1]);
    granted.into_iter().for_each(|(_, hold)| changer.holder.end(hold));
    writer.holder.end(before);
    writer.holder.end(after);
    assert!(exclusion.is_idle());
}

#[test]
fn writes_and_changes_starve_neither() {
    let (_, [mut one, mut other]) = lanes();
    // While this one is held, the others register.
    let far = one.change(0, 1 << 30..(1 << 30) + 1).unwrap();
    let write = one.write(1, 0..BLOCK).unwrap();
    assert!(other.change(2, 0..512).is_none());
    assert!(one.write(3, 0..BLOCK).is_none());
    assert!(other.change(4, 512..1024).is_none());
    assert!(one.write(5, 0..BLOCK).is_none());
    one.holder.end(write);
    for (slot, changes) in [(2, true), (3, false), (4, true), (5, false)] {
        let (next, idle) = if changes { (&mut other, &mut one) } else { (&mut one, &mut other) };
        let granted = next.granted();
        assert_eq!(slots(&granted), [slot]);
        assert!(idle.granted().is_empty());
        granted.into_iter().for_each(|(_, hold)| next.holder.end(hold));
    }
    one.holder.end(far);
}

/// The next change finds the write still registered.
#[test]
fn registered_write_outlives_the_last_change() {
    let (exclusion, [mut one, mut other]) = lanes();
    let change = one.change(0, 0..512).unwrap();
    let write = other.write(0, BLOCK..2 * BLOCK).unwrap();
    one.holder.end(change);
    assert!(!exclusion.is_changing());
    assert!(one.change(1, BLOCK..BLOCK + 512).is_none());
    other.holder.end(write);
    assert_eq!(slots(&one.granted()), [1]);
}

#[test]
fn dropped_channel_gives_back_its_holds() {
    for registered in [false, true] {
        let (exclusion, [mut gone, mut change, mut write]) = lanes();
        let far = registered.then(|| change.change(9, 1 << 30..(1 << 30) + 1).unwrap());
        assert_eq!(gone.write(0, 0..BLOCK).unwrap().is_registered(), registered);
        assert!(change.change(1, 0..512).is_none());
        assert!(gone.change(2, 0..512).is_none());
        assert!(write.write(3, 0..BLOCK).is_none());
        drop(gone);
        let granted = change.granted();
        assert_eq!(slots(&granted), [1]);
        granted.into_iter().for_each(|(_, hold)| change.holder.end(hold));
        let granted = write.granted();
        assert_eq!(slots(&granted), [3], "it waited for the change of the channel that is gone");
        granted.into_iter().for_each(|(_, hold)| write.holder.end(hold));
        far.into_iter().for_each(|hold| change.holder.end(hold));
        assert!(exclusion.is_idle());
    }
}

#[test]
fn forgotten_wait_blocks_no_other() {
    let (exclusion, [mut one, mut other]) = lanes();
    let change = one.change(0, 0..512).unwrap();
    // The first, one in the middle and the last of those that follow the change, and one that
    // follows one of them.
    for slot in 1..6 {
        assert!(other.write(slot, 0..BLOCK).is_none());
    }
    assert!(one.change(9, 0..512).is_none());
    for slot in [1, 3, 5] {
        other.holder.forget(Slot(slot));
    }
    one.holder.end(change);
    // Granted, and not taken yet.
    other.holder.forget(Slot(4));
    let granted = other.granted();
    assert_eq!(slots(&granted), [2]);
    granted.into_iter().for_each(|(_, hold)| other.holder.end(hold));
    let granted = one.granted();
    assert_eq!(slots(&granted), [9]);
    granted.into_iter().for_each(|(_, hold)| one.holder.end(hold));
    assert!(exclusion.is_idle());
}

#[test]
fn dropped_channel_gives_back_untaken_hold() {
    let (exclusion, [mut one, mut gone]) = lanes();
    let change = one.change(0, 0..512).unwrap();
    assert!(gone.write(0, 0..BLOCK).is_none());
    assert!(one.change(1, 0..512).is_none());
    one.holder.end(change);
    drop(gone);
    let granted = one.granted();
    assert_eq!(slots(&granted), [1]);
    granted.into_iter().for_each(|(_, hold)| one.holder.end(hold));
    assert!(exclusion.is_idle());
}

#[test]
fn work_for_one_block_grows_linearly() {
    const MANY: u16 = 4000;
    let (exclusion, [mut one, mut other]) = lanes();
    let compared = COMPARED.get();
    let mut held: Vec<Hold> = one.change(0, 0..512).into_iter().collect();
    for slot in 1..MANY {
        let hold =
            if slot % 8 == 0 { other.write(slot, 0..BLOCK) } else { one.change(slot, 0..512) };
        assert!(hold.is_none());
    }
    let mut ended = 0;
    while let Some(hold) = held.pop() {
        // Which channel gives it back makes no difference.
        one.holder.end(hold);
        ended += 1;
        held.extend(one.granted().into_iter().chain(other.granted()).map(|(_, hold)| hold));
        assert!(held.len() <= 1);
    }
    assert_eq!(ended, MANY);
    assert!(exclusion.is_idle());
    let compared = COMPARED.get() - compared;
    assert!(compared <= 8 * u64::from(MANY), "{compared} comparisons");
}

#[test]
fn write_during_changes_checks_changes_only() {
    let (exclusion, [mut changer, mut writer]) = lanes();
    let change = changer.change(0, 1 << 40..(1 << 40) + 1).unwrap();
    let compared = COMPARED.get();
    let writes: Vec<Hold> = (0..100).map(|slot| writer.write(slot, 0..BLOCK).unwrap()).collect();
    assert_eq!(COMPARED.get() - compared, 100);
    writes.into_iter().for_each(|hold| writer.holder.end(hold));
    assert_eq!(COMPARED.get() - compared, 100);
    changer.holder.end(change);
    assert!(exclusion.is_idle());
}

#[test]
fn odd_ranges_are_accepted() {
    let (exclusion, [mut one, mut other]) = lanes();
    #[allow(clippy::reversed_empty_ranges, reason = "that is what is tried")]
    for range in
        [0..0, 7..7, 9..3, 0..u64::MAX, u64::MAX..u64::MAX, u64::MAX - 1..u64::MAX, u64::MAX..0]
    {
        let change = one.change(0, range.clone()).unwrap();
        let write = other.write(0, range.clone());
        one.holder.end(change);
        let write = write.or_else(|| other.granted().pop().map(|(_, hold)| hold)).unwrap();
        other.holder.end(write);
        assert!(exclusion.is_idle(), "{range:?}");
    }
    let [mut one] = [Lane::new(&Exclusion::new(0))];
    assert!(one.change(0, 3..4).is_some());
}

/// An event of one of a few channels.
#[derive(Debug, Clone)]
enum Step {
    Write(usize, Range<u64>),
    Change(usize, Range<u64>),
    /// One of the channel's holds ends.
    End(usize, prop::sample::Index),
    Look(usize),
    /// One of the channel's requests is forgotten.
    Forget(usize, prop::sample::Index),
    /// It is dropped, and another one takes its place.
    Replace(usize),
}

const CHANNELS: usize = 3;

fn step() -> impl Strategy<Value = Step> {
    let blocks =
        || (0..6u64, 1..4u64).prop_map(|(start, len)| start * BLOCK..(start + len) * BLOCK);
    let bytes = || {
        (0..12 * BLOCK / 512, 1..12u64).prop_map(|(start, len)| start * 512..(start + len) * 512)
    };
    prop_oneof![
        6 => (0..CHANNELS, blocks()).prop_map(|(channel, range)| Step::Write(channel, range)),
        3 => (0..CHANNELS, bytes()).prop_map(|(channel, range)| Step::Change(channel, range)),
        8 => (0..CHANNELS, any::<prop::sample::Index>()).prop_map(|(channel, index)| Step::End(channel, index)),
        6 => (0..CHANNELS).prop_map(Step::Look),
        2 => (0..CHANNELS, any::<prop::sample::Index>()).prop_map(|(channel, index)| Step::Forget(channel, index)),
        1 => (0..CHANNELS).prop_map(Step::Replace),
    ]
}

/// The specification's record of a write or change that has not ended.
#[derive(Debug, Clone)]
struct Known {
    channel: usize,
    change: bool,
    range: Range<u64>,
    /// It is a write, and no change was there when it was asked for.
    unregistered: bool,
}

/// The specification: all requests that have not ended, in the order of asking.
#[derive(Debug, Default)]
struct Specification(BTreeMap<u16, Known>);

impl Specification {
    fn is_changing(&self) -> bool {
        self.0.values().any(|known| known.change)
    }

    fn holds(&self, id: u16) -> bool {
        let this = &self.0[&id];
        !self.0.range(..id).any(|(_, older)| {
            let meet = older.range.start < this.range.end && this.range.start < older.range.end;
            (this.change && older.unregistered) || ((this.change || older.change) && meet)
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn holder_overlaps_no_older_request(steps in prop::collection::vec(step(), 1..120)) {
        let (exclusion, mut lanes) = lanes::<CHANNELS>();
        let mut specification = Specification::default();
        let mut held: BTreeMap<u16, Hold> = BTreeMap::new();
        for (id, step) in (0..).zip(steps) {
            match step {
                Step::Write(channel, range) => {
                    let unregistered = !specification.is_changing();
                    let known = Known { channel, change: false, range: range.clone(), unregistered };
                    specification.0.insert(id, known);
                    let hold = lanes[channel].write(id, range);
                    prop_assert_eq!(hold.is_some(), specification.holds(id));
                    prop_assert!(hold.as_ref().is_none_or(|hold| hold.is_registered() != unregistered));
                    held.extend(hold.map(|hold| (id, hold)));
                }
                Step::Change(channel, range) => {
                    let blocks = range.start / BLOCK * BLOCK..range.end.div_ceil(BLOCK) * BLOCK;
                    specification.0.insert(id, Known { channel, change: true, range: blocks, unregistered: false });
                    let hold = lanes[channel].change(id, range);
                    prop_assert_eq!(hold.is_some(), specification.holds(id));
                    held.extend(hold.map(|hold| (id, hold)));
                }
                Step::End(channel, index) => {
                    let its: Vec<u16> = held.keys().copied().filter(|id| specification.0[id].channel == channel).collect();
                    if !its.is_empty() {
                        let id = *index.get(&its);
                        lanes[channel].holder.end(held.remove(&id).unwrap());
                        specification.0.remove(&id);
                    }
                }
                Step::Look(channel) => {
                    let expected: HashSet<u16> = specification.0.iter()
                        .filter(|(id, known)| known.channel == channel && !held.contains_key(id) && specification.holds(**id))
                        .map(|(id, _)| *id)
                        .collect();
                    let granted = lanes[channel].granted();
                    prop_assert_eq!(HashSet::from_iter(slots(&granted)), expected);
                    held.extend(granted);
                }
                Step::Forget(channel, index) => {
                    let its = specification.0.iter().filter(|(_, known)| known.channel == channel);
                    let its: Vec<u16> = its.map(|(id, _)| *id).collect();
                    if !its.is_empty() {
                        let id = *index.get(&its);
                        lanes[channel].holder.forget(Slot(id));
                        // One that is not registered is known by its hold only; of the others, it
                        // is gone already.
                        held.remove(&id).into_iter().for_each(|hold| lanes[channel].holder.end(hold));
                        specification.0.remove(&id);
                    }
                }
                Step::Replace(channel) => {
                    lanes[channel] = Lane::new(&exclusion);
                    held.retain(|id, _| specification.0[id].channel != channel);
                    specification.0.retain(|_, known| known.channel != channel);
                }
            }
        }
        // Each hold ends, until none is left: no request waits for ever.
        while !specification.0.is_empty() {
            for (channel, lane) in lanes.iter_mut().enumerate() {
                held.extend(lane.granted());
                let its: Vec<u16> = held.keys().copied().filter(|id| specification.0[id].channel == channel).collect();
                for id in its {
                    lane.holder.end(held.remove(&id).unwrap());
                    specification.0.remove(&id);
                }
            }
            prop_assert!(specification.0.is_empty() || specification.0.keys().any(|id| specification.holds(*id)));
        }
        prop_assert!(exclusion.is_idle());
    }
}

/// As in the models, on this machine's processor: blocks of two halves, which writes store both and
/// changes one. No lane waits for a hold that never comes.
#[test]
fn threaded_lanes_undo_no_write_and_end() {
    const LANES: u64 = 3;
    const TASKS: u64 = 20_000;
    #[derive(Default)]
    struct Block {
        left: AtomicU64,
        right: AtomicU64,
        inside: AtomicI32,
        changed: AtomicU64,
    }
    let exclusion = Exclusion::new(BLOCK);
    let disk: [Block; 2] = Default::default();
    let start = Barrier::new(3);
    std::thread::scope(|scope| {
        for number in 0..LANES {
            let (exclusion, disk, start) = (&exclusion, &disk, &start);
            scope.spawn(move || {
                let mut lane = Lane::new(exclusion);
                let mut random = number + 1;
                start.wait();
                for _ in 0..TASKS {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let (at, changes) = ((random >> 40) % 2, (random >> 44).is_multiple_of(16));
                    let block = &disk[usize::from(at == 1)];
                    let range = at * BLOCK..at * BLOCK + if changes { 512 } else { BLOCK };
                    let hold = if changes { lane.change(0, range) } else { lane.write(0, range) };
                    let hold = hold.unwrap_or_else(|| lane.sleep_until_granted());
                    if changes {
                        assert_eq!(
                            block.inside.swap(-1, Ordering::Relaxed),
                            0,
                            "a change meets something"
                        );
                        let (left, right) = (
                            block.left.load(Ordering::Relaxed),
                            block.right.load(Ordering::Relaxed),
                        );
                        std::hint::spin_loop();
                        block.left.store(left + 1, Ordering::Relaxed);
                        block.right.store(right, Ordering::Relaxed);
                        block.changed.fetch_add(1, Ordering::Relaxed);
                        block.inside.store(0, Ordering::Relaxed);
                    } else {
                        assert!(
                            block.inside.fetch_add(1, Ordering::Relaxed) >= 0,
                            "a write meets a change"
                        );
                        block.left.fetch_add(1, Ordering::Relaxed);
                        block.right.fetch_add(1, Ordering::Relaxed);
                        block.inside.fetch_sub(1, Ordering::Relaxed);
                    }
                    lane.holder.end(hold);
                }
            });
        }
    });
    let sums = disk.map(|block| {
        let [left, right, changed] =
            [block.left, block.right, block.changed].map(AtomicU64::into_inner);
        assert_eq!(left - changed, right, "a change has undone a write");
        left
    });
    assert_eq!(sums.iter().sum::<u64>(), LANES * TASKS);
    assert!(exclusion.is_idle());
}
