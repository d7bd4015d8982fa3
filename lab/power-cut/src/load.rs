//! The guest's work (`load.pl`), the part that is durable for sure at a moment of a record, and the
//! check that it is there.
//!
//! A worker begins its step n + 1 when everything of step n is durable, as far as its kernel says.
//! So there is no need for a way back from the guest. A write with the log's record n + 1 in it
//! proves that the guest knows that record n is durable. A write with record n proves it of the
//! rest of step n.

use std::collections::BTreeMap;
use std::path::Path;

use clap::ValueEnum;
use vlane_testbed::{Result, word};
use vlane_trace::storage::{Action, Data, History};

use super::content::{RECORD, check_log, check_mails, parse_record, shown, text};
use super::database;

/// The guest's program, for perl.
pub const PROGRAM: &str = include_str!("load.pl");
/// Mails that are kept of [`Load::Files`].
const KEPT: u64 = 8;
/// Mails of [`Load::Mail`] that come at once, and steps until one is removed.
const BURST: u64 = 3;
const STORED: u64 = 16;
/// Rows of the table, and bytes of each.
const SLOTS: u64 = 16;
const SLOT: usize = 4096;

/// The work of the guest's programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Load {
    /// A mix of mails, tables and logs
    Files,
    /// Deliveries to Maildirs: small files, each fsynced and renamed, and their directory
    Mail,
    /// SQLite with synchronous=FULL: odd programs with a write-ahead log, even ones with a rollback
    /// journal
    Sqlite,
}

impl Load {
    /// Shell command of one worker, in `directory`.
    pub(super) fn command(self, directory: &str, worker: u32, steps: u64) -> String {
        let perl = format!("perl /load.pl {directory} {worker} {steps} {}", word(self));
        match self {
            Load::Files | Load::Mail => perl,
            // Output of `load.pl` is statements here.
            Load::Sqlite => {
                format!("mkdir {directory} && sync && {perl} | sqlite3 -bail {directory}/db")
            }
        }
    }

    /// Faults of a worker's files, which lie in `directory`, when `told` is the last step that it
    /// knew to be durable.
    ///
    /// # Errors
    /// When a tool cannot be started, or does not end.
    pub(super) fn wrong(self, directory: &Path, worker: u32, told: u64) -> Result<Vec<String>> {
        let wrong = match self {
            Load::Sqlite => database::wrong(directory, worker, told)?,
            load => wrong(load, directory, worker, told),
        };
        let told = |what| format!("worker {worker}, which was told of step {told}: {what}");
        Ok(wrong.into_iter().map(told).collect())
    }
}

/// Steps that the guest knew to be durable at each moment.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Where in the record, and the last record of each worker's log that was written by then.
    by: Vec<(usize, BTreeMap<u32, u64>)>,
}

impl Told {
    /// Finds it in the written data.
    pub fn new(history: &History, load: Load) -> Self {
        let mut told = Self::default();
        let mut now: BTreeMap<u32, u64> = BTreeMap::new();
        for operation in &history.operations {
            let Action::Write { data: Data::Bytes(bytes), .. } = &operation.what else { continue };
            let mut is_news = false;
            let mut note = |(worker, step)| {
                let last = now.entry(worker).or_default();
                is_news |= *last < step;
                *last = step.max(*last);
            };
            match load {
                Load::Files | Load::Mail => {
                    bytes.chunks_exact(RECORD).filter_map(parse_record).for_each(&mut note);
                }
                Load::Sqlite => database::told_in(bytes).for_each(&mut note),
            }
            if is_news {
                told.by.push((operation.begin, now.clone()));
            }
        }
        told
    }

    /// By worker, the last step of which everything but the log's record is durable when entry `at`
    /// has happened.
    pub fn at(&self, at: usize) -> BTreeMap<u32, u64> {
        let next = self.by.partition_point(|(begin, _)| *begin <= at);
        next.checked_sub(1).map(|last| self.by[last].1.clone()).unwrap_or_default()
    }

    /// Steps of all workers, at the end.
    pub fn steps(&self) -> u64 {
        self.by.last().map_or(0, |(_, last)| last.values().sum())
    }
}

fn slot_sector(worker: u32, step: u64, sector: usize) -> Vec<u8> {
    text(&format!("SLOT {worker:02} {step:08} {sector} "), 512)
}

/// Faults of the files of a worker of [`Load::Files`] or [`Load::Mail`].
fn wrong(load: Load, directory: &Path, worker: u32, told: u64) -> Vec<String> {
    let mut wrong = Vec::new();
    // The log's record of the step itself may be on its way.
    check_log(directory, worker, told.saturating_sub(1), &mut wrong);
    if load == Load::Mail {
        let folders = ["new", "cur"].map(|folder| directory.join(folder));
        // A step removes its own mails only after it is durable.
        let wanted = (told + 1).saturating_sub(STORED).max(1) * BURST..(told + 1) * BURST;
        check_mails(&folders, worker, wanted, &mut wrong);
    } else {
        // The next step may have removed one more.
        let wanted = (told + 2).saturating_sub(KEPT).max(1)..told + 1;
        check_mails(&[directory.join("mail")], worker, wanted, &mut wrong);
        check_table(directory, worker, told, &mut wrong);
    }
    wrong
}

