//! A guest with a crowd of readers on a model of a drive, and a shell for the foreground's
//! commands.
//!
//! One guest has a disk for each mode of the back end, so all variants are measured in turns within
//! one boot. They differ only in the disk used, and in raising the foreground. The load is a script
//! for a real bash in a pseudo-terminal (`script` of util-linux): its commands are foreground jobs,
//! like typed ones. `vlane-fg` raises them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use vlane::values;
use vlane_guest::{Disk, Guest, Host, Initramfs, ext4};

use super::script::with_parts;
use super::{BLOCK, Mode, Model, VOLUME, Variant, distinct, options_in, parse_latency, word};
use vlane_capture::Trace;
use vlane_report::{Arms, Report};
use vlane_testbed::{
    At, Call, Classes, Context, Control, Error, ErrorKind, Image, Installs, Interrupt, Machines,
    Maker, Medium, Output, Place, Progress, Raiser, RecordOptions, Result, Rounds, Server, Storage,
    fio, in_turns, record, settle, trouble, wait,
};

/// Longest time from the start to the guest's first word, emulated on a busy machine.
pub(crate) const BOOT: Duration = Duration::from_secs(240);
/// Time that a guest may take to start and end its crowd, beside the measurement.
const AROUND: Duration = Duration::from_secs(180);
/// A guest that lives longer than any measurement.
pub(crate) const LIFE: Duration = Duration::from_secs(4 * 3600);
/// Requests that the drive works on at the same time unless it is said.
const PARALLEL: u16 = 2;
/// Size of a new file system and of its journal.
pub(super) const FRESH: (u64, u64) = (1 << 30, 64 << 20);
/// Duration of a recording.
const RECORDED: Duration = Duration::from_secs(8);

/// Options of both kinds of guests
#[derive(Debug, Clone, Args)]
pub struct GuestArgs {
    /// Kinds of guests: uml, qemu
    #[arg(long = "where", value_name = "LIST", value_delimiter = ',', hide_possible_values = true)]
    #[arg(default_value = "uml,qemu")]
    pub(super) places: Vec<Machines>,
    /// Variants: vanilla, cpu, cpu+io, cpu+size, proposed; the first is the baseline
    #[arg(long, value_name = "LIST", value_delimiter = ',', hide_possible_values = true)]
    #[arg(default_value = "vanilla,cpu,cpu+io,cpu+size,proposed")]
    pub(super) variants: Vec<Variant>,
    /// Readers in the background
    #[arg(long, value_name = "N", value_parser = values::whole::<u16>(1..=4096))]
    pub(super) readers: Option<u16>,
    /// Number of measurements of each combination
    #[arg(long = "repeat", alias = "rounds", value_name = "N", default_value_t = 5,
        value_parser = values::whole::<usize>(1..=1000))]
    pub(super) rounds: usize,
    /// Service time of the drive, such as 1ms [default: 1ms in uml, 2ms in qemu]
    ///
    /// A bare number is in microseconds.
    #[arg(long, value_name = "TIME", value_parser = parse_latency)]
    pub(super) latency: Option<Duration>,
    /// Requests that the drive serves in parallel [default: 2]
    #[arg(long, value_name = "N", requires = "latency", value_parser = values::whole::<u16>(1..))]
    pub(super) parallel: Option<u16>,
    /// Time for the background readers to settle
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = values::time_or_none)]
    pub(super) ramp: Duration,
    #[command(flatten)]
    pub(super) fg: Raiser,
    #[command(flatten)]
    pub(super) installs: Installs,
}

/// Storage behind the model of a drive.
#[derive(Debug, Clone, Copy)]
pub(super) enum Behind<'a> {
    /// None: a device without media.
    Nothing,
    /// An image with programs, for all variants.
    Programs(&'a Path),
    /// A new file system for each mode, in RAM; or on a real drive, without the model, and with
    /// direct I/O if it is true. One turn of each variant is recorded.
    Fresh(Option<(&'a Place, bool)>),
}

impl Behind<'_> {
    /// Options of the file system's mount; empty without one.
    fn mount(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Programs(_) => "ro,noload",
            Self::Fresh(_) => "data=ordered,noinit_itable",
        }
    }
}

