//! QEMU's own virtio-blk in a guest: how often its functions are called for the same bytes in small
//! and in large requests.
//!
//! The guest runs fio on the bare disk, once per case. Before and after the job proper fio runs
//! `/gate`, which prints the guest's interrupts. The first waits for a line on the console, so that
//! the host can look at QEMU's threads and at its trace log.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::{Duration, Instant};

use vlane_guest::{Choice, Disk, Drive, Guest, Host, Initramfs, Kernel, Qemu, QemuProgram};

use super::{BLOCKS, Direction};
use vlane_client::progress::Progress;
use vlane_cost::interrupts::Interrupts;
use vlane_cost::kvm::KvmStats;
use vlane_cost::qemu;
use vlane_cost::{Counted, Role, Sampler, Tally, Used};
use vlane_testbed::Rounds;
use vlane_testbed::error::{Context, Error, ErrorKind, Result};
use vlane_testbed::guests::{trouble, wait};
use vlane_testbed::interrupt::Interrupt;

/// Steps of [`measure`]: the boot, and every case in each pass.
pub const fn steps(passes: usize) -> usize {
    1 + CASES * passes
}

/// Cases: reads and writes, small and large.
const CASES: usize = Direction::ALL.len() * BLOCKS.len();
/// The disk's PCI slot.
const SLOT: u8 = 4;
/// Longest time to boot, and for one case, on a busy machine with an emulated CPU.
const BOOT: Duration = Duration::from_secs(120);
const CASE: Duration = Duration::from_secs(180);
/// Bytes that each measurement moves.
const BYTES: u64 = 32 << 20;
/// Requests in flight.
const DEPTH: u16 = 32;

