//! Profiles: loads, targets and repeats of a measurement. TOML, strict: a key that is not known is
//! an error with its line.
//!
//! `docs/src/bench.md` has the table of keys. The profiles that come with vlane are in `profiles/`.

use std::num::{NonZeroU16, NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use vlane_driver::{Arrivals, Limit, Rate, SessionOptions, Wait, Want, Workload};

use super::values::{Ioprio, Pattern, Size, Time};
use vlane_testbed::{Context, ErrorKind, Fail, Result};

/// The profiles that come with vlane: name and text.
const EMBEDDED: [(&str, &str); 8] = [
    ("quick", include_str!("profiles/quick.toml")),
    ("paper", include_str!("profiles/paper.toml")),
    ("blog", include_str!("profiles/blog.toml")),
    ("latency", include_str!("profiles/latency.toml")),
    ("agreement", include_str!("profiles/agreement.toml")),
    ("threads", include_str!("profiles/threads.toml")),
    ("flushes", include_str!("profiles/flushes.toml")),
    ("hard-disk", include_str!("profiles/hard-disk.toml")),
];

/// Names of the profiles that come with vlane, with their titles.
pub fn embedded_names() -> impl Iterator<Item = (&'static str, String)> {
    EMBEDDED.iter().map(|(name, text)| {
        (
            *name,
            Profile::parse(text, name)
                .map_or_else(|error| error.to_string(), |profile| profile.title),
        )
    })
}

/// The text of a profile that comes with vlane.
pub fn embedded(name: &str) -> Option<&'static str> {
    EMBEDDED.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// The measurements of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// One line on its purpose.
    pub title: String,
    /// More words, by paragraph.
    pub text: Vec<String>,
    /// Measurements of each load on each target.
    pub repeats: usize,
    /// Length of each measurement.
    pub time: Duration,
    /// Time before each that does not count.
    pub ramp: Duration,
    /// True if targets are measured in turns.
    pub interleave: bool,
    /// Differences up to this share do not matter: 0.05 is 5 %.
    pub threshold: f64,
    /// Which CPUs back ends and clients run on.
    pub pin: Pin,
    /// Size of the images and of the null device.
    pub size: u64,
    /// The targets of the loads; none if the caller names it.
    pub targets: Vec<Target>,
    /// The loads.
    pub loads: Vec<Load>,
}

/// Which CPUs back ends and clients run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pin {
    /// Wherever the kernel puts them.
    #[default]
    None,
    /// Back ends that the lab starts have the first half of the CPUs, clients the second.
    Apart,
}

/// Target of a load.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Target {
    /// Its name in the results.
    pub name: String,
    /// The back end of the device.
    #[serde(default)]
    pub backend: Backend,
    /// Further arguments of `vlane serve`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Where it listens, for a back end that runs already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// The client that drives it.
    #[serde(default)]
    pub client: Client,
    /// All jobs share one queue, which has room for the requests of all.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub one_queue: bool,
}

/// Back end of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// `vlane serve`, started for the measurement.
    #[default]
    Vlane,
    /// qemu-storage-daemon, started for the measurement.
    QemuStorageDaemon,
    /// One that runs already, at the target's socket.
    Socket,
    /// None: threads of the lab write to the image and sync it, as tasks on the host would.
    Threads,
}

/// Client that drives a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Client {
    /// vlane's own driver.
    #[default]
    Driver,
    /// fio with its libblkio engine.
    Fio,
}

/// Storage of a device that the lab starts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Storage {
    /// None: requests succeed at once.
    #[default]
    Null,
    /// An image on a RAM disk, through the page cache.
    Ram,
    /// An image on a disk, with O_DIRECT.
    Disk,
    /// An image on a disk, through the page cache.
    DiskCached,
}

