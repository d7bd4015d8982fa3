//! Detects losses of answered writes.
//!
//! Linux writes pages of the page cache back when it likes. When that fails, it forgets them (they
//! count as clean from then on), and reports it once to each open file: to the first `fdatasync`,
//! or durable write, that looks (`lib/errseq.c`). So of two flushes of one open file that are under
//! way together, one gets the error and the other does not, although both promise the same. The
//! next flush after them does not see the error at all.
//!
//! Two measures make every answer right:
//!
//! * **A loss stays** ([`Durability::is_lost`]) until the volume is opened again: no flush is
//!   answered `Ok` after it, and no write that has begun since. QEMU does the same
//!   (`page_cache_inconsistent` in its `block/file-posix.c`).
//! * **A witness**: an open file of its own, with no other user. Reports to the other files do not
//!   affect it. A flush, or a durable write, that ends well is answered only after the witness was
//!   asked. The thread that learns of a loss from it notes the loss before the next one may ask. So
//!   each failure that came before the end of the flush is known when it is answered.
//!
//! The witness is asked with `sync_file_range(SYNC_FILE_RANGE_WAIT_BEFORE)` of a byte that no file
//! has: the call has no page to wait for, and looks at the error all the same.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};

use crate::{LostWrite, Writeback};
use vlane_error::locked;
use vlane_io::system::sync_file_range;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Durability {
    /// The first failure's; 0: no write is lost.
    errno: AtomicI32,
    during: AtomicU8,
    failures: AtomicU64,
    /// None: the volume refuses writes, or the witness cannot be asked. Locked once for each flush
    /// and each durable write, both of which wait for the device; never for long.
    witness: Option<Mutex<File>>,
}

impl Durability {
    pub(super) fn new(witness: Option<File>) -> Durability {
        Durability { witness: witness.map(Mutex::new), ..Durability::default() }
    }

    /// The witness, for the process that asks it from now on.
    pub(super) fn witness(&self) -> io::Result<Option<File>> {
        self.witness.as_ref().map(|witness| locked(witness).try_clone()).transpose()
    }

    /// True if a write was lost. One load.
    #[inline]
    pub(super) fn is_lost(&self) -> bool {
        self.errno.load(Ordering::Relaxed) != 0
    }

    /// Returns the loss, if there was one.
    pub(super) fn lost(&self) -> Option<LostWrite> {
        let errno = self.errno.load(Ordering::Acquire);
        (errno != 0).then(|| LostWrite {
            errno,
            during: match self.during.load(Ordering::Relaxed) {
                2 => Writeback::Write,
                3 => Writeback::Sync,
                _ => Writeback::Flush,
            },
            failures: self.failures.load(Ordering::Relaxed),
        })
    }

    /// A writeback failed.
    #[cold]
    pub(super) fn fail(&self, errno: i32, during: Writeback) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        if !self.is_lost() {
            self.during.store(during as u8, Ordering::Relaxed);
        }
        let errno = if errno > 0 { errno } else { libc::EIO };
        // The first one stays.
        let _ = self.errno.compare_exchange(0, errno, Ordering::Release, Ordering::Relaxed);
    }

    /// Asks the witness; returns true if a write was lost up to this moment.
    // off the data path: a flush or a durable write has waited for the device.
    pub(super) fn ask(&self, during: Writeback) -> bool {
        if let Some(witness) = &self.witness {
            // Until the loss is noted: the system reports it to the witness once, too.
            let witness = locked(witness);
            if let Err(errno) = look(&witness) {
                self.fail(errno, during);
            }
        }
        self.is_lost()
    }
}

/// Returns the error number if a page of the file could not be written back since the last look.
fn look(file: &File) -> Result<(), i32> {
    // SAFETY: an open descriptor and plain numbers.
    let code = unsafe {
        sync_file_range(file.as_raw_fd(), i64::MAX - 1, 1, libc::SYNC_FILE_RANGE_WAIT_BEFORE)
    };
    if code == 0 {
        return Ok(());
    }
    match io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) {
        // A sandbox without the call: the flush's own result has to do.
        libc::ENOSYS | libc::EPERM => Ok(()),
        errno => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn witness_of_sound_storage_reports_no_loss() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(4096).expect("set_len");
        let durability = Durability::new(Some(file));
        assert!(!durability.ask(Writeback::Flush) && !durability.is_lost());
        assert_eq!(durability.lost(), None);
    }

    #[test]
    fn first_failure_stays_and_all_are_counted() {
        let durability = Durability::new(None);
        durability.fail(libc::ENOSPC, Writeback::Write);
        durability.fail(libc::EIO, Writeback::Flush);
        assert!(durability.is_lost() && durability.ask(Writeback::Flush));
        let lost = durability.lost().expect("lost");
        assert_eq!(lost, LostWrite { errno: libc::ENOSPC, during: Writeback::Write, failures: 2 });
        assert_eq!(
            lost.to_string(),
            "a durable write failed: No space left on device (os error 28)"
        );
        assert_eq!(lost.during.name(), "write");
    }
}
