//! `vlane-lab bench` with more than one run: profiles, repeats, A against B, saved runs.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use vlane_bench::{
    Backend, Client, Load, Profile, Saved, Setting, Target, against_saved, between_targets,
    is_worse,
};
use vlane_error::counted;
use vlane_testbed::{Call, Installs, Output, Progress};

use crate::output::{OutputArgs, called};
use crate::{exit, explain, values};

use super::BenchArgs;

/// Options that make several runs.
#[derive(Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Multiple runs")]
pub(super) struct RunsArgs {
    /// Loads from a built-in profile or a TOML file
    #[arg(
        long,
        value_name = "NAME|FILE",
        conflicts_with_all = [
            "rw", "bs", "depth", "jobs", "rate", "arrivals", "ios", "offset", "size", "seed", "flush_every", "ioprio", "wait", "batch",
            "packed", "direct", "no_event_idx", "queue_size", "segments", "write_cache", "verify", "verify_only", "state",
        ]
    )]
    profile: Option<String>,
    /// Measurements of each load on each target [default: 5, or the profile's]
    #[arg(long = "repeat", alias = "repeats", value_name = "N", value_parser = values::whole::<usize>(1..=10_000), conflicts_with_all = ["verify", "verify_only", "state"])]
    repeats: Option<usize>,
    /// Second back end, measured in turns with the first: A B, B A, ...
    #[arg(long, value_name = "SOCKET", requires = "socket", conflicts_with_all = ["verify", "verify_only", "state"])]
    against: Option<PathBuf>,
    /// Save every measurement to a file, for --compare
    #[arg(long, value_name = "FILE", conflicts_with_all = ["verify", "verify_only", "state"])]
    save: Option<PathBuf>,
    /// Compare with a saved run, load by load
    #[arg(long, value_name = "FILE", conflicts_with_all = ["against", "verify", "verify_only", "state"])]
    compare: Option<PathBuf>,
    /// Fail if a comparison says "worse"
    #[arg(long)]
    fail_on_worse: bool,
    /// Write the report as a page with pictures (or as .txt or .json)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["verify", "verify_only", "state"])]
    html: Option<PathBuf>,
    /// Install missing programs by apt-get (as root), and fio with libblkio into the cache
    #[arg(long)]
    install: bool,
    /// Directory on a RAM disk (tmpfs) for images [default: /dev/shm or another]
    #[arg(long, value_name = "DIR", requires = "profile")]
    ram_dir: Option<PathBuf>,
    /// Directory on the measured disk [default: the current one or /var/tmp]
    #[arg(long, value_name = "DIR", requires = "profile")]
    disk_dir: Option<PathBuf>,
    /// List the built-in profiles and exit
    #[arg(long)]
    list_profiles: bool,
    /// Print a built-in profile and exit
    #[arg(long, value_name = "NAME", value_parser = parse_profile)]
    show_profile: Option<String>,
}

/// Parses the name of a profile that comes with vlane.
fn parse_profile(text: &str) -> Result<String, String> {
    values::one_of(text, "profile", vlane_bench::embedded_names().map(|(name, _)| name))
}

impl RunsArgs {
    /// Prints the profiles' names, or one profile, if that is requested.
    fn shows_profiles(&self) -> bool {
        if self.list_profiles {
            for (name, title) in vlane_bench::embedded_names() {
                println!("{name:<12} {title}");
            }
        } else if let Some(name) = &self.show_profile {
            // The name was parsed as one of those that there are.
            print!("{}", vlane_bench::embedded(name).unwrap_or_default());
        }
        self.list_profiles || self.show_profile.is_some()
    }

    /// True if one of these options was given. An installation alone makes no runs.
    pub(super) fn is_wanted(&self) -> bool {
        *self != Self { install: self.install, ..Self::default() }
    }
}

impl BenchArgs {
    /// The command line's load, for several runs.
    fn repeated_load(&self) -> anyhow::Result<Load> {
        for (set, name) in [
            (self.direct, "--no-indirect"),
            (self.no_event_idx, "--no-event-idx"),
            (self.queue_size.is_some(), "--queue-size"),
            (self.ios.is_some(), "--ios"),
            (self.rw == "idle", "--rw idle"),
        ] {
            if set {
                usage!("{name} is for a single run; it does not go with several");
            }
        }
        self.load(self.pattern()?.context("--rw")?)
    }

