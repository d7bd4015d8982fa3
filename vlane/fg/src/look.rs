//! Looks at the processes, as few as will do, and has the policy's changes made.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::apply::apply;
use crate::dir::Dir;
use crate::policy::{Known, LookReason, Memory, Outcome, Policy, ROOT, Seen, user_of};
use crate::proc::{self, LastId, OpenStat, Stat};
use crate::values::Raise;
use crate::{record, sys};

/// Interval of looks at all processes: some change their session or terminal long after their
/// start.
const EVERYTHING: Duration = Duration::from_secs(10);
/// The time for which a new process is looked at each time, in ticks: it will change its group or
/// session at once, if it does.
const YOUNG: u64 = 60;
/// The number of raised and of new processes that are looked at each time.
const AT_ONCE: usize = 16;
/// More new ids than these are found by listing all processes.
const NEW_IDS: i32 = 64;
/// The number of ids without a process that are kept in view.
const PROMISED: usize = 128;
/// The number of readings after changes, for new processes, before other work has its turn.
const PASSES: usize = 8;
/// The number of terminals of a user other than root that are looked at each time, each through a
/// file that is kept open. Others are looked at with all processes.
const LEADERS: usize = 64;
/// The longest time of a restore, and the time after which a fork may still come to light.
const RESTORING: Duration = Duration::from_secs(5);
const UNDER_WAY: Duration = Duration::from_millis(50);

/// The session leader of a terminal.
#[derive(Debug)]
struct Leader {
    file: OpenStat,
    foreground: i32,
    user: String,
}

/// The known state of processes that are looked at.
#[derive(Debug)]
pub struct Looker {
    policy: Policy,
    dir: Dir,
    /// The terminals that count; all of them if there are none.
    terminals: Vec<i32>,
    last: LastId,
    last_id: Option<i32>,
    /// Ids that were given out, with no process: a process has its id for a while before it can be
    /// seen.
    promised: Vec<(i32, u64)>,
    leaders: BTreeMap<i32, Leader>,
    marks: HashMap<i32, (i32, i32, i32, i32, u32, u64)>,
    young: Vec<(i32, u64)>,
    dirty: BTreeSet<i32>,
    /// The raised threads, and those raised a moment ago; and the place from which to look next.
    watched: Vec<i32>,
    turn: usize,
    everything: Option<Instant>,
    me: i32,
    written: Memory,
    unwritten: bool,
}

impl Looker {
    /// Begins with what the record in this directory says.
    pub fn new(dir: Dir, raise: Raise) -> Result<Self> {
        let memory = record::read(&dir)?;
        Ok(Self {
            policy: Policy::of(raise, memory),
            dir,
            terminals: Vec::new(),
            last: LastId::open()?,
            last_id: None,
            promised: Vec::new(),
            leaders: BTreeMap::new(),
            marks: HashMap::new(),
            young: Vec::new(),
            dirty: BTreeSet::new(),
            watched: Vec::new(),
            turn: 0,
            everything: None,
            me: std::process::id().cast_signed(),
            written: Memory::default(),
            unwritten: true,
        })
    }

    /// Only these terminals count.
    pub fn only(self, terminals: Vec<i32>) -> Self {
        Self { terminals, ..self }
    }

    /// The directory of its record.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// Looks, and makes the changes; returns true if more work is due soon.
    pub fn look(&mut self, way: LookReason) -> Result<bool> {
        if self.everything.is_none_or(|last| last.elapsed() >= EVERYTHING) {
            self.all()?;
        } else {
            self.new_ids()?;
            self.changed_leaders();
            self.changed_marks();
        }
        self.settle(way)
    }

    /// Marks this process to be read at the next look.
    pub fn touch(&mut self, pid: i32) {
        self.dirty.insert(pid);
    }

    /// Marks all processes to be read at the next look.
    pub fn touch_all(&mut self) {
        self.everything = None;
    }

    /// Process events have reported a child and its parent.
    pub fn born(&mut self, child: i32, parent: i32) {
        self.policy.born(child, parent);
    }

    /// Returns true if any thread of it is raised.
    pub fn is_raised(&self, pid: i32) -> bool {
        self.policy.is_raised(pid)
    }

    /// Restores all threads. Returns those that could not be restored, in words.
    pub fn restore(&mut self) -> Result<Vec<String>> {
        self.policy.halt();
        let begin = Instant::now();
        // Twice: a fork that was under way has what its parent had, and is seen a moment later.
        let mut settled = 0;
        while settled < 2 && begin.elapsed() < RESTORING {
            if settled > 0 {
                std::thread::sleep(UNDER_WAY);
            }
            self.everything = None;
            self.all()?;
            settled = if self.settle(LookReason::Start).unwrap_or(true) { 0 } else { settled + 1 };
        }
        let memory = self.policy.memory();
        let mut stuck = Vec::new();
        for (pid, known) in &memory.known {
            for (tid, entry) in known.entries() {
                let why = entry.stuck.as_deref().unwrap_or("it changes as fast as it is restored");
                stuck.push(format!(
                    "{pid} ({}), thread {tid}: had {}: {why}",
                    known.name, entry.old
                ));
            }
        }
        if stuck.is_empty() {
            record::remove(&self.dir);
        } else {
            record::write(&self.dir, memory)?;
        }
        Ok(stuck)
    }

