//! The measurements of a profile, one after the other.
//!
//! Requirements are checked first: programs, room for images, back ends that do not answer, loads
//! that do not fit a device. A back end that the lab starts lives as long as measurements of the
//! same back end follow each other. So two clients of one back end meet the same process, and of
//! two back ends only the measured one runs.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use vlane_driver::Session;
use vlane_error::counted;
use vlane_guest::{BlkioFio, Host};

use super::blkio;
use super::plan::order;
use super::profile::{Backend, Client, Load, Pin, Profile, Storage, Target};
use super::saved::{LoadRuns, Run, Saved, TargetRuns};
use super::threads;
use vlane_report::{Report, usable_cpus};
use vlane_testbed::{
    Aio, Call, Context, Control, Counters, Error, ErrorKind, Fail, Image, Medium, Place, Progress,
    Result, SAVED, Server, Storage as Served, usage,
};

/// Place and means of a measurement.
#[derive(Debug)]
pub struct Setting<'a> {
    /// vlane's own file, the command, and the user's wish to end it.
    pub call: &'a Call<'a>,
    /// Finds programs, and installs missing ones if that was allowed.
    pub host: &'a Host,
    /// CPUs for the clients' jobs, one after the other, instead of the profile's choice; empty
    /// leaves it.
    pub client_cpus: &'a [usize],
    /// A directory on a RAM disk, if the usual ones will not do.
    pub ram_dir: Option<&'a Path>,
    /// A directory on the disk, if the usual ones will not do.
    pub disk_dir: Option<&'a Path>,
}

/// A back end that the lab starts: two measurements with the same of these use the same process.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ServerSetup {
    backend: Backend,
    storage: Storage,
    args: Vec<String>,
    queues: u16,
    /// Its counters are looked at.
    counted: bool,
}

/// Requirements of the measurements.
struct Bench<'a> {
    profile: &'a Profile,
    setting: &'a Setting<'a>,
    dir: TempDir,
    qsd: Option<PathBuf>,
    fio: Option<BlkioFio>,
    ram: Option<Image>,
    disk: Option<Image>,
    server_cpus: Vec<usize>,
    client_cpus: Vec<usize>,
    running: Option<(ServerSetup, Server, Option<Control>)>,
}

/// Measures a profile, which must have targets. If it is interrupted after the first measurement,
/// the measurements so far are the result, and [`Saved::partial`] says so.
///
/// # Errors
/// [`ErrorKind::Missing`] and [`ErrorKind::Invalid`], for missing or unfit parts, before the first
/// measurement. [`ErrorKind::Interrupted`]. [`ErrorKind::Process`] if a back end or client fails,
/// or requests do.
pub fn measure(profile: &Profile, setting: &Setting<'_>, progress: &mut Progress) -> Result<Saved> {
    let mut bench = Bench::new(profile, setting)?;
    let mut loads = nothing_yet(profile);
    let mut partial = false;
    for step in
        order(profile.loads.len(), profile.targets.len(), profile.repeats, profile.interleave)
    {
        let (load, target) = (&profile.loads[step.load], &profile.targets[step.target]);
        progress.step(format!("{}: {}", load.name, target.name));
        let results = &mut loads[step.load].targets[step.target];
        let run = setting
            .call
            .interrupt
            .check()
            .and_then(|()| bench.run(load, target, results, progress));
        // The user's interrupt is the reason, before any other failure.
        if run.is_err() && setting.call.interrupt.is_raised() {
            partial = true;
            break;
        }
        let run = run.map_err(|error| {
            let context = format!("{} on {}: {error}", load.name, target.name);
            match std::error::Error::source(&error) {
                Some(source) => Error::caused_by(error.kind(), context, source.to_string()),
                None => Error::new(error.kind(), context),
            }
        })?;
        results.runs.push(run);
    }
    progress.clear();
    if partial && loads.iter().all(|load| load.targets.iter().all(|target| target.runs.is_empty()))
    {
        return ErrorKind::Interrupted.fail("interrupted before anything was measured");
    }
    let programs: &[&str] = if bench.qsd.is_some() { &["qemu-storage-daemon"] } else { &[] };
    let Report { title, command, created, seconds, mut machine, .. } =
        setting.call.begun.report("bench", &profile.title, programs);
    if let Some(version) = bench.fio.as_ref().and_then(|fio| fio.version()) {
        machine.versions.push(("fio".into(), version));
    }
    Ok(Saved {
        schema: SAVED.into(),
        title,
        text: profile.text.clone(),
        command,
        created,
        seconds,
        machine,
        time: profile.time.as_secs_f64(),
        ramp: profile.ramp.as_secs_f64(),
        interleaved: profile.interleave,
        threshold: profile.threshold,
        pin: profile.pin,
        partial,
        loads,
    })
}

/// A profile's results before the first measurement.
pub(super) fn nothing_yet(profile: &Profile) -> Vec<LoadRuns> {
    let targets = || {
        let empty = |target: &Target| TargetRuns {
            target: target.clone(),
            server: None,
            client: None,
            runs: Vec::new(),
        };
        profile.targets.iter().map(empty).collect()
    };
    profile.loads.iter().map(|load| LoadRuns { load: load.clone(), targets: targets() }).collect()
}

