//! The guests, the disks of the first of them, and one turn.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vlane_guest::{Disk, Guest, Host, Initramfs, ext4, run};

use super::{Condition, JOURNAL, Options, Sample, VCPUS, job};
use crate::express::machine::{BOOT, LIFE, disk_names, used, with_shell};
use crate::express::root::Root;
use crate::express::script::with_parts;
use crate::loans::bed::{END, OTHERS, SETTLE, last_state, schedule, socket};
use vlane_cost::{Role, Sampler, ThreadFilter};
use vlane_testbed::{
    At, Context, Control, ErrorKind, Fail, Interrupt, Machines, Maker, Result, Server, pause, wait,
};

/// tune2fs, on an unused image.
const TUNE: Duration = Duration::from_secs(120);
/// Time that a turn may exceed its duration by: the crowd's start on emulated CPUs, a last launch
/// beside it.
const LATE: Duration = Duration::from_secs(240);

/// Mounts the disks, computes, and follows commands. For its parts see [`with_parts`].
const SCRIPT: &str = r#"
@TERMINAL@
for dev in @DEVICES@; do
    echo none > /sys/block/$dev/queue/scheduler
    mkdir -p /mnt/$dev
    mount -t ext4 -o noinit_itable /dev/$dev /mnt/$dev || exit 1
    mount -t proc proc /mnt/$dev/proc
    mount -t tmpfs tmpfs /mnt/$dev/tmp
    mount -o bind /dev /mnt/$dev/dev
done
: > /tmp/computed
for cpu in /sys/devices/system/cpu/cpu[0-9]*; do
    while :; do
        i=0
        while [ $i -lt 1000 ]; do i=$((i + 1)); done
        echo >> /tmp/computed
    done &
done
echo "RESULT kernel=$(uname -r)"
echo "RESULT ready=1"
while read -r seq dev raise; do
@CROWD_READS@
@AGENT_BEGINS@
    echo "vlane together-job @JOB@ --dir /mnt/$dev --readers $crowd --mark $seq" > /tmp/typed
    echo exit >> /tmp/typed
    script -q -c "bash --noediting --rcfile /etc/$rc.rc -i" /dev/null < /tmp/typed
    echo
@AGENT_ENDS@
    kill -INT $crowd || cat /tmp/crowd.said
    wait $crowd
    echo "RESULT over.$seq=1"
done
"#;

/// A disk of the guest, for one condition.
struct Served {
    condition: Condition,
    server: Server,
    control: Control,
    image: PathBuf,
    journal: Vec<Range<u64>>,
}

/// Everything that is there while turns are measured, and ends with them.
pub(super) struct Bed<'a> {
    options: &'a Options,
    vlane: &'a Path,
    guest: Guest,
    others: Vec<Guest>,
    disks: Vec<Served>,
    directory: TempDir,
    measured: usize,
    /// The guest, in words.
    pub(super) about: String,
}

