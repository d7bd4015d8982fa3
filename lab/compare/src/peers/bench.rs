//! The measurements: the CPUs, the images, the programs, and contenders that have turns.

use std::io::Write;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vlane_bench::blkio;
use vlane_cost::instructions::{self, Instructions};
use vlane_cost::{Role, Sampler, ThreadFilter};
use vlane_driver::{Limit, Pattern, SessionOptions, Workload};
use vlane_error::counted;
use vlane_guest::{BlkioFio, Host};
use vlane_report::{Arms, figure, usable_cpus};
use vlane_testbed::{
    Call, Context, Error, ErrorKind, Fail, Image, Machines, Maker, Place, Progress, Result, Server,
    Storage, image, in_turns, usage,
};

use super::guest::InGuest;
use super::plan::{Client, Contender, IOPS, Load, Medium, Row, rows};
use super::{Options, Outcome, Sample, baseline, per_request};

/// Quiet before an idle session is watched, and the time that it is.
const IDLE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(10));
/// Time that a measurement takes beyond its own, about: start of a back end, connection, drain.
const AROUND: Duration = Duration::from_millis(500);
/// A rate of which less than this is achieved in the first round is not tried again.
const HOPELESS: f64 = 0.9;
/// Sizes of the images on the RAM disk and on the disk, and of the null devices.
const RAM_BYTES: u64 = 1 << 30;
const DISK_BYTES: u64 = 2 << 30;
const NULL_BYTES: u64 = 16 << 30;
/// How long the image of a back end that has ended may be locked, and when to look again.
const FREE: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(20);

/// Requirements of the measurements.
pub(super) struct Bench<'a> {
    options: &'a Options,
    call: &'a Call<'a>,
    /// The guest of a group of rows, which lives as long as they are measured.
    guest: Option<(&'static str, InGuest<'a>)>,
    makers: Vec<(Machines, Maker)>,
    blkio: Option<BlkioFio>,
    fio: Option<PathBuf>,
    qsd: Option<PathBuf>,
    /// The CPUs of back end and client.
    cpus: (usize, usize),
    images: Vec<(Medium, Image)>,
    /// For sockets and results.
    dir: TempDir,
    pub(super) progress: Progress,
    pub(super) outcome: Outcome,
}

impl<'a> Bench<'a> {
    /// Makes ready what the wanted rows need, and gives those that can be measured. All that can be
    /// missing is looked for before the images are written.
    pub(super) fn new(options: &'a Options, call: &'a Call<'a>) -> Result<(Self, Vec<Row>)> {
        let rows = chosen(options)?;
        let host = options.installs.host()?;
        let needs = |wanted: fn(&Contender) -> bool, name| {
            let mut contenders = rows.iter().flat_map(|row| &row.contenders);
            contenders.any(|(_, who)| wanted(who)).then(|| host.program(name)).transpose()
        };
        let mut bench = Self {
            options,
            call,
            guest: None,
            makers: Vec::new(),
            blkio: None,
            fio: needs(|who| *who == Contender::Fio, "fio")?,
            qsd: needs(|who| matches!(who, Contender::Qsd(_)), "qemu-storage-daemon")?,
            cpus: cpus()?,
            images: Vec::new(),
            dir: TempDir::with_prefix("vlane-peers-")
                .context(ErrorKind::Io, || "cannot make a directory for temporary files")?,
            progress: Progress::silent(),
            outcome: Outcome::default(),
        };
        host.program("taskset")?;
        let rows = bench.clients(rows, &host)?;
        bench.write_images(&rows)?;
        let steps = rows.iter().map(|row| row.contenders.len() * bench.rounds(row)).sum();
        let (time, ramp) = options.times();
        bench.progress = Progress::new(steps).expecting(time + ramp + AROUND);
        Ok((bench, rows))
    }

    /// Looks for the clients of the rows. Rows of a missing one are left out, unless they were
    /// named.
    fn clients(&mut self, mut rows: Vec<Row>, host: &Host) -> Result<Vec<Row>> {
        let clients = [
            (Client::Blkio, "fio with libblkio as a second client"),
            (Client::Guest(Machines::Uml), "a guest of User-Mode Linux"),
            (Client::Guest(Machines::Qemu), "a guest of QEMU"),
        ];
        for (client, name) in clients {
            if rows.iter().all(|row| row.client != client) {
                continue;
            }
            // At a given rate it is the first client.
            let is_vital = client == Client::Blkio && self.options.fixed_load;
            match self.find(client, host) {
                Err(error) if self.options.rows.is_empty() && !is_vital => {
                    self.outcome.missing.push(format!("{name}: {error}"));
                    rows.retain(|row| row.client != client);
                }
                found => found?,
            }
        }
        if let (true, Err(reason)) = (self.options.fixed_load, instructions::available()) {
            self.outcome.missing.push(format!("instructions: {reason}"));
        }
        Ok(rows)
    }

