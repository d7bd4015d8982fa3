//! A guest with a crowd of readers on a model of a drive, and a shell for the foreground's
//! commands.
//!
//! One guest has a disk for each mode of the back end, so all variants are measured in turns within
//! one boot. They differ only in the disk used, and in raising the foreground. The load is a script
//! for a real bash in a pseudo-terminal (`script` of util-linux): its commands are foreground jobs,
//! like typed ones. `vlane-fg` raises them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use vlane_guest::{
    Accel, Boot, Choice, Disk, Guest, Host, Initramfs, Kernel, Qemu, QemuProgram, Uml, UmlProgram,
};

use super::script::with_parts;
use super::{Mode, Model, VOLUME, Variant};
use vlane_testbed::error::{Context, Error, ErrorKind, Result};
use vlane_testbed::fio;
use vlane_testbed::guests::{trouble, wait};
use vlane_testbed::interrupt::Interrupt;
use vlane_testbed::server::{Server, Storage};

/// Longest time from the start to the guest's first word, emulated on a busy machine.
pub(crate) const BOOT: Duration = Duration::from_secs(240);
/// Time that a guest may take to start and end its crowd, beside the measurement.
const AROUND: Duration = Duration::from_secs(180);
/// A guest that lives longer than any measurement.
pub(crate) const LIFE: Duration = Duration::from_secs(4 * 3600);

/// Which guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// User-Mode Linux: one vCPU, one queue of at most 256 requests.
    Uml,
    /// QEMU with two vCPUs and two queues.
    Qemu,
}

impl Place {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Uml, Self::Qemu];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uml => "uml",
            Self::Qemu => "qemu",
        }
    }

    /// The place of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|place| place.name() == name)
    }

    /// Its vCPUs, and the queues of each disk.
    pub fn vcpus(self) -> u16 {
        match self {
            Self::Uml => 1,
            Self::Qemu => 2,
        }
    }

    /// A drive that leaves the guest's CPUs time: above 80 % busy the guest's CPU scheduler decides
    /// who is served.
    pub fn model(self) -> Model {
        let parallel = 2;
        match self {
            Self::Uml => Model { latency: Duration::from_millis(1), parallel },
            Self::Qemu => Model { latency: Duration::from_millis(2), parallel },
        }
    }

    /// Readers in the background: what it can hold, the foreground's own request left free.
    pub fn readers(self) -> u16 {
        match self {
            Self::Uml => 240,
            Self::Qemu => 512,
        }
    }

    /// Reads of a foreground program that takes 10 to 20 s with all readers before each of them.
    pub fn reads(self) -> u32 {
        match self {
            Self::Uml => 100,
            Self::Qemu => 40,
        }
    }
}

/// Parameters of a guest.
#[derive(Debug)]
pub struct Setup<'a> {
    /// The host.
    pub host: &'a Host,
    /// vlane's own file.
    pub vlane: &'a Path,
    /// vlane-fg's file.
    pub fg: &'a Path,
    /// Which guest.
    pub place: Place,
    /// The drive.
    pub model: Model,
    /// Readers in the background.
    pub readers: u16,
    /// The variants to measure.
    pub variants: &'a [Variant],
    /// Behind the drive; none: a device without media.
    pub image: Option<&'a Path>,
    /// Scripts of what is typed, by their names; `@DEV@` stands for the disk, `@SEQ@` for the
    /// measurement's number.
    pub typed: Vec<(String, String)>,
    /// Time in which the crowd comes to rest.
    pub ramp: Duration,
    /// For sockets.
    pub dir: &'a Path,
}

/// Prepares the disks and follows commands. For its parts see [`with_parts`].
const SCRIPT: &str = r#"
@TERMINAL@
for dev in @DEVICES@; do
    queue=/sys/block/$dev/queue
    echo none > $queue/scheduler
    echo "RESULT disk.$dev=$(ls /sys/block/$dev/mq | wc -l)|$(cat $queue/nr_requests)|$(cat $queue/scheduler)"
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
while read -r command seq dev raise typed; do
    [ "$command" = measure ] || exit 0
    rm -f /tmp/crowd
    fio --name=crowd --filename=/dev/$dev --rw=randread --bs=4k --direct=1 --ioengine=libaio --iodepth=1 \
        --thread --numjobs=@READERS@ --group_reporting --norandommap --time_based --runtime=36000 --disk_util=0 \
        --clat_percentiles=0 --lat_percentiles=1 --output-format=terse --terse-version=3 --output=/tmp/crowd \
        < /dev/null > /tmp/crowd.said 2>&1 &
@CROWD_READS@
    sleep @RAMP@
    sed "s/@DEV@/$dev/g; s/@SEQ@/$seq/g" /typed/$typed > /tmp/typed
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

/// Counters of the guest.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Counters {
    /// Seconds since the boot.
    up: f64,
    /// Reads that the disk completed.
    reads: f64,
    /// Their total time from the moment at which they had a tag, in ms.
    read_ms: f64,
    /// CPU time that was used, in ticks.
    busy: f64,
    /// CPU time that was not.
    idle: f64,
    /// Requests in flight.
    in_flight: f64,
}

