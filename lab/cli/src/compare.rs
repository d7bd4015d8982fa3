//! `vlane-lab compare host`: host, virtio and emulated disks side by side, on the user's own
//! machine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use vlane::boot::AccelArg;
use vlane_compare::compare::columns::Column;
use vlane_compare::compare::jobs::CacheState;
use vlane_compare::compare::loads::{self, Load};
use vlane_compare::compare::plan::Often;
use vlane_compare::compare::{self, Found, Options, scratch};
use vlane_compare::work;
use vlane_guest::{Host, Install};
use vlane_report::{stats, text};
use vlane_testbed::Interrupt;
use vlane_units::parse_size;

use crate::output::{OutputArgs, Overwrite, command_line, width};
use crate::values;

/// Compare disks: the host, vlane, virtio-blk, qemu-storage-daemon, emulated
///
/// Needs QEMU, fio, busybox, mkfs.ext4, and space for one scratch image per guest disk. Needs no
/// root. Takes less than ten minutes.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Storage to measure, or the size of the scratch images
    ///
    /// A directory, an image, or a size such as 512M. Scratch images go into an image's directory;
    /// the image itself is neither read nor written. [default: the current directory, or another
    /// one on a disk]
    #[arg(value_name = "IMAGE|DIR|SIZE")]
    target: Option<String>,
    /// Size of each scratch image
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    size: Option<u64>,
    /// Directory for the scratch images
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Measure everything once, in about three minutes, without conclusions
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Measure everything five times, two seconds each, without a time limit
    #[arg(long)]
    full: bool,
    /// Number of measurements [default: 2, and 5 where conclusions are drawn]
    #[arg(long = "repeat", alias = "repeats", value_name = "N", value_parser = values::whole::<u16>(1..=100))]
    repeats: Option<u16>,
    /// Duration of one measurement [default: 700ms]
    #[arg(long, value_name = "TIME", value_parser = values::time_between(Duration::from_millis(50), Duration::from_secs(600)))]
    time: Option<Duration>,
    /// Upper bound for the whole run [default: 9m; with --full none]
    ///
    /// Measurements without conclusions are repeated less first. Then all measurements become
    /// shorter.
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    limit: Option<Duration>,
    /// Columns besides the host, as --list names them [default: all available]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_column)]
    columns: Vec<Column>,
    /// Loads, or parts of their names, as --list names them [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_load)]
    loads: Vec<String>,
    /// List the columns and the loads and exit
    #[arg(long)]
    list: bool,
    /// Page caches of host and guest
    #[arg(long, value_enum, default_value_t = CacheState::Direct)]
    cache: CacheState,
    /// Leave out the back ends without a guest
    #[arg(long)]
    no_native: bool,
    /// Leave out the counts of system calls (they need root)
    #[arg(long)]
    no_count: bool,

    /// Only count the calls of QEMU's virtio-blk functions in a guest, 4K against 512K
    ///
    /// Moves the same bytes in small and in large requests. Takes about a minute.
    #[arg(long, conflicts_with_all = ["target", "size", "quick", "full", "time", "limit", "columns", "loads", "cache", "no_native", "no_count", "qemu"])]
    work: bool,

    /// QEMU program to use instead of the installed one
    #[arg(long, value_name = "PROGRAM")]
    qemu: Option<PathBuf>,
    /// CPU of the guest
    #[arg(long, value_enum, default_value_t = AccelArg::Auto)]
    accel: AccelArg,
    /// Install missing programs by apt-get (as root), and a guest kernel into the cache directory
    #[arg(long)]
    install: bool,

    /// File for the page with the pictures
    #[arg(long, value_name = "FILE", default_value = "compare.html")]
    html: PathBuf,
    /// Write no page
    #[arg(long)]
    no_html: bool,
    /// Also write the report as JSON; `-` is standard output and replaces the text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    #[command(flatten)]
    overwrite: Overwrite,
}

/// Directory and size that a target names.
fn read_target(args: &CompareArgs) -> anyhow::Result<(Option<PathBuf>, Option<u64>)> {
    let Some(text) = &args.target else { return Ok((args.dir.clone(), args.size)) };
    match parse_size(text) {
        // A file may be called 512M.
        _ if Path::new(text).exists() => {
            let dir = scratch::directory(Path::new(text))?;
            if args.dir.is_some() {
                usage!("--dir and {text} both say where");
            }
            Ok((Some(dir), args.size))
        }
        Ok(bytes) => {
            if args.size.is_some_and(|size| size != bytes) {
                usage!("{text} and --size say different sizes");
            }
            Ok((args.dir.clone(), Some(bytes)))
        }
        Err(_) => usage!("{text}: neither a file or directory that is there, nor a size like 512M"),
    }
}

/// Parses the name of a column.
fn parse_column(text: &str) -> Result<Column, String> {
    values::one_of(text, "column", Column::value_variants().iter().map(|column| column.id()))?;
    Column::from_str(text, false)
}

/// Parses a part of the names of loads.
fn parse_load(text: &str) -> Result<String, String> {
    match !text.is_empty() && loads::all().iter().any(|load| load.id().contains(text)) {
        true => Ok(text.to_owned()),
        false => Err(format!("no load's name has `{text}` in it; --list names them")),
    }
}

impl CompareArgs {
    /// The loads whose names have one of the words in them.
    fn loads(&self) -> Vec<Load> {
        let is_wanted = |load: &Load| self.loads.iter().any(|word| load.id().contains(word));
        loads::all().into_iter().filter(|load| self.loads.is_empty() || is_wanted(load)).collect()
    }