/// Load of a target. A key that is left out has the value that `vlane-lab bench` has without the
/// option.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Load {
    /// Its name in the results.
    pub name: String,
    /// The pattern.
    pub rw: Pattern,
    /// Bytes per request.
    pub bs: Size,
    /// Requests out at once, per job.
    pub depth: NonZeroU16,
    /// Jobs.
    pub jobs: NonZeroU16,
    /// Queues besides those of the jobs, which are started and not used.
    pub idle: u16,
    /// Requests per second, of all jobs together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// How the requests of a given rate are spaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrivals: Option<Arrivals>,
    /// A flush after so many writes of each of a job's places.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flush_every: Option<NonZeroU32>,
    /// The requests' priority.
    pub ioprio: Ioprio,
    /// How jobs wait for completions.
    pub wait: Wait,
    /// Most requests made visible at once; 0 is all that came back together.
    pub batch: u16,
    /// Start of the region that is used.
    pub offset: Size,
    /// Its length.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// Determines addresses and data.
    pub seed: u64,
    /// Packed rings.
    pub packed: bool,
    /// Switches the device's write cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_cache: Option<bool>,
    /// Segments that the data of a request is cut into.
    pub segments: NonZeroU16,
    /// Storage of a device that the lab starts.
    pub storage: Storage,
    /// Further arguments of `vlane serve` for this load.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            name: String::new(),
            rw: Pattern(Workload::default().pattern),
            bs: Size(4096),
            depth: NonZeroU16::MIN.saturating_add(31),
            jobs: NonZeroU16::MIN,
            idle: 0,
            rate: None,
            arrivals: None,
            flush_every: None,
            ioprio: Ioprio::default(),
            wait: Wait::default(),
            batch: 0,
            offset: Size(0),
            size: None,
            seed: 1,
            packed: false,
            write_cache: None,
            segments: NonZeroU16::MIN,
            storage: Storage::default(),
            args: Vec::new(),
        }
    }
}

impl Load {
    /// A load of a name, with everything else as `vlane-lab bench` has it without options.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// True if two loads ask the same, apart from their names.
    pub fn is_same_as(&self, other: &Self) -> bool {
        Self { name: String::new(), ..self.clone() }
            == Self { name: String::new(), ..other.clone() }
    }

    /// Queues that the client starts.
    pub fn queues(&self) -> u16 {
        self.jobs.get().saturating_add(self.idle)
    }

    /// The session that it needs.
    pub fn session(&self) -> SessionOptions {
        SessionOptions {
            queues: self.queues(),
            depth: self.depth.get(),
            data: u32::try_from(self.bs.0).unwrap_or(u32::MAX),
            segments: self.segments.get(),
            packed: if self.packed { Want::Must } else { Want::No },
            write_cache: self.write_cache,
            ..SessionOptions::default()
        }
    }

    /// The driver's workload.
    pub fn workload(&self, time: Duration, ramp: Duration, cpus: &[usize]) -> Workload {
        Workload {
            pattern: self.rw.0,
            block: u32::try_from(self.bs.0).unwrap_or(u32::MAX),
            offset: self.offset.0,
            size: self.size.map(|size| size.0),
            limit: Limit::Time(time),
            ramp,
            seed: self.seed,
            flush_every: self.flush_every.map(NonZeroU32::get),
            ioprio: self.ioprio.0,
            rate: self
                .rate
                .map(|per_second| Rate { per_second, arrivals: self.arrivals.unwrap_or_default() }),
            wait: self.wait,
            batch: self.batch,
            cpus: cpus.to_vec(),
            idle: self.idle,
        }
    }

    /// Fault of the load by itself.
    fn fault(&self) -> Option<String> {
        let block = self.bs.0;
        if block == 0 || !block.is_multiple_of(512) || block > 64 << 20 {
            return Some(format!("bs = {block}: a block is a multiple of 512 bytes, up to 64M"));
        }
        if block * u64::from(self.depth.get()) * u64::from(self.jobs.get()) > 4 << 30 {
            return Some("bs x depth x jobs: 4 GiB of buffers are the most".into());
        }
        match self.rate {
            Some(rate) if !(rate.is_finite() && rate > 0.0) => {
                Some(format!("rate = {rate}: requests per second must be above 0"))
            }
            None if self.arrivals.is_some() => Some("arrivals: goes with a rate only".into()),
            _ => None,
        }
    }
}

impl Target {
    /// `vlane serve` without further arguments.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// A back end that runs already.
    pub fn at(socket: &Path) -> Self {
        Self {
            backend: Backend::Socket,
            socket: Some(socket.to_path_buf()),
            ..Self::named(socket.display().to_string())
        }
    }

    /// A load as it is put on this target.
    pub fn arrange(&self, load: &Load) -> Load {
        let mut load = load.clone();
        if self.one_queue {
            load.depth = load.depth.saturating_mul(load.jobs);
            load.jobs = NonZeroU16::MIN;
        }
        load
    }

    fn fault(&self) -> Option<String> {
        match (self.backend, &self.socket) {
            (Backend::Socket, None) => Some("backend = \"socket\": needs the key `socket`".into()),
            (Backend::Vlane | Backend::QemuStorageDaemon | Backend::Threads, Some(_)) => {
                Some("socket: goes with backend = \"socket\" only".into())
            }
            (Backend::Threads, _) if self.client != Client::Driver => {
                Some("backend = \"threads\": drives itself; leave out `client`".into())
            }
            (Backend::Socket | Backend::QemuStorageDaemon | Backend::Threads, _)
                if !self.args.is_empty() =>
            {
                Some("args: are arguments of `vlane serve`; this target does not start it".into())
            }
            _ => None,
        }
    }
}

