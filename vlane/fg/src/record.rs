//! The record for a later program: raised threads, the daemon that raised them, and their earlier
//! values.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::dir::Dir;
use crate::policy::Memory;
use crate::proc;

const NAME: &str = "record";
const DAEMON: &str = "daemon";
/// The most bytes of each that are read: root reads the files of users' daemons.
const RECORD: u64 = 64 << 20;
const ABOUT: u64 = 64 << 10;

#[derive(Debug, Default, Serialize, Deserialize)]
struct Content {
    /// The kernel's name for the time since it was booted: pids of another time are meaningless.
    boot: String,
    memory: Memory,
}

fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Writes it, before any thread is changed.
pub fn write(dir: &Dir, memory: Memory) -> Result<()> {
    let content = Content { boot: boot(), memory };
    dir.write(NAME, &serde_json::to_vec(&content).context("the record")?)
}

/// Returns the record left behind; empty if there is none, or if it is of another boot.
pub fn read(dir: &Dir) -> Result<Memory> {
    let Some(text) = dir.read(NAME, RECORD)? else { return Ok(Memory::default()) };
    let content: Content = serde_json::from_str(&text).with_context(|| {
        format!(
            "{}/{NAME} is not a record of this version; removing it loses its content",
            dir.path().display()
        )
    })?;
    Ok(if content.boot == boot() { content.memory } else { Memory::default() })
}

/// Removes the record: no thread is left to restore.
pub fn remove(dir: &Dir) {
    dir.remove(NAME);
}

/// A daemon's description of itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct About {
    /// Its process.
    pub pid: i32,
    /// The start time of that daemon, in ticks.
    pub start: u64,
    /// The events that wake it, in words.
    pub wakes: Vec<String>,
    /// The missing abilities, and the reasons.
    pub lacks: Vec<String>,
    /// The amount added to nice values.
    pub nice: i32,
    /// The I/O priority that it sets.
    pub io: String,
}

impl About {
    /// Says it.
    pub fn write(&self, dir: &Dir) -> Result<()> {
        dir.write(DAEMON, &serde_json::to_vec(self).context("the daemon's description")?)
    }

    /// Reads the description of a daemon that runs.
    pub fn of_living(dir: &Dir) -> Option<Self> {
        let about: Self = serde_json::from_str(&dir.read(DAEMON, ABOUT).ok()??).ok()?;
        let stat = proc::stat(about.pid).ok()?;
        (stat.start == about.start && !stat.is_dead()).then_some(about)
    }
}

/// Removes the description of a daemon that has ended.
pub fn remove_about(dir: &Dir) {
    dir.remove(DAEMON);
}
