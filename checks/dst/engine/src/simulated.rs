//! A volume for the deterministic simulator (checks/dst): the result of [`super::open`], made from
//! the simulator's settings.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use vlane_ring::SECTOR;

use super::exclusion::Exclusion;
use super::flushes::{Flushes, Syncer};
use super::inline::Pace;
use super::transfer::Align;
use super::{Cache, FileEngine, Shared, durability, kernel_lock, ranges, sync_thread, transfer};
use crate::Writeback;
use vlane_io::StorageFile;
use vlane_io::system;

/// The properties of the image. The files are descriptors for the simulated kernel, which never
/// reads or writes them.
#[derive(Debug)]
pub struct Simulated {
    /// [`Cache::None`], [`Cache::Writeback`] or [`Cache::WriteThrough`].
    pub cache: Cache,
    /// The file for direct I/O, with [`Cache::None`].
    pub direct: Option<File>,
    /// The file through the page cache.
    pub buffered: File,
    /// The witness of losses.
    pub witness: File,
    /// Bytes that direct I/O moves at least, and is aligned to.
    pub block: u64,
    /// The alignment of its buffers.
    pub memory: usize,
    /// Size in sectors.
    pub sectors: u64,
    /// It is a device.
    pub is_device: bool,
    /// Bytes of a range that are punched, zeroed and written at a time: powers of two.
    pub pieces: [u64; 3],
    /// Discards and zeroings that a channel has under way.
    pub turns: [usize; 2],
}

impl FileEngine {
    /// A volume in the simulated kernel.
    pub fn simulated(of: Simulated) -> FileEngine {
        let Simulated { cache, direct, buffered, witness, block, memory, sectors, .. } = of;
        let [punched, zeroed, written] = of.pieces;
        let align = if direct.is_some() { Align { block, memory } } else { Align::NONE };
        let shared = Shared {
            path: PathBuf::from("simulated"),
            files: direct.into_iter().chain([buffered]).map(StorageFile::new).collect(),
            exclusion: (align.block > SECTOR).then(|| Exclusion::new(align.block)),
            has_warned: AtomicBool::new(false),
            unknown_ways: AtomicU8::new(0),
            discarder: Arc::default(),
            pieces: ranges::Pieces { punched, zeroed, written },
            turns: Some(of.turns),
            durability: Arc::new(durability::Durability::new(Some(witness))),
            placements: None,
            flushes: Flushes::new(),
            kernel_lock: kernel_lock::KernelLock::default(),
            pace: Pace::new(),
            cache,
            sectors: AtomicU64::new(sectors),
            block_size: 512,
            physical_exponent: 3,
            align,
            read_only: false,
            is_device: of.is_device,
            can_discard: true,
            discard: super::Discard::On,
            can_zero: true,
            map: None,
            journal: None,
            budget: None,
            early: std::sync::OnceLock::new(),
            flush_delay: Duration::ZERO,
            danger_flush_journal_only: false,
            recorder: None,
        };
        FileEngine::new(shared)
    }

    /// The thread that does its `fdatasync`s. There must be only one.
    pub fn simulated_syncs(&self) -> SimulatedSyncs {
        let syncer = Syncer::new(&self.shared.flushes);
        SimulatedSyncs { shared: Arc::clone(&self.shared), syncer, under_way: None }
    }

    /// The image has another size: as [`FileEngine::refresh`].
    pub fn set_sectors(&self, sectors: u64) {
        self.shared.sectors.store(sectors, Ordering::Relaxed);
    }
}

/// The thread that does a volume's `fdatasync`s, in steps.
#[derive(Debug)]
pub struct SimulatedSyncs {
    shared: Arc<Shared>,
    syncer: Syncer,
    /// The reason for the sync, its number, and how often it was begun before.
    under_way: Option<(Writeback, u64, u32)>,
}

impl SimulatedSyncs {
    /// Begins one, or reports its end; returns true if there was work.
    pub fn step(&mut self) -> bool {
        let begin = |asks, times| Some((asks, system::sync(self.shared.file().as_raw_fd()), times));
        let Some((asks, number, times)) = self.under_way else {
            self.under_way = self.syncer.try_next().and_then(|asks| begin(asks, 0));
            return self.under_way.is_some();
        };
        let Some(result) = system::synced(number) else { return false };
        let errno = result.saturating_neg();
        if transfer::is_momentary(errno) && times < transfer::MAX_RETRIES {
            self.under_way = begin(asks, times + 1);
            return true;
        }
        self.under_way = None;
        self.syncer.ended(sync_thread::settle(&self.shared, asks, errno));
        true
    }
}

impl Drop for SimulatedSyncs {
    fn drop(&mut self) {
        // Its end is not reported.
        if let Some((_, number, _)) = self.under_way {
            system::finish(number, -libc::ECANCELED);
        }
    }
}
