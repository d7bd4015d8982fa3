//! The storage of `vlane serve`: an image, a device, or none, opened as the options want it.

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signalfd::SignalFd;
use vlane_engine::Engine;
use vlane_engine::file::{Cache, FileEngine, FileOptions, HandedFiles, JournalWay};
use vlane_engine::model::{DeviceQueues, ModelConfig};
use vlane_engine::null::NullEngine;

use super::experiments::DeviceQueuesArg;
use super::{CacheArg, DiscardArg, FormatArg, JournalArg, ServeArgs, waiting};

/// The storage that was opened.
pub(super) enum Opened {
    Null(Arc<NullEngine>),
    File(Arc<FileEngine>),
}

impl Opened {
    pub(super) fn file(&self) -> Option<Arc<FileEngine>> {
        match self {
            Opened::Null(_) => None,
            Opened::File(file) => Some(Arc::clone(file)),
        }
    }
}

/// The modelled device that is wanted.
pub(super) fn model(args: &ServeArgs) -> Option<ModelConfig> {
    let latency = args.experiments.latency.map(Duration::from_micros)?;
    let queues = match args.experiments.device_queues {
        DeviceQueuesArg::Shared => DeviceQueues::Shared,
        DeviceQueuesArg::RoundRobin => DeviceQueues::RoundRobin,
    };
    Some(ModelConfig { latency, parallelism: usize::from(args.experiments.parallel), queues })
}

/// Opens the storage to serve; `None` if a signal ended the wait for it.
pub(super) fn open(
    args: &ServeArgs,
    handed: Option<HandedFiles>,
    signals: &SignalFd,
) -> Result<Option<Opened>> {
    if let Some(size) = args.null {
        return Ok(Some(Opened::Null(null_device(args, size)?)));
    }
    let Some(path) = &args.image else { usage!("name an image, or give --null SIZE") };
    let cache = match args.cache {
        CacheArg::Auto => Cache::Auto,
        CacheArg::None => Cache::None,
        CacheArg::Writeback => Cache::Writeback,
        CacheArg::Writethrough => Cache::WriteThrough,
        CacheArg::Pdc => Cache::Pdc,
    };
    check(args, cache)?;
    let options = FileOptions {
        cache,
        read_only: args.read_only,
        raw: args.format == Some(FormatArg::Raw),
        discard: args.discard.into(),
        journal: match args.journal {
            Some(JournalArg::Direct) => JournalWay::Direct,
            Some(JournalArg::Drop) | None => JournalWay::Drop,
        },
        cache_budget: args.cache_budget,
        flush_delay: Duration::from_micros(args.experiments.delay_flush.unwrap_or(0)),
        danger_flush_journal_only: args.experiments.danger_flush_journal_only,
    };
    let engine = match handed {
        Some(files) => FileEngine::take_over(path, options, files)?,
        None => {
            let mut waiting = waiting::Waiting::new(path, signals, args.lock_timeout);
            let opened = FileEngine::open_patiently(path, options, &mut |leftover| {
                waiting.goes_on(leftover)
            });
            if opened.is_err() && waiting.was_ended() {
                return Ok(None);
            }
            let engine = opened?;
            waiting.over();
            engine
        }
    };
    if args.cache_budget.is_some() && engine.cache_budget().is_none() {
        tracing::warn!(
            "{}: lies in memory, where no page can be dropped: --cache-budget has no effect",
            path.display()
        );
    }
    if args.experiments.danger_flush_journal_only {
        tracing::warn!(
            "{}: a flush writes only the guest's journal to the device \
             (--danger-flush-journal-only): data that was flushed can be lost",
            path.display()
        );
    }
    Ok(Some(Opened::File(Arc::new(match &args.experiments.danger_record_storage {
        Some(to) => recorded(engine, to)?,
        None => engine,
    }))))
}

/// Refuses options that go with other cache modes.
fn check(args: &ServeArgs, cache: Cache) -> Result<()> {
    if args.journal.is_some() && cache != Cache::Pdc {
        usage!(
            "--journal says how --cache pdc keeps the guest's journal out of the page cache; give \
             --cache pdc with it"
        );
    }
    if args.experiments.danger_flush_journal_only && cache != Cache::Pdc {
        usage!(
            "--danger-flush-journal-only needs to know the guest's journal; give --cache pdc with \
             it"
        );
    }
    if args.cache_budget.is_some() && matches!(cache, Cache::Auto | Cache::None) {
        usage!(
            "--cache-budget bounds the volume's share of the page cache, which `--cache {}` may \
             not use; give --cache writeback, writethrough or pdc with it",
            if cache == Cache::None { "none" } else { "auto" }
        );
    }
    if args.cache_budget.is_some() && args.read_only {
        usage!(
            "--cache-budget drops data that the guest wrote, and --read-only refuses writes; leave \
             one of them out"
        );
    }
    Ok(())
}

/// Makes a device without media, for which options about data are refused.
fn null_device(args: &ServeArgs, size: u64) -> Result<Arc<NullEngine>> {
    if args.read_only {
        usage!("--read-only cannot be used with --null, which stores no data");
    }
    if args.discard != DiscardArg::On {
        usage!("--discard cannot be used with --null, which stores no data");
    }
    if args.cache_budget.is_some() {
        usage!("--cache-budget cannot be used with --null, which has no pages in the page cache");
    }
    if args.experiments.delay_flush.is_some() || args.experiments.danger_flush_journal_only {
        usage!(
            "--delay-flush and --danger-flush-journal-only cannot be used with --null, which \
             stores no data"
        );
    }
    Ok(Arc::new(NullEngine::modelled(size, model(args))?))
}

/// Has everything that reaches the storage written down.
fn recorded(engine: FileEngine, to: &Path) -> Result<FileEngine> {
    let name = to.display();
    // It has the guest's data in it.
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(to);
    let file = file.with_context(|| match to.exists() {
        true => format!(
            "{name}: is there already; remove it, or give --danger-record-storage another name"
        ),
        false => format!("{name}: cannot be created for the record of the storage's writes"),
    })?;
    tracing::warn!(
        "everything that reaches the storage is written to {name}, the guest's data included"
    );
    let file = std::io::BufWriter::with_capacity(1 << 20, file);
    engine.recorded(file).map_err(|error| anyhow::anyhow!("{name}: {error}"))
}