/// The task of a guest.
pub(super) struct Task<'a> {
    /// The guest.
    pub(super) place: Machines,
    /// Readers in the background.
    pub(super) readers: u16,
    /// Commands typed at the shell; `@DEV@` stands for the disk, `@SEQ@` for the measurement's
    /// number.
    pub(super) typed: String,
    /// Names of their results: `RESULT key.SEQ=value`.
    pub(super) keys: &'a [String],
    /// Commands that start further background programs, with their process IDs in `$beside`.
    pub(super) beside: String,
    /// Behind the drive.
    pub(super) behind: Behind<'a>,
    /// Estimated time of one measurement beside the ramp, and the longest.
    pub(super) takes: (Duration, Duration),
}

/// A guest, with all arms.
#[derive(Debug)]
pub struct PlaceResult<S> {
    /// The guest.
    pub place: Machines,
    /// It in words.
    pub about: String,
    /// Its disks, in words.
    pub disks: String,
    /// The drive, in words.
    pub drive: String,
    /// Readers in the background.
    pub readers: u16,
    /// The measurements.
    pub arms: Arms<S>,
    /// Recorded turns: the variant, the requests, and the counts of its disk's classes at the end.
    pub recorded: Vec<(Variant, Trace, Classes)>,
}

/// Prepares the disks and follows commands. For its parts see [`with_parts`].
const SCRIPT: &str = r#"
@TERMINAL@
for dev in @DEVICES@; do
    queue=/sys/block/$dev/queue
    echo none > $queue/scheduler
    chosen=$(sed 's/.*\[\(.*\)\].*/\1/' $queue/scheduler)
    queues=$(ls /sys/block/$dev/mq | wc -l)
    tags=$(cat $queue/nr_requests)
    echo "RESULT disk.$dev=$queues queue(s) with $tags tags each, I/O scheduler $chosen"
    if [ -n "@MOUNT@" ]; then
        mkdir -p /mnt/$dev
        mount -t ext4 -o @MOUNT@ /dev/$dev /mnt/$dev || exit 1
        [ -d /mnt/$dev/proc ] || continue
        mount -t proc proc /mnt/$dev/proc
        mount -t tmpfs tmpfs /mnt/$dev/tmp
        mount -o bind /dev /mnt/$dev/dev
    fi
done
counters() {
    read -r ios merged sectors ticks rest < /sys/block/$1/stat
    read -r cpu user nice system idle waiting irq soft rest < /proc/stat
    read -r up rest < /proc/uptime
    bytes=$(stat -c %s /mnt/$1/background 2>/dev/null)
    echo "$up $ios $ticks $((user + nice + system + irq + soft)) $((idle + waiting)) ${bytes:-0}"
}
echo "RESULT kernel=$(uname -r)"
echo "RESULT ready=1"
while read -r command seq dev raise; do
    [ "$command" = measure ] || exit 0
    rm -f /tmp/crowd
@CROWD_READS@
    beside=
    @BESIDE@
    sleep @RAMP@
    sed "s/@DEV@/$dev/g; s/@SEQ@/$seq/g" /typed > /tmp/typed
@AGENT_BEGINS@
    read -r reading writing < /sys/block/$dev/inflight
    echo "RESULT before.$seq=$(counters $dev) $reading"
    script -q -c "bash --noediting --rcfile /etc/$rc.rc -i" /dev/null < /tmp/typed
    echo
    read -r reading writing < /sys/block/$dev/inflight
    echo "RESULT after.$seq=$(counters $dev) $reading"