impl<'a> Bed<'a> {
    /// Makes the images, starts a back end for each condition, and boots the guests.
    pub(super) fn make(
        options: &'a Options,
        (vlane, fg): (&'a Path, &Path),
        host: &Host,
        root: &Root,
        conditions: &[Condition],
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let directory =
            tempfile::Builder::new().prefix("vlane-together-").tempdir_in(&options.disk_dir);
        let directory = directory.at(&options.disk_dir, "no room for images")?;
        add_journal(host, &root.image)?;
        let dir = directory.path();
        let disk = |one: &Condition| Served::start((vlane, options), host, root, *one, dir);
        let disks = conditions.iter().map(disk).collect::<Result<Vec<_>>>()?;
        let maker = Maker::find(host, Machines::Qemu)?;
        let bytes = std::fs::metadata(&root.image).at(&root.image, "cannot be read")?;
        let readable = outside(&disks[0].journal, bytes.len());
        let initramfs = with_shell(script(options, disks.len(), &readable), vlane, Some(fg));
        let at = |disk: &Served| Disk {
            queues: Some(disk.condition.queues()),
            ..Disk::at(disk.server.socket())
        };
        let mut guest =
            maker.start_sized(disks.iter().map(at).collect(), &initramfs, LIFE, VCPUS, 1024)?;
        let other = |_| maker.start(Vec::new(), &Initramfs::new(OTHERS), LIFE);
        let mut others = (0..options.extent().2).map(other).collect::<Result<Vec<_>>>()?;
        for one in std::iter::once(&mut guest).chain(&mut others) {
            wait(one, "ready", BOOT, interrupt)?;
        }
        let kernel = guest.results().get("kernel").cloned().unwrap_or_default();
        let about = format!("{}, {VCPUS} vCPUs, Linux {kernel}", maker.describe());
        Ok(Self { options, vlane, guest, others, disks, directory, measured: 0, about })
    }

    /// Measures one condition.
    pub(super) fn turn(&mut self, at: usize, interrupt: &Interrupt) -> Result<Sample> {
        self.measured += 1;
        let (seq, disk) = (self.measured, &self.disks[at]);
        let dir = self.directory.path();
        let pids: Vec<u32> =
            std::iter::once(self.guest.id()).chain(self.others.iter().map(Guest::id)).collect();
        let start = |words: [String; 4]| schedule(self.vlane, dir, &pids, &words);
        let scheduler = disk.condition.schedule().map(start).transpose()?;
        if scheduler.is_some() {
            pause(Instant::now() + SETTLE, interrupt)?;
        }
        let mut roles = vec![whole("back end", disk.server.pid()), whole("guest", self.guest.id())];
        roles.extend(self.others.iter().map(|guest| whole("other guest", guest.id())));
        roles.extend(scheduler.iter().map(|running| whole("scheduler", running.id())));
        let mut sampler = Sampler::new(roles);
        let device = disk_names().nth(at).unwrap_or_default();
        self.guest.send(&format!("{seq} {device} {}\n", u8::from(disk.condition.express)))?;
        let limit = self.options.ramp + self.options.extent().1 + LATE;
        wait(&mut self.guest, &format!("begin.{seq}"), limit, interrupt)?;
        let (before, earlier) = (sampler.take(), used(&disk.control)?);
        wait(&mut self.guest, &format!("end.{seq}"), limit, interrupt)?;
        let (used, later) = (sampler.take().since(&before), used(&disk.control)?);
        let (pages, journal_pages) = disk.cached();
        wait(&mut self.guest, &format!("over.{seq}"), limit, interrupt)?;
        let said = wait(&mut self.guest, &format!("done.{seq}"), limit, interrupt)?;
        let done: job::Done = serde_json::from_str(&said).context(ErrorKind::Format, || {
            format!("the report of the guest's foreground is not understood: {said}")
        })?;
        let seconds = used.wall.as_secs_f64();
        let cpus: Vec<f64> =
            used.roles.iter().map(|role| role.cpu.as_secs_f64() / seconds).collect();
        let scheduled = scheduler.as_ref().and_then(|_| cpus.get(2 + self.others.len()));
        let scheduled = scheduled.copied().unwrap_or(0.0);
        let others_cpus = cpus.iter().skip(2).take(self.others.len()).sum();
        let boosts = scheduler.map(|running| self.boosts(&running.stop(END)?.log)).transpose()?;
        Ok(Sample {
            done,
            back_end_us: cpus[0] * 1e6,
            guest_cpus: cpus[1],
            scheduler_us: scheduled * 1e6,
            others_cpus,
            others_due_cpus: due(self.others.len(), cpus[1] + others_cpus + scheduled),
            requests: (later.1 - earlier.1) / seconds,
            interrupts: (later.2 - earlier.2) / seconds,
            boosts: boosts.unwrap_or(0.0),
            pages,
            journal_pages,
        })
    }

    /// Boosts of the guest, per second, by what the scheduler says of itself at its end.
    fn boosts(&self, log: &str) -> Result<f64> {
        let state = last_state(log, self.guest.id(), usize::from(VCPUS) + self.others.len())?;
        let own = state.vcpus.iter().filter(|vcpu| vcpu.pid == self.guest.id());
        let boosts: u64 = own.map(|vcpu| vcpu.boosts + vcpu.wake_boosts).sum();
        Ok(boosts as f64 / state.uptime.max(1e-3))
    }
}

impl Served {
    /// A copy of the image, and its back end.
    fn start(
        (vlane, options): (&Path, &Options),
        host: &Host,
        root: &Root,
        condition: Condition,
        dir: &Path,
    ) -> Result<Self> {
        let beside = |end: &str| dir.join(format!("{}.{end}", condition.name));
        let (image, control) = (beside("img"), beside("control"));
        std::fs::copy(&root.image, &image).at(&image, "cannot be made")?;
        let mut words = condition.serve(&image, options.model, &socket(dir));
        words.extend(["--control".to_owned(), control.display().to_string()]);
        let server = Server::serve(vlane, dir, &[], words.into_iter().map(Into::into))?;
        let journal = ext4::journal(host, &image)?;
        Ok(Self { condition, server, control: Control::new(control), image, journal })
    }

