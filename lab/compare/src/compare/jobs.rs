//! The job files of fio that host and guest run.

use serde::{Deserialize, Serialize};

use super::loads::{Load, Pattern, Suite};

/// Which page caches take part. Host and guest are treated alike, and a comparison has one state
/// for all of its figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheState {
    /// None: direct I/O in the guest and on the host, and by the back ends.
    Direct,
    /// Both, and the file was read before each measurement.
    Warm,
    /// Both, and they were emptied before each measurement.
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
    /// Time of one measurement in ms.
    pub runtime_ms: u64,
    /// Bytes of the file that reads and rewrites go to.
    pub old_bytes: u64,
    /// Most bytes of the file that "write" makes.
    pub new_bytes: u64,
    /// The page caches.
    pub cache: CacheState,
}

/// The file that reads and rewrites go to.
pub const OLD: &str = "old";
/// The file that "write" makes, and removes.
pub const NEW: &str = "new";

/// Settings that all jobs of a load share.
pub fn global(load: &Load, settings: &Settings) -> String {
    let engine = match load.suite {
        Suite::Iozone => "psync",
        Suite::Fio => "libaio",
    };
    let direct = u8::from(settings.cache == CacheState::Direct);
    let mut text = format!(
        "[global]\nthread=1\nioengine={engine}\niodepth={}\ndirect={direct}\nrw={}\nbs={}k\n\
         fallocate=none\nnorandommap=1\nclat_percentiles=0\nlat_percentiles=1\ndisk_util=0\n",
        load.depth,
        load.pattern.fio(),
        load.record_kib,
    );
    // fio by default drops a buffered file's pages before it begins.
    text += &format!("invalidate={}\n", u8::from(settings.cache != CacheState::Warm));
    text += &format!("runtime={}ms\n", settings.runtime_ms);
    if load.pattern == Pattern::Write {
        // A second round would find the blocks there.
        text += &format!("size={}\nunlink=1\n", settings.new_bytes);
    } else {
        text += &format!("size={}\ntime_based=1\n", settings.old_bytes);
    }
    let flushes = load.suite == Suite::Iozone || settings.cache != CacheState::Direct;
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
        Settings { runtime_ms: 700, old_bytes: 64 << 20, new_bytes: 32 << 20, cache }
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
