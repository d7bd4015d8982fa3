//! Lanes in a real guest: one queue and one thread, many queues and one thread, many of both.
//!
//! The guest has a disk for each topology, each an image of its own on a RAM disk with a back end
//! of its own. So all are measured in turns within one boot. A fio of the guest's does the load,
//! with a process on each vCPU. The back end copies each request's data between the guest's memory
//! and the host's page cache. So its work grows with a request's size, while the guest's hardly
//! does. A guest whose CPUs are emulated needs large requests to keep a thread of the back end
//! busy.
//!
//! | | queues | threads of the back end |
//! |---|---|---|
//! | Baseline | 1 | 1 |
//! | MQ | one per vCPU | 1 |
//! | MT | one per vCPU | one per queue |

mod report;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use vlane::values;
use vlane_cost::{Role, Sampler, ThreadFilter};
use vlane_error::counted;
use vlane_guest::{Disk, Guest, Host, Initramfs};
use vlane_report::{Arms, Report};
use vlane_testbed::fio::Outcome;
use vlane_testbed::{
    Call, Context, Control, ErrorKind, Image, Installs, Interrupt, Machines, Maker, Medium, Place,
    Progress, Result, Rounds, Server, distinct, fio, in_turns, pause, settle, wait,
};
use vlane_units::parse_size;

use crate::express::machine::{BOOT, LIFE, disk_names, used};

/// Time that a guest may take to load its fio and to end it.
const AROUND: Duration = Duration::from_secs(120);
/// The same, about.
const USUALLY: Duration = Duration::from_secs(4);
/// Bounds of a measurement's time.
const TIME: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(3600));
/// Parts of a measurement's time before and after the time in which the host counts. fio's time
/// begins a little later than the host's.
const MARGIN: u32 = 10;
/// Memory of the guest, in MiB.
const MEMORY_MIB: u32 = 768;

/// A load of the guest's.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Load {
    /// fio's name of the pattern.
    pattern: &'static str,
    /// Bytes of a request.
    block: u64,
    /// As it was asked for.
    word: String,
}

const PATTERNS: [&str; 4] = ["randread", "randwrite", "read", "write"];

/// Parses `randread-4k`.
fn parse_load(text: &str) -> std::result::Result<Load, String> {
    let Some((pattern, size)) = text.split_once('-') else {
        return Err("a pattern and a size, such as randwrite-1m".into());
    };
    values::one_of(pattern, "pattern", PATTERNS)?;
    let pattern = PATTERNS.into_iter().find(|known| *known == pattern).unwrap_or_default();
    let block = parse_size(size).map_err(|error| error.to_string())?;
    if !(512..=4 << 20).contains(&block) || block % 512 != 0 {
        return Err(format!("{size}: whole sectors of 512 bytes, at most 4M"));
    }
    Ok(Load { pattern, block, word: text.to_owned() })
}

/// The options.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Loads, each a pattern and a size, such as read-1m: randread, randwrite, read, write
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_load)]
    #[arg(default_value = "randread-4k,randread-128k,randread-4m,randwrite-4m")]
    loads: Vec<Load>,
    /// vCPUs of the guest, with a queue each
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = values::whole::<u16>(2..=64))]
    vcpus: u16,
    /// Requests in flight of each vCPU
    #[arg(long, value_name = "N", default_value_t = 4,
        value_parser = values::whole::<u16>(1..=128))]
    depth: u16,
    /// Number of measurements of each topology
    #[arg(long = "repeat", alias = "rounds", value_name = "N", default_value_t = 5,
        value_parser = values::whole::<usize>(1..=1000))]
    rounds: usize,
    /// Duration of each measurement
    #[arg(long, value_name = "TIME", default_value = "8s",
        value_parser = values::time_between(TIME.0, TIME.1))]
    time: Duration,
    /// Warm-up time before each measurement
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = values::time_or_none)]
    ramp: Duration,
    /// Size of each image
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = values::size)]
    size: u64,
    /// Directory for the images, on a RAM disk
    #[arg(long, value_name = "DIR")]
    ram_dir: Option<PathBuf>,
    #[command(flatten)]
    installs: Installs,
}

/// Queues and threads of a back end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Topology {
    name: &'static str,
    has_queues: bool,
    has_threads: bool,
}

const TOPOLOGIES: [Topology; 3] = [
    Topology { name: "Baseline", has_queues: false, has_threads: false },
    Topology { name: "MQ", has_queues: true, has_threads: false },
    Topology { name: "MT", has_queues: true, has_threads: true },
];

impl Topology {
    /// Its queues and its threads for a guest's vCPUs.
    fn numbers(self, vcpus: u16) -> (u16, u16) {
        let of = |is_each| if is_each { vcpus } else { 1 };
        (of(self.has_queues), of(self.has_threads))
    }