    fn options(&self) -> anyhow::Result<Options> {
        let (dir, size) = read_target(self)?;
        let ms = Duration::from_millis;
        let (passes, turns, runtime, limit, bytes) = match (self.quick, self.full) {
            (true, _) => (1, 1, ms(300), Some(ms(240_000)), 256 << 20),
            (_, true) => (5, 5, ms(2000), None, 1 << 30),
            _ => (2, stats::LEAST_PAIRS, ms(700), Some(ms(540_000)), 512 << 20),
        };
        let asked = self.repeats.map(usize::from);
        let columns = match &self.columns[..] {
            [] => Column::value_variants(),
            some => some,
        };
        Ok(Options {
            vlane: std::env::current_exe().context("cannot find out where this program is")?,
            command: command_line(),
            dir,
            image_bytes: size.unwrap_or(bytes),
            columns: columns.to_vec(),
            loads: self.loads(),
            runtime: self.time.unwrap_or(runtime),
            often: Often { passes: asked.unwrap_or(passes), turns: asked.unwrap_or(turns) },
            concludes: !self.quick,
            limit: self.limit.or(limit),
            cache: self.cache,
            qemu: self.qemu.clone(),
            accel: self.accel.forced(),
            native: !self.no_native,
            count: !self.no_count,
        })
    }
}

/// Runs the command.
///
/// # Errors
/// Obstacles to the comparison; its processes and files are gone then.
pub fn run(args: &CompareArgs) -> anyhow::Result<()> {
    if args.list {
        for column in Column::value_variants() {
            println!("{:<24} {}", column.id(), column.about());
        }
        println!();
        for load in loads::all() {
            println!("{:<24} {}", load.id(), load.long_name());
        }
        return Ok(());
    }
    let options = args.options()?;
    let interrupt = Interrupt::listen()?;
    let host = Host::new(if args.install { Install::Allowed } else { Install::Never })?;
    let html = (!args.no_html).then(|| args.html.clone());
    let output = OutputArgs { html, json: args.json.clone(), overwrite: args.overwrite };
    output.check()?;
    if args.work {
        let passes = args.repeats.map_or(3, usize::from);
        let (dir, accel) = (args.dir.as_deref(), args.accel.forced());
        let report = work::run(passes, dir, accel, command_line(), &host, &interrupt)?;
        return output.show(&report);
    }
    let found = Found::look(&options, &host)?;
    eprint!("{}", found.about());
    let report = compare::run(&options, &host, &found, &interrupt)?;
    let shown = output.show_as(&report, || text::render(&compare::report::brief(&report), width()));
    for path in output.files().filter(|path| path.exists()) {
        eprintln!("the whole report: {}", path.display());
    }
    shown
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Only {
        #[command(flatten)]
        args: CompareArgs,
    }

    fn parse(words: &[&str]) -> CompareArgs {
        Only::try_parse_from(["vlane"].iter().chain(words)).unwrap().args
    }

    #[test]
    fn target_is_size_directory_or_image() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("disk.raw");
        std::fs::write(&image, "").unwrap();
        let at = |target: &str| read_target(&parse(&[target])).unwrap();
        assert_eq!(at("256M"), (None, Some(256 << 20)));
        assert_eq!(at(dir.path().to_str().unwrap()), (Some(dir.path().into()), None));
        assert_eq!(at(image.to_str().unwrap()), (Some(dir.path().into()), None));
        assert!(read_target(&parse(&["/nowhere/at/all"])).is_err());
        let twice = parse(&[image.to_str().unwrap(), "--dir", "/tmp"]);
        assert!(read_target(&twice).unwrap_err().to_string().contains("--dir"));
        assert!(read_target(&parse(&["256M", "--size", "512M"])).is_err());
    }

    #[test]
    fn unknown_columns_and_loads_are_refused() {
        let of = |words: &[&str]| parse(words).options().unwrap();
        assert_eq!(of(&["--columns", "ide,vlane"]).columns, [Column::Ide, Column::Vlane]);
        assert_eq!(of(&[]).columns, Column::value_variants());
        assert_eq!(of(&["--loads", "fio"]).loads.len(), 6);
        assert_eq!(of(&["--loads", "fio-random-read-4k"]).loads.len(), 1);
        assert_eq!(of(&[]).loads.len(), 24);
        for words in [["--columns", "floppy"], ["--loads", "8k"]] {
            assert!(Only::try_parse_from(["vlane"].iter().chain(&words)).is_err(), "{words:?}");
        }
    }

    #[test]
    fn run_lengths_differ_and_yield_to_options() {
        let of = |words: &[&str]| parse(words).options().unwrap();
        let often = |words: &[&str]| (of(words).often.passes, of(words).often.turns);
        assert_eq!((often(&["--quick"]), often(&[]), often(&["--full"])), ((1, 1), (2, 5), (5, 5)));
        assert!(!of(&["--quick"]).concludes && of(&[]).concludes && of(&["--full"]).concludes);
        assert!(
            of(&[]).limit.unwrap() < Duration::from_secs(600) && of(&["--full"]).limit.is_none()
        );
        assert_eq!(often(&["--quick", "--repeat", "3", "--time", "1s"]), (3, 3));
        assert!(Only::try_parse_from(["vlane", "--quick", "--full"]).is_err());
        assert!(Only::try_parse_from(["vlane", "--time", "1ms"]).is_err());
    }
}
