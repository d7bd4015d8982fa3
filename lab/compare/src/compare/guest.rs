//! The one guest that has all disks, and how it is led through a round.
//!
//! The guest waits for commands on its console, and answers in `RESULT key=value` lines. For a
//! round it starts fio once, with a job per column, one after the other. Before each job fio runs
//! `/gate begin`, which reports the disk's counters and waits for a line on the console. After it
//! fio runs `/gate end`, which reports them again. So the host can read its own counters between
//! two measurements, let its own fio run, and end at any time. An emulated CPU loads fio only once
//! per round.

use std::time::Duration;

use vlane_guest::{Boot, Disk, Drive, Guest, Initramfs, Qemu};
use vlane_testbed::fio::Outcome;
use vlane_testbed::{Interrupt, Result, Server, fio, trouble, wait};

use super::Setup;
use super::columns::{Column, VCPUS};
use super::jobs::{self, CacheState, OLD, Settings};
use super::plan::Round;

/// Guest memory in MiB, without what a warm page cache needs.
const MEMORY_MIB: u64 = 640;
/// Longest time from the start to the guest's first word, emulated on a busy machine.
const BOOT: Duration = Duration::from_secs(120);
/// Longest that fio may take to load, or to end, in an emulated guest on a busy machine.
const TURN: Duration = Duration::from_secs(60);

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
    [ "$now" = "$cache" ] || now="$now, came as $cache"
    # none [mq-deadline] kyber: the one in brackets.
    scheduler=$(sed 's/.*\[\(.*\)\].*/\1/' "/sys/block/$dev/queue/scheduler")
    queues=$(ls "/sys/block/$dev/mq" | wc -l)
    echo "$dev $irq" > "/run/disk.$id"
    mkdir -p "/mnt/$id"
    mount -t ext4 "/dev/$dev" "/mnt/$id" || exit 1
    echo "RESULT disk.$id=$dev; queues: $queues; scheduler: $scheduler; $now"