    /// All processes are looked at: for the first time they are all to be read, then those that
    /// have changed, and what is raised.
    fn all(&mut self) -> Result<()> {
        let is_first = self.everything.replace(Instant::now()).is_none();
        self.new_ids()?;
        let there: BTreeSet<i32> = proc::processes()?.into_iter().collect();
        let ended: Vec<i32> =
            self.policy.known().keys().copied().filter(|pid| !there.contains(pid)).collect();
        ended.into_iter().for_each(|pid| self.gone(pid));
        self.marks.retain(|pid, _| there.contains(pid));
        let now = sys::ticks();
        self.watch();
        for pid in there {
            if is_first || self.policy.is_watched(pid, now) || self.has_changed(pid) {
                self.dirty.insert(pid);
            }
        }
        Ok(())
    }

    /// Notes which processes are raised, or were a moment ago. A process that is no longer raised
    /// is looked at in vain until the next time.
    fn watch(&mut self) {
        let now = sys::ticks();
        let known = self.policy.known().keys().copied();
        self.watched = known.filter(|pid| self.policy.is_watched(*pid, now)).collect();
    }

    fn has_changed(&self, pid: i32) -> bool {
        let mark = proc::stat(pid).ok().map(|stat| stat.mark());
        mark.is_none() || mark != self.marks.get(&pid).copied()
    }

    /// Processes that were started since are to be read.
    fn new_ids(&mut self) -> Result<()> {
        let (now, last) = (sys::ticks(), self.last.read());
        if last != self.last_id || last.is_none() {
            let to = last.unwrap_or(0);
            let from = match self.last_id {
                Some(before) if to > before && to - before <= NEW_IDS => before,
                _ => {
                    self.dirty.extend(
                        proc::processes()?.into_iter().filter(|pid| !self.policy.knows(*pid)),
                    );
                    (to - NEW_IDS / 4).max(0)
                }
            };
            self.promised.extend((from + 1..=to).map(|id| (id, now + YOUNG)));
            self.last_id = last;
        }
        let mut promised = std::mem::take(&mut self.promised);
        promised.retain(|(id, until)| {
            let is_there = sys::is_process(*id);
            if is_there {
                self.dirty.insert(*id);
            }
            !is_there && *until > now
        });
        promised.drain(..promised.len().saturating_sub(PROMISED));
        self.promised = promised;
        Ok(())
    }

    /// The foreground of which terminals is another one now; and which of those processes have
    /// changed themselves.
    fn changed_leaders(&mut self) {
        let mut changed = Vec::new();
        self.leaders.retain(|pid, leader| match leader.file.read() {
            Ok(stat) if !stat.is_dead() && stat.terminal != 0 => {
                if stat.foreground != leader.foreground {
                    leader.foreground = stat.foreground;
                    changed.push(*pid);
                }
                if self.marks.get(pid) != Some(&stat.mark()) {
                    self.dirty.insert(*pid);
                }
                true
            }
            _ => {
                changed.push(*pid);
                false
            }
        });
        changed.into_iter().for_each(|leader| self.touch_session(leader));
    }

    fn touch_session(&mut self, session: i32) {
        let of_it = self.policy.known().iter().filter(|(_, known)| known.session == session);
        self.dirty.extend(of_it.map(|(pid, _)| *pid));
    }

    /// New processes, and some of the raised ones in turn: have they changed?
    fn changed_marks(&mut self) {
        let now = sys::ticks();
        self.young.retain(|(_, until)| *until > now);
        let watched = &self.watched;
        let from = if watched.is_empty() { 0 } else { self.turn % watched.len() };
        self.turn = from + AT_ONCE;
        let in_turn = watched.iter().cycle().skip(from).take(AT_ONCE.min(watched.len())).copied();
        let young = self.young.iter().rev().take(AT_ONCE).map(|(pid, _)| *pid);
        // Session leaders were looked at with their terminal.
        let is_new = |pid: &i32| !self.dirty.contains(pid) && !self.leaders.contains_key(pid);
        let pids: BTreeSet<i32> = in_turn.chain(young).filter(is_new).collect();
        for pid in pids {
            if self.has_changed(pid) {
                self.dirty.insert(pid);
            }
        }
    }