    /// Refuses a profile that writes to a back end that was not started for it, unless that was
    /// said to be all right.
    fn check_overwrite(&self, profile: &Profile) -> anyhow::Result<()> {
        let writes = profile.loads.iter().find(|load| load.rw.0.changes_data());
        let others = profile.targets.iter().find(|target| target.backend == Backend::Socket);
        match (writes, others.and_then(|target| target.socket.as_deref())) {
            (Some(load), Some(socket)) => {
                self.may_overwrite(socket, &format!("the load `{}`", load.name))
            }
            _ => Ok(()),
        }
    }

    /// The loads and targets to measure.
    fn profile(&self) -> anyhow::Result<Profile> {
        let mut profile = match &self.runs.profile {
            Some(name) => Profile::find(name)?,
            None => {
                let mut profile = Profile::of("vlane-lab bench", vec![self.repeated_load()?]);
                (profile.time, profile.ramp) = (self.time(), self.ramp());
                profile
            }
        };
        if let Some(socket) = &self.socket {
            profile.targets = vec![Target::at(socket)];
            profile.targets.extend(self.runs.against.as_deref().map(Target::at));
            if profile.targets.len() == 2 && profile.targets[0] == profile.targets[1] {
                usage!(
                    "--against {}: that is the same socket; measure two back ends",
                    socket.display()
                );
            }
        }
        profile.repeats = self.runs.repeats.unwrap_or(profile.repeats);
        profile.time = self.time.unwrap_or(profile.time);
        profile.ramp = self.ramp.unwrap_or(profile.ramp);
        let starts = profile.targets.iter().any(|target| target.backend != Backend::Socket);
        let fio = profile.targets.iter().any(|target| target.client == Client::Fio);
        if self.runs.install && !starts && !fio {
            usage!("--install: back ends that already run need no installation");
        }
        Ok(profile)
    }
}

/// Runs the command.
///
/// # Errors
/// Obstacles to the measurements; with --fail-on-worse, a result that is worse.
pub(super) fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let runs = &args.runs;
    if runs.shows_profiles() {
        return Ok(());
    }
    let profile = args.profile()?;
    if runs.fail_on_worse && runs.compare.is_none() && profile.targets.len() < 2 {
        usage!("--fail-on-worse: give a baseline by --compare or --against");
    }
    args.check_overwrite(&profile)?;
    // Faults that would appear after the measurements are reported before them.
    let older = runs.compare.as_deref().map(Saved::read).transpose()?;
    if let Some(older) = &older {
        vlane_bench::check_saved(&profile, older)?;
    }
    let output =
        OutputArgs { html: runs.html.clone(), json: args.json.clone(), overwrite: args.overwrite };
    output.check()?;
    let save = runs.save.as_deref().map(|path| Saved::output(path, args.overwrite.force));
    save.as_ref().map_or(Ok(()), Output::check)?;
    let steps = profile.loads.len() * profile.targets.len() * profile.repeats;
    let measured = called(|call| measure(args, &profile, call, steps))?;
    // The report is shown before an error of this file: the measurements took their time.
    let saved = save.as_ref().map_or(Ok(()), |output| measured.write(output));
    let (comparisons, missing) = match &older {
        Some(older) => against_saved(&measured, older)?,
        None => (between_targets(&measured), Vec::new()),
    };
    for name in missing {
        eprintln!("not in the saved run, so not compared: {name}");
    }
    let report = vlane_bench::report(
        &measured,
        &comparisons,
        older.as_ref().map(|older| older.created.as_str()),
    );
    match output.show(&report) {
        // The end of this function says how much is missing.
        Err(error) if !error.is::<exit::Partial>() => return Err(error),
        _ => {}
    }
    saved?;
    tell_written(&output);
    if runs.fail_on_worse && is_worse(&comparisons) {
        return Err(
            exit::Missed("worse than the baseline (the verdicts are above)".to_owned()).into()
        );
    }
    if measured.partial {
        let targets = measured.loads.iter().flat_map(|load| &load.targets);
        let made: usize = targets.map(|target| target.runs.len()).sum();
        return Err(exit::Partial(format!(
            "interrupted after {made} of {}: the result is of those only",
            counted(steps, "measurement")
        ))
        .into());
    }
    Ok(())
}