    /// Words of `vlane serve`.
    fn serve(self, image: &Path, vcpus: u16, control: &Path) -> Vec<String> {
        let (queues, threads) = self.numbers(vcpus);
        let words = [
            &image.display().to_string(),
            "--format",
            "raw",
            "--cache",
            "writeback",
            "--sched=off",
            "--queues",
            &queues.to_string(),
            "--threads",
            &threads.to_string(),
            "--control",
            &control.display().to_string(),
        ];
        words.map(str::to_owned).to_vec()
    }
}

/// Results of one measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Sample {
    /// By the guest's fio.
    fio: Outcome,
    /// CPU time of the back end, per second: CPUs.
    back_end_cpus: f64,
    /// CPU time of QEMU, per second: CPUs.
    guest_cpus: f64,
    /// CPU time of the back end for a request, us.
    back_end_us: f64,
    /// Interrupts that the guest gets, per second.
    interrupts: f64,
}

/// A disk of the guest, in one topology.
struct Served {
    server: Server,
    control: Control,
    _image: Image,
}

/// The guest and its disks.
struct Bed<'a> {
    options: &'a Options,
    guest: Guest,
    disks: Vec<Served>,
    /// Where the control sockets are.
    _directory: tempfile::TempDir,
    measured: usize,
    about: String,
}

/// Follows commands: each is a number, a disk, fio's pattern and its size.
const SCRIPT: &str = r#"
stty -echo 2>/dev/null
for dev in @DEVICES@; do
    echo none > /sys/block/$dev/queue/scheduler
done
echo "RESULT kernel=$(uname -r)"
echo "RESULT ready=1"
while read -r seq dev pattern block; do
    (
        until [ -e /tmp/begun ]; do sleep 0.1; done
        echo "RESULT begun.$seq=1"
    ) &
    fio --name=lanes --filename=/dev/$dev --rw=$pattern --bs=$block --ioengine=libaio --direct=1 \
        --iodepth=@DEPTH@ --numjobs=@VCPUS@ --cpus_allowed=0-@LAST@ --cpus_allowed_policy=split \
        --norandommap --group_reporting --time_based --ramp_time=@RAMP@ms --runtime=@TIME@ms \
        --exec_prerun='touch /tmp/begun' --disk_util=0 --output-format=terse --terse-version=3 \
        --output=/tmp/answer < /dev/null > /tmp/said 2>&1
    wait
    grep '^3;' /tmp/answer > /tmp/line || cat /tmp/answer /tmp/said
    echo "RESULT fio.$seq=$(cat /tmp/line)"
    rm -f /tmp/begun /tmp/answer /tmp/line *.prerun.txt
done
"#;

fn script(options: &Options, disks: usize) -> String {
    let names: Vec<String> = disk_names().take(disks).collect();
    let parts = [
        ("@DEVICES@", names.join(" ")),
        ("@DEPTH@", options.depth.to_string()),
        ("@VCPUS@", options.vcpus.to_string()),
        ("@LAST@", (options.vcpus - 1).to_string()),
        ("@RAMP@", options.ramp.as_millis().to_string()),
        ("@TIME@", options.time.as_millis().to_string()),
    ];
    parts.iter().fold(SCRIPT.to_owned(), |script, (name, part)| script.replace(name, part))
}

