//! One measurement: a neighbour that reads its hot set, a volume that is written to, and what both
//! cost the host.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use vlane_driver::{Arrivals, Limit, Rate, Session, SessionOptions, Workload};
use vlane_error::counted;
use vlane_guest::{Host, Ready, Spec};

use super::commits::{Places, Writer};
use super::done::Done;
use super::limit::{Device, MemoryLimit};
use super::plan::{Arm, Cell, Job};
use super::replay::{Replay, recording_time};
use super::volume::{self, Volume};
use super::{Options, guest};
use vlane_capture::Trace;
use vlane_client::record::{RecordOptions, Recording, record};
use vlane_cost::{Role, Sampler};
use vlane_testbed::control::Control;
use vlane_testbed::error::{Context, Error, ErrorKind, Result};
use vlane_testbed::image::Image;
use vlane_testbed::interrupt::Interrupt;
use vlane_testbed::output::Output;
use vlane_testbed::server::Server;

/// Bytes that the neighbour reads at a time.
pub const READ: u32 = 4096;
/// Bytes at a time while it reads its hot set through.
const THROUGH: u32 = 64 << 10;
/// Requests that can be out at once where the neighbour reads at a rate: one that waits does not
/// delay those after it.
const PACED_DEPTH: u16 = 16;
/// How often an interrupt is looked for.
const LOOK: Duration = Duration::from_millis(50);
/// How long a back end may take to end.
const STOP: Duration = Duration::from_secs(60);

/// Results of one measurement.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Sample {
    /// Commits or the guest's operations per second; 0 without a writer.
    pub operations: f64,
    /// 99th percentile of a commit, or of what the guest's job waits for, in us.
    pub p99_us: f64,
    /// The neighbour's reads per second.
    pub reads: f64,
    /// 99th percentile of them, in us; at a rate from the moment at which the read was due.
    pub read_p99_us: f64,
    /// Bytes of the neighbour's reads that came from the storage, of all: 0 to 1.
    pub misses: f64,
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

impl Sample {
    /// Bytes that reached the disk for each operation: by the disk's own counter, where there is
    /// one.
    pub fn written_per_operation(&self) -> f64 {
        self.device_written.unwrap_or(self.written) / self.operations.max(1e-9)
    }
}

/// Everything that measurements stand on.
#[derive(Debug)]
pub struct Bed<'a> {
    /// The options.
    pub options: &'a Options,
    /// For the programs of guests.
    pub host: &'a Host,
    /// For sockets.
    pub dir: &'a Path,
    /// The cache's limit, if there is one.
    pub limit: Option<&'a MemoryLimit>,
    /// The neighbour's image.
    pub hot: &'a Image,
    /// The disk below the images.
    pub device: Option<&'a Device>,
    /// Guests, if any are wanted.
    pub guests: Option<&'a guest::Maker>,
    /// CPUs of the neighbour, its back end and who asks it for reads; empty: any.
    pub neighbour_cpus: &'a [usize],
    /// CPUs of the volume's back end and of who writes; empty: any.
    pub writer_cpus: &'a [usize],
    /// Recorded requests of guests, by the bytes of their journals.
    pub recorded: BTreeMap<u64, Replay>,
    /// The user's wish to end.
    pub interrupt: &'a Interrupt,
}

/// Binds the calling thread, and what it starts, to CPUs; to none: it stays where it is.
fn bind(cpus: &[usize]) -> Result<()> {
    if cpus.is_empty() { Ok(()) } else { Ok(vlane_driver::pin(cpus)?) }
}

/// When it counts.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// From then on.
    pub from: Instant,
    /// Until then.
    pub until: Instant,
}

/// A process's I/O with the storage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Transferred {
    read: u64,
    written: u64,
}

