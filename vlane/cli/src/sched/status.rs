//! `vlane sched status`: the state of the scheduler, once; for people, scripts and monitoring.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use vlane_error::counted;
use vlane_sched::ErrorKind;
use vlane_sched::live::socket::Client;
use vlane_sched::live::state::DaemonState;
use vlane_socket::printable;

use super::settings::runtime_dir;
use crate::output::{self, Overwrite};

/// Exit statuses, as `systemctl status` has them.
const NOT_RUNNING: i32 = 3;
const UNKNOWN: i32 = 4;
/// The heading of the machines' table.
const HEADING: &str = "
 process     user vCPUs weight    CPU%  ready%  share%      of    events    boosts   denied  \
 first vCPU
";
/// The socket's name.
const STATE: &str = "sched-state.sock";

/// Show whether a scheduler runs, its method, its machines and its budgets
///
/// The exit status is 0 if a scheduler runs, 3 if none runs, and 4 if this is unknown.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Write the state as JSON; `-` is standard output and replaces the text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    overwrite: Overwrite,
    /// Socket of the scheduler [default: /run/vlane-sched/sched-state.sock]
    ///
    /// The default is in $XDG_RUNTIME_DIR without root.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// The JSON. docs/src/sched.md describes it.
#[derive(Debug, Serialize)]
struct Answer {
    schema: &'static str,
    /// `None`: that is not known.
    running: Option<bool>,
    socket: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    machines: Vec<Machine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<DaemonState>,
}

/// Resources of one machine, all its vCPUs together.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Machine {
    pid: u32,
    user: u32,
    /// Of its first vCPU.
    name: String,
    vcpus: usize,
    weight: u32,
    events: u64,
    boosts: u64,
    denied: u64,
    cpu_percent: f64,
    ready_percent: f64,
    share_percent: f64,
    entitled_percent: f64,
}

/// vCPUs of one process are one machine.
fn machines(state: &DaemonState) -> Vec<Machine> {
    let mut machines: BTreeMap<u32, Machine> = BTreeMap::new();
    for vcpu in &state.vcpus {
        let machine = machines.entry(vcpu.pid).or_insert_with(|| Machine {
            pid: vcpu.pid,
            user: vcpu.user,
            name: vcpu.name.clone(),
            weight: vcpu.weight,
            ..Machine::default()
        });
        machine.vcpus += 1;
        machine.events += vcpu.events;
        machine.boosts += vcpu.boosts + vcpu.wake_boosts;
        machine.denied += vcpu.denied;
        machine.cpu_percent += vcpu.cpu_percent;
        machine.ready_percent += vcpu.ready_percent;
        machine.share_percent += vcpu.share_percent;
        machine.entitled_percent += vcpu.entitled_percent;
    }
    machines.into_values().collect()
}

fn text(path: &Path, state: &DaemonState, machines: &[Machine]) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "vlane sched: running (process {}), {} by {}{}, up {:.0} s, own CPU {:.2} %",
        state.pid,
        printable(&state.policy),
        printable(&state.vehicle),
        if state.is_express_only() { ", express completions only" } else { "" },
        state.uptime,
        state.daemon_cpu / state.uptime.max(1e-3) * 100.0
    );
    let _ = writeln!(
        text,
        "state at {}; {} of {}",
        path.display(),
        counted(state.vcpus.len(), "vCPU"),
        counted(machines.len(), "machine")
    );
    if !machines.is_empty() {
        text += HEADING;
    }
    for machine in machines {
        let _ = writeln!(
            text,
            "{:>8} {:>8} {:>5} {:>6} {:>7.1} {:>7.1} {:>7.1} {:>7.1} {:>9} {:>9} {:>8}  {}",
            machine.pid,
            machine.user,
            machine.vcpus,
            machine.weight,
            machine.cpu_percent,
            machine.ready_percent,
            machine.share_percent,
            machine.entitled_percent,
            machine.events,
            machine.boosts,
            machine.denied,
            printable(&machine.name)
        );
    }
    if !state.budgets.is_empty() {
        let _ =
            writeln!(text, "\n{:<20} {:>12} {:>9}", "real-time budget of", "% of a CPU", "left ms");
    }
    for budget in &state.budgets {
        let of = printable(&budget.of).to_string();
        let _ = writeln!(text, "{of:<20} {:>12.1} {:>9.1}", budget.percent, budget.left_ms);
    }
    let denied = |name: &str| state.counters.get(name).copied().unwrap_or(0);
    if state.counters.contains_key("denied_rt_budget") {
        let _ = writeln!(
            text,
            "denied for want of budget: {}, of these a user's {}, a machine's {}",
            denied("denied_rt_budget"),
            denied("denied_user_budget"),
            denied("denied_machine_budget")
        );
    }
    text
}

