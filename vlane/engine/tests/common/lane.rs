//! A lane as small as it can be: takes requests, has the channel's operations submitted, and lets
//! requests go on.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vlane_driver::ring::{self as driver, Arena};
use vlane_engine::{Channel, Decisions, Engine, Operation, Outcome, Slot, Taken};
use vlane_io::{Event, InflightQueue, Uring};
use vlane_memory::{GuestMemory, Region, RegionSpec};
use vlane_ring::{Queue, QueueConfig, RingFormat};

const DOORBELL: u32 = 1;
/// Any number: it comes back with each operation.
const PLACE: u16 = 7;

pub struct Lane {
    pub uring: Uring,
    pub queue: InflightQueue,
    pub channel: Box<dyn Channel>,
    /// Requests that, as the channel said, go to a journal.
    pub in_journal: u64,
    /// The decisions that a policy makes for the next requests, if there is one.
    pub policy: Option<Decisions>,
    /// By slot.
    decisions: Vec<Decisions>,
    operations: Vec<Operation>,
    again: VecDeque<Slot>,
    ready: Vec<Slot>,
    is_rung: bool,
}

impl Lane {
    /// A lane for the device's side of `driver`, with the memory `arena` and the other given parts.
    pub fn new(
        engine: &dyn Engine,
        driver: &driver::Queue,
        arena: &Arena,
        more: Option<(RegionSpec, &File)>,
    ) -> Lane {
        let spec = RegionSpec {
            guest: arena.base(),
            size: arena.size(),
            user: arena.user_addr(),
            offset: 0,
        };
        let file = File::from(arena.fd().expect("memfd").try_clone_to_owned().expect("dup"));
        let regions = [Some((spec, &file)), more].into_iter().flatten();
        let regions = regions.map(|(spec, file)| Region::map(spec, file).expect("map")).collect();
        let memory = GuestMemory::new(regions).expect("memory");
        let at = driver.layout();
        let config = QueueConfig {
            layout: RingFormat::Split,
            size: at.size,
            event_idx: false,
            desc: arena.to_user(at.desc),
            driver: arena.to_user(at.driver),
            device: arena.to_user(at.device),
            base: 0,
            log_addr: None,
        };
        let queue = Queue::new(config, Arc::new(memory)).expect("queue");
        let mut uring = Uring::new(64).expect("io_uring");
        let channel = engine.channel(at.size).expect("channel");
        if let Some(doorbell) = channel.doorbell() {
            uring.watch(doorbell, DOORBELL);
        }
        Lane {
            queue: InflightQueue::new(queue, PLACE, channel.files(), &mut uring),
            decisions: vec![Decisions::default(); usize::from(at.size)],
            in_journal: 0,
            policy: None,
            channel,
            uring,
            operations: Vec::new(),
            again: VecDeque::new(),
            ready: Vec::new(),
            is_rung: false,
        }
    }

    /// Takes the next request, if there is one.
    pub fn take(&mut self) -> Option<Slot> {
        let slot = self.queue.take().expect("a sound queue")?;
        self.decisions[usize::from(slot.0)] =
            self.policy.unwrap_or_else(|| self.channel.defaults());
        Some(slot)
    }

    /// Begins a request that was taken.
    pub fn begin(&mut self, slot: Slot) {
        self.in_journal += u64::from(self.channel.is_in_journal(self.queue.request(slot)));
        let taken = taken(&self.queue, &self.decisions, slot);
        let outcome = self.channel.begin(taken, &mut self.operations);
        self.proceed(slot, outcome);
    }

    fn proceed(&mut self, slot: Slot, outcome: Outcome) {
        match outcome {
            Outcome::Done(status) => {
                assert!(self.operations.is_empty(), "{slot:?} is answered and goes on");
                self.queue.answer(slot, status);
            }
            Outcome::Whole(file) => {
                assert!(self.operations.is_empty(), "{slot:?} is two operations");
                let durable = self.decisions[usize::from(slot.0)].durable;
                self.queue.submit_whole(&mut self.uring, slot, file, durable);
            }
            Outcome::Pending => {
                for mut operation in self.operations.drain(..) {
                    self.queue.submit(&mut self.uring, slot, &mut operation);
                }
            }
            Outcome::Continue => self.again.push_back(slot),
        }
    }

    fn go_on(&mut self, slot: Slot) {
        let taken = taken(&self.queue, &self.decisions, slot);
        let outcome = self.channel.go_on(taken, &mut self.operations);
        self.proceed(slot, outcome);
    }

    /// Lets the next operation end without beginning the next step, but puts the request back into
    /// its ring, as a lane that stops does. It must be the last one that was taken.
    pub fn put_back_after_an_operation(&mut self) {
        let begin = Instant::now();
        let finished = loop {
            self.wait(Duration::from_secs(1));
            self.submit();
            match self.uring.next_event() {
                Some(Event::Finished(finished)) => break finished,
                _ => assert!(begin.elapsed() < Duration::from_secs(60), "it hangs"),
            }
        };
        let (slot, completion) = self.queue.finish(finished).expect("of this queue");
        let taken = taken(&self.queue, &self.decisions, slot);
        let outcome = self.channel.finished(taken, completion, &mut self.operations);
        assert_eq!(outcome, Outcome::Pending);
        self.put_back(slot);
    }

    pub fn put_back(&mut self, slot: Slot) {
        self.operations.clear();
        assert!(self.queue.put_back(slot), "the last one");
        self.channel.forget(slot);
    }

    /// Has the begun operations submitted.
    pub fn submit(&mut self) {
        self.uring.submit().expect("submit");
    }

    /// Works on arrivals and continued requests; returns how many steps of requests that were.
    pub fn turn(&mut self, now: Instant) -> usize {
        self.submit();
        let mut steps = 0;
        while let Some(event) = self.uring.next_event() {
            match event {
                Event::Finished(finished) => {
                    assert_eq!(finished.place(), PLACE);
                    let (slot, completion) = self.queue.finish(finished).expect("of this queue");
                    let taken = taken(&self.queue, &self.decisions, slot);
                    let outcome = self.channel.finished(taken, completion, &mut self.operations);
                    self.proceed(slot, outcome);
                    steps += 1;
                }
                Event::Wake { token: DOORBELL, armed } => {
                    self.is_rung = true;
                    if !armed {
                        self.uring.watch(self.channel.doorbell().expect("a doorbell"), DOORBELL);
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        // Only then: no code may rely on constant looks.
        if std::mem::take(&mut self.is_rung) || self.channel.deadline().is_some_and(|at| at <= now)
        {
            self.channel.poll(now, &mut self.ready);
            for slot in std::mem::take(&mut self.ready) {
                self.go_on(slot);
                steps += 1;
            }
        }
        if let Some(slot) = self.again.pop_front() {
            self.go_on(slot);
            steps += 1;
        }
        self.submit();
        steps
    }

    /// Waits until something arrives, unless there is something to do.
    pub fn wait(&mut self, longest: Duration) {
        let is_due = self.channel.deadline().is_some_and(|at| at <= Instant::now());
        if self.again.is_empty() && !is_due && !self.uring.has_work() {
            self.uring.wait(Some(longest)).expect("wait");
        }
    }

    /// The guest switches its write cache: off with `on`.
    pub fn set_write_through(&mut self, on: bool) {
        self.channel.set_write_through(on);
        for decisions in &mut self.decisions {
            decisions.durable |= on;
        }
    }
}

fn taken<'a>(queue: &'a InflightQueue, decisions: &[Decisions], slot: Slot) -> Taken<'a> {
    Taken { slot, request: queue.request(slot), decisions: decisions[usize::from(slot.0)] }
}