const SCRIPT: &str = r#"
stty -echo 2>/dev/null
tries=0
while [ ! -b /dev/vda ] && [ $tries -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
[ -b /dev/vda ] || { echo "no disk"; exit 1; }
echo "RESULT ready=1"
while read -r command id rw bs bytes depth; do
    case $command in
    run)
        fio --name=x --filename=/dev/vda --direct=1 --ioengine=libaio --iodepth="$depth" --thread --rw="$rw" --bs="$bs" \
            --io_size="$bytes" --disk_util=0 --exec_prerun="/gate begin $id" --exec_postrun="/gate end $id" \
            --output=/tmp/said < /dev/null > /tmp/more 2>&1
        status=$?
        [ $status -eq 0 ] || cat /tmp/said /tmp/more
        rm -f /tmp/said /tmp/more ./*.txt
        echo "RESULT done.$id=$status"
        ;;
    quit) exit 0 ;;
    esac
done
"#;

const GATE: &str = r#"#!/bin/sh
lines=$(tr '\n' '|' < /proc/interrupts)
echo "RESULT $1.$2=$lines" > /dev/console
if [ "$1" = begin ]; then
    read -r go < /dev/console
fi
"#;

/// Components of the machine.
#[derive(Debug)]
pub struct Parts<'a> {
    /// The host.
    pub host: &'a Host,
    /// Which QEMU.
    pub program: QemuProgram,
    /// The guest's kernel.
    pub kernel: Kernel,
    /// How instructions are executed.
    pub accel: Choice,
}

/// One case.
#[derive(Debug, Clone, PartialEq)]
pub struct GuestMeasured {
    /// Read or write.
    pub direction: Direction,
    /// Bytes per request of the program in the guest.
    pub block: u32,
    /// In which pass.
    pub pass: usize,
    /// Bytes moved.
    pub bytes: u64,
    /// Time that it took, the end of fio's job included.
    pub seconds: f64,
    /// Calls of QEMU's virtio-blk functions, by trace event.
    pub calls: Tally,
    /// Interrupts of the disk in the guest.
    pub interrupts: u64,
    /// Resources used by QEMU's threads.
    pub used: Used,
    /// Exits to the host.
    pub exits: Counted<KvmStats>,
}

impl GuestMeasured {
    /// Requests that arrived in QEMU: the guest's block layer splits large ones and merges small
    /// ones.
    pub fn requests(&self) -> u64 {
        self.calls.of("virtio_blk_handle_read") + self.calls.of("virtio_blk_handle_write")
    }
}

/// Boots the guest and measures every case.
///
/// # Errors
/// Those of starting QEMU; [`ErrorKind::Process`] with the console's end if the guest does not do
/// what it should; [`ErrorKind::Interrupted`].
pub fn measure(
    parts: &Parts<'_>,
    image: &Path,
    dir: &Path,
    passes: usize,
    interrupt: &Interrupt,
    progress: &mut Progress,
) -> Result<(Vec<GuestMeasured>, Rounds)> {
    progress.step("booting a guest on QEMU's virtio-blk");
    let log = dir.join("qemu-trace.log");
    let kernel = parts.kernel.image.clone();
    let boot = vlane_guest::Boot::Kernel { kernel, initramfs: None, append: String::new() };
    let mut machine = Qemu::new(parts.program.clone(), parts.accel.accel, boot, Disk::at(""));
    machine.disks = Vec::new();
    let controller = vlane_guest::Controller::Virtio { queues: 1, iothreads: 1 };
    machine.drives = vec![Drive {
        id: "disk".into(),
        image: image.to_path_buf(),
        direct: false,
        controller,
        slot: SLOT,
    }];
    machine.vcpus = 1;
    machine.extra = ["-name", "work,debug-threads=on"].map(String::from).to_vec();
    for word in qemu::arguments(&log) {
        machine.extra.push(word.into_string().map_err(|word| {
            Error::new(
                ErrorKind::Invalid,
                format!("{}: not a path that can be passed on", word.display()),
            )
        })?);
    }
    let initramfs = Initramfs::new(SCRIPT).programs(["fio"]).file("gate", 0o755, GATE);
    let limit = BOOT + CASE * u32::try_from(CASES * passes).unwrap_or(u32::MAX);
    let mut guest = machine.start_with(parts.host, &parts.kernel, &initramfs, limit, None)?;
    wait(&mut guest, "ready", BOOT, interrupt)?;
    let mut all = Vec::new();
    let rounds = Rounds::measure(passes, |pass| {
        let cases =
            Direction::ALL.into_iter().flat_map(|direction| BLOCKS.map(|block| (direction, block)));
        let mut cases: Vec<_> = cases.collect();
        if pass % 2 == 1 {
            cases.reverse();
        }
        for (direction, block) in cases {
            progress.step(format!("in the guest: {}K {}", block >> 10, direction.name()));
            all.push(measure_case(&mut guest, &log, (direction, block), pass, interrupt)?);
        }
        Ok(())
    })?;
    all.retain(|measured| measured.pass < rounds.whole());
    // A guest that is gone has quit.
    let _ = guest.send("quit\n");
    Ok((all, rounds))
}

/// Measures one case in the guest: fio's job between its gates.
fn measure_case(
    guest: &mut Guest,
    log: &Path,
    (direction, block): (Direction, u32),
    pass: usize,
    interrupt: &Interrupt,
) -> Result<GuestMeasured> {
    let id = format!("{}-{block}-{pass}", direction.pattern());
    guest.send(&format!("run {id} {} {block} {BYTES} {DEPTH}\n", direction.pattern()))?;
    let begin = wait(guest, &format!("begin.{id}"), CASE, interrupt)?;
    let pid = i32::try_from(guest.id()).unwrap_or(i32::MAX);
    let mut sampler = Sampler::new(Role::qemu(pid));
    let (log_before, exits_before) = (length(log)?, KvmStats::take(pid));
    let (before, start) = (sampler.take(), Instant::now());
    guest.send("go\n")?;
    let end = wait(guest, &format!("end.{id}"), CASE, interrupt)?;
    let seconds = start.elapsed().as_secs_f64();
    let used = sampler.take().since(&before);
    let exits = KvmStats::take(pid).with(exits_before, |after, before| after.since(&before));
    let calls = read_log(log, log_before)?;
    if wait(guest, &format!("done.{id}"), CASE, interrupt)? != "0" {
        return Err(trouble(guest, "fio failed in the guest"));
    }
    let parse = |text: &str| Interrupts::parse(&text.replace('|', "\n"));
    let interrupts = parse(&end).since(&parse(&begin)).of_device("virtio");
    Ok(GuestMeasured {
        direction,
        block,
        pass,
        bytes: BYTES,
        seconds,
        calls,
        interrupts,
        used,
        exits,
    })
}

/// How long QEMU's log is.
fn length(log: &Path) -> Result<u64> {
    let meta = std::fs::metadata(log);
    Ok(meta
        .context(ErrorKind::Io, || format!("{}: QEMU writes no trace log", log.display()))?
        .len())
}

/// The events in QEMU's log from a place on.
fn read_log(log: &Path, from: u64) -> Result<Tally> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(log)?;
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes =
        read().context(ErrorKind::Io, || format!("{}: QEMU writes no trace log", log.display()))?;
    Ok(qemu::events(&String::from_utf8_lossy(&bytes), "virtio_blk_"))
}
