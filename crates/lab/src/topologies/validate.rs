//! The scaling model held against measurements: calibrated with one lane, asked for two, compared with two.

use std::path::Path;
use std::time::Duration;

use vlane_driver::Workload;
use vlane_report::stats::median;

use super::cell::{Cell, CellPlan, Hog, measure};
use super::micro::Prices;
use super::model::{Lane, Mutex, Prediction, predict};
use super::{Kind, Placement, Subject, Topology};
use vlane_host::error::{ErrorKind, Result};
use vlane_host::interrupt::Interrupt;

/// The error that a prediction may have.
pub const TOLERANCE: f64 = 0.15;

/// What all measurements of a suite have in common.
#[derive(Debug, Clone, Copy)]
pub struct Bench<'a> {
    /// vlane's own file.
    pub program: &'a Path,
    /// A place for sockets.
    pub dir: &'a Path,
    /// The CPUs to use.
    pub cpus: &'a [usize],
    /// Requests out per job.
    pub depth: u16,
    /// Time before each measurement.
    pub ramp: Duration,
    /// Time of each.
    pub time: Duration,
    /// Where it learns that the user wants it to end.
    pub interrupt: &'a Interrupt,
}

impl Bench<'_> {
    /// Measures one cell.
    ///
    /// # Errors
    /// Those of [`measure`].
    pub fn cell(
        &self,
        subject: Subject,
        jobs: u16,
        workload: &Workload,
        work: (Duration, Duration),
        placement: Placement,
    ) -> Result<Cell> {
        let (depth, cpus) = (self.depth, self.cpus);
        let (ramp, time) = (self.ramp, self.time);
        let plan = CellPlan { subject, jobs, depth, workload, placement, cpus, work, ramp, time };
        // Another program may have had the CPUs for so long; not three times in a row, though.
        let mut left = 2;
        loop {
            match measure(&plan, self.program, self.dir, self.interrupt) {
                Err(error) if error.kind() == ErrorKind::Invalid && left > 0 => left -= 1,
                result => return result,
            }
        }
    }

    /// Measures one lane for the model: job and I/O thread on one CPU, the others busy with something else; or apart, the job on a CPU of
    /// its own and the thread on another that it shares with something else, as it would with other jobs.
    ///
    /// # Errors
    /// Those of [`measure`].
    pub fn calibrate(
        &self,
        placement: Placement,
        subject: Subject,
        workload: &Workload,
        work: (Duration, Duration),
    ) -> Result<Cell> {
        let busy = self.cpus.get(if placement == Placement::Apart { 1..2 } else { 1..self.cpus.len() });
        let _hogs = busy.unwrap_or(&[]).iter().map(|cpu| Hog::on(*cpu)).collect::<Result<Vec<_>>>()?;
        self.cell(subject, 1, workload, work, placement)
    }
}

/// The model's input, from measurements of one lane (medians of repeated ones).
pub fn lane(
    topology: Topology,
    kind: Kind,
    together: &[Cell],
    remote: &[Cell],
    prices: &Prices,
    cpus: usize,
    depth: u16,
) -> Lane {
    let of = |cells: &[Cell], pick: fn(&Cell) -> f64| median(&cells.iter().map(pick).collect::<Vec<_>>());
    // The CPU did nothing else, so a request's whole time was one or the other's.
    let whole = 1e9 / of(together, |c| c.iops);
    let (guest, device) = (of(together, |c| c.guest_cpu), of(together, |c| c.device_cpu));
    let share = if guest + device > 0.0 { guest / (guest + device) } else { 0.5 };
    let (guest_local, device_local) = (whole * share, whole * (1.0 - share));
    let (guest_remote, device_remote) = match remote.is_empty() {
        true => (guest_local, device_local),
        false => (of(remote, |c| c.guest_cpu), of(remote, |c| c.device_cpu)),
    };
    // A job that sleeps gets back at once what was answered meanwhile, at most all that it had out.
    let batch = 1.0 / of(together, |c| c.sleeps).max(1e-6);
    let mutex = (kind == Kind::Model && topology.has_mutex()).then(|| Mutex {
        taken: of(together, |c| c.lock.map_or(0.0, |l| l.taken)),
        handover: prices.handover.clone(),
        cpus: u32::try_from(cpus).unwrap_or(1),
        wake: prices.waking_there.unwrap_or(0.0),
        guards_queue: topology.shares_queue(),
    });
    Lane {
        guest_local,
        device_local,
        guest_remote,
        device_remote,
        batch: batch.clamp(1.0, f64::from(depth.max(1))),
        wake: prices.wake_there.unwrap_or(0.0),
        mutex,
    }
}

/// A prediction and what was measured.
#[derive(Debug, Clone)]
pub struct Check {
    /// The pattern's name.
    pub pattern: String,
    /// Which device, with which topology.
    pub subject: Subject,
    /// What it was predicted from.
    pub lane: Lane,
    /// For two jobs.
    pub predicted: Prediction,
    /// Requests per second of two jobs.
    pub measured: Vec<f64>,
    /// Requests per second of one job: what a model that knows nothing would double.
    pub single: Vec<f64>,
}

