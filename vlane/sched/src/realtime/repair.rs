//! Repairs threads that ended schedulers have left changed.
//!
//! Only a trusted list is read (`trusted.rs`). An entry is carried out only if a scheduler could
//! have written it: ordinary policies, for a thread with the noted start time.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use super::table::{Reader, Restored, is_table, is_unborn};
use super::trusted::Directory;
use crate::{Error, ErrorKind, Result};
use vlane_error::describe;

/// The result of repairing a directory.
#[derive(Debug, Default)]
pub struct Repaired {
    /// The threads that were restored.
    pub restored: Restored,
    /// Lists that no process held.
    pub lists: usize,
    /// Lists of schedulers that run, or of their guards: left alone.
    pub held: usize,
    /// Files that could not be read or trusted, in words. None of these files was removed.
    pub problems: Vec<String>,
}

/// Restores the threads of daemons that were killed together with their guards: every list in the
/// directory that no process holds. Reports the findings. A damaged list is put aside after its
/// readable entries were carried out.
///
/// # Errors
///
/// The directory is not there ([`ErrorKind::Gone`]), cannot be read, or is not to be believed.
pub fn repair(dir: &Path) -> Result<Repaired> {
    let failed = |error: io::Error| {
        let shown = dir.display();
        match error.kind() {
            io::ErrorKind::NotFound => Error::new(
                ErrorKind::Gone,
                format!(
                    "{shown}: is not there, so no scheduler has kept its list of changed threads \
                     in it; name its directory with --state-dir"
                ),
            ),
            io::ErrorKind::NotADirectory => Error::new(
                ErrorKind::Invalid,
                format!("{shown}: is not a directory; name the scheduler's with --state-dir"),
            ),
            io::ErrorKind::PermissionDenied if error.raw_os_error().is_none() => {
                Error::new(ErrorKind::Permission, error.to_string())
            }
            io::ErrorKind::PermissionDenied => Error::caused_by(
                ErrorKind::Permission,
                format!("{shown}: no permission to read it; run this as its owner, or as root"),
                error,
            ),
            _ => Error::caused_by(ErrorKind::Io, format!("{shown}: cannot be read"), error),
        }
    };
    let directory = Directory::open(dir).map_err(failed)?;
    let mut done = Repaired::default();
    let entries =
        rustix::fs::Dir::read_from(&directory.fd).map_err(|error| failed(error.into()))?;
    for entry in entries {
        let entry = entry.map_err(|error| failed(error.into()))?;
        let name: &OsStr = std::os::unix::ffi::OsStrExt::from_bytes(entry.file_name().to_bytes());
        if is_unborn(name) {
            // A daemon that was killed before its list had a name had not changed any thread yet.
            directory.remove(name);
        } else if is_table(name) {
            repair_list(&directory, name, &mut done);
        }
    }
    Ok(done)
}

fn repair_list(directory: &Directory, name: &OsStr, done: &mut Repaired) {
    let path = directory.path.join(name);
    let reader = match directory.list(name) {
        Ok(file) => Reader::of(file, &path),
        // Its scheduler has ended meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => {
            let text = match error.raw_os_error() {
                None => error.to_string(),
                Some(_) => format!("{}: cannot be opened: {error}", path.display()),
            };
            return done.problems.push(text);
        }
    };
    // Only a list that no other process holds: neither a daemon nor its guard.
    if flock(reader.as_fd(), FlockOperation::NonBlockingLockExclusive).is_err() {
        done.held += 1;
        return;
    }
    done.lists += 1;
    let restored = match reader.restore() {
        Ok(restored) => restored,
        Err(error) => {
            return done.problems.push(format!(
                "{}: cannot be read: {}",
                path.display(),
                describe(&error)
            ));
        }
    };
    done.restored.add(restored);
    if restored.damaged > 0 {
        let aside = directory.put_aside(name).unwrap_or(path.clone());
        done.problems.push(format!(
            "{}: damaged: {} of its entries make no sense, {} were read; the threads of the \
             others may still have a changed priority (`chrt -p TID`, `ps -eLo \
             tid,cls,rtprio,ni,comm`); kept as {}",
            path.display(),
            restored.damaged,
            restored.seen,
            aside.display()
        ));
    } else if restored.failed == 0 {
        directory.remove(name);
    }
}

#[cfg(test)]
#[path = "repair_tests.rs"]
mod tests;
