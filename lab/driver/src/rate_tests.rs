#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000_000;

fn arrivals(rate: f64, spacing: Arrivals, jobs: u16, seed: u64, until: u64) -> Vec<Vec<u64>> {
    let rate = Rate { per_second: rate, arrivals: spacing };
    let one = |job| {
        let mut schedule = Schedule::new(rate, job, jobs, seed);
        let mut times = Vec::new();
        while schedule.next() < until {
            times.push(schedule.next());
            schedule.advance();
        }
        times
    };
    (0..jobs).map(one).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Constant arrivals of all jobs together are as many as the rate says and evenly spaced,
    /// however many jobs there are.
    #[test]
    fn constant_arrivals_are_exact(rate in 1.0_f64..50_000.0, jobs in 1_u16..9) {
        let mut all = arrivals(rate, Arrivals::Constant, jobs, 1, SECOND).concat();
        all.sort_unstable();
        prop_assert!(all.len().abs_diff(rate.ceil() as usize) <= 1, "{} of {rate}", all.len());
        let gap = 1e9 / rate;
        prop_assert!(all.windows(2).all(|w| ((w[1] - w[0]) as f64 - gap).abs() <= 1.0));
    }

    /// Poisson arrivals come in time order at the given rate. Their spread makes them Poisson: the
    /// variance of the counts per interval is their mean.
    #[test]
    fn poisson_arrivals_have_rate_and_spread(rate in 2000.0_f64..20_000.0, jobs in 1_u16..4, seed in any::<u64>()) {
        let by_job = arrivals(rate, Arrivals::Poisson, jobs, seed, 4 * SECOND);
        prop_assert!(by_job.iter().all(|times| times.windows(2).all(|w| w[0] <= w[1])));
        let all = by_job.concat();
        let expected = rate * 4.0;
        prop_assert!((all.len() as f64 - expected).abs() < 6.0 * expected.sqrt(), "{} of {expected}", all.len());
        let mut counts = vec![0.0; 400];
        all.iter().for_each(|at| counts[(at / 10_000_000) as usize] += 1.0);
        let mean = counts.iter().sum::<f64>() / 400.0;
        let variance = counts.iter().map(|n| (n - mean).powi(2)).sum::<f64>() / 400.0;
        prop_assert!((0.6..1.5).contains(&(variance / mean)), "{variance} to {mean}");
    }
}

/// A device on a fake clock: works on one request at a time, each takes `service` ns, and stands
/// still during `stall`.
struct Device {
    service: u64,
    stall: std::ops::Range<u64>,
    free_at: u64,
}

impl Device {
    fn submit(&mut self, now: u64) -> u64 {
        let mut begin = now.max(self.free_at);
        if self.stall.contains(&begin) {
            begin = self.stall.end;
        }
        self.free_at = begin + self.service;
        self.free_at
    }
}

/// An open loop against the device: the books, and every service latency that counted.
fn open_loop(
    rate: Rate,
    window: Window,
    depth: u16,
    mut device: Device,
) -> (OpenStats, Vec<(u64, u64)>) {
    let mut books = Books::new(Schedule::new(rate, 0, 1, 7), window, depth);
    // Completion time, arrival, submission.
    let mut out = BTreeSet::new();
    let (mut now, mut served) = (0, Vec::new());
    loop {
        while let Some(arrival) = books.take(now) {
            out.insert((device.submit(now), arrival, now));
        }
        let done = out.first().copied();
        let next = [done.map(|(at, ..)| at), books.next()].into_iter().flatten().min();
        match next {
            Some(at) if at < window.until => now = now.max(at),
            _ => break,
        }
        if let Some((at, arrival, since)) = done.filter(|(at, ..)| *at <= now) {
            out.pop_first();
            if books.complete(arrival, now) {
                served.push((at - arrival, at - since));
            }
        }
    }
    books.end(window.until);
    for (at, arrival, since) in out {
        if books.complete(arrival, at) {
            served.push((at - arrival, at - since));
        }
    }
    (books.stats, served)
}

