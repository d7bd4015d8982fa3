//! The journal bypass where it can help: real programs, whose data fit the host's page cache and
//! not the guest's memory.
//!
//! A read that the guest's own cache misses is answered by the host's, or by the storage. The
//! storage has a cap of reads per second, as a cloud's volume has. So a miss is dear, and each page
//! of the journal in the host's cache may cost one. The guest is User-Mode Linux; its programs are
//! this machine's, on a read-only view of its file system.
//!
//! Each program's data are made once. Every measurement begins with a copy of them, an empty cache,
//! and a cgroup of its own. The journal has gone round twice before anything is counted.

mod bed;
mod program;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use vlane::values;
use vlane_guest::UmlProgram;
use vlane_report::{Arms, Report, usable_cpus};
use vlane_testbed::{
    Also, Call, Context, ErrorKind, Installs, Medium, Place, Progress, Result, Rounds, distinct,
    in_turns, settle, usage, word,
};
use vlane_units::show_size;

use self::bed::Bed;
pub use self::program::Program;
use crate::caches::{
    Arm, SETTLED, is_steady, parse_cache, parse_journal, parse_mib, parse_mode, sides, until_steady,
};

/// Time of a measurement beside its ramp and its window, about: a copy, a boot, a journal.
const AROUND: Duration = Duration::from_secs(25);

/// How the guest's ext4 keeps file data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DataMode {
    /// data are written in place, before the commit
    Ordered,
    /// data go through the journal, too
    Journal,
}

/// The options.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Programs of the guest: mail, key-value, fill-sync, oltp
    #[arg(long, value_name = "LIST", value_delimiter = ',', hide_possible_values = true)]
    #[arg(default_value = "mail,key-value", value_enum)]
    programs: Vec<Program>,
    /// Cache modes, as in `vlane serve --cache`; the first is the baseline
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "writeback,none,pdc",
        value_parser = parse_mode)]
    modes: Vec<Arm>,
    /// Also compare a volume with these options of `vlane serve`
    ///
    /// Example: "--cache pdc --journal direct". May be given several times.
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    also: Vec<Also>,
    /// Modes of the guest's ext4: ordered, journal
    #[arg(long, value_name = "LIST", value_delimiter = ',', hide_possible_values = true)]
    #[arg(default_value = "ordered", value_enum)]
    data: Vec<DataMode>,
    /// Sizes of the journal
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "256M")]
    #[arg(value_parser = parse_journal)]
    journals: Vec<u64>,
    /// Memory of the back end, page cache included; a large one shows that there is no effect
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "512M")]
    #[arg(value_parser = parse_cache)]
    caches: Vec<u64>,
    /// Size of the program's data
    #[arg(long, value_name = "SIZE", default_value = "400M", value_parser = parse_mib)]
    size: u64,
    /// Memory of the guest
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_mib)]
    memory: u64,
    /// Cap of the storage's reads per second; 0: none
    #[arg(long, value_name = "N", default_value_t = 1000,
        value_parser = values::whole::<u32>(0..=10_000_000))]
    read_iops: u32,
    /// Number of measurements of each combination
    #[arg(long = "repeat", alias = "rounds", value_name = "N", default_value_t = 5,
        value_parser = values::whole::<usize>(1..=1000))]
    rounds: usize,
    /// Warm-up time before each measurement, after the journal's two rounds
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = values::time_or_none)]
    ramp: Duration,
    /// Duration of each measurement
    #[arg(long, value_name = "TIME", default_value = "40s", value_parser = values::time)]
    time: Duration,
    /// Directory on the measured disk [default: the current one or /var/tmp]
    #[arg(long, value_name = "DIR")]
    disk_dir: Option<PathBuf>,
    #[command(flatten)]
    installs: Installs,
}

/// Conditions under which the arms are compared.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cell {
    program: Program,
    data: DataMode,
    /// Bytes of the journal.
    journal: u64,
    /// Bytes of the back end's cgroup.
    cache: u64,
}

impl Cell {
    /// Its name, and the id of its section.
    fn id(&self) -> String {
        let (program, data) = (self.program.name(), word(self.data));
        format!("{program}-{data}-{}m-in-{}m", self.journal >> 20, self.cache >> 20)
    }
}

/// Results of one measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
struct Sample {
    /// The program's operations per second.
    operations: f64,
    /// 99th percentile of an operation, or of the mail server's fsyncs, in us.
    p99_us: f64,
    /// The guest's reads per second.
    reads: f64,
    /// Their bytes that came from the storage, of all: 0 to 1.
    misses: f64,
    /// Misses of the window's second half less those of its first half: -1 to 1.
    moved: f64,
    /// Seconds before the window.
    ramp: f64,
    /// Bytes per second that anybody wrote to the disk.
    device_written: Option<f64>,
    /// The journal's pages in the page cache at the end.
    journal_pages: Option<u64>,
    /// CPU time of the back end, us per operation.
    cpu_us: f64,
}

impl Sample {
    /// True if hits were as frequent in the second half of the window as in the first half.
    fn is_steady(&self) -> bool {
        is_steady(self.misses, self.moved)
    }

    /// Reads of the storage for an operation.
    fn missed(&self) -> f64 {
        self.misses * self.reads / self.operations.max(1e-9)
    }
}