impl Transferred {
    /// Of a process and all its threads, io_uring's workers included.
    fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/io");
        let text = std::fs::read_to_string(&path)
            .context(ErrorKind::Io, || format!("{path}: cannot be read"))?;
        Self::parse(&text)
            .ok_or_else(|| Error::new(ErrorKind::Format, format!("{path}: not understood")))
    }

    /// `read_bytes`: what reads made the kernel fetch. `write_bytes`: pages made dirty (once,
    /// however often they are written before they are written back) and direct writes, less what
    /// was dropped unwritten.
    fn parse(text: &str) -> Option<Self> {
        let value = |name: &str| -> Option<u64> {
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))?.parse().ok()
        };
        let written = value("write_bytes")?.saturating_sub(value("cancelled_write_bytes")?);
        Some(Self { read: value("read_bytes")?, written })
    }
}

/// A look at everything that counts by itself.
struct Look {
    at: Instant,
    hot: Transferred,
    volume: Option<Transferred>,
    device: Option<u64>,
}

impl Bed<'_> {
    /// A back end on an image, in the cgroup.
    fn serve(
        &self,
        name: &str,
        image: &Path,
        arguments: &[String],
        control: Option<&Path>,
        cpus: &[usize],
    ) -> Result<Server> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let socket = self.dir.join(format!("{name}-{}.sock", NEXT.fetch_add(1, Ordering::Relaxed)));
        let mut words: Vec<OsString> =
            vec!["serve".into(), image.into(), "--format".into(), "raw".into()];
        words.extend([
            "--queues".into(),
            "1".into(),
            "--socket".into(),
            socket.clone().into_os_string(),
        ]);
        if let Some(control) = control {
            words.extend(["--control".into(), control.into()]);
        }
        words.extend(arguments.iter().map(OsString::from));
        let spec = Spec::new(&self.options.vlane, words);
        let server = Server::start("vlane", spec, cpus, &socket, Ready::Line("listening on"))?;
        if let Some(limit) = self.limit {
            limit.add(server.pid())?;
        }
        Ok(server)
    }

    /// Measures an arm on a cell; `volume` is the cell's, if it has a job.
    ///
    /// # Errors
    /// [`ErrorKind::Interrupted`], and those of back ends, driver and guests.
    pub fn measure(
        &self,
        cell: &Cell,
        arm: &Arm,
        volume: Option<&mut Volume>,
        say: &mut dyn FnMut(&str),
    ) -> Result<Sample> {
        let volume = match (cell.job, volume) {
            (Some(job), Some(volume)) => {
                if job.needs_guest() {
                    volume.make_file_system(self.host)?;
                }
                volume::forget(volume.path())?;
                Some((job, volume))
            }
            _ => None,
        };
        volume::forget(self.hot.path())?;
        say("the neighbour reads its hot set through");
        let words = ["--cache", "writeback", "--read-only"].map(str::to_owned);
        let mut neighbour =
            self.serve("hot", self.hot.path(), &words, None, self.neighbour_cpus)?;
        self.read_through(&mut neighbour)?;
        let Some((job, volume)) = volume else {
            let window = self.window();
            return self.observe(cell, &mut neighbour, None, window, None, || Ok(None));
        };
        let mut words = arm.arguments.clone();
        words.extend(self.options.with.iter().cloned());
        if !cell.delay.is_zero() {
            words.extend(["--delay-flush".into(), format!("{}us", cell.delay.as_micros())]);
        }
        let control = self.dir.join("volume.ctl");
        let mut server =
            self.serve("volume", volume.path(), &words, Some(&control), self.writer_cpus)?;
        let sample = match job {
            Job::Commits => self.commits(cell, volume, &mut neighbour, &mut server, say),
            Job::MailReplay => self.replay(cell, volume, &mut neighbour, &server),
            job => self.guest(cell, job, volume, &mut neighbour, &server, say),
        };
        let sample = sample.map_err(|error| {
            let text = format!(
                "{}, {}; the back end said: {}",
                cell.title(),
                arm.name,
                server.log().trim()
            );
            Error::caused_by(error.kind(), text, error)
        })?;
        server.stop(STOP)?;
        Ok(sample)
    }

    /// From when to when it counts, if everything begins now.
    fn window(&self) -> Window {
        let from = Instant::now() + self.options.ramp;
        Window { from, until: from + self.options.time }
    }

    fn commits(
        &self,
        cell: &Cell,
        volume: &Volume,
        neighbour: &mut Server,
        server: &mut Server,
        say: &mut dyn FnMut(&str),
    ) -> Result<Sample> {
        let mut writer =
            Writer::new(server.connect(&Writer::session())?, Places::of(&volume.ranges))?;
        say("the journal is written for the first time");
        writer.go_round(self.interrupt.flag())?;
        self.interrupt.check()?;
        say("");
        let window = self.window();
        let stop = AtomicBool::new(false);
        let sample = std::thread::scope(|scope| {
            let running = scope.spawn(|| {
                bind(self.writer_cpus)?;
                writer.run(window.from, window.until, &stop)
            });
            let sample =
                self.observe(cell, neighbour, Some((volume, server)), window, Some(&stop), || {
                    let committed = joined(running.join())?;
                    Ok(Some(Done::of(committed.ns, self.options.time)))
                });
            // The thread ends in any case.
            stop.store(true, Ordering::Relaxed);
            sample
        })?;
        writer.end()?;
        Ok(sample)
    }

    fn replay(
        &self,
        cell: &Cell,
        volume: &Volume,
        neighbour: &mut Server,
        server: &Server,
    ) -> Result<Sample> {
        let missing = || Error::new(ErrorKind::Missing, "no guest was recorded");
        let replay = self.recorded.get(&volume.journal).ok_or_else(missing)?;
        let window = self.window();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let running = scope.spawn(|| {
                bind(self.writer_cpus)?;
                replay.run(server.socket(), window.from, &stop)?;
                replay.run(server.socket(), window.until, &stop)
            });
            let sample =
                self.observe(cell, neighbour, Some((volume, server)), window, Some(&stop), || {
                    joined(running.join()).map(Some)
                });
            stop.store(true, Ordering::Relaxed);
            sample
        })
    }

    /// Records a guest that does the mail job on a volume.
    ///
    /// # Errors
    /// As [`Bed::measure`], and those of the recording.
    pub fn record_mail(&self, volume: &mut Volume, say: &mut dyn FnMut(&str)) -> Result<Replay> {
        let maker =
            self.guests.ok_or_else(|| Error::new(ErrorKind::Missing, "there is no guest"))?;
        volume.make_file_system(self.host)?;
        volume::forget(volume.path())?;
        let control = self.dir.join("record.ctl");
        let words = ["--cache", "writeback"].map(str::to_owned);
        let server =
            self.serve("record", volume.path(), &words, Some(&control), self.writer_cpus)?;
        let time = recording_time(self.options.time, volume.journal);
        let options = Options { ramp: Duration::ZERO, time, ..self.options.clone() };
        say("the guest boots, and makes its files");
        let mut guest = self.start_guest(|| maker.start(&options, server.socket(), Job::Mail))?;
        guest.ready(self.interrupt)?;
        say("");
        let file = self.dir.join(format!("mail-{}.trc", volume.journal));
        let recording = RecordOptions {
            output: Output::new(&file),
            time: Some(time),
            count: None,
            hashes: false,
        };
        let recorded = std::thread::scope(|scope| {
            let recorder = scope
                .spawn(|| record(&Control::new(&control), &recording, self.interrupt, &mut |_| ()));
            let done = guest.begin().and_then(|()| guest.finish(self.interrupt));
            let recorded = joined(recorder.join());
            done.and(recorded.and_then(Recording::whole))
        })?;
        self.interrupt.check()?;
        server.stop(STOP)?;
        if recorded.lost > 0 {
            let text = format!(
                "the recording lost {}; try again on a quieter machine",
                counted(recorded.lost, "request")
            );
            return Err(Error::new(ErrorKind::Io, text));
        }
        let replay = Replay::new(&Trace::load(&file)?, volume);
        // It may be large, and lies in memory on some machines.
        std::fs::remove_file(&file)
            .context(ErrorKind::Io, || format!("{}: cannot be removed", file.display()))?;
        replay
    }

    fn guest(
        &self,
        cell: &Cell,
        job: Job,
        volume: &Volume,
        neighbour: &mut Server,
        server: &Server,
        say: &mut dyn FnMut(&str),
    ) -> Result<Sample> {
        let maker =
            self.guests.ok_or_else(|| Error::new(ErrorKind::Missing, "there is no guest"))?;
        say("the guest boots, and makes its files");
        let mut guest = self.start_guest(|| maker.start(self.options, server.socket(), job))?;
        guest.ready(self.interrupt)?;
        say("");
        guest.begin()?;
        let window = self.window();
        self.observe(cell, neighbour, Some((volume, server)), window, None, || {
            guest.finish(self.interrupt).map(Some)
        })
    }

    /// Starts a guest on the CPUs of who writes, which it inherits from the thread that starts it.
    fn start_guest(
        &self,
        start: impl FnOnce() -> Result<guest::Running> + Send,
    ) -> Result<guest::Running> {
        std::thread::scope(|scope| {
            joined(scope.spawn(|| bind(self.writer_cpus).and_then(|()| start())).join())
        })
    }

    /// Reads the hot set once, so that the cache has it.
    fn read_through(&self, neighbour: &mut Server) -> Result<()> {
        let session = neighbour.connect(&SessionOptions {
            data: THROUGH,
            depth: 4,
            ..SessionOptions::default()
        })?;
        let workload = Workload {
            pattern: "read".parse().map_err(|why: String| Error::new(ErrorKind::Invalid, why))?,
            block: THROUGH,
            limit: Limit::Count(self.hot.bytes() / u64::from(THROUGH)),
            ramp: Duration::ZERO,
            ..Workload::default()
        };
        vlane_driver::run(session, &workload, &mut |_| self.going_on())?;
        self.interrupt.check()
    }

    fn going_on(&self) -> ControlFlow<()> {
        if self.interrupt.is_raised() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn session(&self, cell: &Cell, neighbour: &mut Server) -> Result<Session> {
        let depth = if cell.rate.is_some() { PACED_DEPTH } else { 1 };
        neighbour.connect(&SessionOptions { data: READ, depth, ..SessionOptions::default() })
    }

    fn look(&self, hot: u32, volume: Option<u32>) -> Result<Look> {
        Ok(Look {
            at: Instant::now(),
            hot: Transferred::of(hot)?,
            volume: volume.map(Transferred::of).transpose()?,
            device: self.device.and_then(Device::written),
        })
    }

    /// Lets the neighbour read during the window, looks at its beginning and its end, and puts
    /// everything together. `done` waits for the end of who writes.
    fn observe(
        &self,
        cell: &Cell,
        neighbour: &mut Server,
        volume: Option<(&Volume, &Server)>,
        window: Window,
        stop: Option<&AtomicBool>,
        done: impl FnOnce() -> Result<Option<Done>>,
    ) -> Result<Sample> {
        let session = self.session(cell, neighbour)?;
        let hot = neighbour.pid();
        let workload = neighbour_load(cell, window);
        let mut roles = Role::program("neighbour", hot.cast_signed());
        let writer = volume.map(|(_, server)| server.pid());
        if let Some(pid) = writer {
            roles.extend(Role::program("volume", pid.cast_signed()));
        }
        let mut sampler = Sampler::new(roles);
        let (report, before, after, used) = std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                bind(self.neighbour_cpus)?;
                Ok(vlane_driver::run(session, &workload, &mut |_| self.going_on())?)
            });
            let looks = || -> Result<_> {
                self.sleep_until(window.from)?;
                let (before, snapshot) = (self.look(hot, writer)?, sampler.take());
                self.sleep_until(window.until)?;
                let (used, after) = (sampler.take().since(&snapshot), self.look(hot, writer)?);
                Ok((before, after, used))
            };
            let looked = { looks }();
            if let (Err(_), Some(stop)) = (&looked, stop) {
                stop.store(true, Ordering::Relaxed);
            }
            let report = joined(reading.join());
            let (before, after, used) = looked?;
            Ok::<_, Error>((report?, before, after, used))
        })?;
        self.interrupt.check()?;
        let done = done()?;
        if report.errors.total() > 0 {
            return Err(Error::new(
                ErrorKind::Process,
                "the neighbour's back end answered reads with errors",
            ));
        }
        // On a busy machine the looks are late: what they see is divided by the time between them,
        // as requests are by the window's.
        let seconds = (after.at - before.at).as_secs_f64();
        let fetched = per(after.hot.read.saturating_sub(before.hot.read), seconds);
        let reads = report.reads.map_or(0.0, |reads| reads.iops);
        let mut sample = Sample {
            reads,
            read_p99_us: report.open.as_ref().map_or(report.latency.p99, |open| open.response.p99),
            misses: share(fetched, reads * f64::from(READ)),
            device_written: before
                .device
                .zip(after.device)
                .map(|(b, a)| per(a.saturating_sub(b), seconds)),
            cpus: used.cpu().as_secs_f64() / used.wall.as_secs_f64().max(1e-9),
            shared: self.limit.map_or(0, |limit| limit.held().shared),
            ..Sample::default()
        };
        if let (Some(done), Some((volume, _))) = (done, volume) {
            sample.operations = done.per_second;
            sample.p99_us = done.p99_us;
            let (a, b) = (after.volume.unwrap_or_default(), before.volume.unwrap_or_default());
            sample.written = per(a.written.saturating_sub(b.written), seconds);
            let cpu = used.role("volume").map_or(Duration::ZERO, |role| role.cpu);
            sample.cpu_us = cpu.as_secs_f64() * 1e6 / (done.per_second * seconds).max(1.0);
            sample.journal_pages = volume.cached_pages();
        }
        Ok(sample)
    }

    fn sleep_until(&self, then: Instant) -> Result<()> {
        loop {
            self.interrupt.check()?;
            let left = then.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(LOOK));
        }
    }
}

