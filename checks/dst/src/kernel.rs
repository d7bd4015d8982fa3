//! The model of the kernel: how it does operations, in which order, sector by sector, and their
//! faults.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use vlane_io::system::{self, Call, CallKind, Storage};

use crate::bug::Bug;
use crate::disk::{Disk, SECTOR, Version, ZERO, contents, version_of};
use crate::log::Log;

/// The rates of faults, of a thousand operations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    /// Reads and writes that fail for good, having done some of what they were to do.
    pub(crate) fails: u32,
    /// Reads and writes that move less than they were asked to.
    pub(crate) short: u32,
    /// Refused for the moment.
    pub(crate) momentary: u32,
    /// Syncs that find that data cannot be written back.
    pub(crate) writeback: u32,
    /// Writes to the page cache that take longer than they should.
    pub(crate) slow: u32,
    /// Writes to the page cache can be asked not to wait.
    pub(crate) refuses_to_wait: bool,
}

/// The files and their requirements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Files {
    pub(crate) direct: Option<RawFd>,
    pub(crate) buffered: RawFd,
    pub(crate) witness: RawFd,
    pub(crate) block: u64,
    pub(crate) memory: u64,
}

/// The fate of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Whole,
    /// This number of sectors.
    Short(u64),
    /// Some sectors, and an error.
    Fails(i32),
    /// An error at once.
    Refused(i32),
}

/// An operation's progress.
#[derive(Debug)]
struct Progress {
    fate: Fate,
    /// Sectors of its extent that are to be moved.
    left: Vec<u64>,
    /// For a sync, and for a durable write: what was written before it began; after it, with its
    /// own.
    covers: u64,
}

/// The remainder of an operation at the device whose process died.
#[derive(Debug)]
struct Orphan {
    /// Sectors, and what is to be written there.
    left: Vec<(u64, Version)>,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) disk: Disk,
    pub(crate) files: Files,
    pub(crate) faults: Faults,
    pub(crate) bug: Option<Bug>,
    /// A slow operation: it makes no progress. A planted bug may stop all others, too.
    pub(crate) held: Option<u64>,
    /// System calls until the process dies.
    pub(crate) dies_after: Option<u32>,
    /// Faults so far that requests may fail of.
    pub(crate) failures: u64,
    progress: BTreeMap<u64, Progress>,
    orphans: Vec<Orphan>,
    /// Writes that a planted bug will do again.
    stale: Vec<(u64, Version)>,
    rng: Rng,
    log: Log,
}

/// The system's end of it.
#[derive(Debug)]
pub(crate) struct Handle(pub(crate) Rc<RefCell<Kernel>>);

impl Storage for Handle {
    fn write(&mut self, _fd: RawFd, offset: u64, bytes: &[u8], nowait: bool) -> Result<usize, i32> {
        self.0.borrow_mut().write_now(offset, bytes, nowait)
    }

    fn look(&mut self, fd: RawFd) -> Result<(), i32> {
        let mut kernel = self.0.borrow_mut();
        let hides = kernel.bug == Some(Bug::HiddenLoss);
        if kernel.disk.tell(fd) && !hides { Err(libc::EIO) } else { Ok(()) }
    }

    fn dies(&mut self) -> bool {
        let mut kernel = self.0.borrow_mut();
        match &mut kernel.dies_after {
            None => false,
            Some(0) => true,
            Some(calls) => {
                *calls -= 1;
                false
            }
        }
    }
}

impl Kernel {
    pub(crate) fn new(
        disk: Disk,
        files: Files,
        faults: Faults,
        bug: Option<Bug>,
        rng: Rng,
        log: Log,
    ) -> Kernel {
        Kernel {
            disk,
            files,
            faults,
            bug,
            held: None,
            dies_after: None,
            failures: 0,
            progress: BTreeMap::new(),
            orphans: Vec::new(),
            stale: Vec::new(),
            rng,
            log,
        }
    }

    /// The files are opened.
    pub(crate) fn open(&mut self) {
        let Files { direct, buffered, witness, .. } = self.files;
        direct.into_iter().chain([buffered, witness]).for_each(|fd| self.disk.open(fd));
    }

    fn happens(&mut self, permille: u32) -> bool {
        permille > 0 && self.rng.u32(0..1000) < permille
    }

