//! Runs.

use std::time::Instant;
use vlane_dst::{Bug, Options, run};

#[test]
fn runs() {
    let begin = Instant::now();
    let mut tally = vlane_dst::Tally::default();
    let first: u64 = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    let n: u64 = std::env::var("N").ok().and_then(|s| s.parse().ok()).unwrap_or(300);
    let mut bad = 0;
    for seed in first..first + n {
        let report = run(seed, Options::default()).unwrap();
        tally.add(report.tally);
        if let Some(f) = report.failure {
            println!("seed {seed}: {f}");
            bad += 1;
            if n == 1 {
                let r = run(seed, Options { keeps_steps: true, ..Options::default() }).unwrap();
                println!("{}", r.steps.join("\n"));
            }
            if bad > 20 { break; }
        }
    }
    println!("{tally:?} in {:?}", begin.elapsed());
    assert_eq!(bad, 0);
}

#[test]
fn bugs() {
    for bug in Bug::ALL {
        let mut found = Vec::new();
        for seed in 0..2000 {
            let report = run(seed, Options { bug: Some(bug), keeps_steps: false }).unwrap();
            if let Some(f) = report.failure { found.push((seed, f)); }
            if found.len() == 5 { break; }
        }
        println!("{bug:?}:");
        for (s, f) in found { println!("  {s}: {f}"); }
    }
}