fn ask(path: &Path) -> vlane_sched::Result<Option<DaemonState>> {
    match Client::connect(path, false).and_then(|mut client| client.next_state()) {
        Ok(state) => Ok(state.map(|(_, state)| state)),
        Err(error) if error.kind() == ErrorKind::Gone => Ok(None),
        Err(error) => Err(error),
    }
}

/// Where a scheduler is looked for: the user's own one, then the system's.
pub(super) fn usual_places() -> Vec<PathBuf> {
    let own = runtime_dir().join(STATE);
    // Earlier schedulers have it in `/run/vlane`. The last one is what is named when none runs.
    let [system, earlier] =
        ["/run/vlane-sched", "/run/vlane"].map(|dir| Path::new(dir).join(STATE));
    if own == system { vec![earlier, own] } else { vec![own, earlier, system] }
}

/// The first that answers; otherwise the first of which it cannot be found out.
fn ask_all(places: &[PathBuf]) -> (PathBuf, vlane_sched::Result<Option<DaemonState>>) {
    let mut first: Option<(PathBuf, vlane_sched::Result<Option<DaemonState>>)> = None;
    for path in places {
        match ask(path) {
            Ok(Some(state)) => return (path.clone(), Ok(Some(state))),
            asked => {
                if first.as_ref().is_none_or(|(_, first)| first.is_ok() && asked.is_err()) {
                    first = Some((path.clone(), asked));
                }
            }
        }
    }
    first.unwrap_or_else(|| (PathBuf::new(), Ok(None)))
}

/// Runs the command. Ends the process with the status that says what was found.
///
/// # Errors
///
/// The answer cannot be written as JSON.
pub fn run(args: &StatusArgs) -> anyhow::Result<()> {
    let places = args.socket.clone().map_or_else(usual_places, |path| vec![path]);
    let (path, asked) = ask_all(&places);
    let (status, running, why, state) = match asked {
        Ok(Some(state)) => (0, Some(true), None, Some(state)),
        Ok(None) => {
            let places: Vec<String> =
                places.iter().map(|path| path.display().to_string()).collect();
            let why = format!(
                "no scheduler runs at {}; start one with `vlane sched run`, or give its socket by \
                 --socket",
                places.join(" or ")
            );
            (NOT_RUNNING, Some(false), Some(why), None)
        }
        Err(error) => (UNKNOWN, None, Some(format!("{:#}", anyhow::Error::from(error))), None),
    };
    let machines = state.as_ref().map(machines).unwrap_or_default();
    // A caller that does not read it has the exit status.
    if !args.json.as_deref().is_some_and(output::is_standard) {
        match &state {
            Some(state) => print!("{}", text(&path, state, &machines)),
            None => println!("vlane sched: {}", why.as_deref().unwrap_or_default()),
        }
    }
    if let Some(file) = &args.json {
        let socket = path.display().to_string();
        let answer =
            Answer { schema: "vlane-sched-status/1", running, socket, why, machines, state };
        output::give_json(file, &serde_json::to_string(&answer)?, args.overwrite)?;
    }
    if status == 0 {
        return Ok(());
    }
    crate::print::finish()?;
    std::process::exit(status)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use vlane_sched::live::state::{BudgetState, VcpuState};

    #[test]
    fn vcpus_of_one_process_share_a_line() {
        let vcpu = |pid, name: &str| VcpuState {
            pid,
            user: 1000,
            name: name.into(),
            boosts: 2,
            wake_boosts: 1,
            ..VcpuState::default()
        };
        let vcpus = vec![vcpu(7, "\x1b[2Ja"), vcpu(7, "b"), vcpu(8, "c")];
        let budgets = vec![BudgetState { of: "machine \x07".into(), percent: 47.5, left_ms: -1.0 }];
        let state = DaemonState { vcpus, budgets, pid: 42, ..DaemonState::default() };
        let machines = machines(&state);
        let seen: Vec<_> = machines.iter().map(|m| (m.pid, m.vcpus, m.boosts, m.user)).collect();
        assert_eq!(seen, [(7, 2, 6, 1000), (8, 1, 3, 1000)]);
        let text = text(Path::new("/s"), &state, &machines);
        assert!(text.contains("process 42") && text.contains("3 vCPUs of 2 machines"), "{text}");
        assert!(!text.contains("express"), "{text}");
        assert!(text.contains("47.5") && text.contains("\\u{1b}[2Ja"), "{text}");
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    }
}
