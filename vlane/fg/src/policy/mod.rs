//! Decides each thread's values from the observed state and from earlier changes; no system calls
//! here.
//!
//! The policy goes by states, not by events: each look compares the present values with the wanted
//! ones. A look that is missed, or a change that fails, is made good by the next one.

mod bound;
#[cfg(test)]
mod bound_tests;
mod origin;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::proc::{Stat, Thread};
use crate::values::{IoPriority, Raise, Values, clamp};
pub use bound::{ROOT, user_of};
pub use origin::Span;
use origin::{Ghost, UNDER_WAY, inherited};

/// The time for which ended threads are remembered, in ticks of 1/100 s: a process that it has
/// started is seen long before.
const REMEMBERED: u64 = 6000;
/// The time after its start, in ticks, in which a process that has a part of the raise has it from
/// nice(1).
const YOUTH: u64 = 50;
/// The number of pasts of a process, and of ended processes, that are remembered.
const PASTS: usize = 8;
const GHOSTS: usize = 256;
/// The number of children from process events whose parents are remembered.
const LINEAGE: usize = 4096;

/// The reason for a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LookReason {
    /// The shell's hook.
    Hook,
    /// The kernel's process events.
    Event,
    /// No event: it looks every so often.
    Look,
    /// It has just begun, or ends.
    Start,
}

/// A process as it was read.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Itself.
    pub stat: Stat,
    /// Its threads that live; none where a known process is neither raised nor in the foreground.
    pub threads: Vec<Thread>,
    /// Its owner; read where its values are like raised ones.
    pub owner: Option<String>,
}

/// A thread that was raised.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its values without this program.
    pub old: Values,
    /// Its values in the foreground.
    pub set: Values,
    /// The ticks between which it was raised.
    begin: (u64, u64),
    /// The start of its restoring.
    ending: Option<u64>,
    /// The program that it ran when it was last seen with what was set.
    seen: Option<Image>,
    /// The event that woke this program then.
    pub way: LookReason,
    /// The reason why it could not be restored.
    pub stuck: Option<String>,
}

/// Tells one program of a process from the next one.
type Image = (u64, String);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct KnownThread {
    start: u64,
    entry: Option<Entry>,
}

/// A process that was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    start: u64,
    /// Its session.
    pub session: i32,
    group: i32,
    /// Its terminal's device number.
    pub terminal: i32,
    /// Its name.
    pub name: String,
    owner: Option<String>,
    threads: BTreeMap<i32, KnownThread>,
    /// The earlier times in which it was raised: children started then have inherited that.
    past: Vec<Span>,
}

impl Known {
    /// Returns true if it began then, so that it is not another one with its number.
    pub fn began(&self, start: u64) -> bool {
        self.start == start
    }

    /// Entries of its threads.
    pub fn entries(&self) -> impl Iterator<Item = (i32, &Entry)> {
        self.threads.iter().filter_map(|(tid, thread)| Some((*tid, thread.entry.as_ref()?)))
    }

    /// Ids of its threads.
    pub fn tids(&self) -> Vec<i32> {
        self.threads.keys().copied().collect()
    }

    fn spans(&self) -> Vec<Span> {
        let mut spans: Vec<Span> = self.entries().map(|(_, entry)| entry.span(None)).collect();
        spans.dedup();
        spans.extend(self.past.iter().copied());
        spans
    }
}

impl Entry {
    fn span(&self, end: Option<u64>) -> Span {
        Span {
            old: self.old,
            set: self.set,
            begin: self.begin,
            end: match (self.ending, end) {
                (None, None) => None,
                // It is being restored: what it starts may have inherited, or not.
                (Some(ending), end) => Some((ending, end.unwrap_or(u64::MAX))),
                (None, Some(end)) => Some((end, end)),
            },
        }
    }

    /// It is in the foreground again, or still. Another program may have reset the values at an
    /// unknown time: the values decide on processes that were started meanwhile.
    fn come_back(&mut self, now: Values) {
        (self.ending, self.stuck) = (None, None);
        if now != self.set {
            self.begin.1 = u64::MAX;
        }
    }

