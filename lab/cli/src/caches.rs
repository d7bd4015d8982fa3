//! `vlane-lab compare caches`: compares cache modes. [`vlane_mechanisms::caches`] describes the
//! measurement.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use vlane_bench::Pin;
use vlane_guest::{Host, Install};
use vlane_mechanisms::caches::{self, Arm, Job, Options, SMALLEST_JOURNAL, job};
use vlane_testbed::Interrupt;

use crate::output::{OutputArgs, command_line};
use crate::peers::{Also, parse_also};
use crate::serve::CacheArg;
use crate::values;

/// Modes that are not compared unless they are asked for: what auto is depends on the disk, and
/// writethrough makes every write durable.
const NOT_USUAL: [&str; 2] = ["auto", "writethrough"];

/// Compare the effects of cache modes on a guest, its neighbour and the page cache
///
/// A neighbour reads its hot set at random through the page cache. In parallel, a volume is served
/// in one mode after the other, and this program or a guest with ext4 writes a journal on it. Both
/// back ends share a memory cgroup, which needs root. The command sets vm.dirty_bytes for the whole
/// host and restores it at the end. It makes its own images and removes them.
#[derive(Debug, Args)]
pub struct CachesArgs {
    /// Cache modes, as in `vlane serve --cache`; the first is the baseline
    ///
    /// [default: writeback, none, and the modes that keep the guest's journal out of the cache]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_mode)]
    modes: Vec<String>,
    /// Also compare a volume with these options of `vlane serve`
    ///
    /// Example: "--cache writeback --poll-max 0". May be given several times.
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true, value_parser = parse_also)]
    also: Vec<Also>,
    /// Options of `vlane serve` for the volume in every mode
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true, value_parser = parse_also)]
    with: Option<Also>,
    /// Writers of the journal
    ///
    /// commits and mail-replay run in this program. mail, oltp-rollback, oltp-wal, graph, mobile,
    /// fill, kv-compact and plain run in a guest.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "commits", value_parser = parse_job)]
    jobs: Vec<Job>,
    /// Memory that the back ends share, page cache included
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = parse_cache)]
    cache: u64,
    /// Do not limit memory: needs no root, and shows no evictions
    #[arg(long, conflicts_with = "cache")]
    no_limit: bool,
    /// Size of the neighbour's hot set
    #[arg(long, value_name = "SIZE", default_value = "400M", value_parser = parse_mib)]
    hot: u64,
    /// Sizes of the journal
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64M,256M,1G", value_parser = parse_journal)]
    journals: Vec<u64>,
    /// Reads per second of the neighbour, or unbounded for one after the other
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "unbounded,10000", value_parser = parse_rate)]
    rates: Vec<ReadRate>,
    /// The kernel's write-back throttling: on is unchanged, off needs root and a disk that has it
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',', default_value = "on")]
    throttling: Vec<Throttling>,
    /// Extra times for each fdatasync of the volume, to simulate slower devices
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0", value_parser = parse_delay)]
    delays: Vec<Duration>,
    /// Vary one list at a time, on the journal of this size
    ///
    /// Without this, all combinations are measured. With it, the first of --jobs, --rates,
    /// --throttling and --delays runs on every journal. Each other value runs on this journal
    /// alone, with the first values of the other lists.
    #[arg(long, value_name = "SIZE", value_parser = parse_journal)]
    vary_on: Option<u64>,
    /// Number of measurements of each combination
    #[arg(long = "repeat", alias = "rounds", value_name = "N", default_value_t = 5, value_parser = values::whole::<u16>(1..=1000))]
    rounds: u16,
    /// Warm-up time before each measurement
    #[arg(long, value_name = "TIME", default_value = "4s", value_parser = values::time_or_none)]
    ramp: Duration,
    /// Duration of each measurement
    #[arg(long, value_name = "TIME", default_value = "8s", value_parser = values::time)]
    time: Duration,
    /// CPUs of the neighbour and of the writer, each with its back end
    #[arg(long, value_name = "PLACEMENT", value_enum, default_value_t = PinArg::Apart)]
    pin: PinArg,
    /// Directory on the measured disk [default: the current one or /var/tmp]
    #[arg(long, value_name = "DIR")]
    disk_dir: Option<PathBuf>,
    /// Install missing programs by apt-get (as root), and User-Mode Linux into the cache directory
    #[arg(long)]
    install: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Run the job of `vlane-lab compare caches` inside the guest
#[derive(Debug, Args)]
pub struct CachesJobArgs {
    /// Job
    #[arg(value_parser = parse_job)]
    job: Job,
    /// Directory for the job's files
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Warm-up time
    #[arg(long, value_name = "TIME", value_parser = values::time_or_none)]
    ramp: Duration,
    /// Measured time
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    time: Duration,
}

