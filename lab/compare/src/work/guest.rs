//! QEMU's own virtio-blk in a guest: how often its functions are called for the same bytes in small
//! and in large requests.
//!
//! The guest runs fio on the bare disk, once per case. Before and after the job proper fio runs
//! `/gate`, which prints the guest's interrupts. The first waits for a line on the console, so that
//! the host can look at QEMU's threads and at its trace log.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use vlane_cost::{Role, Sampler, interrupts, kvm, qemu};
use vlane_guest::{
    Boot, Choice, Controller, Disk, Drive, Guest, Host, Initramfs, Kernel, Qemu, QemuProgram,
};
use vlane_testbed::{At, Context, Error, ErrorKind, Interrupt, Result, trouble, wait};

/// The disk's PCI slot.
const SLOT: u8 = 4;
/// Longest time to boot, and for one case, on a busy machine with an emulated CPU.
const BOOT: Duration = Duration::from_secs(120);
const CASE: Duration = Duration::from_secs(180);
/// Bytes that each measurement moves.
pub(super) const BYTES: u32 = 32 << 20;
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

/// One measurement of a case.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Sample {
    /// Time that it took, the end of fio's job included.
    pub(super) seconds: f64,
    /// Requests that arrived in QEMU: the guest's block layer splits large ones and merges small
    /// ones.
    pub(super) requests: f64,
    /// Calls of QEMU's virtio-blk functions.
    pub(super) calls: f64,
    /// The same by trace event.
    pub(super) events: BTreeMap<String, u64>,
    /// Interrupts of the disk in the guest.
    pub(super) interrupts: f64,
    /// Context switches of QEMU.
    pub(super) switches: f64,
    /// CPU time of QEMU's threads by role.
    pub(super) cpu_us: BTreeMap<String, f64>,
    /// Exits to the host, where they are counted.
    pub(super) exits: Option<f64>,
}

/// The guest, and QEMU's log of its functions.
pub(super) struct InGuest<'a> {
    guest: Guest,
    /// Read up to the last measurement's end.
    log: File,
    interrupt: &'a Interrupt,
}

impl<'a> InGuest<'a> {
    /// Boots the guest, which lives long enough for so many cases.
    pub(super) fn boot(
        host: &Host,
        (program, kernel, accel): (QemuProgram, &Kernel, &Choice),
        image: &Path,
        dir: &Path,
        cases: usize,
        interrupt: &'a Interrupt,
    ) -> Result<Self> {
        let log = dir.join("qemu-trace.log");
        let boot =
            Boot::Kernel { kernel: kernel.image.clone(), initramfs: None, append: String::new() };
        let mut machine = Qemu::new(program, accel.accel, boot, Disk::at(""));
        machine.disks = Vec::new();
        machine.drives = vec![Drive {
            id: "disk".into(),
            image: image.to_path_buf(),
            direct: false,
            controller: Controller::Virtio { queues: 1, iothreads: 1 },
            slot: SLOT,
        }];
        machine.vcpus = 1;
        machine.extra = ["-name", "work,debug-threads=on"].map(String::from).to_vec();
        for word in qemu::arguments(&log) {
            machine.extra.push(word.into_string().map_err(|word| {
                let context = format!("{}: not a path that can be passed on", word.display());
                Error::new(ErrorKind::Invalid, context)
            })?);
        }
        let initramfs = Initramfs::new(SCRIPT).programs(["fio"]).file("gate", 0o755, GATE);
        let limit = BOOT + CASE * u32::try_from(cases).unwrap_or(u32::MAX);
        let mut guest = machine.start_with(host, kernel, &initramfs, limit, None)?;
        wait(&mut guest, "ready", BOOT, interrupt)?;
        let log = File::open(&log).at(&log, "QEMU writes no trace log")?;
        Ok(Self { guest, log, interrupt })
    }

    /// Measures one case: fio's job between its gates.
    pub(super) fn measure(&mut self, pattern: &str, block: u32, pass: usize) -> Result<Sample> {
        let Self { guest, log, interrupt } = self;
        let id = format!("{pattern}-{block}-{pass}");
        guest.send(&format!("run {id} {pattern} {block} {BYTES} {DEPTH}\n"))?;
        let begin = wait(guest, &format!("begin.{id}"), CASE, interrupt)?;
        let pid = guest.id().cast_signed();
        let mut sampler = Sampler::new(Role::qemu(pid));
        // Events before it do not count.
        rest(log)?;
        let exits_before = kvm::take(pid);
        let (before, start) = (sampler.take(), Instant::now());
        guest.send("go\n")?;
        let end = wait(guest, &format!("end.{id}"), CASE, interrupt)?;
        let seconds = start.elapsed().as_secs_f64();
        let used = sampler.take().since(&before);
        let exits = kvm::take(pid).and_then(|after| Ok(after.since(&exits_before?)));
        let events = qemu::events(&rest(log)?, "virtio_blk_");
        if wait(guest, &format!("done.{id}"), CASE, interrupt)? != "0" {
            return Err(trouble(guest, "fio failed in the guest"));
        }
        let parse = |text: &str| interrupts::parse(&text.replace('|', "\n"));
        let interrupts = interrupts::of_device(&parse(&end).since(&parse(&begin)), "virtio");
        let requests = events.of("virtio_blk_handle_read") + events.of("virtio_blk_handle_write");
        Ok(Sample {
            seconds,
            requests: requests as f64,
            calls: events.total() as f64,
            events: events.0,
            interrupts: interrupts as f64,
            switches: used.switches() as f64,
            cpu_us: used
                .roles
                .iter()
                .map(|role| (role.name.clone(), role.cpu.as_secs_f64() * 1e6))
                .collect(),
            exits: exits.ok().map(|exits| exits.of("exits") as f64),
        })
    }

    /// The reason why exits to the host are not counted.
    pub(super) fn uncounted(&self) -> Option<String> {
        kvm::take(self.guest.id().cast_signed()).err()
    }

    /// Ends the guest.
    pub(super) fn quit(mut self) {
        // A guest that is gone has quit.
        let _ = self.guest.send("quit\n");
    }
}

/// The unread lines of QEMU's log.
fn rest(log: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    log.read_to_end(&mut bytes).context(ErrorKind::Io, || "QEMU's trace log cannot be read")?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
