//! VM exits by kind, and KVM's eventfds. The kernel counts them in a tracing instance of our own,
//! so that other tracing is not disturbed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

const TRACING: &str = "/sys/kernel/tracing";
/// A guest's kick that KVM turned into an eventfd, and an eventfd that KVM turned into an
/// interrupt.
const KICK: &str = "ioeventfd_write";
const INTERRUPT: &str = "irqfd_wakeup";

/// Requests of each kind.
pub const REQUESTS: u64 = 2000;
/// Waits before and after each kind, one request at a time, past the page cache; then sleeps for
/// two seconds.
pub const STEPS: &str = r#"
set -e
echo "RESULT ready=1"
read -r go
dd if=/dev/vda of=/dev/null bs=4k count=2000 iflag=direct 2>/dev/null
echo "RESULT read=1"
read -r go
dd if=/dev/zero of=/dev/vda bs=4k count=2000 oflag=direct 2>/dev/null
echo "RESULT written=1"
read -r go
sleep 2
echo "RESULT idle=1"
read -r go
"#;

/// Counting, until it is dropped.
pub struct Counting {
    instance: PathBuf,
    group: String,
}

impl Counting {
    /// Begins to count. The reason where this machine's kernel does not let itself be traced by us,
    /// or has no KVM.
    pub fn begin() -> Result<Self, String> {
        let group = format!("vlane_test_{}", std::process::id());
        let counting = Self { instance: Path::new(TRACING).join("instances").join(&group), group };
        for probe in [KICK, INTERRUPT] {
            kprobe_events(&format!("p:{}/{probe} {probe}", counting.group))?;
        }
        std::fs::create_dir(&counting.instance)
            .map_err(|e| format!("{}: cannot be made: {e}", counting.instance.display()))?;
        for (event, keys) in [
            ("kvm/kvm_exit".to_string(), "common_pid,exit_reason"),
            (format!("{}/{KICK}", counting.group), "common_pid"),
            (format!("{}/{INTERRUPT}", counting.group), "common_pid"),
        ] {
            let trigger = counting.event(&event).join("trigger");
            std::fs::write(&trigger, format!("hist:keys={keys}\n"))
                .map_err(|e| format!("{}: cannot be written: {e}", trigger.display()))?;
        }
        Ok(counting)
    }

    fn event(&self, event: &str) -> PathBuf {
        self.instance.join("events").join(event)
    }

    /// Counts so far of the threads of QEMU and vlane.
    pub fn take(&self, qemu: u32, vlane: u32) -> Counts {
        let (qemu, vlane) = (threads(qemu), threads(vlane));
        let sum = |event: String, threads: &[u64]| -> u64 {
            let entries = self.entries(&event).into_iter();
            entries.filter(|entry| threads.contains(&entry.0[0])).map(|entry| entry.1).sum()
        };
        let mut exits = BTreeMap::new();
        for (keys, count) in self.entries("kvm/kvm_exit") {
            if qemu.contains(&keys[0]) {
                *exits.entry(keys[1]).or_default() += count;
            }
        }
        let kicks = sum(format!("{}/{KICK}", self.group), &qemu);
        let interrupts = sum(format!("{}/{INTERRUPT}", self.group), &vlane);
        Counts { exits, kicks, interrupts, vlane: BTreeMap::new() }
    }

    fn entries(&self, event: &str) -> Vec<(Vec<u64>, u64)> {
        entries(&std::fs::read_to_string(self.event(event).join("hist")).unwrap())
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.instance);
        for probe in [KICK, INTERRUPT] {
            let _ = kprobe_events(&format!("-:{}/{probe}", self.group));
        }
    }
}

fn kprobe_events(line: &str) -> Result<(), String> {
    let path = Path::new(TRACING).join("kprobe_events");
    let file = std::fs::OpenOptions::new().append(true).open(&path);
    file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()))
        .map_err(|e| format!("{}: {line:?} cannot be written: {e}", path.display()))
}

fn threads(pid: u32) -> Vec<u64> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.flatten().map(|task| task.file_name().to_str().unwrap().parse().unwrap()).collect()
}

/// The keys and the count of each line like `{ common_pid:        119, exit_reason:         48 } hitcount:          1`.
fn entries(text: &str) -> Vec<(Vec<u64>, u64)> {
    let entry = |line: &str| {
        let (keys, count) = line.strip_prefix('{')?.split_once("} hitcount:")?;
        let keys = keys.split(',').map(|key| key.split_once(':')?.1.trim().parse().ok());
        Some((keys.collect::<Option<Vec<u64>>>()?, count.trim().parse().ok()?))
    };
    text.lines().filter_map(entry).collect()
}

