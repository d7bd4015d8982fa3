//! Comparison of two sets of measurements, with regard to their noise.
//!
//! Two questions are answered. [`paired`]: A and B were measured in turns (A B, B A, ...), so each
//! pair had the same conditions. [`unpaired`]: a new run is compared with a saved one. Both work on
//! ratios (logarithms inside), so units and sizes do not matter. Neither assumes a distribution of
//! the noise: machines have long tails and two modes.
//!
//! # Method
//!
//! The interval for the ratio is that of Hodges and Lehmann. For pairs it comes from the ordered
//! Walsh averages of the log ratios, cut by Wilcoxon's signed-rank statistic. For two samples it
//! comes from the ordered differences of all logs of A and all logs of B, cut by Mann and Whitney's
//! U. The estimate is the median of the same averages or differences. Null distributions are exact;
//! longer samples than 50 values are thinned. Source: Hollander, Wolfe, Chicken, "Nonparametric
//! Statistical Methods", 3rd ed., sections 3.1-3.3 and 4.1-4.3. (Pairs need a symmetric log ratio.
//! If A and B differ by a factor only, swapping a pair's two measurements changes only its sign, so
//! the log ratio is symmetric.)
//!
//! The interval holds the true ratio with at least 95 % where the number of runs allows that.
//! Otherwise it holds with as much as the number allows, but at least 90 %: five pairs give 93.75
//! %, three runs against three 90 %. With fewer, the comparison is inconclusive.
//!
//! # Verdict
//!
//! With a threshold t (0.05: differences below 5 % do not matter):
//! better or worse: the interval leaves out 1, and the estimate differs from 1 by more than t;
//! same: the whole interval lies between 1/(1+t) and 1+t; otherwise undecided: more runs, or a
//! quieter machine.
//!
//! A sentence of a summary says even less ([`Verdict::told`]). It claims more or less of something
//! if the interval leaves out 1, and otherwise that no difference was seen. A target is met only if
//! the whole interval says so ([`Verdict::side`]), and missed if the median misses it.
//!
//! False alarms (better or worse, without a true difference) are at most 1 minus the interval's
//! confidence: 6.25 % with five pairs, 5 % with more. They are rarer where the noise is small
//! relative to the threshold. A test below simulates both.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The desired confidence.
const CONFIDENCE: f64 = 0.95;
/// The least confidence accepted when there are too few runs for more.
pub const LEAST_CONFIDENCE: f64 = 0.90;
/// A difference below this does not matter, unless the caller says otherwise.
pub const THRESHOLD: f64 = 0.05;
/// Fewer pairs than this have no interval, so they are inconclusive.
pub const LEAST_PAIRS: usize = 5;
/// Longer samples are thinned evenly to at most so many values. Intervals then become wider than
/// they had to be, never narrower.
const MOST: usize = 50;

/// Which figures are good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Throughput.
    Higher,
    /// Latency, CPU time.
    Lower,
}

/// Verdict of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// A is better than B, by more than the threshold.
    Better,
    /// A is worse than B, by more than the threshold.
    Worse,
    /// They differ by less than the threshold.
    Same,
    /// The noise hides which of these it is, or the difference is too near the threshold.
    Noisy,
    /// There are too few runs to say anything.
    Few,
    /// A value is zero, negative or not a number: there is no ratio.
    Unfit,
}

impl Outcome {
    /// It in a word or two.
    pub fn word(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Same => "the same",
            Self::Noisy => "undecided: too noisy",
            Self::Few => "undecided: too few runs",
            Self::Unfit => "undecided: no figure",
        }
    }
}

/// Where the true ratio is, seen from some figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The whole interval is above it.
    Above,
    /// The whole interval is below it.
    Below,
    /// The interval holds it: seen from 1, no difference was seen.
    Unclear,
    /// There is no interval.
    Unknown,
}

/// A comparison of A with B.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The verdict.
    pub outcome: Outcome,
    /// How many times B's figure A's is; NaN if it is not known.
    pub ratio: f64,
    /// Lower end of the ratio's interval.
    pub low: f64,
    /// Upper end of the ratio's interval.
    pub high: f64,
    /// How surely the interval holds the true ratio: 0.9375 is 93.75 %; 0 without an interval.
    pub confidence: f64,
}

