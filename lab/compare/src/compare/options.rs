//! Options of the comparison.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use vlane::boot::AccelArg;
use vlane::values;
use vlane_report::stats;
use vlane_testbed::{Result, usage};
use vlane_units::parse_size;

use super::columns::Column;
use super::jobs::CacheState;
use super::loads::{self, Load};
use super::plan::Often;
use super::scratch;

/// Bounds of a measurement's time.
const TIME: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(600));

/// Options of the comparison
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Storage to measure, or the size of the scratch images
    ///
    /// A directory, an image, or a size such as 512M. Scratch images go into an image's directory;
    /// the image itself is neither read nor written. [default: the current directory, or another
    /// one on a disk]
    #[arg(value_name = "IMAGE|DIR|SIZE")]
    pub(super) target: Option<String>,
    /// Size of each scratch image
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub(super) size: Option<u64>,
    /// Directory for the scratch images
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,

    /// Measure everything once, in about three minutes, without conclusions
    #[arg(long, conflicts_with = "full")]
    pub(super) quick: bool,
    /// Measure everything five times, two seconds each, without a time limit
    #[arg(long)]
    pub(super) full: bool,
    /// Number of measurements [default: 2, and 5 where conclusions are drawn]
    #[arg(long = "repeat", alias = "repeats", value_name = "N",
        value_parser = values::whole::<usize>(1..=100))]
    pub(crate) repeats: Option<usize>,
    /// Duration of one measurement [default: 700ms]
    #[arg(long, value_name = "TIME", value_parser = values::time_between(TIME.0, TIME.1))]
    pub(super) time: Option<Duration>,
    /// Upper bound for the whole run [default: 9m; with --full none]
    ///
    /// Measurements without conclusions are repeated less first. Then all measurements become
    /// shorter.
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub(super) limit: Option<Duration>,
    /// Columns besides the host, as --list names them [default: all available]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_column)]
    pub(super) columns: Vec<Column>,
    /// Loads, or parts of their names, as --list names them [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_load)]
    pub(super) loads: Vec<String>,
    /// List the columns and the loads and exit
    #[arg(long)]
    pub list: bool,
    /// Page caches of host and guest
    #[arg(long, value_enum, default_value_t = CacheState::Direct)]
    pub(super) cache: CacheState,
    /// Leave out the back ends without a guest
    #[arg(long)]
    pub(super) no_native: bool,
    /// Leave out the counts of system calls (they need root)
    #[arg(long)]
    pub(super) no_count: bool,

    /// Only count the calls of QEMU's virtio-blk functions in a guest, 4K against 512K
    ///
    /// Moves the same bytes in small and in large requests. Takes about a minute.
    #[arg(long, conflicts_with_all = ["target", "size", "quick", "full", "time", "limit",
        "columns", "loads", "cache", "no_native", "no_count", "qemu"])]
    pub work: bool,

    /// QEMU program to use instead of the installed one
    #[arg(long, value_name = "PROGRAM")]
    pub(super) qemu: Option<PathBuf>,
    /// CPU of the guest
    #[arg(long, value_enum, default_value_t = AccelArg::Auto)]
    pub(crate) accel: AccelArg,
}

/// Parses the name of a column.
fn parse_column(text: &str) -> std::result::Result<Column, String> {
    values::one_of(text, "column", Column::value_variants().iter().map(|column| column.id()))?;
    Column::from_str(text, false)
}

/// Parses a part of the names of loads.
fn parse_load(text: &str) -> std::result::Result<String, String> {
    match !text.is_empty() && loads::all().iter().any(|load| load.id().contains(text)) {
        true => Ok(text.to_owned()),
        false => Err(format!("no load's name has `{text}` in it; --list names them")),
    }
}

impl Options {
    /// Directory and size that the target names.
    pub(super) fn target(&self) -> Result<(Option<PathBuf>, Option<u64>)> {
        let (dir, size) = (self.dir.clone(), self.size);
        let Some(text) = &self.target else { return Ok((dir, size)) };
        match parse_size(text) {
            // A file may be called 512M.
            _ if Path::new(text).exists() => match dir {
                Some(_) => usage(format!("--dir and {text} both say where")),
                None => Ok((Some(scratch::directory(Path::new(text))?), size)),
            },
            Ok(bytes) if size.is_none_or(|size| size == bytes) => Ok((dir, Some(bytes))),
            Ok(_) => usage(format!("{text} and --size say different sizes")),
            Err(_) => usage(format!(
                "{text}: neither a file or directory that is there, nor a size like 512M"
            )),
        }
    }