    /// Returns true if an operation is in progress.
    pub(crate) fn is_busy(&self) -> bool {
        let has_operation = match self.held {
            None => system::newest().is_some(),
            Some(_) => self.goes_on().next().is_some(),
        };
        !self.orphans.is_empty() || has_operation
    }

    /// The operations that are not held.
    fn goes_on(&self) -> impl Iterator<Item = (u64, Call)> {
        let (held, stops_all) = (self.held, self.bug == Some(Bug::SlowForAll));
        let goes_on = move |number| held.is_none_or(|held| held != number && !stops_all);
        system::operations().into_iter().filter(move |(number, _)| goes_on(*number))
    }

    /// Some pages cannot be written back.
    fn fail_writeback(&mut self, permille: u32) {
        if self.happens(permille) && self.disk.lose(&mut self.rng) {
            self.failures += 1;
            self.log.say(&[25], || "kernel: a writeback fails".to_owned());
        }
    }

    /// Does a part of one of the operations that are under way, or ends it.
    pub(crate) fn step(&mut self) {
        // The kernel writes back when it likes.
        self.fail_writeback(self.faults.writeback / 8);
        let operations: Vec<_> = self.goes_on().collect();
        let at = self.rng.usize(0..(operations.len() + self.orphans.len()).max(1));
        match operations.get(at) {
            Some((number, call)) => self.work(*number, call),
            None => self.orphan(at - operations.len()),
        }
        if !self.stale.is_empty() && self.rng.u32(0..20) == 0 {
            let (sector, version) = self.stale.swap_remove(0);
            self.log.say(&[20, sector, version], || {
                format!("kernel: sector {sector} is {version} again (planted)")
            });
            self.disk.write(sector, version);
        }
    }

    fn fate(&mut self, call: &Call) -> Fate {
        let sectors = call.len / SECTOR as u64;
        let unit =
            if Some(call.fd) == self.files.direct { self.files.block / SECTOR as u64 } else { 1 };
        let is_transfer = matches!(call.what, CallKind::Read | CallKind::Write);
        // An operation that a worker does waits for its needs.
        let may_be_refused = !call.patient || self.rng.u32(0..4) == 0;
        if may_be_refused && self.happens(self.faults.momentary) {
            let errno = [libc::EAGAIN, libc::EINTR, libc::EBUSY][self.rng.usize(0..3)];
            return Fate::Refused(errno);
        }
        if is_transfer && sectors > unit && self.happens(self.faults.short) {
            return Fate::Short(unit * self.rng.u64(1..sectors.div_ceil(unit)));
        }
        if matches!(call.what, CallKind::Clear | CallKind::Discard)
            && self.happens(self.faults.momentary)
        {
            return Fate::Refused(libc::EOPNOTSUPP);
        }
        if call.what != CallKind::Sync && self.happens(self.faults.fails) {
            let errnos = if call.what == CallKind::Read {
                &[libc::EIO][..]
            } else {
                &[libc::EIO, libc::ENOSPC]
            };
            return Fate::Fails(errnos[self.rng.usize(0..errnos.len())]);
        }
        Fate::Whole
    }

    /// Returns true if direct I/O refuses it.
    fn is_misaligned(&self, call: &Call) -> bool {
        let Files { direct, block, memory, .. } = self.files;
        let is_transfer = matches!(call.what, CallKind::Read | CallKind::Write);
        is_transfer
            && Some(call.fd) == direct
            && ((call.offset | call.lengths) & (block - 1) != 0
                || call.addresses & (memory - 1) != 0)
    }

    fn begin(&mut self, number: u64, call: &Call) {
        let first = call.offset / SECTOR as u64;
        let mut fate = self.fate(call);
        if self.is_misaligned(call) {
            fate = Fate::Refused(libc::EINVAL);
        }
        let asked = if call.what == CallKind::Sync { 0 } else { call.len / SECTOR as u64 };
        let there =
            if call.what == CallKind::Read { self.disk.size.saturating_sub(first) } else { asked };
        let count = match fate {
            Fate::Whole | Fate::Fails(_) => asked.min(there),
            Fate::Short(count) => count.min(there),
            Fate::Refused(_) => 0,
        };
        let mut left: Vec<u64> = (0..count).collect();
        self.rng.shuffle(&mut left);
        if let Fate::Fails(_) = fate {
            left.truncate(self.rng.usize(0..=left.len()));
        }
        self.failures += u64::from(matches!(fate, Fate::Fails(_)));
        if fate != Fate::Whole {
            self.log.say(&[21, number], || format!("kernel: operation {number} is to be {fate:?}"));
        }
        let covers = self.disk.now();
        self.progress.insert(number, Progress { fate, left, covers });
    }

