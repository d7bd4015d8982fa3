//! `vlane-lab compare caches`: compares cache modes. [`vlane_mechanisms::caches`] describes the
//! measurement.

use anyhow::Context;
use clap::{Args, ValueEnum};
use vlane_guest::{Host, Install};
use vlane_mechanisms::caches::{self, Arm, Options, Served, job::GuestJob};
use vlane_testbed::Interrupt;

use crate::output::{OutputArgs, command_line};
use crate::peers::{Also, parse_also};
use crate::serve::CacheArg;
use crate::values;

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
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "writeback,none,pdc", hide_default_value = true, value_parser = parse_mode)]
    modes: Vec<String>,
    /// Also compare a volume with these options of `vlane serve`
    ///
    /// Example: "--cache writeback --poll-max 0". May be given several times.
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true, value_parser = parse_also)]
    also: Vec<Also>,
    #[command(flatten)]
    options: Options,
    /// Install missing programs by apt-get (as root), and User-Mode Linux into the cache directory
    #[arg(long)]
    install: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// The names of modes that `vlane serve` knows.
fn modes() -> impl Iterator<Item = String> {
    CacheArg::value_variants()
        .iter()
        .filter_map(|mode| Some(mode.to_possible_value()?.get_name().to_owned()))
}

fn parse_mode(text: &str) -> Result<String, String> {
    values::one_of(text, "cache mode", modes())
}

/// Runs the command.
///
/// # Errors
/// Obstacles to the measurements, or to writing the report.
pub fn run(args: &CachesArgs) -> anyhow::Result<()> {
    args.output.check()?;
    let interrupt = Interrupt::listen()?;
    let host = Host::new(if args.install { Install::Allowed } else { Install::Never })?;
    let arms = args.modes.iter().map(|mode| Arm::mode(mode));
    let served = Served {
        vlane: std::env::current_exe().context("cannot find this program's own file")?,
        arms: arms.chain(args.also.iter().map(|also| Arm::options(&also.0))).collect(),
    };
    let report = caches::run(&args.options, &served, &command_line(), &host, &interrupt)?;
    args.output.show(&report)
}

/// Does a guest's job, and tells of it.
///
/// # Errors
/// If the file system refuses a request.
pub fn run_job(job: &GuestJob) -> anyhow::Result<()> {
    let done = job.run(|| {
        println!("RESULT ready=1");
        std::io::stdin().read_line(&mut String::new()).map(drop)
    })?;
    println!("RESULT per_second={}", done.per_second);
    println!("RESULT p99_us={}", done.p99_us);
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Only {
        #[command(flatten)]
        args: CachesArgs,
    }

    #[test]
    fn compared_modes_match_serve() {
        // The mode auto depends on the disk, and writethrough makes every write durable.
        let (mut usual, mut known) =
            (Only::parse_from(["vlane"]).args.modes, Vec::from_iter(modes()));
        assert_eq!(usual.first().map(String::as_str), Some("writeback"));
        known.retain(|mode| mode != "auto" && mode != "writethrough");
        usual.sort();
        known.sort();
        assert_eq!(usual, known);
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
