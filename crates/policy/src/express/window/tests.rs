use super::simulation::{Queues, Result, Service, Setup, run};
use super::*;

fn both(setup: &Setup) -> (Result, Result) {
    (run(setup.clone()), run(Setup { bounded: false, ..setup.clone() }))
}

#[test]
#[ignore = "prints"]
fn explore() {
    for (lanes, depth) in [(1, 512), (8, 64)] {
        for queues in [Queues::One, Queues::PerLane] {
            for service in [Service::Fixed, Service::Exponential, Service::Mixed] {
                for (channels, takes) in [(4, MS), (1, 2 * MS), (16, 500_000)] {
                    for pauses in [None, Some((1000 * MS, 25 * MS))] {
                        let setup = Setup {
                            lanes,
                            depth,
                            queues,
                            service,
                            channels,
                            takes: vec![(0, takes)],
                            pauses,
                            ..Setup::default()
                        };
                        let (a, b) = both(&setup);
                        println!(
                            "{lanes} {queues:?} {service:?} {channels}x{takes} {}: bg {:.3} all {:.3} p50 {} vs {} p99 {} vs {} us, mean {:.1} most {}",
                            pauses.is_some(),
                            a.background as f64 / b.background as f64,
                            a.all as f64 / b.all as f64,
                            a.p50() / 1000,
                            b.p50() / 1000,
                            a.p99() / 1000,
                            b.p99() / 1000,
                            a.mean,
                            a.most
                        );
                    }
                }
            }
        }
    }
}
