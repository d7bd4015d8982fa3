//! The files that commands write, and what may be written over: every result goes through
//! [`Output`].
//!
//! An existing file is not replaced without `--force`, except by a newer result of its own kind (a
//! report by a report). Some files are never replaced: a file that is in use (locked, as served
//! images are, or under a loop device), a block device, a directory, a socket. No file is ever
//! truncated. A whole result is written beside its place and renamed into it, and a stream goes
//! into a file that did not exist before. So a process that has the old file open keeps it as it
//! was.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use vlane_error::program::{Context, Error, ErrorKind, Result};

/// Bytes that a file may have to be looked at: a report with all its data is far smaller.
const LARGEST_RESULT: u64 = 256 << 20;

/// A file that a command writes.
#[derive(Debug, Clone)]
pub struct Output {
    path: PathBuf,
    force: bool,
    is_own: fn(&[u8]) -> bool,
}

/// Content of an output's path.
#[derive(Debug)]
enum Place {
    /// Empty; a file can be made.
    Free(PathBuf),
    /// A file that may be replaced; by the name that is no symbolic link.
    Taken(PathBuf),
    /// A pipe, a terminal, `/dev/null`, or what the shell has opened: written to as it is.
    Stream,
}

/// A result that is being written. It is at its place after [`Writing::finish`], and only then.
#[derive(Debug)]
pub struct Writing<'a> {
    output: &'a Output,
    into: Into,
}

#[derive(Debug)]
enum Into {
    Beside(NamedTempFile),
    Stream(File),
}

impl Output {
    /// A file that replaces none.
    pub fn new(path: impl std::convert::Into<PathBuf>) -> Self {
        Self { path: path.into(), force: false, is_own: |_| false }
    }

    /// One that may replace a file whose content `is_own`, without `--force`.
    pub fn replacing(mut self, is_own: fn(&[u8]) -> bool) -> Self {
        self.is_own = is_own;
        self
    }

