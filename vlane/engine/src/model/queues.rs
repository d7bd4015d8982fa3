//! The device of [`round_robin`](super::round_robin), with a clock and lanes: a submission queue
//! for each thread that submits.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use vlane_error::locked;

use super::round_robin::RoundRobin;
use super::{self as model, ModelConfig, nanoseconds};
use crate::Mode;
use crate::{Decisions, Instant, Slot};

/// The device, shared by all lanes.
#[derive(Debug)]
pub(crate) struct Queues {
    start: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    device: RoundRobin<Job>,
    /// By the number of the device's queue.
    seats: Vec<Seat>,
    /// By [`Job::port`]; those of lanes that are gone are used again.
    ports: Vec<Lane>,
}

/// The owner of a queue.
#[derive(Debug)]
struct Seat {
    thread: u64,
    /// Lanes that submit there. Without any, and empty, another thread can have it.
    lanes: usize,
}

/// The model's record of a lane.
#[derive(Debug, Default)]
struct Lane {
    is_there: bool,
    /// How many lanes had this number before.
    generation: u64,
    /// Served, and not yet reported.
    served: Vec<Slot>,
    /// Neither served nor forgotten.
    pending: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Job {
    port: usize,
    generation: u64,
    slot: u16,
}

/// One lane's.
#[derive(Debug)]
pub(crate) struct Port {
    queues: Arc<Queues>,
    number: usize,
    generation: u64,
    /// The thread from which it submits, and that one's queue.
    thread: u64,
    queue: usize,
    deadline: Option<Instant>,
    /// Express requests go to the shortest queue.
    shortest: bool,
    handed_over: u64,
}

/// The present thread, for as long as the process lives.
fn present_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

impl Queues {
    pub(super) fn new(config: ModelConfig) -> Queues {
        let device = RoundRobin::new(nanoseconds(config.latency), config.parallelism);
        let state = State { device, seats: Vec::new(), ports: Vec::new() };
        Queues { start: Instant::now(), state: Mutex::new(state) }
    }

    fn since_start(&self, time: Instant) -> u64 {
        nanoseconds(time.saturating_duration_since(self.start))
    }
}

impl State {
    /// A lane begins to submit from that thread; says which queue it has.
    fn sit(&mut self, thread: u64) -> usize {
        let its = self.seats.iter().position(|seat| seat.lanes > 0 && seat.thread == thread);
        let queue = its.or_else(|| {
            (0..self.seats.len())
                .find(|queue| self.seats[*queue].lanes == 0 && self.device.length(*queue) == 0)
        });
        let queue = queue.unwrap_or_else(|| {
            self.seats.push(Seat { thread, lanes: 0 });
            self.device.add_queue()
        });
        self.seats[queue].thread = thread;
        self.seats[queue].lanes += 1;
        queue
    }

    fn leave(&mut self, queue: usize) {
        self.seats[queue].lanes -= 1;
    }

    fn advance(&mut self, now: u64) {
        let State { device, ports, .. } = self;
        device.advance(now, |job| {
            let lane = ports.get_mut(job.port).filter(|lane| lane.generation == job.generation);
            if let Some(lane) = lane {
                lane.pending -= 1;
                lane.served.push(Slot(job.slot));
            }
        });
    }

    /// The queue with the fewest requests among those that have a thread; `own`, if none has fewer.
    fn shortest(&self, own: usize) -> usize {
        let all = (0..self.seats.len()).filter(|queue| self.seats[*queue].lanes > 0);
        let shortest = all.min_by_key(|queue| self.device.length(*queue)).unwrap_or(own);
        if self.device.length(shortest) < self.device.length(own) { shortest } else { own }
    }
}

impl Port {
    pub(super) fn new(queues: Arc<Queues>, slots: u16) -> Port {
        Port::on(present_thread(), queues, slots)
    }