    /// Notes changes by other programs. The change of nice(1), between two programs, was relative
    /// to the raised value; another change was to the very value that is there now, and stays. A
    /// program that has set both values back has restored the raised one, and has added no change.
    fn absorb(&mut self, now: Values, image: &Image, is_nice: bool, is_young: bool, tick: u64) {
        if now == self.set && self.begin.1 == u64::MAX {
            // Raised by a daemon that was killed before it could note the time.
            self.begin.1 = tick;
        }
        if now.nice != self.set.nice {
            let another = self.seen.as_ref().is_some_and(|seen| seen != image);
            let given_back = now == self.old && self.set.io != self.old.io;
            // Also nice(1) itself, before it becomes the other program; and a new program that was
            // not seen before. No other program would choose a part of the raise for a process that
            // has just begun.
            let by_nice = another || is_nice || (is_young && now.nice < self.old.nice);
            if by_nice && !given_back && self.ending.is_none() {
                self.old.nice = clamp(self.old.nice + now.nice - self.set.nice);
                self.set.nice = now.nice;
            } else if now.nice != self.old.nice {
                self.old.nice = now.nice;
                self.set.nice = now.nice;
            }
        }
        if now.io != self.set.io && now.io != self.old.io {
            self.old.io = now.io;
            self.set.io = now.io;
        }
        if now == self.set {
            self.seen = Some(image.clone());
        }
    }
}

/// A change to a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Its process.
    pub pid: i32,
    /// It.
    pub tid: i32,
    /// Its start time: another one with its number is left alone.
    pub start: u64,
    /// Its values at the decision; with other values it is left alone.
    pub from: Values,
    /// Its new values.
    pub to: Values,
    /// True if the thread comes to the foreground, false if it leaves it.
    pub raise: bool,
}

/// The result of a change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The reason why the nice value could not be set.
    pub nice: Option<String>,
    /// The reason why the I/O priority could not be set.
    pub io: Option<String>,
    /// The thread has ended, or has other values by now.
    pub gone: bool,
}

/// All that is remembered.
#[derive(Debug)]
pub struct Policy {
    raise: Raise,
    known: BTreeMap<i32, Known>,
    ghosts: VecDeque<Ghost>,
    lineage: HashMap<i32, i32>,
    halted: bool,
}

/// The part of the state that goes to disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Processes that are raised, or were a short while ago.
    pub known: BTreeMap<i32, Known>,
    ghosts: Vec<Ghost>,
}

impl Memory {
    /// Returns true if no thread of it has to be restored.
    pub fn is_clean(&self) -> bool {
        self.known.values().all(|known| known.entries().next().is_none())
    }
}

impl Policy {
    /// Starts without any memory.
    pub fn new(raise: Raise) -> Self {
        let (known, ghosts, lineage) = (BTreeMap::new(), VecDeque::new(), HashMap::new());
        Self { raise, known, ghosts, lineage, halted: false }
    }

    /// Continues from the state of another one that has ended, by a kill perhaps.
    pub fn of(raise: Raise, mut memory: Memory) -> Self {
        let threads = memory.known.values_mut().flat_map(|known| known.threads.values_mut());
        for entry in threads.filter_map(|thread| thread.entry.as_mut()) {
            if entry.begin.1 == u64::MAX {
                // It ended before it knew whether that was done.
                entry.seen = None;
            }
        }
        Self { known: memory.known, ghosts: memory.ghosts.into(), ..Self::new(raise) }
    }

    /// Treats no process as foreground from now on: all are restored.
    pub fn halt(&mut self) {
        self.halted = true;
    }

    /// The state that a later program needs in order to restore.
    pub fn memory(&self) -> Memory {
        let worth = |known: &&Known| !known.past.is_empty() || known.entries().next().is_some();
        Memory {
            known: self
                .known
                .iter()
                .filter(|(_, k)| worth(k))
                .map(|(pid, k)| (*pid, k.clone()))
                .collect(),
            ghosts: self.ghosts.iter().cloned().collect(),
        }
    }

    /// Returns true if this process has been seen.
    pub fn knows(&self, pid: i32) -> bool {
        self.known.contains_key(&pid)
    }

    /// All processes that were seen.
    pub fn known(&self) -> &BTreeMap<i32, Known> {
        &self.known
    }

    /// Returns true if any of its threads is raised.
    pub fn is_raised(&self, pid: i32) -> bool {
        self.known.get(&pid).is_some_and(|known| known.entries().next().is_some())
    }

    /// Returns true if any of its threads is raised, or was a moment ago: a thread that was being
    /// started then is raised still.
    pub fn is_watched(&self, pid: i32, now: u64) -> bool {
        let recent = |span: &Span| span.end.is_none_or(|end| end.1 + UNDER_WAY > now);
        self.is_raised(pid)
            || self.known.get(&pid).is_some_and(|known| known.past.iter().any(recent))
    }

    /// Notes a process event: a child and its parent.
    pub fn born(&mut self, child: i32, parent: i32) {
        if !self.is_raised(parent) && !self.lineage.contains_key(&parent) {
            // The number can be one of before.
            self.lineage.remove(&child);
            return;
        }
        if self.lineage.len() >= LINEAGE {
            self.lineage.clear();
        }
        self.lineage.insert(child, parent);
    }

