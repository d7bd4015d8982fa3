//! Memory that two processes share, as words that both access atomically.
//!
//! One side makes it ([`SharedWords::create`]) and sends the descriptor to the other, which maps it
//! ([`SharedWords::open`]) without having to trust the sender. Only memory that cannot shrink is
//! mapped, so no access ever faults, and each word is a number that the other side may have chosen
//! with ill intent.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use rustix::fs::SealFlags;
use rustix::mm::MapFlags;

use crate::mapping::Mapping;

/// Bytes of a word.
const WORD: usize = size_of::<u64>();
/// `TMPFS_MAGIC`: the file system of an ordinary memfd. One of huge pages says something else.
const TMPFS: u64 = 0x0102_1994;

/// Shared memory, as words of 64 bits. Unmapped on drop.
#[derive(Debug)]
pub struct SharedWords {
    mapping: Mapping,
    /// How many words there are.
    len: usize,
}

/// The reason why received memory is not mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedError {
    /// No memfd, or one of huge pages.
    #[error("the descriptor is not shared memory of ordinary pages (a memfd)")]
    NotMemory,
    /// Its owner could take pages away while they are read.
    #[error("the shared memory is not sealed against shrinking (F_SEAL_SHRINK)")]
    NotSealed,
    /// Not the size that it must have.
    #[error("the shared memory has {len} bytes instead of {wanted}")]
    WrongSize {
        /// Bytes that it has.
        len: u64,
        /// Bytes that it must have.
        wanted: usize,
    },
    /// The system refused something.
    #[error("shared memory: cannot {what}")]
    System {
        /// The action that was tried.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> SharedError {
    move |errno| SharedError::System { what, source: errno.into() }
}

impl SharedWords {
    /// New memory of `bytes` zero bytes (a multiple of 8), sealed so that its size never changes,
    /// and its descriptor.
    ///
    /// # Errors
    /// [`SharedError::System`].
    pub fn create(name: &str, bytes: usize) -> Result<(SharedWords, OwnedFd), SharedError> {
        use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create(name, flags).map_err(system("create it"))?;
        ftruncate(&fd, bytes as u64).map_err(system("size it"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&fd, seals).map_err(system("seal it"))?;
        let words = SharedWords::map(fd.as_fd(), bytes)?;
        Ok((words, fd))
    }

    /// Maps memory of another process, if it cannot shrink and has exactly `bytes` bytes.
    ///
    /// # Errors
    /// [`SharedError`].
    pub fn open(fd: BorrowedFd<'_>, bytes: usize) -> Result<SharedWords, SharedError> {
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| SharedError::NotMemory)?;
        // Huge pages would have to be unmapped as such, and may be too few at the first access.
        let system_type = rustix::fs::fstatfs(fd).map_err(system("look at it"))?.f_type;
        if u64::try_from(system_type).ok() != Some(TMPFS) {
            return Err(SharedError::NotMemory);
        }
        if !seals.contains(SealFlags::SHRINK) {
            return Err(SharedError::NotSealed);
        }
        // After the seal was seen: from now on it can only grow.
        let len = rustix::fs::fstat(fd).map_err(system("look at it"))?.st_size;
        if usize::try_from(len).ok() != Some(bytes) {
            return Err(SharedError::WrongSize {
                len: u64::try_from(len).unwrap_or(0),
                wanted: bytes,
            });
        }
        SharedWords::map(fd, bytes)
    }

    fn map(fd: BorrowedFd<'_>, bytes: usize) -> Result<SharedWords, SharedError> {
        if bytes == 0 || !bytes.is_multiple_of(WORD) {
            return Err(SharedError::WrongSize {
                len: bytes as u64,
                wanted: bytes.max(1).next_multiple_of(WORD),
            });
        }
        let map_error = |source| SharedError::System { what: "map it", source };
        let file = File::from(fd.try_clone_to_owned().map_err(map_error)?);
        // Pages are there from the start: no fault, and no want of memory, on a hot path later.
        let mapping = Mapping::new(&file, 0, bytes, MapFlags::POPULATE).map_err(map_error)?;
        Ok(SharedWords { mapping, len: bytes / WORD })
    }