@AGENT_ENDS@
    [ -z "$beside" ] || kill $beside
    kill -INT $crowd
    wait $crowd
    grep '^3;' /tmp/crowd > /tmp/crowd.line || cat /tmp/crowd /tmp/crowd.said
    echo "RESULT crowd.$seq=$(cat /tmp/crowd.line)"
    echo "RESULT done.$seq=1"
done
"#;

/// A shell without additions.
const PLAIN: &str = "PS1=\nPS2=\n";
/// And where the foreground is raised, by what the user would write into `~/.bashrc`.
const RAISED: &str = "PS1=\nPS2=\neval \"$(vlane-fg hook bash)\"\n";

/// A guest's files: its script with the programs of readers and of a shell, vlane's own file and
/// that of vlane-fg.
pub(crate) fn with_shell(script: String, vlane: &Path, fg: Option<&Path>) -> Initramfs {
    let guest = Initramfs::new(script)
        .programs(["fio", "bash", "script"])
        .program_at("vlane", vlane)
        .file("etc/plain.rc", 0o644, PLAIN)
        .file("etc/raised.rc", 0o644, RAISED)
        .file("etc/passwd", 0o644, "root:x:0:0:root:/root:/usr/bin/bash\n");
    fg.into_iter().fold(guest, |guest, fg| guest.program_at("vlane-fg", fg))
}

/// Figures of the crowd during the foreground's work.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Beside {
    /// For so long, in seconds.
    pub seconds: f64,
    /// Reads of all processes in that time.
    pub reads: f64,
    /// Mean time of a read from the moment at which it had a tag, in ms.
    pub device_ms: f64,
    /// Mean time of one of the crowd's reads, as fio has it, in ms.
    pub crowd_ms: f64,
    /// Part of it in the call that submits it, in ms: there it waits for a tag in the guest, beyond
    /// the reach of any back end.
    pub tag_ms: f64,
    /// CPU time that the guest used, of what it had: 0 to 1.
    pub busy: f64,
    /// Requests in flight at the beginning.
    pub in_flight: f64,
    /// Bytes that a background program added to its file.
    pub written: f64,
    /// CPU time of the back end for a request, in us.
    pub cpu_us: f64,
}

impl Beside {
    /// From the guest's counters before and after, and the times of the crowd's reads and of the
    /// calls that submit them.
    fn of(before: [f64; 7], after: [f64; 7], crowd_us: f64, submit_us: f64) -> Self {
        let since = |at: usize| after[at] - before[at];
        let [seconds, reads, read_ms, busy, idle, written, _] = std::array::from_fn(since);
        Self {
            seconds,
            reads,
            device_ms: read_ms / reads.max(1.0),
            crowd_ms: crowd_us / 1e3,
            tag_ms: submit_us / 1e3,
            busy: busy / (busy + idle).max(1.0),
            in_flight: before[6],
            written,
            cpu_us: 0.0,
        }
    }

    /// Blocks that a background program appended, each with an fsync, per second.
    pub fn appended_per_second(&self) -> f64 {
        self.written / f64::from(BLOCK) / self.seconds.max(1e-3)
    }
}

/// Counters of the guest. They are seconds since the boot, the disk's reads, and their total time
/// in ms, from the moment at which they had a tag. Ticks of used CPU time follow, those of unused,
/// bytes of the background's file, and requests in flight.
fn counters(text: &str) -> Option<[f64; 7]> {
    let all: Option<Vec<f64>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
    all?.try_into().ok()
}

/// A guest's vCPUs, and the queues of each disk.
fn vcpus(place: Machines) -> u16 {
    if place == Machines::Uml { 1 } else { 2 }
}

impl GuestArgs {
    /// A drive that leaves the guest's CPUs time: above 80 % busy the guest's CPU scheduler decides
    /// who is served.
    pub(super) fn model(&self, place: Machines) -> Model {
        let usual = Duration::from_millis(if place == Machines::Uml { 1 } else { 2 });
        Model {
            latency: self.latency.unwrap_or(usual),
            parallel: self.parallel.unwrap_or(PARALLEL),
        }
    }

