//! Comparisons: a target with another of the same run, or a run with a saved one.

use super::measure::nothing_yet;
use super::profile::{Load, Profile};
use super::saved::{LoadRuns, Run, Saved, TargetRuns};
use vlane_report::stats::{Better, Outcome, Verdict, paired, unpaired};
use vlane_testbed::{ErrorKind, Fail, Result};

/// Title of a figure of a [`Run`], the good direction, and its value.
type Figure = (&'static str, Better, fn(&Run) -> f64);

/// The figures compared for a load; the first one decides if the result got worse. Figures that
/// the load fixes are not compared: the throughput of a given rate, the median latency of a given
/// depth.
fn figures(load: &Load) -> Vec<Figure> {
    let p99: Figure = ("p99 latency", Better::Lower, |run| run.p99_us);
    let cpu: Figure =
        ("back end CPU per I/O", Better::Lower, |run| run.server_cpu_us_per_io.unwrap_or(f64::NAN));
    let mut figures: Vec<Figure> = match load.rate {
        None => vec![("throughput", Better::Higher, |run| run.iops), p99, cpu],
        Some(_) => vec![p99, ("p50 latency", Better::Lower, |run| run.p50_us), cpu],
    };
    if load.flush_every.is_some() {
        let p99 = |run: &Run| run.flushes.as_ref().map_or(f64::NAN, |flushes| flushes.p99_us);
        figures.push(("p99 latency of flushes", Better::Lower, p99));
    }
    figures
}

/// A compared with B for one load.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The load's name.
    pub load: String,
    /// A's name.
    pub a: String,
    /// B's name.
    pub b: String,
    /// The verdicts by their figures' titles, the one that decides first.
    pub judged: Vec<(&'static str, Verdict)>,
}

/// Compares the measurements A with the measurements B of a load; `in_turns` if measurement i of
/// both belong together.
fn compare(
    load: &Load,
    a: &TargetRuns,
    b: &TargetRuns,
    threshold: f64,
    in_turns: bool,
) -> Comparison {
    let judge = if in_turns { paired } else { unpaired };
    let judged = figures(load).into_iter().map(|(title, better, value)| {
        let [x, y] = [a, b].map(|of| of.runs.iter().map(value).collect::<Vec<_>>());
        (title, judge(&x, &y, better, threshold))
    });
    Comparison {
        load: load.name.clone(),
        a: a.target.name.clone(),
        b: b.target.name.clone(),
        judged: judged.collect(),
    }
}

/// The first target of a run against each of the others, load by load.
pub fn between_targets(run: &Saved) -> Vec<Comparison> {
    let against = |results: &LoadRuns| match results.targets.split_first() {
        None => Vec::new(),
        Some((first, rest)) => rest
            .iter()
            .map(|other| compare(&results.load, first, other, run.threshold, run.interleaved))
            .collect::<Vec<_>>(),
    };
    run.loads.iter().flat_map(against).collect()
}

/// A run (A) against an older one (B): loads by name, targets by name, or the only ones of both.
/// Also tells which of the new run's loads the older one lacks.
///
/// # Errors
/// [`ErrorKind::Invalid`] if a load of the same name asked for something else then, or no load and
/// target is in both.
pub fn against_saved(new: &Saved, old: &Saved) -> Result<(Vec<Comparison>, Vec<String>)> {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for now in &new.loads {
        let Some(then) = old.loads.iter().find(|other| other.load.name == now.load.name) else {
            missing.push(now.load.name.clone());
            continue;
        };
        if !then.load.is_same_as(&now.load) {
            return ErrorKind::Invalid.fail(format!(
                "load `{}` differs from the saved run, so they cannot be compared: {}; save a new \
                 run",
                now.load.name,
                difference(&then.load, &now.load)
            ));
        }
        for a in &now.targets {
            let b = match (&now.targets[..], &then.targets[..]) {
                ([_], [only]) => Some(only),
                _ => then.targets.iter().find(|b| b.target.name == a.target.name),
            };
            match b {
                Some(b) => found.push(compare(&now.load, a, b, new.threshold, false)),
                None => missing.push(format!("{} on {}", now.load.name, a.target.name)),
            }
        }
    }
    if found.is_empty() {
        let names: Vec<_> = old.loads.iter().map(|load| load.load.name.as_str()).collect();
        return ErrorKind::Invalid.fail(format!(
            "the saved run has none of these loads on these targets; it has: {}",
            names.join(", ")
        ));
    }
    Ok((found, missing))
}

/// Checks that a profile's results can be compared with a saved run: to be called before the
/// measurement.
///
/// # Errors
/// Those of [`against_saved`].
pub fn check_saved(profile: &Profile, old: &Saved) -> Result<()> {
    let new = Saved { loads: nothing_yet(profile), ..old.clone() };
    against_saved(&new, old).map(drop)
}

/// The keys in which two loads differ.
fn difference(then: &Load, now: &Load) -> String {
    let [then, now] = [then, now].map(|load| serde_json::json!(load));
    let keys = [&then, &now].into_iter().filter_map(|load| load.as_object());
    let all: std::collections::BTreeSet<&String> = keys.flat_map(|keys| keys.keys()).collect();
    let show = |load: &serde_json::Value, key: &str| {
        load.get(key).map_or("unset".into(), ToString::to_string)
    };
    let differs = |key: &&String| *key != "name" && then.get(*key) != now.get(*key);
    let words = all.into_iter().filter(differs);
    let words = words.map(|key| format!("{key} was {}, is {}", show(&then, key), show(&now, key)));
    words.collect::<Vec<_>>().join("; ")
}

/// True if the deciding figure is worse in any of the comparisons.
pub fn is_worse(comparisons: &[Comparison]) -> bool {
    let mut first = comparisons.iter().filter_map(|comparison| comparison.judged.first());
    first.any(|(_, verdict)| verdict.outcome == Outcome::Worse)
}