    /// Pages of the image, and of the journal in it, in the host's page cache.
    fn cached(&self) -> (Option<u64>, Option<u64>) {
        let Ok(file) = File::open(&self.image) else { return (None, None) };
        let count = |range: &Range<u64>| vlane_engine::pages::cached(&file, range);
        let bytes = file.metadata().map_or(0, |meta| meta.len());
        (count(&(0..bytes)), self.journal.iter().map(count).sum())
    }
}

/// The part of all CPU time that is due to so many other guests, which have one vCPU each.
fn due(others: usize, all: f64) -> f64 {
    all * others as f64 / (others as f64 + f64::from(VCPUS))
}

/// A whole process.
fn whole(name: &str, pid: u32) -> Role {
    Role::new(name, pid.cast_signed(), ThreadFilter::All)
}

/// The largest part of an image without a piece of its journal. Readers have it: their data are in
/// the host's page cache, in every mode that keeps the journal out of it.
fn outside(journal: &[Range<u64>], bytes: u64) -> Range<u64> {
    let mut ends: Vec<&Range<u64>> = journal.iter().collect();
    ends.sort_unstable_by_key(|range| range.start);
    let begins = std::iter::once(0).chain(ends.iter().map(|range| range.end));
    let gaps = begins.zip(ends.iter().map(|range| range.start).chain([bytes]));
    let gap = gaps.max_by_key(|(begin, end)| end.saturating_sub(*begin));
    gap.map_or(0..bytes, |(begin, end)| begin..end.max(begin))
}

/// Gives the file system of the programs a journal.
fn add_journal(host: &Host, image: &Path) -> Result<()> {
    let mut command = Command::new(host.program("tune2fs")?);
    command.args(["-j", "-J", &format!("size={}", JOURNAL >> 20)]).arg(image);
    let output = run(&mut command, TUNE)?;
    if output.status.success() {
        return Ok(());
    }
    ErrorKind::Process.fail(format!("{command:?} failed: {}", output.text.trim()))
}

/// The guest's script.
fn script(options: &Options, disks: usize, readable: &Range<u64>) -> String {
    let ms = |time: Duration| format!("{}ms", time.as_millis());
    let mut job = format!(
        "--computed /tmp/computed --ramp {} --time {}",
        ms(options.ramp),
        ms(options.extent().1)
    );
    for (name, every) in
        [("launch-every", options.launch_every), ("mail-every", options.mail_every)]
    {
        job.extend(every.map(|every| format!(" --{name} {}", ms(every))));
    }
    let part = format!("--offset={} --size={}", readable.start, readable.end - readable.start);
    with_parts(SCRIPT, options.readers, &part)
        .replace("@DEVICES@", &disk_names().take(disks).collect::<Vec<_>>().join(" "))
        .replace("@JOB@", &job)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_get_largest_part_without_journal() {
        assert_eq!(outside(std::slice::from_ref(&(30..40)), 100), 40..100);
        assert_eq!(outside(std::slice::from_ref(&(70..90)), 100), 0..70);
        assert_eq!(outside(&[60..75, 20..30], 100), 30..60);
        assert_eq!(outside(&[], 100), 0..100);
    }

    #[test]
    fn each_vcpu_is_due_as_much() {
        assert_eq!((due(2, 2.0), due(1, 1.5), due(0, 2.0)), (1.0, 0.5, 0.0));
    }

    #[test]
    fn guest_script_has_no_placeholders() {
        assert!(!script(&super::super::tests::options(&[]), 6, &(0..4096)).contains('@'));
    }

    #[test]
    fn guest_script_has_the_foregrounds_pace() {
        let of = |words: &[&str]| script(&super::super::tests::options(words), 6, &(0..4096));
        assert!(!of(&[]).contains("-every"));
        let paced = of(&["--launch-every", "12s", "--mail-every", "500ms"]);
        assert!(paced.contains("--launch-every 12000ms --mail-every 500ms --dir"));
    }
}