fn check_table(directory: &Path, worker: u32, told: u64, wrong: &mut Vec<String>) {
    if told == 0 {
        return;
    }
    let table = std::fs::read(directory.join("table")).unwrap_or_default();
    for slot in 0..SLOTS {
        // The last step up to `told` that wrote it.
        let age = (told + SLOTS - slot) % SLOTS;
        let last = told.saturating_sub(age);
        let next = told + 1;
        let at = usize::try_from(slot).unwrap_or(0) * SLOT;
        for sector in 0..SLOT / 512 {
            let found = table.get(at + sector * 512..at + (sector + 1) * 512).unwrap_or_default();
            let is_next = next % SLOTS == slot && found == slot_sector(worker, next, sector);
            if found != slot_sector(worker, last, sector) && !is_next {
                let shown = shown(found);
                wrong.push(format!(
                    "row {slot} of the table, sector {sector}, is not of step {last}: {shown}"
                ));
                break;
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Files that the program itself leaves, on the host.
    fn left(steps: u64, load: Load) -> Option<tempfile::TempDir> {
        let Some(perl) = vlane_guest::find_program("perl") else {
            vlane_testing::skip("perl is not on this machine");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("load.pl");
        std::fs::write(&program, PROGRAM).unwrap();
        let mut command = std::process::Command::new(perl);
        command.arg(&program).arg(dir.path().join("w")).args([
            "3",
            &steps.to_string(),
            &word(load),
        ]);
        assert!(command.status().unwrap().success());
        Some(dir)
    }

    #[test]
    fn each_loss_of_the_program_is_seen() {
        let Some(dir) = left(21, Load::Files) else { return };
        let dir = dir.path().join("w");
        assert_eq!(wrong(Load::Files, &dir, 3, 21), Vec::<String>::new());
        // Only the steps known a step before are demanded, and no more.
        assert_eq!(wrong(Load::Files, &dir, 3, 20), Vec::<String>::new());
        assert!(!wrong(Load::Files, &dir, 3, 22).is_empty());

        let damage = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
            let path = dir.join(name);
            let good = std::fs::read(&path).unwrap();
            let mut bad = good.clone();
            change(&mut bad);
            std::fs::write(&path, bad).unwrap();
            let found = wrong(Load::Files, &dir, 3, 21);
            std::fs::write(&path, good).unwrap();
            assert!(!found.is_empty(), "{name}");
        };
        damage("log", &|bytes| bytes.truncate(19 * RECORD));
        damage("log", &|bytes| bytes[3 * RECORD..4 * RECORD].fill(0));
        damage("log", &|bytes| bytes.extend([b'x'; RECORD]));
        damage("mail/21", &|bytes| bytes.truncate(100));
        damage("mail/16", &|bytes| bytes[50] = 0);
        damage("table", &|bytes| bytes[5 * SLOT..][..512].copy_from_slice(&slot_sector(3, 5, 0)));
        damage("table", &|bytes| bytes.truncate(SLOT));
        std::fs::remove_file(dir.join("mail/15")).unwrap();
        assert_eq!(wrong(Load::Files, &dir, 3, 21), ["mail 15 is not there"]);
    }

    #[test]
    fn each_loss_of_the_deliverer_is_seen() {
        let Some(dir) = left(21, Load::Mail) else { return };
        let dir = dir.path().join("w");
        let wrong = |told| super::wrong(Load::Mail, &dir, 3, told);
        assert_eq!(wrong(21), Vec::<String>::new());
        assert!(!wrong(22).is_empty());
        // The oldest that has to be there, and the newest.
        for mail in ["cur/18", "new/65"] {
            let (here, away) = (dir.join(mail), dir.join("away"));
            std::fs::rename(&here, &away).unwrap();
            assert_eq!(wrong(21).len(), 1, "{mail}");
            std::fs::copy(&away, &here).unwrap();
            std::fs::write(&here, "other").unwrap();
            assert_eq!(wrong(21).len(), 1, "{mail}");
            std::fs::rename(&away, &here).unwrap();
        }
        std::fs::copy(dir.join("cur/18"), dir.join("new/18")).unwrap();
        assert!(wrong(21).contains(&"mail 18 is both new and read".to_owned()));
    }

    #[test]
    fn each_loss_of_sqlite_is_seen() {
        let (Some(sqlite3), Some(perl)) =
            (vlane_guest::find_program("sqlite3"), vlane_guest::find_program("perl"))
        else {
            return vlane_testing::skip("sqlite3 or perl is not on this machine");
        };
        for worker in [1, 2] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("load.pl"), PROGRAM).unwrap();
            let script = "\"$0\" \"$1/load.pl\" \"$1\" \"$3\" 21 sqlite | \"$2\" -bail \"$1/db\"";
            let mut command = std::process::Command::new("sh");
            command
                .args(["-c", script])
                .arg(&perl)
                .arg(dir.path())
                .arg(&sqlite3)
                .arg(worker.to_string());
            let output = command.output().unwrap();
            assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
            let wrong = |told| database::wrong(dir.path(), worker, told).unwrap();
            assert_eq!(wrong(21), Vec::<String>::new());
            assert_eq!(wrong(23), ["the last transaction is 22"]);
            let told: Vec<(u32, u64)> =
                database::told_in(&std::fs::read(dir.path().join("db")).unwrap()).collect();
            assert!(told.contains(&(worker, 21)), "the rows are found");
            let file = std::fs::OpenOptions::new().write(true).open(dir.path().join("db")).unwrap();
            file.set_len(3 * 4096).unwrap();
            assert!(!wrong(21).is_empty());
            std::fs::remove_file(dir.path().join("db")).unwrap();
            assert_eq!(wrong(1), ["there is no database"]);
        }
    }
}
