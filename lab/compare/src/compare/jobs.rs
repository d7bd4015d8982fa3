//! The job files of fio that host and guest run.

use std::time::Duration;

use clap::ValueEnum;

use super::loads::{Load, Pattern};
use super::scratch::Sizes;

/// Which page caches take part. Host and guest are treated alike, and a comparison has one state
/// for all of its figures. The descriptions are for users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CacheState {
    /// Not used: direct I/O everywhere
    Direct,
    /// Used and filled: reads measure memory
    Warm,
    /// Used, and emptied before each measurement (root; empties the cache of the whole host)
    Cold,
}

impl CacheState {
    /// In a sentence.
    pub fn about(self) -> &'static str {
        match self {
            Self::Direct => {
                "Page caches: none. Direct I/O (O_DIRECT) on the host, in the guest, and by every \
                 back end."
            }
            Self::Warm => {
                "Page caches: warm. Buffered I/O on the host, in the guest, and by every back end; \
                 the file was read whole before each measurement, so reads measure memory, not the \
                 disk. Writes end with a flush."
            }
            Self::Cold => {
                "Page caches: cold. Buffered I/O on the host, in the guest, and by every back end; \
                 the caches of host and guest were written out and dropped before each \
                 measurement. Writes end with a flush."
            }
        }
    }

    /// For headings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Warm => "buffered, warm",
            Self::Cold => "buffered, cold",
        }
    }
}

/// How jobs are run, in host and guest alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Time of one measurement.
    pub runtime: Duration,
    /// Sizes of the files.
    pub sizes: Sizes,
    /// The page caches.
    pub cache: CacheState,
}

/// The file that reads and rewrites go to.
pub const OLD: &str = "old";
/// The file that "write" makes, and removes.
pub const NEW: &str = "new";

/// Settings that all jobs of a load share.
pub fn global(load: &Load, settings: &Settings) -> String {
    let engine = if load.is_fio() { "libaio" } else { "psync" };
    let direct = u8::from(settings.cache == CacheState::Direct);
    // fio by default drops a buffered file's pages before it begins.
    let invalidate = u8::from(settings.cache != CacheState::Warm);
    let mut text = format!(
        "[global]\nthread=1\nioengine={engine}\niodepth={}\ndirect={direct}\nrw={}\nbs={}k\n\
         fallocate=none\nnorandommap=1\nclat_percentiles=0\nlat_percentiles=1\ndisk_util=0\n\
         invalidate={invalidate}\nruntime={}ms\n",
        load.depth,
        load.pattern.fio(),
        load.record_kib,
        settings.runtime.as_millis(),
    );
    if load.jobs > 1 {
        text += &format!("numjobs={}\ngroup_reporting=1\n", load.jobs);
    }
    if load.pattern == Pattern::Write {
        // A second round would find the blocks there.
        text += &format!("size={}\nunlink=1\n", settings.sizes.new);
    } else {
        text += &format!("size={}\ntime_based=1\n", settings.sizes.old);
    }
    let flushes = !load.is_fio() || settings.cache != CacheState::Direct;
    if load.pattern.writes() && flushes {
        text += "end_fsync=1\n";
    }
    text
}

/// A job that begins when the one before it is done: on a file in `directory`, with commands that
/// run before and after it.
pub fn section(name: &str, load: &Load, directory: &str, commands: Option<(&str, &str)>) -> String {
    let file = if load.pattern == Pattern::Write { NEW } else { OLD };
    let mut text = format!("[{name}]\nstonewall\nfilename={directory}/{file}\n");
    if let Some((before, after)) = commands {
        text += &format!("exec_prerun={before}\nexec_postrun={after}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(cache: CacheState) -> Settings {
        let sizes = Sizes { image: 128 << 20, old: 64 << 20, new: 32 << 20 };
        Settings { runtime: Duration::from_millis(700), sizes, cache }
    }

    #[test]
    fn jobs_never_mix_cache_states() {
        for load in crate::compare::loads::all() {
            for (cache, direct, invalidate) in
                [(CacheState::Direct, 1, 1), (CacheState::Warm, 0, 0), (CacheState::Cold, 0, 1)]
            {
                let text = global(&load, &settings(cache));
                assert!(text.contains(&format!("\ndirect={direct}\n")), "{text}");
                assert!(text.contains(&format!("\ninvalidate={invalidate}\n")), "{text}");
                // Buffered data have been written when the measurement ends.
                let flushed = text.contains("end_fsync=1");
                assert!(flushed || !load.pattern.writes() || cache == CacheState::Direct, "{text}");
                assert!(!flushed || load.pattern.writes(), "{text}");
            }
        }
    }

    #[test]
    fn only_first_write_creates_its_file() {
        for load in crate::compare::loads::all() {
            let text =
                global(&load, &settings(CacheState::Direct)) + &section("x", &load, "/mnt/x", None);
            let first = load.pattern == Pattern::Write;
            assert_eq!(text.contains("unlink=1") && text.contains("filename=/mnt/x/new\n"), first);
            assert_eq!(
                text.contains("time_based=1") && text.contains("filename=/mnt/x/old\n"),
                !first
            );
        }
    }
}
