//! The measurements, and their summaries: medians, and ratios to the host.

use std::collections::BTreeMap;

use serde::Serialize;
use vlane_cost::{Role, Sampler, ThreadFilter, Used};
use vlane_report::stats::Better;
use vlane_report::{Arms, Spread, spread, stats};
use vlane_testbed::fio::Outcome;

use super::columns::Column;
use super::loads::Load;

/// The guest's kernel and fio, and QEMU's emulation in their stead.
pub const GUEST: &str = "guest vCPUs";
/// vlane's lanes, QEMU's I/O threads and main loop, or qemu-storage-daemon.
pub const BACK_END: &str = "back end";
/// Threads of the host's kernel that work for the back end.
pub const KERNEL: &str = "kernel workers";
/// The parties that work for a request.
pub const PARTS: [&str; 3] = [GUEST, BACK_END, KERNEL];
/// Threads that the kernel makes inside a process that asked for work.
const WORKERS: [&str; 3] = ["iou-wrk-", "iou-sqp-", "vhost-"];

/// Work of one part, per request of fio's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct PartWork {
    /// CPU time in us.
    pub cpu_us: f64,
    /// Context switches.
    pub switches: f64,
    /// System calls, where they were counted.
    pub calls: Option<f64>,
}

/// Work for a request of fio's in the guest, on the average.
#[derive(Debug, Clone, PartialEq, Serialize)]
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
    pub exits: BTreeMap<String, f64>,
    /// By part.
    pub parts: BTreeMap<&'static str, PartWork>,
}

/// A sampler of QEMU's vCPUs, and of the process `server` that serves the disk: QEMU, too, or
/// another.
pub fn sampler(qemu: u32, server: u32) -> Sampler {
    let pid = |pid| i32::try_from(pid).unwrap_or(-1);
    Sampler::new(vec![
        Role::new(GUEST, pid(qemu), ThreadFilter::named(&["CPU "])),
        Role::new(KERNEL, pid(server), ThreadFilter::named(&WORKERS)),
        Role::new(BACK_END, pid(server), ThreadFilter::All),
        Role::new("the rest of QEMU", pid(qemu), ThreadFilter::All),
    ])
}

/// Work of the parts in `used`, of [`sampler`]'s, per request of `ios`.
pub fn parts(used: &Used, ios: f64) -> BTreeMap<&'static str, PartWork> {
    let work = |part| {
        let role = used.role(part)?;
        let calls = role.calls.as_ref().ok().map(|calls| *calls as f64 / ios);
        let cpu_us = role.cpu.as_secs_f64() * 1e6 / ios;
        Some((part, PartWork { cpu_us, switches: role.switches as f64 / ios, calls }))
    };
    PARTS.into_iter().filter_map(work).collect()
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sample {
    /// fio's result, or that of the driver.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Work for it; only in a guest.
    #[serde(flatten)]
    pub work: Option<Work>,
}

/// A load with all of its columns, each of which is an arm.
#[derive(Debug, Clone)]
pub struct LoadResult {
    /// The load.
    pub load: Load,
    /// The measurements.
    pub arms: Arms<Sample>,
}

impl LoadResult {
    /// Adds a round to the results of all loads.
    pub fn add(all: &mut Vec<Self>, load: Load, mut round: Vec<(Column, Sample)>) {
        round.sort_by_key(|(column, _)| *column);
        let at = all.iter().position(|result| result.load == load).unwrap_or_else(|| {
            let arms = Arms::once(round.iter().map(|(column, _)| column.name().to_owned()));
            all.push(Self { load, arms });
            all.len() - 1
        });
        for (arm, (_, sample)) in all[at].arms.0.iter_mut().zip(round) {
            arm.rounds.push(sample);
        }
    }

