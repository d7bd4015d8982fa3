//! Ratios, targets and verdicts, and the lines and tables that show them.

use serde::Serialize;
use vlane_report::stats::median;

use super::plan::{Bound, Claim, Metric, Row, rows};
use super::{Figures, Measured, RowResult};
use vlane_report::stats::{self, Better, Outcome, THRESHOLD};
use vlane_report::{Spread, figure};

/// What became of a claim.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    /// What was measured.
    pub row: String,
    /// Which figure.
    pub metric: &'static str,
    /// Whose figure it is.
    pub of: String,
    /// Median of it.
    pub value: f64,
    /// Who it is compared with.
    pub over: Option<String>,
    /// Median of their figure.
    pub other: Option<f64>,
    /// Ratio of the two, pair by pair: median; the figure itself where nobody is compared with.
    pub ratio: f64,
    /// Smallest ratio of a pair.
    pub lowest: f64,
    /// Largest ratio of a pair.
    pub highest: f64,
    /// What was aimed at.
    pub target: String,
    /// Whether the median is there.
    pub met: bool,
    /// Whether the one is better than the other, by somebody who knows the noise; absent where nobody is compared with.
    pub difference: Option<stats::Verdict>,
}

impl Metric {
    /// What it is called.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Iops => "IOPS",
            Self::CpuPerIo => "CPU per I/O",
            Self::P50 => "p50 latency",
            Self::SwitchesPerIo => "context switches per I/O",
            Self::IdleCpu => "CPU time",
            Self::IdleSwitches => "context switches",
        }
    }

    /// The unit of its figures.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Iops => "IOPS",
            Self::CpuPerIo | Self::P50 => "us",
            Self::IdleCpu => "ms",
            Self::SwitchesPerIo | Self::IdleSwitches => "",
        }
    }

    fn better(self) -> Better {
        if self == Self::Iops { Better::Higher } else { Better::Lower }
    }

    /// It, of a measurement.
    pub(super) fn of(self, f: &Figures) -> f64 {
        match self {
            Self::Iops => f.iops,
            Self::CpuPerIo => f.cpu_us_per_io,
            Self::P50 => f.p50_us,
            Self::SwitchesPerIo => f.switches_per_io,
            Self::IdleCpu => f.cpu_ms,
            Self::IdleSwitches => f.switches,
        }
    }

    fn show(self, value: f64) -> String {
        match self {
            // "347.6k" can be nothing else.
            Self::Iops => figure::with_unit(value, ""),
            _ => figure::with_unit(value, self.unit()),
        }
    }
}

/// A quotient that is good for comparisons: nothing over nothing is 1.
fn ratio(a: f64, b: f64) -> f64 {
    if a == 0.0 && b == 0.0 { 1.0 } else { a / b }
}

/// Judges a claim by its rounds.
pub(super) fn judge(row: &Row, claim: &Claim, measured: &Measured) -> Verdict {
    let figures =
        |who: usize| -> Vec<f64> { measured.rounds[who].iter().map(|f| claim.metric.of(f)).collect() };
    let of = figures(claim.of);
    let over = claim.over.map(&figures);
    let ratios = match &over {
        Some(over) => of.iter().zip(over).map(|(a, b)| ratio(*a, *b)).collect(),
        None => of.clone(),
    };
    let middle = median(&ratios);
    let target = match (claim.bound, claim.over) {
        (Bound::AtLeast(b), Some(_)) => format!(">= {b:.2}x"),
        (Bound::AtMost(b), Some(_)) => format!("<= {b:.2}x"),
        (Bound::AtLeast(b), None) => format!(">= {}", claim.metric.show(b)),
        (Bound::AtMost(b), None) => format!("<= {}", claim.metric.show(b)),
    };
    Verdict {
        row: row.title.into(),
        metric: claim.metric.name(),
        of: row.contenders[claim.of].0.into(),
        value: median(&of),
        over: claim.over.map(|over| row.contenders[over].0.into()),
        other: over.as_deref().map(median),
        ratio: middle,
        lowest: ratios.iter().copied().fold(f64::INFINITY, f64::min),
        highest: ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        target,
        met: claim.bound.holds(middle),
        difference: over.map(|over| stats::paired(&of, &over, claim.metric.better(), THRESHOLD)),
    }
}

/// The ratios of a verdict, or the figure itself.
pub(super) fn spread(verdict: &Verdict, runs: usize) -> Spread {
    Spread { median: verdict.ratio, min: verdict.lowest, max: verdict.highest, runs }
}