    fn work(&mut self, number: u64, call: &Call) {
        if !self.progress.contains_key(&number) {
            self.begin(number, call);
            let Call { what, fd, offset, len, durable, .. } = *call;
            let is_direct = Some(fd) == self.files.direct;
            self.log.say(&[22, number, offset, len], || {
                let (way, how) =
                    (if is_direct { "direct " } else { "" }, if durable { " durably" } else { "" });
                format!(
                    "kernel: {number} begins: {way}{what:?} {}+{}{how}",
                    offset / 512,
                    len / 512
                )
            });
            if what == CallKind::Sync {
                return;
            }
        }
        let Some(progress) = self.progress.get_mut(&number) else { return };
        if progress.left.is_empty() {
            return self.end(number, call);
        }
        let most = progress.left.len();
        let count = if self.rng.u32(0..4) > 0 { most } else { self.rng.usize(1..=most) };
        let part = progress.left.split_off(most - count);
        for index in &part {
            self.touch(number, call, *index);
        }
        let now = self.disk.now();
        let Some(progress) = self.progress.get_mut(&number) else { return };
        progress.covers = now;
        self.log
            .say(&[23, number, part.len() as u64], || format!("kernel: {number} moves {part:?}"));
        if progress.left.is_empty() && self.rng.bool() {
            self.end(number, call);
        }
    }

    /// Moves one of an operation's sectors.
    fn touch(&mut self, number: u64, call: &Call, index: u64) {
        let sector = call.offset / SECTOR as u64 + index;
        let at = index * SECTOR as u64;
        match call.what {
            CallKind::Read => system::store(number, at, &contents(sector, self.disk.read(sector))),
            CallKind::Write => {
                let mut bytes = [0; SECTOR];
                system::load(number, at, &mut bytes);
                self.put(sector, &bytes);
            }
            CallKind::Clear => self.disk.write(sector, ZERO),
            CallKind::Discard if self.rng.bool() => self.disk.write(sector, ZERO),
            CallKind::Discard | CallKind::Sync => {}
        }
    }

    fn put(&mut self, sector: u64, bytes: &[u8]) {
        match version_of(sector, bytes) {
            Some(version) if sector < self.disk.most() => {
                self.disk.write(sector, version);
                if self.bug == Some(Bug::StaleWrite) && self.rng.u32(0..50) == 0 {
                    self.stale.push((sector, version));
                }
            }
            Some(_) => {
                self.log.fail(|| format!("a write of sector {sector}, which is beyond the image"))
            }
            None => self.log.fail(|| {
                format!("a write of sector {sector} with contents that nobody wrote there")
            }),
        }
    }

    fn end(&mut self, number: u64, call: &Call) {
        let Some(Progress { fate, covers, .. }) = self.progress.remove(&number) else { return };
        let first = call.offset / SECTOR as u64;
        let there = match call.what {
            CallKind::Read => (self.disk.size.saturating_sub(first) * SECTOR as u64).min(call.len),
            _ => call.len,
        };
        let moved = i32::try_from(there).unwrap_or(i32::MAX);
        let mut result = match (call.what, fate) {
            (_, Fate::Refused(errno) | Fate::Fails(errno)) => -errno,
            (CallKind::Sync, _) => self.sync(call.fd, covers),
            (CallKind::Clear | CallKind::Discard, _) => 0,
            (_, Fate::Short(count)) => {
                moved.min(i32::try_from(count * SECTOR as u64).unwrap_or(i32::MAX))
            }
            (_, Fate::Whole) => moved,
        };
        if call.durable && result > 0 {
            let sectors = first..first + call.len / SECTOR as u64;
            if self.bug != Some(Bug::ForgottenDurability) {
                self.disk.settle(sectors, covers);
            }
            if Some(call.fd) != self.files.direct && self.disk.tell(call.fd) {
                result = -libc::EIO;
            }
        }
        self.log.say(&[24, number, u64::from(result.cast_unsigned())], || {
            format!("kernel: {number} ends: {result}")
        });
        if self.bug == Some(Bug::TornSector)
            && call.what == CallKind::Write
            && result > 0
            && self.rng.u32(0..20) == 0
        {
            self.disk.write(first, Version::MAX);
        }
        match self.bug {
            Some(Bug::LostCompletion) if self.rng.u32(0..50) == 0 => system::forget(number),
            _ => system::finish(number, result),
        }
    }