    /// The file of vlane-fg; none if no variant needs it.
    ///
    /// # Errors
    /// As [`Raiser::find`].
    pub(super) fn fg(&self, vlane: &Path) -> Result<Option<PathBuf>> {
        let is_needed = self.variants.iter().any(|variant| variant.is_raised());
        is_needed.then(|| self.fg.find(vlane)).transpose()
    }

    /// Measures each variant in turns in each guest, with vlane's own file and vlane-fg's.
    ///
    /// Each round begins with another variant. `of` makes a sample of the commands' results and of
    /// the crowd's figures meanwhile. `show` makes the report, which is marked as partial if a
    /// measurement is missing.
    ///
    /// # Errors
    /// Those of the first guest.
    pub(super) fn measure<'a, S: std::fmt::Debug>(
        &self,
        task: impl Fn(Machines) -> Task<'a>,
        call: &Call<'_>,
        of: impl Fn(Machines, &[String], Beside) -> Result<S>,
        show: impl FnOnce(&[PlaceResult<S>]) -> Report,
    ) -> Result<Report> {
        let Call { vlane, interrupt, .. } = *call;
        let (fg, host) = (self.fg(vlane)?, &self.installs.host()?);
        let ram = Place::find(Medium::Ram, None, FRESH.0, "TMPDIR");
        let ram = ram.map_or_else(|_| std::env::temp_dir(), |place| place.dir().to_path_buf());
        let dir = tempfile::Builder::new().prefix("vlane-express-").tempdir_in(ram);
        let dir = dir.context(ErrorKind::Io, || "cannot make a directory for sockets")?;
        let variants = distinct(self.variants.clone());
        let tasks: Vec<_> = distinct(self.places.clone()).into_iter().map(task).collect();
        let steps = tasks.len() * (1 + self.rounds * (variants.len() + 1));
        let takes = tasks.iter().map(|task| self.ramp + task.takes.0).max().unwrap_or_default();
        let mut progress = Progress::new(steps).expecting(takes);
        settle(self.rounds, interrupt)?;
        let (mut results, mut partial) = (Vec::new(), None);
        for task in &tasks {
            let setup = Setup {
                task,
                host,
                ramp: self.ramp,
                model: self.model(task.place),
                variants: &variants,
                programs: (vlane, fg.as_deref()),
                dir: dir.path(),
            };
            match setup.measure(self.rounds, interrupt, &mut progress, &of) {
                Ok((result, missing)) => {
                    results.push(result);
                    partial = missing;
                }
                Err(error) if results.is_empty() => return Err(error),
                Err(error) => {
                    partial = Some(format!("PARTIAL: {} is missing: {error}", word(task.place)));
                }
            }
            if partial.is_some() {
                break;
            }
        }
        progress.clear();
        let mut report = show(&results);
        partial.into_iter().for_each(|missing| report.mark_partial(missing));
        Ok(report)
    }
}

/// One guest's part of a measurement.
struct Setup<'a> {
    task: &'a Task<'a>,
    host: &'a Host,
    ramp: Duration,
    model: Model,
    variants: &'a [Variant],
    /// vlane's own file, and that of vlane-fg where a variant needs it.
    programs: (&'a Path, Option<&'a Path>),
    /// For sockets.
    dir: &'a Path,
}

/// A guest that is ready. The back ends end with it.
struct Machine {
    guest: Guest,
    servers: Vec<(Mode, Server, Control)>,
    /// Removed after the servers' end.
    _images: Vec<Image>,
    measured: usize,
}

