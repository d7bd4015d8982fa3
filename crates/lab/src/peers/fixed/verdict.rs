//! Whether vlane costs no more than qemu-storage-daemon at a load that both keep.

use serde::Serialize;

use super::Figures;
use vlane_report::Spread;
use vlane_report::stats;

/// What is achieved of a rate when it counts as reached.
pub const REACHED: f64 = 0.98;

/// What may not be more than qemu-storage-daemon's.
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
    /// What the same back end differs from itself by (A/A): the interval reaches from 1 / this to this.
    pub noise: f64,
}

impl Compared {
    /// At most the other's, or inside the A/A interval.
    pub fn holds(&self) -> bool {
        self.ratio.median <= self.noise.max(1.0)
    }

    /// More than the other's, but inside the A/A interval.
    pub fn is_by_noise(&self) -> bool {
        self.ratio.median > 1.0 && self.holds()
    }

    /// What it comes to, in a word or two.
    pub fn word(&self) -> &'static str {
        match (self.holds(), self.is_by_noise()) {
            (false, _) => "not met",
            (true, true) => "met, inside A/A",
            (true, false) => "met",
        }
    }
}

/// What became of a row.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// vlane, qemu-storage-daemon or both did not keep the rate: nothing is compared.
    NotReached,
    /// Each figure is at most the other's, or differs by no more than the same back end from itself.
    Met(Vec<Compared>),
    /// Some figure does not.
    NotMet(Vec<Compared>),
}

impl Verdict {
    /// What was compared.
    pub fn compared(&self) -> &[Compared] {
        match self {
            Self::NotReached => &[],
            Self::Met(all) | Self::NotMet(all) => all,
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

/// Whether a rate was kept.
pub(super) fn is_reached(rounds: &[Figures], rate: u32) -> bool {
    achieved(rounds) >= REACHED * f64::from(rate)
}

/// Judges rounds in which round i of both was measured one after the other. `resolution` is how exactly the client tells its median
/// latency: a share of it.
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
        let none = Spread { median: f64::INFINITY, min: f64::INFINITY, max: f64::INFINITY, runs: a.len() };
        let ratio = Spread::of(&ratios).unwrap_or(none);
        let noise = stats::halves(&a).max(stats::halves(&b)).max(1.0 + least);
        Compared { metric, ratio, noise }
    };
    let all = vec![compare(Metric::Cpu, 0.0), compare(Metric::P50, resolution)];
    if all.iter().all(Compared::holds) { Verdict::Met(all) } else { Verdict::NotMet(all) }
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
    fn a_rate_that_one_of_them_does_not_keep_is_not_compared() {
        let (kept, late) = (rounds(9_990.0, &[10.0; 3], 20.0), rounds(9_700.0, &[1.0; 3], 1.0));
        assert_eq!(judge(&late, &kept, 10_000, 0.0), Verdict::NotReached);
        assert_eq!(judge(&kept, &late, 10_000, 0.0), Verdict::NotReached);
        assert!(matches!(judge(&kept, &kept, 10_000, 0.0), Verdict::Met(_)));
        assert_eq!(judge(&[], &[], 10_000, 0.0), Verdict::NotReached);
    }

    #[test]
    fn more_than_the_noise_is_not_met_whichever_figure_it_is() {
        let qsd = rounds(1e4, &[10.0, 10.1, 10.2], 20.0);
        let not_met = |vlane: &[Figures]| matches!(judge(vlane, &qsd, 10_000, 0.016), Verdict::NotMet(_));
        assert!(not_met(&rounds(1e4, &[11.0, 11.0, 11.0], 20.0)));
        assert!(not_met(&rounds(1e4, &[5.0, 5.0, 5.0], 21.0)));
        assert!(!not_met(&rounds(1e4, &[5.0, 5.0, 5.0], 20.3)), "fio does not tell 1.5 % apart");
        assert!(!not_met(&rounds(1e4, &[10.0, 10.1, 10.2], 20.0)));
        // What was not measured is not met.
        assert!(not_met(&rounds(1e4, &[f64::NAN; 3], 20.0)));
    }

    proptest! {
        /// Whatever was measured: inside the A/A interval is never "not met", and beyond it with more than the other is never "met".
        #[test]
        fn inside_the_a_a_interval_is_never_not_met(
            a in prop::collection::vec((0.1..100.0_f64, 0.1..100.0_f64), 1..8),
            b in prop::collection::vec((0.1..100.0_f64, 0.1..100.0_f64), 1..8),
            resolution in 0.0..0.1_f64,
        ) {
            let figures = |all: &[(f64, f64)]| -> Vec<Figures> {
                all.iter().map(|(cpu_us, p50_us)| Figures { iops: 1e3, cpu_us: *cpu_us, p50_us: *p50_us, ..Figures::default() }).collect()
            };
            let n = a.len().min(b.len());
            let (vlane, other) = (figures(&a[..n]), figures(&b[..n]));
            let verdict = judge(&vlane, &other, 1_000, resolution);
            let inside = |c: &Compared| c.ratio.median <= 1.0 || (1.0 / c.noise..=c.noise).contains(&c.ratio.median);
            prop_assert!(verdict.compared().iter().all(|c| c.noise >= 1.0));
            prop_assert_eq!(matches!(verdict, Verdict::Met(_)), verdict.compared().iter().all(inside));
            // Against itself nothing is ever found.
            prop_assert!(matches!(judge(&vlane, &vlane, 1_000, resolution), Verdict::Met(_)));
        }
    }
}