    fn find(&mut self, client: Client, host: &Host) -> Result<()> {
        match client {
            Client::Driver => {}
            Client::Blkio => {
                let fio = BlkioFio::find(host)?;
                let version = fio.version().map(|version| ("fio with libblkio".into(), version));
                self.outcome.versions.extend(version);
                self.blkio = Some(fio);
            }
            Client::Guest(machines) => {
                host.program("fio")?;
                let maker = Maker::find(host, machines)?;
                self.outcome.versions.push(("guest".into(), maker.describe()));
                self.outcome.emulated |= maker.is_emulated();
                self.makers.push((machines, maker));
            }
        }
        Ok(())
    }

    /// Writes the images that the rows need, after it has found places for all.
    fn write_images(&mut self, rows: &[Row]) -> Result<()> {
        let Options { ram_dir, disk_dir, .. } = self.options;
        let media = [
            (Medium::Ram, image::Medium::Ram, ram_dir, RAM_BYTES, "--ram-dir"),
            (Medium::Disk, image::Medium::Disk, disk_dir, DISK_BYTES, "--disk-dir"),
        ];
        let mut places = Vec::new();
        for (medium, kind, dir, bytes, option) in media {
            if rows.iter().any(|row| row.medium == medium) {
                places.push((medium, Place::find(kind, dir.as_deref(), bytes, option)?, bytes));
            }
        }
        if !places.is_empty() {
            // The output may have no reader.
            let _ = writeln!(std::io::stderr(), "writing the images");
        }
        for (medium, place, bytes) in places {
            self.images.push((medium, place.image(bytes, self.call.interrupt)?));
        }
        Ok(())
    }

    fn rounds(&self, row: &Row) -> usize {
        if row.load.idle { 1 } else { self.options.pairs }
    }

    /// All rounds of a row. A row that cannot reach its rate has fewer.
    pub(super) fn row(&mut self, row: &Row) -> Result<Arms<Sample>> {
        if self.guest.as_ref().is_some_and(|(group, _)| *group != row.group.0) {
            self.guest = None;
        }
        let rounds = self.rounds(row);
        let mut arms = Arms::once(row.contenders.iter().map(|(name, _)| name.clone()));
        for round in 0..rounds {
            in_turns(&mut arms, round, |place, name| {
                let label = format!("{}: {name}, {} of {rounds}", row.id, round + 1);
                self.progress.step(&label);
                let sample = self.measure(row, place);
                // The user's interrupt is the reason, before any other failure.
                self.call.interrupt.check()?;
                sample.map_err(|e| Error::caused_by(e.kind(), label, e))
            })?;
            let least = HOPELESS * f64::from(row.load.rate.unwrap_or(0));
            let is_hopeless = |is_daemon: bool| {
                let mut side = (0..arms.0.len()).filter(|place| row.is_daemon(*place) == is_daemon);
                side.all(|place| IOPS.median(&arms.0[place].rounds) < least)
            };
            if is_hopeless(true) || is_hopeless(false) {
                let left = (rounds - 1 - round) * arms.0.len();
                self.progress.add_steps(-isize::try_from(left).unwrap_or(0));
                break;
            }
        }
        Ok(arms)
    }

    /// One measurement.
    fn measure(&mut self, row: &Row, place: usize) -> Result<Sample> {
        let cpus = if row.load.pinned { vec![self.cpus.0] } else { Vec::new() };
        let (time, ramp) = self.options.times();
        match (row.client, &row.contenders[place].1) {
            (Client::Guest(machines), _) => {
                if self.guest.is_none() {
                    self.guest = Some((row.group.0, self.boot(row, machines)?));
                }
                let (_, guest) = self.guest.as_mut().ok_or_else(|| missing("the guest"))?;
                guest.measure(place, &row.load, self.options)
            }
            (_, Contender::Loop) => {
                baseline::plain_loop(self.image(row.medium)?, &row.load, &cpus, time)
            }
            (_, Contender::Fio) => {
                let program = self.fio.as_deref().ok_or_else(|| missing("fio"))?;
                let (dir, image) = (self.dir.path(), self.image(row.medium)?);
                baseline::fio(
                    program,
                    dir,
                    image,
                    &row.load,
                    &cpus,
                    (ramp, time),
                    self.call.interrupt,
                )
            }
            (Client::Blkio, _) => self.by_fio(&self.start(row, place, &cpus)?, &row.load),
            _ => self.drive(self.start(row, place, &cpus)?, row),
        }
    }