    /// With `force`, it may replace any unused file.
    pub fn force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }

    /// Where it is to be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Says before the work whether its result can be written.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if there is something that must stay, or no directory;
    /// [`ErrorKind::Io`] if it cannot be looked at.
    pub fn check(&self) -> Result<()> {
        match self.place()? {
            // Opens the file for the result. A directory without write permission, or without room
            // for a file, is reported now.
            Place::Free(path) | Place::Taken(path) => self.beside(&path).map(drop),
            // A pipe would wait for its reader.
            Place::Stream => Ok(()),
        }
    }

    /// Writes a whole result: it appears at once, or not at all.
    ///
    /// # Errors
    /// As [`Output::check`]; [`ErrorKind::Io`].
    pub fn write(&self, content: &[u8]) -> Result<()> {
        let mut writing = self.begin()?;
        writing.write_all(content).context(ErrorKind::Io, || self.cannot())?;
        writing.finish()
    }

    /// Begins to write a whole result, which appears when it is finished.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub fn begin(&self) -> Result<Writing<'_>> {
        let into = match self.place()? {
            Place::Free(path) | Place::Taken(path) => Into::Beside(self.beside(&path)?),
            Place::Stream => Into::Stream(self.stream()?),
        };
        Ok(Writing { output: self, into })
    }

    /// A file for a result that comes bit by bit: there from now on, and empty.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub fn create(&self) -> Result<File> {
        match self.place()? {
            Place::Free(path) => {
                OpenOptions::new().write(true).create_new(true).open(path).map_err(|error| {
                    match error.kind() {
                        io::ErrorKind::AlreadyExists => self.exists(),
                        _ => Error::caused_by(ErrorKind::Io, self.cannot(), error),
                    }
                })
            }
            Place::Taken(path) => {
                let file = self.beside(&path)?;
                file.persist(&path).map_err(|e| e.error).context(ErrorKind::Io, || self.cannot())
            }
            Place::Stream => self.stream(),
        }
    }

    fn cannot(&self) -> String {
        format!("{}: cannot be written", self.path.display())
    }

    fn no(&self, why: &str) -> Error {
        Error::new(ErrorKind::Invalid, format!("{}: {why}", self.path.display()))
    }

    fn exists(&self) -> Error {
        self.no("exists already; choose another name, or use --force to replace it")
    }

    /// The present content, if it may be replaced.
    fn place(&self) -> Result<Place> {
        let path = &self.path;
        let there = match std::fs::symlink_metadata(path) {
            Ok(there) => there,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let parent = parent(path);
                return match (parent.is_dir(), path.file_name()) {
                    (true, Some(_)) => Ok(Place::Free(path.clone())),
                    (true, None) => Err(self.no("names no file")),
                    (false, _) => {
                        Err(self.no(&format!("there is no directory {}", parent.display())))
                    }
                };
            }
            Err(error) => return Err(Error::caused_by(ErrorKind::Io, self.cannot(), error)),
        };
        if is_opened_by_the_shell(path) {
            return Ok(Place::Stream);
        }
        let real = match there.is_symlink() {
            false => path.clone(),
            true => std::fs::canonicalize(path)
                .map_err(|_| self.no("is a broken symbolic link; choose another name"))?,
        };
        let there = std::fs::metadata(&real).context(ErrorKind::Io, || self.cannot())?;
        let kind = there.file_type();
        if kind.is_char_device() || kind.is_fifo() {
            return Ok(Place::Stream);
        }
        if kind.is_block_device() {
            return Err(self.no("is a block device, which no result is written to; name a file"));
        }
        if !kind.is_file() {
            let what = if kind.is_dir() { "a directory" } else { "a socket" };
            return Err(self.no(&format!("is {what}; name a file")));
        }
        let user = vlane_engine::file::user_of(&real).context(ErrorKind::Io, || {
            format!(
                "{}: exists, and cannot be checked for use by others; choose another name",
                path.display()
            )
        })?;
        if let Some(user) = user {
            return Err(self.no(&format!(
                "{user}, so it is not replaced, with or without --force; choose another name"
            )));
        }
        match there.len() == 0 || self.force || self.is_result_of_its_kind(&real, &there) {
            true => Ok(Place::Taken(real)),
            false => Err(self.exists()),
        }
    }

    fn is_result_of_its_kind(&self, path: &Path, there: &Metadata) -> bool {
        let mut content = Vec::new();
        let mut read = || File::open(path)?.take(LARGEST_RESULT).read_to_end(&mut content);
        there.len() < LARGEST_RESULT && read().is_ok() && (self.is_own)(&content)
    }

    /// A file in the same directory, under a name of its own; gone when it is dropped.
    fn beside(&self, path: &Path) -> Result<NamedTempFile> {
        tempfile::Builder::new()
            .prefix(".vlane-")
            // As any new file, less what the umask takes.
            .permissions(std::fs::Permissions::from_mode(0o666))
            .tempfile_in(parent(path))
            .context(ErrorKind::Io, || self.cannot())
    }

    fn stream(&self) -> Result<File> {
        // At its end: what the shell opened may be a file with something in it.
        OpenOptions::new().append(true).open(&self.path).context(ErrorKind::Io, || self.cannot())
    }
}

impl Writing<'_> {
    /// Puts it at its place.
    ///
    /// # Errors
    /// As [`Output::write`]: something may have come there meanwhile.
    pub fn finish(self) -> Result<()> {
        let Into::Beside(file) = self.into else { return Ok(()) };
        let output = self.output;
        let (path, persisted) = match output.place()? {
            Place::Free(path) => (path.clone(), file.persist_noclobber(path)),
            Place::Taken(path) => (path.clone(), file.persist(path)),
            Place::Stream => return Err(output.exists()),
        };
        match persisted {
            Ok(_) => Ok(()),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
                Err(output.exists())
            }
            Err(error) => {
                let context = format!("{}: cannot be written", path.display());
                Err(Error::caused_by(ErrorKind::Io, context, error.error))
            }
        }
    }
}

impl Write for Writing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.into {
            Into::Beside(file) => file.as_file_mut().write(bytes),
            Into::Stream(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The user has opened it already, and knows what it is.
fn is_opened_by_the_shell(path: &Path) -> bool {
    let names = ["/dev/stdout", "/dev/stderr"].map(Path::new);
    let directories = ["/dev/fd", "/proc/self/fd"].map(Path::new);
    names.contains(&path) || path.parent().is_some_and(|parent| directories.contains(&parent))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
#[path = "output/tests.rs"]
mod tests;