fn joined<T>(ended: std::thread::Result<Result<T>>) -> Result<T> {
    ended.unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Process, "a thread of the measurement panicked"))
    })
}

fn per(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / seconds.max(1e-9)
}

/// A part of all, 0 to 1; zero of zero. Readahead can fetch more than was requested.
fn share(part: f64, all: f64) -> f64 {
    if all > 0.0 { (part / all).clamp(0.0, 1.0) } else { 0.0 }
}

/// The neighbour's work in the window.
fn neighbour_load(cell: &Cell, window: Window) -> Workload {
    Workload {
        block: READ,
        limit: Limit::Time(window.until - window.from),
        ramp: window.from.saturating_duration_since(Instant::now()),
        rate: cell.rate.map(|per_second| Rate { per_second, arrivals: Arrivals::Poisson }),
        ..Workload::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_pages_do_not_count_as_written() {
        let text = "rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 4096\nwrite_bytes: \
                    12288\ncancelled_write_bytes: 8192\n";
        assert_eq!(Transferred::parse(text), Some(Transferred { read: 4096, written: 4096 }));
        assert_eq!(Transferred::parse("rchar: 1\n"), None);
    }

    #[test]
    fn percentile_is_a_measured_value() {
        let done = Done::of((1..=200).rev().map(|us| us * 1000).collect(), Duration::from_secs(2));
        assert_eq!(done, Done { per_second: 100.0, p99_us: 198.0 });
        assert_eq!(Done::of(vec![7000], Duration::from_secs(1)).p99_us, 7.0);
        let none = Done::of(Vec::new(), Duration::from_secs(1));
        assert!(none.p99_us.is_nan() && none.per_second == 0.0);
    }

    #[test]
    fn share_is_bounded_and_zero_of_zero() {
        assert_eq!((share(5.0, 0.0), share(1.0, 4.0), share(9.0, 4.0)), (0.0, 0.25, 1.0));
    }
}