    /// A process has ended, or its number is another one's.
    pub fn gone(&mut self, pid: i32, now: u64) {
        let Some(known) = self.known.remove(&pid) else { return };
        let spans = known.spans();
        if spans.iter().all(|span| span.old == span.set) {
            return;
        }
        if self.ghosts.len() >= GHOSTS {
            self.ghosts.pop_front();
        }
        let Known { session, group, owner, .. } = known;
        self.ghosts.push_back(Ghost { pid, session, group, owner, spans, died: now });
    }

    /// Decides on these processes, parents before their children. `now` was read before they were.
    pub fn decide(&mut self, seen: &[Seen], now: u64, way: LookReason) -> Vec<Change> {
        self.ghosts.retain(|ghost| ghost.died + REMEMBERED > now);
        let mut changes = Vec::new();
        let mut raised = bound::Raised::of(&self.known);
        for one in parents_first(seen) {
            let foreground = one.stat.is_foreground() && !self.halted && raised.admits(one);
            self.decide_one(one, foreground, (now, way), &mut changes);
        }
        // From now on, not before: all that was read in this pass was started before any of it is
        // restored.
        for change in changes.iter().filter(|change| !change.raise) {
            let thread = self
                .known
                .get_mut(&change.pid)
                .and_then(|known| known.threads.get_mut(&change.tid));
            if let Some(entry) = thread.and_then(|thread| thread.entry.as_mut()) {
                entry.ending.get_or_insert(now);
            }
        }
        changes
    }

    fn decide_one(
        &mut self,
        seen: &Seen,
        foreground: bool,
        when: (u64, LookReason),
        changes: &mut Vec<Change>,
    ) {
        let (now, way) = when;
        let stat = &seen.stat;
        if self.known.get(&stat.pid).is_some_and(|known| known.start != stat.start) {
            self.gone(stat.pid, now);
        }
        if let Some(known) = self.known.get_mut(&stat.pid).filter(|_| seen.threads.is_empty()) {
            // Only where it is was read.
            (known.session, known.group, known.terminal) =
                (stat.session, stat.group, stat.terminal);
            return;
        }
        let mut image: Image =
            (stat.stack, if stat.stack == 0 { stat.name.clone() } else { String::new() });
        let is_young = now < stat.start + YOUTH;
        let before = self.known.remove(&stat.pid);
        if stat.state == 'Z' {
            // Its main thread has ended, so its programs cannot be distinguished.
            let entries = before.iter().flat_map(Known::entries);
            image = entries.filter_map(|(_, entry)| entry.seen.clone()).next().unwrap_or(image);
        }
        let own_spans = before.as_ref().map(Known::spans);
        let mut threads = BTreeMap::new();
        let mut past = before.as_ref().map(|known| known.past.clone()).unwrap_or_default();
        for thread in &seen.threads {
            let remembered = before.as_ref().and_then(|known| known.threads.get(&thread.tid));
            let mut entry = self.entry_of(seen, thread, remembered, own_spans.as_deref(), way);
            let born = remembered.is_none_or(|known| known.start != thread.start);
            if let Some(entry) = &mut entry {
                let (old, span) = (entry.old, entry.span(Some(now)));
                let inherited = entry.begin == (0, 0);
                let is_nice = inherited && stat.name == "nice";
                entry.absorb(thread.values, &image, is_nice, inherited && is_young, now);
                if old != entry.old {
                    past.push(span);
                }
            }
            let to = if foreground {
                self.bring_back(&mut entry, thread, born, now, &mut past);
                self.foreground(&mut entry, thread, now, way, &image)
            } else {
                background(&mut entry, thread, now, &mut past)
            };
            if to != thread.values {
                let Thread { tid, start, values: from } = *thread;
                changes.push(Change { pid: stat.pid, tid, start, from, to, raise: foreground });
            }
            threads.insert(thread.tid, KnownThread { start: thread.start, entry });
        }
        past.retain(|span| span.end.is_none_or(|end| end.1 + REMEMBERED > now));
        past.dedup();
        past.drain(..past.len().saturating_sub(PASTS));
        let (start, name) = (stat.start, stat.name.clone());
        let owner = seen.owner.clone().or(before.and_then(|known| known.owner));
        let (session, group, terminal) = (stat.session, stat.group, stat.terminal);
        self.known.insert(
            stat.pid,
            Known { start, session, group, terminal, name, owner, threads, past },
        );
    }