#[test]
fn entries_parse_as_kernel_writes() {
    let text = "# event histogram\n#\n\n{ common_pid:        119, exit_reason:       1024 } hitcount:      26132\n\
                { common_pid:         7 } hitcount:          3\n\nTotals:\n    Hits: 50405\n";
    assert_eq!(entries(text), [(vec![119, 1024], 26132), (vec![7], 3)]);
}

/// Counts of one step.
#[derive(Debug, Clone)]
pub struct Counts {
    /// VM exits by the CPU's number of their reason.
    pub exits: BTreeMap<u64, u64>,
    /// ioeventfds that were signalled by the guest's vCPUs.
    pub kicks: u64,
    /// irqfds that were signalled by vlane.
    pub interrupts: u64,
    /// vlane's own counters.
    pub vlane: BTreeMap<String, u64>,
}

impl Counts {
    /// With what vlane says of itself.
    pub fn beside(self, vlane: BTreeMap<String, u64>) -> Self {
        Self { vlane, ..self }
    }

    /// Difference to an earlier state.
    pub fn since(&self, before: &Self) -> Self {
        let minus = |now: &BTreeMap<u64, u64>, then: &BTreeMap<u64, u64>| {
            let rest = now.iter().map(|(k, v)| (*k, v - then.get(k).unwrap_or(&0)));
            rest.filter(|(_, count)| *count > 0).collect()
        };
        Self {
            exits: minus(&self.exits, &before.exits),
            kicks: self.kicks - before.kicks,
            interrupts: self.interrupts - before.interrupts,
            vlane: self.vlane.iter().map(|(k, v)| (k.clone(), v - before.vlane[k])).collect(),
        }
    }

    /// Requests that vlane has done.
    pub fn requests(&self) -> u64 {
        ["reads", "writes", "flushes", "others"].iter().map(|kind| self.vlane[*kind]).sum()
    }

    /// Exits for what is not memory of the guest's: where its device is.
    pub fn mmio(&self) -> u64 {
        let reasons: &[u64] = if is_amd() { &[0x400] } else { &[48, 49] };
        reasons.iter().filter_map(|reason| self.exits.get(reason)).sum()
    }

    /// The figures as a table: how many, and how many for each request.
    pub fn table(&self, title: &str) -> String {
        let requests = self.requests();
        let mut table = format!(
            "{title}: {requests} requests\n  {:<52}{:>8}{:>13}\n",
            "", "count", "per request"
        );
        let mut row = |name: &str, count: u64| {
            #[allow(clippy::cast_precision_loss, reason = "small numbers")]
            let each = if requests == 0 {
                "-".into()
            } else {
                format!("{:.3}", count as f64 / requests as f64)
            };
            let _ = writeln!(table, "  {name:<52}{count:>8}{each:>13}");
        };
        row("kicks that woke vlane's lane", self.vlane["kicks"]);
        row("ioeventfds that KVM signalled", self.kicks);
        row("signals of vlane's", self.vlane["signals"]);
        row("irqfds that KVM was signalled", self.interrupts);
        row("VM exits", self.exits.values().sum());
        let mut exits: Vec<_> = self.exits.iter().collect();
        exits.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (reason, count) in exits {
            row(&format!("  {}", name(*reason)), *count);
        }
        table
    }
}

fn is_amd() -> bool {
    std::fs::read_to_string("/proc/cpuinfo").unwrap().contains(" svm")
}

/// Meaning of an exit's number: AMD's manual, volume 2, appendix C; Intel's, volume 3, appendix C.
fn name(reason: u64) -> String {
    let known = if is_amd() { AMD } else { INTEL };
    let known = known.iter().find(|(number, _)| *number == reason);
    known.map_or(format!("reason {reason:#x}"), |(_, name)| (*name).to_string())
}

const AMD: &[(u64, &str)] = &[
    (0x60, "interrupt of the host"),
    (0x61, "NMI"),
    (0x64, "interrupt window"),
    (0x72, "CPUID"),
    (0x77, "PAUSE"),
    (0x78, "HLT"),
    (0x7b, "I/O port (the console)"),
    (0x7c, "MSR (timer, end of interrupt)"),
    (0x400, "nested page fault: MMIO (kicks), first use of a page"),
];
const INTEL: &[(u64, &str)] = &[
    (0, "exception or NMI"),
    (1, "interrupt of the host"),
    (7, "interrupt window"),
    (10, "CPUID"),
    (12, "HLT"),
    (30, "I/O port (the console)"),
    (31, "RDMSR"),
    (32, "WRMSR (timer, end of interrupt)"),
    (40, "PAUSE"),
    (48, "EPT violation: first use of a page"),
    (49, "EPT misconfiguration: MMIO (kicks)"),
    (52, "preemption timer"),
    (56, "APIC write"),
];