    /// The end of an `fdatasync` that covers what was written before a moment.
    fn sync(&mut self, fd: RawFd, covers: u64) -> i32 {
        if self.bug == Some(Bug::SwallowedSync) {
            return 0;
        }
        self.fail_writeback(self.faults.writeback);
        let most = self.disk.most();
        self.disk.settle(0..most, covers);
        let hides = self.bug == Some(Bug::HiddenLoss);
        if self.disk.tell(fd) && !hides { -libc::EIO } else { 0 }
    }

    /// A write through the page cache, at once.
    fn write_now(&mut self, offset: u64, bytes: &[u8], nowait: bool) -> Result<usize, i32> {
        let first = offset / SECTOR as u64;
        if nowait && !self.faults.refuses_to_wait {
            return Err(libc::EOPNOTSUPP);
        }
        if self.happens(self.faults.slow) {
            if nowait {
                return Err(libc::EAGAIN);
            }
            let most = if self.rng.u32(0..4) == 0 { 50_000 } else { 900 };
            system::pass(Duration::from_micros(self.rng.u64(400..most)));
        }
        if self.happens(self.faults.momentary) {
            return Err([libc::EAGAIN, libc::EINTR, libc::ENOSPC][self.rng.usize(0..3)]);
        }
        let sectors = bytes.len() / SECTOR;
        let is_short = sectors > 1 && self.happens(self.faults.short);
        let count = if is_short { self.rng.usize(1..sectors) } else { sectors };
        for (sector, bytes) in (first..).zip(bytes.chunks(SECTOR)).take(count) {
            self.put(sector, bytes);
        }
        self.log.say(&[26, first, count as u64], || {
            format!("kernel: pwritev {first}+{count} of {sectors}")
        });
        Ok(count * SECTOR)
    }

    /// The process is dead. Operations at the device may still be done.
    pub(crate) fn bury(&mut self) {
        for (number, call) in system::operations() {
            let progress = self.progress.remove(&number);
            if matches!(call.what, CallKind::Write | CallKind::Clear | CallKind::Discard) {
                let first = call.offset / SECTOR as u64;
                let left = match progress {
                    Some(progress) => progress.left,
                    None if self.is_misaligned(&call) => Vec::new(),
                    None => (0..call.len / SECTOR as u64).collect(),
                };
                let mut orphan = Vec::new();
                for index in left {
                    let mut bytes = [0; SECTOR];
                    system::load(number, index * SECTOR as u64, &mut bytes);
                    match version_of(first + index, &bytes) {
                        _ if call.what != CallKind::Write => orphan.push((first + index, ZERO)),
                        Some(version) => orphan.push((first + index, version)),
                        None => self.log.fail(|| {
                            format!("a write of sector {} with other contents", first + index)
                        }),
                    }
                }
                if !orphan.is_empty() {
                    self.orphans.push(Orphan { left: orphan });
                }
            }
            system::finish(number, -libc::ECANCELED);
        }
        self.progress.clear();
    }

    fn orphan(&mut self, at: usize) {
        if at >= self.orphans.len() {
            return;
        }
        let Orphan { left } = &mut self.orphans[at];
        let Some((sector, version)) = left.pop() else {
            self.orphans.swap_remove(at);
            return;
        };
        self.log.say(&[27, sector, version], || {
            format!("device: sector {sector} is {version}, of one who died")
        });
        self.disk.write(sector, version);
    }

    /// Drops the operations of a dead process that the device has not done.
    pub(crate) fn reap_orphans(&mut self) {
        while !self.orphans.is_empty() && self.rng.bool() {
            let at = self.rng.usize(0..self.orphans.len());
            self.orphan(at);
        }
        self.orphans.clear();
    }

    /// The power fails.
    pub(crate) fn cut(&mut self) {
        self.orphans.clear();
        self.stale.clear();
        let Kernel { disk, rng, .. } = self;
        disk.cut(rng);
    }
}