    /// A guest with a disk for each contender.
    fn boot(&mut self, row: &Row, machines: Machines) -> Result<InGuest<'a>> {
        let maker = self.makers.iter().find(|(of, _)| *of == machines);
        let (_, maker) = maker.ok_or_else(|| missing("the guest"))?;
        self.progress.detail("a guest boots");
        let servers = (0..row.contenders.len()).map(|place| self.start(row, place, &[]));
        InGuest::boot(maker, machines, servers.collect::<Result<_>>()?, self.call.interrupt)
    }

    fn image(&self, medium: Medium) -> Result<&Path> {
        let image = self.images.iter().find(|(of, _)| *of == medium);
        Ok(image.ok_or_else(|| missing("the image"))?.1.path())
    }

    /// Starts a back end.
    fn start(&self, row: &Row, place: usize, cpus: &[usize]) -> Result<Server> {
        let storage = match row.medium {
            Medium::Null { us } => {
                Storage::Null { bytes: NULL_BYTES, latency: Duration::from_micros(us) }
            }
            medium => Storage::File { path: self.image(medium)?, direct: medium == Medium::Disk },
        };
        let dir = self.dir.path();
        when_free(|| match (&row.contenders[place].1, &self.qsd) {
            (Contender::Vlane(words), _) => {
                Server::vlane(self.call.vlane, dir, storage, cpus, words)
            }
            (Contender::Qsd(aio), Some(qsd)) => {
                Server::qemu_storage_daemon(*aio, qsd, dir, storage, cpus, row.load.jobs)
            }
            _ => Err(missing("qemu-storage-daemon")),
        })
    }

    /// A back end driven by fio with libblkio: random reads of 4K, made visible one by one. The
    /// back end's use is seen from outside, in the middle of the time.
    fn by_fio(&self, server: &Server, load: &Load) -> Result<Sample> {
        let fio = self.blkio.as_ref().ok_or_else(|| missing("fio with libblkio"))?;
        let depth = NonZeroU16::new(load.depth).unwrap_or(NonZeroU16::MIN);
        let asked = vlane_bench::Load { depth, batch: 1, ..vlane_bench::Load::named("load") };
        let times = self.options.times();
        let mut words = blkio::options(&asked, server.socket(), times.0, times.1);
        words.extend(load.rate.map(|rate| format!("--rate_iops={rate}")));
        let roles = vec![Role::new("back end", server.pid().cast_signed(), ThreadFilter::All)];
        let mut counters = Instructions::open(&roles).ok();
        let mut sampler = Sampler::new(roles);
        let mut looks = Vec::new();
        let mut look = || looks.push((sampler.take(), counters.as_mut().map(Instructions::read)));
        let cpus = [self.cpus.1];
        let run = blkio::measure(fio, words, times, &cpus, &mut look, self.call.interrupt)?;
        let [(before, counted), (after, counted_after)] = &looks[..] else {
            return ErrorKind::Process.fail("fio ended before its time");
        };
        let used = after.since(before);
        let (cpu_us, switches_per_io) = per_request(&used, 0, run.iops)?;
        let instructions = counted.zip(*counted_after).map(|(before, after)| {
            after.saturating_sub(before) as f64 / (run.iops * used.wall.as_secs_f64()).max(1e-9)
        });
        Ok(Sample {
            iops: run.iops,
            mb_per_second: run.mb_per_second,
            p50_us: run.p50_us,
            p99_us: run.p99_us,
            cpu_us,
            backend_cpu_us: cpu_us,
            client_cpu_us: run.client_cpu_us_per_io,
            switches_per_io,
            instructions,
            ..Sample::default()
        })
    }

    /// A back end driven by our own driver.
    fn drive(&mut self, mut server: Server, row: &Row) -> Result<Sample> {
        let (load, interrupt) = (&row.load, self.call.interrupt);
        let session = server.connect(&SessionOptions {
            queues: load.jobs,
            depth: load.depth,
            data: load.block,
            // As a guest that mounts the device would have it: both flush on request.
            write_cache: (!matches!(row.medium, Medium::Null { .. })).then_some(true),
            ..SessionOptions::default()
        })?;
        if load.idle {
            let (used, _) =
                vlane_driver::idle(session, IDLE.0, IDLE.1, &mut |_| interrupt.going_on())?;
            let switches = used.switches as f64;
            return Ok(Sample { cpu_ms: used.cpu_seconds * 1e3, switches, ..Sample::default() });
        }
        let (time, ramp) = self.options.times();
        let workload = Workload {
            pattern: load
                .pattern
                .parse::<Pattern>()
                .map_err(|e| Error::new(ErrorKind::Invalid, e))?,
            block: load.block,
            limit: Limit::Time(time),
            ramp,
            wait: load.wait,
            cpus: if load.pinned { vec![self.cpus.1] } else { Vec::new() },
            ..Workload::default()
        };
        let report = vlane_driver::run(session, &workload, &mut |state| {
            self.progress.detail(&figure::with_unit(state.iops, "IOPS"));
            interrupt.going_on()
        })?;
        if report.errors.total() > 0 {
            let context =
                format!("{} of {} failed", report.errors.total(), counted(report.ios, "request"));
            return ErrorKind::Process.fail(context);
        }
        let unseen =
            || Error::new(ErrorKind::Process, "the back end's process cannot be looked at");
        let used = report.backend.ok_or_else(unseen)?;
        Ok(Sample {
            iops: report.iops,
            mb_per_second: report.mb_per_second,
            p50_us: report.latency.p50,
            p99_us: report.latency.p99,
            cpu_us: used.cpu_us_per_io,
            backend_cpu_us: used.cpu_us_per_io,
            switches_per_io: used.switches_per_io,
            client_cpu_us: report.driver_cpu_us_per_io,
            cpu_ms: used.cpu_seconds * 1e3,
            switches: used.switches as f64,
            ..Sample::default()
        })
    }
}