    /// The result of a load.
    pub fn find<'a>(all: &'a [Self], load: &Load) -> Option<&'a Self> {
        all.iter().find(|result| result.load == *load)
    }

    /// Rounds that were measured.
    pub fn rounds(&self) -> usize {
        self.arms.0.first().map_or(0, |arm| arm.rounds.len())
    }

    /// A figure of a column.
    pub fn spread(
        &self,
        column: Column,
        figure: impl Fn(&Sample) -> Option<f64>,
    ) -> Option<Spread> {
        spread(&self.arms.arm(column.name())?.rounds, figure)
    }

    fn all(&self, column: Column, of: fn(&Outcome) -> f64) -> Option<Vec<f64>> {
        let arm = self.arms.arm(column.name())?;
        Some(arm.rounds.iter().map(|sample| of(&sample.outcome)).collect())
    }

    /// Throughput of `column` in per cent of that of `base` in the same round: neighbours in time
    /// are compared.
    pub fn percent(&self, column: Column, base: Column) -> Option<Spread> {
        let iops = |column| self.all(column, |outcome| outcome.iops);
        let pairs = iops(column)?.into_iter().zip(iops(base)?);
        Spread::of(&pairs.map(|(iops, base)| iops / base * 100.0).collect::<Vec<_>>())
    }

    /// A figure's ratio with its noise, in the words of a sentence; none if it is inconclusive.
    pub fn told(&self, column: Column, base: Column, of: fn(&Outcome) -> f64) -> Option<String> {
        let (of, base) = (self.all(column, of)?, self.all(base, of)?);
        stats::paired(&of, &base, Better::Higher, stats::THRESHOLD).told()
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

    pub fn sample(load: &Load, column: Column, iops: f64) -> Sample {
        let exits = [("exits", 2.0), ("io_exits", 1.5)];
        let part = PartWork { cpu_us: 10.0, switches: 1.0, calls: Some(2.0) };
        let work = (column != Column::Host).then(|| Work {
            requests: f64::from(load.record_kib.div_ceil(128)),
            interrupts: 0.5,
            kicks: (column == Column::Vlane).then_some(0.25),
            signals: (column == Column::Vlane).then_some(0.125),
            exits: exits.map(|(reason, count)| (reason.to_owned(), count)).into(),
            parts: PARTS.map(|name| (name, part)).into(),
        });
        Sample { outcome: outcome(iops, load), work }
    }

    #[test]
    fn ratios_pair_figures_by_round() {
        let load = Load::fio(Pattern::RandomRead, 4);
        let mut all = Vec::new();
        // The machine slows down after the first round, whose order is turned round.
        for round in [
            [(Column::Vlane, 500.0), (Column::Host, 1000.0)],
            [(Column::Host, 200.0), (Column::Vlane, 100.0)],
        ] {
            let samples = round.map(|(column, iops)| (column, sample(&load, column, iops)));
            LoadResult::add(&mut all, load, samples.into());
        }
        let [result] = &all[..] else { panic!("{all:?}") };
        let ratio = result.percent(Column::Vlane, Column::Host).unwrap();
        assert_eq!((ratio.median, ratio.min, ratio.max, ratio.runs), (50.0, 50.0, 50.0, 2));
        assert_eq!(result.percent(Column::Ide, Column::Host), None);
        assert_eq!(
            (result.rounds(), result.told(Column::Vlane, Column::Host, |o| o.iops)),
            (2, None)
        );
        let most = result.spread(Column::Host, |sample| Some(sample.outcome.iops)).unwrap().max;
        assert_eq!(most, 1000.0);
    }

    #[test]
    fn uncounted_figures_are_not_zero() {
        let load = Load::fio(Pattern::RandomRead, 4);
        let mut all = Vec::new();
        LoadResult::add(&mut all, load, vec![(Column::Host, sample(&load, Column::Host, 100.0))]);
        let requests = |sample: &Sample| Some(sample.work.as_ref()?.requests);
        assert_eq!(all[0].spread(Column::Host, requests), None);
    }

    #[test]
    fn every_thread_has_one_part() {
        let pid = std::process::id();
        // This program is both: each of its threads has one role.
        let mut sampler = sampler(pid, pid);
        let before = sampler.take();
        let used = sampler.take().since(&before);
        let parts = parts(&used, 1.0);
        assert_eq!(
            parts.keys().copied().collect::<Vec<_>>(),
            ["back end", "guest vCPUs", "kernel workers"]
        );
        assert!(parts.values().all(|part| part.calls.is_none()));
        assert_eq!(used.role("the rest of QEMU").unwrap().threads, 0);
    }
}
