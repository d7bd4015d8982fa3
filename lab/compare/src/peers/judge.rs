//! Ratios, targets and verdicts, and the lines and tables that show them.

use serde::Serialize;
use vlane_report::judge::{Bound, Met};
use vlane_report::stats::median;

use super::plan::{Claim, Contender, Metric, Row, rows};
use super::{Figures, Measured, RowResult};
use vlane_report::stats::{self, Better, LEAST_PAIRS, Outcome, THRESHOLD};
use vlane_report::{Spread, figure};

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
    /// Result for the target, by the whole interval.
    pub met: Met,
    /// Difference of the two, with regard to the noise; absent without a comparison.
    pub difference: Option<stats::Verdict>,
}

impl Metric {
    /// Its name.
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

/// The contender that a claim is compared with: of qemu-storage-daemon the setting that does most
/// in this row, by the median; all others are alone.
pub(super) fn resolve(row: &Row, measured: &Measured, over: usize) -> usize {
    let is_daemon = |who: usize| matches!(row.contenders[who].1, Contender::Qsd(_));
    if !is_daemon(over) {
        return over;
    }
    let does =
        |who: usize| median(&measured.rounds[who].iter().map(|f| f.iops).collect::<Vec<_>>());
    let daemons = (0..row.contenders.len()).filter(|who| is_daemon(*who));
    daemons.reduce(|best, who| if does(who) > does(best) { who } else { best }).unwrap_or(over)
}

/// Judges a claim by its rounds.
pub(super) fn judge(row: &Row, claim: &Claim, measured: &Measured) -> Verdict {
    let figures = |who: usize| -> Vec<f64> {
        measured.rounds[who].iter().map(|f| claim.metric.of(f)).collect()
    };
    let of = figures(claim.of);
    let against = claim.over.map(|over| resolve(row, measured, over));
    let over = against.map(&figures);
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
    let difference =
        over.as_deref().map(|over| stats::paired(&of, over, claim.metric.better(), THRESHOLD));
    let lowest = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let ends = match difference {
        Some(known) if known.confidence > 0.0 => Some((known.low, known.high)),
        // A figure that is nothing has no ratio, so no interval: all pairs must agree, and be
        // enough. A count of nothing is exact.
        Some(_) if ratios.len() < LEAST_PAIRS => None,
        _ => Some((lowest, highest)),
    };
    Verdict {
        row: row.title.into(),
        metric: claim.metric.name(),
        of: row.contenders[claim.of].0.into(),
        value: median(&of),
        over: against.map(|over| row.contenders[over].0.into()),
        other: over.as_deref().map(median),
        ratio: middle,
        lowest,
        highest,
        target,
        met: claim.bound.met(ends),
        difference,
    }
}

/// The ratios of a verdict, or the figure itself.
pub(super) fn spread(verdict: &Verdict, runs: usize) -> Spread {
    Spread { median: verdict.ratio, min: verdict.lowest, max: verdict.highest, runs }
}

/// The ratio as it is told: with its interval, or alone where there is none.
fn told_ratio(v: &Verdict) -> String {
    match v.difference {
        Some(known) if known.confidence > 0.0 => {
            format!("{:.2} ({:.2}-{:.2})", known.ratio, known.low, known.high)
        }
        _ => format!("{:.2}", v.ratio),
    }
}

/// Of those that are compared, the ones with which the client was the limit.
fn limited(result: &RowResult, v: &Verdict) -> String {
    let both = [Some(v.of.as_str()), v.over.as_deref()].into_iter().flatten();
    let names: Vec<&str> = both.filter(|name| result.client_limited.contains(name)).collect();
    if names.is_empty() {
        String::new()
    } else {
        format!("; the client is the limit with {}", names.join(" and "))
    }
}

/// The cells of a verdict: vlane, other, ratio, and what vlane is.
fn cells(claim: &Claim, v: &Verdict) -> [String; 4] {
    let show = |value| claim.metric.show(value);
    let vlane =
        if v.of == "vlane" { show(v.value) } else { format!("{} ({})", show(v.value), v.of) };
    let (other, ratio) = match (&v.over, v.other) {
        (Some(over), Some(other)) => (format!("{} ({over})", show(other)), told_ratio(v)),
        _ => (String::new(), String::new()),
    };
    let is =
        v.difference.map_or_else(String::new, |difference| difference.outcome.word().to_owned());
    [vlane, other, ratio, is]
}

const HEAD: [&str; 5] = ["measured", "vlane", "compared with", "ratio (interval)", "vlane is"];

/// The claims of a row.
pub(super) fn claims(result: &RowResult) -> Vec<Claim> {
    rows().into_iter().find(|row| row.id == result.row).map_or_else(Vec::new, |row| row.claims)
}

/// The lines of one row, for the terminal.
pub fn lines(result: &RowResult) -> String {
    let mut out = String::new();
    for (claim, verdict) in claims(result).iter().zip(&result.verdicts) {
        let [vlane, other, ratio, is] = cells(claim, verdict);
        let against =
            if other.is_empty() { String::new() } else { format!(", {other}: {ratio}, {is}") };
        out += &format!("  {} {vlane}{against}{}\n", verdict.metric, limited(result, verdict));
    }
    out
}

/// The most important results as a Markdown table: a line for each self-explanatory comparison of
/// the measured rows.
pub fn markdown(results: &[RowResult]) -> String {
    let mut out = format!("| {} |\n|{}\n", HEAD.join(" | "), "---|".repeat(HEAD.len()));
    for result in results {
        for (claim, verdict) in claims(result).iter().zip(&result.verdicts) {
            if let Some(headline) = claim.headline {
                let cells = cells(claim, verdict).join(" | ");
                out += &format!("| {headline} | {cells}{} |\n", limited(result, verdict));
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
        let met = match v.met {
            Met::Yes => "met",
            Met::No => "NOT MET",
            Met::Unclear => "unclear",
        };
        out += &format!(
            "  {met:<8} {}: {}, target {}: {}\n",
            v.row,
            v.metric,
            v.target,
            told_ratio(v)
        );
    }
    let count = |wanted: Met| verdicts().filter(|v| v.met == wanted).count();
    let (met, unclear) = (count(Met::Yes), count(Met::Unclear));
    out + &format!("{met} of {} targets met, {unclear} unclear\n", verdicts().count())
}

/// In how many comparisons vlane is better, worse, the same, and in how many that is not known.
pub(super) fn summary(results: &[RowResult]) -> String {
    let differences =
        || results.iter().flat_map(|result| &result.verdicts).filter_map(|v| v.difference);
    let count = |outcome: Outcome| differences().filter(|d| d.outcome == outcome).count();
    let (better, worse, same) =
        (count(Outcome::Better), count(Outcome::Worse), count(Outcome::Same));
    let all = differences().count();
    format!(
        "Of {all} comparisons, vlane is better in {better}, worse in {worse}, the same in {same}; \
         {} are undecided.",
        all - better - worse - same
    )
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "tests")]
mod tests {
    use super::super::plan::rows;
    use super::*;

    use proptest::prelude::*;

    fn figures(iops: f64, cpu_us_per_io: f64) -> Figures {
        Figures { iops, cpu_us_per_io, ..Figures::default() }
    }

    #[test]
    fn interval_decides_a_claim() {
        let rows = rows();
        let row = &rows[0];
        // The median is 6.5 times, which is the target; one pair of five was at 1.
        let vlane = [700.0, 650.0, 650.0, 660.0, 100.0].map(|iops| figures(iops, 1.0)).to_vec();
        let measured = Measured { rounds: vec![vlane, vec![figures(100.0, 8.0); 5]] };
        let verdicts: Vec<_> =
            row.claims.iter().map(|claim| judge(row, claim, &measured)).collect();
        let v = &verdicts[0];
        assert_eq!((v.ratio, v.lowest, v.highest, v.met), (6.5, 1.0, 7.0, Met::Unclear));
        assert_eq!(verdicts[1].met, Met::Yes);
        let result = RowResult {
            row: row.id,
            title: row.title,
            contenders: vec![],
            measured,
            verdicts,
            client_limited: vec!["vlane"],
        };
        let table = markdown(std::slice::from_ref(&result));
        assert_eq!(table.lines().count(), 4);
        assert!(table.lines().all(|line| line.matches('|').count() == 6), "{table}");
        assert!(!table.contains("target") && !table.to_lowercase().contains("met"), "{table}");
        assert!(
            table.contains("(1.00-7.00)") && table.contains("the client is the limit with vlane |"),
            "{table}"
        );
        assert!(targets(&[result]).contains("1 of 2 targets met, 1 unclear"));
        assert_eq!((ratio(0.0, 0.0), ratio(1.0, 2.0)), (1.0, 0.5));
    }

    #[test]
    fn too_few_pairs_meet_no_target() {
        let rows = rows();
        let measured =
            Measured { rounds: vec![vec![figures(900.0, 1.0); 4], vec![figures(100.0, 9.0); 4]] };
        let v = judge(&rows[0], &rows[0].claims[0], &measured);
        assert_eq!((v.met, told_ratio(&v).as_str()), (Met::Unclear, "9.00"));
    }

    #[test]
    fn zero_switches_beat_some_without_pairs() {
        let all = rows();
        let row = |id: &str| all.iter().find(|row| row.id == id).unwrap_or(&all[0]);
        let switches =
            |switches_per_io| Figures { iops: 1.0, switches_per_io, ..Figures::default() };
        let lanes = row("lanes-null");
        let measured = Measured {
            rounds: vec![vec![switches(0.0); 5], vec![switches(0.1); 5], vec![switches(0.2); 5]],
        };
        assert_eq!(judge(lanes, &lanes.claims[2], &measured).met, Met::Yes);
        let idle = row("idle");
        let one = |cpu_ms| Measured {
            rounds: vec![vec![Figures { cpu_ms, ..Figures::default() }], vec![]],
        };
        assert_eq!(judge(idle, &idle.claims[0], &one(0.0)).met, Met::Yes);
        assert_eq!(judge(idle, &idle.claims[0], &one(0.1)).met, Met::No);
    }

    #[test]
    fn vlane_is_compared_with_better_setting() {
        let rows = rows();
        let row = rows.iter().find(|row| row.id == "ram-read").unwrap_or(&rows[0]);
        let rounds = |iops: [f64; 4]| iops.map(|iops| vec![figures(iops, 1.0); 5]).to_vec();
        for (by_ring, by_threads, name) in [(100.0, 120.0, "threads"), (120.0, 100.0, "io_uring")] {
            let measured = Measured { rounds: rounds([240.0, by_ring, by_threads, 300.0]) };
            let v = judge(row, &row.claims[0], &measured);
            assert_eq!(v.over, Some(format!("qemu-storage-daemon, aio={name}")));
            assert!((v.ratio - 2.0).abs() < 1e-9);
            // The host's own loop is alone.
            assert_eq!(judge(row, &row.claims[1], &measured).over.as_deref(), Some("plain loop"));
        }
    }

    proptest! {
        #[test]
        fn the_median_alone_meets_nothing(of in prop::collection::vec(1.0..1e3_f64, 0..9), over in prop::collection::vec(1.0..1e3_f64, 0..9)) {
            let rows = rows();
            let (row, n) = (&rows[0], of.len().min(over.len()));
            let rounds = |iops: &[f64]| iops[..n].iter().map(|iops| figures(*iops, 1.0)).collect::<Vec<_>>();
            let v = judge(row, &row.claims[0], &Measured { rounds: vec![rounds(&of), rounds(&over)] });
            let Some(known) = v.difference else { return Err(TestCaseError::fail("two were compared")) };
            match v.met {
                Met::Yes => prop_assert!(n >= LEAST_PAIRS && known.low >= 6.0),
                Met::No => prop_assert!(n >= LEAST_PAIRS && known.high < 6.0),
                Met::Unclear => prop_assert!(n < LEAST_PAIRS || (known.low < 6.0 && known.high >= 6.0)),
            }
        }
    }
}
