//! The error of a crate: a kind to match on, a context that says what failed, on what and what to
//! do, and the cause.
//!
//! Beside it stands what every program of ours does first: [`raise_descriptor_limit`].
//!
//! Each crate has kinds of its own, so each has a type of its own; [`error!`] makes it. A type with
//! the kind as its parameter would be foreign to the crates, which could not convert each other's
//! errors into it.

#![forbid(unsafe_code)]

mod limit;
pub mod program;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use limit::raise_descriptor_limit;

/// A number of things in words: `1 thread`, `2 threads`.
///
/// ```
/// use vlane_error::counted;
/// assert_eq!(counted(1, "thread"), "1 thread");
/// assert_eq!(counted(0, "flush"), "0 flushes");
/// ```
pub fn counted(number: impl std::fmt::Display, one: &str) -> String {
    let number = number.to_string();
    match (number.as_str(), one.ends_with("sh")) {
        ("1", _) => format!("1 {one}"),
        (_, true) => format!("{number} {one}es"),
        (_, false) => format!("{number} {one}s"),
    }
}

/// An error and all that caused it, on one line.
pub fn describe(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Locks plain data, also if a thread panicked that held it.
///
/// ```
/// # use std::sync::{Arc, Mutex};
/// let number = Arc::new(Mutex::new(1));
/// let other = Arc::clone(&number);
/// let thread = std::thread::spawn(move || {
///     *other.lock().unwrap() += 1;
///     let _held = other.lock().unwrap();
///     panic!("of a test");
/// });
/// assert!(thread.join().is_err() && number.lock().is_err());
/// assert_eq!(*vlane_error::locked(&number), 2);
/// ```
pub fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes `Error` and `Result` for a crate with these kinds.
///
/// ```
/// /// What went wrong.
/// #[derive(Debug, Clone, Copy, PartialEq, Eq)]
/// pub enum ErrorKind {
///     /// A file or the system refused.
///     Io,
/// }
///
/// vlane_error::error!(ErrorKind);
///
/// let cause = std::io::Error::other("no");
/// let error = Error::caused_by(ErrorKind::Io, "disk.raw: cannot read it", cause);
/// assert_eq!(error.kind(), ErrorKind::Io);
/// assert_eq!(error.to_string(), "disk.raw: cannot read it");
/// assert_eq!(std::error::Error::source(&error).map(ToString::to_string).as_deref(), Some("no"));
/// ```
#[macro_export]
macro_rules! error {
    ($kind:ty) => {
        /// An error of this crate. The text never repeats the source's text: print the whole chain
        /// to see both.
        #[derive(Debug)]
        pub struct Error {
            kind: $kind,
            context: String,
            source: Option<Box<dyn std::error::Error + Send + Sync>>,
        }

        /// This crate's result.
        pub type Result<T> = std::result::Result<T, Error>;

        #[allow(dead_code, reason = "not every crate has both")]
        impl Error {
            /// An error without a cause of its own.
            pub fn new(kind: $kind, context: impl Into<String>) -> Self {
                Self { kind, context: context.into(), source: None }
            }

            /// An error with what caused it.
            pub fn caused_by(
                kind: $kind,
                context: impl Into<String>,
                source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
            ) -> Self {
                Self { kind, context: context.into(), source: Some(source.into()) }
            }

            /// Kind of the failure.
            pub fn kind(&self) -> $kind {
                self.kind
            }
        }

        impl std::fmt::Display for Error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.context)
            }
        }

        impl std::error::Error for Error {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                self.source.as_ref().map(|source| &**source as _)
            }
        }
    };
}
