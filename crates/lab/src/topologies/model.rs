//! The scaling model: what so many lanes on so many CPUs do, from measurements of one lane.
//!
//! # What goes in
//! A [`Lane`], all of it measured with **one** job: what a request costs when the job and its I/O thread share a CPU, what it costs the
//! one and the other when they are on two, how many requests go over at a time (a job that sleeps gets its whole depth back at
//! once), how long a sleeper on another CPU takes to wake, and for a mutex how often it is taken per request and what handing it
//! over costs with so many threads at it. Nothing is fitted to the points that are predicted.
//!
//! # What is calculated
//! Threads are placed as the measurement places them: job i on CPU i modulo C, I/O thread t on CPU t modulo C. Each job is a class of one
//! customer, its batch, in a closed [network](super::network) whose stations are the CPUs. A batch needs
//! `B * (guest + device)` of one CPU if its I/O thread is there too, else `B * guest` of the job's CPU, `B * device` of the thread's, and
//! a delay for being woken across CPUs. That a thread is one thread is in it: it has one CPU.
//!
//! A mutex adds a bound. What is done under it is done one after the other: with n jobs and the I/O thread waiting for it, each
//! acquisition costs one hand-over at n + 1 threads, and the I/O thread's work is under it too (in the Baseline):
//! `X <= 1 / (taken * handover(n + 1) + device)`. On more CPUs than measured, the part of a hand-over that is for waking all the others
//! is spread over the CPUs; what the waking thread itself spends for each is not.
//!
//! MT shares nothing, so its network falls apart into one station per CPU: linear up to the CPUs, then flat.

use super::Topology;
use super::network::{Class, approximate};

/// What one lane costs. Times in ns per request, unless said otherwise.
#[derive(Debug, Clone, PartialEq)]
pub struct Lane {
    /// Job, with its I/O thread on the same CPU.
    pub guest_local: f64,
    /// I/O thread, with its job on the same CPU.
    pub device_local: f64,
    /// Job, with its I/O thread on another CPU.
    pub guest_remote: f64,
    /// I/O thread, with its job on another CPU.
    pub device_remote: f64,
    /// Requests that go over at a time.
    pub batch: f64,
    /// Time until a sleeper on another CPU runs, in ns per batch.
    pub wake: f64,
    /// The mutex, if the topology has one.
    pub mutex: Option<Mutex>,
}

/// What a mutex costs.
#[derive(Debug, Clone, PartialEq)]
pub struct Mutex {
    /// Acquisitions per request.
    pub taken: f64,
    /// Time from one acquisition to the next with so many threads at it, in ns, by rising number of threads.
    pub handover: Vec<(u32, f64)>,
    /// CPUs on which that was measured.
    pub cpus: u32,
    /// What the releasing thread spends to wake one other, in ns.
    pub wake: f64,
    /// Whether the I/O thread's work is done under it while jobs need it for every request.
    pub guards_queue: bool,
}

/// A prediction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Requests per second.
    pub iops: f64,
    /// What it ends at.
    pub limit: Limit,
}

/// What a topology's throughput ends at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// There is one job.
    Job,
    /// The CPUs.
    Cpus,
    /// The one I/O thread's CPU.
    Thread,
    /// The mutex.
    Mutex,
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Job => "jobs",
            Self::Cpus => "CPUs",
            Self::Thread => "the I/O thread",
            Self::Mutex => "the mutex",
        })
    }
}

impl Mutex {
    /// Time from one acquisition to the next with so many threads at it, on so many CPUs, in ns.
    pub fn handover(&self, threads: u32, cpus: u32) -> f64 {
        let Some(first) = self.handover.first() else { return 0.0 };
        if threads <= first.0 {
            return first.1;
        }
        // Between two measurements on the line between them; beyond the last, on that of the last two.
        let at = self.handover.partition_point(|(n, _)| *n < threads).clamp(1, self.handover.len() - 1);
        let (Some(a), Some(b)) = (self.handover.get(at - 1), self.handover.get(at)) else { return first.1 };
        let slope = (b.1 - a.1) / f64::from(b.0 - a.0).max(1.0);
        let here = (a.1 + slope * (f64::from(threads) - f64::from(a.0))).max(first.1);
        // What more threads cost is waking them: on more CPUs they wake beside each other.
        let more = here - first.1;
        let spread = more * f64::from(self.cpus) / f64::from(cpus.max(self.cpus));
        first.1 + spread.max((self.wake * f64::from(threads - first.0)).min(more))
    }
}

