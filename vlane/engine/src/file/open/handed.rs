//! An image whose open files come from the process that served it before.
//!
//! An image's locks, and the claim on a block device, belong to its open files: they stay for as
//! long as one process after the other has these. Opening it anew would meet its own locks, and for
//! a moment there would be none. The witness is handed over as well: it gets reports of losses
//! between two processes, and a file that is opened later does not.
//!
//! Checks made when the image was opened are not repeated: the guest has written to it since, and
//! may have written a mark that looks like another format. The size stays as the guest knows it.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use vlane_ring::SECTOR;

use super::{Cache, EngineError, ErrorKind, FileOptions, JournalWay, Opened, Shared, TMPFS_MAGIC};
use crate::file::FileEngine;
use crate::file::astray::{self, is_same};

/// The open files of an image, with its locks.
#[derive(Debug)]
pub struct HandedFiles {
    /// The image: the one that has the locks.
    pub image: File,
    /// The same image through the page cache, if [`HandedFiles::image`] goes around it.
    pub cached: Option<File>,
    /// The open file that gets reports of lost writes; none if the volume refuses writes.
    pub witness: Option<File>,
    /// The volume's size.
    pub sectors: u64,
}

/// Refuses an open image that is not the one at `path`.
fn check_path(path: &Path, file: &File) -> Result<Metadata, EngineError> {
    let fail = |text: &str| EngineError::at(path, ErrorKind::Io, text);
    let failed = |text, error| EngineError::caused_at(path, ErrorKind::Io, text, error);
    let served = file.metadata().map_err(|error| failed("cannot be looked at", error))?;
    if let Some(astray) = astray::of(path, file) {
        return Err(fail(&astray.in_words()));
    }
    match std::fs::metadata(path) {
        Ok(found) if is_same(&found, &served) => Ok(served),
        Ok(_) => Err(fail(
            "the file at this path was replaced while it was served; move the served one back",
        )),
        Err(error) => {
            Err(failed("the served image is no longer at this path; move it back", error))
        }
    }
}

impl FileEngine {
    /// Its open files, for the process that serves the image from now on.
    ///
    /// # Errors
    /// When the image is not at its path any more, or the system gives no descriptors.
    pub fn hand_over(&self) -> Result<HandedFiles, EngineError> {
        let Shared { path, files, durability, .. } = &*self.shared;
        check_path(path, self.shared.file())?;
        let copy = || -> io::Result<HandedFiles> {
            Ok(HandedFiles {
                image: self.shared.file().try_clone()?,
                cached: files.get(1).map(|cached| cached.file().try_clone()).transpose()?,
                witness: durability.witness()?,
                sectors: self.shared.sectors.load(std::sync::atomic::Ordering::Relaxed),
            })
        };
        copy().map_err(|error| {
            EngineError::caused_at(
                path,
                ErrorKind::Limit,
                "no file descriptor left; raise the limit (ulimit -n)",
                error,
            )
        })
    }

    /// The image that another process served until now, by its open files.
    ///
    /// # Errors
    /// When it is another image than the one at `path`, or the system refuses a resource for
    /// serving it.
    pub fn take_over(
        path: &Path,
        options: FileOptions,
        files: HandedFiles,
    ) -> Result<FileEngine, EngineError> {
        let HandedFiles { image: file, cached: second, witness, sectors } = files;
        let metadata = check_path(path, &file)?;
        let is_device = metadata.file_type().is_block_device();
        let in_memory = !is_device
            && rustix::fs::fstatfs(&file).is_ok_and(|system| system.f_type == TMPFS_MAGIC);
        let cache = match (options.cache, &second) {
            (Cache::WriteThrough, _) => Cache::WriteThrough,
            (Cache::Auto | Cache::None, Some(_)) => Cache::None,
            (Cache::Pdc, _) if !in_memory => Cache::Pdc,
            _ => Cache::Writeback,
        };
        let refusal = match options.journal {
            _ if second.is_some() => None,
            JournalWay::Drop => {
                Some("it is dropped from the page cache (--journal drop)".to_owned())
            }
            JournalWay::Direct => {
                Some("that was not possible when the image was opened".to_owned())
            }
        };
        let opened = Opened {
            file,
            second,
            cache,
            witness,
            refusal,
            metadata,
            in_memory,
            size: sectors.saturating_mul(SECTOR),
        };
        super::shared(path, options, opened).map(FileEngine::new)
    }
}
