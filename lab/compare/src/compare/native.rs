//! The back ends alone: driven natively, without any guest, beside fio on the host.
//!
//! The driver plays the guest's side of the virtqueues at the CPU's full speed. So the ratio to the
//! host is the back end's own, also where guests can only be emulated. Each back end is started
//! anew for this, on the image of its guest's disk (the guest is gone by then). The host's fio has
//! its own file of the same size.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use vlane_driver::{Limit, Pattern as DriverPattern, SessionOptions, Workload};
use vlane_error::counted;

use super::columns::Column;
use super::host::HostFio;
use super::jobs::CacheState;
use super::loads::{Load, Pattern, fio_table};
use super::plan::Often;
use super::scratch::Scratch;
use vlane_client::progress::Progress;
use vlane_report::Spread;
use vlane_report::stats::{self, Better, Verdict};
use vlane_testbed::error::{Error, ErrorKind, Result};
use vlane_testbed::interrupt::Interrupt;
use vlane_testbed::server::{Server, Storage};

/// Time before each measurement that does not count.
const RAMP: Duration = Duration::from_millis(100);
/// Starting and ending a back end or fio.
const AROUND: Duration = Duration::from_millis(400);

/// Subject of a row: a load, from so many threads on so many queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NativeLoad {
    /// The load.
    pub load: Load,
    /// Threads, each with a queue of its own.
    pub jobs: u16,
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct NativeMeasurement {
    /// In which pass.
    pub pass: usize,
    /// Of which load.
    pub load: NativeLoad,
    /// On which back end, or on the host.
    pub column: Column,
    /// Requests per second.
    pub iops: f64,
    /// MB (10^6 bytes) per second.
    pub mb_per_second: f64,
    /// CPU time in us per request: of the back end with its kernel workers, or of the host's fio.
    pub cpu_us: f64,
    /// Context switches of the same, per request.
    pub switches: f64,
}

/// The rows.
pub fn loads() -> Vec<NativeLoad> {
    let mut all = vec![NativeLoad { load: Load::iozone(Pattern::RandomRead, 4), jobs: 1 }];
    all.extend(fio_table().map(|load| NativeLoad { load, jobs: 1 }));
    all.extend(fio_table()[..2].iter().map(|load| NativeLoad { load: *load, jobs: 2 }));
    all
}

impl NativeLoad {
    /// True if conclusions are about it: 4K random reads, many in parallel.
    pub fn decides(&self) -> bool {
        self.load == Load::fio(Pattern::RandomRead, 4)
    }

    /// For people.
    pub fn name(&self) -> String {
        let jobs = if self.jobs > 1 { format!(", {} jobs", self.jobs) } else { String::new() };
        format!(
            "{}K {}, depth {}{jobs}",
            self.load.record_kib,
            self.load.long_pattern(),
            self.load.depth
        )
    }
}

/// Requirements.
#[derive(Debug)]
pub struct Native<'a> {
    /// vlane's own program.
    pub vlane: &'a Path,
    /// qemu-storage-daemon, if it is there.
    pub storage_daemon: Option<PathBuf>,
    /// Where the images are.
    pub scratch: &'a Scratch,
    /// fio on the host.
    pub fio: HostFio<'a>,
    /// Time of each measurement.
    pub runtime: Duration,
    /// The page caches.
    pub cache: CacheState,
    /// Ends it.
    pub interrupt: &'a Interrupt,
}

