//! `vlane-lab prove express`: measures foreground first. [`vlane_mechanisms::express`] describes
//! the measurement.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use vlane_guest::{Host, Install};
use vlane_mechanisms::express::machine::Place;
use vlane_mechanisms::express::native::{self, Load};
use vlane_mechanisms::express::places::Wanted;
use vlane_mechanisms::express::root::Program;
use vlane_mechanisms::express::{Mode, Model, Variant, guests, launch, reader};
use vlane_testbed::Interrupt;

use crate::output::{OutputArgs, command_line};
use crate::values;

/// Measure the foreground's gain and the background's loss with express classes
///
/// Compares `serve --classes` and `vlane-fg` with the baseline. A crowd of background readers has
/// one request each in flight, and one foreground reader is measured. The device is a model of a
/// drive with one queue per back-end thread.
#[derive(Debug, Args)]
pub struct ExpressArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "one is made, once")]
enum What {
    /// Measure the back end alone: this program reads on many queues
    Native(NativeArgs),
    /// Measure a program in a guest, as a shell's foreground job, in the paper's five variants
    Guests(GuestsArgs),
    /// Measure the start of real programs in a guest with a cold cache
    Launch(LaunchArgs),
}

#[derive(Debug, Args)]
struct NativeArgs {
    /// Values of `serve --classes`; the first is the baseline
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "off,order,shortest,on", value_parser = parse_mode)]
    modes: Vec<Mode>,
    /// Distribution of the readers over the queues: even, uneven, greedy
    ///
    /// With uneven, the last queue has no reader. greedy is uneven without --think.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "even,uneven,greedy", value_parser = parse_load)]
    loads: Vec<Load>,
    /// Queues of the volume and threads of the back end
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = values::whole::<u16>(1..=64))]
    queues: u16,
    /// Readers in the background
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = values::whole::<u16>(1..=8192))]
    readers: u16,
    /// Pause of the foreground between two reads
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = values::time_or_none)]
    think: Duration,
    /// Service time of the drive: microseconds, or a time such as 1ms
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = values::time_in::<u64>("us", 1..=1_000_000))]
    latency: u64,
    /// Requests that the drive serves in parallel
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = values::whole::<u16>(1..))]
    parallel: u16,
    /// Number of measurements of each combination
    #[arg(long = "repeat", alias = "rounds", value_name = "N", default_value_t = 5, value_parser = values::whole::<u16>(1..=1000))]
    rounds: u16,
    /// Warm-up time before each measurement
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = values::time_or_none)]
    ramp: Duration,
    /// Duration of each measurement
    #[arg(long, value_name = "TIME", default_value = "4s", value_parser = values::time)]
    time: Duration,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
struct GuestsArgs {
    #[command(flatten)]
    guest: GuestArgs,
    /// Kinds of guests: uml, qemu
    #[arg(long = "where", value_name = "LIST", value_delimiter = ',', default_value = "uml,qemu", value_parser = parse_place)]
    places: Vec<Place>,
    /// Readers in the background [default: 240 in uml, 512 in qemu]
    #[arg(long, value_name = "N", value_parser = values::whole::<u16>(1..=4096))]
    readers: Option<u16>,
    /// Reads of the foreground program [default: 100 in uml, 40 in qemu]
    #[arg(long, value_name = "N", value_parser = values::whole::<u32>(1..=1_000_000))]
    reads: Option<u32>,
    /// Number of measurements of each combination
    #[arg(long = "repeat", alias = "rounds", value_name = "N", default_value_t = 5, value_parser = values::whole::<u16>(1..=1000))]
    rounds: u16,
}

#[derive(Debug, Args)]
struct LaunchArgs {
    #[command(flatten)]
    guest: GuestArgs,
    /// Kinds of guests: uml, qemu
    #[arg(long = "where", value_name = "LIST", value_delimiter = ',', default_value = "uml", value_parser = parse_place)]
    places: Vec<Place>,
    /// Programs to start
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "python3,git,sqlite3,gcc,vim", value_parser = parse_program)]
    programs: Vec<Program>,
    /// Readers in the background
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = values::whole::<u16>(1..=4096))]
    readers: u16,
    /// Number of starts of each program in each variant
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = values::whole::<u16>(1..=1000))]
    launches: u16,
}

/// Options of both kinds of guests
#[derive(Debug, Args)]
struct GuestArgs {
    /// Variants: vanilla, cpu, cpu+io, cpu+size, proposed; the first is the baseline
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "vanilla,cpu,cpu+io,cpu+size,proposed", value_parser = parse_variant)]
    variants: Vec<Variant>,
    /// Service time of the drive, such as 1ms [default: 1ms in uml, 2ms in qemu]
    ///
    /// A bare number is in microseconds.
    #[arg(long, value_name = "TIME", value_parser = values::time_in::<u64>("us", 1..=1_000_000))]
    latency: Option<u64>,
    /// Requests that the drive serves in parallel [default: 2]
    #[arg(long, value_name = "N", requires = "latency", value_parser = values::whole::<u16>(1..))]
    parallel: Option<u16>,
    /// Time for the background readers to settle
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = values::time_or_none)]
    ramp: Duration,
    /// vlane-fg program [default: next to this program]
    #[arg(long, value_name = "FILE")]
    fg: Option<PathBuf>,
    /// Install missing programs by apt-get (as root), and guest kernels into the cache directory
    #[arg(long)]
    install: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Run the foreground program of `express guests` inside the guest