    /// How many words there are.
    #[allow(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// `count` words from word `first` on; none, if they are not all there.
    #[inline]
    pub fn words(&self, first: usize, count: usize) -> Option<&[AtomicU64]> {
        if first.checked_add(count)? > self.len {
            return None;
        }
        // SAFETY: the words lie inside the mapping, which is page-aligned and lives as long as
        // `self`. It is `len` words of a file that cannot shrink, so no access faults; both
        // processes access it as atomics only, and an atomic may change under a shared reference.
        // Every bit pattern is a valid u64.
        Some(unsafe {
            std::slice::from_raw_parts(
                self.mapping.base().as_ptr().cast::<AtomicU64>().add(first),
                count,
            )
        })
    }

    /// Word `at`, if there is one.
    #[inline]
    pub fn word(&self, at: usize) -> Option<&AtomicU64> {
        self.words(at, 1)?.first()
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::sync::atomic::Ordering;

    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    fn memfd(seals: SealFlags, bytes: u64) -> OwnedFd {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, bytes).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        fd
    }

    #[test]
    fn stored_word_is_loaded_by_other_side() {
        let (ours, fd) = SharedWords::create("test", 4096).unwrap();
        let theirs = SharedWords::open(fd.as_fd(), 4096).unwrap();
        ours.word(511).unwrap().store(7, Ordering::Release);
        assert_eq!(theirs.word(511).unwrap().load(Ordering::Acquire), 7);
        theirs.words(0, 512).unwrap()[3].store(9, Ordering::Release);
        assert_eq!(ours.word(3).unwrap().load(Ordering::Acquire), 9);
    }

    #[test]
    fn no_word_lies_beyond_the_end() {
        let (words, _fd) = SharedWords::create("test", 4096).unwrap();
        assert_eq!(words.len(), 512);
        assert!(words.word(512).is_none());
        assert!(words.words(500, 13).is_none());
        assert!(words.words(500, 12).is_some());
        assert!(words.words(usize::MAX, 2).is_none());
    }

    #[test]
    fn shared_memory_size_is_fixed() {
        let (_words, fd) = SharedWords::create("test", 4096).unwrap();
        assert!(ftruncate(&fd, 0).is_err());
        assert!(ftruncate(&fd, 8192).is_err());
    }

    #[test]
    fn shrinkable_memory_is_refused() {
        let refused = SharedWords::open(memfd(SealFlags::GROW, 4096).as_fd(), 4096);
        assert!(matches!(refused, Err(SharedError::NotSealed)), "{refused:?}");
        assert!(SharedWords::open(memfd(SealFlags::SHRINK, 4096).as_fd(), 4096).is_ok());
    }

    #[test]
    fn other_files_are_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let refused = SharedWords::open(file.as_fd(), 4096);
        assert!(
            matches!(refused, Err(SharedError::NotMemory | SharedError::NotSealed)),
            "{refused:?}"
        );
        let null = File::open("/dev/null").unwrap();
        assert!(matches!(SharedWords::open(null.as_fd(), 4096), Err(SharedError::NotMemory)));
        let small = memfd(SealFlags::SHRINK, 4095);
        assert!(matches!(
            SharedWords::open(small.as_fd(), 4096),
            Err(SharedError::WrongSize { len: 4095, wanted: 4096 })
        ));
        // Sealed against writing: it cannot be mapped to write.
        let read_only = memfd(SealFlags::SHRINK | SealFlags::WRITE, 4096);
        assert!(matches!(
            SharedWords::open(read_only.as_fd(), 4096),
            Err(SharedError::System { .. })
        ));
    }
}