impl Native<'_> {
    /// The columns that take part.
    pub fn columns(&self) -> Vec<Column> {
        let daemon = self.storage_daemon.is_some().then_some(Column::StorageDaemon);
        [Column::Host, Column::Vlane].into_iter().chain(daemon).collect()
    }

    /// Measurements that are made.
    pub fn steps(&self, often: Often) -> usize {
        let times = |load: &NativeLoad| if load.decides() { often.turns } else { often.passes };
        loads().iter().map(times).sum::<usize>() * self.columns().len()
    }

    /// How long they take, about.
    pub fn estimate(&self, often: Often) -> Duration {
        (self.runtime + RAMP + AROUND) * u32::try_from(self.steps(often)).unwrap_or(0)
    }

    /// Measures, in turns.
    ///
    /// # Errors
    /// Those of starting back ends and of driving them; [`ErrorKind::Interrupted`].
    pub fn run(&self, often: Often, progress: &mut Progress) -> Result<Vec<NativeMeasurement>> {
        let mut all = Vec::new();
        for pass in 0..often.turns.max(often.passes) {
            for (index, load) in loads().into_iter().enumerate() {
                if pass >= often.passes && !load.decides() {
                    continue;
                }
                let mut order = self.columns();
                if (pass + index) % 2 == 1 {
                    order.reverse();
                }
                for column in order {
                    self.interrupt.check()?;
                    progress.step(format!("without a guest: {}, {}", load.name(), column.name()));
                    all.push(self.measure(pass, load, column)?);
                }
            }
        }
        Ok(all)
    }

    fn measure(&self, pass: usize, load: NativeLoad, column: Column) -> Result<NativeMeasurement> {
        let storage_path = self.scratch.image(column.id());
        let storage =
            Storage::File { path: &storage_path, direct: self.cache == CacheState::Direct };
        let dir = self.scratch.dir();
        let mut server = match (column, &self.storage_daemon) {
            (Column::Vlane, _) => {
                let queues = load.jobs.to_string();
                Server::vlane(self.vlane, dir, storage, &[], &["--queues", queues.as_str()])?
            }
            (Column::StorageDaemon, Some(program)) => {
                Server::qemu_storage_daemon(program, dir, storage, &[], load.jobs)?
            }
            _ => {
                let outcome = self.fio.run(&load.load, load.jobs)?;
                return Ok(NativeMeasurement {
                    pass,
                    load,
                    column: Column::Host,
                    iops: outcome.iops,
                    mb_per_second: outcome.mb_per_second,
                    cpu_us: outcome.cpu_us,
                    switches: outcome.switches,
                });
            }
        };
        let block = load.load.record_kib << 10;
        let options = SessionOptions {
            queues: load.jobs,
            depth: load.load.depth,
            data: block,
            write_cache: Some(true),
            ..SessionOptions::default()
        };
        let session = server.connect(&options)?;
        let pattern: DriverPattern = load
            .load
            .pattern
            .fio()
            .parse()
            .map_err(|why: String| Error::new(ErrorKind::Invalid, why))?;
        let workload = Workload {
            pattern,
            block,
            size: Some(self.fio.settings.old_bytes),
            limit: Limit::Time(self.runtime),
            ramp: RAMP,
            ..Workload::default()
        };
        let report =
            vlane_driver::run(session, &workload, &mut |_| match self.interrupt.is_raised() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            })?;
        self.interrupt.check()?;
        if report.errors.total() > 0 {
            let failed = format!(
                "{}: {} of {} failed",
                server.name(),
                report.errors.total(),
                counted(report.ios, "request")
            );
            return Err(Error::new(ErrorKind::Process, failed));
        }
        let used = report.backend.as_ref();
        Ok(NativeMeasurement {
            pass,
            load,
            column,
            iops: report.iops,
            mb_per_second: report.mb_per_second,
            cpu_us: used.map_or(f64::NAN, |used| used.cpu_us_per_io),
            switches: used.map_or(f64::NAN, |used| used.switches_per_io),
        })
    }
}

/// The spread of a figure of a row.
pub fn spread(
    all: &[NativeMeasurement],
    load: NativeLoad,
    column: Column,
    figure: impl Fn(&NativeMeasurement) -> f64,
) -> Option<Spread> {
    let values: Vec<f64> =
        all.iter().filter(|m| m.load == load && m.column == column).map(figure).collect();
    Spread::of(&values)
}

/// IOPS of `column` and of `base` in the same passes.
fn pairs(
    all: &[NativeMeasurement],
    load: NativeLoad,
    column: Column,
    base: Column,
) -> Vec<(f64, f64)> {
    let of = |wanted: Column| all.iter().filter(move |m| m.load == load && m.column == wanted);
    of(column)
        .filter_map(|m| Some((m.iops, of(base).find(|other| other.pass == m.pass)?.iops)))
        .collect()
}

/// IOPS of `column` over those of `base` in the same pass.
pub fn ratio(
    all: &[NativeMeasurement],
    load: NativeLoad,
    column: Column,
    base: Column,
) -> Option<Spread> {
    let ratios: Vec<f64> = pairs(all, load, column, base).into_iter().map(|(a, b)| a / b).collect();
    Spread::of(&ratios)
}

/// The same with what is known of the noise.
pub fn verdict(
    all: &[NativeMeasurement],
    load: NativeLoad,
    column: Column,
    base: Column,
) -> Verdict {
    let (a, b): (Vec<f64>, Vec<f64>) = pairs(all, load, column, base).into_iter().unzip();
    stats::paired(&a, &b, Better::Higher, stats::THRESHOLD)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::float_cmp, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn rows_are_unique_with_driver_patterns() {
        let all = loads();
        for (i, row) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|other| other.name() != row.name()), "{}", row.name());
            assert!(row.load.pattern.fio().parse::<DriverPattern>().is_ok());
            // Rows that need a file system, and a flush at the end, cannot be compared with a bare
            // disk.
            assert!(row.load.pattern != Pattern::Write);
            assert!(
                row.load.suite == super::super::loads::Suite::Fio || !row.load.pattern.writes()
            );
        }
        assert!(all.iter().any(|row| row.jobs == 2));
    }

    #[test]
    fn ratios_come_from_one_pass() {
        let load = loads()[0];
        let one = |pass, column, iops| NativeMeasurement {
            pass,
            load,
            column,
            iops,
            mb_per_second: 1.0,
            cpu_us: 1.0,
            switches: 0.0,
        };
        let all = [
            one(0, Column::Host, 100.0),
            one(0, Column::Vlane, 80.0),
            one(1, Column::Vlane, 8.0),
            one(1, Column::Host, 10.0),
        ];
        let ratio = ratio(&all, load, Column::Vlane, Column::Host).unwrap();
        assert_eq!((ratio.median, ratio.min, ratio.runs), (0.8, 0.8, 2));
        assert_eq!(spread(&all, load, Column::Host, |m| m.iops).unwrap().max, 100.0);
        assert!(spread(&all, load, Column::Ide, |m| m.iops).is_none());
    }
}
