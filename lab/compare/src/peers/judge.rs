//! Verdicts on the claims, and the limit of the client.
//!
//! A client that sleeps when idle, and never sleeps in a measurement, could not have asked for
//! more. The back end's further capacity is then unknown, and two back ends that both wait for the
//! client look alike. A client that polls is always awake, which is inconclusive.

use serde::Serialize;
use vlane_bench::CLIENT_BOUND;
use vlane_driver::Wait;
use vlane_report::stats::{Better, LEAST_PAIRS, Outcome, Side, THRESHOLD};
use vlane_report::{Arms, Bound, Met, Spread, figure, median, stats};

use super::Sample;
use super::plan::{CPU, Claim, Client, Figure, IOPS, P50, Row};

/// Part of a rate to achieve for it to count as reached.
pub(super) const REACHED: f64 = 0.98;
/// How exactly fio tells latencies: 64 steps between powers of two.
const FIO_STEP: f64 = 1.0 / 64.0;

/// Result of a claim.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    /// The measured row.
    pub row: String,
    /// Which figure.
    pub metric: &'static str,
    /// The contender of the figure.
    pub of: String,
    /// Median of it.
    pub value: f64,
    /// The contender that it is compared with.
    pub over: Option<String>,
    /// Median of their figure.
    pub other: Option<f64>,
    /// Ratio of the two, pair by pair: median; the figure itself where nobody is compared with.
    pub ratio: f64,
    /// Smallest ratio of a pair.
    pub lowest: f64,
    /// Largest ratio of a pair.
    pub highest: f64,
    /// The target.
    pub target: String,
    /// Result for the target, by the median and the whole interval.
    pub met: Met,
    /// Difference of the two, with regard to the noise; absent without a comparison.
    pub difference: Option<stats::Verdict>,
    /// Contenders that did not keep the row's rate, with the achieved ones: they are not compared.
    pub late: String,
}

impl Figure {
    pub(super) fn all(&self, rounds: &[Sample]) -> Vec<f64> {
        rounds.iter().map(self.of).collect()
    }

    pub(super) fn median(&self, rounds: &[Sample]) -> f64 {
        median(&self.all(rounds))
    }

    pub(super) fn spread(&self, rounds: &[Sample]) -> Option<Spread> {
        Spread::of(&self.all(rounds))
    }

    pub(super) fn show(&self, value: f64) -> String {
        figure::with_unit(value, self.unit)
    }
}

/// True if rounds kept a row's rate; without a rate, each does.
pub(super) fn is_reached(row: &Row, rounds: &[Sample]) -> bool {
    row.load.rate.is_none_or(|rate| IOPS.median(rounds) >= REACHED * f64::from(rate))
}

/// The contender that a claim is compared with: of qemu-storage-daemon the better setting in this
/// row, all others are alone. Without a rate, more requests are better. At a rate, the better one
/// keeps it and needs less CPU time.
pub(super) fn resolve(row: &Row, arms: &Arms<Sample>, over: usize) -> usize {
    if !row.is_daemon(over) {
        return over;
    }
    let badness = |place: &usize| {
        let rounds = &arms.0[*place].rounds;
        let cost = if row.load.rate.is_some() { CPU.median(rounds) } else { -IOPS.median(rounds) };
        (!is_reached(row, rounds), cost)
    };
    let worse = |a: &usize, b: &usize| {
        let (a, b) = (badness(a), badness(b));
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
    };
    (0..arms.0.len()).filter(|place| row.is_daemon(*place)).min_by(worse).unwrap_or(over)
}

/// A quotient that is good for comparisons: nothing over nothing is 1.
fn ratio(a: f64, b: f64) -> f64 {
    if a == 0.0 && b == 0.0 { 1.0 } else { a / b }
}

