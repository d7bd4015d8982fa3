//! The program's messages and output.

use std::io::Write;

use anyhow::{Context, Result};

/// Writes a message to the error output; continues if it has no reader any more.
pub fn say(what: &str) {
    let _ = writeln!(std::io::stderr(), "vlane-fg: {what}");
}

/// Prints the requested text. A reader that has read enough and went away is no error: `vlane-fg
/// status | head -1`.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("standard output")
        }
        _ => Ok(()),
    }
}
