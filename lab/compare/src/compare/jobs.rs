//! The job files of fio that host and guest run.

use std::time::Duration;

use clap::ValueEnum;
use vlane_testbed::{ErrorKind, Fail, Result};
use vlane_units::show_size;

use super::loads::{Load, Pattern};

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

/// The smallest image: its file system must hold both files, and each of them several of the
/// largest records.
pub const LEAST: u64 = 128 << 20;

/// Sizes of the files of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Of an image, in bytes.
    pub image: u64,
    /// Of the file in it that reads and rewrites go to.
    pub old: u64,
    /// The most of the file that "write" makes.
    pub new: u64,
}

impl Sizes {
    /// The files that an image of so many bytes has room for: half of it, and a quarter.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] below [`LEAST`].
    pub fn of(image: u64) -> Result<Self> {
        if image < LEAST {
            return ErrorKind::Invalid.fail(format!(
                "images of {} are too small; {} are the least",
                show_size(image),
                show_size(LEAST)
            ));
        }
        // Whole largest records.
        let whole = |bytes: u64| bytes >> 24 << 24;
        Ok(Self { image: image >> 20 << 20, old: whole(image / 2), new: whole(image / 4) })
    }

    /// Room that `images` images, what they are made from, and the host's files need.
    pub fn needed(&self, images: usize) -> u64 {
        let images = u64::try_from(images).unwrap_or(u64::MAX).saturating_add(1);
        self.image.saturating_mul(images).saturating_add(self.old).saturating_add(self.new)
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
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn settings(cache: CacheState) -> Settings {
        let sizes = Sizes::of(LEAST).unwrap();
        Settings { runtime: Duration::from_millis(700), sizes, cache }
    }

    #[test]
    fn image_fits_both_files_in_records() {
        for image in [LEAST, 200 << 20, 512 << 20, 1 << 40] {
            let sizes = Sizes::of(image).unwrap();
            assert!(sizes.old >= 64 << 20 && sizes.new >= 32 << 20);
            assert!(sizes.old.is_multiple_of(16 << 20) && sizes.new.is_multiple_of(16 << 20));
            // A tenth and more for the file system itself.
            assert!(sizes.old + sizes.new <= image * 9 / 10);
            assert!(sizes.needed(6) >= 7 * sizes.image + sizes.old + sizes.new);
        }
        assert_eq!(Sizes::of(LEAST - 1).unwrap_err().kind(), ErrorKind::Invalid);
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
