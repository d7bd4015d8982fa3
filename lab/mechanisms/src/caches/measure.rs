//! One measurement: a neighbour that reads its hot set, a volume that is written to, and what both
//! cost the host.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use vlane_driver::{
    Arrivals, Limit, Mix, Pattern, Progress, Rate, Report, SessionOptions, Workload,
};
use vlane_error::counted;

use super::Options;
use super::bed::{Bed, bind, joined};
use super::commits::Writer;
use super::guest::finish;
use super::job::Done;
use super::limit::MemoryLimit;
use super::plan::{Arm, Cell, Job};
use super::replay::{Replay, recording_time};
use super::volume::{self, Volume};
use vlane_capture::Trace;
use vlane_cost::{Role, Sampler, Used};
use vlane_testbed::{
    At, Context, Control, Error, ErrorKind, Fail, Output, RecordOptions, Recording, Result, Server,
    pause, record,
};

/// Bytes that the neighbour reads at a time.
const READ: u32 = 4096;
/// Bytes at a time while it reads its hot set through.
const THROUGH: u32 = 64 << 10;
/// Requests that can be out at once where the neighbour reads at a rate: one that waits does not
/// delay those after it.
const PACED_DEPTH: u16 = 16;
/// How long a back end may take to end.
pub(crate) const STOP: Duration = Duration::from_secs(60);
/// Shares of misses in the two halves of a window may differ by this much, or by [`MOVING`] of
/// the misses.
const MOVED: f64 = 0.01;
/// Of the misses: see [`MOVED`].
const MOVING: f64 = 0.1;
/// A shorter window says nothing about a steady state: a journal takes seconds to go round.
pub(crate) const SETTLED: Duration = Duration::from_secs(30);
/// Ramps that are tried until hits do not move in the window, each twice as long as the last.
const RAMPS: u32 = 3;

/// Results of one measurement.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Sample {
    /// Commits or the guest's operations per second.
    pub operations: f64,
    /// 99th percentile of a commit, or of what the guest's job waits for, in us.
    pub p99_us: f64,
    /// The neighbour's reads per second.
    pub reads: f64,
    /// 99th percentile of them, in us; at a rate from the moment at which the read was due.
    pub read_p99_us: f64,
    /// Bytes of the neighbour's reads that came from the storage, of all: 0 to 1.
    pub misses: f64,
    /// Seconds before the window.
    pub ramp: f64,
    /// Misses of the window's second half less those of its first half: -1 to 1.
    pub moved: f64,
    /// Bytes per second that the volume's back end made dirty or wrote; of a large folio all bytes,
    /// if a part of it becomes dirty.
    pub written: f64,
    /// Bytes per second that anybody wrote to the disk.
    pub device_written: Option<f64>,
    /// The journal's pages in the page cache at the end.
    pub journal_pages: Option<u64>,
    /// CPU time of the volume's back end, us per operation.
    pub cpu_us: f64,
    /// CPUs that both back ends kept busy.
    pub cpus: f64,
    /// Bytes of a guest's memory that were charged to the back ends' cgroup.
    pub shared: u64,
}

/// Writes to the volume for the window, or until it is to stop.
type Work<'a> = Box<dyn FnOnce(Window, &AtomicBool) -> Result<Done> + Send + 'a>;

impl Sample {
    /// True if hits were as frequent in the second half of the window as in the first half.
    ///
    /// A window in which they still move belongs to a transition: its figures depend on its length.
    pub fn is_steady(&self) -> bool {
        is_steady(self.misses, self.moved)
    }
}

/// True for a share of misses that the two halves of a window had nearly alike.
pub(crate) fn is_steady(misses: f64, moved: f64) -> bool {
    moved.abs() <= MOVED.max(MOVING * misses)
}

/// Measures after a ramp. While the sample is not steady in a window of [`SETTLED`], the ramp is
/// doubled.
///
/// # Errors
/// The measurement's.
pub(crate) fn until_steady<S>(
    (mut ramp, time): (Duration, Duration),
    is_steady: impl Fn(&S) -> bool,
    mut measure: impl FnMut(Duration) -> Result<S>,
) -> Result<S> {
    for _ in 1..RAMPS {
        let sample = measure(ramp)?;
        if is_steady(&sample) || time < SETTLED {
            return Ok(sample);
        }
        ramp *= 2;
    }
    measure(ramp)
}

