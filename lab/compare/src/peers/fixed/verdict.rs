//! Decides if vlane costs no more than qemu-storage-daemon at a load that both keep.

use serde::Serialize;

use super::Figures;
use vlane_report::Spread;
use vlane_report::judge::Met;
use vlane_report::stats::{self, Better, Outcome, Side, THRESHOLD};

/// Part of a rate to achieve for it to count as reached.
pub const REACHED: f64 = 0.98;

/// Figures that must not exceed qemu-storage-daemon's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// CPU time of the back end, and of QEMU where that is the guest, per request.
    Cpu,
    /// The median latency.
    P50,
}

/// One figure of vlane's held against qemu-storage-daemon's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Compared {
    /// Which.
    pub metric: Metric,
    /// The ratio, round by round.
    pub ratio: Spread,
    /// Knowledge of the true ratio.
    pub difference: stats::Verdict,
}

impl Compared {
    /// Verdict by the interval.
    pub fn held(&self) -> Met {
        match (self.difference.outcome, self.difference.side(1.0)) {
            (Outcome::Better | Outcome::Same, _) | (_, Side::Below) => Met::Yes,
            (Outcome::Worse, _) => Met::No,
            _ => Met::Unclear,
        }
    }

    /// The verdict in a word or two.
    pub fn word(&self) -> &'static str {
        match (self.held(), self.difference.side(1.0)) {
            (Met::Yes, _) => "met",
            (Met::No, _) => "not met",
            (Met::Unclear, Side::Unclear) => "no difference seen",
            (Met::Unclear, _) => "undecided",
        }
    }
}

/// Result of a row.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// vlane, qemu-storage-daemon or both did not keep the rate: nothing is compared.
    NotReached,
    /// Each figure is at most the other's.
    Met(Vec<Compared>),
    /// No figure is known to be more, but of some it is not known that it is not.
    Undecided(Vec<Compared>),
    /// Some figure is more.
    NotMet(Vec<Compared>),
}

impl Verdict {
    /// The compared figures.
    pub fn compared(&self) -> &[Compared] {
        match self {
            Self::NotReached => &[],
            Self::Met(all) | Self::Undecided(all) | Self::NotMet(all) => all,
        }
    }

    /// One of them.
    pub fn of(&self, metric: Metric) -> Option<&Compared> {
        self.compared().iter().find(|compared| compared.metric == metric)
    }
}

/// Requests per second that were achieved in the middle of the rounds.
pub(super) fn achieved(rounds: &[Figures]) -> f64 {
    vlane_report::stats::median(&rounds.iter().map(|figures| figures.iops).collect::<Vec<_>>())
}

/// True if a rate was kept.
pub(super) fn is_reached(rounds: &[Figures], rate: u32) -> bool {
    achieved(rounds) >= REACHED * f64::from(rate)
}

