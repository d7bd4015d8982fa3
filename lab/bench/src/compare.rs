//! Comparisons: a target with another of the same run, or a run with a saved one.

use super::measure::nothing_yet;
use super::profile::{Load, Profile};
use super::saved::{LoadRuns, Run, Saved, TargetRuns};
use vlane_report::Spread;
use vlane_report::stats::{Better, Outcome, Verdict, paired, unpaired};
use vlane_testbed::error::{Error, ErrorKind, Result};

/// A figure of a [`Run`] that is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Requests per second.
    Iops,
    /// Median latency.
    P50,
    /// 99th percentile of the latency.
    P99,
    /// CPU time of the back end per request.
    ServerCpu,
}

impl Metric {
    /// The metrics compared for a load; the first one decides if the result got worse. Figures that
    /// the load fixes are not compared: the throughput of a given rate, the median latency of a
    /// given depth.
    pub fn of_load(load: &Load) -> [Self; 3] {
        match load.rate {
            None => [Self::Iops, Self::P99, Self::ServerCpu],
            Some(_) => [Self::P99, Self::P50, Self::ServerCpu],
        }
    }

    /// Its name.
    pub fn title(self) -> &'static str {
        self.parts().0
    }

    /// Its unit.
    pub fn unit(self) -> &'static str {
        self.parts().1
    }

    /// Which direction is good.
    pub fn better(self) -> Better {
        self.parts().2
    }

    fn parts(self) -> (&'static str, &'static str, Better) {
        match self {
            Self::Iops => ("throughput", "IOPS", Better::Higher),
            Self::P50 => ("p50 latency", "us", Better::Lower),
            Self::P99 => ("p99 latency", "us", Better::Lower),
            Self::ServerCpu => ("back end CPU per I/O", "us", Better::Lower),
        }
    }

    /// Its value in a measurement; not a number where it is not known.
    pub fn value(self, run: &Run) -> f64 {
        match self {
            Self::Iops => run.iops,
            Self::P50 => run.p50_us,
            Self::P99 => run.p99_us,
            Self::ServerCpu => run.server_cpu_us_per_io.unwrap_or(f64::NAN),
        }
    }
}

/// A figure of A against the same of B.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    /// Which figure.
    pub metric: Metric,
    /// A's.
    pub a: Option<Spread>,
    /// B's.
    pub b: Option<Spread>,
    /// The verdict.
    pub verdict: Verdict,
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
    /// Figure by figure, the one that decides first.
    pub judged: Vec<Judged>,
}

/// Compares the measurements A with the measurements B of a load; `in_turns` if measurement i of
/// both belong together.
pub fn compare(
    load: &Load,
    a: &TargetRuns,
    b: &TargetRuns,
    threshold: f64,
    in_turns: bool,
) -> Comparison {
    let judged = Metric::of_load(load).into_iter().map(|metric| {
        let values = |runs: &[Run]| runs.iter().map(|run| metric.value(run)).collect::<Vec<_>>();
        let (x, y) = (values(&a.runs), values(&b.runs));
        let verdict = match in_turns {
            true => paired(&x, &y, metric.better(), threshold),
            false => unpaired(&x, &y, metric.better(), threshold),
        };
        Judged { metric, a: Spread::of(&x), b: Spread::of(&y), verdict }
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
            let context = format!(
                "load `{}` differs from the saved run, so they cannot be compared: {}; save a new \
                 run",
                now.load.name,
                difference(&then.load, &now.load)
            );
            return Err(Error::new(ErrorKind::Invalid, context));
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
        let context = format!(
            "the saved run has none of these loads on these targets; it has: {}",
            names.join(", ")
        );
        return Err(Error::new(ErrorKind::Invalid, context));
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
    let keys = |load: &Load| match serde_json::to_value(load) {
        Ok(serde_json::Value::Object(map)) => map,
        _ => serde_json::Map::new(),
    };
    let (then, now) = (keys(then), keys(now));
    let all: std::collections::BTreeSet<&String> = then.keys().chain(now.keys()).collect();
    let show =
        |value: Option<&serde_json::Value>| value.map_or("unset".into(), ToString::to_string);
    let words = all.into_iter().filter(|key| *key != "name" && then.get(*key) != now.get(*key));
    let words =
        words.map(|key| format!("{key} was {}, is {}", show(then.get(key)), show(now.get(key))));
    words.collect::<Vec<_>>().join("; ")
}

/// True if the deciding figure is worse in any of the comparisons.
pub fn is_worse(comparisons: &[Comparison]) -> bool {
    let first = comparisons.iter().filter_map(|comparison| comparison.judged.first());
    first.into_iter().any(|judged| judged.verdict.outcome == Outcome::Worse)
}