/// A profile's file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    title: String,
    #[serde(default)]
    text: Vec<String>,
    repeats: Option<NonZeroUsize>,
    time: Option<Time>,
    ramp: Option<Time>,
    interleave: Option<bool>,
    threshold: Option<Spanned<f64>>,
    #[serde(default)]
    pin: Pin,
    size: Option<Size>,
    #[serde(default)]
    target: Vec<Spanned<Target>>,
    load: Vec<Spanned<Load>>,
}

/// Fault of a name in a profile, which may stand there `twice`.
fn name_fault(name: &str, twice: bool) -> Option<String> {
    match name {
        "" => Some("name: is missing".into()),
        _ => twice.then(|| "name: there is another of this name".into()),
    }
}

impl Profile {
    /// A profile of some loads; everything else is as in a file without other keys.
    pub fn of(title: impl Into<String>, loads: Vec<Load>) -> Self {
        Self {
            title: title.into(),
            text: Vec::new(),
            repeats: 5,
            time: Duration::from_secs(3),
            ramp: Duration::from_secs(1),
            interleave: true,
            threshold: 0.05,
            pin: Pin::None,
            size: 1 << 30,
            targets: Vec::new(),
            loads,
        }
    }

    /// Reads a profile by its name, if it comes with vlane, or else from a file.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if there is no such file, [`ErrorKind::Format`] if it is not a profile.
    pub fn find(name: &str) -> Result<Self> {
        if let Some(text) = embedded(name) {
            return Self::parse(text, name);
        }
        let names: Vec<_> = EMBEDDED.iter().map(|(name, _)| *name).collect();
        let text = std::fs::read_to_string(name).context(ErrorKind::Io, || {
            format!(
                "{name}: no profile of this name comes with vlane ({} do), and no such file can \
                 be read",
                names.join(", ")
            )
        })?;
        Self::parse(&text, name)
    }

