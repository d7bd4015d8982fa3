//! The governor, with a model in the place of threads and guests.

#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;

use super::*;

const PERIOD: Duration = Duration::from_millis(20);

/// The load of a lane's guest.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Demand {
    /// So many requests per second, independent of the answers.
    Open(f64),
    /// As many as are answered.
    Closed,
}

/// A host: threads share its CPUs, lanes share their threads.
#[derive(Debug, Clone)]
struct Host {
    cpus: usize,
    threads: usize,
    /// Seconds that a request costs its thread.
    cost: f64,
    /// ... and how much more for each lane besides that works on another thread than the first: 0
    /// is perfect scaling.
    apart: f64,
    demands: Vec<Demand>,
    places: Vec<usize>,
}

impl Host {
    fn new(cpus: usize, demands: Vec<Demand>) -> Host {
        let places = vec![0; demands.len()];
        Host { cpus, threads: cpus, cost: 10e-6, apart: 0.0, demands, places }
    }

    fn used(&self) -> usize {
        (0..self.threads).filter(|thread| self.places.contains(thread)).count()
    }

    /// Lanes with work.
    fn working(&self) -> Vec<u16> {
        let works = |lane: &u16| self.demands[usize::from(*lane)] != Demand::Open(0.0);
        (0..u16::try_from(self.demands.len()).unwrap()).filter(works).collect()
    }

    /// Threads that have such lanes.
    fn working_threads(&self) -> usize {
        let mut threads: Vec<_> =
            self.working().iter().map(|lane| self.places[usize::from(*lane)]).collect();
        threads.sort_unstable();
        threads.dedup();
        threads.len()
    }

    /// The events of a period.
    #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "a model")]
    fn look(&self) -> Look {
        let length = PERIOD.as_secs_f64();
        let busy_threads = self.working_threads();
        let cost = self.cost * (1.0 + self.apart * busy_threads.saturating_sub(1) as f64);
        // CPUs that are too few are shared.
        let speed = (self.cpus as f64 / busy_threads.max(1) as f64).min(1.0);
        let capacity = speed / cost;
        let mut look = Look {
            length: PERIOD,
            threads: vec![ThreadLook::default(); self.threads],
            lanes: Vec::new(),
        };
        let mut rates = vec![0.0; self.demands.len()];
        for thread in 0..self.threads {
            let here: Vec<_> =
                (0..self.demands.len()).filter(|lane| self.places[*lane] == thread).collect();
            let open = |lane: &usize| match self.demands[*lane] {
                Demand::Open(rate) => rate,
                Demand::Closed => 0.0,
            };
            let asked: f64 = here.iter().map(open).sum();
            let closed = here.iter().filter(|lane| self.demands[**lane] == Demand::Closed).count();
            let served = asked.min(capacity);
            for lane in &here {
                rates[*lane] = match self.demands[*lane] {
                    Demand::Open(rate) if asked > 0.0 => rate * served / asked,
                    Demand::Open(_) => 0.0,
                    Demand::Closed => (capacity - served) / closed as f64,
                };
            }
            let all: f64 = here.iter().map(|lane| rates[*lane]).sum();
            let busy = (all / capacity).min(1.0);
            look.threads[thread] = ThreadLook {
                busy: PERIOD.mul_f64(busy),
                cpu: PERIOD.mul_f64(busy * speed),
                // The more there is to do, the longer is a round.
                rounds: (all * length / (1.0 + 30.0 * busy)) as u64,
            };
        }
        let lanes = self.places.iter().zip(&rates).enumerate();
        look.lanes = lanes
            .map(|(lane, (thread, rate))| LaneLook {
                lane: u16::try_from(lane).unwrap(),
                thread: *thread,
                requests: (rate * length).round() as u64,
            })
            .collect();
        look
    }