/// How fast the neighbour reads.
#[derive(Debug, Clone, Copy)]
struct ReadRate(Option<f64>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PinArg {
    /// Half of the CPUs each
    Apart,
    /// Placed by the kernel
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Throttling {
    /// Unchanged
    On,
    /// Off: wbt_lat_usec is 0 during the measurement
    Off,
}

/// The names of modes that `vlane serve` knows.
fn modes() -> impl Iterator<Item = String> {
    CacheArg::value_variants()
        .iter()
        .filter_map(|mode| Some(mode.to_possible_value()?.get_name().to_owned()))
}

/// Those that are compared if none are named, the one first that others are held against.
fn usual_modes() -> Vec<String> {
    let mut usual: Vec<String> =
        modes().filter(|mode| !NOT_USUAL.contains(&mode.as_str())).collect();
    usual.sort_by_key(|mode| mode != "writeback");
    usual
}

fn parse_mode(text: &str) -> Result<String, String> {
    values::one_of(text, "cache mode", modes())
}

fn parse_job(text: &str) -> Result<Job, String> {
    let names = Job::ALL.iter().map(|job| job.name());
    values::one_of(text, "job", names)?;
    Job::named(text).ok_or_else(|| format!("`{text}` is not a known job"))
}

fn parse_mib(text: &str) -> Result<u64, String> {
    match values::size(text)? {
        bytes if bytes.is_multiple_of(1 << 20) => Ok(bytes),
        bytes => Err(format!("{bytes} bytes are not a multiple of 1M")),
    }
}

fn parse_journal(text: &str) -> Result<u64, String> {
    match parse_mib(text)? {
        bytes @ SMALLEST_JOURNAL..=0x4_0000_0000 => Ok(bytes),
        _ => Err(format!("`{text}`: a journal has from 4M to 16G")),
    }
}

fn parse_cache(text: &str) -> Result<u64, String> {
    match parse_mib(text)? {
        bytes @ 0x200_0000.. => Ok(bytes),
        _ => Err(format!(
            "`{text}` is too small: the back ends themselves need some of it; at least 32M"
        )),
    }
}

fn parse_delay(text: &str) -> Result<Duration, String> {
    values::time_in::<u64>("us", 0..=60_000_000)(text).map(Duration::from_micros)
}

fn parse_rate(text: &str) -> Result<ReadRate, String> {
    match text {
        "unbounded" => Ok(ReadRate(None)),
        number => values::whole::<u32>(1..=10_000_000)(number)
            .map(|rate| ReadRate(Some(rate.into())))
            .map_err(|why| format!("{why}; `unbounded` is possible, too")),
    }
}

impl CachesArgs {
    fn options(&self) -> anyhow::Result<Options> {
        let modes = if self.modes.is_empty() { usual_modes() } else { self.modes.clone() };
        let mut arms: Vec<Arm> = modes.iter().map(|mode| Arm::mode(mode)).collect();
        arms.extend(self.also.iter().map(|also| Arm::options(&also.0)));
        Ok(Options {
            vlane: std::env::current_exe().context("cannot find this program's own file")?,
            command: command_line(),
            arms,
            with: self.with.as_ref().map_or_else(Vec::new, |with| with.0.clone()),
            jobs: unique(&self.jobs),
            cache: (!self.no_limit).then_some(self.cache),
            hot: self.hot,
            journals: unique(&self.journals),
            rates: self.rates.iter().map(|rate| rate.0).collect(),
            throttling: unique(&self.throttling).iter().map(|one| *one == Throttling::On).collect(),
            delays: unique(&self.delays),
            vary_on: self.vary_on,
            rounds: usize::from(self.rounds),
            ramp: self.ramp,
            time: self.time,
            disk_dir: self.disk_dir.clone(),
            pin: match self.pin {
                PinArg::Apart => Pin::Apart,
                PinArg::None => Pin::None,
            },
        })
    }
}

/// The distinct values, in order.
fn unique<T: Copy + PartialEq>(all: &[T]) -> Vec<T> {
    let firsts = all.iter().enumerate().filter(|(place, one)| !all[..*place].contains(one));
    firsts.map(|(_, one)| *one).collect()
}

/// Runs the command.
///
/// # Errors
/// Obstacles to the measurements, or to writing the report.
pub fn run(args: &CachesArgs) -> anyhow::Result<()> {
    args.output.check()?;
    let interrupt = Interrupt::listen()?;
    let host = Host::new(if args.install { Install::Allowed } else { Install::Never })?;
    let report = caches::run(&args.options()?, &host, &interrupt)?;
    args.output.show(&report)
}

/// Does a guest's job, and tells of it.
///
/// # Errors
/// If the file system refuses something.
pub fn run_job(args: &CachesJobArgs) -> anyhow::Result<()> {
    let done = job::run(args.job, &args.dir, args.ramp, args.time, || {
        println!("RESULT ready=1");
        std::io::stdin().read_line(&mut String::new()).map(drop)
    })?;
    println!("RESULT per_second={}", done.per_second);
    println!("RESULT p99_us={}", done.p99_us);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compared_modes_match_serve() {
        let usual = usual_modes();
        assert_eq!(usual.first().map(String::as_str), Some("writeback"));
        assert!(usual.iter().any(|mode| mode == "none"), "{usual:?}");
        assert!(
            NOT_USUAL
                .iter()
                .all(|mode| modes().any(|known| known == *mode) && !usual.iter().any(|u| u == mode))
        );
        assert!(parse_mode("no such mode").is_err());
        for words in [
            "--delay-flush 1ms",
            "--cache pdc --journal direct",
            "--cache pdc --danger-flush-journal-only",
        ] {
            assert!(parse_also(words).is_ok(), "{words}");
        }
    }
}
