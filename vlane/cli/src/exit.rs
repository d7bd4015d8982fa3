//! How a command ends: its exit status, and the one line that says why.

use std::error::Error;

/// It failed.
const FAILED: u8 = 1;
/// The command line, or a variable, asks for the impossible; no work was begun. clap ends with the
/// same status.
const USAGE: u8 = 2;
/// There is a result: of less than what was asked for, or worse than what was demanded.
const LESS: u8 = 3;

/// For the end of `--help`.
pub fn help() -> String {
    let all: Vec<String> =
        crate::manual::STATUS.iter().map(|(status, words)| format!("{status} {words}")).collect();
    format!("Exit status: {}.", all.join("; "))
}

/// A mistake in the command line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// A result was given, of less than what was asked for.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Partial(pub String);

/// A result was given, and is worse than what was demanded.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Missed(pub String);

/// Ends the function with a [`Usage`].
#[macro_export]
macro_rules! usage {
    ($($words:tt)*) => { return Err(anyhow::Error::new($crate::exit::Usage(format!($($words)*)))) };
}

/// Ends the function with a [`Usage`] unless a condition holds.
#[macro_export]
macro_rules! ensure_usage {
    ($holds:expr, $($words:tt)*) => { if !$holds { $crate::usage!($($words)*) } };
}

/// Makes a mistake in the command line of an error that can only be one.
pub fn as_usage(error: impl Into<anyhow::Error>) -> anyhow::Error {
    Usage(format!("{:#}", error.into())).into()
}

/// The exit status of an error.
pub fn status_of(error: &anyhow::Error) -> u8 {
    let of = |cause: &(dyn Error + 'static)| {
        let lab = cause
            .downcast_ref::<vlane_error::program::Error>()
            .map(vlane_error::program::Error::kind);
        if cause.is::<Usage>() || lab == Some(vlane_error::program::ErrorKind::Usage) {
            Some(USAGE)
        } else {
            (cause.is::<Partial>() || cause.is::<Missed>()).then_some(LESS)
        }
    };
    error.chain().find_map(of).unwrap_or(FAILED)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn status_follows_the_wrapped_cause() {
        let around =
            |error: anyhow::Error| Err::<(), _>(error).context("one").context("two").unwrap_err();
        assert_eq!(status_of(&around(Usage("x".into()).into())), USAGE);
        assert_eq!(status_of(&around(Partial("x".into()).into())), LESS);
        assert_eq!(status_of(&around(Missed("x".into()).into())), LESS);
        let of = |kind| status_of(&around(vlane_error::program::Error::new(kind, "x").into()));
        assert_eq!(
            (of(vlane_error::program::ErrorKind::Usage), of(vlane_error::program::ErrorKind::Io)),
            (USAGE, FAILED)
        );
        assert_eq!(status_of(&as_usage(anyhow::anyhow!("x"))), USAGE);
    }
}