    /// The entry that a thread had before, or that of a new one which has inherited a raise.
    fn entry_of(
        &self,
        seen: &Seen,
        thread: &Thread,
        remembered: Option<&KnownThread>,
        own_spans: Option<&[Span]>,
        way: LookReason,
    ) -> Option<Entry> {
        match (remembered.filter(|known| known.start == thread.start), own_spans) {
            (Some(known), _) => known.entry.clone(),
            (None, Some(spans)) => {
                let old = inherited(spans, thread.start, thread.values);
                old.map(|old| born_raised(old, thread, thread.start, way))
            }
            // All of its life: every child has inherited that.
            (None, None) => {
                self.origin(seen, thread.values).map(|old| born_raised(old, thread, 0, way))
            }
        }
    }

    /// Brings the entry of a thread in the foreground up to date, before its values are decided.
    fn bring_back(
        &self,
        entry: &mut Option<Entry>,
        thread: &Thread,
        born: bool,
        now: u64,
        past: &mut Vec<Span>,
    ) {
        if let Some(restored) =
            entry.take_if(|entry| entry.ending.is_some() && thread.values != entry.set)
        {
            // It was restored without a later look: that time ends, another begins.
            past.push(restored.span(Some(now)));
        }
        if let Some(entry) = entry {
            if born && (entry.set.io == IoPriority::NONE || entry.set.nice == entry.old.nice) {
                // A fork that was under way, and has half of it: whichever.
                entry.set = self.raise.of(entry.old);
            }
            entry.come_back(thread.values);
        }
    }

    /// Decides the values of a thread in the foreground.
    fn foreground(
        &self,
        entry: &mut Option<Entry>,
        thread: &Thread,
        now: u64,
        way: LookReason,
        image: &Image,
    ) -> Values {
        let own = thread.values;
        match entry {
            Some(entry) => {
                // The program that it runs when it is raised again.
                entry.seen = Some(image.clone());
                entry.set
            }
            None => {
                // An unreported thread may have been raised already: never twice.
                let has_all = self.raise.io == Some(own.io) && own.nice <= self.raise.nice;
                let set = if has_all { own } else { self.raise.of(own) };
                if set != own {
                    let (begin, seen) = ((now, u64::MAX), Some(image.clone()));
                    *entry =
                        Some(Entry { old: own, set, begin, ending: None, seen, way, stuck: None });
                }
                set
            }
        }
    }

    /// Takes note of what came of a change that began and ended at these times.
    pub fn applied(&mut self, change: &Change, outcome: &Outcome, between: (u64, u64)) {
        let Some(known) = self.known.get_mut(&change.pid) else { return };
        let Some(thread) = known.threads.get_mut(&change.tid) else { return };
        let Some(entry) = &mut thread.entry else { return };
        if outcome.gone || thread.start != change.start {
            // It was not raised: a change of its values from now on is not relative to that.
            entry.seen = entry.seen.take().filter(|_| !change.raise);
            entry.ending = entry.ending.filter(|_| change.raise);
            return;
        }
        if !change.raise {
            let why = outcome.nice.as_ref().or(outcome.io.as_ref());
            entry.stuck = why.cloned();
            return;
        }
        if entry.begin.1 == u64::MAX {
            entry.begin.1 = between.1;
        }
        // A forbidden value is not tried again while the thread lives.
        if outcome.nice.is_some() {
            entry.set.nice = change.from.nice;
            entry.old.nice = change.from.nice;
        }
        if outcome.io.is_some() {
            entry.set.io = change.from.io;
            entry.old.io = change.from.io;
        }
    }
}

/// A thread that has inherited what another one was given, and has it since.
fn born_raised(old: Values, thread: &Thread, since: u64, way: LookReason) -> Entry {
    Entry {
        old,
        set: thread.values,
        begin: (since, since),
        ending: None,
        seen: None,
        way,
        stuck: None,
    }
}

/// Decides the values of a thread that is not in the foreground.
fn background(
    entry: &mut Option<Entry>,
    thread: &Thread,
    now: u64,
    past: &mut Vec<Span>,
) -> Values {
    let Some(raised) = entry else { return thread.values };
    let old = raised.old;
    if thread.values == old {
        past.push(raised.span(Some(now)));
        *entry = None;
    }
    old
}

/// In an order in which none comes before its parent.
fn parents_first(seen: &[Seen]) -> Vec<&Seen> {
    let by_pid: HashMap<i32, &Seen> = seen.iter().map(|one| (one.stat.pid, one)).collect();
    let mut placed = std::collections::HashSet::new();
    let mut order = Vec::with_capacity(seen.len());
    for one in seen {
        let mut chain = Vec::new();
        let mut at = Some(&one);
        while let Some(one) = at.filter(|one| placed.insert(one.stat.pid)) {
            chain.push(*one);
            at = by_pid.get(&one.stat.parent);
        }
        order.extend(chain.into_iter().rev());
    }
    order
}