impl<'a> Bench<'a> {
    /// Looks for programs and CPUs, and makes the images.
    fn new(profile: &'a Profile, setting: &'a Setting<'a>) -> Result<Self> {
        let (targets, loads) = (&profile.targets, &profile.loads);
        if targets.is_empty() {
            return usage(
                "the profile names no target; give a socket, or add [[target]] to the profile",
            );
        }
        let with_fio = targets.iter().any(|target| target.client == Client::Fio);
        if with_fio
            && let Some((load, what)) =
                loads.iter().find_map(|load| Some((load, blkio::cannot(load)?)))
        {
            let context = format!("load `{}`: fio's libblkio engine cannot do {what}", load.name);
            return ErrorKind::Invalid.fail(context);
        }
        let has = |backend| targets.iter().any(|target| target.backend == backend);
        let qsd = match has(Backend::QemuStorageDaemon) {
            true => Some(setting.host.program("qemu-storage-daemon")?),
            false => None,
        };
        let fio = if with_fio { Some(BlkioFio::find(setting.host)?) } else { None };
        let (server_cpus, mut client_cpus) = cpus(profile.pin)?;
        if !setting.client_cpus.is_empty() {
            client_cpus = setting.client_cpus.to_vec();
        }
        if !(server_cpus.is_empty() && client_cpus.is_empty()) {
            setting.host.program("taskset")?;
        }
        for target in targets {
            if let Some(socket) = &target.socket {
                loads.iter().try_for_each(|load| fits(socket, load, profile))?;
            }
        }
        if has(Backend::Threads)
            && let Some((load, what)) =
                loads.iter().find_map(|load| Some((load, threads::cannot(load)?)))
        {
            let context =
                format!("load `{}`: threads without a back end cannot do {what}", load.name);
            return ErrorKind::Invalid.fail(context);
        }
        let started = targets.iter().any(|target| target.backend != Backend::Socket);
        let image = |storages: &[Storage], medium, wanted, option| -> Result<Option<Image>> {
            if !started || loads.iter().all(|load| !storages.contains(&load.storage)) {
                return Ok(None);
            }
            let place = Place::find(medium, wanted, profile.size, option)?;
            Ok(Some(place.image(profile.size, setting.call.interrupt)?))
        };
        Ok(Self {
            ram: image(&[Storage::Ram], Medium::Ram, setting.ram_dir, "--ram-dir")?,
            disk: image(
                &[Storage::Disk, Storage::DiskCached],
                Medium::Disk,
                setting.disk_dir,
                "--disk-dir",
            )?,
            dir: TempDir::with_prefix("vlane-bench-")
                .context(ErrorKind::Io, || "no temporary directory for sockets")?,
            profile,
            setting,
            qsd,
            fio,
            server_cpus,
            client_cpus,
            running: None,
        })
    }

    /// One measurement.
    fn run(
        &mut self,
        load: &Load,
        target: &Target,
        results: &mut TargetRuns,
        progress: &mut Progress,
    ) -> Result<Run> {
        let (time, ramp) = (self.profile.time, self.profile.ramp);
        let load = &target.arrange(load);
        if target.backend == Backend::Threads {
            self.running = None;
            let image = self.image(&load.storage)?;
            return threads::measure(image, load, (time, ramp), self.setting.call.interrupt);
        }
        let (socket, pid) = match &target.socket {
            Some(socket) => {
                self.running = None;
                (socket.clone(), None)
            }
            None => {
                let server = self.serve(load, target)?;
                results.server = Some(server.command().to_string());
                (server.socket().to_path_buf(), Some(server.pid()))
            }
        };
        let interrupt = self.setting.call.interrupt;
        if let (Client::Fio, Some(fio)) = (target.client, &self.fio) {
            let words = blkio::options(load, &socket, time, ramp);
            results.client = Some(fio.spec(&words).shell_line());
            let pid = pid.and_then(|pid| i32::try_from(pid).ok());
            let mut looks = Vec::new();
            let mut look = || looks.extend(pid.and_then(vlane_cost::Snapshot::of));
            let mut run =
                blkio::measure(fio, words, (time, ramp), &self.client_cpus, &mut look, interrupt)?;
            pid.into_iter().for_each(|pid| blkio::observed(&mut run, pid, &looks));
            return Ok(run);
        }
        let mut options = load.session();
        // As a guest that mounts the device would have it. Back ends that the lab starts begin
        // with different caches.
        if target.socket.is_none() && load.storage != Storage::Null {
            options.write_cache = options.write_cache.or(Some(true));
        }
        let before = self.counters(target)?;
        let session = match &mut self.running {
            Some((_, server, _)) if target.socket.is_none() => server.connect(&options)?,
            _ => Session::connect(&socket, &options)?,
        };
        let workload = load.workload(time, ramp, &self.client_cpus);
        let report = vlane_driver::run(session, &workload, &mut |state| {
            progress.detail(&(vlane_report::figure::with_unit(state.iops, "IOPS")));
            interrupt.going_on()
        })?;
        interrupt.check()?;
        match report.errors.total() {
            0 => {
                let mut run = Run::of(&report);
                if let (Some(flushes), Some((before, after))) =
                    (&mut run.flushes, before.zip(self.counters(target)?))
                {
                    let of =
                        |counters: &Counters, name| counters.sum.get(name).copied().unwrap_or(0);
                    let rose = |name| of(&after, name).saturating_sub(of(&before, name));
                    let ratio = rose("fdatasyncs") as f64 / rose("flushes").max(1) as f64;
                    flushes.fdatasyncs = Some(ratio);
                }
                Ok(run)
            }
            n => {
                ErrorKind::Process.fail(format!("{n} of {} failed", counted(report.ios, "request")))
            }
        }
    }

