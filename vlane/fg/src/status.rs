//! `vlane-fg status`: the raised programs, by terminal, and the events that woke the daemon for
//! them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use vlane_error::counted;

use crate::dir::Dir;
use crate::policy::{LookReason, Memory};
use crate::proc;
use crate::record::{self, About};

/// Returns the status for these directories, and true if a daemon runs in one of them.
pub fn of(dirs: &[PathBuf]) -> Result<(String, bool)> {
    let (mut all, mut running) = (String::new(), false);
    for path in dirs {
        let Ok(dir) = Dir::open(path) else {
            let _ = writeln!(all, "{}: no daemon runs", path.display());
            continue;
        };
        let about = About::of_living(&dir);
        running |= about.is_some();
        let memory = record::read(&dir)?;
        all += &text(path, about.as_ref(), &memory);
    }
    Ok((all, running))
}

fn text(path: &Path, about: Option<&About>, memory: &Memory) -> String {
    let mut text = String::new();
    let _ = match about {
        Some(about) => writeln!(
            text,
            "{}: a daemon runs (pid {}); nice {:+}, I/O priority {}; {}",
            path.display(),
            about.pid,
            about.nice,
            about.io,
            about.wakes.join(", ")
        ),
        None if memory.is_clean() => writeln!(text, "{}: no daemon runs", path.display()),
        None => writeln!(
            text,
            "{}: no daemon runs, and a killed one left these processes raised; run vlane-fg \
             restore",
            path.display()
        ),
    };
    for lack in about.iter().flat_map(|about| &about.lacks) {
        let _ = writeln!(text, "  {lack}");
    }
    let mut terminals: BTreeMap<String, String> = BTreeMap::new();
    for (pid, known) in &memory.known {
        let Some((_, entry)) = known.entries().find(|(_, entry)| entry.old != entry.set) else {
            continue;
        };
        let lines = terminals.entry(proc::terminal_name(known.terminal)).or_default();
        let threads = known.entries().count();
        let way = match entry.way {
            LookReason::Hook => "hook",
            LookReason::Event => "event",
            LookReason::Look => "look",
            LookReason::Start => "start",
        };
        let _ = write!(
            lines,
            "    {pid} {}: {} -> {}; {}; {way}",
            known.name,
            entry.old,
            entry.set,
            counted(threads, "thread")
        );
        let _ = match &entry.stuck {
            Some(why) => writeln!(lines, "; NOT RESTORED: {why}"),
            None => writeln!(lines),
        };
    }
    for (terminal, lines) in terminals {
        let _ = write!(text, "  {terminal}\n{lines}");
    }
    text
}
