//! The daemon: sleeps until the bell rings, the kernel reports a process, or it is time to look.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::bell::Bell;
use crate::budget::Budget;
use crate::dir::{Dir, OF_ROOT};
use crate::events::{Event, Events};
use crate::look::Looker;
use crate::policy::LookReason;
use crate::privileges;
use crate::record::{self, About};
use crate::say::say;
use crate::values::Raise;
use crate::{proc, sys};

/// The times of looks after the bell: the shell rings before it makes a job the foreground, and on
/// a busy machine long before.
const AFTER_BELL: [u64; 11] = [0, 1, 4, 10, 20, 50, 100, 250, 600, 1500, 4000];
/// And after an event: a shell takes its terminal back a moment after its job has ended.
const AFTER_EVENT: [u64; 8] = [0, 1, 5, 20, 60, 250, 1000, 4000];
/// Interval of looks for a daemon of root's.
const ROOT: Duration = Duration::from_secs(1);
/// The time that a daemon of root's waits for users' to withdraw.
const WITHDRAWAL: Duration = Duration::from_secs(4);

/// The daemon's options.
#[derive(Debug)]
pub struct Options {
    /// The values to raise to.
    pub raise: Raise,
    /// The directory of the state.
    pub dir: PathBuf,
    /// Interval of looks.
    pub every: Duration,
    /// The device numbers of the terminals that count; all of them if there are none.
    pub terminals: Vec<i32>,
    /// True if it listens to process events.
    pub events: bool,
}

/// Runs until it is asked to end.
pub fn run(options: &Options) -> Result<()> {
    // A user who holds many of its descriptors must not keep others out.
    vlane_error::raise_descriptor_limit();
    let dir = Dir::make(&options.dir)?;
    let Some(_lock) = lock(&dir)? else {
        bail!("a daemon runs already in {} (vlane-fg status)", dir.path().display());
    };
    if of_root(&options.dir).is_some() {
        bail!("root's daemon already raises your foreground jobs; no other daemon is needed");
    }
    let (signal, from_signal) = UnixStream::pair()?;
    for number in [libc::SIGTERM, libc::SIGINT] {
        signal_hook::low_level::pipe::register(number, from_signal.try_clone()?)
            .context("signals")?;
    }
    // There is no configuration to read again, and a terminal that goes is no reason to end.
    let ignored = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(libc::SIGHUP, ignored).context("signals")?;
    let possible = privileges::try_out(options.raise)?;
    let bell = Bell::hang(&dir)?;
    let (events, no_events) = listen(options.events);
    let mut lacks = possible.lacks;
    lacks.extend(no_events);
    lacks.extend(privileges::autogroup());
    lacks.extend(privileges::warning(options.raise));
    let about = about(options, possible.raise, events.is_some(), &lacks)?;
    about.write(&dir)?;
    wait_for_withdrawal();

    let mut looker = Looker::new(dir, possible.raise)?;
    give_back(&mut looker, "left by a daemon before this one")?;
    let dir = Dir::make(&options.dir)?;
    let mut daemon = Daemon {
        looker: Looker::new(dir, possible.raise)?.only(options.terminals.clone()),
        bell,
        events,
        signal,
        every: options.every,
        dir: options.dir.clone(),
        plan: Vec::new(),
        way: LookReason::Start,
    };
    lacks.iter().for_each(|lack| say(lack));
    say(&format!("ready; {}", about.wakes.join(", ")));
    let result = daemon.work();
    let given_back = give_back(&mut daemon.looker, "raised by this daemon");
    record::remove_about(daemon.looker.dir());
    result.and(given_back)
}