impl Verdict {
    fn none(outcome: Outcome) -> Self {
        Self { outcome, ratio: f64::NAN, low: f64::NAN, high: f64::NAN, confidence: 0.0 }
    }

    /// Place of the true ratio relative to `figure`: by the interval, not by the estimate.
    pub fn side(&self, figure: f64) -> Side {
        match (self.low, self.high) {
            (low, high) if self.confidence <= 0.0 || low.is_nan() || high.is_nan() => Side::Unknown,
            (low, _) if low > figure => Side::Above,
            (_, high) if high < figure => Side::Below,
            _ => Side::Unclear,
        }
    }

    /// Words that a sentence may use: `1.31x (1.22x-1.40x)`, or `no difference seen (0.77x-1.03x)`;
    /// none without an interval.
    pub fn told(&self) -> Option<String> {
        let interval = format!("({:.2}x-{:.2}x)", self.low, self.high);
        match self.side(1.0) {
            Side::Above | Side::Below => Some(format!("{:.2}x {interval}", self.ratio)),
            Side::Unclear => Some(format!("no difference seen {interval}")),
            Side::Unknown => None,
        }
    }
}

impl fmt::Display for Verdict {
    /// `better, 1.21x (1.15x-1.27x, 94 % sure)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.outcome.word())?;
        if self.ratio.is_finite() {
            write!(f, ", {:.2}x", self.ratio)?;
        }
        if self.confidence > 0.0 {
            write!(
                f,
                " ({:.2}x-{:.2}x, {:.0} % sure)",
                self.low,
                self.high,
                self.confidence * 100.0
            )?;
        }
        Ok(())
    }
}

/// Compares A with B, which were measured in turns: value i of both belong together. Surplus values
/// of one are left out.
pub fn paired(a: &[f64], b: &[f64], better: Better, threshold: f64) -> Verdict {
    let n = a.len().min(b.len());
    let (a, b) = (&a[..n], &b[..n]);
    let (Some(a), Some(b)) = (logs(a), logs(b)) else { return unfit(a, b) };
    let ratios = thinned(&a.iter().zip(&b).map(|(a, b)| a - b).collect::<Vec<_>>());
    let mut walsh: Vec<f64> = Vec::with_capacity(ratios.len() * (ratios.len() + 1) / 2);
    for (i, x) in ratios.iter().enumerate() {
        walsh.extend(ratios[..=i].iter().map(|y| f64::midpoint(*x, *y)));
    }
    judge(walsh, &signed_rank(ratios.len()), better, threshold)
}

/// Compares runs A with runs B of another time or place.
pub fn unpaired(a: &[f64], b: &[f64], better: Better, threshold: f64) -> Verdict {
    let (Some(x), Some(y)) = (logs(a), logs(b)) else { return unfit(a, b) };
    let (x, y) = (thinned(&x), thinned(&y));
    let differences = x.iter().flat_map(|x| y.iter().map(move |y| x - y)).collect();
    judge(differences, &rank_sum(x.len(), y.len()), better, threshold)
}

/// The value that so many thousandths of the sorted values are not above (nearest rank); none of
/// none.
pub fn nearest_rank<T: Copy>(sorted: &[T], permille: usize) -> Option<T> {
    let rank = (sorted.len() * permille).div_ceil(1000).max(1);
    sorted.get(rank - 1).copied()
}

/// The middle value of some figures; of two middle ones the mean; NaN for none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// Logarithms; `None` if a value has none.
fn logs(values: &[f64]) -> Option<Vec<f64>> {
    values.iter().map(|v| (v.is_finite() && *v > 0.0).then(|| v.ln())).collect()
}