/// The counters at a moment of the window.
#[derive(Debug, Clone, Copy)]
struct Look {
    at: Instant,
    /// The neighbour's completed reads.
    reads: u64,
    /// Bytes that they had the storage read.
    read: u64,
    /// Bytes written for the volume.
    written: u64,
    /// Bytes written to the disk.
    on_disk: Option<u64>,
}

impl Look {
    /// The neighbour's misses from this moment to a later one.
    fn misses(&self, later: &Self) -> f64 {
        let reads = later.reads.saturating_sub(self.reads);
        share(later.read.saturating_sub(self.read) as f64, reads as f64 * f64::from(READ))
    }
}

/// From when to when it counts.
type Window = (Instant, Instant);

/// Bytes that a process and all its threads, io_uring's workers included, had read and written by
/// the storage. Read is what reads made the kernel fetch. Written are pages made dirty (once,
/// however often they are written before they are written back) and direct writes, less what was
/// dropped unwritten.
pub(crate) fn transferred(pid: u32) -> Result<(u64, u64)> {
    let io = procfs::process::Process::new(pid.cast_signed()).and_then(|process| process.io());
    let io = io.context(ErrorKind::Io, || format!("/proc/{pid}/io: cannot be read"))?;
    Ok((io.read_bytes, io.write_bytes.saturating_sub(io.cancelled_write_bytes)))
}

/// Bytes that were written so far, by anybody, to the disk below a file; none without a disk.
pub(crate) fn written_to_disk(file: &Path) -> Option<u64> {
    let device = std::fs::metadata(file).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let is_it = |disk: &procfs::DiskStat| {
        (disk.major.cast_unsigned(), disk.minor.cast_unsigned()) == (major, minor)
    };
    procfs::diskstats().ok()?.into_iter().find(is_it)?.sectors_written.checked_mul(512)
}

