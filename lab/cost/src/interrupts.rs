//! Interrupts that a system received, from the text of its `/proc/interrupts`: a guest's tell how
//! often its devices called.

use super::Tally;

/// Reads the text of `/proc/interrupts`: each interrupt with its sum over the CPUs. Its name is the
/// rest of the line: name, chip, kind and device (`25 PCI-MSI 49153-edge virtio0-req.0`), or name
/// and description. Other lines are passed over, so a console's log will do.
pub fn parse(text: &str) -> Tally {
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
    found
}

/// Number of interrupts of devices with `part` in their description: `virtio`, `nvme`, `ata`.
pub fn of_device(interrupts: &Tally, part: &str) -> u64 {
    interrupts.0.iter().filter(|(what, _)| what.contains(part)).map(|(_, count)| count).sum()
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
        let (before, after) = (parse(BEFORE), parse(AFTER));
        assert_eq!(before.0.len(), 7, "{before:?}");
        assert_eq!(before.of("25 PCI-MSI 65537-edge virtio0-req.0"), 1184);
        let came = after.since(&before);
        assert_eq!(of_device(&came, "virtio"), 100 + 212);
        assert_eq!((of_device(&came, "LOC "), came.of("ERR")), (1001, 2));
        assert_eq!(came.total(), 100 + 212 + 1001 + 2);
        assert_eq!(of_device(&came, "i8042"), 0);
    }

    #[test]
    fn time_that_runs_backwards_is_not_negative() {
        let came = parse(BEFORE).since(&parse(AFTER));
        assert_eq!(came.total(), 0);
        assert_eq!(parse("nothing of: 1 2 3"), Tally::default());
    }
}
