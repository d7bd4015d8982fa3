//! Lanes, each with a window, on a device that is simulated: channels that work on a request each,
//! and queues in front of them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::{LaneMessage, MS, Nanos, Shared, Window};
use crate::express::{Class, Each, Turns};

/// From an answer until the lane's thread has it.
const WAKES: Nanos = 10_000;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Queues {
    /// In the order of arrival.
    One,
    /// One for each lane, served in turns.
    PerLane,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Service {
    Fixed,
    Exponential,
    /// One of ten takes fifty times as long as the others.
    Mixed,
}

#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub lanes: usize,
    pub channels: usize,
    pub queues: Queues,
    pub service: Service,
    /// A request's mean time at the device; from a time on.
    pub takes: Vec<(Nanos, Nanos)>,
    /// Background requests that each lane's guest has outstanding.
    pub depth: usize,
    /// Express requests that the first lane's guest has outstanding, each a millisecond after the
    /// one before was answered.
    pub express: usize,
    /// Lanes lose their CPU: every so often, for so long, on average.
    pub pauses: Option<(Nanos, Nanos)>,
    pub bounded: bool,
    /// The counted time begins here, and the simulation ends there.
    pub from: Nanos,
    pub until: Nanos,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            lanes: 1,
            channels: 4,
            queues: Queues::One,
            service: Service::Fixed,
            takes: vec![(0, MS)],
            depth: 512,
            express: 1,
            pauses: None,
            bounded: true,
            from: 1000 * MS,
            until: 13_000 * MS,
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Result {
    pub background: u64,
    pub all: u64,
    /// Times of express requests, sorted.
    pub express: Vec<Nanos>,
    /// At the device, on average and at most.
    pub mean: f64,
    pub most: usize,
}

impl Result {
    pub(super) fn p99(&self) -> Nanos {
        self.express[self.express.len() * 99 / 100]
    }

    pub(super) fn p50(&self) -> Nanos {
        self.express[self.express.len() / 2]
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Asked {
    lane: usize,
    is_express: bool,
    arrived: Nanos,
    begun: Nanos,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Done(Asked),
    Turn(usize),
    Express(usize),
    Pause(usize),
}

#[derive(Debug, Default)]
struct Lane {
    window: Window,
    turns: Turns,
    /// Waiting, express and background, in the order of arrival.
    waiting: [VecDeque<Asked>; 2],
    at_device: [u32; 2],
    answers: Vec<Asked>,
    asleep_until: Nanos,
    has_turn: bool,
}

struct World {
    setup: Setup,
    lanes: Vec<Lane>,
    queues: Vec<VecDeque<Asked>>,
    next_queue: usize,
    free: usize,
    events: BinaryHeap<Reverse<(Nanos, u64, What)>>,
    number: u64,
    random: u64,
    probe_at: Nanos,
    told: Vec<LaneMessage>,
    result: Result,
    at_device: usize,
    area: f64,
    last: Nanos,
}

pub(super) fn run(setup: Setup) -> Result {
    let count = setup.lanes;
    let lanes = (0..setup.lanes).map(|_| Lane::default()).collect();
    let queues = vec![VecDeque::new(); if setup.queues == Queues::One { 1 } else { setup.lanes }];
    let free = setup.channels;
    let mut world = World {
        setup,
        lanes,
        queues,
        next_queue: 0,
        free,
        events: BinaryHeap::new(),
        number: 0,
        random: 0x9e37_79b9_7f4a_7c15,
        probe_at: 0,
        told: vec![LaneMessage::default(); count],
        result: Result::default(),
        at_device: 0,
        area: 0.0,
        last: 0,
    };
    world.run();
    world.result.express.sort_unstable();
    world.result
}

impl World {
    fn random(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }

    fn at(&mut self, time: Nanos, what: What) {
        self.number += 1;
        self.events.push(Reverse((time, self.number, what)));
    }

    fn run(&mut self) {
        for lane in 0..self.setup.lanes {
            for _ in 0..self.setup.depth {
                let asked = Asked { lane, is_express: false, arrived: 0, begun: 0 };
                self.lanes[lane].waiting[1].push_back(asked);
            }
            self.wake(lane, 0);
            if let Some((every, _)) = self.setup.pauses {
                let first = (self.random() * 2.0 * every as f64) as u64;
                self.at(first, What::Pause(lane));
            }
        }
        // Without a bound until the first of them comes.
        for n in 0..self.setup.express {
            self.at(200 * MS + n as u64 * 10_000, What::Express(0));
        }
        while let Some(Reverse((now, _, what))) = self.events.pop() {
            if now >= self.setup.until {
                break;
            }
            if now >= self.setup.from {
                self.area += self.at_device as f64 * (now - self.last.max(self.setup.from)) as f64;
            }
            self.last = now;
            match what {
                What::Done(asked) => self.done(asked, now),
                What::Turn(lane) => self.turn(lane, now),
                What::Express(lane) => {
                    self.lanes[lane].waiting[0].push_back(Asked {
                        lane,
                        is_express: true,
                        arrived: now,
                        begun: 0,
                    });
                    self.wake(lane, now);
                }
                What::Pause(lane) => {
                    let (every, long) = self.setup.pauses.unwrap();
                    let long = (self.random() * 2.0 * long as f64) as u64;
                    self.lanes[lane].asleep_until = now + long;
                    let next = now + long + (self.random() * 2.0 * every as f64) as u64;
                    self.at(next, What::Pause(lane));
                }
            }
        }
        self.result.mean = self.area / (self.setup.until - self.setup.from) as f64;
    }

    fn wake(&mut self, lane: usize, now: Nanos) {
        if !std::mem::replace(&mut self.lanes[lane].has_turn, true) {
            self.at(now + WAKES, What::Turn(lane));
        }
    }

    fn done(&mut self, asked: Asked, now: Nanos) {
        self.at_device -= 1;
        self.lanes[asked.lane].answers.push(asked);
        self.wake(asked.lane, now);
        self.free += 1;
        self.feed(now);
    }

    fn feed(&mut self, now: Nanos) {
        while self.free > 0 {
            let count = self.queues.len();
            let Some(queue) = (0..count)
                .map(|n| (self.next_queue + n) % count)
                .find(|q| !self.queues[*q].is_empty())
            else {
                return;
            };
            self.next_queue = (queue + 1) % count;
            let asked = self.queues[queue].pop_front().unwrap();
            self.free -= 1;
            let takes = self.takes(now);
            self.at(now + takes, What::Done(asked));
        }
    }

    fn takes(&mut self, now: Nanos) -> Nanos {
        let mean = self.setup.takes.iter().rfind(|(from, _)| *from <= now).unwrap().1 as f64;
        let random = self.random();
        let takes = match self.setup.service {
            Service::Fixed => mean,
            Service::Exponential => -mean * (1.0 - random).ln(),
            Service::Mixed => mean / 5.9 * if random < 0.1 { 50.0 } else { 1.0 },
        };
        (takes as u64).max(1)
    }

    fn turn(&mut self, number: usize, now: Nanos) {
        if self.lanes[number].asleep_until > now {
            let until = self.lanes[number].asleep_until;
            return self.at(until, What::Turn(number));
        }
        self.lanes[number].has_turn = false;
        for asked in std::mem::take(&mut self.lanes[number].answers) {
            self.answered(asked, now);
        }
        let is_mixed = self.setup.bounded && now > 200 * MS;
        if !is_mixed {
            let [express, others] = self.lanes[number].at_device;
            self.told[number] = LaneMessage::unbounded(express + others);
        } else if self.probe_at == 0 {
            self.lanes.iter_mut().for_each(|lane| lane.window.closes(now));
            self.probe_at = now;
        }
        let mut begun = 0;
        while let Some(mut asked) = self.lanes[number].next(is_mixed) {
            begun += 1;
            asked.begun = now;
            self.at_device += 1;
            let queue = if self.setup.queues == Queues::One { 0 } else { number };
            self.queues[queue].push_back(asked);
        }
        if now > self.setup.from {
            self.result.most = self.result.most.max(self.at_device);
        }
        self.feed(now);
        if is_mixed {
            let Lane { waiting, at_device, window, .. } = &mut self.lanes[number];
            let is_wanted = !waiting[1].is_empty();
            let at_device = at_device[0] + at_device[1];
            let turn = super::Turn { at_device, begun, is_wanted, probe_at: self.probe_at };
            let told = &mut self.told;
            let wants = window.turn(now, turn, || Shared::of(told.iter().copied(), now));
            told[number] = window.message(turn);
            if let Some(probe) = wants {
                self.probe_at = self.probe_at.max(probe);
            }
            // The window may be another one now.
            if self.lanes[number].next_class(true).is_some() {
                self.wake(number, now);
            }
        }
    }

    fn answered(&mut self, asked: Asked, now: Nanos) {
        let lane = &mut self.lanes[asked.lane];
        lane.at_device[usize::from(!asked.is_express)] -= 1;
        lane.window.answered(asked.begun, now);
        let counts = now >= self.setup.from;
        self.result.all += u64::from(counts);
        if asked.is_express {
            if counts {
                self.result.express.push(now - asked.arrived);
            }
            self.at(now + MS, What::Express(asked.lane));
        } else {
            self.result.background += u64::from(counts);
            let again = Asked { arrived: now, ..asked };
            lane.waiting[1].push_back(again);
        }
    }
}

impl Lane {
    fn next_class(&self, is_mixed: bool) -> Option<Class> {
        let [express, lower] = [!self.waiting[0].is_empty(), !self.waiting[1].is_empty()];
        if !is_mixed {
            let first = |list: &VecDeque<Asked>| list.front().map(|asked| asked.arrived);
            return match (first(&self.waiting[0]), first(&self.waiting[1])) {
                (Some(express), Some(lower)) if express <= lower => Some(Class::Express),
                (Some(_), None) => Some(Class::Express),
                (_, Some(_)) => Some(Class::Background),
                (None, None) => None,
            };
        }
        let waits = Each([express, false, false, lower]);
        let [express, others] = self.at_device;
        self.window.next(&self.turns, waits, [express, 0, others])
    }

    fn next(&mut self, is_mixed: bool) -> Option<Asked> {
        let class = self.next_class(is_mixed)?;
        if is_mixed {
            self.turns.begun(
                class,
                Each([!self.waiting[0].is_empty(), false, false, !self.waiting[1].is_empty()]),
            );
        }
        let which = usize::from(class != Class::Express);
        self.at_device[which] += 1;
        self.waiting[which].pop_front()
    }
}
