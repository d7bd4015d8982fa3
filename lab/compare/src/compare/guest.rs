//! The one guest that has all disks, and how it is led through a round.
//!
//! The guest waits for commands on its console, and answers in `RESULT key=value` lines. For a
//! round it starts fio once, with a job per column, one after the other. Before each job fio runs
//! `/gate begin`, which reports the disk's counters and waits for a line on the console. After it
//! fio runs `/gate end`, which reports them again. So the host can read its own counters between
//! two measurements, let its own fio run, and end at any time. An emulated CPU loads fio only once
//! per round.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use vlane_guest::{Choice, Disk, Drive, Guest, Host, Initramfs, Kernel, Qemu, QemuProgram};

use super::columns::Column;
use super::jobs::{self, CacheState, OLD, Settings};
use super::plan::Round;
use vlane_testbed::error::{Error, ErrorKind, Result};
use vlane_testbed::interrupt::Interrupt;

/// vCPUs of the guest, and queues of each of its virtio disks.
pub const VCPUS: u16 = 2;
/// Guest memory in MiB, without what a warm page cache needs.
const MEMORY_MIB: u64 = 640;
/// Longest time from the start to the guest's first word, emulated on a busy machine.
const BOOT: Duration = Duration::from_secs(120);
/// Longest that fio may take to load, or to end, in an emulated guest on a busy machine.
const TURN: Duration = Duration::from_secs(60);
/// How often an interrupt is looked for.
const LOOK: Duration = Duration::from_millis(200);

/// Finds the disks by their PCI slots, mounts them, and follows commands.
const SCRIPT: &str = r#"
stty -echo 2>/dev/null
mkdir -p /run
for disk in @DISKS@; do
    id=${disk%%/*}
    slot=${disk#*/}
    dev=
    tries=0
    while [ -z "$dev" ] && [ $tries -lt 100 ]; do
        for block in /sys/block/*; do
            path=$(readlink -f "$block")
            case $path in
            */"$slot"/*) dev=${block##*/}; where=$path ;;
            esac
        done
        [ -n "$dev" ] || sleep 0.1
        tries=$((tries + 1))
    done
    [ -n "$dev" ] || { echo "no disk in slot $slot for $id"; exit 1; }
    case $where in
    */virtio*) irq=$(echo "$where" | sed 's|.*/\(virtio[0-9]*\)/.*|\1-|') ;;
    */nvme/*) irq=$(echo "$where" | sed 's|.*/nvme/\(nvme[0-9]*\)/.*|\1q|') ;;
    *) irq=ata_piix ;;
    esac
    cache=$(cat "/sys/block/$dev/queue/write_cache")
    # Writes are made stable by flushes for everybody: one back end begins without a write cache.
    if [ "$cache" = "write through" ] && [ -w "/sys/block/$dev/cache_type" ]; then
        echo "write back" > "/sys/block/$dev/cache_type"
    fi
    now=$(cat "/sys/block/$dev/queue/write_cache")
    scheduler=$(cat "/sys/block/$dev/queue/scheduler")
    queues=$(ls "/sys/block/$dev/mq" | wc -l)
    echo "$dev $irq" > "/run/disk.$id"
    mkdir -p "/mnt/$id"
    mount -t ext4 "/dev/$dev" "/mnt/$id" || exit 1
    echo "RESULT disk.$id=$dev|$queues|$scheduler|$cache|$now"
