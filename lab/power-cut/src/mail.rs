//! Checks that a Maildir has the mails that its deliverer knows are durable.

use std::collections::BTreeMap;
use std::path::Path;

use super::content::{check_log, mail, shown};

/// As in `load.pl`: mails that come at once, and steps until one is removed.
const BURST: u64 = 3;
const STORED: u64 = 16;

/// Faults of the Maildir in `directory`, whose worker knew last of step `told`.
pub(super) fn wrong(directory: &Path, worker: u32, told: u64) -> Vec<String> {
    let mut wrong = Vec::new();
    // The log's record of the step itself may be on its way.
    check_log(directory, worker, told.saturating_sub(1), &mut wrong);
    let mut found: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for place in ["new", "cur"] {
        for entry in std::fs::read_dir(directory.join(place)).into_iter().flatten().flatten() {
            let Ok(number) = entry.file_name().to_string_lossy().parse::<u64>() else { continue };
            let content = std::fs::read(entry.path()).unwrap_or_default();
            if found.insert(number, content).is_some() {
                wrong.push(format!("mail {number} is both new and read"));
            }
        }
    }
    // A step removes its own mails only after it is durable.
    for number in (told + 1).saturating_sub(STORED).max(1) * BURST..(told + 1) * BURST {
        if !found.contains_key(&number) {
            wrong.push(format!("mail {number} is not there"));
        }
    }
    // It has its place only since its content is durable.
    for (number, content) in &found {
        if *content != mail(worker, *number) {
            wrong.push(format!("mail {number} has other content: {}", shown(content)));
        }
    }
    wrong
}
