#![allow(clippy::unwrap_used)]

use std::num::NonZeroU32;

use vlane_driver::Buckets;

use super::saved::{Flushing, LoadRuns};
use super::*;
use vlane_report::Machine;
use vlane_report::stats::Outcome;
use vlane_testbed::ErrorKind;

/// Some runs, `scale` times as fast as others.
fn runs(scale: f64, seed: u32) -> Vec<Run> {
    (0..5_u32)
        .map(|i| {
            let noise = 1.0 + f64::from((i * 7 + seed) % 5) / 500.0;
            Run {
                iops: 100_000.0 * scale * noise,
                mb_per_second: 409.6 * scale,
                mean_us: 300.0 / scale,
                p50_us: 290.0 / scale,
                p99_us: 500.0 / scale * noise,
                p99_9_us: 900.0 / scale,
                server_cpu_us_per_io: (i > 0).then_some(2.0),
                server_switches_per_io: Some(0.01),
                client_cpu_us_per_io: 1.0,
                kept_up: None,
                late_p99_us: None,
                flushes: None,
                latencies: Buckets {
                    upto_ns: vec![100_000, 300_000, 900_000],
                    count: vec![1, 97, 2],
                },
            }
        })
        .collect()
}

fn saved(scale: f64) -> Saved {
    let target = |name: &str, scale, seed| TargetRuns {
        target: Target {
            name: name.into(),
            backend: Backend::Vlane,
            args: vec!["--queues".into(), "1".into()],
            socket: None,
            client: Client::Driver,
            one_queue: false,
        },
        server: Some("vlane serve".into()),
        client: None,
        runs: runs(scale, seed),
    };
    let load = |name: &str, rate| LoadRuns {
        load: Load { rate, ..Load::named(name) },
        targets: vec![target("a", scale, 1), target("b", 1.0, 3)],
    };
    Saved {
        schema: vlane_testbed::sniff::SAVED.into(),
        title: "a test".into(),
        text: vec!["with a paragraph".into()],
        command: "vlane-lab bench --profile test".into(),
        created: "2026-01-01T00:00:00Z".into(),
        seconds: 12.5,
        machine: Machine::default(),
        time: 1.0,
        ramp: 0.5,
        partial: false,
        interleaved: true,
        threshold: 0.05,
        pin: Pin::Apart,
        loads: vec![load("fast", None), load("steady", Some(1000.0))],
    }
}