/// What `jobs` jobs on `cpus` CPUs do.
pub fn predict(topology: Topology, lane: &Lane, jobs: u32, cpus: u32) -> Prediction {
    let (jobs, cpus) = (jobs.max(1), cpus.max(1));
    let batch = lane.batch.max(1.0);
    let class = |job: u32| {
        let here = job % cpus;
        let there = if topology == Topology::Mt { here } else { 0 };
        let (demands, delay) = if here == there {
            (vec![(here as usize, batch * (lane.guest_local + lane.device_local))], 0.0)
        } else {
            let guest = (here as usize, batch * lane.guest_remote);
            (vec![guest, (there as usize, batch * lane.device_remote)], lane.wake)
        };
        Class { customers: 1.0, demands, delay }
    };
    let classes: Vec<_> = (0..jobs).map(class).collect();
    let rounds: f64 = approximate(&classes).iter().sum();
    let iops = rounds * batch * 1e9;
    let limit = match (jobs, topology) {
        (1, _) => Limit::Job,
        (n, Topology::Mt) if n < cpus => Limit::Job,
        (_, Topology::Mt) => Limit::Cpus,
        _ if cpus == 1 => Limit::Cpus,
        _ => Limit::Thread,
    };
    if let Some(mutex) = lane.mutex.as_ref().filter(|_| jobs > 1) {
        let work = if mutex.guards_queue { lane.device_local } else { 0.0 };
        let serial = mutex.taken * mutex.handover(jobs + 1, cpus) + work;
        let most = 1e9 / serial.max(f64::MIN_POSITIVE);
        if mutex.guards_queue && most < iops {
            return Prediction { iops: most, limit: Limit::Mutex };
        }
    }
    Prediction { iops, limit }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lane() -> impl Strategy<Value = Lane> {
        (1.0_f64..5e4, 1.0_f64..5e4, 1.0_f64..5e4, 1.0_f64..5e4, 1.0_f64..64.0, 0.0_f64..1e5).prop_map(
            |(guest_local, device_local, guest_remote, device_remote, batch, wake)| Lane {
                guest_local,
                device_local,
                guest_remote,
                device_remote,
                batch,
                wake,
                mutex: None,
            },
        )
    }

    fn near(a: f64, b: f64, share: f64) -> bool {
        (a - b).abs() <= share * b.abs()
    }

    fn mutex(handover: f64, taken: f64) -> Mutex {
        let handover = vec![(2, handover), (4, handover)];
        Mutex { taken, handover, cpus: 2, wake: 0.0, guards_queue: true }
    }

    proptest! {
        #[test]
        fn one_lane_is_what_was_measured(lane in lane(), cpus in 1_u32..65, t in 0_usize..3) {
            let one = predict(Topology::ALL[t], &lane, 1, cpus);
            prop_assert!(near(one.iops, 1e9 / (lane.guest_local + lane.device_local), 1e-6));
            prop_assert_eq!(one.limit, Limit::Job);
        }

        #[test]
        fn lanes_that_share_nothing_scale_up_to_the_cpus_and_no_further(lane in lane(), jobs in 1_u32..65, cpus in 1_u32..65) {
            let one = predict(Topology::Mt, &lane, 1, cpus).iops;
            let many = predict(Topology::Mt, &lane, jobs, cpus).iops;
            prop_assert!(near(many, f64::from(jobs.min(cpus)) * one, 1e-4), "{} for {}", many, one);
        }

        #[test]
        fn more_cpus_never_slow_down_what_does_not_pay_for_distance(lane in lane(), jobs in 1_u32..20, cpus in 1_u32..16, t in 0_usize..3) {
            let near_by = Lane { guest_remote: lane.guest_local, device_remote: lane.device_local, wake: 0.0, ..lane };
            let less = predict(Topology::ALL[t], &near_by, jobs, cpus).iops;
            let more = predict(Topology::ALL[t], &near_by, jobs, cpus + 1).iops;
            // The approximation's own error.
            prop_assert!(more >= less * 0.99, "{} after {}", more, less);
        }

        #[test]
        fn nothing_is_above_the_thread_the_cpus_or_the_mutex(lane in lane(), jobs in 2_u32..33, cpus in 1_u32..17, handover in 1.0_f64..1e5) {
            let cheapest = (lane.guest_local + lane.device_local).min(lane.guest_remote + lane.device_remote);
            let all_cpus = f64::from(cpus) * 1e9 / cheapest * (1.0 + 1e-4);
            let thread = 1e9 / lane.device_local.min(lane.device_remote) * (1.0 + 1e-4);
            let mq = predict(Topology::Mq, &lane, jobs, cpus).iops;
            prop_assert!(mq <= all_cpus && mq <= thread);
            prop_assert!(predict(Topology::Mt, &lane, jobs, cpus).iops <= all_cpus);
            let lane = Lane { mutex: Some(mutex(handover, 1.5)), ..lane };
            let baseline = predict(Topology::Baseline, &lane, jobs, cpus);
            let most = 1e9 / (1.5 * handover + lane.device_local);
            prop_assert!(baseline.iops <= most.min(thread) * (1.0 + 1e-4));
            if baseline.limit == Limit::Mutex {
                prop_assert!(near(baseline.iops, most, 1e-9), "saturated: one over the time under the mutex");
            }
        }
    }

    #[test]
    fn a_mutex_that_wakes_everybody_costs_more_the_more_there_are() {
        let mutex = Mutex {
            taken: 1.0,
            handover: vec![(2, 1000.0), (3, 3000.0), (5, 7000.0)],
            cpus: 2,
            wake: 100.0,
            guards_queue: true,
        };
        for (threads, ns) in [(1, 1000.0), (2, 1000.0), (3, 3000.0), (4, 5000.0), (5, 7000.0), (17, 31000.0)]
        {
            assert!(near(mutex.handover(threads, 2), ns, 1e-9), "{threads}: {}", mutex.handover(threads, 2));
        }
        assert!(mutex.handover(17, 8) < mutex.handover(17, 2), "more CPUs wake beside each other");
        assert!(mutex.handover(17, 1000) >= 1000.0 + 15.0 * 100.0, "but the waker does it one by one");
        let lane = Lane {
            guest_local: 100.0,
            device_local: 100.0,
            guest_remote: 100.0,
            device_remote: 100.0,
            batch: 32.0,
            wake: 0.0,
            mutex: Some(mutex),
        };
        let of = |jobs| predict(Topology::Baseline, &lane, jobs, 2);
        assert!(of(16).iops < of(4).iops && of(4).iops < of(1).iops);
        assert_eq!(of(16).limit, Limit::Mutex);
    }
}
