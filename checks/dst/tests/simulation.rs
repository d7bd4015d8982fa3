//! Runs of the simulator, from one seed each. `VLANE_DST_TIME=1h` runs for an hour,
//! `VLANE_DST_SEED=N` one seed, with its steps.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use vlane_dst::{Bug, Options, Report, Tally, run};

/// Runs of the gate: some seconds.
const RUNS: u64 = 10_000;
/// Runs in which a planted bug must be found.
const BUG_RUNS: u64 = 1000;

fn options(bug: Option<Bug>, keeps_steps: bool) -> Options {
    Options { bug, keeps_steps }
}

/// Tells of a seed that fails, with each of its steps.
fn tell(seed: u64, failure: &str) -> String {
    let Report { steps, .. } = run(seed, options(None, true)).unwrap();
    format!(
        "{}\n\nseed {seed}: {failure}\nTo repeat it: VLANE_DST_SEED={seed} cargo test -p \
         vlane-dst --test simulation every_seed\n",
        steps.join("\n")
    )
}

/// A length of time: `90s`, `20m`, `1h`; or seconds.
fn time(text: &str) -> Duration {
    let (number, unit) = match text.strip_suffix(['s', 'm', 'h']) {
        Some(number) => (number, &text[number.len()..]),
        None => (text, "s"),
    };
    let number: u64 = number.parse().expect("VLANE_DST_TIME: a number and s, m or h");
    Duration::from_secs(
        number
            * if unit == "h" {
                3600
            } else if unit == "m" {
                60
            } else {
                1
            },
    )
}

/// The seeds to be run, and until when.
fn seeds() -> (std::ops::Range<u64>, Option<Duration>) {
    let variable = |name: &str| std::env::var(name).ok();
    if let Some(seed) = variable("VLANE_DST_SEED") {
        let seed = seed.parse().expect("VLANE_DST_SEED: a number");
        return (seed..seed + 1, None);
    }
    let Some(limit) = variable("VLANE_DST_TIME") else { return (0..RUNS, None) };
    // Others each time.
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let first = since.as_secs() << 24;
    (first..u64::MAX, Some(time(&limit)))
}

/// Runs seeds one after the other, in parallel with other threads that do the same, until none is
/// left or one fails. Returns the failed seed and its fault.
fn run_some(
    next: &AtomicU64,
    end: u64,
    until: Option<Instant>,
    sum: &Mutex<(u64, Tally)>,
) -> Option<(u64, String)> {
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= end || until.is_some_and(|until| Instant::now() > until) {
            return None;
        }
        let report = run(seed, options(None, false)).unwrap();
        let mut sum = sum.lock().unwrap();
        sum.0 += 1;
        sum.1.add(report.tally);
        if sum.0.is_multiple_of(100_000) {
            println!("{} runs, the last one was {seed}", sum.0);
        }
        if let Some(failure) = report.failure {
            // The others need not continue.
            next.store(end, Ordering::Relaxed);
            return Some((seed, failure));
        }
    }
}

#[test]
fn every_seed_finds_a_correct_disk() {
    let (seeds, limit) = seeds();
    let is_sample = limit.is_none() && seeds.end - seeds.start == RUNS;
    let begin = Instant::now();
    let until = limit.map(|limit| begin + limit);
    let (next, sum) = (AtomicU64::new(seeds.start), Mutex::default());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let failed: Vec<(u64, String)> = std::thread::scope(|scope| {
        let start = |_| scope.spawn(|| run_some(&next, seeds.end, until, &sum));
        let threads: Vec<_> = (0..threads).map(start).collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
    });
    if let Some((seed, failure)) = failed.into_iter().min() {
        panic!("{}", tell(seed, &failure));
    }
    let (runs, tally) = sum.into_inner().unwrap();
    println!("{runs} runs in {:.1?}: {tally:?}", begin.elapsed());
    if is_sample {
        let Tally {
            answers,
            flushes,
            errors,
            kills,
            cuts,
            stops,
            changes,
            resumed,
            held,
            slow,
            ..
        } = tally;
        // An event that never occurs is not tested.
        for (what, count) in [
            ("answers", answers / 10),
            ("flushes", flushes),
            ("errors", errors * 5),
            ("kills", kills),
            ("power cuts", cuts),
            ("stops", stops),
            ("changes", changes),
            ("restarts with requests in flight", resumed),
            ("threads that stood still", held * 2),
            ("slow operations", slow),
        ] {
            assert!(count > RUNS / 5, "too few {what}: {tally:?}");
        }
    }
}

#[test]
fn seed_repeats_the_same_run() {
    for seed in 0..200 {
        let bug = Bug::ALL.get(usize::try_from(seed).unwrap() % (Bug::ALL.len() + 1)).copied();
        let first = run(seed, options(bug, true)).unwrap();
        let second = run(seed, options(bug, true)).unwrap();
        assert!(!first.steps.is_empty());
        for (one, other) in first.steps.iter().zip(&second.steps) {
            assert_eq!(one, other, "seed {seed}");
        }
        assert_eq!(first, second, "seed {seed}");
        // Nor does it depend on a reader.
        assert_eq!(first.sum, run(seed, options(bug, false)).unwrap().sum, "seed {seed}");
    }
}

/// A planted bug is found soon, as what it is, and its seed finds it again.
fn is_found(bug: Bug, as_what: &[&str]) {
    let found = |seed| run(seed, options(Some(bug), false)).unwrap();
    let mut seeds = (0..BUG_RUNS).map(|seed| (seed, found(seed)));
    let (seed, report) = seeds.find(|(_, report)| report.failure.is_some()).expect("it is found");
    let failure = report.failure.clone().unwrap();
    println!("{bug:?}: seed {seed}: {failure}");
    assert!(as_what.iter().any(|what| failure.contains(what)), "{bug:?}: {failure}");
    assert_eq!(found(seed), report, "the seed repeats it");
    // It is the bug that is found.
    assert_eq!(run(seed, options(None, false)).unwrap().failure, None);
}

#[test]
fn lost_completion_is_found() {
    is_found(Bug::LostCompletion, &["never answered", "does not come"]);
}

#[test]
fn doubled_answer_is_found() {
    is_found(
        Bug::DoubledCompletion, // Or in the slot there is another one, that the device has not been shown.
        &["which it was not given", "was not asked", "and held", "status 255"],
    );
}

#[test]
fn ineffective_sync_is_found() {
    is_found(Bug::SwallowedSync, &["after a power cut"]);
}

#[test]
fn false_durable_write_is_found() {
    is_found(Bug::ForgottenDurability, &["after a power cut"]);
}

#[test]
fn unreported_writeback_failure_is_found() {
    is_found(Bug::HiddenLoss, &["after a power cut"]);
}

#[test]
fn stale_repeated_write_is_found() {
    is_found(Bug::StaleWrite, &["after a power cut", "was there from", "found"]);
}

#[test]
fn foreign_sector_contents_are_found() {
    is_found(Bug::TornSector, &["which nobody wrote there", "found"]);
}

#[test]
fn globally_slow_storage_is_found() {
    is_found(Bug::SlowForAll, &["waits for a stranger"]);
}