/// The cells of a verdict: vlane, other, ratio, and what vlane is.
fn cells(claim: &Claim, v: &Verdict) -> [String; 4] {
    let show = |value| claim.metric.show(value);
    let vlane = if v.of == "vlane" { show(v.value) } else { format!("{} ({})", show(v.value), v.of) };
    let (other, ratio) = match (&v.over, v.other) {
        (Some(over), Some(other)) => (
            format!("{} ({over})", show(other)),
            format!("{:.2} ({:.2}-{:.2})", v.ratio, v.lowest, v.highest),
        ),
        _ => (String::new(), String::new()),
    };
    let is = v.difference.map_or_else(String::new, |difference| difference.outcome.word().to_owned());
    [vlane, other, ratio, is]
}

const HEAD: [&str; 5] = ["measured", "vlane", "compared with", "ratio (min-max)", "vlane is"];

/// The claims of a row.
pub(super) fn claims(result: &RowResult) -> Vec<Claim> {
    rows().into_iter().find(|row| row.id == result.row).map_or_else(Vec::new, |row| row.claims)
}

/// The lines of one row, for the terminal.
pub fn lines(result: &RowResult) -> String {
    let mut out = String::new();
    for (claim, verdict) in claims(result).iter().zip(&result.verdicts) {
        let [vlane, other, ratio, is] = cells(claim, verdict);
        let against = if other.is_empty() { String::new() } else { format!(", {other}: {ratio}, {is}") };
        out += &format!("  {} {vlane}{against}\n", verdict.metric);
    }
    out
}

/// What matters most as a Markdown table: a line for each comparison that needs no explanation, of the rows that were measured.
pub fn markdown(results: &[RowResult]) -> String {
    let mut out = format!("| {} |\n|{}\n", HEAD.join(" | "), "---|".repeat(HEAD.len()));
    for result in results {
        for (claim, verdict) in claims(result).iter().zip(&result.verdicts) {
            if let Some(headline) = claim.headline {
                out += &format!("| {headline} | {} |\n", cells(claim, verdict).join(" | "));
            }
        }
    }
    out
}

/// The targets of the project itself, and which of them are met.
pub fn targets(results: &[RowResult]) -> String {
    let verdicts = || results.iter().flat_map(|result| &result.verdicts);
    let mut out = String::new();
    for v in verdicts() {
        let met = if v.met { "met" } else { "NOT MET" };
        out += &format!("  {met:<8} {}: {}, target {}: {:.2}\n", v.row, v.metric, v.target, v.ratio);
    }
    out + &format!("{} of {} targets met\n", verdicts().filter(|v| v.met).count(), verdicts().count())
}

/// In how many comparisons vlane is better, worse, the same, and in how many that is not known.
pub(super) fn summary(results: &[RowResult]) -> String {
    let differences = || results.iter().flat_map(|result| &result.verdicts).filter_map(|v| v.difference);
    let count = |outcome: Outcome| differences().filter(|d| d.outcome == outcome).count();
    let (better, worse, same) = (count(Outcome::Better), count(Outcome::Worse), count(Outcome::Same));
    let all = differences().count();
    format!(
        "Of {all} comparisons, vlane is better in {better}, worse in {worse}, the same in {same}; {} are undecided.",
        all - better - worse - same
    )
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "tests")]
mod tests {
    use super::super::plan::rows;
    use super::*;

    #[test]
    fn a_claim_is_judged_by_the_median_of_its_pairs() {
        let rows = rows();
        let row = &rows[0];
        let figures = |iops, cpu| Figures { iops, cpu_us_per_io: cpu, ..Figures::default() };
        let measured = Measured {
            rounds: vec![
                vec![figures(700.0, 1.0), figures(600.0, 1.0), figures(100.0, 1.0)],
                vec![figures(100.0, 5.0), figures(100.0, 5.0), figures(100.0, 5.0)],
            ],
        };
        let verdicts: Vec<_> = row.claims.iter().map(|claim| judge(row, claim, &measured)).collect();
        let v = &verdicts[0];
        assert_eq!((v.ratio, v.lowest, v.highest, v.met), (6.0, 1.0, 7.0, true));
        assert!(!verdicts[1].met, "0.2 is more than a sixth");
        let result = RowResult { row: row.id, title: row.title, contenders: vec![], measured, verdicts };
        let table = markdown(std::slice::from_ref(&result));
        assert_eq!(table.lines().count(), 4);
        assert!(table.lines().all(|line| line.matches('|').count() == 6), "{table}");
        assert!(!table.contains("target") && !table.to_lowercase().contains("met"), "{table}");
        assert!(targets(&[result]).contains("1 of 2 targets met"));
        assert_eq!((ratio(0.0, 0.0), ratio(1.0, 2.0)), (1.0, 0.5));
    }
}
