//! A device with several submission queues, without a clock: the caller passes the time, which
//! never goes back.
//!
//! It works as the NVMe drive of the paper (Shin, Kim 2019). The device fetches from its submission
//! queues in turn, one request at a time (round robin arbitration, NVM Express Base Specification
//! 2.0, section 3.4.4.1). It works on `channels` at the same time, and each takes the same time.
//! Requests in a queue keep their order, and stay in that queue.
//!
//! A request's beginning is decided when a channel is free, not when the request comes: those that
//! come to other queues meanwhile are served before it. So ends are known only for requests that
//! have begun.

use std::collections::VecDeque;

/// The device. `J` names a request.
#[derive(Debug)]
pub(super) struct RoundRobin<J> {
    /// How long a request takes, in the unit of all times here.
    latency: u64,
    channels: usize,
    queues: Vec<Queue<J>>,
    /// The queue that is asked first for the next request.
    turn: usize,
    /// Begun: when it ends, from which queue. All take the same time, so the first one that began
    /// is the first one that ends.
    busy: VecDeque<(u64, usize, J)>,
    now: u64,
}

#[derive(Debug)]
struct Queue<J> {
    waiting: VecDeque<J>,
    /// Of its requests, those that have begun and not ended.
    begun: usize,
}

impl<J> RoundRobin<J> {
    pub(super) fn new(latency: u64, channels: usize) -> RoundRobin<J> {
        let channels = channels.max(1);
        RoundRobin { latency, channels, queues: Vec::new(), turn: 0, busy: VecDeque::new(), now: 0 }
    }

    /// Another queue; says its number.
    pub(super) fn add_queue(&mut self) -> usize {
        self.queues.push(Queue { waiting: VecDeque::new(), begun: 0 });
        self.queues.len() - 1
    }

    /// Requests of a queue that have not ended.
    pub(super) fn length(&self, queue: usize) -> usize {
        self.queues.get(queue).map_or(0, |queue| queue.waiting.len() + queue.begun)
    }

    /// The time has come to `now`: reports each request that has ended meanwhile, in the order of
    /// their ends. A time that has passed is the last one that was given.
    pub(super) fn advance(&mut self, now: u64, mut ended: impl FnMut(J)) {
        self.now = self.now.max(now);
        while let Some(&(end, queue, _)) = self.busy.front() {
            if end > self.now {
                return;
            }
            if let Some((.., job)) = self.busy.pop_front() {
                self.queues[queue].begun -= 1;
                ended(job);
            }
            self.begin_next(end);
        }
    }

    /// A request comes to a queue, now. Call [`RoundRobin::advance`] before: ended requests make
    /// room.
    pub(super) fn push(&mut self, queue: usize, job: J) {
        self.queues[queue].waiting.push_back(job);
        if self.busy.len() < self.channels {
            self.begin_next(self.now);
        }
    }

    /// A channel is free at `time`: the queue whose turn it is gets it.
    fn begin_next(&mut self, time: u64) {
        let count = self.queues.len();
        for queue in (self.turn..count).chain(0..self.turn.min(count)) {
            let Some(job) = self.queues[queue].waiting.pop_front() else { continue };
            self.queues[queue].begun += 1;
            self.busy.push_back((time.saturating_add(self.latency), queue, job));
            self.turn = queue + 1;
            return;
        }
    }

    /// Before when none of these requests ends: the end of the first that has begun, else the
    /// earliest end of one that begins when the next channel is free. None when the device is idle.
    pub(super) fn next_end(&self, is_meant: impl Fn(&J) -> bool) -> Option<u64> {
        let begun = self.busy.iter().find(|(.., job)| is_meant(job)).map(|(end, ..)| *end);
        begun.or_else(|| self.busy.front().map(|(end, ..)| end.saturating_add(self.latency)))
    }

    /// Takes requests away, and says how many. Those that have begun take their time, and then
    /// `nobody` ends instead of each.
    pub(super) fn remove(
        &mut self,
        is_meant: impl Fn(&J) -> bool,
        nobody: impl Fn() -> J,
    ) -> usize {
        let mut removed = 0;
        let mut removes = |job: &J| {
            removed += usize::from(is_meant(job));
            is_meant(job)
        };
        self.queues.iter_mut().for_each(|queue| queue.waiting.retain(|job| !removes(job)));
        self.busy.iter_mut().filter(|(.., job)| removes(job)).for_each(|(.., job)| *job = nobody());
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    /// The life of one request: when it came, to which queue, when it began and ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Story {
        came: u64,
        queue: usize,
        end: u64,
    }

    /// The same device, one tick after the other: at each, first ends, then begins, then arrivals.
    fn reference(
        latency: u64,
        channels: usize,
        queues: usize,
        arrivals: &[(u64, usize)],
    ) -> Vec<Story> {
        let mut stories: Vec<_> = arrivals
            .iter()
            .map(|(came, queue)| Story { came: *came, queue: *queue, end: 0 })
            .collect();
        let mut waiting: Vec<Vec<usize>> = vec![Vec::new(); queues];
        let mut channel: Vec<Option<usize>> = vec![None; channels];
        let (mut turn, mut tick, mut next) = (0, 0, 0);
        let mut begin = |waiting: &mut Vec<Vec<usize>>,
                         channel: &mut Vec<Option<usize>>,
                         stories: &mut Vec<Story>,
                         tick: u64| {
            while let Some(free) = channel.iter().position(Option::is_none)
                && let Some(queue) =
                    (0..queues).map(|at| (turn + at) % queues).find(|at| !waiting[*at].is_empty())
            {
                let job = waiting[queue].remove(0);
                channel[free] = Some(job);
                stories[job].end = tick + latency;
                turn = (queue + 1) % queues;
            }
        };
        while stories.iter().any(|story| story.end == 0 || story.end > tick) {
            for place in &mut channel {
                if place.is_some_and(|job| stories[job].end == tick) {
                    *place = None;
                }
            }
            begin(&mut waiting, &mut channel, &mut stories, tick);
            while next < arrivals.len() && arrivals[next].0 == tick {
                waiting[arrivals[next].1].push(next);
                next += 1;
                begin(&mut waiting, &mut channel, &mut stories, tick);
            }
            tick += 1;
        }
        stories
    }

