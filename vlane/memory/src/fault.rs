//! Survives a mapped file that another process truncates.
//!
//! Guest memory and mapped images are files of other processes. A process that truncates one makes
//! the next access to the lost pages a SIGBUS, which by default ends the whole process: one hostile
//! front end could end every session. A [`Guard`] on a mapping makes the handler put a zero page
//! under the access and raise the guard's flag instead. The access that faulted continues with
//! zeroes. The owner of the mapping looks at [`Guard::tripped`], and ends the session or falls back
//! to system calls.
//!
//! Only the page that was touched is replaced. The kernel also has pointers into the mapping, and
//! still meets the lost part with an error (EFAULT). So a write that is under way fails instead of
//! writing zeroes to the disk.
//!
//! A page that the hardware lost is the same case once it is touched (BUS_MCEERR_AR). A lost page
//! that is not touched (BUS_MCEERR_AO) is only news, and is ignored.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Mappings that can be guarded at the same time.
pub const MAX_GUARDS: usize = 4096;

struct Entry {
    start: AtomicUsize,
    len: AtomicUsize,
    tripped: AtomicBool,
}

#[allow(clippy::declare_interior_mutable_const)]
const FREE: Entry =
    Entry { start: AtomicUsize::new(0), len: AtomicUsize::new(0), tripped: AtomicBool::new(false) };
/// Start address that marks an entry as taken but not yet (or no longer) valid. No mapping starts
/// at 1.
const CLAIMED: usize = 1;
static TABLE: [Entry; MAX_GUARDS] = [FREE; MAX_GUARDS];
/// Times that a page was replaced, in any mapping.
static TRIPS: AtomicU64 = AtomicU64::new(0);

/// Sizes of pages that systems have, as powers of two. A mapping of huge pages can be replaced by
/// whole ones only; which it has, the handler finds out by trying.
const PAGE_SHIFTS: [u32; 8] = [12, 14, 16, 20, 21, 25, 29, 30];

/// How often memory was lost so far, in any mapping: one load, to see that there was no loss.
#[inline]
pub fn trips() -> u64 {
    TRIPS.load(Ordering::Relaxed)
}

/// True if a mapping that holds some of the `len` bytes at `address` has lost pages.
pub fn has_tripped(address: usize, len: usize) -> bool {
    TABLE.iter().any(|entry| {
        let start = entry.start.load(Ordering::SeqCst);
        start > CLAIMED
            && address < start.saturating_add(entry.len.load(Ordering::SeqCst))
            && start < address.saturating_add(len)
            && entry.tripped.load(Ordering::SeqCst)
    })
}

/// A mapping whose SIGBUS is caught. Dropping it ends the protection: do it before the mapping is
/// undone, lest a later mapping at its address is taken for it.
#[derive(Debug)]
pub struct Guard {
    index: usize,
}

impl Guard {
    /// Protects the mapping at `start`, `len` bytes, both multiples of the page size.
    ///
    /// # Errors
    /// `OutOfMemory` when [`MAX_GUARDS`] mappings are guarded already; the error of `sigaction` at
    /// first use.
    pub fn new(start: *mut u8, len: usize) -> io::Result<Guard> {
        install()?;
        for (index, entry) in TABLE.iter().enumerate() {
            if entry.start.compare_exchange(0, CLAIMED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
            {
                entry.tripped.store(false, Ordering::SeqCst);
                entry.len.store(len, Ordering::SeqCst);
                entry.start.store(start as usize, Ordering::SeqCst);
                return Ok(Guard { index });
            }
        }
        Err(io::Error::new(io::ErrorKind::OutOfMemory, "too many guarded mappings"))
    }

    /// True if pages of this mapping were lost since it was made.
    #[inline]
    pub fn tripped(&self) -> bool {
        TABLE[self.index].tripped.load(Ordering::SeqCst)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let entry = &TABLE[self.index];
        entry.start.store(CLAIMED, Ordering::SeqCst);
        entry.len.store(0, Ordering::SeqCst);
        entry.start.store(0, Ordering::SeqCst);
    }
}

fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let result = INSTALLED.get_or_init(|| {
        // SAFETY: `sigaction` is plain data for which all zeroes is a valid value; the handler is
        // `on_sigbus`, which has the three-argument form that SA_SIGINFO asks for and calls only
        // async-signal-safe functions.
        let code = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_sigbus as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut())
        };
        if code == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL))
        }
    });
    result.map_err(io::Error::from_raw_os_error)
}