/// Zero on both sides (no context switch at all) is the same; otherwise there is no ratio.
fn unfit(a: &[f64], b: &[f64]) -> Verdict {
    let nothing = |values: &[f64]| !values.is_empty() && values.iter().all(|v| *v == 0.0);
    match nothing(a) && nothing(b) {
        true => {
            Verdict { outcome: Outcome::Same, ratio: 1.0, low: 1.0, high: 1.0, confidence: 0.0 }
        }
        false => Verdict::none(Outcome::Unfit),
    }
}

fn thinned(values: &[f64]) -> Vec<f64> {
    values.iter().step_by(values.len().div_ceil(MOST).max(1)).copied().collect()
}

/// The verdict by ordered averages or differences, of which the statistic's null distribution tells
/// how many to cut at each end.
fn judge(mut values: Vec<f64>, null: &[f64], better: Better, threshold: f64) -> Verdict {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    if n == 0 {
        return Verdict::none(Outcome::Few);
    }
    let estimate = f64::midpoint(values[(n - 1) / 2], values[n / 2]).exp();
    let (cut, confidence) = cut(null, n);
    // Exactly the least is enough, however the sum was rounded.
    if confidence < LEAST_CONFIDENCE - 1e-9 {
        return Verdict { ratio: estimate, ..Verdict::none(Outcome::Few) };
    }
    let (low, high) = (values[cut].exp(), values[n - 1 - cut].exp());
    let beyond = 1.0 + threshold.max(0.0);
    let outcome = if low > 1.0 && estimate > beyond || high < 1.0 && estimate < 1.0 / beyond {
        match (estimate > 1.0) == (better == Better::Higher) {
            true => Outcome::Better,
            false => Outcome::Worse,
        }
    } else if low >= 1.0 / beyond && high <= beyond {
        Outcome::Same
    } else {
        Outcome::Noisy
    };
    Verdict { outcome, ratio: estimate, low, high, confidence }
}

/// Number of ordered values (of `n`) to leave out at each end, and the confidence of the rest, by
/// the probability of each value of a rank statistic without a difference (from 0 up, symmetric).
/// The interval is the narrowest that reaches [`CONFIDENCE`], or the widest there is.
fn cut(null: &[f64], n: usize) -> (usize, f64) {
    // The interval from the value at place `cut` misses if the statistic is at most `cut`.
    let confidence = |cut: usize| 1.0 - 2.0 * null.iter().take(cut + 1).sum::<f64>();
    // The two ends must not meet.
    let most = (n - 1) / 2;
    let cut = (0..=most).take_while(|cut| confidence(*cut) >= CONFIDENCE).last().unwrap_or(0);
    (cut, confidence(cut))
}

/// Wilcoxon's signed-rank statistic for n pairs: the sum of those of the ranks 1 to n that a fair
/// coin picks.
fn signed_rank(n: usize) -> Vec<f64> {
    let mut probability = vec![0.0; n * (n + 1) / 2 + 1];
    probability[0] = 1.0;
    for rank in 1..=n {
        for sum in (0..probability.len()).rev() {
            let with = if sum >= rank { probability[sum - rank] } else { 0.0 };
            probability[sum] = f64::midpoint(probability[sum], with);
        }
    }
    probability
}

/// Mann and Whitney's U for samples of m and n values.
fn rank_sum(m: usize, n: usize) -> Vec<f64> {
    // ways[j][u]: probability of u with j of the second sample, while values of the first come in
    // one by one. The largest of i + j values is from the first sample with probability i / (i +
    // j), and then adds j to U.
    let mut previous: Vec<Vec<f64>> = vec![vec![1.0]; n + 1];
    for i in 1..=m {
        let mut current: Vec<Vec<f64>> = vec![vec![1.0]];
        for j in 1..=n {
            let first = i as f64 / (i + j) as f64;
            let mut ways = vec![0.0; i * j + 1];
            for (u, p) in previous[j].iter().enumerate() {
                ways[u + j] += first * p;
            }
            for (u, p) in current[j - 1].iter().enumerate() {
                ways[u] += (1.0 - first) * p;
            }
            current.push(ways);
        }
        previous = current;
    }
    previous.pop().unwrap_or_default()
}

#[cfg(test)]
#[path = "stats/tests.rs"]
mod tests;