/// Judges rounds in which round i of both was measured one after the other. `resolution` is how
/// exactly the client tells its median latency: a share of it.
pub(super) fn judge(vlane: &[Figures], other: &[Figures], rate: u32, resolution: f64) -> Verdict {
    if !(is_reached(vlane, rate) && is_reached(other, rate)) {
        return Verdict::NotReached;
    }
    let compare = |metric: Metric, least: f64| {
        let value = |figures: &Figures| match metric {
            Metric::Cpu => figures.cpu_us,
            Metric::P50 => figures.p50_us,
        };
        let (a, b): (Vec<f64>, Vec<f64>) =
            (vlane.iter().map(value).collect(), other.iter().map(value).collect());
        let ratios: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a / b).collect();
        // No figure at all is no reason for praise.
        let none =
            Spread { median: f64::INFINITY, min: f64::INFINITY, max: f64::INFINITY, runs: a.len() };
        let ratio = Spread::of(&ratios).unwrap_or(none);
        let difference = stats::paired(&a, &b, Better::Lower, THRESHOLD.max(least));
        Compared { metric, ratio, difference }
    };
    let all = vec![compare(Metric::Cpu, 0.0), compare(Metric::P50, resolution)];
    let some = |wanted: Met| all.iter().any(|compared| compared.held() == wanted);
    match (some(Met::No), some(Met::Unclear)) {
        (true, _) => Verdict::NotMet(all),
        (false, true) => Verdict::Undecided(all),
        (false, false) => Verdict::Met(all),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rounds(iops: f64, cpu: &[f64], p50: f64) -> Vec<Figures> {
        cpu.iter()
            .map(|cpu_us| Figures { iops, cpu_us: *cpu_us, p50_us: p50, ..Figures::default() })
            .collect()
    }

    #[test]
    fn missed_rate_is_not_compared() {
        let (kept, late) = (rounds(9_990.0, &[10.0; 5], 20.0), rounds(9_700.0, &[1.0; 5], 1.0));
        assert_eq!(judge(&late, &kept, 10_000, 0.0), Verdict::NotReached);
        assert_eq!(judge(&kept, &late, 10_000, 0.0), Verdict::NotReached);
        assert!(matches!(judge(&kept, &kept, 10_000, 0.0), Verdict::Met(_)));
        assert_eq!(judge(&[], &[], 10_000, 0.0), Verdict::NotReached);
    }

    #[test]
    fn higher_cost_is_missed_only_by_interval() {
        let qsd = rounds(1e4, &[10.0, 10.1, 10.2, 10.0, 10.1], 20.0);
        let held = |cpu: &[f64], p50: f64, resolution: f64| {
            judge(&rounds(1e4, cpu, p50), &qsd, 10_000, resolution)
        };
        assert!(matches!(held(&[11.0; 5], 20.0, 0.016), Verdict::NotMet(_)));
        assert!(matches!(held(&[5.0; 5], 22.0, 0.016), Verdict::NotMet(_)));
        assert!(matches!(held(&[5.0; 5], 20.3, 0.016), Verdict::Met(_)), "1.5 % do not matter");
        assert!(
            matches!(held(&[5.0; 5], 22.0, 0.2), Verdict::Met(_)),
            "the client does not tell 10 % apart"
        );
        // The median is 1.09 times the other's; the interval is not above it.
        let scattered = held(&[11.0, 11.0, 11.0, 9.0, 8.0], 20.0, 0.016);
        assert!(
            matches!(&scattered, Verdict::Undecided(all) if all[0].word() == "no difference seen"),
            "{scattered:?}"
        );
        // Four rounds decide nothing, and what was not measured is not met.
        assert!(matches!(
            judge(&rounds(1e4, &[5.0; 4], 9.0), &qsd, 10_000, 0.0),
            Verdict::Undecided(_)
        ));
        assert!(matches!(held(&[f64::NAN; 5], 20.0, 0.016), Verdict::Undecided(_)));
    }

    proptest! {
        /// For all measurements, only the interval decides if a goal is met, and a contender never
        /// costs more than itself.
        #[test]
        fn a_verdict_is_the_intervals(
            a in prop::collection::vec((0.1..100.0_f64, 0.1..100.0_f64), 1..9),
            b in prop::collection::vec((0.1..100.0_f64, 0.1..100.0_f64), 1..9),
            resolution in 0.0..0.1_f64,
        ) {
            let figures = |all: &[(f64, f64)]| -> Vec<Figures> {
                all.iter().map(|(cpu_us, p50_us)| Figures { iops: 1e3, cpu_us: *cpu_us, p50_us: *p50_us, ..Figures::default() }).collect()
            };
            let n = a.len().min(b.len());
            let (vlane, other) = (figures(&a[..n]), figures(&b[..n]));
            let verdict = judge(&vlane, &other, 1_000, resolution);
            let beyond = 1.0 + THRESHOLD.max(resolution);
            for compared in verdict.compared() {
                let known = compared.difference;
                match compared.held() {
                    Met::Yes => prop_assert!(n >= stats::LEAST_PAIRS && known.low < 1.0 + 1e-9 || known.high <= beyond),
                    Met::No => prop_assert!(n >= stats::LEAST_PAIRS && known.low > 1.0),
                    Met::Unclear => prop_assert!(n < stats::LEAST_PAIRS || known.high >= 1.0),
                }
            }
            let not_met = verdict.compared().iter().any(|compared| compared.held() == Met::No);
            prop_assert_eq!(matches!(verdict, Verdict::NotMet(_)), not_met);
            prop_assert!(!matches!(judge(&vlane, &vlane, 1_000, resolution), Verdict::NotMet(_)));
        }
    }
}
