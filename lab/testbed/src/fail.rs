//! Failures in few words: `return ErrorKind::Invalid.fail("too small")`, and
//! `File::open(path).at(path, "cannot be read")?`.

use std::path::Path;

use crate::error::{Context, Error, ErrorKind, Result};

/// Makes failed results.
pub trait Fail {
    /// Returns the text as an error of this kind.
    ///
    /// # Errors
    /// Always.
    fn fail<T>(self, text: impl Into<String>) -> Result<T>;
}

impl Fail for ErrorKind {
    fn fail<T>(self, text: impl Into<String>) -> Result<T> {
        Err(Error::new(self, text))
    }
}

/// Adds the file's name to an error.
pub trait At<T> {
    /// Puts the path and the fault before the error.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] instead of another error.
    fn at(self, path: impl AsRef<Path>, fault: &str) -> Result<T>;
}

impl<T, R: Context<T>> At<T> for R {
    fn at(self, path: impl AsRef<Path>, fault: &str) -> Result<T> {
        self.context(ErrorKind::Io, || format!("{}: {fault}", path.as_ref().display()))
    }
}