    fn on(thread: u64, queues: Arc<Queues>, slots: u16) -> Port {
        let mut state = locked(&queues.state);
        let queue = state.sit(thread);
        let free = state.ports.iter().position(|lane| !lane.is_there);
        let number = free.unwrap_or_else(|| {
            state.ports.push(Lane::default());
            state.ports.len() - 1
        });
        let lane = &mut state.ports[number];
        let generation = lane.generation;
        *lane = Lane {
            is_there: true,
            generation,
            served: Vec::with_capacity(usize::from(slots)),
            pending: 0,
        };
        drop(state);
        Port {
            queues,
            number,
            generation,
            thread,
            queue,
            deadline: None,
            shortest: false,
            handed_over: 0,
        }
    }

    /// Brings the device up to date, and lets `change` do something with it; then looks when to
    /// come again. The lane is on that `thread`.
    // off the data path: the model device replaces storage in experiments only.
    fn with(
        &mut self,
        thread: u64,
        now: Option<Instant>,
        change: impl FnOnce(&mut Port, &mut State),
    ) {
        let queues = Arc::clone(&self.queues);
        let mut state = locked(&queues.state);
        // Read with the lock: times do not go back.
        let now = queues.since_start(now.unwrap_or_else(Instant::now));
        state.advance(now);
        if thread != self.thread {
            state.leave(self.queue);
            (self.thread, self.queue) = (thread, state.sit(thread));
        }
        change(self, &mut state);
        let lane = &state.ports[self.number];
        let next = match (lane.served.is_empty(), lane.pending) {
            (false, _) => Some(now),
            (true, 0) => None,
            _ => state
                .device
                .next_end(|job| (job.port, job.generation) == (self.number, self.generation)),
        };
        self.deadline = next.map(|next| queues.start + Duration::from_nanos(next));
    }

    fn submit_from(&mut self, thread: u64, slot: Slot, shortest: bool) {
        let job = Job { port: self.number, generation: self.generation, slot: slot.0 };
        self.with(thread, None, |port, state| {
            let queue = if shortest { state.shortest(port.queue) } else { port.queue };
            port.handed_over += u64::from(queue != port.queue);
            state.ports[port.number].pending += 1;
            state.device.push(queue, job);
        });
    }
}

impl model::Port for Port {
    fn submit(&mut self, slot: Slot, decisions: Decisions) {
        let shortest = decisions.class.is_foreground() && self.shortest;
        self.submit_from(present_thread(), slot, shortest);
    }

    fn set_mode(&mut self, mode: Mode) {
        self.shortest = mode.hands_over();
    }