    /// Continues for a time; returns how often a lane was moved.
    fn run(&mut self, governor: &mut Governor, time: Duration) -> usize {
        let mut moves = 0;
        for _ in 0..time.as_millis() / PERIOD.as_millis() {
            for step in governor.decide(&self.look()) {
                assert!(step.thread < self.threads, "{step:?}");
                assert_ne!(self.places[usize::from(step.lane)], step.thread, "a step that is none");
                self.places[usize::from(step.lane)] = step.thread;
                moves += 1;
            }
            assert!(
                self.used() <= self.cpus.min(self.demands.len()),
                "more threads than CPUs or lanes"
            );
        }
        moves
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn demands() -> impl Strategy<Value = Vec<Demand>> {
    let demand = prop_oneof![
        Just(Demand::Open(0.0)),
        Just(Demand::Closed),
        (100.0..20_000.0).prop_map(Demand::Open),
        (20_000.0..150_000.0).prop_map(Demand::Open),
    ];
    prop::collection::vec(demand, 1..9)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// It never gets more threads than CPUs or lanes.
    #[test]
    fn constant_load_is_left_alone(
        demands in demands(), cpus in 1_usize..9, apart in 0.0..1.5,
    ) {
        let mut host = Host::new(cpus, demands);
        host.apart = apart;
        let mut governor = Governor::new(cpus);
        host.run(&mut governor, 30 * SECOND);
        let moves = host.run(&mut governor, 300 * SECOND);
        // A change that does not pay is tried about once a minute, and taken back.
        prop_assert!(moves <= 2 * host.places.len() * 2 * 6, "{moves} moves of {host:?}");
    }

    #[test]
    fn idle_lanes_gather_on_one_thread(demands in demands(), cpus in 1_usize..9) {
        let mut host = Host::new(cpus, demands);
        let mut governor = Governor::new(cpus);
        host.run(&mut governor, 10 * SECOND);
        host.demands.fill(Demand::Open(0.0));
        host.run(&mut governor, 2 * SECOND);
        prop_assert_eq!(host.used(), 1);
        prop_assert!(governor.is_settled());
        prop_assert_eq!(host.run(&mut governor, 60 * SECOND), 0);
    }

    /// Idle lanes get none.
    #[test]
    fn busy_lanes_get_a_thread_each(idle in 0_usize..6, cpus in 2_usize..9) {
        let mut demands = vec![Demand::Open(0.0); idle];
        demands.extend([Demand::Closed; 2]);
        let mut host = Host::new(cpus, demands);
        let mut governor = Governor::new(cpus);
        host.run(&mut governor, SECOND);
        prop_assert_eq!((host.working_threads(), host.used()), (2, 2));
        prop_assert_eq!(host.run(&mut governor, 60 * SECOND), 0, "and they keep it");
    }

    #[test]
    fn busy_lanes_use_all_cpus(lanes in 2_usize..9, cpus in 1_usize..9) {
        let mut host = Host::new(cpus, vec![Demand::Closed; lanes]);
        let mut governor = Governor::new(cpus);
        host.run(&mut governor, 20 * SECOND);
        prop_assert_eq!(host.working_threads(), cpus.min(lanes));
    }

    #[test]
    fn useless_thread_is_taken_back(lanes in 2_usize..9, others in 1.0..4.0) {
        // Each thread makes every request dearer by more than it adds.
        let mut host = Host::new(4, vec![Demand::Closed; lanes]);
        host.apart = others;
        let mut governor = Governor::new(4);
        host.run(&mut governor, 5 * SECOND);
        let mut alone = 0;
        for _ in 0..500 {
            host.run(&mut governor, PERIOD);
            alone += usize::from(host.used() == 1);
        }
        prop_assert!(alone > 430, "one thread in {alone} of 500 periods");
    }
}

/// A falling load gives its threads back, and a rising one gets them again.
#[test]
fn threads_follow_the_load() {
    let mut host = Host::new(4, vec![Demand::Open(60_000.0); 4]);
    let mut governor = Governor::new(4);
    host.run(&mut governor, 5 * SECOND);
    assert!(host.used() >= 3, "{host:?}");
    for (rate, least, most) in [(5_000.0, 1, 1), (60_000.0, 3, 4), (100.0, 1, 1), (90_000.0, 4, 4)]
    {
        host.demands.fill(Demand::Open(rate));
        host.run(&mut governor, 5 * SECOND);
        assert!((least..=most).contains(&host.used()), "{rate}: {host:?}");
    }
}

#[test]
fn missing_lane_is_given_up() {
    let host = Host::new(2, vec![Demand::Closed; 2]);
    let mut governor = Governor::new(2);
    let asked: Vec<_> = (0..500).filter(|_| !governor.decide(&host.look()).is_empty()).collect();
    assert!(!asked.is_empty() && asked.len() < 8, "asked in periods {asked:?}");
}

#[test]
fn lanes_come_and_go() {
    let mut governor = Governor::new(2);
    assert!(governor.decide(&Look::default()).is_empty());
    let mut host = Host::new(2, vec![Demand::Closed; 3]);
    host.run(&mut governor, SECOND);
    assert_eq!(host.working_threads(), 2);
    host.demands.truncate(1);
    host.places.truncate(1);
    host.run(&mut governor, SECOND);
    assert!(
        governor
            .decide(&Look {
                length: PERIOD,
                threads: vec![ThreadLook::default(); 2],
                lanes: Vec::new()
            })
            .is_empty()
    );
}

#[test]
fn overloaded_lanes_are_spread_evenly() {
    let mut host = Host::new(2, vec![Demand::Closed; 4]);
    host.places = vec![0, 1, 0, 0];
    let mut governor = Governor::new(2);
    host.run(&mut governor, 2 * SECOND);
    assert_eq!(host.places.iter().filter(|place| **place == 0).count(), 2, "{:?}", host.places);
    assert_eq!(host.run(&mut governor, 60 * SECOND), 0);
}

#[test]
fn short_rest_attracts_no_lanes() {
    let mut host = Host::new(2, vec![Demand::Closed; 4]);
    host.places = vec![0, 0, 1, 1];
    let mut governor = Governor::new(2);
    for n in 0..100 {
        let mut look = host.look();
        if n % 7 == 0 {
            look.threads[n % 2].busy = PERIOD / 10;
        }
        assert_eq!(governor.decide(&look), [], "in period {n}");
    }
}
