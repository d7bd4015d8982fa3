//! Promises of the limits, over any schedule.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::Cell;
use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::time::Duration;

use proptest::prelude::*;

use super::{Bucket, Level, Share, TICKS_PER_NS, refund, ticks};

const MS: u64 = 1_000_000 * TICKS_PER_NS;
const SECOND: u64 = 1000 * MS;

fn bucket(rate: u64, burst_ms: u64) -> Bucket {
    Bucket::new(NonZeroU64::new(rate).unwrap(), Duration::from_millis(burst_ms))
}

/// Returns the tokens that a rate gives in a time.
fn tokens(rate: u64, time: u64) -> f64 {
    rate as f64 * time as f64 / SECOND as f64
}

/// One of the sharers of the bucket: asks for a request at a time, in their order.
#[derive(Default)]
struct Taker {
    share: Share,
    waiting: VecDeque<u64>,
}

/// Takers, a level, and the times of their use.
struct World {
    bucket: Bucket,
    level: Cell<u64>,
    now: u64,
    takers: Vec<Taker>,
    /// When, how many tokens.
    used: Vec<(u64, u64)>,
}

impl World {
    fn new(bucket: Bucket, takers: usize) -> World {
        let takers = std::iter::repeat_with(Taker::default).take(takers).collect();
        // Time does not begin at zero: a clock has run before.
        World { bucket, level: Cell::new(0), now: 3 * SECOND, takers, used: Vec::new() }
    }

    /// A taker does all it can, and gives back the rest; returns the time to continue, if it waits.
    fn turn(&mut self, taker: usize) -> Option<u64> {
        let Taker { share, waiting } = &mut self.takers[taker];
        while let Some(&request) = waiting.front() {
            let cost = self.bucket.cost(request);
            if let Err(due) = share.have(&self.bucket, &self.level, self.now, cost) {
                assert!(due > self.now, "told to wait until {due}, which is over at {}", self.now);
                return Some(due);
            }
            share.pay(cost);
            self.used.push((self.now, request));
            waiting.pop_front();
        }
        share.give_back(&self.level);
        None
    }

    fn sum(&self, from: u64, to: u64) -> u64 {
        self.used.iter().filter(|(at, _)| (from..=to).contains(at)).map(|(_, tokens)| tokens).sum()
    }
}

#[derive(Debug, Clone, Copy)]
enum Act {
    /// Time passes, in us.
    Wait(u64),
    /// A taker wants something.
    Ask(usize, u64),
    /// A taker looks whether it can go on.
    Look(usize),
    /// A taker has no more work, and gives back its ticks.
    Leave(usize),
    /// The last request is undone.
    Undo,
}

fn act(largest: u64) -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..3_000_u64).prop_map(Act::Wait),
        1 => (0..2_000_000_u64).prop_map(Act::Wait),
        6 => (0..3_usize, 1..=largest).prop_map(|(taker, request)| Act::Ask(taker, request)),
        6 => (0..3_usize).prop_map(Act::Look),
        1 => (0..3_usize).prop_map(Act::Leave),
        1 => Just(Act::Undo),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn takers_never_exceed_burst_and_rate(
        rate in prop_oneof![1..100_u64, 100..1_000_000_u64, 1_000_000..20_000_000_000_u64],
        burst in 1..2_000_u64,
        acts in (1..2_000_000_u64).prop_flat_map(|largest| prop::collection::vec(act(largest), 1..200)),
    ) {
        let mut world = World::new(bucket(rate, burst), 3);
        let begin = world.now;
        let mut largest = 0;
        for act in acts {
            match act {
                Act::Wait(us) => world.now += us * 1000 * TICKS_PER_NS,
                Act::Ask(taker, request) => {
                    largest = largest.max(request);
                    world.takers[taker].waiting.push_back(request);
                    world.turn(taker);
                }
                Act::Look(taker) => drop(world.turn(taker)),
                Act::Leave(taker) => {
                    world.takers[taker].waiting.clear();
                    world.turn(taker);
                }
                Act::Undo => if let Some((_, request)) = world.used.pop() {
                    refund(&world.level, world.bucket.cost(request));
                },
            }
            let most = tokens(rate, ticks(Duration::from_millis(burst))).max(largest as f64) + tokens(rate, world.now - begin);
            let used = world.sum(begin, world.now) as f64;
            prop_assert!(used <= most * (1.0 + 1e-9), "{used} of {most}");
        }
        // No token is lost: takers that leave hold none, and after the burst's time the bucket is
        // as full as at the beginning.
        for taker in 0..3 {
            world.takers[taker].waiting.clear();
            world.turn(taker);
            prop_assert_eq!(world.takers[taker].share.rest(), 0);
        }
        let paid: u64 = world.used.iter().map(|(_, request)| world.bucket.cost(*request)).sum();
        prop_assert!(world.level.get() <= world.now + paid, "more was taken than used");
    }

    #[test]
    fn asking_takers_get_at_least_the_rate(
        rate in prop_oneof![100..100_000_u64, 100_000..10_000_000_000_u64],
        burst in 4..1_000_u64,
        takers in 1..5_usize,
        sizes in prop::collection::vec(1..64_u64, 1..20),
        lates in prop::collection::vec(0..1_000_u64, 1..20),
    ) {
        // A request is at most a hundredth of what comes in a second.
        let scale = (rate / 6400).max(1);
        let mut world = World::new(bucket(rate, burst), takers);
        let begin = world.now;
        let mut wakes = vec![begin; takers];
        let (mut sizes, mut lates) = (sizes.iter().cycle(), lates.iter().cycle());
        while world.now < begin + 3 * SECOND {
            let taker = (0..takers).min_by_key(|taker| wakes[*taker]).unwrap();
            world.now = world.now.max(wakes[taker]);
            wakes[taker] = loop {
                world.takers[taker].waiting.push_back(sizes.next().unwrap() * scale);
                if let Some(due) = world.turn(taker) {
                    // A woken taker comes late, by up to a quarter of the burst.
                    break due + lates.next().unwrap() * burst * MS / 4000;
                }
            };
        }
        // Tokens already taken, or asked for too late, are used a little later.
        let slack = takers as f64 * (64 * scale) as f64 + tokens(rate, burst * MS / 4 * 2);
        for from in [begin, begin + SECOND / 2, begin + 2 * SECOND] {
            let (used, want) = (world.sum(from, from + SECOND) as f64, tokens(rate, SECOND));
            prop_assert!(used >= want * 0.999 - slack, "{used} of {want} within a second");
        }
        let (used, want) = (world.sum(begin, begin + 3 * SECOND) as f64, tokens(rate, 3 * SECOND));
        prop_assert!(used >= want * 0.98 - takers as f64 * (64 * scale) as f64, "{used} of {want}");
    }
}