done
echo "RESULT kernel=$(uname -r)"
echo "RESULT ready=1"
while read -r command what; do
    case $command in
    run)
        cd /tmp
        fio --output-format=terse --terse-version=3 --output=/tmp/answer "/jobs/$what" < /dev/null > /tmp/said 2>&1
        status=$?
        n=0
        while read -r line; do
            case $line in
            "3;"*) echo "RESULT line.$what.$n=$line"; n=$((n + 1)) ;;
            ?*) echo "fio: $line" ;;
            esac
        done < /tmp/answer
        [ $status -eq 0 ] || cat /tmp/said
        rm -f /tmp/answer /tmp/*.txt
        echo "RESULT done.$what=$status"
        ;;
    quit) exit 0 ;;
    esac
done
"#;

/// Before and after each job: the counters, and a wait for the host's word.
const GATE: &str = r#"#!/bin/sh
read -r dev irq < "/run/disk.$3"
if [ "$1" = begin ]; then
    @PREPARE@
fi
irqs=$(awk -v p="$irq" 'index($0, p) { for (i = 2; i <= NF && $i ~ /^[0-9]+$/; i++) s += $i } END { print s + 0 }' /proc/interrupts)
read -r stat < "/sys/block/$dev/stat"
echo "RESULT $1.$2.$3=$irqs $stat" > /dev/console
if [ "$1" = begin ]; then
    read -r go < /dev/console
fi
"#;

/// The empty job, which shows fio's start-up time.
const NOTHING: &str =
    "[global]\nthread=1\nioengine=null\nrw=read\nbs=4k\nsize=4k\ndisk_util=0\n[nothing]\n";
/// Its name.
const NOTHING_ID: &str = "nothing";

/// The guest's block layer's counters of a disk, and its interrupts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskCounters {
    /// Interrupts.
    pub interrupts: u64,
    /// Reads that the disk completed.
    pub reads: u64,
    /// Writes that the disk completed.
    pub writes: u64,
    /// Flushes that the disk completed.
    pub flushes: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

impl DiskCounters {
    /// From the gate's line: interrupts, then the fields of `/sys/block/*/stat` (the kernel's
    /// `Documentation/block/stat.rst`).
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<u64> =
            text.split_whitespace().map(|field| field.parse().ok()).collect::<Option<_>>()?;
        let at = |n: usize| fields.get(n + 1).copied();
        Some(Self {
            interrupts: *fields.first()?,
            reads: at(0)?,
            writes: at(4)?,
            // Since Linux 5.5.
            flushes: at(15).unwrap_or(0),
            bytes: (at(2)? + at(6)?) * 512,
        })
    }

    /// Counts since `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            interrupts: self.interrupts.saturating_sub(before.interrupts),
            reads: self.reads.saturating_sub(before.reads),
            writes: self.writes.saturating_sub(before.writes),
            flushes: self.flushes.saturating_sub(before.flushes),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }

    /// Requests that the disk completed.
    pub fn requests(&self) -> u64 {
        self.reads + self.writes + self.flushes
    }
}

/// A disk as the guest sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenDisk {
    /// Its name, like `vda`.
    pub device: String,
    /// Hardware queues.
    pub queues: String,
    /// The I/O scheduler that the kernel chose.
    pub scheduler: String,
    /// Its write cache as it came.
    pub cache_before: String,
    /// Its write cache as it was measured.
    pub cache: String,
}

/// Components of the machine.
#[derive(Debug)]
pub struct Parts<'a> {
    /// The host.
    pub host: &'a Host,
    /// Which QEMU.
    pub program: &'a QemuProgram,
    /// The guest's kernel.
    pub kernel: &'a Kernel,
    /// How instructions are executed.
    pub accel: &'a Choice,
    /// Sockets of the vhost-user disks.
    pub sockets: Vec<(Column, PathBuf)>,
    /// Images of the disks that QEMU serves.
    pub images: Vec<(Column, PathBuf)>,
    /// Every round that may come.
    pub rounds: &'a [Round],
    /// How jobs are run.
    pub settings: Settings,
    /// The guest is killed after this time.
    pub limit: Duration,
}

/// The guest, ready for rounds.
#[derive(Debug)]
pub struct Machine<'a> {
    guest: Guest,
    interrupt: &'a Interrupt,
    /// QEMU's command line.
    pub command: String,
    /// The disks as the guest sees them.
    pub disks: BTreeMap<Column, SeenDisk>,
}

