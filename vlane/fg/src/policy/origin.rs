//! The origin of a process's values: a child inherits those of the thread that starts it, raised or
//! not.
//!
//! The time of its start and its parent decide. A child of a raised process has inherited, even if
//! it has changed its values since; one that was started before has not. Start times are in ticks
//! of 1/100 s; near a change the values decide, for a fork takes its time. A process whose parent
//! has ended has no known parent. It has inherited if it has exactly the values that were set in
//! its session, its group, or its control group.

use serde::{Deserialize, Serialize};

use super::{Policy, Seen};
use crate::values::{Values, clamp};

/// The longest time of a fork, in ticks: a child has its parent's values of an earlier time than
/// its own start.
pub(super) const UNDER_WAY: u64 = 50;

/// A time in which a thread was raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Its values without this program.
    pub old: Values,
    /// The values that were set.
    pub set: Values,
    /// The ticks between which that began.
    pub begin: (u64, u64),
    /// The ticks between which it ended.
    pub end: Option<(u64, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cover {
    Surely,
    Perhaps,
    No,
}

impl Span {
    /// Tells if a child that began at this tick has inherited.
    fn covers(&self, start: u64) -> Cover {
        let began = if self.begin.1 == 0 { 0 } else { self.begin.1.saturating_add(UNDER_WAY / 10) };
        if start < self.begin.0
            || self.end.is_some_and(|end| start > end.1.saturating_add(UNDER_WAY))
        {
            Cover::No
        } else if start >= began && self.end.is_none_or(|end| start < end.0) {
            Cover::Surely
        } else {
            Cover::Perhaps
        }
    }

    /// Returns a child's values without this program, for a child that may have inherited, if its
    /// present values speak for that. A fork copies the nice value first and the I/O priority a
    /// moment later: a change in between leaves it with one of them.
    fn perhaps_own(&self, start: u64, now: Values) -> Option<Values> {
        let near_end = self.end.is_some_and(|end| start >= end.0);
        let io = self.set.io != self.old.io && now.io == self.set.io;
        // At the beginning it has the I/O priority if it has the nice value; at the end, the other
        // way round.
        let same = now.nice == self.set.nice && (near_end || io || self.set.io == self.old.io);
        let nice = self.set.nice != self.old.nice
            && (same || (near_end && now.nice < self.old.nice.min(0)));
        if !io && !nice {
            return None;
        }
        let own = self.own(now);
        let copied_before = io && !nice && now.nice == self.old.nice;
        Some(if copied_before { Values { nice: self.old.nice, ..own } } else { own })
    }

    /// Hardly any other program sets just that.
    fn is_telling(&self) -> bool {
        self.set.io != self.old.io || (self.set.nice < 0 && self.set.nice < self.old.nice)
    }

    /// Returns a child's values without this program: its nice value differs by the later changes
    /// of nice(1).
    fn own(&self, now: Values) -> Values {
        Values {
            nice: clamp(self.old.nice + now.nice - self.set.nice),
            io: if now.io == self.set.io { self.old.io } else { now.io },
        }
    }
}

/// Returns the values, without this program, of a child of a process with these times, if it has
/// inherited.
pub(super) fn inherited(spans: &[Span], start: u64, now: Values) -> Option<Values> {
    if spans
        .iter()
        .any(|span| span.old == now && span.set.io != now.io && span.covers(start) != Cover::No)
    {
        // A fork that took longer than most, or a process that was given just that.
        let exactly = |span: &&Span| span.set == now && span.covers(start) == Cover::Surely;
        return spans.iter().find(exactly).map(|span| span.own(now));
    }
    let covering = |cover: Cover| spans.iter().filter(move |span| span.covers(start) == cover);
    covering(Cover::Surely)
        .chain(covering(Cover::Perhaps))
        .find(|span| span.set == now)
        .or_else(|| covering(Cover::Surely).next())
        .map(|span| span.own(now))
        .or_else(|| covering(Cover::Perhaps).find_map(|span| span.perhaps_own(start, now)))
}

/// A raised process that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ghost {
    pub pid: i32,
    pub session: i32,
    pub group: i32,
    pub owner: Option<String>,
    pub spans: Vec<Span>,
    pub died: u64,
}

impl Policy {
    /// Returns the values of a newly seen process without this program, if it has inherited.
    pub(super) fn origin(&self, seen: &Seen, now: Values) -> Option<Values> {
        let stat = &seen.stat;
        let parent = self.known.get(&stat.parent);
        if let Some(own) = parent.and_then(|parent| inherited(&parent.spans(), stat.start, now)) {
            return Some(own);
        }
        if stat.parent != 1 && parent.is_some_and(|parent| parent.session == stat.session) {
            return None;
        }
        self.by_lineage(stat.pid, stat.start, now).or_else(|| self.orphan(seen, now))
    }

    /// Decides by the parent from process events, which has ended since.
    fn by_lineage(&self, pid: i32, start: u64, now: Values) -> Option<Values> {
        let mut at = pid;
        for _ in 0..8 {
            at = *self.lineage.get(&at)?;
            let ghost = self
                .ghosts
                .iter()
                .rev()
                .find(|ghost| ghost.pid == at)
                .map(|ghost| ghost.spans.clone());
            if let Some(spans) = ghost.or_else(|| self.known.get(&at).map(super::Known::spans)) {
                return inherited(&spans, start, now);
            }
        }
        None
    }

    /// Decides by values that are exactly those set for a related process.
    fn orphan(&self, seen: &Seen, now: Values) -> Option<Values> {
        let stat = &seen.stat;
        let nearness = |session: i32, group: i32, owner: &Option<String>| {
            let same_owner = seen.owner.is_some() && *owner == seen.owner;
            (session == stat.session, group == stat.group, same_owner)
        };
        let living = self
            .known
            .values()
            .map(|one| (nearness(one.session, one.group, &one.owner), one.spans()));
        let ended = self
            .ghosts
            .iter()
            .map(|one| (nearness(one.session, one.group, &one.owner), one.spans.clone()));
        living
            .chain(ended)
            .filter(|(near, _)| *near != (false, false, false))
            .flat_map(|(near, spans)| spans.into_iter().map(move |span| (near, span)))
            .filter(|(_, span)| {
                span.set == now && span.is_telling() && span.covers(stat.start) != Cover::No
            })
            .max_by_key(|(near, span)| (*near, span.begin))
            .map(|(_, span)| span.old)
    }
}