done
echo "RESULT kernel=$(uname -r)"
echo "RESULT ready=1"
while read -r command what; do
    case $command in
    run)
        cd /tmp
        fio --output-format=terse --terse-version=3 --output=/tmp/answer "/jobs/$what" < /dev/null > /tmp/said 2>&1
        status=$?
        [ $status -eq 0 ] || { cat /tmp/said; echo "fio failed ($what)"; exit 1; }
        while read -r line; do
            job=${line#3;*;}
            case $line in
            "3;"*) echo "RESULT line.$what.${job%%;*}=$line" ;;
            ?*) echo "fio: $line" ;;
            esac
        done < /tmp/answer
        rm -f /tmp/answer /tmp/*.txt
        ;;
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

/// Parses the gate's line: interrupts of a disk, and requests that it completed. The line has the
/// interrupts, then the fields of `/sys/block/*/stat`, which are in the kernel's
/// `Documentation/block/stat.rst`.
fn parse_counters(text: &str) -> Option<[u64; 2]> {
    let fields = text.split_whitespace().map(|field| field.parse::<u64>().ok());
    let fields: Vec<u64> = fields.collect::<Option<_>>()?;
    // Reads, writes and, since Linux 5.5, flushes.
    let requests = fields.get(1)? + fields.get(5)? + fields.get(16).unwrap_or(&0);
    Some([*fields.first()?, requests])
}

/// The guest's jobs of a round.
fn job_file(round: &Round, settings: &Settings) -> String {
    let mut text = jobs::global(&round.load, settings);
    let run = round.id();
    for column in round.in_guest() {
        let id = column.id();
        let (before, after) = (format!("/gate begin {run} {id}"), format!("/gate end {run} {id}"));
        text += &jobs::section(&id, &round.load, &format!("/mnt/{id}"), Some((&before, &after)));
    }
    text
}

/// The machine: disks of servers, and drives that QEMU serves itself.
fn qemu(setup: &Setup<'_>, servers: &[(Column, Server)]) -> Qemu {
    let (found, settings) = (setup.found, &setup.settings);
    let direct = settings.cache == CacheState::Direct;
    let warm = if direct { 0 } else { settings.sizes.old.max(settings.sizes.new) >> 20 };
    // An NVMe drive's own name has to lead to its PCI slot.
    let append = "nvme_core.multipath=N".to_string();
    let boot = Boot::Kernel { kernel: found.kernel.image.clone(), initramfs: None, append };
    let mut qemu = Qemu::new(found.program.clone(), found.accel.accel, boot, Disk::at(""));
    let disk = |(column, server): &(Column, Server)| Disk {
        queues: Some(VCPUS),
        slot: Some(column.slot()),
        ..Disk::at(server.socket())
    };
    qemu.disks = servers.iter().map(disk).collect();
    let drive = |column: &Column| {
        let controller = column.controller()?;
        let (id, slot) = (column.id(), column.slot());
        Some(Drive { image: setup.scratch.image(&id), id, direct, controller, slot })
    };
    qemu.drives = found.columns.iter().filter_map(drive).collect();
    qemu.vcpus = VCPUS;
    // The page cache of one disk after the other: twice the file is enough.
    qemu.memory_mib = u32::try_from(MEMORY_MIB + 2 * warm).unwrap_or(u32::MAX);
    // Named threads can be distinguished.
    qemu.extra = ["-name", "compare,debug-threads=on"].map(String::from).to_vec();
    qemu
}

/// The guest's files: the scripts, and the jobs of every round.
fn initramfs(setup: &Setup<'_>, rounds: &[Round]) -> Initramfs {
    let disk = |column: Column| format!("{}/{}", column.id(), Drive::guest_address(column.slot()));
    let disks: Vec<String> = setup.found.guests().map(disk).collect();
    let prepare = match setup.settings.cache {
        CacheState::Direct => ":".into(),
        CacheState::Warm => format!("cat \"/mnt/$3/{OLD}\" > /dev/null"),
        CacheState::Cold => "sync; echo 3 > /proc/sys/vm/drop_caches".into(),
    };
    let guest = Initramfs::new(SCRIPT.replace("@DISKS@", &disks.join(" "))).programs(["fio"]);
    let guest = guest.file("gate", 0o755, GATE.replace("@PREPARE@", &prepare));
    rounds.iter().fold(guest, |guest, round| {
        guest.file(&format!("jobs/{}", round.id()), 0o644, job_file(round, &setup.settings))
    })
}

/// The guest, ready for rounds, and the servers of its disks. Dropping it ends them.
#[derive(Debug)]
pub struct Machine<'a> {
    /// `run ROUND` loads fio, which waits at the first gate; `go` lets the job at the gate run.
    pub guest: Guest,
    servers: Vec<(Column, Server)>,
    interrupt: &'a Interrupt,
    /// Command lines of the servers by their columns' names, and QEMU's.
    pub commands: Vec<(String, String)>,
    /// The disks as the guest describes them.
    pub disks: Vec<(Column, String)>,
}

impl<'a> Machine<'a> {
    /// Boots it for some rounds. It is killed after `limit`.
    ///
    /// # Errors
    /// Those of starting servers and QEMU; [`ErrorKind::Process`] with the console's end if the
    /// guest does not get ready.
    pub fn boot(setup: &Setup<'a>, rounds: &[Round], limit: Duration) -> Result<Self> {
        let mut servers = Vec::new();
        for column in &setup.found.columns {
            servers.extend(setup.server(*column, VCPUS, true)?.map(|server| (*column, server)));
        }
        let qemu = qemu(setup, &servers);
        let named = |(column, server): &(Column, Server)| {
            (column.name().to_owned(), setup.neutral(server.command()))
        };
        let mut commands: Vec<(String, String)> = servers.iter().map(named).collect();
        commands.push(("QEMU".into(), setup.neutral(&qemu.spec().shell_line())));
        let files = initramfs(setup, rounds);
        let guest = qemu.start_with(setup.host, &setup.found.kernel, &files, limit, None)?;
        let interrupt = setup.call.interrupt;
        let mut machine = Self { guest, servers, interrupt, commands, disks: Vec::new() };
        machine.wait("ready", BOOT)?;
        for column in setup.found.guests() {
            let disk = machine.wait(&format!("disk.{}", column.id()), BOOT)?;
            machine.disks.push((column, disk));
        }
        Ok(machine)
    }

    /// The process that serves a column's disk.
    pub fn server(&self, column: Column) -> u32 {
        let found = self.servers.iter().find(|(other, _)| *other == column);
        found.map_or(self.guest.id(), |(_, server)| server.pid())
    }

    /// Waits until a column's job stands at a gate, `begin` or `end`, and runs at most for
    /// `runtime`; interrupts and requests of the disk.
    ///
    /// # Errors
    /// [`ErrorKind::Process`] if fio fails or does not come so far, [`ErrorKind::Interrupted`].
    pub fn counters(
        &mut self,
        gate: &str,
        round: &Round,
        column: Column,
        runtime: Duration,
    ) -> Result<[u64; 2]> {
        let text = self.wait(&format!("{gate}.{}.{}", round.id(), column.id()), runtime + TURN)?;
        parse_counters(&text)
            .ok_or_else(|| trouble(&self.guest, &format!("counters without a meaning: {text}")))
    }

    /// Waits for fio's result of a column, which comes at the end of the round.
    ///
    /// # Errors
    /// As [`Machine::counters`]; [`ErrorKind::Format`] for an answer that is not understood.
    pub fn outcome(&mut self, round: &Round, column: Column) -> Result<Outcome> {
        let line = self.wait(&format!("line.{}.{}", round.id(), column.id()), TURN)?;
        Ok(fio::parse(&line, round.load.record())?.1)
    }

    fn wait(&mut self, key: &str, limit: Duration) -> Result<String> {
        wait(&mut self.guest, key, limit, self.interrupt)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::jobs::Sizes;
    use super::super::loads::{Load, Pattern};
    use super::*;

    #[test]
    fn counters_are_parsed_from_gate_line() {
        let text = "77 100 1 800 5 50 2 1600 6 0 7 8 0 0 0 0 9 3";
        assert_eq!(parse_counters(text), Some([77, 100 + 50 + 9]));
        // Before Linux 5.5, without flushes.
        assert_eq!(parse_counters("77 100 1 800 5 50 2 1600 6 0 7 8"), Some([77, 150]));
        assert_eq!((parse_counters("77 100 x"), parse_counters("")), (None, None));
    }

    #[test]
    fn jobs_follow_round_order_between_gates() {
        let order = vec![Column::Ide, Column::Vlane, Column::Host];
        let round = Round { pass: 1, load: Load::iozone(Pattern::Read, 4), order };
        let cache = CacheState::Direct;
        let sizes = Sizes::of(128 << 20).unwrap();
        let settings = Settings { runtime: Duration::from_millis(500), sizes, cache };
        let text = job_file(&round, &settings);
        let (ide, vlane) = (text.find("[ide]").unwrap(), text.find("[vlane]").unwrap());
        assert!(ide < vlane && !text.contains("[host]"), "{text}");
        assert_eq!(text.matches("stonewall").count(), 2);
        assert!(text.contains("filename=/mnt/ide/old\n"), "{text}");
        assert!(text.contains("exec_prerun=/gate begin p1-iozone-read-4k vlane\n"), "{text}");
        assert!(text.contains("exec_postrun=/gate end p1-iozone-read-4k ide\n"), "{text}");
    }
}
