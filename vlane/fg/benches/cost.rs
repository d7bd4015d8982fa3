//! Measures the daemon's share of a CPU, and its delay: `cargo bench -p vlane-fg`. Takes nine
//! minutes and needs what the tests need.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement: what fails ends it")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use common::{Daemon, Shell, foreground, may_raise, values};

const RAISED: &str = "-10 be/0";
const OWN: &str = "0 none";
/// Looking finds no change.
const NEVER: [&str; 2] = ["--look-every", "3600000"];
const EVENTS: &str = "process events";
const IDLE: Duration = Duration::from_secs(60);
/// The number of repetitions of each change.
const TIMES: usize = 50;
/// A person's. A quicker one meets the share of a CPU that looking may take.
const PAUSE: Duration = Duration::from_millis(500);

fn main() {
    // `cargo test --benches` only builds it.
    if !std::env::args().any(|argument| argument == "--bench") || !may_raise() {
        return;
    }
    println!("four shells at their prompts, nothing happens for {} s", IDLE.as_secs());
    idle("process events, and looking every 200 ms", &[]);
    idle("looking every 200 ms", &["--no-events"]);
    command_lines();
    println!(
        "from the moment that a terminal has another foreground group until its values are set, \
         {TIMES} times each, in ms"
    );
    println!("{:30} {:20} {:>7} {:>7} {:>7}", "", "", "median", "90th", "last");
    late("hook", &[&["--no-events"], &NEVER[..]].concat(), true);
    late(EVENTS, &NEVER, false);
    late("looking every 200 ms", &["--no-events"], false);
    late("all three", &[], true);
}

/// CPU time of a process so far.
fn worked(daemon: &Daemon) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/schedstat", daemon.pid())).unwrap();
    Duration::from_nanos(stat.split_ascii_whitespace().next().unwrap().parse().unwrap())
}

fn idle(what: &str, options: &[&str]) {
    let (first, others) = (Shell::bash(), [Shell::bash(), Shell::bash(), Shell::bash()]);
    let mut all = options.to_vec();
    others.iter().for_each(|shell| all.extend(["--terminal", &shell.name]));
    let daemon = Daemon::new(&first, &all);
    // Its state after the start is over.
    std::thread::sleep(Duration::from_secs(15));
    let (began, before) = (Instant::now(), worked(&daemon));
    std::thread::sleep(IDLE);
    let (took, worked) = (began.elapsed().as_secs_f64(), (worked(&daemon) - before).as_secs_f64());
    println!(
        "{what:45} {:.4} % of a CPU, {:.3} ms for each of five looks a second",
        worked / took * 100.0,
        worked / took / 5.0 * 1e3
    );
}

/// A command line and the prompt after it ring the bell once each.
fn command_lines() {
    const LINES: u32 = 8;
    let mut shell = Shell::bash();
    let daemon = Daemon::new(&shell, &[&["--no-events"], &NEVER[..]].concat());
    hang(&mut shell, &daemon);
    std::thread::sleep(Duration::from_secs(5));
    let before = worked(&daemon);
    for _ in 0..LINES {
        shell.answer("/bin/true");
        std::thread::sleep(Duration::from_secs(5));
    }
    let each = (worked(&daemon) - before).as_secs_f64() / f64::from(LINES) * 1e3;
    println!("{:45} {each:.3} ms for its eleven looks", "a command line, one every 5 s, hook only");
}

fn hang(shell: &mut Shell, daemon: &Daemon) {
    let (program, dir) = (common::PROGRAM, daemon.dir.display());
    shell.answer(&format!("eval \"$({program} hook bash --state-dir {dir})\""));
}

fn late(way: &str, options: &[&str], hooked: bool) {
    let mut shell = Shell::bash();
    let daemon = Daemon::new(&shell, options);
    if hooked {
        hang(&mut shell, &daemon);
    }
    let (mut behind, mut fg, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    let me = shell.pid();
    for _ in 0..TIMES {
        let job = shell.job("JOB &");
        behind.push(until_it_has(job, OWN));
        std::thread::sleep(PAUSE);
        shell.line("fg");
        seen(&shell, job);
        // There is no event for that.
        if way != EVENTS {
            fg.push(until_it_has(job, RAISED));
        }
        std::thread::sleep(PAUSE);
        shell.keys("\x03");
        seen(&shell, me);
        ends.push(until_it_has(me, RAISED));
        std::thread::sleep(PAUSE);
    }
    for (what, mut times) in
        [("started with &", behind), ("fg of a job", fg), ("the job ends", ends)]
    {
        if times.is_empty() {
            continue;
        }
        times.sort_unstable();
        let at = |part: usize| times[(times.len() - 1) * part / 100].as_secs_f64() * 1e3;
        println!("{way:30} {what:20} {:7.2} {:7.2} {:7.2}", at(50), at(90), at(100));
    }
}

fn seen(shell: &Shell, group: i32) {
    while foreground(shell.pid()) != Some(group) {
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn until_it_has(pid: i32, wanted: &str) -> Duration {
    let began = Instant::now();
    while values(pid).as_deref() != Some(wanted) {
        std::thread::sleep(Duration::from_micros(100));
        // The way alone may not be enough: that is an answer too.
        if began.elapsed() > Duration::from_secs(5) {
            break;
        }
    }
    began.elapsed()
}
