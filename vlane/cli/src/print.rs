//! Standard output and standard error, of which a reader may see only the beginning:
//! `vlane ... | head -1` is no mistake.
//!
//! The standard library's `println!` panics when its reader is gone. The macros here have the same
//! names and replace it in this crate. Output without a reader is dropped, and the command
//! continues, because it may also write files, or serve. Any other failure (a full disk) is kept,
//! and makes the command fail at its end.

use std::fmt::Arguments;
use std::io::{self, Write};
use std::sync::Mutex;

/// Why standard output did not take all of it.
static FAILURE: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints on standard output.
#[macro_export]
macro_rules! print {
    ($($words:tt)*) => { $crate::print::out(format_args!($($words)*)) };
}

/// Prints a line on standard output.
#[macro_export]
macro_rules! println {
    () => { $crate::print::out(format_args!("\n")) };
    ($($words:tt)*) => { $crate::print::out(format_args!("{}\n", format_args!($($words)*))) };
}

/// Prints on standard error.
#[macro_export]
macro_rules! eprint {
    ($($words:tt)*) => { $crate::print::err(format_args!($($words)*)) };
}

/// Prints a line on standard error.
#[macro_export]
macro_rules! eprintln {
    ($($words:tt)*) => { $crate::print::err(format_args!("{}\n", format_args!($($words)*))) };
}

/// Prints on standard output.
pub fn out(words: Arguments<'_>) {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_fmt(words).and_then(|()| out.flush())
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        vlane_error::locked(&FAILURE).get_or_insert(error);
    }
}

/// Prints on standard error. A failure is ignored: there is no channel left to report it.
pub fn err(words: Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(words);
}

/// The failure of any of the above, but for a reader that is gone.
pub fn finish() -> anyhow::Result<()> {
    match vlane_error::locked(&FAILURE).take() {
        None => Ok(()),
        Some(error) => Err(anyhow::Error::new(error).context("cannot write to standard output")),
    }
}