impl Counters {
    fn parse(text: &str) -> Option<Self> {
        let all: Option<Vec<f64>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
        let [up, reads, read_ms, busy, idle, in_flight] = all?[..] else { return None };
        Some(Self { up, reads, read_ms, busy, idle, in_flight })
    }
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
}

impl Beside {
    fn of(before: &Counters, after: &Counters, crowd_us: f64, submit_us: f64) -> Self {
        let reads = after.reads - before.reads;
        let (busy, idle) = (after.busy - before.busy, after.idle - before.idle);
        Self {
            seconds: after.up - before.up,
            reads,
            device_ms: (after.read_ms - before.read_ms) / reads.max(1.0),
            crowd_ms: crowd_us / 1e3,
            tag_ms: submit_us / 1e3,
            busy: busy / (busy + idle).max(1.0),
            in_flight: before.in_flight,
        }
    }
}

/// A guest that is ready.
#[derive(Debug)]
pub struct Machine<'a> {
    guest: Guest,
    /// They end with it.
    servers: Vec<(Mode, Server)>,
    interrupt: &'a Interrupt,
    measured: usize,
    /// Which guest, in words.
    pub about: String,
    /// Its disks, in the guest's words.
    pub disks: String,
}

impl Setup<'_> {
    /// The modes that need a disk, in order.
    fn modes(&self) -> Vec<Mode> {
        Mode::ALL
            .into_iter()
            .filter(|mode| self.variants.iter().any(|v| v.mode() == *mode))
            .collect()
    }

    fn serve(&self, mode: Mode) -> Result<Server> {
        let dir = self.dir.join(format!("{}-{}", self.place.name(), mode.name()));
        std::fs::create_dir_all(&dir)
            .context(ErrorKind::Io, || format!("{}: cannot be made", dir.display()))?;
        let queues = self.place.vcpus().to_string();
        let mut words = self.model.options();
        words.extend(
            ["--queues", &queues, "--threads", &queues, "--classes", mode.name()]
                .map(str::to_owned),
        );
        let storage = match self.image {
            None => Storage::null(VOLUME),
            Some(path) => {
                words.extend(["--read-only", "--format", "raw"].map(str::to_owned));
                Storage::File { path, direct: false }
            }
        };
        Server::vlane(self.vlane, &dir, storage, &[], &words)
    }

    fn initramfs(&self, disks: usize) -> Initramfs {
        let names: Vec<String> = disk_names().take(disks).collect();
        // A guest may have fewer tags than readers: most of them are enough to begin.
        let enough = u32::from(self.readers) * 8 / 10;
        let script = with_parts(SCRIPT)
            .replace("@DEVICES@", &names.join(" "))
            .replace("@MOUNT@", if self.image.is_some() { "yes" } else { "" })
            .replace("@READERS@", &self.readers.to_string())
            .replace("@ENOUGH@", &enough.to_string())
            .replace("@RAMP@", &format!("{:.1}", self.ramp.as_secs_f64()));
        let mut guest = Initramfs::new(script)
            .programs(["fio", "bash", "script"])
            .program_at("vlane", self.vlane)
            .file("etc/plain.rc", 0o644, PLAIN)
            .file("etc/raised.rc", 0o644, RAISED)
            .file("etc/passwd", 0o644, "root:x:0:0:root:/root:/usr/bin/bash\n");
        if self.variants.iter().any(|variant| variant.is_raised()) {
            guest = guest.program_at("vlane-fg", self.fg);
        }
        for (name, typed) in &self.typed {
            guest = guest.file(&format!("typed/{name}"), 0o644, typed.as_str());
        }
        guest
    }

    /// Starts the back ends and boots the guest.
    ///
    /// # Errors
    /// [`ErrorKind::Missing`] without a program that is needed, those of back ends and guests,
    /// [`ErrorKind::Interrupted`].
    pub fn boot<'a>(&self, interrupt: &'a Interrupt) -> Result<Machine<'a>> {
        let servers = self.modes().into_iter().map(|mode| Ok((mode, self.serve(mode)?)));
        let servers = servers.collect::<Result<Vec<_>>>()?;
        let sockets: Vec<PathBuf> =
            servers.iter().map(|(_, server)| server.socket().to_path_buf()).collect();
        let initramfs = self.initramfs(sockets.len());
        let (mut guest, about) = match self.place {
            Place::Uml => self.uml(sockets, &initramfs)?,
            Place::Qemu => self.qemu(sockets, &initramfs)?,
        };
        wait(&mut guest, "ready", BOOT, interrupt)?;
        let results = guest.results();
        let disks = disk_names()
            .take(servers.len())
            .map(|name| results.get(&format!("disk.{name}")).cloned().unwrap_or_default());
        let mut disks: Vec<String> = disks.collect();
        disks.dedup();
        let kernel = results.get("kernel").cloned().unwrap_or_default();
        let about = format!("{about}, Linux {kernel}");
        Ok(Machine { guest, servers, interrupt, measured: 0, about, disks: describe_disks(&disks) })
    }

    fn uml(&self, sockets: Vec<PathBuf>, initramfs: &Initramfs) -> Result<(Guest, String)> {
        let program = UmlProgram::find(self.host)?;
        let about = format!("User-Mode Linux {}", program.version);
        let mut machine = Uml::new(program, sockets);
        machine.memory_mib = 1024;
        Ok((machine.start_with(self.host, initramfs, LIFE, None)?, about))
    }

    fn qemu(&self, sockets: Vec<PathBuf>, initramfs: &Initramfs) -> Result<(Guest, String)> {
        let program = QemuProgram::find(self.host)?;
        let kernel = Kernel::find(self.host)?;
        let accel = Choice::probe(self.host, &program, &kernel)?;
        let emulated = if accel.accel == Accel::Tcg { ", its CPUs emulated" } else { "" };
        let about = format!("QEMU {}.{}{emulated}", program.version.0, program.version.1);
        let mut machine = Qemu::new(program, accel.accel, Boot::Disk, Disk::at(""));
        machine.disks = sockets.into_iter().map(Disk::at).collect();
        machine.vcpus = self.place.vcpus();
        machine.memory_mib = 1536;
        Ok((machine.start_with(self.host, &kernel, initramfs, LIFE, None)?, about))
    }
}