impl Parts<'_> {
    fn columns(&self) -> Vec<Column> {
        self.sockets.iter().chain(&self.images).map(|(column, _)| *column).collect()
    }

    /// The machine; its command line is what [`Machine::command`] shows.
    fn qemu(&self) -> Qemu {
        let direct = self.settings.cache == CacheState::Direct;
        let disks: Vec<Disk> = self
            .sockets
            .iter()
            .map(|(column, socket)| Disk {
                queues: Some(VCPUS),
                slot: Some(column.slot()),
                ..Disk::at(socket)
            })
            .collect();
        let drives = self
            .images
            .iter()
            .filter_map(|(column, image)| {
                let controller = column.controller(VCPUS)?;
                let image = image.clone();
                Some(Drive {
                    id: column.id().into(),
                    image,
                    direct,
                    controller,
                    slot: column.slot(),
                })
            })
            .collect();
        let warm =
            if direct { 0 } else { self.settings.old_bytes.max(self.settings.new_bytes) >> 20 };
        // An NVMe drive's own name has to lead to its PCI slot.
        let append = "nvme_core.multipath=N".to_string();
        let boot = vlane_guest::Boot::Kernel {
            kernel: self.kernel.image.clone(),
            initramfs: None,
            append,
        };
        let mut qemu = Qemu::new(self.program.clone(), self.accel.accel, boot, Disk::at(""));
        qemu.disks = disks;
        qemu.drives = drives;
        qemu.vcpus = VCPUS;
        // The page cache of one disk after the other: twice the file is enough.
        qemu.memory_mib = u32::try_from(MEMORY_MIB + 2 * warm).unwrap_or(u32::MAX);
        // Named threads can be distinguished.
        qemu.extra = ["-name", "compare,debug-threads=on"].map(String::from).to_vec();
        qemu
    }

    fn initramfs(&self) -> Initramfs {
        let disks: Vec<_> = self
            .columns()
            .iter()
            .map(|column| format!("{}/{}", column.id(), Drive::guest_address(column.slot())))
            .collect();
        let prepare = match self.settings.cache {
            CacheState::Direct => ":".into(),
            CacheState::Warm => format!("cat \"/mnt/$3/{OLD}\" > /dev/null"),
            CacheState::Cold => "sync; echo 3 > /proc/sys/vm/drop_caches".into(),
        };
        let mut guest = Initramfs::new(SCRIPT.replace("@DISKS@", &disks.join(" ")))
            .programs(["fio"])
            .file("gate", 0o755, GATE.replace("@PREPARE@", &prepare))
            .file(&format!("jobs/{NOTHING_ID}"), 0o644, NOTHING);
        for round in self.rounds {
            guest =
                guest.file(&format!("jobs/{}", round.id()), 0o644, job_file(round, &self.settings));
        }
        guest
    }

    /// Boots it.
    ///
    /// # Errors
    /// Those of starting QEMU; [`ErrorKind::Process`] with the console's end if the guest does not
    /// get ready.
    pub fn boot<'a>(&self, interrupt: &'a Interrupt) -> Result<Machine<'a>> {
        let qemu = self.qemu();
        let command = qemu.spec().shell_line();
        let guest = qemu.start_with(self.host, self.kernel, &self.initramfs(), self.limit, None)?;
        let mut machine = Machine { guest, interrupt, command, disks: BTreeMap::new() };
        machine.wait(&["ready", "script"], BOOT)?;
        let results = machine.guest.results();
        if !results.contains_key("ready") {
            return Err(machine.trouble("the guest did not find its disks"));
        }
        for column in self.columns() {
            let seen =
                results.get(&format!("disk.{}", column.id())).and_then(|text| seen_disk(text));
            machine.disks.insert(
                column,
                seen.ok_or_else(|| machine.trouble("the guest names a disk badly"))?,
            );
        }
        Ok(machine)
    }
}

fn seen_disk(text: &str) -> Option<SeenDisk> {
    let mut parts = text.split('|').map(|part| part.trim().to_string());
    let mut next = || parts.next();
    let (device, queues, scheduler) = (next()?, next()?, next()?);
    // `none [mq-deadline] kyber`: the one in brackets.
    let chosen = scheduler.split(['[', ']']).nth(1).map(str::to_string);
    Some(SeenDisk {
        device,
        queues,
        scheduler: chosen.unwrap_or(scheduler),
        cache_before: next()?,
        cache: next()?,
    })
}

/// The guest's jobs of a round.
fn job_file(round: &Round, settings: &Settings) -> String {
    let mut text = jobs::global(&round.load, settings);
    let run = round.id();
    for column in round.in_guest() {
        let id = column.id();
        let (before, after) = (format!("/gate begin {run} {id}"), format!("/gate end {run} {id}"));
        text += &jobs::section(id, &round.load, &format!("/mnt/{id}"), Some((&before, &after)));
    }
    text
}