extern "C" fn on_sigbus(
    _signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler, and a SIGBUS of its own
    // carries an address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // A page is lost that was not touched: its next reader gets the error.
    if code == libc::BUS_MCEERR_AO {
        return;
    }
    // Sent by a process (`kill -BUS`): no access failed, and what is read as the address is
    // something else.
    let sent = code <= 0;
    for entry in TABLE.iter().filter(|_| !sent) {
        let start = entry.start.load(Ordering::SeqCst);
        let len = entry.len.load(Ordering::SeqCst);
        if start <= CLAIMED || address < start || address - start >= len {
            continue;
        }
        // The entry of another mapping may have changed hands between the two loads.
        if entry.start.load(Ordering::SeqCst) != start {
            continue;
        }
        entry.tripped.store(true, Ordering::SeqCst);
        TRIPS.fetch_add(1, Ordering::SeqCst);
        let end = start + len;
        let pages = PAGE_SHIFTS.iter().map(|shift| {
            let first = (address >> shift << shift).max(start);
            let last = (address >> shift)
                .saturating_add(1)
                .checked_mul(1 << shift)
                .unwrap_or(end)
                .min(end);
            (first, last)
        });
        for (first, last) in pages.chain([(start, end)]) {
            // SAFETY: the range is part of a mapping whose owner registered it for just this;
            // replacing it in place keeps every pointer into it valid.
            let mapped = unsafe {
                libc::mmap(
                    first as *mut libc::c_void,
                    last - first,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            };
            if mapped != libc::MAP_FAILED {
                return;
            }
        }
    }
    // Not ours: the default action, which the access that is now repeated will meet, or the signal
    // sent once more.
    // SAFETY: `signal` with SIG_DFL and `raise` are async-signal-safe.
    unsafe {
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
        if sent {
            libc::raise(libc::SIGBUS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    /// Its pages read as zeroes.
    #[test]
    #[cfg_attr(miri, ignore = "signals and mmap are not emulated")]
    fn truncated_mapping_trips_only_its_guard() {
        let map = |file: &std::fs::File| {
            // SAFETY: a fresh shared mapping of a file we own.
            unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    8192,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED,
                    file.as_raw_fd(),
                    0,
                )
                .cast::<u8>()
            }
        };
        let make = || {
            let fd =
                rustix::fs::memfd_create("fault", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
            let file = std::fs::File::from(fd);
            file.set_len(8192).expect("set_len");
            file
        };
        let (victim, bystander) = (make(), make());
        let (a, b) = (map(&victim), map(&bystander));
        let (guard_a, guard_b) =
            (Guard::new(a, 8192).expect("guard"), Guard::new(b, 8192).expect("guard"));
        // SAFETY: both mappings are 8192 bytes long and stay mapped to the end of the test.
        unsafe {
            a.write_volatile(7);
            b.write_volatile(7);
            victim.set_len(0).expect("truncate");
            assert_eq!(a.add(5000).read_volatile(), 0);
            assert_eq!(b.read_volatile(), 7);
        }
        assert!(guard_a.tripped());
        assert!(!guard_b.tripped());
        // The other page is still lost: a reader with a system call gets the error.
        let disk = make();
        // SAFETY: mapped, as above, which the kernel checks by itself.
        let written = unsafe { libc::pwrite(disk.as_raw_fd(), a.cast(), 4096, 0) };
        let error = std::io::Error::last_os_error().raw_os_error();
        assert_eq!(
            (written, error),
            (-1, Some(libc::EFAULT)),
            "zeroes were written in place of what is lost"
        );
        let (inside, outside) = (has_tripped(a as usize + 8000, 4), has_tripped(b as usize, 8192));
        assert!(trips() > 0 && inside && !outside);
    }

    #[test]
    #[cfg_attr(miri, ignore = "signals and mmap are not emulated")]
    fn untouched_lost_page_changes_no_state() {
        let fd = rustix::fs::memfd_create("fault", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
        rustix::fs::ftruncate(&fd, 8192).expect("size");
        // SAFETY: a fresh shared mapping of a file we own; 8192 bytes that stay mapped to the end
        // of the test.
        let at = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), 8192, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0)
                .cast::<u8>()
        };
        let guard = Guard::new(at, 8192).expect("guard");
        // SAFETY: as above; the signal is sent to this thread, with what the kernel puts into one
        // that it sends: the number, the code, and the address behind them, aligned as a pointer.
        unsafe {
            at.write_volatile(7);
            let mut info = [0u64; 16];
            info[0] = libc::SIGBUS as u64;
            info[1] = libc::BUS_MCEERR_AO as u64;
            info[2] = at as u64;
            let sent = libc::syscall(
                libc::SYS_rt_tgsigqueueinfo,
                libc::getpid(),
                libc::gettid(),
                libc::SIGBUS,
                info.as_ptr(),
            );
            assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
            assert_eq!(at.read_volatile(), 7, "what was there is gone");
        }
        assert!(!guard.tripped());
    }
}