/// `vda`, `vdb`, ...
pub(crate) fn disk_names() -> impl Iterator<Item = String> {
    ('a'..='z').map(|letter| format!("vd{letter}"))
}

/// `1|256|[none] mq-deadline`, of all disks, in words.
fn describe_disks(disks: &[String]) -> String {
    let one = |text: &String| {
        let fields: Vec<&str> = text.split('|').collect();
        match fields[..] {
            [queues, tags, scheduler] => {
                let chosen = scheduler.split(['[', ']']).nth(1).unwrap_or(scheduler).trim();
                format!("{queues} queue(s) with {tags} tags each, I/O scheduler {chosen}")
            }
            _ => text.clone(),
        }
    };
    disks.iter().map(one).collect::<Vec<_>>().join("; ")
}

impl Machine<'_> {
    /// Lets the crowd read, types a script at the shell, and ends the crowd. Returns the script's
    /// results (`RESULT key.SEQ=value`, by key) and the crowd's figures meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::Process`] with the console's end if it does not come to its end,
    /// [`ErrorKind::Interrupted`].
    pub fn measure(
        &mut self,
        variant: Variant,
        typed: &str,
        keys: &[String],
        limit: Duration,
    ) -> Result<(Vec<String>, Beside)> {
        self.interrupt.check()?;
        self.measured += 1;
        let seq = self.measured;
        let place = self.servers.iter().position(|(mode, _)| *mode == variant.mode());
        let disk = place.and_then(|place| disk_names().nth(place));
        let disk = disk
            .ok_or_else(|| Error::new(ErrorKind::Invalid, "there is no disk for this variant"))?;
        let raise = u8::from(variant.is_raised());
        self.guest.send(&format!("measure {seq} {disk} {raise} {typed}\n"))?;
        wait(&mut self.guest, &format!("done.{seq}"), limit + AROUND, self.interrupt)?;
        let results = self.guest.results();
        let said = |key: &str| {
            let found = results.get(&format!("{key}.{seq}")).cloned();
            found.ok_or_else(|| {
                trouble(&self.guest, &format!("{}: the guest does not say {key}", variant.title()))
            })
        };
        let counters = |key: &str| {
            let text = said(key)?;
            Counters::parse(&text)
                .ok_or_else(|| trouble(&self.guest, &format!("{key}: not understood: {text}")))
        };
        let crowd = said("crowd")?;
        let not = |why: &str| trouble(&self.guest, &format!("the crowd: {why}: {crowd}"));
        let (_, done) =
            fio::parse(&crowd, u64::from(super::BLOCK)).map_err(|error| not(&error.to_string()))?;
        let submit_us = submission_us(&crowd).ok_or_else(|| not("no time of submission"))?;
        let (before, after) = (counters("before")?, counters("after")?);
        let beside = Beside::of(&before, &after, done.mean_us, submit_us);
        let values = keys.iter().map(|key| said(key)).collect::<Result<Vec<_>>>()?;
        Ok((values, beside))
    }
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
        let before = Counters::parse("10.5 1000 20000 50 150 240").unwrap();
        let after = Counters::parse("12.5 5000 420000 110 290 239").unwrap();
        let beside = Beside::of(&before, &after, 120e3, 20e3);
        assert_eq!((beside.seconds, beside.reads, beside.device_ms), (2.0, 4000.0, 100.0));
        assert_eq!((beside.busy, beside.in_flight), (0.3, 240.0));
        assert_eq!((beside.crowd_ms, beside.tag_ms), (120.0, 20.0));
        assert_eq!(Counters::parse("1 2 3"), None);
        assert_eq!(Counters::parse("1 2 3 4 5 x"), None);
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

    #[test]
    fn equal_disks_are_described_once() {
        let disks = ["1|256|[none] mq-deadline".to_owned()];
        assert_eq!(describe_disks(&disks), "1 queue(s) with 256 tags each, I/O scheduler none");
    }
}
