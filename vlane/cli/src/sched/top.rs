//! `vlane sched top`: the live scheduler's work, for people and for programs.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use vlane_client::Output;
use vlane_sched::ErrorKind;
use vlane_sched::live::socket::Client;
use vlane_sched::live::state::DaemonState;
use vlane_socket::printable;

use super::status::usual_places;
use crate::output::{Overwrite, is_standard};

/// Show the running scheduler's vCPUs, once a second
///
/// Shows credits, loans, responses, and waits for a CPU.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Write a line of JSON per second; `-` is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    overwrite: Overwrite,
    /// Show one sample and exit
    #[arg(long)]
    once: bool,
    /// Socket of the scheduler [default: /run/vlane-sched/sched-state.sock]
    ///
    /// The default is in $XDG_RUNTIME_DIR without root.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// The heading of the table.
const HEADING: &str = "\
vCPU                 state     weight   credit    line    left    debt      cm   events   boosts  \
 denied    p50 us    p99 us   CPU% ready% share%     of
";

/// A state as a table.
fn table(state: &DaemonState) -> String {
    let mut text = String::new();
    let counter = |name: &str| state.counters.get(name).copied().unwrap_or(0);
    let _ = writeln!(
        text,
        "vlane sched: {} by {}{}, up {:.0} s, own CPU {:.2} %; denied for want of budget {}, \
         boosts timed out {}",
        printable(&state.policy),
        printable(&state.vehicle),
        if state.is_express_only() { ", express completions only" } else { "" },
        state.uptime,
        state.daemon_cpu / state.uptime.max(1e-3) * 100.0,
        counter("denied_rt_budget"),
        counter("boosts_timed_out"),
    );
    text += HEADING;
    for vcpu in &state.vcpus {
        let name: String = printable(&vcpu.name).to_string().chars().take(20).collect();
        let _ = writeln!(
            text,
            "{:<20} {:<9} {:>6} {:>8.1} {:>7.2} {:>7.2} {:>7.2} {:>7} {:>8} {:>8} {:>7} {:>9.1} \
             {:>9.1} {:>6.1} {:>6.1} {:>6.1} {:>6.1}",
            name,
            printable(&vcpu.state).to_string(),
            vcpu.weight,
            vcpu.credit_ms,
            vcpu.line_ms,
            vcpu.left_ms,
            vcpu.debt_ms,
            vcpu.cm_ppm,
            vcpu.events,
            vcpu.boosts + vcpu.wake_boosts,
            vcpu.denied,
            vcpu.response_p50_us,
            vcpu.response_p99_us,
            vcpu.cpu_percent,
            vcpu.ready_percent,
            vcpu.share_percent,
            vcpu.entitled_percent,
        );
    }
    text
}

/// As much of a text as a terminal shows.
fn fitting(text: &str, columns: usize, rows: usize) -> String {
    let lines = text.lines().take(rows.saturating_sub(1));
    lines.map(|line| line.chars().take(columns).collect::<String>() + "\x1b[K\n").collect()
}

/// Reads the first scheduler that is there: the user's own, then the system's.
fn connect(args: &TopArgs) -> vlane_sched::Result<Client> {
    let places = args.socket.clone().map_or_else(usual_places, |path| vec![path]);
    let (last, others) =
        places.split_last().map_or((Path::new(""), &[][..]), |(last, all)| (last, all));
    for path in others {
        match Client::connect(path, !args.once) {
            Err(error) if error.kind() == ErrorKind::Gone => {}
            connected => return connected,
        }
    }
    Client::connect(last, !args.once)
}

/// Runs the command.
///
/// # Errors
///
/// There is no scheduler, or it is not understood.
pub fn run(args: &TopArgs) -> anyhow::Result<()> {
    let mut client = connect(args)?;
    let json = args.json.as_deref();
    let mut out: Box<dyn Write> = match json.filter(|path| !is_standard(path)) {
        Some(path) => Box::new(Output::new(path).force(args.overwrite.force).create()?),
        None => Box::new(std::io::stdout()),
    };
    let live = std::io::stdout().is_terminal() && !args.once && json.is_none();
    while let Some((line, state)) = client.next_state()? {
        let text = match (json.is_some(), live) {
            (true, _) => line,
            (false, false) => table(&state),
            (false, true) => {
                let (columns, rows) = terminal_size::terminal_size()
                    .map_or((80, 24), |(width, height)| {
                        (usize::from(width.0), usize::from(height.0))
                    });
                // Home, the lines, and an empty rest: no flicker, and the scroll-back is kept.
                format!("\x1b[H{}\x1b[J", fitting(&table(&state), columns, rows))
            }
        };
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            // A reader that closed the pipe has seen enough.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(anyhow::Error::new(error).context("cannot write the state")),
            Ok(()) if args.once => return Ok(()),
            Ok(()) => {}
        }
    }
    tracing::info!("the scheduler has ended");
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use vlane_sched::live::state::VcpuState;

    #[test]
    fn table_has_one_line_per_vcpu() {
        let vcpu = VcpuState {
            name: "a machine with a very long name".into(),
            credit_ms: -3.25,
            ..VcpuState::default()
        };
        let state = DaemonState { vcpus: vec![vcpu.clone(), vcpu], ..DaemonState::default() };
        let text = table(&state);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert_eq!(lines[1].len(), lines[2].len(), "{text}");
        assert!(lines[2].contains("-3.2"), "{text}");
        assert!(!text.contains("express"), "{text}");
        let express = DaemonState { completions: "express".into(), ..state };
        assert!(table(&express).contains("express completions only"));
    }

    #[test]
    fn foreign_names_are_shown_escaped() {
        let vcpu = VcpuState {
            name: "\x1b[2J\rvCPU".into(),
            state: "\x07".into(),
            ..VcpuState::default()
        };
        let state =
            DaemonState { vcpus: vec![vcpu], policy: "\x1b]0;".into(), ..DaemonState::default() };
        let text = table(&state);
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        assert!(text.contains("\\u{1b}[2J\\rvCPU"), "{text}");
    }

    #[test]
    fn small_terminal_shows_the_first_lines() {
        assert_eq!(fitting("abcdef\nghi\njkl\n", 3, 3), "abc\x1b[K\nghi\x1b[K\n");
    }
}
