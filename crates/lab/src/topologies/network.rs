//! Closed queueing networks: so many customers go round between stations, for ever.
//!
//! [`approximate`]: several classes, by Schweitzer's and Bard's approximation (1979): a newcomer finds what is there on average,
//! less its own share. Solved by iteration.
//!
//! Stations share their time among their customers (processor sharing, or any order if services are exponential); a customer's
//! demand is the service time that it needs at a station in one round. Times are in any one unit.

/// One kind of customers.
#[derive(Debug, Clone, PartialEq)]
pub struct Class {
    /// How many there are.
    pub customers: f64,
    /// Service time per round at stations, by their number; stations not named are not visited.
    pub demands: Vec<(usize, f64)>,
    /// Time per round away from all stations.
    pub delay: f64,
}

/// Rounds per unit of time of each class, by approximation.
pub fn approximate(classes: &[Class]) -> Vec<f64> {
    let stations = classes.iter().flat_map(|c| &c.demands).map(|(s, _)| s + 1).max().unwrap_or(0);
    // How many customers of each class stand at each of its stations; to begin with, as many at one as at another.
    let mut queues: Vec<Vec<f64>> =
        classes.iter().map(|c| vec![c.customers / c.demands.len().max(1) as f64; c.demands.len()]).collect();
    let mut throughputs = vec![0.0; classes.len()];
    for _ in 0..10_000 {
        let mut at = vec![0.0; stations];
        for (class, queue) in classes.iter().zip(&queues) {
            for ((station, _), q) in class.demands.iter().zip(queue) {
                at[*station] += q;
            }
        }
        let mut change: f64 = 0.0;
        for ((class, queue), x) in classes.iter().zip(&mut queues).zip(&mut throughputs) {
            if class.customers <= 0.0 {
                continue;
            }
            // What a customer finds is what is there less itself.
            let response = |(i, (station, demand)): (usize, &(usize, f64))| {
                demand * (1.0 + (at[*station] - queue[i] / class.customers).max(0.0))
            };
            let responses: Vec<f64> = class.demands.iter().enumerate().map(response).collect();
            let round = class.delay + responses.iter().sum::<f64>();
            *x = if round > 0.0 { class.customers / round } else { f64::INFINITY };
            for (q, r) in queue.iter_mut().zip(&responses) {
                // Half a step: whole ones may swing.
                let next = 0.5 * (*q + *x * r);
                change = change.max((next - *q).abs() / class.customers);
                *q = next;
            }
        }
        if change < 1e-9 {
            break;
        }
    }
    throughputs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Rounds per unit of time, by exact mean value analysis of one class (Reiser and Lavenberg, 1980): a newcomer finds at a station what the same
    /// network with one customer less has there.
    fn mva(demands: &[f64], delay: f64, customers: u32) -> f64 {
        let mut queue = vec![0.0; demands.len()];
        let mut throughput = 0.0;
        for n in 1..=customers {
            let response: Vec<f64> = demands.iter().zip(&queue).map(|(d, q)| d * (1.0 + q)).collect();
            let round = delay + response.iter().sum::<f64>();
            if round <= 0.0 {
                return f64::INFINITY;
            }
            throughput = f64::from(n) / round;
            for (q, r) in queue.iter_mut().zip(&response) {
                *q = throughput * r;
            }
        }
        throughput
    }

    /// The most rounds per unit of time of one class (asymptotic bounds; Denning and Buzen, 1978): no station is busy for more than all the time,
    /// no customer goes round without its service.
    fn bound(demands: &[f64], delay: f64, customers: f64) -> f64 {
        let most = demands.iter().copied().fold(0.0, f64::max);
        let alone = delay + demands.iter().sum::<f64>();
        (customers / alone).min(1.0 / most)
    }

    fn near(a: f64, b: f64, share: f64) -> bool {
        (a - b).abs() <= share * b.abs()
    }

    #[test]
    fn balanced_stations_have_the_known_throughput() {
        // K equal stations: N / (D (N + K - 1)) (Lazowska et al., Quantitative System Performance, 5.4).
        for (k, n) in [(1, 1), (1, 32), (2, 32), (5, 3)] {
            let expected = f64::from(n) / (0.25 * (f64::from(n) + k as f64 - 1.0));
            assert!(near(mva(&vec![0.25; k], 0.0, n), expected, 1e-9), "{k} {n}");
        }
    }

    #[test]
    fn one_station_and_a_delay_are_the_machine_repairman() {
        // Erlang's machine repair model: p0 = 1 / sum N!/(N-k)! (D/Z)^k, and the repairman works for 1 - p0 of the time.
        let (demand, delay) = (2.0, 7.0);
        for n in [1, 2, 5, 12] {
            let (mut term, mut sum) = (1.0, 1.0);
            for k in 0..n {
                term *= f64::from(n - k) * demand / delay;
                sum += term;
            }
            assert!(near(mva(&[demand], delay, n), (1.0 - 1.0 / sum) / demand, 1e-9), "{n}");
        }
    }

    #[test]
    fn classes_that_meet_nowhere_do_not_disturb_each_other() {
        let class = |station| Class { customers: 4.0, demands: vec![(station, 3.0)], delay: 0.0 };
        let alone = approximate(&[class(0)]);
        let both = approximate(&[class(0), class(1)]);
        assert!(
            near(alone[0], 1.0 / 3.0, 1e-6) && near(both[0], alone[0], 1e-6) && near(both[1], alone[0], 1e-6)
        );
    }

    #[test]
    fn single_customers_that_share_one_station_share_its_time() {
        let class = Class { customers: 1.0, demands: vec![(0, 2.0)], delay: 0.0 };
        for n in [1_usize, 2, 5] {
            let all: f64 = approximate(&vec![class.clone(); n]).iter().sum();
            assert!(near(all, 0.5, 1e-6), "{n} customers: {all}");
        }
    }

    fn demands() -> impl Strategy<Value = Vec<f64>> {
        proptest::collection::vec(0.01_f64..10.0, 1..5)
    }

    proptest! {
        #[test]
        fn throughput_grows_with_customers_and_never_above_the_bound(d in demands(), z in 0.0_f64..50.0, n in 1_u32..40) {
            let (less, more) = (mva(&d, z, n), mva(&d, z, n + 1));
            prop_assert!(more >= less * (1.0 - 1e-9));
            prop_assert!(less <= bound(&d, z, f64::from(n)) * (1.0 + 1e-9));
        }

        #[test]
        fn the_approximation_is_near_the_exact_solution(d in demands(), z in 0.0_f64..50.0, n in 1_u32..40) {
            let demands = d.iter().copied().enumerate().collect();
            let near_by = approximate(&[Class { customers: n.into(), demands, delay: z }])[0];
            let exact = mva(&d, z, n);
            // Schweitzer's error is a few percent at most, and none for one customer.
            prop_assert!(near(near_by, exact, if n == 1 { 1e-6 } else { 0.12 }), "{near_by} for {exact}");
            prop_assert!(near_by <= bound(&d, z, f64::from(n)) * (1.0 + 1e-6));
        }

        #[test]
        fn stations_are_never_busier_than_all_the_time(
            classes in proptest::collection::vec((1_u32..33, demands(), 0.0_f64..5.0), 1..6)
        ) {
            let classes: Vec<_> = classes
                .into_iter()
                .map(|(n, d, delay)| Class { customers: n.into(), demands: d.into_iter().enumerate().collect(), delay })
                .collect();
            let x = approximate(&classes);
            for station in 0..5 {
                let busy: f64 = classes
                    .iter()
                    .zip(&x)
                    .flat_map(|(c, x)| c.demands.iter().filter(|(s, _)| *s == station).map(move |(_, d)| d * x))
                    .sum();
                prop_assert!(busy <= 1.0 + 1e-4, "station {station} is busy for {busy}");
            }
        }
    }
}