/// A closed loop against the same device: latencies only.
fn closed_loop(window: Window, depth: u16, mut device: Device) -> Latencies {
    let mut latency = Latencies::default();
    let mut out: BTreeSet<(u64, u64)> = BTreeSet::new();
    (0..depth).for_each(|_| {
        out.insert((device.submit(0), 0));
    });
    while let Some((at, since)) = out.pop_first() {
        if at >= window.until {
            break;
        }
        latency.saturating_record(at - since);
        out.insert((device.submit(at), at));
    }
    latency
}

fn window(seconds: u64) -> Window {
    Window { from: 0, until: seconds * SECOND, count: u64::MAX }
}

fn never() -> std::ops::Range<u64> {
    0..0
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// For any device: no response is shorter than its service, and every arrival of the window is
    /// in the books once.
    #[test]
    fn response_is_never_below_service(
        rate in 100.0_f64..20_000.0,
        poisson in any::<bool>(),
        depth in 1_u16..40,
        service in 1_000_u64..2_000_000,
        from in 0_u64..900,
        stall in 0_u64..900,
        length in 0_u64..400,
    ) {
        let ms = 1_000_000;
        let window = Window { from: from * ms, until: SECOND, count: u64::MAX };
        let device = Device { service, stall: stall * ms..(stall + length) * ms, free_at: 0 };
        let spacing = if poisson { Arrivals::Poisson } else { Arrivals::Constant };
        let rate = Rate { per_second: rate, arrivals: spacing };
        let (stats, served) = open_loop(rate, window, depth, device);
        prop_assert!(served.iter().all(|(response, service)| response >= service));
        let mut schedule = Schedule::new(rate, 0, 1, 7);
        let mut expected = 0;
        while schedule.next() < window.until {
            expected += u64::from(schedule.next() >= window.from);
            schedule.advance();
        }
        prop_assert_eq!(stats.arrived, expected);
        prop_assert_eq!(stats.response.len(), expected);
        prop_assert_eq!(served.len() as u64 + stats.unserved, expected);
        prop_assert_eq!(stats.late.len() + stats.unserved, expected);
    }
}

/// A device stands still for one second of ten. A closed loop of depth 1 sees that as one bad
/// request. An open loop shows its true effect: a tenth of all arrivals had to wait.
#[test]
fn stall_delays_every_arrival_meanwhile() {
    let device = || Device { service: 100_000, stall: 4 * SECOND..5 * SECOND, free_at: 0 };
    let rate = Rate { per_second: 1000.0, arrivals: Arrivals::Constant };
    let (stats, _) = open_loop(rate, window(10), 1, device());
    let closed = closed_loop(window(10), 1, device());
    assert!(closed.value_at_quantile(0.99) < 110_000, "{}", closed.value_at_quantile(0.99));
    assert!(
        stats.response.value_at_quantile(0.99) > 800_000_000,
        "{}",
        stats.response.value_at_quantile(0.99)
    );
    // It works off the queue at ten times the rate, so somewhat more than a tenth of all were
    // queued.
    assert!((1000..1200).contains(&stats.queued) && stats.unserved == 0, "{stats:?}");
    assert!(stats.late.max() == 0, "the fake clock is never late");
}

/// A device that is too slow: the queue grows, and what waits at the end is counted with the time
/// that it has waited.
#[test]
fn slow_devices_backlog_is_counted() {
    let device = Device { service: 2_000_000, stall: never(), free_at: 0 };
    let rate = Rate { per_second: 1000.0, arrivals: Arrivals::Constant };
    let (stats, served) = open_loop(rate, window(10), 4, device);
    assert_eq!(stats.arrived, 10_000);
    assert!(stats.unserved.abs_diff(5000) < 10 && served.len().abs_diff(5000) < 10, "{stats:?}");
    // The last to be submitted arrived in the middle of the run and waited for as long.
    assert!(stats.response.max() > 4_900_000_000, "{}", stats.response.max());
}

/// A device that keeps up with time to spare: response is service.
#[test]
fn without_a_queue_response_is_service() {
    let device = Device { service: 100_000, stall: never(), free_at: 0 };
    let rate = Rate { per_second: 1000.0, arrivals: Arrivals::Constant };
    let (stats, served) = open_loop(rate, window(2), 8, device);
    assert!(served.iter().all(|(response, service)| response == service && *service == 100_000));
    assert_eq!((stats.arrived, stats.queued, stats.unserved), (2000, 0, 0));
}
