//! `vlane-lab bench --verify`: data that prove themselves, across the death of the back end.

use anyhow::{Context, bail};
use vlane_bench::Load;
use vlane_driver::{
    Mix, Pattern, Session, SessionOptions, VerifyReport, VerifyState, Workload, verify_check,
    verify_load,
};
use vlane_error::counted;

use super::{BenchArgs, group, with_progress};
use crate::{exit, explain};

/// The reports of one invocation, in the order in which they were made.
#[derive(Debug, Default, serde::Serialize)]
struct Reports {
    /// The state file's blocks, compared before any write.
    before: Option<VerifyReport>,
    /// The load itself.
    load: Option<VerifyReport>,
    /// Everything that was written, compared.
    after: Option<VerifyReport>,
    /// True if one of them was interrupted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    partial: bool,
}

pub(super) fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let pattern = args.rw.parse().map_err(anyhow::Error::msg).context("--rw")?;
    let load = args.load(pattern)?;
    let (session, options) = (args.session(&load), workload(args, &load)?);
    if !args.verify_only {
        args.may_overwrite(args.socket()?, "--verify")?;
    }
    let old = match &args.state {
        Some(path) if args.verify_only || path.exists() => Some(VerifyState::load(path)?),
        _ => None,
    };
    let mut reports = Reports::default();
    let outcome = steps(args, &session, &options, old, &mut reports);
    let given = args.give(&reports, text(&reports).trim_end());
    outcome?;
    given?;
    let all = [&reports.before, &reports.load, &reports.after];
    let mismatches: u64 = all.iter().filter_map(|r| r.as_ref()).map(|r| r.mismatches).sum();
    let errors: u64 = all.iter().filter_map(|r| r.as_ref()).map(|r| r.errors.total()).sum();
    if mismatches > 0 {
        bail!("the back end lost or damaged data: {mismatches} sectors have wrong data");
    }
    if errors > 0 {
        bail!("{} failed", counted(errors, "request"));
    }
    if reports.partial {
        let why =
            "interrupted: all compared data are right, but not all data were written or compared";
        return Err(exit::Partial(why.to_owned()).into());
    }
    Ok(())
}

fn steps(
    args: &BenchArgs,
    session: &SessionOptions,
    options: &Workload,
    old: Option<VerifyState>,
    reports: &mut Reports,
) -> anyhow::Result<()> {
    let socket = args.socket()?;
    let connect = || explain::connecting(socket, Session::connect(socket, session));
    let check = |state: &mut VerifyState| {
        let session = connect()?;
        with_progress(|progress| verify_check(session, state, progress))
    };
    let save = |state: &VerifyState| args.state.as_ref().map_or(Ok(()), |path| state.save(path));
    let mut state = match old {
        None => VerifyState::new(&connect()?, options)?,
        Some(mut state) => {
            let (report, ended) = check(&mut state)?;
            reports.partial |= ended;
            let gone = report.backend_gone;
            reports.before = Some(report);
            save(&state)?;
            if gone {
                bail!("the back end hung up during the comparison");
            }
            state
        }
    };
    if args.verify_only || reports.partial {
        return Ok(());
    }
    if let Some(path) = args.state.as_ref().filter(|path| path.exists()) {
        // A state that is older than the data would accuse the back end wrongly: there is none
        // while we write.
        std::fs::remove_file(path)
            .with_context(|| format!("{}: cannot remove the old state", path.display()))?;
    }
    let session = connect()?;
    let ((saved, report), ended) = with_progress(|progress| {
        let result = verify_load(session, &mut state, options, progress);
        Ok((save(&state), result))
    })?;
    reports.partial |= ended;
    let report = report?;
    let gone = report.backend_gone;
    let seconds = report.seconds;
    reports.load = Some(report);
    saved?;
    if gone {
        match &args.state {
            Some(path) => bail!(
                "the back end hung up after {seconds:.1} s; the list of writes is in {}: start it \
                 again, then use --verify-only --state {0}",
                path.display()
            ),
            None => bail!(
                "the back end hung up after {seconds:.1} s; to check it after a restart, give \
                 --state FILE"
            ),
        }
    }
    let (report, ended) = check(&mut state)?;
    reports.after = Some(report);
    reports.partial |= ended;
    save(&state)?;
    Ok(())
}

fn workload(args: &BenchArgs, load: &Load) -> anyhow::Result<Workload> {
    let pattern = match load.rw.0 {
        p if !p.random => {
            usage!("--rw {}: --verify goes to random addresses; randrw:N is possible", args.rw)
        }
        Pattern { mix: Mix::ReadPercent(100), .. } => Workload::verified().pattern,
        p @ Pattern { mix: Mix::ReadPercent(_), .. } => p,
        _ => usage!("--rw {}: --verify reads and writes; randrw:N is possible", args.rw),
    };
    let workload = load.workload(args.time(), args.ramp(), &args.cpus);
    Ok(Workload { pattern, limit: args.limit(), ..workload })
}

fn text(reports: &Reports) -> String {
    let mut out = String::from(super::interrupted_line(reports.partial));
    for (name, report) in
        [("found", &reports.before), ("load", &reports.load), ("read back", &reports.after)]
    {
        let Some(r) = report else { continue };
        let verdict = if r.mismatches == 0 {
            "all as it must be".into()
        } else {
            format!("{} SECTORS WRONG", r.mismatches)
        };
        out += &format!(
            "  {name:<10} {} blocks read, {} written, {} flushes in {:.1} s: {verdict}\n",
            group(r.reads as f64),
            group(r.writes as f64),
            group(r.flushes as f64),
            r.seconds
        );
        for mismatch in &r.first {
            out += &format!("             {mismatch}\n");
        }
        if r.unflushed_lost > 0 {
            out += &format!(
                "             {} blocks lost a write that was acknowledged and never flushed: \
                 that is allowed\n",
                group(r.unflushed_lost as f64)
            );
        }
        if r.errors.total() > 0 {
            out += &format!("             {} failed\n", counted(r.errors.total(), "request"));
        }
    }
    out
}
