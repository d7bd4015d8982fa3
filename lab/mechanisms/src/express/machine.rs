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
use vlane_guest::{Guest, Host, Initramfs};

use super::script::with_parts;
use super::{Mode, Model, VOLUME, Variant, distinct, word};
use vlane_client::progress::Progress;
use vlane_report::judge::Arms;
use vlane_testbed::error::{Context, Error, ErrorKind, Result};
use vlane_testbed::fio;
use vlane_testbed::guests::{Machines, Maker, trouble, wait};
use vlane_testbed::interrupt::Interrupt;
use vlane_testbed::rounds::{Rounds, in_turns};
use vlane_testbed::server::{Server, Storage};
use vlane_testbed::{Installs, Raiser};

/// Longest time from the start to the guest's first word, emulated on a busy machine.
pub(crate) const BOOT: Duration = Duration::from_secs(240);
/// Time that a guest may take to start and end its crowd, beside the measurement.
const AROUND: Duration = Duration::from_secs(180);
/// A guest that lives longer than any measurement.
pub(crate) const LIFE: Duration = Duration::from_secs(4 * 3600);
/// Requests that the drive works on at the same time unless it is said.
const PARALLEL: u16 = 2;

/// Options of both kinds of guests
#[derive(Debug, Clone, Args)]
pub struct GuestArgs {
    /// Variants: vanilla, cpu, cpu+io, cpu+size, proposed; the first is the baseline
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "vanilla,cpu,cpu+io,cpu+size,proposed",
        hide_possible_values = true
    )]
    pub(super) variants: Vec<Variant>,
    /// Service time of the drive, such as 1ms [default: 1ms in uml, 2ms in qemu]
    ///
    /// A bare number is in microseconds.
    #[arg(long, value_name = "TIME", value_parser = values::time_in::<u64>("us", 1..=1_000_000))]
    pub(super) latency: Option<u64>,
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
    /// Behind the drive; none: a device without media.
    pub(super) image: Option<&'a Path>,
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
    /// The drive.
    pub model: Model,
    /// Readers in the background.
    pub readers: u16,
    /// The measurements.
    pub arms: Arms<S>,
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
        mount -t ext4 -o ro,noload /dev/$dev /mnt/$dev || exit 1
        mount -t proc proc /mnt/$dev/proc
        mount -t tmpfs tmpfs /mnt/$dev/tmp
        mount -o bind /dev /mnt/$dev/dev
    fi
done
counters() {
    read -r ios merged sectors ticks rest < /sys/block/$1/stat
    read -r cpu user nice system idle waiting irq soft rest < /proc/stat
    read -r up rest < /proc/uptime
    echo "$up $ios $ticks $((user + nice + system + irq + soft)) $((idle + waiting))"
}
echo "RESULT kernel=$(uname -r)"
echo "RESULT ready=1"
while read -r command seq dev raise; do
    [ "$command" = measure ] || exit 0
    rm -f /tmp/crowd
    fio --name=crowd --filename=/dev/$dev --rw=randread --bs=4k --direct=1 --ioengine=libaio --iodepth=1 \
        --thread --numjobs=@READERS@ --group_reporting --norandommap --time_based --runtime=36000 --disk_util=0 \
        --clat_percentiles=0 --lat_percentiles=1 --output-format=terse --terse-version=3 --output=/tmp/crowd \
        < /dev/null > /tmp/crowd.said 2>&1 &
@CROWD_READS@
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
    kill -INT $crowd
    wait $crowd
    grep '^3;' /tmp/crowd > /tmp/crowd.line || cat /tmp/crowd /tmp/crowd.said
    echo "RESULT crowd.$seq=$(cat /tmp/crowd.line)"
    echo "RESULT done.$seq=1"
done
"#;

/// A shell without additions.
pub(crate) const PLAIN: &str = "PS1=\nPS2=\n";
/// And where the foreground is raised, by what the user would write into `~/.bashrc`.
pub(crate) const RAISED: &str = "PS1=\nPS2=\neval \"$(vlane-fg hook bash)\"\n";

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
}