fn missing(what: &str) -> Error {
    Error::new(ErrorKind::Missing, format!("{what} is not there"))
}

/// The rows that are wanted.
fn chosen(options: &Options) -> Result<Vec<Row>> {
    let mut all = rows(options.fixed_load, &options.also);
    if let Some(unknown) =
        options.rows.iter().find(|name| !all.iter().any(|row| row.is_called(name)))
    {
        let of = if options.fixed_load { " or group of --fixed-load" } else { "" };
        return usage(format!("--rows: `{unknown}` is not a known row{of}; --list names them"));
    }
    let is_named = |row: &Row| options.rows.iter().any(|name| row.is_called(name));
    all.retain(|row| options.rows.is_empty() || is_named(row));
    Ok(all)
}

/// Starts a back end, with retries while it says that its image is locked. The kernel holds the
/// files of an ended process until its last requests have ended (io_uring). On a busy machine that
/// takes some moments.
fn when_free(start: impl Fn() -> Result<Server>) -> Result<Server> {
    let begin = Instant::now();
    loop {
        match start() {
            Err(error) if is_about_a_lock(&error) && begin.elapsed() < FREE => {
                std::thread::sleep(AGAIN)
            }
            result => return result,
        }
    }
}

fn is_about_a_lock(error: &Error) -> bool {
    let first: &dyn std::error::Error = error;
    std::iter::successors(Some(first), |error| error.source())
        .any(|error| error.to_string().contains("lock"))
}

/// The CPUs of server and driver: the first two that this process may use.
fn cpus() -> Result<(usize, usize)> {
    let usable = usable_cpus()?;
    let [server, driver, ..] = usable[..] else {
        return usage(format!(
            "back end and driver need a CPU each; this process has only {}",
            counted(usable.len(), "CPU")
        ));
    };
    Ok((server, driver))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn locked_image_is_retried_other_errors_fail() {
        let tries = Cell::new(0);
        let fails = |words: [&'static str; 3]| {
            tries.set(0);
            let error = when_free(|| {
                tries.set(tries.get() + 1);
                let cause = Error::new(ErrorKind::Process, words[(tries.get() - 1).min(2)]);
                Err(Error::caused_by(ErrorKind::Process, "it ended at once", cause))
            });
            (tries.get(), error.err().map(|error| error.kind()))
        };
        let process = Some(ErrorKind::Process);
        let locked = "Failed to get \"write\" lock";
        // A thread that is off the CPU for long gives up after fewer.
        assert!((0..3).any(|_| fails([locked, locked, "no such file"]) == (3, process)));
        assert_eq!(fails(["no such file"; 3]), (1, process));
    }
}