/// A daemon that has just been killed can hold it for a moment.
fn lock(dir: &Dir) -> Result<Option<std::fs::File>> {
    for _ in 0..20 {
        if let Some(lock) = dir.lock()? {
            return Ok(Some(lock));
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    Ok(None)
}

/// Returns root's running daemon; `None` for root, and for root's directory.
fn of_root(dir: &Path) -> Option<About> {
    if dir == Path::new(OF_ROOT) || rustix::process::geteuid().is_root() {
        return None;
    }
    About::of_living(&Dir::open(Path::new(OF_ROOT)).ok()?)
}

/// Root's daemon waits until users' have restored all threads: it would take raised values for the
/// users' choice.
fn wait_for_withdrawal() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let users = std::fs::read_dir("/run/user").into_iter().flatten().flatten();
    let dirs: Vec<Dir> =
        users.filter_map(|user| Dir::open(&user.path().join("vlane-fg")).ok()).collect();
    let until = Instant::now() + WITHDRAWAL;
    while dirs.iter().any(|dir| About::of_living(dir).is_some()) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn listen(wanted: bool) -> (Option<Events>, Option<String>) {
    if !wanted {
        return (None, None);
    }
    match Events::listen() {
        Ok(events) => (Some(events), None),
        Err(why) => (None, Some(format!("no process events: {why}"))),
    }
}

fn about(options: &Options, raise: Raise, events: bool, lacks: &[String]) -> Result<About> {
    let pid = std::process::id().cast_signed();
    let mut wakes = vec!["woken by shells' hooks".to_owned()];
    wakes.extend(events.then(|| "by process events".to_owned()));
    wakes.push(format!("looking every {} ms", options.every.as_millis()));
    let io = raise.io.map_or_else(|| "left alone".to_owned(), |io| io.to_string());
    let start = proc::stat(pid).context("/proc is not mounted here")?.start;
    Ok(About { pid, start, wakes, lacks: lacks.to_vec(), nice: raise.nice, io })
}

/// Restores all; an error if a thread could not be restored.
fn give_back(looker: &mut Looker, what: &str) -> Result<()> {
    let stuck = looker.restore()?;
    for one in &stuck {
        say(&format!("{what}, not restored: {one}"));
    }
    Ok(())
}

struct Daemon {
    looker: Looker,
    bell: Bell,
    events: Option<Events>,
    signal: UnixStream,
    every: Duration,
    dir: PathBuf,
    /// Planned looks in addition to the regular ones.
    plan: Vec<Instant>,
    way: LookReason,
}

impl Daemon {
    fn work(&mut self) -> Result<()> {
        let mut regular = Instant::now();
        let mut budget = Budget::new(regular);
        let mut free = regular;
        let mut root = regular;
        let mut said = String::new();
        let mut worked = sys::worked();
        loop {
            let now = Instant::now();
            // It is deaf as long as it has spent more than its share, and no longer.
            let next = self.plan.iter().copied().chain([regular]).min().unwrap_or(regular);
            let until = if now < free { free } else { next };
            if self.sleep(until.saturating_duration_since(now), now < free)? {
                return Ok(());
            }
            let began = Instant::now();
            if began < free {
                continue;
            }
            self.hear();
            let due = self.plan.iter().any(|at| *at <= began);
            if due || regular <= began {
                if !due {
                    self.way = LookReason::Look;
                }
                self.plan.retain(|at| *at > began);
                match self.looker.look(self.way) {
                    Ok(true) => self.plan.push(began + Duration::from_millis(5)),
                    Ok(false) => said.clear(),
                    // Every raised value is written down; the next look tries again.
                    Err(error) => {
                        let error = format!("{error:#}");
                        if error != said {
                            say(&error);
                        }
                        said = error;
                    }
                }
                if regular <= began {
                    regular = began + self.every;
                    let _ = self.looker.write_rest();
                }
            }
            if root <= began {
                root = began + ROOT;
                if of_root(&self.dir).is_some() {
                    say("root's daemon runs now: this one gives everything back and ends");
                    return Ok(());
                }
            }
            let so_far = sys::worked();
            free = budget.spend(so_far.saturating_sub(worked), Instant::now());
            worked = so_far;
        }
    }

    /// Sleeps; returns true if it is asked to end. With `deaf`, only that ends the sleep.
    fn sleep(&self, time: Duration, deaf: bool) -> Result<bool> {
        let timeout = Timespec::try_from(time).context("a time to sleep")?;
        let mut fds = vec![PollFd::from_borrowed_fd(self.signal.as_fd(), PollFlags::IN)];
        if !deaf {
            fds.push(PollFd::from_borrowed_fd(self.bell.fd(), PollFlags::IN));
            fds.extend(
                self.events
                    .iter()
                    .map(|events| PollFd::from_borrowed_fd(events.fd(), PollFlags::IN)),
            );
        }
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(!fds[0].revents().is_empty()),
            Err(error) => Err(error).context("poll"),
        }
    }

    /// Takes note of what has been heard.
    fn hear(&mut self) {
        if self.bell.has_rung() {
            self.look_at(LookReason::Hook, &AFTER_BELL);
        }
        for _ in 0..1000 {
            let Some(event) = self.events.as_mut().and_then(Events::next) else { break };
            match event {
                Event::Fork { parent, child } => self.looker.born(child, parent),
                Event::Exec(pid) | Event::Session(pid) => {
                    self.looker.touch(pid);
                    self.look_at(LookReason::Event, &AFTER_EVENT[..1]);
                }
                Event::Exit(pid) if self.looker.is_raised(pid) => {
                    self.looker.touch(pid);
                    self.look_at(LookReason::Event, &AFTER_EVENT);
                }
                Event::Lost => {
                    self.looker.touch_all();
                    self.look_at(LookReason::Event, &AFTER_EVENT[..1]);
                }
                Event::Exit(_) | Event::Answer(_) => {}
            }
        }
    }

    fn look_at(&mut self, way: LookReason, after_ms: &[u64]) {
        let now = Instant::now();
        self.way = way;
        // An existing plan is as good: the plan does not grow.
        if way == LookReason::Hook || after_ms.len() > 1 {
            self.plan.clear();
        }
        if after_ms.len() > 1 || !self.plan.iter().any(|at| *at <= now) {
            self.plan.extend(after_ms.iter().map(|ms| now + Duration::from_millis(*ms)));
        }
    }
}

/// `vlane-fg restore`: restores the threads of a killed daemon. Returns its report, and true if all
/// could be restored.
pub fn restore(path: &Path) -> Result<(String, bool)> {
    let Ok(dir) = Dir::open(path) else {
        return Ok((format!("{}: no daemon has run\n", path.display()), true));
    };
    drop(dir);
    let dir = Dir::make(path)?;
    let Some(_lock) = lock(&dir)? else {
        bail!(
            "a daemon runs in {}: it restores when it is ended (kill PID; vlane-fg status)",
            path.display()
        );
    };
    let left = record::read(&dir)?;
    let threads: usize = left.known.values().map(|known| known.entries().count()).sum();
    // The raised threads are in the record; the way does not matter.
    let mut looker = Looker::new(dir, Raise { nice: 0, io: None })?;
    let stuck = looker.restore()?;
    for one in &stuck {
        say(&format!("not restored: {one}"));
    }
    record::remove_about(looker.dir());
    let told = format!(
        "{}: threads that were raised: {threads}; could not be restored: {}\n",
        path.display(),
        stuck.len()
    );
    Ok((told, stuck.is_empty()))
}