    /// The back end's counters so far, if it was started with a control socket.
    fn counters(&self, target: &Target) -> Result<Option<Counters>> {
        match &self.running {
            Some((_, _, control)) if target.socket.is_none() => {
                control.as_ref().map(Control::counters).transpose()
            }
            _ => Ok(None),
        }
    }

    /// The image of a storage, and whether it is used with O_DIRECT.
    fn image(&self, storage: &Storage) -> Result<(&Path, bool)> {
        let image = if *storage == Storage::Ram { &self.ram } else { &self.disk };
        let image = image.as_ref().filter(|_| *storage != Storage::Null);
        let path = image.map(Image::path);
        path.map(|path| (path, *storage == Storage::Disk))
            .ok_or_else(|| Error::new(ErrorKind::Invalid, "there is no image for this load"))
    }

    /// The back end for a load on a target: the one that runs, if it is the same.
    fn serve(&mut self, load: &Load, target: &Target) -> Result<&Server> {
        let args: Vec<_> = match target.backend {
            Backend::Vlane => target.args.iter().chain(&load.args).cloned().collect(),
            Backend::QemuStorageDaemon | Backend::Socket | Backend::Threads => Vec::new(),
        };
        let counted = target.backend == Backend::Vlane && load.flush_every.is_some();
        let (storage, queues) = (load.storage.clone(), load.queues());
        let kind = ServerSetup { backend: target.backend, storage, args, queues, counted };
        let running = match self.running.take() {
            Some((old, server, control)) if old == kind => (old, server, control),
            old => {
                // The old one ends first: both would use CPUs, and an image is locked.
                drop(old);
                let control = kind.counted.then(|| self.dir.path().join("control.sock"));
                let server = self.start(&kind, control.as_deref())?;
                (kind, server, control.map(Control::new))
            }
        };
        Ok(&self.running.insert(running).1)
    }

    fn start(&self, kind: &ServerSetup, control: Option<&Path>) -> Result<Server> {
        let storage = match kind.storage {
            Storage::Null => Served::null(self.profile.size),
            Storage::Ram | Storage::Disk | Storage::DiskCached => {
                let (path, direct) = self.image(&kind.storage)?;
                Served::File { path, direct }
            }
        };
        let mut args = kind.args.clone();
        if let Some(control) = control {
            args.extend(["--control".into(), control.display().to_string()]);
        }
        if !args.iter().any(|word| word == "--queues" || word.starts_with("--queues=")) {
            let usual = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            if usize::from(kind.queues) > usual {
                args.extend(["--queues".into(), kind.queues.to_string()]);
            }
        }
        match (kind.backend, &self.qsd) {
            (Backend::QemuStorageDaemon, Some(qsd)) => Server::qemu_storage_daemon(
                Aio::IoUring,
                qsd,
                self.dir.path(),
                storage,
                &self.server_cpus,
                kind.queues,
            ),
            _ => Server::vlane(
                self.setting.call.vlane,
                self.dir.path(),
                storage,
                &self.server_cpus,
                &args,
            ),
        }
    }
}

/// Checks that a load fits a running back end.
fn fits(socket: &Path, load: &Load, profile: &Profile) -> Result<()> {
    let told = |error: vlane_driver::Error| {
        let error = Error::from(error);
        let context = format!("load `{}`: {error}", load.name);
        Error::new(error.kind(), context)
    };
    let session = Session::connect(socket, &load.session()).map_err(told)?;
    let workload = load.workload(profile.time, profile.ramp, &[]);
    workload.check(session.config(), session.negotiated()).map_err(told).map(drop)
}

/// CPUs for back ends and for clients; none means that they are not bound.
fn cpus(pin: Pin) -> Result<(Vec<usize>, Vec<usize>)> {
    if pin == Pin::None {
        return Ok((Vec::new(), Vec::new()));
    }
    let usable = usable_cpus()?;
    match usable.len() {
        0 | 1 => ErrorKind::Invalid.fail(
            "pin = \"apart\" needs two CPUs, this process has one; use a profile with pin = \
             \"none\"",
        ),
        n => Ok((usable[..n / 2].to_vec(), usable[n / 2..].to_vec())),
    }
}
