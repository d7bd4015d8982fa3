//! Recording: from a control socket into a file.

use std::cell::{Cell, RefCell};
use std::io::{self, BufWriter, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use vlane_trace::{Entry, Reader, Writer};

use crate::control::Control;
use crate::interrupt::Interrupt;
use crate::output::Output;
use vlane_error::program::{Context, Error, ErrorKind, Result};

mod layouts;

use layouts::Layouts;

/// Interval for checking the end and reporting progress when no data come.
const TICK: Duration = Duration::from_millis(100);

/// Counts of a recording.
#[derive(Debug, Clone)]
pub struct RecordOptions {
    /// The file that it becomes.
    pub output: Output,
    /// How long; none: until it is interrupted or the volume ends.
    pub time: Option<Duration>,
    /// How many requests; none: all.
    pub count: Option<u64>,
    /// With hashes of the data.
    pub hashes: bool,
}

/// How far a recording is.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Recorded {
    /// Requests in the file.
    pub requests: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Requests that are missing in it.
    pub lost: u64,
    /// Since it began.
    pub elapsed: Duration,
    /// True if the volume ended, and the recording with it.
    pub is_over: bool,
    /// It broke off. The file has no end then, and an unknown number of requests is missing.
    pub is_cut: bool,
}

impl Recorded {
    /// Counts an entry of the file.
    fn count(&mut self, entry: &Entry) {
        match entry {
            Entry::Record(record) if !record.more => self.requests += 1,
            Entry::Lost { count, .. } => self.lost += count,
            _ => {}
        }
    }
}

/// A recording that has ended.
#[derive(Debug)]
pub struct Recording {
    /// The file's content.
    pub recorded: Recorded,
    /// Why it broke off, if it did: the server was killed, sent what is damaged, or the file could
    /// not be written any more.
    pub broken: Option<Error>,
}

impl Recording {
    /// The recording, if it has its end.
    ///
    /// # Errors
    /// Why it broke off.
    pub fn whole(self) -> Result<Recorded> {
        self.broken.map_or(Ok(self.recorded), Err)
    }
}

/// Gives an end to a stream that has none: when `stop` says so, which is asked during each pause.
struct Until<R, F> {
    from: R,
    stop: F,
}

impl<R: Read, F: FnMut() -> bool> Read for Until<R, F> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.from.read(into) {
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) =>
                {
                    if (self.stop)() {
                        return Ok(0);
                    }
                }
                result => return result,
            }
        }
    }
}