impl Bed<'_> {
    /// Measures an arm on a cell and on its volume. While hits move in a window of [`SETTLED`], the
    /// ramp is doubled.
    ///
    /// # Errors
    /// [`ErrorKind::Interrupted`], and those of back ends, driver and guests.
    pub fn measure(
        &self,
        cell: &Cell,
        arm: &Arm,
        volume: &mut Volume,
        say: &mut dyn FnMut(&str),
    ) -> Result<Sample> {
        let Options { ramp, time, .. } = *self.options;
        until_steady((ramp, time), Sample::is_steady, |ramp| {
            self.measure_after(ramp, cell, arm, volume, say)
        })
    }

    fn measure_after(
        &self,
        ramp: Duration,
        cell: &Cell,
        arm: &Arm,
        volume: &mut Volume,
        say: &mut dyn FnMut(&str),
    ) -> Result<Sample> {
        if cell.job.needs_guest() {
            volume.make_file_system(self.host)?;
        }
        volume::forget(volume.image.path())?;
        volume::forget(self.hot.path())?;
        say("the neighbour reads its hot set through");
        let words = ["--cache", "writeback", "--read-only"].map(str::to_owned);
        let mut neighbour = self.serve(self.hot.path(), &words, self.neighbour_cpus)?;
        self.read_through(&mut neighbour)?;
        let mut words = arm.arguments.clone();
        if !cell.delay.is_zero() {
            words.extend(["--delay-flush".into(), format!("{}us", cell.delay.as_micros())]);
        }
        let server = self.serve(volume.image.path(), &words, self.writer_cpus)?;
        let work = self.work(cell.job, ramp, volume, server.socket(), say);
        let sample =
            work.and_then(|work| self.observe(cell, ramp, &mut neighbour, (volume, &server, work)));
        let sample = sample.map_err(|error| {
            let log = server.log();
            let text = format!("{}, {}; the back end said: {}", cell.id(), arm.name, log.trim());
            Error::caused_by(error.kind(), text, error)
        })?;
        server.stop(STOP)?;
        Ok(sample)
    }

    /// A job's work before its window, and in it.
    fn work<'w>(
        &'w self,
        job: Job,
        ramp: Duration,
        volume: &Volume,
        socket: &'w Path,
        say: &mut dyn FnMut(&str),
    ) -> Result<Work<'w>> {
        match job {
            Job::Commits => {
                let mut writer = Writer::new(socket, &volume.ranges)?;
                say("the journal is written for the first time");
                writer.go_round(self.interrupt.flag())?;
                self.interrupt.check()?;
                say("");
                Ok(Box::new(move |(from, until), stop| writer.run(from, until, stop)))
            }
            Job::MailReplay => {
                let missing = || Error::new(ErrorKind::Missing, "no guest was recorded");
                let replay = self.recorded.get(&volume.journal).ok_or_else(missing)?;
                Ok(Box::new(move |(from, until), stop| {
                    replay.run(socket, from, stop)?;
                    replay.run(socket, until, stop)
                }))
            }
            job => {
                let times = (ramp, self.options.time);
                let mut guest = self.boot(job, socket, times, say)?;
                guest.send("go\n")?;
                Ok(Box::new(move |_, _| finish(guest, times.0 + times.1, self.interrupt)))
            }
        }
    }

    /// Records a guest that does the mail job on a volume.
    ///
    /// # Errors
    /// As [`Bed::measure`], and those of the recording.
    pub fn record_mail(&self, volume: &mut Volume, say: &mut dyn FnMut(&str)) -> Result<Replay> {
        volume.make_file_system(self.host)?;
        volume::forget(volume.image.path())?;
        let control = self.dir.join("record.ctl");
        let at = control.display().to_string();
        let words = ["--cache", "writeback", "--control", &at].map(str::to_owned);
        let server = self.serve(volume.image.path(), &words, self.writer_cpus)?;
        let time = recording_time(self.options.time, volume.journal);
        let mut guest = self.boot(Job::Mail, server.socket(), (Duration::ZERO, time), say)?;
        let file = self.dir.join(format!("mail-{}.trc", volume.journal));
        let (output, limit) = (Output::new(&file), Some(time));
        let recording = RecordOptions { output, time: limit, count: None, hashes: false };
        let recorded = std::thread::scope(|scope| {
            let control = Control::new(&control);
            let recorder =
                scope.spawn(move || record(&control, &recording, self.interrupt, &mut |_| ()));
            let begun = guest.send("go\n").map_err(Error::from);
            let done = begun.and_then(|()| finish(guest, time, self.interrupt));
            let recorded = joined(recorder.join());
            done.and(recorded.and_then(Recording::whole))
        })?;
        self.interrupt.check()?;
        server.stop(STOP)?;
        if recorded.lost > 0 {
            let lost = counted(recorded.lost, "request");
            let text = format!("the recording lost {lost}; try again on a quieter machine");
            return ErrorKind::Io.fail(text);
        }
        let replay = Replay::new(&Trace::load(&file)?, volume);
        // It may be large, and lies in memory on some machines.
        std::fs::remove_file(&file).at(&file, "cannot be removed")?;
        replay
    }

    /// Reads the hot set once, so that the cache has it.
    fn read_through(&self, neighbour: &mut Server) -> Result<()> {
        let session = SessionOptions { data: THROUGH, depth: 4, ..SessionOptions::default() };
        let session = neighbour.connect(&session)?;
        let workload = Workload {
            pattern: Pattern { mix: Mix::ReadPercent(100), random: false },
            block: THROUGH,
            limit: Limit::Count(self.hot.bytes() / u64::from(THROUGH)),
            ramp: Duration::ZERO,
            ..Workload::default()
        };
        vlane_driver::run(session, &workload, &mut |_| self.interrupt.going_on())?;
        self.interrupt.check()
    }

    /// Lets the neighbour read and the volume be written to, from now on; looks at the beginning
    /// and the end of the window, and puts everything together.
    fn observe(
        &self,
        cell: &Cell,
        ramp: Duration,
        neighbour: &mut Server,
        (volume, server, work): (&Volume, &Server, Work<'_>),
    ) -> Result<Sample> {
        let from = Instant::now() + ramp;
        let until = from + self.options.time;
        let depth = if cell.rate.is_some() { PACED_DEPTH } else { 1 };
        let session = SessionOptions { data: READ, depth, ..SessionOptions::default() };
        let session = neighbour.connect(&session)?;
        let workload = Workload {
            block: READ,
            limit: Limit::Time(self.options.time),
            ramp: from.saturating_duration_since(Instant::now()),
            rate: cell.rate.map(|per_second| Rate { per_second, arrivals: Arrivals::Poisson }),
            ..Workload::default()
        };
        let (hot, pid, reads) = (neighbour.pid(), server.pid(), AtomicU64::new(0));
        let mut roles = Role::program("neighbour", hot.cast_signed());
        roles.extend(Role::program("volume", pid.cast_signed()));
        let mut sampler = Sampler::new(roles);
        let look = |at: Instant| {
            pause(at, self.interrupt)?;
            Ok::<_, Error>(Look {
                at: Instant::now(),
                reads: reads.load(Ordering::Relaxed),
                read: transferred(hot)?.0,
                written: transferred(pid)?.1,
                on_disk: written_to_disk(self.hot.path()),
            })
        };
        let stop = AtomicBool::new(false);
        let (report, done, looks, used) = std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                bind(self.neighbour_cpus)?;
                let mut progressed = |progress: Progress| {
                    reads.store(progress.done, Ordering::Relaxed);
                    self.interrupt.going_on()
                };
                Ok(vlane_driver::run(session, &workload, &mut progressed)?)
            });
            let stop = &stop;
            let writing = scope
                .spawn(move || bind(self.writer_cpus).and_then(|()| work((from, until), stop)));
            let mut looks = || {
                let (before, snapshot) = (look(from)?, sampler.take());
                let halfway = look(from + self.options.time / 2)?;
                let after = look(until)?;
                Ok::<_, Error>(([before, halfway, after], sampler.take().since(&snapshot)))
            };
            let looked = looks();
            stop.store(looked.is_err(), Ordering::Relaxed);
            let report = joined(reading.join());
            let done = joined(writing.join());
            let (looks, used) = looked?;
            Ok::<_, Error>((report?, done?, looks, used))
        })?;
        self.interrupt.check()?;
        if report.errors.total() > 0 {
            return ErrorKind::Process.fail("the neighbour's back end answered reads with errors");
        }
        let journal_pages = volume.cached_pages();
        Ok(Sample {
            journal_pages,
            ramp: ramp.as_secs_f64(),
            ..self.sample(&report, &looks, &used, done)
        })
    }

    /// The figures of the neighbour's report, of two looks, and of the writer.
    fn sample(
        &self,
        report: &Report,
        [before, halfway, after]: &[Look; 3],
        used: &Used,
        done: Done,
    ) -> Sample {
        // On a busy machine the looks are late: what they see is divided by the time between them,
        // as requests are by the window's.
        let seconds = (after.at - before.at).as_secs_f64();
        let per_second =
            |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds.max(1e-9);
        let reads = report.reads.map_or(0.0, |reads| reads.iops);
        let cpu = used.role("volume").map_or(Duration::ZERO, |role| role.cpu);
        Sample {
            operations: done.per_second,
            p99_us: done.p99_us,
            ramp: 0.0,
            reads,
            read_p99_us: report.open.as_ref().map_or(report.latency.p99, |open| open.response.p99),
            misses: share(per_second(before.read, after.read), reads * f64::from(READ)),
            moved: halfway.misses(after) - before.misses(halfway),
            written: per_second(before.written, after.written),
            device_written: before
                .on_disk
                .zip(after.on_disk)
                .map(|(then, now)| per_second(then, now)),
            journal_pages: None,
            cpu_us: cpu.as_secs_f64() * 1e6 / (done.per_second * seconds).max(1.0),
            cpus: used.cpu().as_secs_f64() / used.wall.as_secs_f64().max(1e-9),
            shared: self.limit.map_or(0, MemoryLimit::shared),
        }
    }
}

