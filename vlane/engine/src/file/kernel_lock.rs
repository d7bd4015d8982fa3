//! Operations for which some file systems hold the lock of the whole file.
//!
//! io_uring asks a direct write not to wait. FUSE waits all the same for an fsync, a discard or a
//! zeroing of the file (seen with Linux 6.18), and the submission waits with it. So does the lane's
//! thread. While one of these is under way, a worker of io_uring does the direct writes: they would
//! wait in any case. At other times the submission stays the quicker way.
//!
//! Only file systems that are known not to wait are excepted, and devices.

use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::rereads::BTRFS_MAGIC;

pub(super) const EXT4_MAGIC: i64 = 0xef53;
pub(super) const XFS_MAGIC: i64 = 0x5846_5342;
const F2FS_MAGIC: i64 = 0xf2f5_2010;

/// How many such operations of a volume are under way. None: no write waits for them.
#[derive(Debug, Default)]
pub(super) struct KernelLock(Option<AtomicUsize>);

impl KernelLock {
    /// Of a file or device.
    pub(super) fn of(file: &File, is_device: bool) -> KernelLock {
        match rustix::fs::fstatfs(file) {
            Ok(fs) if !is_device => KernelLock::on_file_system(fs.f_type),
            _ => KernelLock::default(),
        }
    }

    /// Of a file on a file system with that magic number.
    fn on_file_system(magic: i64) -> KernelLock {
        let refuses_to_wait = [EXT4_MAGIC, XFS_MAGIC, BTRFS_MAGIC, F2FS_MAGIC].contains(&magic);
        KernelLock((!refuses_to_wait).then(AtomicUsize::default))
    }

    /// One begins. Relaxed: a hint, on which no other state depends.
    pub(super) fn begin(&self) {
        if let Some(count) = &self.0 {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// One has ended.
    pub(super) fn end(&self) {
        if let Some(count) = &self.0 {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// True while a direct write would wait.
    #[inline]
    pub(super) fn is_held(&self) -> bool {
        self.0.as_ref().is_some_and(|count| count.load(Ordering::Relaxed) > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_counts_only_where_writes_wait() {
        const FUSE_MAGIC: i64 = 0x6573_5546;
        for (lock, waits) in [
            (KernelLock::on_file_system(FUSE_MAGIC), true),
            (KernelLock::on_file_system(EXT4_MAGIC), false),
            (KernelLock::default(), false),
        ] {
            (0..2).for_each(|_| lock.begin());
            lock.end();
            assert_eq!(lock.is_held(), waits, "{lock:?}");
            lock.end();
            assert!(!lock.is_held(), "{lock:?}");
        }
    }
}
