//! `vlane serve`: one volume on one socket.

mod astray;
mod doors;
mod experiments;
mod handed;
mod signals;
mod stop;
mod storage;
mod upgrade;
mod waiting;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use rustix::io::Errno;
use vlane_engine::Engine;
use vlane_engine::behind::Behind;
use vlane_engine::file::{Cache, Discard, FileEngine};
use vlane_error::counted;
use vlane_lane::{CpuChoice, PollMode, ThreadChoice, Topology, online_cpus, parse_cpu_list};
use vlane_policy::express::{Class, Classes, Express, Mode};
use vlane_server::{Arrived, Listener, Schedulers, Vanishing, Volume, VolumeConfig};
use vlane_units::show_size;

pub use self::experiments::Experiments;
use self::storage::{Opened, model, open};
use crate::limit::ServeLimits;
use crate::{exit, logging, notify, values};

/// Serve a volume over vhost-user-blk, to one front end after another
///
/// SIGTERM and SIGINT drain, flush, remove the socket and end the process. SIGHUP reads the image's
/// size again and tells the guest. SIGUSR2 upgrades to the program that is at the same path now,
/// without an outage.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Image: a raw file or a block device
    #[arg(required_unless_present = "null", conflicts_with = "null")]
    image: Option<PathBuf>,

    /// Unix socket for front ends
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,

    #[command(flatten)]
    doors: doors::DoorArgs,

    /// Serve a device without media: reads change no memory, writes are dropped
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    null: Option<u64>,

    /// Format of the image: raw
    ///
    /// Without this, an image that looks like another format is refused.
    #[arg(long, value_enum, value_name = "FORMAT", conflicts_with = "null")]
    format: Option<FormatArg>,

    /// Use of the host's page cache
    #[arg(long, value_enum, value_name = "MODE", default_value_t = CacheArg::Auto)]
    cache: CacheArg,

    /// Effect of the guest's trim on the image
    #[arg(long, value_enum, value_name = "on|off|keep", default_value_t = DiscardArg::On)]
    discard: DiscardArg,

    /// How --cache pdc keeps the guest's journal out of the page cache [default: drop]
    #[arg(long, value_name = "METHOD")]
    journal: Option<JournalArg>,

    /// Most bytes of the host's page cache that the volume may hold
    ///
    /// Above it, data that the guest wrote and has not read since leave the cache. Data that are
    /// not on the storage yet count and stay. Needs --cache writeback, writethrough or pdc.
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    cache_budget: Option<u64>,

    /// Refuse all writes
    #[arg(long)]
    read_only: bool,

    /// Action after the storage failed to write back answered writes
    #[arg(long, value_enum, value_name = "eio|stop", default_value_t = OnLostWrite::Eio)]
    on_lost_write: OnLostWrite,

    /// Virtqueues to offer: a number, or auto
    ///
    /// auto offers one per CPU of the host, and at least 64. A VM's disk uses as many as it has
    /// vCPUs, unless configured otherwise.
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = parse_count)]
    queues: Count,

    /// Threads for the virtqueues: a number, or auto
    ///
    /// auto measures while it serves, and uses as many threads as improve performance. [default:
    /// one per queue, at most one per CPU]
    #[arg(long, value_name = "N|auto", value_parser = parse_count)]
    threads: Option<Count>,

    /// CPUs for the threads: none, auto, or a list such as 0,2-5
    ///
    /// auto takes the first CPUs that this process may use.
    #[arg(long, value_name = "none|auto|LIST", default_value = "none", value_parser = parse_cpus)]
    cpus: CpuChoice,

    /// Busy polling for the next request before a thread sleeps
    #[arg(long, value_enum, value_name = "MODE", default_value_t = PollArg::Balanced)]
    poll: PollArg,

    /// Longest busy polling for the next request, such as 50us; 0 disables it
    ///
    /// The real time adapts to the guest. An idle guest is not polled.
    #[arg(long = "poll-max", alias = "poll-us", value_name = "TIME", default_value = "50us", value_parser = values::time_in::<u64>("us", 0..=1_000_000))]
    poll_us: u64,

    /// vCPU scheduler (vlane sched run) to notify of completed I/O: auto, off, or its socket
    ///
    /// auto uses the scheduler that listens at its usual socket, now or later. [default for --sched
    /// alone: auto]
    #[arg(long, value_name = "auto|off|PATH", default_value = "auto", default_missing_value = "auto", num_args = 0..=1, require_equals = true, value_parser = parse_schedulers)]
    sched: Schedulers,

    /// Use of the I/O priorities of the guest's requests
    #[arg(long, value_enum, value_name = "MODE", default_value_t = ClassesArg::Off)]
    classes: ClassesArg,

    /// I/O priorities that are express, instead of rt,be0-2
    ///
    /// none, rt, be, idle, rt0 to rt7, be0 to be7, and ranges.
    #[arg(long, value_name = "LIST", value_parser = parse_priorities)]
    express: Option<String>,

    /// I/O priorities that are background, instead of be5-7,idle
    #[arg(long, value_name = "LIST", value_parser = parse_priorities)]
    background: Option<String>,

    #[command(flatten)]
    limits: ServeLimits,

    /// How long a stop waits for the storage
    ///
    /// It waits this long for requests in flight, and again for the write-back. Afterwards it logs
    /// the rest and ends.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = values::time_or_none)]
    stop_timeout: Duration,

    /// Longest wait for requests of a killed server that can still write [default: no limit]
    ///
    /// The start waits for an image whose last server was killed and left requests that the storage
    /// has not ended.
    #[arg(long, value_name = "TIME", value_parser = values::time_or_none)]
    lock_timeout: Option<Duration>,

    /// Serial number for the guest, at most 20 characters [default: from the image's path]
    #[arg(long, value_name = "TEXT", value_parser = parse_serial)]
    serial: Option<String>,

    /// Let a guest continue on another or a shorter image than before
    ///
    /// By mistake, this ruins the image.
    #[arg(long)]
    danger_other_image: bool,

    /// Report whether this program can take over from one with the same command line
    #[arg(long, value_name = "FORMAT", hide = true, value_parser = values::whole::<u32>(1..))]
    takes_over: Option<u32>,

    /// Options of `vlane-lab serve`
    #[arg(skip)]
    pub experiments: Experiments,
}

