//! The measurements, and their summaries: medians, and ratios to the host.

use serde::{Deserialize, Serialize};

use super::columns::Column;
use super::loads::Load;
use vlane_report::Spread;
use vlane_report::stats::{self, Better, Verdict};
use vlane_testbed::fio::Outcome;

/// The party that works for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// The guest's vCPUs: the guest's kernel and fio, and what QEMU emulates in their stead.
    Guest,
    /// The back end: vlane's lanes, QEMU's I/O thread or main loop, qemu-storage-daemon.
    Backend,
    /// Threads of the host's kernel that work for the back end.
    Kernel,
}

/// All parts.
pub const PARTS: [Part; 3] = [Part::Guest, Part::Backend, Part::Kernel];

impl Part {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Guest => "guest vCPUs",
            Self::Backend => "back end",
            Self::Kernel => "kernel workers",
        }
    }
}

/// Work of one part, per request of fio's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct PartWork {
    /// CPU time in us.
    pub cpu_us: f64,
    /// Context switches.
    pub switches: f64,
    /// System calls, where they were counted.
    pub calls: Option<f64>,
}

/// Work for a request of fio's in the guest, on the average.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Requests that the guest's kernel sent to the disk, flushes included.
    pub requests: f64,
    /// Interrupts of the disk.
    pub interrupts: f64,
    /// Times that the guest woke vlane; only vlane counts them.
    pub kicks: Option<f64>,
    /// Times that vlane signalled the guest.
    pub signals: Option<f64>,
    /// Exits of the vCPUs to the host, by KVM's reasons, `exits` being all of them; empty where KVM
    /// does not count.
    pub exits: Vec<(String, f64)>,
    /// By part.
    pub parts: Vec<(Part, PartWork)>,
}

impl Work {
    /// Work of a part.
    pub fn part(&self, part: Part) -> PartWork {
        self.parts.iter().find(|(p, _)| *p == part).map(|(_, work)| *work).unwrap_or_default()
    }
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// In which pass.
    pub pass: usize,
    /// Of which load.
    pub load: Load,
    /// On which column.
    pub column: Column,
    /// fio's result.
    pub outcome: Outcome,
    /// Work for it; not on the host.
    pub work: Option<Work>,
}

/// All measurements of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// In the order of measuring.
    pub all: Vec<Measurement>,
}

impl Results {
    /// The measurements of a load on a column, by pass.
    pub fn of(&self, load: &Load, column: Column) -> impl Iterator<Item = &Measurement> {
        self.all.iter().filter(move |m| m.load == *load && m.column == column)
    }

    /// The spread of a figure.
    pub fn spread(
        &self,
        load: &Load,
        column: Column,
        figure: impl Fn(&Measurement) -> Option<f64>,
    ) -> Option<Spread> {
        let values: Vec<f64> = self.of(load, column).filter_map(figure).collect();
        Spread::of(&values)
    }

    /// Throughput in MB/s.
    pub fn mb(&self, load: &Load, column: Column) -> Option<Spread> {
        self.spread(load, column, |m| Some(m.outcome.mb_per_second))
    }

    /// IOPS of `column` and of `base` in the same passes: neighbours in time are compared.
    fn pairs(&self, load: &Load, column: Column, base: Column) -> Vec<(f64, f64)> {
        let pair = |m: &Measurement| {
            let other = self.of(load, base).find(|other| other.pass == m.pass)?;
            Some((m.outcome.iops, other.outcome.iops))
        };
        self.of(load, column).filter_map(pair).collect()
    }

    /// Throughput of `column` over that of `base`, in the same pass.
    pub fn ratio(&self, load: &Load, column: Column, base: Column) -> Option<Spread> {
        let ratios: Vec<f64> =
            self.pairs(load, column, base).into_iter().map(|(a, b)| a / b).collect();
        Spread::of(&ratios)
    }

    /// The same with what is known of the noise.
    pub fn verdict(&self, load: &Load, column: Column, base: Column) -> Verdict {
        let (a, b): (Vec<f64>, Vec<f64>) = self.pairs(load, column, base).into_iter().unzip();
        stats::paired(&a, &b, Better::Higher, stats::THRESHOLD)
    }

    /// Cost of a request, on the median.
    pub fn work(
        &self,
        load: &Load,
        column: Column,
        figure: impl Fn(&Work) -> Option<f64>,
    ) -> Option<Spread> {
        self.spread(load, column, |m| figure(m.work.as_ref()?))
    }

    /// The loads that were measured, in the order of measuring.
    pub fn loads(&self) -> Vec<Load> {
        let mut loads: Vec<Load> = Vec::new();
        for m in &self.all {
            if !loads.contains(&m.load) {
                loads.push(m.load);
            }
        }
        loads
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::float_cmp, reason = "tests")]
pub(super) mod tests {
    use super::super::loads::Pattern;
    use super::*;

    pub fn outcome(iops: f64, load: &Load) -> Outcome {
        let mb_per_second = iops * load.record() as f64 / 1e6;
        Outcome {
            ios: iops,
            iops,
            mb_per_second,
            seconds: 1.0,
            mean_us: 1e6 / iops,
            p50_us: 0.9e6 / iops,
            p99_us: 3e6 / iops,
            cpu_us: 4.0,
            switches: 0.5,
        }
    }

    pub fn measured(pass: usize, load: Load, column: Column, iops: f64) -> Measurement {
        let work = (column != Column::Host).then(|| Work {
            requests: f64::from(load.record_kib.div_ceil(128)),
            interrupts: 0.5,
            kicks: (column == Column::Vlane).then_some(0.25),
            signals: (column == Column::Vlane).then_some(0.125),
            exits: vec![("exits".into(), 2.0), ("io_exits".into(), 1.5)],
            parts: PARTS
                .iter()
                .map(|part| (*part, PartWork { cpu_us: 10.0, switches: 1.0, calls: Some(2.0) }))
                .collect(),
        });
        Measurement { pass, load, column, outcome: outcome(iops, &load), work }
    }

    #[test]
    fn ratios_pair_measurements_of_one_pass() {
        let load = Load::fio(Pattern::RandomRead, 4);
        let results = Results {
            all: vec![
                measured(0, load, Column::Host, 1000.0),
                measured(0, load, Column::Vlane, 500.0),
                // The machine slowed down meanwhile.
                measured(1, load, Column::Vlane, 100.0),
                measured(1, load, Column::Host, 200.0),
                measured(2, load, Column::Vlane, 999.0),
            ],
        };
        let ratio = results.ratio(&load, Column::Vlane, Column::Host).unwrap();
        assert_eq!((ratio.median, ratio.min, ratio.max, ratio.runs), (0.5, 0.5, 0.5, 2));
        assert_eq!(results.ratio(&load, Column::Ide, Column::Host), None);
        assert_eq!(results.mb(&load, Column::Host).unwrap().runs, 2);
        assert_eq!(results.loads(), [load]);
    }

    #[test]
    fn uncounted_figures_are_not_zero() {
        let load = Load::fio(Pattern::RandomRead, 4);
        let results = Results { all: vec![measured(0, load, Column::Host, 100.0)] };
        assert_eq!(results.work(&load, Column::Host, |w| Some(w.requests)), None);
    }
}