    /// Queues and arrivals, in the order of their times; and the moments of the looks.
    fn scenes() -> impl Strategy<Value = (u64, usize, usize, Vec<(u64, usize)>, Vec<u64>)> {
        (1..6u64, 1..5usize, 1..5usize).prop_flat_map(|(latency, channels, queues)| {
            let arrivals = prop::collection::vec((0..40u64, 0..queues), 0..60);
            let arrivals = arrivals.prop_map(|mut list| {
                list.sort_by_key(|(time, _)| *time);
                list
            });
            let looks = prop::collection::btree_set(0..60u64, 0..20)
                .prop_map(|set| set.into_iter().collect());
            (Just(latency), Just(channels), Just(queues), arrivals, looks)
        })
    }

    proptest! {
        #[test]
        fn lazy_model_equals_tick_by_tick_simulation(
            (latency, channels, queues, arrivals, looks) in scenes()
        ) {
            let expected = reference(latency, channels, queues, &arrivals);
            let mut device = RoundRobin::new(latency, channels);
            (0..queues).for_each(|queue| assert_eq!(device.add_queue(), queue));
            let mut ended = vec![None; arrivals.len()];
            let mut looks = looks.into_iter().peekable();
            let mut order = Vec::new();
            for (job, (time, queue)) in arrivals.iter().enumerate() {
                while let Some(look) = looks.next_if(|look| look <= time) {
                    device.advance(look, |job: usize| order.push((job, look)));
                }
                device.advance(*time, |job: usize| order.push((job, *time)));
                device.push(*queue, job);
                let of_queue = |at: usize| (0..=job).filter(|j| arrivals[*j].1 == at && expected[*j].end > *time).count();
                (0..queues).for_each(|at| assert_eq!(device.length(at), of_queue(at)));
            }
            // From one promised moment to the next, no request ends between them, and none later
            // than promised.
            while let Some(next) = device.next_end(|_| true) {
                device.advance(next - 1, |job: usize| order.push((job, next - 1)));
                device.advance(next, |job: usize| order.push((job, next)));
            }
            for (job, told) in &order {
                prop_assert!(ended[*job].replace(*told).is_none(), "{} ended twice", job);
                prop_assert!(*told >= expected[*job].end, "{} ended early", job);
            }
            for (job, story) in expected.iter().enumerate() {
                let told = ended[job].expect("every request ends");
                let last = arrivals.last().map_or(0, |(time, _)| *time);
                prop_assert!(told == story.end || story.end <= last, "{job}: {told}, {story:?}");
            }
            prop_assert!(order.windows(2).all(|pair| expected[pair[0].0].end <= expected[pair[1].0].end));
        }

        #[test]
        fn no_request_ends_before_its_deadline(
            (latency, channels, queues, arrivals, _) in scenes(), lanes in 1..4usize
        ) {
            let mut device = RoundRobin::new(latency, channels);
            (0..queues).for_each(|queue| assert_eq!(device.add_queue(), queue));
            let mut said = vec![0; lanes];
            for (job, (time, queue)) in arrivals.iter().enumerate() {
                device.advance(*time, |job: usize| assert!(said[job % lanes] <= *time, "{job} ended unexpectedly"));
                device.push(*queue, job);
                for (lane, said) in said.iter_mut().enumerate() {
                    // Asked only at its own requests and when the time has come, as a lane does.
                    if job % lanes == lane || *said <= *time {
                        *said = device.next_end(|job| job % lanes == lane).unwrap_or(u64::MAX);
                    }
                }
            }
        }
    }

    /// It waits for one request of each other queue.
    #[test]
    fn lone_request_waits_one_round_only() {
        let mut device = RoundRobin::new(10, 1);
        (0..3).for_each(|queue| assert_eq!(device.add_queue(), queue));
        for job in 0..100 {
            device.push(0, job);
            device.push(1, 100 + job);
        }
        device.push(2, 1000);
        let mut order = Vec::new();
        device.advance(40, |job| order.push(job));
        assert_eq!(order, [0, 100, 1000, 1], "the queues take turns");
    }

    #[test]
    fn removed_request_costs_time_once_begun() {
        let mut device = RoundRobin::new(10, 1);
        device.add_queue();
        (0..3).for_each(|job| device.push(0, job));
        assert_eq!(device.remove(|job| *job == 1, || 99), 1, "it waits");
        assert_eq!(device.remove(|job| *job == 0, || 99), 1, "it has begun");
        let mut order = Vec::new();
        device.advance(20, |job| order.push(job));
        assert_eq!((order, device.length(0)), (vec![99, 2], 0));
    }
}
