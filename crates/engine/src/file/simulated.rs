//! A volume for the deterministic simulator (crates/dst): what [`super::open`] makes of an image, made of what the simulator says.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use vlane_ring::SECTOR;

use super::exclusion::Exclusion;
use super::flushes::Flushes;
use super::transfer::Align;
use super::{Cache, FileEngine, Shared, discard, durability};
use crate::operation::StorageFile;

/// What the image is like. The files are descriptors for the simulated kernel, which never reads or writes them.
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
    /// What its buffers are aligned to.
    pub memory: usize,
    /// Size in sectors.
    pub sectors: u64,
}

impl FileEngine {
    /// A volume in the simulated kernel.
    pub fn simulated(of: Simulated) -> FileEngine {
        let Simulated { cache, direct, buffered, witness, block, memory, sectors } = of;
        let align = if direct.is_some() { Align { block, memory } } else { Align::NONE };
        let shared = Shared {
            path: PathBuf::from("simulated"),
            files: direct.into_iter().chain([buffered]).map(StorageFile::new).collect(),
            exclusion: (align.block > SECTOR).then(|| Exclusion::new(align.block)),
            has_warned: AtomicBool::new(false),
            unknown_ways: AtomicU8::new(0),
            discarder: discard::Discarder::default(),
            durability: Arc::new(durability::Durability::new(Some(witness))),
            placements: None,
            flushes: Flushes::new(),
            cache,
            sectors: AtomicU64::new(sectors),
            block_size: 512,
            physical_exponent: 3,
            align,
            read_only: false,
            is_device: false,
            can_discard: true,
            discard: super::Discard::On,
            map: None,
            journal: None,
            flush_delay: Duration::ZERO,
            danger_flush_journal_only: false,
            recorder: None,
        };
        FileEngine { shared: Arc::new(shared) }
    }

    /// The image has another size: as [`FileEngine::refresh`].
    pub fn set_sectors(&self, sectors: u64) {
        self.shared.sectors.store(sectors, Ordering::Relaxed);
    }
}