    /// Reads a profile from its text; `origin` is what errors call it.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] with the line and the key.
    pub fn parse(text: &str, origin: &str) -> Result<Self> {
        let file: File = toml::from_str(text).or_else(|error| {
            let error = error.to_string();
            ErrorKind::Format.fail(format!("{origin}: not a profile: {}", error.trim_end()))
        })?;
        let at = |span: std::ops::Range<usize>| {
            text[..span.start.min(text.len())].matches('\n').count() + 1
        };
        let wrong = |span, what: String| {
            ErrorKind::Format.fail(format!("{origin}, line {}: {what}", at(span)))
        };
        let mut profile = Self::of(file.title, Vec::new());
        if let Some(threshold) = file.threshold {
            let share = *threshold.get_ref();
            if !(0.0..1.0).contains(&share) {
                return wrong(
                    threshold.span(),
                    format!("threshold = {share}: a share from 0 to 1"),
                );
            }
            profile.threshold = share;
        }
        for target in file.target {
            let (span, target) = (target.span(), target.into_inner());
            let twice = profile.targets.iter().any(|other| other.name == target.name);
            if let Some(fault) = name_fault(&target.name, twice).or_else(|| target.fault()) {
                return wrong(span, format!("target `{}`: {fault}", target.name));
            }
            profile.targets.push(target);
        }
        for load in file.load {
            let (span, load) = (load.span(), load.into_inner());
            let twice = profile.loads.iter().any(|other| other.name == load.name);
            if let Some(fault) = name_fault(&load.name, twice).or_else(|| load.fault()) {
                return wrong(span, format!("load `{}`: {fault}", load.name));
            }
            profile.loads.push(load);
        }
        if profile.loads.is_empty() {
            return ErrorKind::Format.fail(format!("{origin}: has no [[load]]"));
        }
        profile.text = file.text;
        profile.repeats = file.repeats.map_or(profile.repeats, NonZeroUsize::get);
        profile.time = file.time.map_or(profile.time, |time| time.0);
        profile.ramp = file.ramp.map_or(profile.ramp, |time| time.0);
        profile.interleave = file.interleave.unwrap_or(profile.interleave);
        profile.pin = file.pin;
        profile.size = file.size.map_or(profile.size, |size| size.0);
        Ok(profile)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn builtin_profiles_are_readable_and_described() {
        for (name, text) in EMBEDDED {
            let profile = Profile::parse(text, name).unwrap_or_else(|e| panic!("{e}"));
            assert!(!profile.title.is_empty() && profile.repeats >= 3, "{name}");
        }
        assert!(Profile::find("quick").is_ok());
        let error = Profile::find("/does/not/exist.toml").unwrap_err().to_string();
        assert!(error.contains("quick") && error.contains("exist.toml"), "{error}");
    }

    #[test]
    fn every_profile_setting_is_parsed() {
        let text = r#"
            title = "all keys"
            text = ["one paragraph"]
            repeats = 7
            time = "1500ms"
            ramp = 0.5
            interleave = false
            threshold = 0.1
            pin = "apart"
            size = "2G"
            [[target]]
            name = "a"
            args = ["--queues", "2"]
            [[target]]
            name = "b"
            backend = "socket"
            socket = "/run/b.sock"
            client = "fio"
            [[load]]
            name = "all"
            rw = "randrw:70"
            bs = "32k"
            depth = 4
            jobs = 2
            rate = 1000
            arrivals = "poisson"
            flush-every = 8
            ioprio = "be/3"
            wait = "poll"
            batch = 1
            offset = "1M"
            size = "8M"
            seed = 9
            packed = true
            write-cache = true
            segments = 2
            storage = "ram"
            args = ["--latency", "10"]
        "#;
        let profile = Profile::parse(text, "test").unwrap();
        assert_eq!(
            (profile.repeats, profile.time, profile.ramp),
            (7, Duration::from_millis(1500), Duration::from_millis(500))
        );
        assert_eq!((profile.interleave, profile.pin, profile.size), (false, Pin::Apart, 2 << 30));
        assert_eq!(
            (profile.targets[0].backend, profile.targets[1].client),
            (Backend::Vlane, Client::Fio)
        );
        let load = &profile.loads[0];
        let workload = load.workload(profile.time, profile.ramp, &[1]);
        assert_eq!(
            (workload.block, workload.ioprio, workload.flush_every),
            (32768, 16387, Some(8))
        );
        assert_eq!(
            (workload.offset, workload.size, workload.wait),
            (1 << 20, Some(8 << 20), Wait::Poll)
        );
        assert_eq!(workload.rate, Some(Rate { per_second: 1000.0, arrivals: Arrivals::Poisson }));
        assert_eq!((load.session().queues, load.session().packed), (2, Want::Must));
        // And what is left out is what `vlane-lab bench` has without the option.
        let short = Profile::parse("title = \"t\"\n[[load]]\nname = \"n\"", "test").unwrap();
        assert_eq!(short.loads[0], Load::named("n"));
        let default = short.loads[0].workload(Duration::from_secs(5), Duration::from_secs(1), &[]);
        assert_eq!(format!("{default:?}"), format!("{:?}", Workload::default()));
    }

    #[test]
    fn faults_name_line_and_key() {
        let load = "title = \"t\"\n[[load]]\nname = \"x\"\n";
        for (text, line, key) in [
            (format!("{load}dept = 3\n"), 4, "dept"),
            (format!("{load}depth = 0\n"), 4, "depth"),
            (format!("{load}rw = \"sideways\"\n"), 4, "sideways"),
            (format!("{load}bs = \"4x\"\n"), 4, "4x"),
            (format!("{load}bs = 1000\n"), 2, "bs"),
            (format!("{load}rate = -5\n"), 2, "rate"),
            (format!("{load}arrivals = \"poisson\"\n"), 2, "arrivals"),
            (format!("{load}[[load]]\nname = \"x\"\n"), 4, "name"),
            (format!("repeats = 0\n{load}"), 1, "repeats = 0"),
            (format!("threshold = 5.0\n{load}"), 1, "threshold"),
            (format!("time = \"soon\"\n{load}"), 1, "soon"),
            (format!("{load}[[target]]\nname = \"a\"\nbackend = \"socket\"\n"), 4, "socket"),
            (format!("{load}[[target]]\nname = \"a\"\nbackend = \"disk\"\n"), 6, "disk"),
            (format!("{load}[[target]]\nname = \"a\"\nsocket = \"/x\"\n"), 4, "socket"),
            (format!("{load}[[tarket]]\nname = \"a\"\n"), 4, "tarket"),
        ] {
            let error = Profile::parse(&text, "my.toml").unwrap_err();
            let words = error.to_string();
            assert_eq!(error.kind(), ErrorKind::Format);
            assert!(
                words.starts_with("my.toml") && words.contains(&format!("line {line}")),
                "{text}: {words}"
            );
            assert!(words.contains(key), "{text}: {words}");
        }
        assert!(Profile::parse("title = \"t\"\n", "my.toml").is_err());
    }
}