    /// Reads the changed processes, decides, writes the record, makes the changes, and repeats
    /// until none is left.
    fn settle(&mut self, way: LookReason) -> Result<bool> {
        for _ in 0..PASSES {
            if self.dirty.is_empty() {
                break;
            }
            let now = sys::ticks();
            let seen = self.read()?;
            let changes = self.policy.decide(&seen, now, way);
            self.unwritten = true;
            if changes.is_empty() {
                self.watch();
                continue;
            }
            // Without a writable record no thread is raised; restoring needs none.
            let written = self.write();
            let began = sys::ticks();
            for change in &changes {
                if change.raise && written.is_err() {
                    let not = Outcome { gone: true, ..Outcome::default() };
                    self.policy.applied(change, &not, (began, began));
                    self.dirty.insert(change.pid);
                    continue;
                }
                let outcome = apply(change);
                let failed = outcome.nice.is_some() || outcome.io.is_some();
                self.policy.applied(change, &outcome, (began, sys::ticks()));
                if !failed || outcome.gone {
                    self.dirty.insert(change.pid);
                }
            }
            self.unwritten = true;
            self.watch();
            self.new_ids()?;
            written?;
        }
        Ok(!self.dirty.is_empty())
    }

    /// Writes the record if it differs from the last one.
    fn write(&mut self) -> Result<()> {
        let memory = self.policy.memory();
        if memory != self.written {
            record::write(&self.dir, memory.clone())?;
            self.written = memory;
        }
        self.unwritten = false;
        Ok(())
    }

    /// Writes what was found out since the last change; what matters for it was written before the
    /// change was made.
    pub fn write_rest(&mut self) -> Result<()> {
        if self.unwritten { self.write() } else { Ok(()) }
    }

    fn gone(&mut self, pid: i32) {
        self.policy.gone(pid, sys::ticks());
        self.marks.remove(&pid);
    }

    /// Reads the changed processes, and the parents of new ones. If that fails, for want of a
    /// descriptor for example, all of it is still to be read: no process is taken for ended. A
    /// process that is invisible to this one (`hidepid=1`) is left as it is.
    fn read(&mut self) -> Result<Vec<Seen>> {
        let mut pids: Vec<i32> = std::mem::take(&mut self.dirty).into_iter().collect();
        let mut read: BTreeSet<i32> = pids.iter().copied().collect();
        let mut seen = Vec::new();
        while let Some(pid) = pids.pop() {
            if pid <= 0 || pid == self.me {
                continue;
            }
            let one = match self.read_one(pid) {
                Ok(Some(one)) => one,
                Ok(None) => {
                    self.gone(pid);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => continue,
                Err(error) => {
                    self.dirty.extend(read);
                    return Err(error)
                        .with_context(|| format!("process {pid} cannot be looked at"));
                }
            };
            let parent = one.stat.parent;
            if !self.policy.knows(pid) && !self.policy.knows(parent) && read.insert(parent) {
                pids.push(parent);
            }
            self.note(&one.stat);
            // The other processes of a terminal that has just been found.
            pids.extend(
                std::mem::take(&mut self.dirty).into_iter().filter(|pid| read.insert(*pid)),
            );
            seen.push(one);
        }
        Ok(seen)
    }

    fn read_one(&self, pid: i32) -> io::Result<Option<Seen>> {
        let counts = |mut stat: Stat| {
            if !self.terminals.is_empty() && !self.terminals.contains(&stat.terminal) {
                stat.terminal = 0;
            }
            stat
        };
        let stat = proc::stat_of(pid)?.filter(|stat| !stat.is_dead()).map(counts);
        let Some(stat) = stat else { return Ok(None) };
        let known = self.policy.known().get(&pid).filter(|known| known.began(stat.start));
        if known.is_some() && !stat.is_foreground() && !self.policy.is_watched(pid, sys::ticks()) {
            return Ok(Some(Seen { stat, threads: Vec::new(), owner: None }));
        }
        let tids = known.map(Known::tids).unwrap_or_default();
        let Some((stat, threads)) = proc::process(pid, &tids)? else { return Ok(None) };
        let stat = counts(stat);
        // Any way of raising counts: this program may restore threads that another one has raised.
        let is_like_raised = threads.iter().any(|t| t.values.nice < 0 || !t.values.io.is_default());
        let owner = if is_like_raised || stat.is_foreground() { proc::owner(pid) } else { None };
        Ok((!threads.is_empty()).then_some(Seen { stat, threads, owner }))
    }

    /// Remembers where a process is, and whether it leads a terminal's session.
    fn note(&mut self, stat: &Stat) {
        if !self.policy.knows(stat.pid) && !stat.is_kernels() {
            self.young.push((stat.pid, sys::ticks() + YOUNG));
        }
        self.marks.insert(stat.pid, stat.mark());
        let leads = stat.pid == stat.session && stat.terminal != 0;
        if leads && !self.leaders.contains_key(&stat.pid) {
            let user =
                proc::owner(stat.pid).map(|owner| user_of(&owner).to_owned()).unwrap_or_default();
            let same = self.leaders.values().filter(|leader| leader.user == user).count();
            if same >= LEADERS && user != ROOT {
                return;
            }
            let Ok(file) = OpenStat::open(stat.pid) else { return };
            self.leaders.insert(stat.pid, Leader { file, foreground: stat.foreground, user });
            self.touch_session(stat.pid);
        }
    }
}