/// Judges a claim by its rounds, in which round i of both was measured one after the other.
pub(super) fn judge(row: &Row, claim: &Claim, arms: &Arms<Sample>) -> Verdict {
    let rounds = |place: usize| arms.0[place].rounds.as_slice();
    let of = claim.figure.all(rounds(claim.of));
    let against = claim.over.map(|over| resolve(row, arms, over));
    let over = against.map(|over| claim.figure.all(rounds(over)));
    let ratios: Vec<f64> = match &over {
        Some(over) => of.iter().zip(over).map(|(a, b)| ratio(*a, *b)).collect(),
        None => of.clone(),
    };
    let late = [Some(claim.of), against].into_iter().flatten();
    let late = late.filter(|place| !is_reached(row, rounds(*place))).map(|place| {
        let achieved = figure::with_unit(IOPS.median(rounds(place)), "IOPS");
        format!("{} {achieved}", arms.0[place].arm)
    });
    let late = late.collect::<Vec<_>>().join(", ");
    let better = if claim.figure.name == IOPS.name { Better::Higher } else { Better::Lower };
    let threshold = THRESHOLD.max(resolution(row, claim, &of));
    let difference = over
        .as_deref()
        .filter(|_| late.is_empty())
        .map(|over| stats::paired(&of, over, better, threshold));
    let lowest = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let middle = median(&ratios);
    let met = match difference {
        _ if !late.is_empty() => Met::Unclear,
        Some(known) if row.load.rate.is_some() => held(&known, middle, threshold),
        Some(known) if known.confidence > 0.0 => {
            claim.bound.met(middle, Some((known.low, known.high)))
        }
        // A figure that is nothing has no ratio, so no interval: all pairs must agree, and be
        // enough. A count of nothing is exact.
        Some(_) if ratios.len() < LEAST_PAIRS => claim.bound.met(middle, None),
        _ => claim.bound.met(middle, Some((lowest, highest))),
    };
    let (sign, bound) = match claim.bound {
        Bound::AtLeast(bound) => (">=", bound),
        Bound::AtMost(bound) => ("<=", bound),
    };
    let bound = if over.is_some() { format!("{bound:.2}x") } else { claim.figure.show(bound) };
    Verdict {
        row: row.title.clone(),
        metric: claim.figure.name,
        of: arms.0[claim.of].arm.clone(),
        value: median(&of),
        over: against.map(|over| arms.0[over].arm.clone()),
        other: over.as_deref().map(median),
        ratio: middle,
        lowest,
        highest,
        target: format!("{sign} {bound}"),
        met,
        difference,
        late,
    }
}

/// How exactly a client tells its median latency: a share of it.
fn resolution(row: &Row, claim: &Claim, of: &[f64]) -> f64 {
    match row.client {
        _ if row.load.rate.is_none() || claim.figure.name != P50.name => 0.0,
        // Its short answer is in whole us.
        Client::Guest(_) => FIO_STEP.max(1.0 / median(of).max(1.0)),
        _ => FIO_STEP,
    }
}

/// Decides by median and interval if a cost is at most the other's, or more by no more than the
/// threshold.
fn held(difference: &stats::Verdict, median: f64, threshold: f64) -> Met {
    match (difference.outcome, difference.side(1.0)) {
        _ if median > 1.0 + threshold => Met::No,
        (Outcome::Better | Outcome::Same, _) | (_, Side::Below) => Met::Yes,
        _ => Met::Unclear,
    }
}

impl Verdict {
    /// The ratio as it is told, if both kept the rate: with its interval, or alone where there is
    /// none.
    pub(super) fn told_ratio(&self) -> String {
        match self.difference {
            Some(known) if known.confidence > 0.0 => {
                format!("{:.2} ({:.2}-{:.2})", self.ratio, known.low, known.high)
            }
            _ if self.late.is_empty() => format!("{:.2}", self.ratio),
            _ => String::new(),
        }
    }

    /// The verdict in some words: at a rate, on the claim; otherwise on the difference.
    pub(super) fn word(&self, row: &Row) -> String {
        let Some(difference) = self.difference else {
            return if self.late.is_empty() {
                String::new()
            } else {
                format!("not reached: {}", self.late)
            };
        };
        let word = match (self.met, difference.side(1.0)) {
            _ if row.load.rate.is_none() => difference.outcome.word(),
            (Met::Yes, _) => "met",
            (Met::No, _) => "not met",
            (Met::Unclear, Side::Unclear) => "no difference seen",
            (Met::Unclear, _) => "undecided",
        };
        word.to_owned()
    }
}

/// CPUs that each of so many client threads used; 0 where they were not measured.
fn client_cpus(sample: &Sample, jobs: u16) -> f64 {
    sample.client_cpu_us * sample.iops / 1e6 / f64::from(jobs.max(1))
}

/// True if the client was the limit in most of some rounds of a row.
pub(super) fn is_client_limit(row: &Row, rounds: &[Sample]) -> bool {
    let load = &row.load;
    let cpus = rounds.iter().map(|sample| client_cpus(sample, load.jobs));
    let is_telling = load.rate.is_none() && !load.idle && load.wait == Wait::Interrupt;
    is_telling && median(&cpus.collect::<Vec<_>>()) > CLIENT_BOUND
}