/// A part of all, 0 to 1; zero of zero. Readahead can fetch more than was requested.
pub(crate) fn share(part: f64, all: f64) -> f64 {
    if all > 0.0 { (part / all).clamp(0.0, 1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moving_hits_are_not_steady() {
        let is_steady = |misses, moved| Sample { misses, moved, ..Sample::default() }.is_steady();
        for (misses, moved) in [(0.0, 0.01), (0.05, -0.01), (0.5, 0.05), (1.0, -0.1)] {
            assert!(is_steady(misses, moved), "{misses} {moved}");
        }
        for (misses, moved) in [(0.0, 0.011), (0.05, -0.011), (0.5, 0.051), (0.5, -0.2)] {
            assert!(!is_steady(misses, moved), "{misses} {moved}");
        }
    }

    #[test]
    fn misses_are_those_between_two_looks() {
        let look =
            |reads, read| Look { at: Instant::now(), reads, read, written: 0, on_disk: None };
        let (first, second, third) = (look(100, 0), look(200, 25 * 4096), look(200, 25 * 4096));
        assert_eq!((first.misses(&second), second.misses(&third)), (0.25, 0.0));
    }

    #[test]
    fn share_is_bounded_and_zero_of_zero() {
        assert_eq!((share(5.0, 0.0), share(1.0, 4.0), share(9.0, 4.0)), (0.0, 0.25, 1.0));
    }
}