impl Options {
    /// Without repeated values.
    fn checked(&self) -> Result<Self> {
        if self.memory < 128 << 20 {
            return usage("--memory: the guest and its programs need 128M");
        }
        Ok(Self {
            programs: distinct(self.programs.clone()),
            data: distinct(self.data.clone()),
            journals: distinct(self.journals.clone()),
            caches: distinct(self.caches.clone()),
            ..self.clone()
        })
    }

    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &program in &self.programs {
            for &data in &self.data {
                for &journal in &self.journals {
                    let with = |&cache| Cell { program, data, journal, cache };
                    cells.extend(self.caches.iter().map(with));
                }
            }
        }
        cells
    }

    /// Bytes of a program's volume with such a journal.
    fn volume(&self, program: Program, journal: u64) -> u64 {
        // mkfs makes a journal of at most half the file system.
        program.room(self.size).max(journal).saturating_add(journal)
    }
}

/// Measures, and makes a report.
///
/// # Errors
/// - [`ErrorKind::Usage`]: options make no sense.
/// - [`ErrorKind::Invalid`]: there is no room, or no root for the limits.
/// - [`ErrorKind::Missing`]: a program that is needed is not there.
/// - [`ErrorKind::Interrupted`], and those of back ends and guests.
///
/// The host's settings are restored,
/// and no file or process is left behind, in any case.
pub fn run(options: &Options, call: &Call<'_>) -> Result<Report> {
    let options = &options.checked()?;
    let Call { vlane, begun, interrupt } = call;
    let arms = Arm::all(&options.modes, &options.also)?;
    let (host, cells) = (&options.installs.host()?, options.cells());
    let own = ["mkfs.ext4", "debugfs", "busybox", "chattr"];
    let theirs = options.programs.iter().flat_map(|program| program.needs());
    own.iter().chain(theirs).try_for_each(|name| host.program(name).map(drop))?;
    let uml = UmlProgram::find(host)?;
    let dir = tempfile::Builder::new().prefix("vlane-bypass-").tempdir();
    let dir = dir.context(ErrorKind::Io, || "cannot make a directory for sockets")?;
    let templates = bed::templates(&cells);
    let sizes = || templates.iter().map(|(program, journal)| options.volume(*program, *journal));
    // Beside them a copy of one.
    let bytes = sizes().chain(sizes().max()).fold(0, u64::saturating_add);
    let place = Place::find(Medium::Disk, options.disk_dir.as_deref(), bytes, "--disk-dir")?;
    let names: Vec<String> = arms.iter().map(|arm| arm.name.clone()).collect();
    let mut results: Vec<(Cell, Arms<Sample>)> =
        cells.iter().map(|cell| (*cell, Arms::named(&names))).collect();
    let turns: usize = results.iter().map(|(_, arms)| arms.0.len()).sum();
    let mut progress = Progress::new(templates.len() + turns * options.rounds)
        .expecting(options.ramp + options.time + AROUND);
    let (guest_cpus, back_end_cpus) = sides(&usable_cpus()?);
    let mut bed = Bed {
        options,
        vlane,
        host,
        uml: &uml,
        dir: dir.path(),
        place: &place,
        templates: Vec::new(),
        guest_cpus,
        back_end_cpus,
        interrupt,
    };
    for (program, journal) in templates {
        let journal_size = show_size(journal);
        progress.step(format!("{} makes its data, journal {journal_size}", program.name()));
        bed.prepare(program, journal)?;
    }
    settle(options.rounds, interrupt)?;
    let rounds = Rounds::measure(options.rounds, |round| {
        results.iter_mut().try_for_each(|(cell, samples)| {
            in_turns(samples, round, |at, arm| {
                interrupt.check()?;
                progress.step(format!("round {}: {}: {arm}", round + 1, cell.id()));
                until_steady((options.ramp, options.time), Sample::is_steady, |ramp| {
                    bed.measure(ramp, cell, &arms[at], &mut |doing| progress.detail(doing))
                })
            })
        })
    })?;
    progress.clear();
    results.iter_mut().for_each(|(_, arms)| arms.keep(rounds.whole()));
    let shown = report::Shown { options, guest: &uml.version };
    Ok(rounds.marked(shown.report(&results, begun)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    pub(super) fn options(words: &[&str]) -> Options {
        crate::tests::options(words)
    }

    #[test]
    fn every_cell_has_its_own_id() {
        let words = ["--programs=mail,oltp,mail", "--data=ordered,journal", "--caches=512M,2G"];
        let cells = options(&words).checked().unwrap().cells();
        let mut ids: Vec<String> = cells.iter().map(Cell::id).collect();
        assert_eq!(ids[0], "mail-ordered-256m-in-512m");
        ids.sort();
        ids.dedup();
        assert_eq!((ids.len(), cells.len()), (8, 8));
        assert_eq!(bed::templates(&cells).len(), 2, "a program's data are made once");
    }

    #[test]
    fn senseless_options_are_usage_errors() {
        let error = options(&["--memory=64M"]).checked().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(error.to_string().contains("need 128M"), "{error}");
    }

    #[test]
    fn volume_holds_data_beside_its_journal() {
        let options = options(&["--size=100M"]);
        assert_eq!(options.volume(Program::KeyValue, 64 << 20), (456 + 64) << 20);
        assert_eq!(options.volume(Program::Mail, 64 << 20), (164 + 64) << 20);
        assert_eq!(options.volume(Program::Mail, 1 << 30), 2 << 30);
    }
}