impl Machine<'_> {
    /// QEMU's process id.
    pub fn pid(&self) -> u32 {
        self.guest.id()
    }

    /// fio's time to start here and end, with an empty job.
    ///
    /// # Errors
    /// As [`Machine::start`].
    pub fn time_start(&mut self) -> Result<Duration> {
        let begin = Instant::now();
        self.guest.send(&format!("run {NOTHING_ID}\n"))?;
        self.done(NOTHING_ID, TURN)?;
        Ok(begin.elapsed())
    }

    /// Begins a round: fio is loaded, and waits at the first gate.
    ///
    /// # Errors
    /// [`ErrorKind::Process`] if the guest is gone.
    pub fn start(&mut self, round: &Round) -> Result<()> {
        Ok(self.guest.send(&format!("run {}\n", round.id()))?)
    }

    /// Waits until a column's job stands at its gate.
    ///
    /// # Errors
    /// [`ErrorKind::Process`] if fio ends before, [`ErrorKind::Timeout`],
    /// [`ErrorKind::Interrupted`].
    pub fn at_gate(&mut self, round: &Round, column: Column) -> Result<DiskCounters> {
        self.counters("begin", round, column, TURN)
    }

    /// Lets the job run, and waits for its end.
    ///
    /// # Errors
    /// As [`Machine::at_gate`].
    pub fn measure(
        &mut self,
        round: &Round,
        column: Column,
        runtime: Duration,
    ) -> Result<DiskCounters> {
        self.guest.send("go\n")?;
        self.counters("end", round, column, runtime + TURN)
    }

    fn counters(
        &self,
        which: &str,
        round: &Round,
        column: Column,
        limit: Duration,
    ) -> Result<DiskCounters> {
        let key = format!("{which}.{}.{}", round.id(), column.id());
        let done = format!("done.{}", round.id());
        self.wait(&[&key, &done], limit)?;
        let Some(text) = self.guest.results().remove(&key) else {
            return Err(self.trouble(&format!("fio ended before {} had its turn", column.name())));
        };
        DiskCounters::parse(&text)
            .ok_or_else(|| self.trouble(&format!("counters without a meaning: {text}")))
    }

    /// Waits for the end of a round; fio's lines, by job.
    ///
    /// # Errors
    /// [`ErrorKind::Process`] if fio failed.
    pub fn finish(&mut self, round: &Round) -> Result<Vec<String>> {
        self.done(&round.id(), TURN)
    }

    fn done(&self, run: &str, limit: Duration) -> Result<Vec<String>> {
        let key = format!("done.{run}");
        self.wait(&[&key], limit)?;
        let results = self.guest.results();
        if results.get(&key).map(String::as_str) != Some("0") {
            return Err(self.trouble(&format!("fio failed in the guest ({run})")));
        }
        let line = |n: usize| results.get(&format!("line.{run}.{n}")).cloned();
        Ok((0..).map_while(line).collect())
    }

    /// Waits until one of the keys is there.
    fn wait(&self, keys: &[&str], limit: Duration) -> Result<()> {
        let begin = Instant::now();
        loop {
            self.interrupt.check()?;
            let error = match self.guest.wait_results(keys, LOOK) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if error.kind() != vlane_guest::ErrorKind::Timeout
                || begin.elapsed() > limit
                || self.guest.is_overdue()
            {
                return Err(error.into());
            }
        }
    }

    /// Powers it off.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] if it does not end.
    pub fn quit(mut self) -> Result<()> {
        self.guest.send("quit\n")?;
        let begin = Instant::now();
        while self.guest.poll(LOOK)?.is_none() && begin.elapsed() < TURN {
            self.interrupt.check()?;
        }
        // The rest of it ends with the value.
        Ok(())
    }

    fn trouble(&self, what: &str) -> Error {
        let console = self.guest.console();
        let lines: Vec<_> = console.lines().collect();
        let tail = lines[lines.len().saturating_sub(20)..].join("\n");
        Error::new(ErrorKind::Process, format!("{what}; the guest's console ended with:\n{tail}"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::loads::Load;
    use super::super::loads::Pattern;
    use super::*;

    #[test]
    fn counters_are_parsed_from_gate_line() {
        let text = "77 100 1 800 5 50 2 1600 6 0 7 8 0 0 0 0 9 3";
        let counters = DiskCounters::parse(text).unwrap();
        let expected =
            DiskCounters { interrupts: 77, reads: 100, writes: 50, flushes: 9, bytes: 2400 * 512 };
        assert_eq!(counters, expected);
        let later = DiskCounters { interrupts: 80, reads: 101, ..expected };
        let delta = later.since(&counters);
        assert_eq!((delta.interrupts, delta.requests(), delta.bytes), (3, 1, 0));
        assert_eq!(DiskCounters::parse("77 100 x"), None);
        assert_eq!(DiskCounters::parse(""), None);
    }

    #[test]
    fn disks_are_described_by_the_guest() {
        let disk = seen_disk("vda|2|none [mq-deadline] kyber|write through|write back").unwrap();
        assert_eq!((disk.device.as_str(), disk.queues.as_str()), ("vda", "2"));
        assert_eq!((disk.scheduler.as_str(), disk.cache.as_str()), ("mq-deadline", "write back"));
        assert_eq!(disk.cache_before, "write through");
        assert_eq!(seen_disk("vda|2"), None);
    }

    #[test]
    fn jobs_follow_round_order_between_gates() {
        let order = vec![Column::Ide, Column::Vlane, Column::Host];
        let round = Round { pass: 1, load: Load::iozone(Pattern::Read, 4), order };
        let cache = CacheState::Direct;
        let settings =
            Settings { runtime_ms: 500, old_bytes: 64 << 20, new_bytes: 32 << 20, cache };
        let text = job_file(&round, &settings);
        let (ide, vlane) = (text.find("[ide]").unwrap(), text.find("[vlane]").unwrap());
        assert!(ide < vlane && !text.contains("[host]"), "{text}");
        assert_eq!(text.matches("stonewall").count(), 2);
        assert!(text.contains("filename=/mnt/ide/old\n"), "{text}");
        assert!(text.contains("exec_prerun=/gate begin p1-iozone-read-4k vlane\n"), "{text}");
        assert!(text.contains("exec_postrun=/gate end p1-iozone-read-4k ide\n"), "{text}");
    }
}