impl Beside {
    /// From the guest's counters before and after, and the times of the crowd's reads and of the
    /// calls that submit them.
    fn of(before: [f64; 6], after: [f64; 6], crowd_us: f64, submit_us: f64) -> Self {
        let since = |at: usize| after[at] - before[at];
        let [seconds, reads, read_ms, busy, idle, _] = std::array::from_fn(since);
        Self {
            seconds,
            reads,
            device_ms: read_ms / reads.max(1.0),
            crowd_ms: crowd_us / 1e3,
            tag_ms: submit_us / 1e3,
            busy: busy / (busy + idle).max(1.0),
            in_flight: before[5],
        }
    }
}

/// Counters of the guest. They are seconds since the boot, the disk's reads, and their total time
/// in ms, from the moment at which they had a tag. Ticks of used CPU time follow, those of unused,
/// and requests in flight.
fn counters(text: &str) -> Option<[f64; 6]> {
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
        let usual = if place == Machines::Uml { 1000 } else { 2000 };
        let latency = Duration::from_micros(self.latency.unwrap_or(usual));
        Model { latency, parallel: self.parallel.unwrap_or(PARALLEL) }
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
    /// the crowd's figures meanwhile. The result has a sentence on missing measurements, if any.
    ///
    /// # Errors
    /// Those of the first guest.
    pub(super) fn measure<S: std::fmt::Debug>(
        &self,
        tasks: &[Task<'_>],
        rounds: usize,
        vlane: &Path,
        interrupt: &Interrupt,
        of: impl Fn(Machines, &[String], Beside) -> Result<S>,
    ) -> Result<(Vec<PlaceResult<S>>, Option<String>)> {
        let (fg, host) = (self.fg(vlane)?, &self.installs.host()?);
        let dir = tempfile::Builder::new().prefix("vlane-express-").tempdir();
        let dir = dir.context(ErrorKind::Io, || "cannot make a directory for sockets")?;
        let variants = distinct(self.variants.clone());
        let steps = tasks.len() * (1 + rounds * (variants.len() + 1));
        let takes = tasks.iter().map(|task| self.ramp + task.takes.0).max().unwrap_or_default();
        let mut progress = Progress::new(steps).expecting(takes);
        let (mut results, mut partial) = (Vec::new(), None);
        for task in tasks {
            let setup = Setup {
                task,
                ramp: self.ramp,
                model: self.model(task.place),
                variants: &variants,
                programs: (vlane, fg.as_deref()),
                dir: dir.path(),
            };
            match setup.measure(host, rounds, interrupt, &mut progress, &of) {
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
        Ok((results, partial))
    }
}

/// One guest's part of a measurement.
struct Setup<'a> {
    task: &'a Task<'a>,
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
    servers: Vec<(Mode, Server)>,
    measured: usize,
}

impl Setup<'_> {
    fn measure<S: std::fmt::Debug>(
        &self,
        host: &Host,
        rounds: usize,
        interrupt: &Interrupt,
        progress: &mut Progress,
        of: impl Fn(Machines, &[String], Beside) -> Result<S>,
    ) -> Result<(PlaceResult<S>, Option<String>)> {
        let name = word(self.task.place);
        progress.step(format!("{name}: the guest boots"));
        let maker = Maker::find(host, self.task.place)?;
        let mut machine = self.boot(&maker)?;
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
                let (said, beside) = self.turn(&mut machine, self.variants[at], interrupt)?;
                of(self.task.place, &said, beside)
            })
        })?;
        arms.keep(rounds.whole());
        let Task { place, readers, .. } = *self.task;
        let (disks, model) = (disks.join("; "), self.model);
        Ok((PlaceResult { place, about, disks, model, readers, arms }, rounds.missing()))
    }

    /// Starts the back ends, each for a mode, and the guest.
    fn boot(&self, maker: &Maker) -> Result<Machine> {
        let is_needed = |mode: &Mode| self.variants.iter().any(|v| v.mode() == *mode);
        let modes = Mode::value_variants().iter().copied().filter(is_needed);
        let servers: Vec<(Mode, Server)> =
            modes.map(|mode| Ok((mode, self.serve(mode)?))).collect::<Result<_>>()?;
        let sockets: Vec<PathBuf> =
            servers.iter().map(|(_, server)| server.socket().to_path_buf()).collect();
        let initramfs = self.initramfs(sockets.len());
        let memory_mib = if self.task.place == Machines::Uml { 1024 } else { 1536 };
        let guest =
            maker.start_sized(sockets, &initramfs, LIFE, vcpus(self.task.place), memory_mib)?;
        Ok(Machine { guest, servers, measured: 0 })
    }

    fn serve(&self, mode: Mode) -> Result<Server> {
        let dir = self.dir.join(format!("{}-{}", word(self.task.place), word(mode)));
        std::fs::create_dir_all(&dir)
            .context(ErrorKind::Io, || format!("{}: cannot be made", dir.display()))?;
        let mut words = self.model.options_in(mode, vcpus(self.task.place));
        let storage = match self.task.image {
            None => Storage::null(VOLUME),
            Some(path) => {
                words.extend(["--read-only", "--format", "raw"].map(str::to_owned));
                Storage::File { path, direct: false }
            }
        };
        Server::vlane(self.programs.0, &dir, storage, &[], &words)
    }

    fn initramfs(&self, disks: usize) -> Initramfs {
        let names: Vec<String> = disk_names().take(disks).collect();
        // A guest may have fewer tags than readers: most of them are enough to begin.
        let enough = u32::from(self.task.readers) * 8 / 10;
        let script = with_parts(SCRIPT)
            .replace("@DEVICES@", &names.join(" "))
            .replace("@MOUNT@", if self.task.image.is_some() { "yes" } else { "" })
            .replace("@READERS@", &self.task.readers.to_string())
            .replace("@ENOUGH@", &enough.to_string())
            .replace("@RAMP@", &format!("{:.1}", self.ramp.as_secs_f64()));
        let guest = Initramfs::new(script)
            .programs(["fio", "bash", "script"])
            .program_at("vlane", self.programs.0)
            .file("etc/plain.rc", 0o644, PLAIN)
            .file("etc/raised.rc", 0o644, RAISED)
            .file("etc/passwd", 0o644, "root:x:0:0:root:/root:/usr/bin/bash\n")
            .file("typed", 0o644, self.task.typed.as_str());
        match self.programs.1 {
            Some(fg) => guest.program_at("vlane-fg", fg),
            None => guest,
        }
    }

    /// Lets the crowd read, types the task's commands at the shell, and ends the crowd. Returns the
    /// commands' results, and the crowd's figures meanwhile.
    fn turn(
        &self,
        machine: &mut Machine,
        variant: Variant,
        interrupt: &Interrupt,
    ) -> Result<(Vec<String>, Beside)> {
        interrupt.check()?;
        machine.measured += 1;
        let (guest, seq) = (&mut machine.guest, machine.measured);
        let place = machine.servers.iter().position(|(mode, _)| *mode == variant.mode());
        let disk = place.and_then(|place| disk_names().nth(place));
        let disk = disk
            .ok_or_else(|| Error::new(ErrorKind::Invalid, "there is no disk for this variant"))?;
        guest.send(&format!("measure {seq} {disk} {}\n", u8::from(variant.is_raised())))?;
        wait(guest, &format!("done.{seq}"), self.task.takes.1 + AROUND, interrupt)?;
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
            fio::parse(&crowd, u64::from(super::BLOCK)).map_err(|error| not(&error.to_string()))?;
        let submit_us = submission_us(&crowd).ok_or_else(|| not("no time of submission"))?;
        let beside = Beside::of(counted("before")?, counted("after")?, done.mean_us, submit_us);
        let values = self.task.keys.iter().map(|key| said(key)).collect::<Result<_>>()?;
        Ok((values, beside))
    }
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
        let before = counters("10.5 1000 20000 50 150 240").unwrap();
        let after = counters("12.5 5000 420000 110 290 239").unwrap();
        let beside = Beside::of(before, after, 120e3, 20e3);
        assert_eq!((beside.seconds, beside.reads, beside.device_ms), (2.0, 4000.0, 100.0));
        assert_eq!((beside.busy, beside.in_flight), (0.3, 240.0));
        assert_eq!((beside.crowd_ms, beside.tag_ms), (120.0, 20.0));
        assert_eq!(counters("1 2 3"), None);
        assert_eq!(counters("1 2 3 4 5 x"), None);
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