/// Makes the measurements, in so many steps, and shows the progress meanwhile.
fn measure(
    args: &BenchArgs,
    profile: &Profile,
    call: &Call<'_>,
    steps: usize,
) -> anyhow::Result<Saved> {
    let (runs, host) = (&args.runs, &Installs { install: args.runs.install }.host()?);
    let setting = Setting {
        call,
        host,
        client_cpus: &args.cpus,
        ram_dir: runs.ram_dir.as_deref(),
        disk_dir: runs.disk_dir.as_deref(),
    };
    let each = profile.time + profile.ramp;
    if runs.repeats.is_none() && runs.profile.is_none() {
        // One option makes several measurements of one.
        let (times, seconds) = (counted(steps, "time"), each.as_secs_f64());
        eprintln!(
            "measuring {times}, {seconds:.1} s each, because one has no spread; --repeat 1 \
             measures once"
        );
    }
    let mut progress = Progress::new(steps).expecting(each);
    let measured = vlane_bench::measure(profile, &setting, &mut progress);
    match &args.socket {
        Some(socket) => explain::connecting(socket, measured),
        None => Ok(measured?),
    }
}

/// Names the files of the report, to a person.
fn tell_written(output: &OutputArgs) {
    for path in output.files() {
        if std::io::stderr().is_terminal() {
            // The report is written; a missing listener is no reason to fail.
            let _ = writeln!(std::io::stderr(), "written: {}", path.display());
        }
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
        args: BenchArgs,
    }

    fn parse(words: &[&str]) -> Result<BenchArgs, clap::Error> {
        Only::try_parse_from(["bench"].iter().chain(words)).map(|only| only.args)
    }

    #[test]
    fn conflicting_options_are_refused() {
        for words in [
            &[] as &[&str],
            &["s", "--profile", "quick", "--rw", "read"],
            &["s", "--profile", "quick", "--rate", "5"],
            &["--profile", "quick", "--against", "t"],
            &["s", "--compare", "f", "--against", "t"],
            &["s", "--verify", "--repeat", "3"],
            &["s", "--repeat", "0"],
            &["s", "--repeat", "3", "--bs", "1000"],
            &["s", "--arrivals", "poisson"],
            &["s", "--ram-dir", "/dev/shm"],
        ] {
            assert!(parse(words).is_err(), "{words:?}");
        }
        for words in [
            &["s", "--repeat", "3", "--no-indirect"] as &[&str],
            &["s", "--repeat", "3", "--ios", "5"],
            &["s", "--repeat", "3", "--rw", "idle"],
            &["s", "--against", "s"],
            &["s", "--profile", "no-such-profile"],
            &["s", "--profile", "quick", "--install"],
        ] {
            assert!(parse(words).unwrap().profile().is_err(), "{words:?}");
        }
        assert!(!parse(&["s"]).unwrap().runs.is_wanted(), "a single run stays what it was");
    }

    #[test]
    fn options_become_a_single_runs_load() {
        let words = [
            "s",
            "--repeat",
            "3",
            "--rw",
            "randrw:70",
            "--bs",
            "8k",
            "--depth",
            "4",
            "--jobs",
            "2",
            "--rate",
            "20k",
            "--arrivals",
            "poisson",
            "--flush-every",
            "9",
            "--ioprio",
            "be/3",
            "--wait",
            "poll",
            "--batch",
            "2",
            "--offset",
            "1M",
            "--size",
            "2M",
            "--seed",
            "5",
            "--packed",
            "--segments",
            "2",
            "--write-cache",
            "on",
            "--time",
            "2s",
            "--ramp",
            "1s",
        ];
        let args = parse(&words).unwrap();
        let profile = args.profile().unwrap();
        let load = args.load("randrw:70".parse().unwrap()).unwrap();
        assert_eq!(profile.loads, std::slice::from_ref(&load));
        assert_eq!(format!("{:?}", load.session()), format!("{:?}", args.session(&load)));
        assert_eq!((profile.repeats, profile.targets.len()), (3, 1));
        let two = parse(&["s", "--profile", "quick", "--against", "t", "--time", "7s"])
            .unwrap()
            .profile()
            .unwrap();
        assert_eq!((two.targets.len(), two.time.as_secs()), (2, 7));
    }
}