#[test]
fn each_second_is_within_two_percent() {
    for rate in [1_000, 10_000, 100_000, 1_000_000, 4_000_000_000] {
        for takers in 1..=4 {
            let request = if rate > 1_000_000 { 4096 } else { 1 };
            let mut world = World::new(bucket(rate, 100), takers);
            let mut wakes = vec![world.now; takers];
            let begin = world.now;
            while world.now < begin + 3 * SECOND {
                let taker = (0..takers).min_by_key(|taker| wakes[*taker]).unwrap();
                world.now = world.now.max(wakes[taker]);
                world.takers[taker].waiting.extend([request; 64]);
                // Late by 60 us, as a thread is.
                let due = world.turn(taker);
                wakes[taker] = due.map_or(world.now + 10_000, |due| due + 60_000 * TICKS_PER_NS);
            }
            // After the burst.
            for second in [1, 2] {
                let from = begin + second * SECOND;
                let ratio = world.sum(from, from + SECOND) as f64 / rate as f64;
                assert!((0.98..=1.02).contains(&ratio), "{rate} by {takers}: {ratio}");
            }
        }
    }
}

/// Small requests do not starve a large one.
#[test]
fn takers_are_served_in_turn() {
    let rate = 1000;
    let mut world = World::new(bucket(rate, 10), 2);
    let begin = world.now;
    // Ten times the burst, beside a taker that asks for a single token without end.
    world.takers[0].waiting.push_back(100);
    let mut wakes = [begin, begin];
    while !world.takers[0].waiting.is_empty() {
        let taker = usize::from(wakes[1] <= wakes[0]);
        world.now = world.now.max(wakes[taker]);
        if taker == 1 {
            world.takers[1].waiting.push_back(1);
        }
        wakes[taker] = world.turn(taker).unwrap_or(world.now + 1000);
        assert!(world.now < begin + SECOND, "it waits for ever");
    }
}

/// The requests after it wait for its cost.
#[test]
fn oversized_request_passes_at_full_bucket() {
    let mut world = World::new(bucket(1000, 10), 1);
    world.takers[0].waiting.extend([500, 1]);
    let due = world.turn(0).unwrap();
    assert_eq!(world.used, [(world.now, 500)]);
    let waits = due - world.now;
    assert!((490 * MS..=501 * MS).contains(&waits), "{} ms", waits / MS);
}

#[test]
fn costs_do_not_overflow() {
    let slow = bucket(1, 1);
    assert_eq!(slow.cost(1), SECOND);
    assert_eq!(slow.cost(u64::MAX), 1 << 60);
    let (mut share, level) = (Share::default(), Cell::new(0));
    for _ in 0..100 {
        share.pay_anyway(&slow, &level, 0, slow.cost(u64::MAX));
    }
    let due = share.have(&slow, &level, 0, slow.cost(1)).unwrap_err();
    assert!(due > 1 << 60);
    share.give_back(&level);
    assert_eq!(level.change(|level| level), level.get());
}