    fn poll(&mut self, now: Instant, ready: &mut Vec<Slot>) {
        self.with(present_thread(), Some(now), |port, state| {
            ready.append(&mut state.ports[port.number].served)
        });
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Requests that have begun are served to the end, without a report.
    fn forget(&mut self, slot: Slot) {
        let job = Job { port: self.number, generation: self.generation, slot: slot.0 };
        self.with(self.thread, None, |port, state| {
            let removed =
                state.device.remove(|other| *other == job, || Job { port: usize::MAX, ..job });
            let lane = &mut state.ports[port.number];
            lane.pending -= removed;
            lane.served.retain(|served| *served != slot);
        });
    }

    fn handed_over(&self) -> u64 {
        self.handed_over
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let mut state = locked(&self.queues.state);
        state.leave(self.queue);
        let lane = &mut state.ports[self.number];
        *lane = Lane { is_there: false, generation: lane.generation + 1, ..Lane::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::DeviceQueues;
    use crate::model::Port as _;

    const LATENCY: Duration = Duration::from_secs(3600);

    fn queues(parallelism: usize) -> Arc<Queues> {
        Arc::new(Queues::new(ModelConfig {
            latency: LATENCY,
            parallelism,
            queues: DeviceQueues::RoundRobin,
        }))
    }

    fn due(port: &mut Port, now: Instant) -> Vec<u16> {
        let mut ready = Vec::new();
        port.with(port.thread, Some(now), |port, state| {
            ready.append(&mut state.ports[port.number].served)
        });
        ready.iter().map(|slot| slot.0).collect()
    }

    /// A lane that moves to another thread has that thread's queue.
    #[test]
    fn lanes_of_a_thread_share_its_queue() {
        let queues = queues(1);
        let mut ports: Vec<_> =
            [7, 7, 8].map(|thread| Port::on(thread, Arc::clone(&queues), 16)).into();
        assert_eq!(ports.iter().map(|port| port.queue).collect::<Vec<_>>(), [0, 0, 1]);
        ports[0].submit_from(8, Slot(0), false);
        assert_eq!((ports[0].queue, ports[1].queue), (1, 0));
        assert_eq!(locked(&queues.state).device.length(1), 1);
        // A queue without lanes and without requests is another thread's.
        drop(ports.remove(1));
        assert_eq!(Port::on(9, Arc::clone(&queues), 16).queue, 0);
        drop(ports);
        assert_eq!(
            Port::on(10, Arc::clone(&queues), 16).queue,
            0,
            "the other one has a request still"
        );
    }

    /// It comes back to its own lane.
    #[test]
    fn express_request_goes_to_the_shortest_queue() {
        let queues = queues(1);
        let mut busy = Port::on(1, Arc::clone(&queues), 256);
        let mut idle = Port::on(2, Arc::clone(&queues), 256);
        (0..100).for_each(|slot| busy.submit_from(1, Slot(slot), false));
        let first = busy.deadline().expect("a deadline");
        busy.submit_from(1, Slot(100), true);
        busy.submit_from(1, Slot(101), false);
        assert_eq!((busy.handed_over(), idle.deadline()), (1, None));
        assert_eq!(due(&mut busy, first), [0]);
        assert_eq!(due(&mut busy, first + LATENCY - Duration::from_nanos(1)), [] as [u16; 0]);
        assert_eq!(due(&mut busy, first + LATENCY), [100], "the queues take turns");
        assert_eq!(due(&mut busy, first + LATENCY * 2), [1]);
        idle.submit_from(2, Slot(0), true);
        assert_eq!(idle.handed_over(), 0, "its own queue is the shortest");
        assert_eq!(due(&mut idle, first + LATENCY * 4), [0], "after the one that has begun");
    }

    #[test]
    fn lane_waking_at_its_deadline_misses_none() {
        let queues = queues(2);
        let mut ports: Vec<_> =
            (0..3).map(|thread| Port::on(thread, Arc::clone(&queues), 64)).collect();
        for slot in 0..20 {
            for (thread, port) in (0..).zip(&mut ports) {
                port.submit_from(thread, Slot(slot), false);
            }
        }
        let mut served = vec![Vec::new(); 3];
        // Only the one whose time has come looks.
        while let Some((at, deadline)) = ports
            .iter()
            .map(Port::deadline)
            .enumerate()
            .filter_map(|(at, d)| Some((at, d?)))
            .min_by_key(|(_, d)| *d)
        {
            served[at].extend(due(&mut ports[at], deadline));
        }
        assert!(served.iter().all(|slots| slots.iter().copied().eq(0..20)), "{served:?}");
        let end = locked(&queues.state).device.next_end(|_| true);
        assert_eq!(end, None);
    }

    #[test]
    fn forgotten_request_frees_its_slot() {
        let queues = queues(1);
        let mut port = Port::on(1, Arc::clone(&queues), 16);
        (0..3).for_each(|slot| port.submit_from(1, Slot(slot), false));
        let first = port.deadline().expect("a deadline");
        port.forget(Slot(0));
        port.forget(Slot(2));
        port.submit_from(1, Slot(0), false);
        assert_eq!(
            due(&mut port, first),
            [] as [u16; 0],
            "it had begun, and keeps the device busy"
        );
        assert_eq!(due(&mut port, first + LATENCY), [1]);
        assert_eq!(due(&mut port, first + LATENCY * 2), [0]);
        assert_eq!(port.deadline(), None);
    }

    #[test]
    fn closed_lane_s_requests_are_dropped() {
        let queues = queues(1);
        let mut port = Port::on(1, Arc::clone(&queues), 16);
        port.submit_from(1, Slot(0), false);
        let first = port.deadline().expect("a deadline");
        drop(port);
        let mut next = Port::on(1, Arc::clone(&queues), 16);
        assert_eq!(next.number, 0);
        next.submit_from(1, Slot(0), false);
        assert_eq!(due(&mut next, first), [] as [u16; 0]);
        assert_eq!(due(&mut next, first + LATENCY), [0]);
    }
}
