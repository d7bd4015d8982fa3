//! Interrupts that a system received, from the text of its `/proc/interrupts`: a guest's tell how
//! often its devices called.

use super::Tally;

/// All interrupts, by the rest of their lines. That is name, chip, kind and device
/// (`25 PCI-MSI 49153-edge virtio0-req.0`), or name and description.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interrupts(pub Tally);

impl Interrupts {
    /// Reads the text of `/proc/interrupts`, each with its sum over the CPUs. Other lines are
    /// passed over, so a console's log will do.
    pub fn parse(text: &str) -> Self {
        let mut found = Tally::default();
        let mut cpus = 0;
        for line in text.lines() {
            let mut words = line.split_whitespace().peekable();
            if words.clone().next().is_some() && words.clone().all(is_cpu) {
                cpus = words.count();
                continue;
            }
            let Some(mut name) =
                words.next().and_then(|word| word.strip_suffix(':')).map(str::to_owned)
            else {
                continue;
            };
            let mut total = None;
            for _ in 0..cpus {
                let Some(count) = words.peek().and_then(|word| word.parse::<u64>().ok()) else {
                    break;
                };
                total = Some(total.unwrap_or(0) + count);
                words.next();
            }
            if let Some(total) = total {
                words.for_each(|word| name = format!("{name} {word}"));
                found.add(name, total);
            }
        }
        Self(found)
    }

    /// Interrupts since `before`. A new line counts from zero; a CPU that went offline is not
    /// negative.
    pub fn since(&self, before: &Self) -> Self {
        Self(self.0.since(&before.0))
    }

    /// How many came from devices whose description has `part`: `virtio`, `nvme`, `ata`.
    pub fn of_device(&self, part: &str) -> u64 {
        self.0.0.iter().filter(|(what, _)| what.contains(part)).map(|(_, count)| count).sum()
    }
}

fn is_cpu(word: &str) -> bool {
    word.strip_prefix("CPU").is_some_and(|number| number.parse::<u32>().is_ok())
}

#[cfg(test)]
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
        assert_eq!(before.0.0.len(), 7, "{before:?}");
        assert_eq!(before.0.of("25 PCI-MSI 65537-edge virtio0-req.0"), 1184);
        let came = after.since(&before);
        assert_eq!(came.of_device("virtio"), 100 + 212);
        assert_eq!((came.of_device("LOC "), came.0.of("ERR")), (1001, 2));
        assert_eq!(came.0.total(), 100 + 212 + 1001 + 2);
        assert_eq!(came.of_device("i8042"), 0);
    }

    #[test]
    fn time_that_runs_backwards_is_not_negative() {
        let came = Interrupts::parse(BEFORE).since(&Interrupts::parse(AFTER));
        assert_eq!(came.0.total(), 0);
        assert_eq!(Interrupts::parse("nothing of: 1 2 3"), Interrupts::default());
    }
}