#[derive(Debug, Args)]
pub struct ExpressReadArgs {
    /// Disk
    disk: PathBuf,
    /// Number of reads
    #[arg(long, value_name = "N", value_parser = values::whole::<u32>(1..))]
    reads: u32,
    /// Seed for the places
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::whole::<u64>(0..))]
    seed: u64,
    /// Number after each result's name
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::whole::<u64>(0..))]
    mark: u64,
}

fn parse_mode(text: &str) -> Result<Mode, String> {
    named(text, "mode", &Mode::ALL, Mode::name)
}

fn parse_load(text: &str) -> Result<Load, String> {
    named(text, "load", &Load::ALL, Load::name)
}

fn parse_variant(text: &str) -> Result<Variant, String> {
    named(text, "variant", &Variant::ALL, Variant::name)
}

fn parse_place(text: &str) -> Result<Place, String> {
    named(text, "guest", &Place::ALL, Place::name)
}

pub(crate) fn parse_program(text: &str) -> Result<Program, String> {
    named(text, "program", &Program::ALL, Program::name)
}

/// The one of that name.
fn named<T: Copy>(
    text: &str,
    what: &str,
    all: &[T],
    name: fn(T) -> &'static str,
) -> Result<T, String> {
    values::one_of(text, what, all.iter().map(|one| name(*one)))?;
    let found = all.iter().find(|one| name(**one) == text);
    found.copied().ok_or_else(|| format!("`{text}` is not a known {what}"))
}

/// The distinct values, in order.
fn unique<T: Copy + PartialEq>(all: &[T]) -> Vec<T> {
    let firsts = all.iter().enumerate().filter(|(place, one)| !all[..*place].contains(one));
    firsts.map(|(_, one)| *one).collect()
}

fn this_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find this program's own file")
}

impl NativeArgs {
    fn options(&self) -> anyhow::Result<native::Options> {
        Ok(native::Options {
            vlane: this_program()?,
            command: command_line(),
            modes: unique(&self.modes),
            loads: unique(&self.loads),
            queues: self.queues,
            readers: self.readers,
            think: self.think,
            model: Model { latency: Duration::from_micros(self.latency), parallel: self.parallel },
            rounds: usize::from(self.rounds),
            ramp: self.ramp,
            time: self.time,
        })
    }
}

impl GuestArgs {
    /// Requests that the drive works on at the same time unless it is said.
    const PARALLEL: u16 = 2;

    fn model(&self) -> Option<Model> {
        let latency = Duration::from_micros(self.latency?);
        Some(Model { latency, parallel: self.parallel.unwrap_or(Self::PARALLEL) })
    }

    fn wanted(&self, places: &[Place], rounds: u16) -> anyhow::Result<Wanted> {
        let vlane = this_program()?;
        Ok(Wanted {
            fg: self.fg.clone().unwrap_or_else(|| vlane.with_file_name("vlane-fg")),
            vlane,
            command: command_line(),
            places: unique(places),
            variants: unique(&self.variants),
            model: self.model(),
            rounds: usize::from(rounds),
            ramp: self.ramp,
        })
    }

    fn host(&self) -> anyhow::Result<Host> {
        Ok(Host::new(if self.install { Install::Allowed } else { Install::Never })?)
    }
}

impl GuestsArgs {
    fn options(&self) -> anyhow::Result<guests::Options> {
        let wanted = self.guest.wanted(&self.places, self.rounds)?;
        Ok(guests::Options { wanted, readers: self.readers, reads: self.reads })
    }
}

impl LaunchArgs {
    fn options(&self) -> anyhow::Result<launch::Options> {
        let wanted = self.guest.wanted(&self.places, self.launches)?;
        Ok(launch::Options { wanted, programs: unique(&self.programs), readers: self.readers })
    }
}

/// Runs the command.
///
/// # Errors
/// Obstacles to the measurements, or to writing the report.
pub fn run(args: &ExpressArgs) -> anyhow::Result<()> {
    let output = match &args.what {
        What::Native(args) => &args.output,
        What::Guests(args) => &args.guest.output,
        What::Launch(args) => &args.guest.output,
    };
    output.check()?;
    let interrupt = Interrupt::listen()?;
    let report = match &args.what {
        What::Native(args) => native::run(&args.options()?, &interrupt)?,
        What::Guests(args) => guests::run(&args.options()?, &args.guest.host()?, &interrupt)?,
        What::Launch(args) => launch::run(&args.options()?, &args.guest.host()?, &interrupt)?,
    };
    output.show(&report)
}

/// Reads, in the guest, and tells of it.
///
/// # Errors
/// If the disk cannot be read.
pub fn run_read(args: &ExpressReadArgs) -> anyhow::Result<()> {
    let done = reader::run(&args.disk, args.reads, args.seed)?;
    println!("RESULT mean_us.{}={}", args.mark, done.mean_us);
    println!("RESULT p99_us.{}={}", args.mark, done.p99_us);
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn measured_modes_exist_in_serve() {
        let known = crate::serve::ClassesArg::value_variants().iter();
        let known: Vec<_> = known
            .filter_map(|mode| Some(mode.to_possible_value()?.get_name().to_owned()))
            .collect();
        assert_eq!(known, Mode::ALL.map(Mode::name));
    }

    #[test]
    fn unknown_names_list_the_valid_ones() {
        assert!(parse_variant("fast").is_err_and(|why| why.contains("cpu+io")));
        assert!(parse_place("xen").is_err_and(|why| why.contains("uml")));
        assert!(parse_program("emacs").is_err_and(|why| why.contains("vim")));
        assert!(parse_mode("all").is_err_and(|why| why.contains("shortest")));
        assert!(parse_load("odd").is_err_and(|why| why.contains("uneven")));
    }
}
