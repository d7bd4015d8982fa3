//! Interrupts that a system received, from the text of its `/proc/interrupts`: a guest's tell how
//! often its devices called.

use std::collections::BTreeMap;

/// One line of `/proc/interrupts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interrupt {
    /// How often, by CPU; one figure for those that are not counted by CPU (`ERR`, `MIS`).
    pub counts: Vec<u64>,
    /// Chip, kind and device (`PCI-MSI 49153-edge virtio0-req.0`), or a description.
    pub what: String,
}

impl Interrupt {
    /// How often on all CPUs.
    pub fn total(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }
}

/// All interrupts, by the name at the line's start (`24`, `LOC`, `RES`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interrupts {
    /// The lines.
    pub lines: BTreeMap<String, Interrupt>,
}

impl Interrupts {
    /// Reads the text of `/proc/interrupts`; lines that are none of its are passed over, so a
    /// console's log will do.
    pub fn parse(text: &str) -> Self {
        let mut lines = BTreeMap::new();
        let mut cpus = 0;
        for line in text.lines() {
            let mut words = line.split_whitespace().peekable();
            if words.peek().is_some_and(|word| word.starts_with("CPU")) {
                let named = line.split_whitespace().filter(|word| is_cpu(word)).count();
                if named == line.split_whitespace().count() {
                    cpus = named;
                    continue;
                }
            }
            let Some(name) = words.next().and_then(|word| word.strip_suffix(':')) else { continue };
            let mut counts = Vec::new();
            while counts.len() < cpus
                && let Some(count) = words.peek().and_then(|word| word.parse().ok())
            {
                counts.push(count);
                words.next();
            }
            if !counts.is_empty() {
                let what = words.collect::<Vec<_>>().join(" ");
                lines.insert(name.to_owned(), Interrupt { counts, what });
            }
        }
        Self { lines }
    }

    /// Interrupts since `before`. A new line counts from zero; a CPU that went offline is not
    /// negative.
    pub fn since(&self, before: &Self) -> Self {
        let delta = |(name, now): (&String, &Interrupt)| {
            let old = before.lines.get(name).filter(|old| old.what == now.what);
            let old = |cpu: usize| old.and_then(|old| old.counts.get(cpu)).copied().unwrap_or(0);
            let counts =
                now.counts.iter().enumerate().map(|(cpu, count)| count.saturating_sub(old(cpu)));
            let interrupt = Interrupt { counts: counts.collect(), what: now.what.clone() };
            (interrupt.total() > 0).then(|| (name.clone(), interrupt))
        };
        Self { lines: self.lines.iter().filter_map(delta).collect() }
    }

    /// How many came from devices whose description has `part`: `virtio`, `nvme`, `ata`.
    pub fn of_device(&self, part: &str) -> u64 {
        self.lines.values().filter(|line| line.what.contains(part)).map(Interrupt::total).sum()
    }

    /// How many came in all.
    pub fn total(&self) -> u64 {
        self.lines.values().map(Interrupt::total).sum()
    }
}

fn is_cpu(word: &str) -> bool {
    word.strip_prefix("CPU")
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const BEFORE: &str = "\
           CPU0       CPU1       
  1:          9          0   IO-APIC   1-edge      i8042
 24:          0          0   PCI-MSI 65536-edge      virtio0-config
 25:       1180          4   PCI-MSI 65537-edge      virtio0-req.0
NMI:          0          0   Non-maskable interrupts
LOC:       8012       7113   Local timer interrupts
ERR:          0
MIS:          0
";
    const AFTER: &str = "\
[    7.1] a line of the kernel: 12 13
           CPU0       CPU1       
  1:          9          0   IO-APIC   1-edge      i8042
 24:          0          0   PCI-MSI 65536-edge      virtio0-config
 25:       1280          4   PCI-MSI 65537-edge      virtio0-req.0
 26:          0        212   PCI-MSI 65538-edge      virtio0-req.1
NMI:          0          0   Non-maskable interrupts
LOC:       9012       7114   Local timer interrupts
ERR:          2
MIS:          0
";

    #[test]
    fn counts_cover_time_between_looks() {
        let (before, after) = (Interrupts::parse(BEFORE), Interrupts::parse(AFTER));
        assert_eq!(before.lines.len(), 7, "{before:?}");
        assert_eq!(before.lines["25"].counts, [1180, 4]);
        assert_eq!(before.lines["25"].what, "PCI-MSI 65537-edge virtio0-req.0");
        let came = after.since(&before);
        assert_eq!(came.of_device("virtio"), 100 + 212);
        assert_eq!(came.lines["LOC"].total(), 1001);
        assert_eq!(came.lines["ERR"].counts, [2]);
        assert_eq!(came.total(), 100 + 212 + 1001 + 2);
        assert!(!came.lines.contains_key("1"));
    }

    #[test]
    fn time_that_runs_backwards_is_not_negative() {
        let came = Interrupts::parse(BEFORE).since(&Interrupts::parse(AFTER));
        assert_eq!(came.total(), 0);
        assert_eq!(Interrupts::parse("nothing of: 1 2 3"), Interrupts::default());
    }
}