impl<'a> Bed<'a> {
    fn make(options: &'a Options, host: &Host, call: &Call<'_>) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("vlane-lanes-").tempdir();
        let directory = directory.context(ErrorKind::Io, || "cannot make a directory")?;
        let bytes = options.size * TOPOLOGIES.len() as u64;
        let place = Place::find(Medium::Ram, options.ram_dir.as_deref(), bytes, "--ram-dir")?;
        let disk = |topology: &Topology| {
            let image = place.image(options.size, call.interrupt)?;
            let control = directory.path().join(format!("{}.control", topology.name));
            let words = topology.serve(image.path(), options.vcpus, &control);
            let words = words.into_iter().map(Into::into);
            let server = Server::serve(call.vlane, directory.path(), &[], words)?;
            Ok(Served { server, control: Control::new(control), _image: image })
        };
        let disks = TOPOLOGIES.iter().map(disk).collect::<Result<Vec<_>>>()?;
        let maker = Maker::find(host, Machines::Qemu)?;
        let files = Initramfs::new(script(options, disks.len())).programs(["fio"]);
        let at = |(disk, topology): (&Served, &Topology)| Disk {
            queues: Some(topology.numbers(options.vcpus).0),
            ..Disk::at(disk.server.socket())
        };
        let given = disks.iter().zip(&TOPOLOGIES).map(at).collect();
        let mut guest = maker.start_sized(given, &files, LIFE, options.vcpus, MEMORY_MIB)?;
        wait(&mut guest, "ready", BOOT, call.interrupt)?;
        let kernel = guest.results().get("kernel").cloned().unwrap_or_default();
        let vcpus = counted(options.vcpus, "vCPU");
        let about = format!("{}, {vcpus}, Linux {kernel}", maker.describe());
        Ok(Self { options, guest, disks, _directory: directory, measured: 0, about })
    }

    fn turn(&mut self, at: usize, load: &Load, interrupt: &Interrupt) -> Result<Sample> {
        self.measured += 1;
        let (seq, disk, options) = (self.measured, &self.disks[at], self.options);
        let whole = |name, pid: u32| Role::new(name, pid.cast_signed(), ThreadFilter::All);
        let roles = vec![whole("back end", disk.server.pid()), whole("guest", self.guest.id())];
        let mut sampler = Sampler::new(roles);
        let device = disk_names().nth(at).unwrap_or_default();
        self.guest.send(&format!("{seq} {device} {} {}\n", load.pattern, load.block))?;
        wait(&mut self.guest, &format!("begun.{seq}"), AROUND, interrupt)?;
        let margin = options.time / MARGIN;
        let begin = Instant::now() + options.ramp + margin;
        pause(begin, interrupt)?;
        let (before, (.., earlier)) = (sampler.take(), used(&disk.control)?);
        pause(begin + options.time - 3 * margin, interrupt)?;
        let (spent, (.., later)) = (sampler.take().since(&before), used(&disk.control)?);
        let limit = options.time + AROUND;
        let line = wait(&mut self.guest, &format!("fio.{seq}"), limit, interrupt)?;
        let outcome = fio::parse(&line, load.block)?.1;
        let seconds = spent.wall.as_secs_f64();
        let cpus = |at: usize| spent.roles[at].cpu.as_secs_f64() / seconds;
        Ok(Sample {
            fio: outcome,
            back_end_cpus: cpus(0),
            guest_cpus: cpus(1),
            back_end_us: cpus(0) * 1e6 / outcome.iops,
            interrupts: (later - earlier) / seconds,
        })
    }
}

/// Measures all loads with vlane's own file, and makes the report of it.
///
/// # Errors
/// `ErrorKind::Missing` without a program that is needed, `ErrorKind::Interrupted`, and those of
/// the guest and the back ends.
pub fn run(options: &Options, call: &Call<'_>) -> Result<Report> {
    let options = &Options { loads: distinct(options.loads.clone()), ..options.clone() };
    let Call { begun, interrupt, .. } = call;
    let host = options.installs.host()?;
    let names = TOPOLOGIES.map(|topology| topology.name.to_owned());
    let mut results: Vec<(Load, Arms<Sample>)> =
        options.loads.iter().map(|load| (load.clone(), Arms::named(&names))).collect();
    let steps = 1 + options.rounds * results.len() * (names.len() + 1);
    let mut progress = Progress::new(steps).expecting(options.ramp + options.time + USUALLY);
    progress.step("the guest boots");
    let mut bed = Bed::make(options, &host, call)?;
    settle(options.rounds, interrupt)?;
    let rounds = Rounds::measure(options.rounds, |round| {
        for (load, arms) in &mut results {
            in_turns(arms, round, |at, arm| {
                progress.step(format!("round {}: {}: {arm}", round + 1, load.word));
                bed.turn(at, load, interrupt)
            })?;
        }
        Ok(())
    })?;
    progress.clear();
    results.iter_mut().for_each(|(_, arms)| arms.keep(rounds.whole()));
    Ok(rounds.marked(report::fill(options, &bed.about, &results, begun)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    pub(super) fn options(words: &[&str]) -> Options {
        crate::tests::options(words)
    }

    #[test]
    fn load_is_a_pattern_and_a_size() {
        let load = parse_load("randwrite-128k").unwrap();
        assert_eq!((load.pattern, load.block), ("randwrite", 128 << 10));
        for bad in ["randwrite", "trim-4k", "read-", "read-100", "read-8m", "read-0", "-4k"] {
            assert!(parse_load(bad).is_err(), "{bad}");
        }
        assert_eq!(options(&[]).loads.len(), 4);
    }

    #[test]
    fn topologies_differ_by_queues_then_threads() {
        let numbers = TOPOLOGIES.map(|topology| topology.numbers(4));
        assert_eq!(numbers, [(1, 1), (4, 1), (4, 4)]);
        let words = TOPOLOGIES[2].serve(Path::new("disk"), 4, Path::new("c")).join(" ");
        assert!(words.contains("--queues 4 --threads 4 --control c"), "{words}");
    }

    #[test]
    fn guest_script_has_no_placeholders() {
        let script = script(&options(&["--vcpus", "3", "--time", "5s"]), 3);
        assert!(!script.contains('@'), "{script}");
        assert!(script.contains("--cpus_allowed=0-2") && script.contains("--runtime=5000ms"));
    }
}