impl Setup<'_> {
    fn measure<S: std::fmt::Debug>(
        &self,
        rounds: usize,
        interrupt: &Interrupt,
        progress: &mut Progress,
        of: impl Fn(Machines, &[String], Beside) -> Result<S>,
    ) -> Result<(PlaceResult<S>, Option<String>)> {
        let name = word(self.task.place);
        progress.step(format!("{name}: the guest boots"));
        let maker = Maker::find(self.host, self.task.place)?;
        let mut machine = self.boot(&maker, interrupt)?;
        wait(&mut machine.guest, "ready", BOOT, interrupt)?;
        let results = machine.guest.results();
        let said = |key: String| results.get(&key).cloned().unwrap_or_default();
        let mut disks: Vec<String> = disk_names()
            .take(machine.servers.len())
            .map(|disk| said(format!("disk.{disk}")))
            .collect();
        disks.dedup();
        let about = format!("{}, Linux {}", maker.describe(), said("kernel".into()));
        let names: Vec<_> = self.variants.iter().map(|v| v.title().to_owned()).collect();
        let mut arms = Arms::named(&names);
        let rounds = Rounds::measure(rounds, |round| {
            in_turns(&mut arms, round, |at, arm| {
                progress.step(format!("{name}, round {}: {arm}", round + 1));
                let (said, beside, ()) =
                    self.turn(&mut machine, self.variants[at], interrupt, |_| Ok(()))?;
                of(self.task.place, &said, beside)
            })
        })?;
        arms.keep(rounds.whole());
        let (mut recorded, mut missing) = (Vec::new(), rounds.missing());
        let wanted = matches!(self.task.behind, Behind::Fresh(_)) && missing.is_none();
        for variant in self.variants.iter().filter(|_| wanted) {
            match self.recorded(&mut machine, *variant, interrupt) {
                Ok(one) => recorded.push(one),
                Err(error) => missing = Some(format!("PARTIAL: a recording is missing: {error}")),
            }
        }
        let Task { place, readers, .. } = *self.task;
        let drive = match self.task.behind {
            Behind::Fresh(Some((place, direct))) => {
                let way = if direct { "direct I/O (--cache none)" } else { "--cache writeback" };
                format!("that of {}, with {way}", place.dir().display())
            }
            _ => format!(
                "a model with a queue for each thread of the back end, served in turns, one \
                 request of each: {}",
                self.model.describe()
            ),
        };
        let disks = disks.join("; ");
        Ok((PlaceResult { place, about, disks, drive, readers, arms, recorded }, missing))
    }

    /// Records a turn.
    fn recorded(
        &self,
        machine: &mut Machine,
        variant: Variant,
        interrupt: &Interrupt,
    ) -> Result<(Variant, Trace, Classes)> {
        let (path, time) = (self.dir.join("trace"), Some(RECORDED));
        let output = Output::new(&path).force(true);
        let options = RecordOptions { output, time, count: None, hashes: false };
        let (.., classes) = self.turn(machine, variant, interrupt, |control| {
            record(control, &options, interrupt, &mut |_| ())?.whole()?;
            control.classes()
        })?;
        Ok((variant, Trace::load(&path)?, classes))
    }

    /// Starts the back ends, each for a mode, and the guest.
    fn boot(&self, maker: &Maker, interrupt: &Interrupt) -> Result<Machine> {
        let is_needed = |mode: &Mode| self.variants.iter().any(|v| v.mode() == *mode);
        let modes = Mode::value_variants().iter().copied().filter(is_needed);
        let mut images = Vec::new();
        let serve = |mode| self.serve(mode, &mut images, interrupt);
        let servers = modes.map(serve).collect::<Result<Vec<_>>>()?;
        let disks: Vec<Disk> =
            servers.iter().map(|(_, server, _)| Disk::at(server.socket())).collect();
        let initramfs = self.initramfs(disks.len());
        let memory_mib = if self.task.place == Machines::Uml { 1024 } else { 1536 };
        let guest =
            maker.start_sized(disks, &initramfs, LIFE, vcpus(self.task.place), memory_mib)?;
        Ok(Machine { guest, servers, _images: images, measured: 0 })
    }

    fn serve(
        &self,
        mode: Mode,
        images: &mut Vec<Image>,
        interrupt: &Interrupt,
    ) -> Result<(Mode, Server, Control)> {
        let dir = self.dir.join(format!("{}-{}", word(self.task.place), word(mode)));
        std::fs::create_dir_all(&dir).at(&dir, "cannot be made")?;
        let (control, image) = (dir.join("control"), dir.join("image"));
        let is_real = matches!(self.task.behind, Behind::Fresh(Some(_)));
        let mut words = if is_real { Vec::new() } else { self.model.options() };
        words.extend(options_in(mode, vcpus(self.task.place)));
        words.extend(["--control".to_owned(), control.display().to_string()]);
        let storage = match self.task.behind {
            Behind::Nothing => Storage::null(VOLUME),
            Behind::Programs(path) => {
                words.extend(["--read-only", "--format", "raw"].map(str::to_owned));
                Storage::File { path, direct: false }
            }
            Behind::Fresh(real) => {
                let path = match real {
                    Some((place, _)) => {
                        images.push(place.image(FRESH.0, interrupt)?);
                        images.last().map_or(&*image, Image::path)
                    }
                    None => {
                        let file = std::fs::File::create(&image);
                        let file = file.and_then(|file| file.set_len(FRESH.0));
                        file.at(&dir, "cannot be made")?;
                        &image
                    }
                };
                ext4::make(self.host, path, FRESH.1)?;
                words.extend(["--format", "raw"].map(str::to_owned));
                let direct = real.is_some_and(|(_, direct)| direct);
                Storage::File { path, direct }
            }
        };
        let server = Server::vlane(self.programs.0, &dir, storage, &[], &words)?;
        Ok((mode, server, Control::new(control)))
    }

    fn initramfs(&self, disks: usize) -> Initramfs {
        let names: Vec<String> = disk_names().take(disks).collect();
        let script = with_parts(SCRIPT, self.task.readers, "")
            .replace("@DEVICES@", &names.join(" "))
            .replace("@MOUNT@", self.task.behind.mount())
            .replace("@BESIDE@", &self.task.beside)
            .replace("@RAMP@", &format!("{:.1}", self.ramp.as_secs_f64()));
        let guest = with_shell(script, self.programs.0, self.programs.1);
        guest.file("typed", 0o644, self.task.typed.as_str())
    }

    /// Lets the crowd read, types the task's commands at the shell, and ends the crowd. Returns the
    /// commands' results, and the crowd's figures meanwhile. Calls `meanwhile` when the foreground
    /// begins.
    fn turn<T>(
        &self,
        machine: &mut Machine,
        variant: Variant,
        interrupt: &Interrupt,
        meanwhile: impl FnOnce(&Control) -> Result<T>,
    ) -> Result<(Vec<String>, Beside, T)> {
        interrupt.check()?;
        machine.measured += 1;
        let (guest, seq) = (&mut machine.guest, machine.measured);
        let mut disks = machine.servers.iter().zip(disk_names());
        let disk = disks.find(|((mode, ..), _)| *mode == variant.mode());
        let ((.., control), disk) = disk
            .ok_or_else(|| Error::new(ErrorKind::Invalid, "there is no disk for this variant"))?;
        guest.send(&format!("measure {seq} {disk} {}\n", u8::from(variant.is_raised())))?;
        let limit = self.task.takes.1 + AROUND;
        wait(guest, &format!("before.{seq}"), limit, interrupt)?;
        let earlier = used(control)?;
        let seen = meanwhile(control)?;
        wait(guest, &format!("after.{seq}"), limit, interrupt)?;
        let later = used(control)?;
        wait(guest, &format!("done.{seq}"), limit, interrupt)?;
        let results = guest.results();
        let said = |key: &str| {
            let found = results.get(&format!("{key}.{seq}")).cloned();
            found.ok_or_else(|| {
                trouble(guest, &format!("{}: the guest does not say {key}", variant.title()))
            })
        };
        let counted = |key: &str| {
            let text = said(key)?;
            counters(&text).ok_or_else(|| trouble(guest, &format!("{key}: not understood: {text}")))
        };
        let crowd = said("crowd")?;
        let not = |why: &str| trouble(guest, &format!("the crowd: {why}: {crowd}"));
        let (_, done) =
            fio::parse(&crowd, u64::from(BLOCK)).map_err(|error| not(&error.to_string()))?;
        let submit_us = submission_us(&crowd).ok_or_else(|| not("no time of submission"))?;
        let mut beside = Beside::of(counted("before")?, counted("after")?, done.mean_us, submit_us);
        beside.cpu_us = (later.0 - earlier.0) / (later.1 - earlier.1).max(1.0);
        let values = self.task.keys.iter().map(|key| said(key)).collect::<Result<_>>()?;
        Ok((values, beside, seen))
    }
}

