//! What the program says, and what it prints.

use std::io::Write;

use anyhow::{Context, Result};

/// Says something to whoever reads the errors; if nobody does any more, the work goes on.
pub fn say(what: &str) {
    let _ = writeln!(std::io::stderr(), "vlane-fg: {what}");
}

/// Prints what was asked for. Who has read enough and went away is no error: `vlane-fg status | head -1`.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error).context("standard output"),
        _ => Ok(()),
    }
}