impl Check {
    /// How far off the prediction is: 0.1 is 10 % too much.
    pub fn error(&self) -> f64 {
        self.predicted.iops / median(&self.measured) - 1.0
    }
}

/// What is measured of each topology.
const WHAT: [&str; 3] = ["1 lane on one CPU", "1 lane across CPUs", "2 lanes"];

/// One pattern on one device: what is measured for it.
#[derive(Debug)]
pub struct Suite<'a> {
    /// The pattern's name.
    pub pattern: &'a str,
    /// Which device.
    pub kind: Kind,
    /// What its jobs do.
    pub workload: &'a Workload,
    /// What requests cost besides.
    pub work: (Duration, Duration),
    /// By what is measured (one lane on one CPU, one across CPUs, two lanes) and by topology.
    cells: [[Vec<Cell>; 3]; 3],
}

impl<'a> Suite<'a> {
    /// Nothing measured yet.
    pub fn new(pattern: &'a str, kind: Kind, workload: &'a Workload, work: (Duration, Duration)) -> Self {
        Self { pattern, kind, workload, work, cells: Default::default() }
    }

    /// The topologies that it has: vlane has no global mutex, so no Baseline.
    fn topologies(&self) -> &'static [usize] {
        if self.kind == Kind::Vlane { &[1, 2] } else { &[0, 1, 2] }
    }

    /// Measurements in one round; a step each.
    pub fn steps(&self) -> usize {
        self.topologies().len() * 3
    }

    /// One round: every measurement once, in turn or in reverse.
    ///
    /// # Errors
    /// Those of [`measure`].
    pub fn round(&mut self, bench: &Bench<'_>, reverse: bool, step: &mut dyn FnMut(String)) -> Result<()> {
        let mut order: Vec<(usize, usize)> =
            self.topologies().iter().flat_map(|t| (0..3).map(move |what| (*t, what))).collect();
        if reverse {
            order.reverse();
        }
        for (t, what) in order {
            let subject = self.kind.with(Topology::ALL[t]);
            let name = WHAT[what];
            step(format!("{}: {subject}, {name}", self.pattern));
            if what == 1 && bench.cpus.len() < 2 {
                continue;
            }
            let cell = match what {
                0 => bench.calibrate(Placement::Together, subject, self.workload, self.work),
                1 => bench.calibrate(Placement::Apart, subject, self.workload, self.work),
                _ => bench.cell(subject, 2, self.workload, self.work, Placement::Together),
            };
            self.cells[what][t].push(cell?);
        }
        Ok(())
    }

    /// Drops what was measured after these rounds.
    pub fn keep(&mut self, rounds: usize) {
        self.cells.iter_mut().flatten().for_each(|cells| cells.truncate(rounds));
    }

    /// Every cell: of which topology, what was measured, and its rounds.
    pub fn measured(&self) -> impl Iterator<Item = (Subject, &'static str, &[Cell])> {
        self.cells.iter().zip(WHAT).flat_map(move |(cells, what)| {
            let each = Topology::ALL.into_iter().zip(cells);
            each.map(move |(topology, cells)| (self.kind.with(topology), what, &cells[..]))
        })
    }

    /// The model's input for a topology; `None` if it was not measured.
    pub fn lane(&self, topology: Topology, prices: &Prices, cpus: usize, depth: u16) -> Option<Lane> {
        let t = Topology::ALL.iter().position(|other| *other == topology)?;
        let [together, remote, _] = &self.cells;
        let together = Some(&together[t]).filter(|cells| !cells.is_empty())?;
        Some(lane(topology, self.kind, together, &remote[t], prices, cpus, depth))
    }

    /// The share of its CPU that one lane got while it was measured on one, in the middle of all such measurements: much less than 1
    /// means that other programs ran.
    pub fn cpu_share(&self) -> Option<f64> {
        let shares: Vec<_> =
            self.cells[0].iter().flatten().map(|c| c.iops * (c.guest_cpu + c.device_cpu) / 1e9).collect();
        (!shares.is_empty()).then(|| median(&shares))
    }

    /// Predictions and measurements.
    pub fn checks(&self, prices: &Prices, cpus: usize, depth: u16) -> Vec<Check> {
        let check = |t: &usize| {
            let topology = Topology::ALL[*t];
            let lane = self.lane(topology, prices, cpus, depth)?;
            let iops = |cells: &[Cell]| cells.iter().map(|c| c.iops).collect::<Vec<_>>();
            Some(Check {
                pattern: self.pattern.to_string(),
                subject: self.kind.with(topology),
                predicted: predict(topology, &lane, 2, u32::try_from(cpus).unwrap_or(1)),
                lane,
                measured: iops(&self.cells[2][*t]),
                single: iops(&self.cells[0][*t]),
            })
        };
        self.topologies().iter().filter_map(check).collect()
    }
}