/// CPU time of a back end so far, in us, its requests, and the interrupts of its guest.
pub(crate) fn used(control: &Control) -> Result<(f64, f64, f64)> {
    let counters = control.counters()?;
    let count = |name: &str| counters.sum.get(name).copied().unwrap_or(0) as f64;
    let requests = ["reads", "writes", "flushes", "others"].map(count).iter().sum();
    let cpu_us = (counters.process.user_ns + counters.process.system_ns) as f64 / 1e3;
    Ok((cpu_us, requests, count("signals")))
}

/// `vda`, `vdb`, ...
pub(crate) fn disk_names() -> impl Iterator<Item = String> {
    ('a'..='z').map(|letter| format!("vd{letter}"))
}

/// The mean time of the call that submits a read, in a terse line of fio's.
fn submission_us(line: &str) -> Option<f64> {
    /// Of a read: after its KiB, bandwidth, IOPS and runtime, the smallest and the largest.
    const FIELD: usize = 11;
    line.split(';').nth(FIELD)?.parse().ok()
}

/// `begin end status` of a typed command, times in seconds; how long it took, if it succeeded.
///
/// # Errors
/// [`ErrorKind::Process`] if it failed, or said something else.
pub fn took(what: &str, text: &str) -> Result<f64> {
    let bad =
        |why: &str| Error::new(ErrorKind::Process, format!("{what} in the guest {why}: {text}"));
    let fields: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [begin, end, status] = fields[..] else { return Err(bad("is not understood")) };
    if status != 0.0 {
        return Err(bad("failed (the last number is its status)"));
    }
    Ok(end - begin)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn guest_counters_become_crowd_figures() {
        let before = counters("10.5 1000 20000 50 150 4096 240").unwrap();
        let after = counters("12.5 5000 420000 110 290 12288 239").unwrap();
        let beside = Beside::of(before, after, 120e3, 20e3);
        assert_eq!((beside.seconds, beside.reads, beside.device_ms), (2.0, 4000.0, 100.0));
        assert_eq!((beside.busy, beside.in_flight, beside.written), (0.3, 240.0, 8192.0));
        assert_eq!(beside.appended_per_second(), 1.0);
        assert_eq!((beside.crowd_ms, beside.tag_ms), (120.0, 20.0));
        assert_eq!(counters("1 2 3"), None);
        assert_eq!(counters("1 2 3 4 5 6 x"), None);
    }

    #[test]
    fn submission_time_is_not_read_time() {
        let line = "3;fio-3.33;crowd;0;0;25848;85873;21468;301;1;1931;11.651273;25.870687;0;11002;\
                    34.321349";
        assert_eq!(submission_us(line), Some(11.651_273));
        assert_eq!(submission_us("3;fio"), None);
    }

    #[test]
    fn failed_command_has_no_time() {
        assert!((took("it", "100.25 101.75 0").unwrap() - 1.5).abs() < 1e-9);
        assert!(took("it", "100.25 101.75 127").unwrap_err().to_string().contains("failed"));
        assert!(took("it", "bash: no").is_err());
    }
}