    /// True for a column that was asked for.
    pub(super) fn has(&self, column: Column) -> bool {
        column == Column::Host || self.columns.is_empty() || self.columns.contains(&column)
    }

    /// The loads whose names have one of the words in them.
    pub(super) fn loads(&self) -> Vec<Load> {
        let is_wanted = |load: &Load| self.loads.iter().any(|word| load.id().contains(word));
        loads::all().into_iter().filter(|load| self.loads.is_empty() || is_wanted(load)).collect()
    }

    /// The time of one measurement, its repetitions, the run's upper bound, and an image's bytes.
    pub(super) fn extent(&self) -> (Duration, Often, Option<Duration>, u64) {
        let ms = Duration::from_millis;
        let (passes, turns, runtime, limit, bytes) = match (self.quick, self.full) {
            (true, _) => (1, 1, ms(300), Some(ms(240_000)), 256 << 20),
            (_, true) => (5, 5, ms(2000), None, 1 << 30),
            _ => (2, stats::LEAST_PAIRS, ms(700), Some(ms(540_000)), 512 << 20),
        };
        let often = |usual| self.repeats.unwrap_or(usual);
        let often = Often { passes: often(passes), turns: often(turns) };
        (self.time.unwrap_or(runtime), often, self.limit.or(limit), bytes)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Only {
        #[command(flatten)]
        args: Options,
    }

    fn parse(words: &[&str]) -> Options {
        Only::try_parse_from(["vlane"].iter().chain(words)).unwrap().args
    }

    #[test]
    fn target_is_size_directory_or_image() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("disk.raw");
        std::fs::write(&image, "").unwrap();
        let at = |target: &str| parse(&[target]).target().unwrap();
        assert_eq!(at("256M"), (None, Some(256 << 20)));
        assert_eq!(at(dir.path().to_str().unwrap()), (Some(dir.path().into()), None));
        assert_eq!(at(image.to_str().unwrap()), (Some(dir.path().into()), None));
        assert!(parse(&["/nowhere/at/all"]).target().is_err());
        let twice = parse(&[image.to_str().unwrap(), "--dir", "/tmp"]);
        assert!(twice.target().unwrap_err().to_string().contains("--dir"));
        assert!(parse(&["256M", "--size", "512M"]).target().is_err());
    }

    #[test]
    fn unknown_columns_and_loads_are_refused() {
        let columns = |words: &[&str]| {
            let (options, all) = (parse(words), Column::value_variants().iter());
            all.copied().filter(|one| options.has(*one)).collect::<Vec<_>>()
        };
        assert_eq!(
            columns(&["--columns", "ide,vlane"]),
            [Column::Host, Column::Vlane, Column::Ide]
        );
        assert_eq!(columns(&[]), Column::value_variants());
        let loads = |words: &[&str]| parse(words).loads().len();
        assert_eq!(loads(&["--loads", "fio"]), 6);
        assert_eq!(loads(&["--loads", "fio-random-read-4k"]), 1);
        assert_eq!(loads(&[]), 24);
        for words in [["--columns", "floppy"], ["--loads", "8k"]] {
            assert!(Only::try_parse_from(["vlane"].iter().chain(&words)).is_err(), "{words:?}");
        }
    }

    #[test]
    fn run_lengths_differ_and_yield_to_options() {
        let often = |words: &[&str]| {
            let (_, often, ..) = parse(words).extent();
            (often.passes, often.turns)
        };
        assert_eq!((often(&["--quick"]), often(&[]), often(&["--full"])), ((1, 1), (2, 5), (5, 5)));
        let limit = |words: &[&str]| parse(words).extent().2;
        assert!(limit(&[]).unwrap() < Duration::from_secs(600) && limit(&["--full"]).is_none());
        assert_eq!(often(&["--quick", "--repeat", "3", "--time", "1s"]), (3, 3));
        assert!(Only::try_parse_from(["vlane", "--quick", "--full"]).is_err());
        assert!(Only::try_parse_from(["vlane", "--time", "1ms"]).is_err());
    }
}