#[test]
fn only_saved_runs_are_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.json");
    let run = saved(1.0);
    for _ in 0..2 {
        run.write(&Saved::output(&path, false)).unwrap();
        assert_eq!(Saved::read(&path).unwrap(), run);
    }
    for (text, says) in [
        ("no json", "not a saved run"),
        ("{}", "not a saved run"),
        (r#"{"schema": "vlane-bench/99"}"#, "vlane-bench/99"),
        (r#"{"schema": "vlane-bench/1"}"#, "damaged"),
    ] {
        std::fs::write(&path, text).unwrap();
        assert_eq!(
            run.write(&Saved::output(&path, false)).is_ok(),
            text.contains("schema"),
            "{text}"
        );
        std::fs::write(&path, text).unwrap();
        let error = Saved::read(&path).unwrap_err();
        assert!(error.kind() == ErrorKind::Format && error.to_string().contains(says), "{error}");
    }
    assert_eq!(Saved::read(&dir.path().join("none")).unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn first_target_is_judged_by_the_back_ends_part() {
    for (scale, outcome) in [(2.0, Outcome::Better), (0.5, Outcome::Worse), (1.0, Outcome::Same)] {
        let comparisons = between_targets(&saved(scale));
        assert_eq!(comparisons.len(), 2);
        assert_eq!(comparisons[0].judged[0].0, "throughput");
        assert_eq!(
            comparisons[1].judged[0].0, "p99 latency",
            "a given rate has no throughput of its own"
        );
        assert!(comparisons.iter().all(|c| c.judged[0].1.outcome == outcome), "{comparisons:#?}");
        assert_eq!(is_worse(&comparisons), outcome == Outcome::Worse);
        // A figure that one measurement lacks has no verdict.
        assert_eq!(comparisons[0].judged[2].1.outcome, Outcome::Unfit);
    }
}

#[test]
fn only_equal_loads_are_compared_with_saved() {
    let (new, old) = (saved(0.5), saved(1.0));
    let (comparisons, missing) = against_saved(&new, &old).unwrap();
    assert_eq!((comparisons.len(), missing.len()), (4, 0));
    let worse: Vec<_> =
        comparisons.iter().map(|c| c.judged[0].1.outcome == Outcome::Worse).collect();
    assert_eq!(worse, [true, false, true, false], "a is slower than it was, b is not");

    let mut other = saved(1.0);
    other.loads[1].load.name = "another".into();
    let (comparisons, missing) = against_saved(&new, &other).unwrap();
    assert_eq!((comparisons.len(), missing), (2, vec!["steady".to_string()]));

    let mut other = saved(1.0);
    other.loads[0].load.depth = std::num::NonZeroU16::new(4).unwrap();
    let error = against_saved(&new, &other).unwrap_err().to_string();
    assert!(error.contains("depth was 4, is 32"), "{error}");

    // The same is known before anything is measured.
    let mut profile = Profile::of("p", vec![Load::named("fast")]);
    profile.targets = vec![old.loads[0].targets[0].target.clone()];
    check_saved(&profile, &old).unwrap();
    assert!(check_saved(&profile, &other).unwrap_err().to_string().contains("depth"));
    profile.loads[0].name = "unknown".into();
    assert!(check_saved(&profile, &old).unwrap_err().to_string().contains("fast, steady"));

    let mut other = saved(1.0);
    other.loads.clear();
    assert!(against_saved(&new, &other).is_err());
}

#[test]
fn report_has_all_loads_verdicts_and_doubts() {
    let mut run = saved(2.0);
    run.loads[1].targets[0].runs[0].kept_up = Some(false);
    run.loads[0].targets[1].runs.iter_mut().for_each(|run| run.client_cpu_us_per_io = 9.5);
    let comparisons = between_targets(&run);
    let report = report(&run, &comparisons, None);
    let text = vlane_report::text::render(&report, 110);
    for words in
        ["fast", "steady", "better", "a against b", "the rate was not kept", "it was the limit"]
    {
        assert!(text.contains(words), "{words}:\n{text}");
    }
    let again = vlane_report::Report::from_json(&report.to_json().unwrap()).unwrap();
    assert_eq!(again.sections.len(), 2);
    vlane_report::html::page(&report).unwrap();
}

#[test]
fn summary_names_losses_and_tails_first() {
    let mut run = saved(1.0);
    run.loads.truncate(1);
    let load = &mut run.loads[0];
    load.load.flush_every = NonZeroU32::new(8);
    for (target, p99_us) in load.targets.iter_mut().zip([900.0, 300.0]) {
        let flushes = Flushing { per_second: 1.0, fdatasyncs: None, p50_us: 1.0, p99_us };
        target.runs.iter_mut().for_each(|run| run.flushes = Some(flushes));
    }
    let report = report(&run, &between_targets(&run), None);
    let [sentence] = &report.summary[..] else { panic!("{:?}", report.summary) };
    let order = ["a against b, p99 latency of flushes: worse", "; p99 latency: ", "; throughput: "];
    let places = order.map(|words| sentence.find(words).expect(sentence));
    assert!(places.is_sorted(), "{sentence}");
}

#[test]
fn interrupted_run_is_reported_and_marked() {
    let mut run = saved(1.2);
    run.partial = true;
    // The first load was measured a little, the second not at all.
    run.loads[0].targets[0].runs.truncate(3);
    run.loads[0].targets[1].runs.truncate(2);
    run.loads[1].targets.iter_mut().for_each(|target| target.runs.clear());
    let report = report(&run, &between_targets(&run), None);
    let words = format!("{:?} {:?}", report.summary, report.notes);
    assert!(
        report.summary[0].contains("INTERRUPTED") && report.summary[0].contains("5 measurements"),
        "{words}"
    );
    assert!(report.summary[0].contains("2 of 4 have none"), "{words}");
    assert!(!words.contains("NaN"), "{words}");
    assert!(report.to_json().is_ok());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.json");
    run.write(&Saved::output(&path, false)).unwrap();
    assert!(Saved::read(&path).unwrap().partial);
    run.partial = false;
    run.write(&Saved::output(&path, false)).unwrap();
    assert!(!std::fs::read_to_string(&path).unwrap().contains("partial"));
}