/// Records until the time is over, the requests are enough, the user interrupts or the volume ends.
/// Each of these ends leaves a complete file. A broken recording leaves the requests until then,
/// without an end, and [`Recording::broken`]. `progress` is called about ten times a second.
///
/// # Errors
/// Those of [`Control::trace`]; [`ErrorKind::Io`] if the file cannot be made, [`ErrorKind::Format`]
/// if the server sends no trace.
pub fn record(
    control: &Control,
    options: &RecordOptions,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(&Recorded),
) -> Result<Recording> {
    let failed = || format!("{}: cannot be written", options.output.path().display());
    options.output.check()?;
    let image = image(control)?;
    check_image(&image, options.output.path())?;
    let stream = control.trace(options.hashes, TICK)?;
    // The file is opened only now: an earlier one is kept if the recording cannot begin.
    let file = options.output.create()?;
    let begin = Instant::now();
    let state = Cell::new(Recorded::default());
    let progress = RefCell::new((progress, Instant::now()));
    let is_enough = || {
        let (mut now, clock) = (state.get(), Instant::now());
        now.elapsed = clock.duration_since(begin);
        state.set(now);
        let (progress, told) = &mut *progress.borrow_mut();
        if clock.duration_since(*told) >= TICK {
            progress(&now);
            *told = clock;
        }
        interrupt.is_raised() || options.time.is_some_and(|time| now.elapsed >= time)
    };
    let stopped = Cell::new(false);
    let stop = || {
        stopped.set(stopped.get() || is_enough());
        stopped.get()
    };
    let mut reader = Reader::new(Until { from: stream, stop }).map_err(damaged)?;
    let to = BufWriter::with_capacity(1 << 20, file);
    let mut writer = Writer::new(to, reader.header().clone()).context(ErrorKind::Io, failed)?;
    let count = options.count.unwrap_or(u64::MAX);
    let mut broken = None;
    let mut layouts =
        Layouts::of(&image, reader.header().sectors.saturating_mul(vlane_trace::SECTOR));
    // The clock is read for each entry: where they come one by one there is never a pause, and
    // never a thousand of them.
    while state.get().requests < count && !stopped.get() && !is_enough() {
        let entry = match next(&mut reader) {
            Ok(entry) => entry,
            Err(end) => {
                let is_cut = !stopped.get() && !reader.is_complete();
                broken = end.or_else(|| is_cut.then(killed));
                break;
            }
        };
        let written = layouts.look(&entry, &mut writer).and_then(|()| writer.write(&entry));
        if let Err(error) = written {
            broken = Some(Error::caused_by(ErrorKind::Io, failed(), error));
            break;
        }
        let mut now = state.get();
        now.count(&entry);
        now.bytes = writer.bytes();
        state.set(now);
    }
    let is_over = reader.is_complete();
    drop(reader);
    let ended = layouts.tell(&mut writer).and_then(|()| match &broken {
        // Its reader learns that it has no end.
        Some(_) => writer.flush(),
        None => writer.finish().map(drop),
    });
    let broken = broken.or(ended.context(ErrorKind::Io, failed).err());
    let mut recorded = state.get();
    recorded.elapsed = begin.elapsed();
    (recorded.is_over, recorded.is_cut) = (is_over, broken.is_some());
    recorded.bytes =
        std::fs::metadata(options.output.path()).map_or(recorded.bytes, |meta| meta.len());
    Ok(Recording { recorded, broken })
}

/// The image, as the server named it, from where it is.
fn image(control: &Control) -> Result<PathBuf> {
    let image = PathBuf::from(control.volume()?.name);
    if image.is_absolute() {
        return Ok(image);
    }
    let pid = control.counters()?.process.pid;
    Ok(std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default().join(image))
}

/// An image is locked while it is served; but not every file system has locks.
fn check_image(image: &Path, output: &Path) -> Result<()> {
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    match identity(output).is_some_and(|output| Some(output) == identity(image)) {
        false => Ok(()),
        true => {
            let context = format!(
                "{}: is the image that is to be recorded; choose another name",
                output.display()
            );
            Err(Error::new(ErrorKind::Invalid, context))
        }
    }
}

/// The next entry; otherwise its damage, or `None` where the stream ended or broke.
fn next<R: Read>(reader: &mut Reader<R>) -> std::result::Result<Entry, Option<Error>> {
    use vlane_trace::ErrorKind::{Io, Truncated};
    match reader.next() {
        Some(Ok(entry)) => Ok(entry),
        // The end in the middle of an entry is where the recording was stopped; or where the server
        // died.
        Some(Err(error)) if matches!(error.kind(), Truncated | Io) => Err(None),
        Some(Err(error)) => Err(Some(damaged(error))),
        None => Err(None),
    }
}

/// The stream ended without an entry for its end.
fn killed() -> Error {
    Error::new(ErrorKind::Process, "the server broke off (it was killed, or has crashed)")
}

/// Why a recording ended before its end.
fn damaged(error: vlane_trace::Error) -> Error {
    match error.kind() {
        vlane_trace::ErrorKind::Io => {
            Error::caused_by(ErrorKind::Io, "the recording broke off", error)
        }
        _ => {
            Error::caused_by(ErrorKind::Format, "the server sent data that are not a trace", error)
        }
    }
}