/// Use of the host's page cache.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum CacheArg {
    /// none where the file system can do direct I/O, else writeback
    Auto,
    /// Not used: direct I/O
    None,
    /// Reads and writes use it; the guest's flush writes it to the device
    Writeback,
    /// As writeback, and each write is on the device before it is answered
    Writethrough,
    /// As writeback, and the journal of the guest's file system is dropped after its flush
    Pdc,
}

/// Effect of the guest's trim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DiscardArg {
    /// Free the storage
    On,
    /// Do not offer trim to the guest
    Off,
    /// Zero files without freeing them; leave devices unchanged
    Keep,
}

impl From<DiscardArg> for Discard {
    fn from(arg: DiscardArg) -> Discard {
        match arg {
            DiscardArg::On => Discard::On,
            DiscardArg::Off => Discard::Off,
            DiscardArg::Keep => Discard::Keep,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum JournalArg {
    /// Written through the page cache, and dropped from it after the flush
    Drop,
    /// Read and written around it, on ext4, XFS and block devices; as drop elsewhere
    Direct,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PollArg {
    /// Poll while it makes answers quicker, at any cost
    Latency,
    /// Poll where it costs no more CPU time than sleeping, as measured
    Balanced,
    /// Never poll
    Off,
}

/// Use of the I/O priorities of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ClassesArg {
    /// Treat all requests alike
    Off,
    /// Express first, before a bounded window of requests in flight
    Order,
    /// Express to the submission queue with the fewest requests
    Shortest,
    /// Both order and shortest
    On,
}

impl From<ClassesArg> for Mode {
    fn from(arg: ClassesArg) -> Mode {
        match arg {
            ClassesArg::Off => Mode::Off,
            ClassesArg::Order => Mode::Order,
            ClassesArg::Shortest => Mode::Shortest,
            ClassesArg::On => Mode::On,
        }
    }
}

impl From<PollArg> for PollMode {
    fn from(arg: PollArg) -> PollMode {
        match arg {
            PollArg::Latency => PollMode::Latency,
            PollArg::Balanced => PollMode::Balanced,
            PollArg::Off => PollMode::Off,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnLostWrite {
    /// Answer all later writes and flushes with an error; reads continue
    Eio,
    /// End the sessions and the process, with an error
    Stop,
}

/// Format of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FormatArg {
    /// The guest's disk, byte for byte, whatever it looks like
    Raw,
}

/// A number; `None` for "auto".
#[derive(Debug, Clone, Copy)]
struct Count(Option<u32>);

fn parse_count(text: &str) -> Result<Count, String> {
    if text == "auto" {
        return Ok(Count(None));
    }
    let most = u64::from(vlane_lane::MAX_QUEUES);
    let count = values::whole::<u32>(1..=most)(text);
    count.map(|n| Count(Some(n))).map_err(|why| format!("{why}; `auto` is possible, too"))
}

fn parse_serial(text: &str) -> Result<String, String> {
    match text.len() {
        0..=20 => Ok(text.to_owned()),
        long => Err(format!("it has {long} bytes, longer than 20: a guest sees no more")),
    }
}

fn parse_priorities(text: &str) -> Result<String, String> {
    let mut classes = Classes::normal();
    classes.put(text, Class::Express).map_err(|error| error.to_string())?;
    match classes == Classes::normal() {
        true => Err("name a priority, such as rt,be0-2".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// The table of classes: what is named is the class, and what the default had there is normal.
fn express(args: &ServeArgs) -> Result<Express> {
    let mode = Mode::from(args.classes);
    if !mode.classifies() && (args.express.is_some() || args.background.is_some()) {
        usage!(
            "--express and --background say which I/O priorities are which class; give --classes \
             order, shortest or on with them"
        );
    }
    let mut classes = Classes::normal();
    // The defaults first: a priority that is named is what it is named.
    let lists = [
        (args.background.as_deref().is_none().then_some(Classes::BACKGROUND), Class::Background),
        (args.express.as_deref().is_none().then_some(Classes::EXPRESS), Class::Express),
        (args.background.as_deref(), Class::Background),
        (args.express.as_deref(), Class::Express),
    ];
    for (list, class) in lists {
        // The program before this one has parsed the options.
        classes.put(list.unwrap_or_default(), class)?;
    }
    Ok(Express { mode, classes })
}

fn parse_cpus(text: &str) -> Result<CpuChoice, String> {
    match text {
        "none" => Ok(CpuChoice::Unpinned),
        "auto" => Ok(CpuChoice::Auto),
        list => parse_cpu_list(list).map(CpuChoice::List).map_err(|error| error.to_string()),
    }
}

fn parse_schedulers(text: &str) -> Result<Schedulers, String> {
    match text {
        "" => Err("name a socket, or auto, or off".to_owned()),
        "auto" => Ok(Schedulers::Usual),
        "off" => Ok(Schedulers::None),
        path => Ok(Schedulers::At(path.into())),
    }
}

/// Serves until a signal ends it.
pub fn run(args: &ServeArgs) -> Result<()> {
    serve(args).map_err(|error| {
        // The missing descriptor can be of any kind.
        let is_short = error
            .chain()
            .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
            .any(|cause| matches!(Errno::from_io_error(cause), Some(Errno::MFILE | Errno::NFILE)));
        match is_short && !format!("{error:#}").contains("ulimit -n") {
            true => error.context(
                "too few file descriptors; raise the limit (ulimit -n, or LimitNOFILE= of the \
                 service)",
            ),
            false => error,
        }
    })
}

/// How many threads there are to be.
fn threads(args: &ServeArgs) -> ThreadChoice {
    match args.threads {
        None => ThreadChoice::PerQueue,
        Some(Count(None)) => ThreadChoice::Auto,
        Some(Count(Some(number))) => ThreadChoice::Number(number),
    }
}

/// The engine that serves the requests, and the one that records them on their way to the storage.
fn engine(
    args: &ServeArgs,
    opened: &Opened,
) -> (Arc<dyn Engine>, Option<Arc<vlane_engine::StorageRecorder>>) {
    match opened {
        Opened::Null(engine) => (engine.clone(), None),
        Opened::File(engine) => {
            let served: Arc<dyn Engine> = match model(args) {
                Some(model) => Arc::new(Behind::new(engine.clone(), model)),
                None => engine.clone(),
            };
            (served, engine.recorder().cloned())
        }
    }
}

/// Meaning of an incomplete write-back, in words.
fn unwritten(args: &ServeArgs, volume: &Volume) -> String {
    let image = args.image.as_deref().unwrap_or(Path::new("null")).display();
    match volume.lost_write() {
        Some(_) => {
            format!(
                "{image}: writes that were answered are lost; the guest must check its file systems"
            )
        }
        None => {
            format!("{image}: cannot write everything to the device; unflushed data may be lost")
        }
    }
}

/// Refuses one path for two things, of which one would be in the other's way.
fn check_paths(args: &ServeArgs) -> Result<()> {
    let named = [
        ("the image", args.image.as_deref()),
        ("--socket", Some(&*args.socket)),
        ("--control", args.doors.control.as_deref()),
        ("--control-read-only", args.doors.control_read_only.as_deref()),
        ("--danger-record-storage", args.experiments.danger_record_storage.as_deref()),
    ];
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for (at, (one, path)) in named.iter().enumerate() {
        let is_same =
            |(_, other): &&(&str, Option<&Path>)| path.map(absolute) == other.map(absolute);
        let Some(path) = path else { continue };
        if let Some((other, _)) = named[at + 1..].iter().find(is_same) {
            usage!("{}: is the path of {one} and of {other}; give each its own", path.display());
        }
    }
    Ok(())
}

fn serve(args: &ServeArgs) -> Result<()> {
    check_paths(args)?;
    let express = express(args)?;
    let limits = args.limits.limits(express.mode)?;
    let mut topology =
        Topology::new(args.queues.0, threads(args), &args.cpus).map_err(exit::as_usage)?;
    if args.takes_over.is_some() {
        return upgrade::answer();
    }
    //= vhost-user Backend program conventions
    //# The back-end program must end (as quickly and cleanly as possible) when the SIGTERM signal
    //# is received.
    //= vhost-user Backend program conventions
    //# The back-end program must not daemonize itself, but it may be daemonized by the management
    //# layer.
    // Before anything is opened: an upgrade needs descriptors twice for a moment.
    vlane_error::raise_descriptor_limit();
    // First: a signal that comes while the volume is opened ends it in order, too.
    let signals = signals::hold().context("cannot listen for signals")?;
    logging::tell_from_now_on();
    let mut handed =
        handed::Handed::receive().context("cannot take over from the program before")?;
    if let Some((handed, _)) = &handed {
        // "auto" may be another number by now, and the guest knows this one.
        let queues = Some(u32::from(handed.server.queues()));
        topology = Topology::new(queues, threads(args), &args.cpus).map_err(exit::as_usage)?;
    }
    let image = handed
        .as_mut()
        .and_then(|(handed, from)| handed.image.take().map(|image| image.take(from)));
    let Some(opened) = open(args, image.transpose()?, &signals)? else {
        notify::stopping();
        return Ok(());
    };
    let (engine, recorder) = engine(args, &opened);
    let volume = Volume::new(engine, config(args, topology, express, handed.is_none()))?
        .with_schedulers(args.sched.clone())
        .for_any_guest(args.danger_other_image);
    let limits = handed.as_ref().map_or(limits, |(handed, _)| handed.limits);
    volume.set_limits(limits).map_err(exit::as_usage)?;
    let volume = Arc::new(volume);
    let (listener, control) = sockets(args, &volume, &opened, handed)?;
    let listener = Arc::new(listener);
    let status = format!("serving {} on {}", volume_name(args), args.socket.display());
    notify::ready(&status);
    let sockets = Arc::new(Vanishing::watch(
        std::iter::once(&*args.socket).chain(args.doors.control_paths()),
    ));
    let image = opened.file();
    let _watch = astray::watch(&volume_name(args), image.as_ref());

    let ending = stop::Ending::new(args.stop_timeout);
    let remains = stop::Remains {
        name: volume_name(args),
        volume: Arc::clone(&volume),
        image: image.clone(),
        listener: Arc::clone(&listener),
        sockets: Arc::clone(&sockets),
        control: control.remover(),
    };
    guard(args, &ending, remains)?;
    let belongings = belongings(args, &status, &volume, image.as_ref(), &control);
    let upgrade = upgrade::Upgrade::new(belongings)?;
    listener.name_successor(upgrade.clone());
    let resize = resizer(volume_name(args), Arc::clone(&listener), opened, Arc::clone(&upgrade))?;
    signals::thread(signals, signals::Means { ending: ending.clone(), resize, upgrade, status })?;
    let result = listener.serve(&volume).context("can no longer accept connections");
    sockets.end();
    ending.enter(stop::Stage::Closing);
    // A trace that is being recorded gets its end, after the last request.
    drop(control);
    leave(args, &volume, image.as_ref(), &ending, &listener, recorder, result)
}

/// Leaves nothing behind after the last session, which ended with `served`.
fn leave(
    args: &ServeArgs,
    volume: &Volume,
    image: Option<&Arc<FileEngine>>,
    ending: &stop::Ending,
    listener: &Listener,
    recorder: Option<Arc<vlane_engine::StorageRecorder>>,
    served: Result<()>,
) -> Result<()> {
    ending.enter(stop::Stage::WritingBack);
    // The session was drained when it ended. Data in the page cache or in the device's write cache
    // were never promised to a guest that did not flush. But ending in order means to leave none of
    // them behind.
    let synced = volume.sync();
    // When the process has ended, the image and the guest's memory are free at once.
    volume.end();
    ending.enter(stop::Stage::Done);
    listener.close();
    // After the last thing that is in it.
    let recorded = recorder.map_or(Ok(()), |recorder| recorder.finish());
    let recorded = recorded
        .context("the record of the storage's writes (--danger-record-storage) is not complete");
    let synced = synced.with_context(|| unwritten(args, volume));
    all_of([astray::at_the_end(&volume_name(args), image), synced, recorded, served])
}

/// All that is handed over at an upgrade beside the session.
fn belongings(
    args: &ServeArgs,
    status: &str,
    volume: &Arc<Volume>,
    image: Option<&Arc<FileEngine>>,
    control: &doors::Controls,
) -> upgrade::Belongings {
    upgrade::Belongings {
        name: volume_name(args),
        status: status.to_owned(),
        volume: Arc::clone(volume),
        image: image.cloned(),
        control: control.giver(),
        is_recorded: args.experiments.danger_record_storage.is_some(),
    }
}

/// The configuration of the volume, besides its engine.
fn config(args: &ServeArgs, topology: Topology, express: Express, is_new: bool) -> VolumeConfig {
    let mut config = VolumeConfig {
        name: volume_name(args),
        serial: args.serial.clone().unwrap_or_else(|| default_serial(args.image.as_deref())),
        topology,
        poll: args.poll.into(),
        poll_max: Duration::from_micros(args.poll_us),
        express,
    };
    // A guest that was handed over knows the number.
    if is_new && args.queues.0.is_none() {
        config.fit_descriptors();
    }
    config
}

/// The last of several errors; those before it are logged here.
fn all_of<const N: usize>(results: [Result<()>; N]) -> Result<()> {
    let mut errors: Vec<anyhow::Error> = results.into_iter().filter_map(Result::err).collect();
    let last = errors.pop();
    errors.iter().for_each(|error| tracing::error!("{error:#}"));
    last.map_or(Ok(()), Err)
}

/// Has the session end when the end is asked for, and a lost write ask for it if that is wanted.
fn guard(args: &ServeArgs, ending: &stop::Ending, remains: stop::Remains) -> Result<()> {
    let (stopper, volume) = (remains.listener.stopper(), Arc::clone(&remains.volume));
    ending.guard(remains, move || stopper.stop())?;
    if args.on_lost_write == OnLostWrite::Stop {
        let ending = ending.clone();
        volume.on_lost_write(move || ending.enter(stop::Stage::Draining));
    }
    Ok(())
}

/// The sockets: new ones, or those of the program that handed them over, which gets a message.
fn sockets(
    args: &ServeArgs,
    volume: &Arc<Volume>,
    opened: &Opened,
    handed: Option<(handed::Handed, Arrived)>,
) -> Result<(Listener, doors::Controls)> {
    let Some((mut handed, mut from)) = handed else {
        let listener = Listener::bind_for(&args.socket, args.doors.socket())?;
        let control = args.doors.open(None, volume)?;
        announce(args, volume, opened);
        return Ok((listener, control));
    };
    let is_connected = handed.server.has_session();
    let control = args.doors.open(Some((&mut handed.server, &mut from)), volume)?;
    let listener = Listener::take_over(&args.socket, handed.server, &mut from, volume)?;
    // The rings run.
    let waited =
        Duration::from_nanos(vlane_sched::now().saturating_sub(handed.begun)).as_secs_f64() * 1e3;
    let whom = if is_connected {
        "requests waited"
    } else {
        "no front end is connected; the upgrade took"
    };
    tracing::info!(
        "{}: upgraded in place (version {} to {}), {whom} {waited:.1} ms",
        volume_name(args),
        handed.version,
        handed::VERSION
    );
    Ok((listener, control))
}

/// A thread that looks at the image's size on request. One more request waits while it looks;
/// further ones count as the same.
fn resizer(
    name: String,
    listener: Arc<Listener>,
    opened: Opened,
    upgrade: Arc<upgrade::Upgrade>,
) -> Result<SyncSender<()>> {
    let (sender, receiver) = sync_channel(1);
    std::thread::Builder::new().name("resize".to_owned()).spawn(move || {
        while receiver.recv().is_ok() {
            // A program that takes over must not lose it.
            let _looking = upgrade.looking();
            let Opened::File(file) = &opened else { continue };
            let before = file.geometry().sectors * 512;
            match file.refresh() {
                Ok(true) => {
                    let now = file.geometry().sectors * 512;
                    match now > before {
                        true => tracing::info!(
                            "{name}: grew from {before} to {now} bytes; the guest is notified"
                        ),
                        false => tracing::warn!(
                            "{name}: shrank from {before} to {now} bytes; the guest is notified, \
                             and requests beyond that are refused"
                        ),
                    }
                    listener.size_changed();
                }
                Ok(false) => {
                    tracing::info!("{name}: still has {before} bytes");
                    // The front end may not know: it was stopped, or its back end was killed, when
                    // it was informed.
                    listener.size_changed();
                }
                Err(error) => tracing::warn!("{error}"),
            }
        }
    })?;
    Ok(sender)
}

/// The volume's name in messages.
fn volume_name(args: &ServeArgs) -> String {
    args.image.as_deref().map_or_else(|| "null".to_owned(), |path| path.display().to_string())
}

/// The same image has the same serial number every time, and two images have different ones.
fn default_serial(image: Option<&Path>) -> String {
    let Some(image) = image else { return "vlane-null".to_owned() };
    let path = image.canonicalize().unwrap_or_else(|_| image.to_owned());
    // FNV-1a: stable across versions, which the standard library's hashers are not.
    let hash =
        path.as_os_str().as_encoded_bytes().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("vlane-{:014x}", hash >> 8)
}

/// Says what is served and how to reach it.
fn announce(args: &ServeArgs, volume: &Volume, opened: &Opened) {
    let geometry = volume.geometry();
    // For a program that may run in another directory.
    let socket = std::path::absolute(&args.socket).unwrap_or_else(|_| args.socket.clone());
    let socket = socket.display();
    let how = match opened {
        Opened::Null(_) => "null device".to_owned(),
        Opened::File(file) if file.is_mapped() => "in memory, mapped".to_owned(),
        Opened::File(file) => match file.cache() {
            Cache::Auto | Cache::None => "cache none (direct I/O)".to_owned(),
            Cache::Writeback => "cache writeback".to_owned(),
            Cache::WriteThrough => "cache writethrough".to_owned(),
            Cache::Pdc => "cache pdc (writeback without the guest's journal)".to_owned(),
        },
    };
    let queues = volume.queues();
    // By itself QEMU takes a queue for each vCPU. Cloud Hypervisor takes one.
    let (of_qemu, of_hypervisor) = match args.queues.0 {
        Some(_) => (format!(",num-queues={queues}"), u32::from(queues)),
        None => (String::new(), u32::try_from(online_cpus().len()).unwrap_or(1).min(queues.into())),
    };
    let model = match (args.experiments.latency, args.experiments.device_queues) {
        (None, _) => String::new(),
        (Some(us), queues) => {
            let own = match queues {
                experiments::DeviceQueuesArg::Shared => "",
                experiments::DeviceQueuesArg::RoundRobin => ", a queue for each thread",
            };
            format!(", modelled: {us} us, {} at a time{own}", args.experiments.parallel)
        }
    };
    let read_only = if geometry.read_only { ", read-only" } else { "" };
    let (size, offered) = (show_size(geometry.sectors * 512), counted(queues, "queue"));
    let mut out = std::io::stdout().lock();
    // A reader that is gone is no reason to stop serving.
    let _ = writeln!(
        out,
        "listening on {socket}: {size}, {how}{model}{read_only}, {offered}\n\nQEMU reaches it \
         with (memory must be shared):\n  -object memory-backend-memfd,id=mem,size=2G,share=on \
         -machine q35,memory-backend=mem -m 2G \\\n  -chardev \
         socket,id=vlane,path={socket},reconnect=1 \\\n  -device \
         vhost-user-blk-pci,chardev=vlane{of_qemu},queue-size=1024\nCloud Hypervisor with:\n  \
         --memory size=2G,shared=on --disk \
         vhost_user=on,socket={socket},num_queues={of_hypervisor},queue_size=1024"
    );
    let _ = out.flush();
}
