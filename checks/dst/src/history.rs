//! Records the guest's requests and answers, and checks that a disk could have given them.
//!
//! Each sector is a register. Two properties must hold:
//!
//! * **Reads**: all reads and writes of the sector have an order in which each takes effect at one
//!   moment between its begin and its answer. Each read finds the value of the last write before it
//!   (linearizability; Herlihy, Wing 1990). No two writes write the same, so that is decided
//!   exactly: by the zones of Gibbons and Korach (1997), see [`History::check_order`]. Zeroes are
//!   the exception: a read of zeroes that several requests can have written is only checked by
//!   itself.
//! * **Power cuts**: after one, the sector's contents are not older than a durable write. Durable
//!   is a write that was answered before the begin of a flush that succeeded, or while the guest
//!   had no write cache. So is one answered before the cache was switched off, once a write after
//!   that was answered.
//!
//! A request that was not answered or that failed may have taken effect or not, sector by sector; a
//! discard may have had no effect.

use crate::disk::{INITIAL, PART, Version, ZERO};

/// The effect of a request on sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Read,
    Write,
    Zero,
    Discard,
    Flush,
    Other,
}

/// A request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    pub(crate) action: Action,
    pub(crate) sector: u64,
    pub(crate) count: u64,
    begin: u64,
    end: Option<u64>,
    is_ok: bool,
    /// The back end died, or gave it up, while it was out.
    died: Option<u64>,
    /// It is durable, by itself.
    is_durable: bool,
    /// It was answered, and then a loss was reported to the guest.
    is_void: bool,
}

#[derive(Debug, Clone, Copy)]
struct Read {
    begin: u64,
    end: u64,
    version: Version,
}

/// A register's values, from first to last it is certain to have had them.
#[derive(Debug, Clone, Copy)]
struct Zone {
    version: Version,
    /// The first end, and the last begin, of the value's write and reads.
    first_end: u64,
    last_begin: u64,
}

/// The first version that a request can have.
pub(crate) const FIRST: Version = INITIAL + 1;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct History {
    /// The version of the first of the records, which are in the order of theirs.
    first: Version,
    records: Vec<Record>,
    /// By sector: what it held in the beginning, requests that change it, reads of it.
    initial: Vec<Version>,
    changes: Vec<Vec<Version>>,
    reads: Vec<Vec<Read>>,
    /// The latest begin of a flush that was answered well.
    flushed: u64,
}

impl History {
    /// `first` is an unused version.
    pub(crate) fn new(first: Version, initial: Vec<Version>) -> History {
        let sectors = initial.len();
        History {
            first,
            records: Vec::new(),
            initial,
            changes: vec![Vec::new(); sectors],
            reads: vec![Vec::new(); sectors],
            flushed: 0,
        }
    }

    /// The version of the next request.
    pub(crate) fn next(&self) -> Version {
        self.first + self.records.len() as u64
    }

    fn index(&self, version: Version) -> usize {
        usize::try_from(version.wrapping_sub(self.first)).unwrap_or(usize::MAX)
    }

    /// A request begins; its version.
    pub(crate) fn begin(&mut self, now: u64, action: Action, sector: u64, count: u64) -> Version {
        let version = self.next();
        self.records.push(Record {
            action,
            sector,
            count,
            begin: now,
            end: None,
            is_ok: false,
            died: None,
            is_durable: false,
            is_void: false,
        });
        if matches!(action, Action::Write | Action::Zero | Action::Discard) {
            for sector in sector..sector + count {
                if let Some(changes) =
                    usize::try_from(sector).ok().and_then(|at| self.changes.get_mut(at))
                {
                    changes.push(version);
                }
            }
        }
        version
    }

    pub(crate) fn record(&self, version: Version) -> &Record {
        &self.records[self.index(version)]
    }

    /// A request is answered; `durable_since`: when it became so that answers are durable, if they
    /// are.
    pub(crate) fn end(
        &mut self,
        now: u64,
        version: Version,
        is_ok: bool,
        durable_since: Option<u64>,
    ) {
        let at = self.index(version);
        let record = &mut self.records[at];
        record.end = Some(now);
        record.is_ok = is_ok;
        let is_change = matches!(record.action, Action::Write | Action::Zero);
        record.is_durable = is_ok && is_change && durable_since.is_some();
        if record.action == Action::Flush && is_ok {
            self.flushed = self.flushed.max(record.begin);
        }
        // The guest is not going to flush what was answered before: the first write after pays for
        // it.
        if let Some(since) =
            durable_since.filter(|since| record.is_durable && record.begin > *since)
        {
            self.flushed = self.flushed.max(since);
        }
    }

    /// Notes the version that an answered read found in one of its sectors.
    pub(crate) fn found(&mut self, request: Version, sector: u64, version: Version) {
        let Record { begin, end, .. } = self.records[self.index(request)];
        let read = Read { begin, end: end.unwrap_or(u64::MAX), version };
        self.reads[usize::try_from(sector).unwrap_or(usize::MAX)].push(read);
    }

    /// The back end died: what is out may happen twice.
    pub(crate) fn died(&mut self, now: u64) {
        for record in self.records.iter_mut().filter(|record| record.end.is_none()) {
            record.died.get_or_insert(now);
        }
    }

    /// The back end stopped: a discard, a zeroing, or a write in parts that is out may be half
    /// done, and happen twice.
    pub(crate) fn stopped(&mut self, now: u64) {
        let is_long = |record: &&mut Record| match record.action {
            Action::Zero | Action::Discard => true,
            _ => record.count > PART,
        };
        for record in self.records.iter_mut().filter(|record| record.end.is_none()).filter(is_long)
        {
            record.died.get_or_insert(now);
        }
    }

    /// The storage has failed to write, has reported it, and is opened anew: answers without
    /// durability are no promise any more.
    pub(crate) fn forgives(&mut self) {
        let flushed = self.flushed;
        for record in
            self.records.iter_mut().filter(|record| record.end.is_some_and(|end| end >= flushed))
        {
            record.is_void |= !record.is_durable;
        }
    }

    /// Returns true if a request's effect must survive a power cut.
    fn must_last(&self, record: &Record) -> bool {
        let is_flushed = record.end.is_some_and(|end| end < self.flushed);
        record.is_ok
            && !record.is_void
            && record.action != Action::Discard
            && (record.is_durable || is_flushed)
    }

    /// The time at which a value was written to a sector: begin and end of the write. `None` if it
    /// was never written there.
    fn written(&self, sector: usize, version: Version) -> Option<(u64, u64)> {
        if version == self.initial[sector] {
            return Some((0, 0));
        }
        let record = self.records.get(self.index(version))?;
        let is_there = record.action == Action::Write && self.changes[sector].contains(&version);
        is_there.then_some((record.begin, record.end.unwrap_or(u64::MAX)))
    }

    /// The latest moment at which a value of a sector can have been written. For zeroes: by any
    /// request.
    fn latest(&self, sector: usize, version: Version) -> Option<u64> {
        if version != ZERO {
            return self.written(sector, version).map(|(_, end)| end);
        }
        let initial = (self.initial[sector] == ZERO).then_some(0);
        let zeroes = self.changes[sector].iter().map(|version| self.record(*version));
        let zeroes = zeroes.filter(|record| record.action != Action::Write);
        zeroes.map(|record| record.end.unwrap_or(u64::MAX)).chain(initial).max()
    }

    /// Checks that a sector may hold this after a power cut; the error is the reason.
    pub(crate) fn check_cut(&self, sector: u64, version: Version) -> Result<(), String> {
        let at = usize::try_from(sector).unwrap_or(usize::MAX);
        let Some(latest) = self.latest(at, version) else {
            return Err(format!(
                "sector {sector} holds {version} on the disk, which nobody wrote there"
            ));
        };
        let mut newer = self.changes[at].iter().map(|version| (version, self.record(*version)));
        match newer.rfind(|(_, record)| record.begin > latest && self.must_last(record)) {
            None => Ok(()),
            Some((newer, record)) => Err(format!(
                "sector {sector} may hold {version} after a power cut, although {newer} (begun at \
                 {}, answered at {}) was durable (flushes: {}, by itself: {})",
                record.begin,
                record.end.unwrap_or(0),
                self.flushed,
                record.is_durable
            )),
        }
    }

    /// Checks that all reads of all sectors can be explained; the error is the reason.
    pub(crate) fn check(&self) -> Result<(), String> {
        (0..self.initial.len()).try_for_each(|sector| self.check_sector(sector))
    }

    fn check_sector(&self, sector: usize) -> Result<(), String> {
        let mut zones = self.zones(sector);
        for read in &self.reads[sector] {
            let Read { begin, end, version } = *read;
            let writes = self.candidates(sector, version);
            let possible =
                |(begins, ends): &(u64, u64)| *begins < end && !self.is_over(sector, *ends, begin);
            let mut possible = writes.into_iter().filter(|(_, written)| possible(written));
            let Some((writer, _)) = possible.next() else {
                return Err(format!("sector {sector}: {}", self.unexplained(sector, read)));
            };
            // A value with several possible writers carries no more information; nor does one in
            // progress during a repeat.
            let is_early = self.is_early(writer, begin);
            if possible.next().is_some() || is_early || self.is_blurred(sector, begin, end) {
                continue;
            }
            let zone = match zones.iter_mut().position(|zone| zone.version == writer) {
                Some(at) => &mut zones[at],
                None => {
                    zones.push(self.zone(writer));
                    zones.last_mut().expect("just pushed")
                }
            };
            zone.first_end = zone.first_end.min(end);
            zone.last_begin = zone.last_begin.max(begin);
        }
        check_order(&mut zones).map_err(|why| format!("sector {sector}: {why}"))
    }

    /// The requests that can have written a value to a sector, and their times.
    fn candidates(&self, sector: usize, version: Version) -> Vec<(Version, (u64, u64))> {
        if version != ZERO {
            return self
                .written(sector, version)
                .map(|written| (version, written))
                .into_iter()
                .collect();
        }
        let initial = (self.initial[sector] == ZERO).then_some((ZERO, (0, 0)));
        let zeroes = self.changes[sector].iter().map(|version| (*version, self.record(*version)));
        let zeroes = zeroes.filter(|(_, record)| record.action != Action::Write);
        let zeroes = zeroes
            .map(|(version, record)| (version, (record.begin, record.end.unwrap_or(u64::MAX))));
        initial.into_iter().chain(zeroes).collect()
    }

    /// Returns true if a write that ended by `end` was certainly overwritten before `now`.
    fn is_over(&self, sector: usize, end: u64, now: u64) -> bool {
        self.changes[sector].iter().map(|version| self.record(*version)).any(|record| {
            let overwrites = record.is_ok && record.action != Action::Discard;
            overwrites && record.begin > end && record.end.is_some_and(|ends| ends < now)
        })
    }

    /// Returns true if a write was in progress when it was repeated: a read then may have found the
    /// first result.
    fn is_early(&self, writer: Version, begin: u64) -> bool {
        let record = self.records.get(self.index(writer));
        record
            .is_some_and(|record| record.died.is_some() && record.end.is_none_or(|end| begin < end))
    }

    /// Returns true if a write of the sector was being repeated at the time: begun by a back end
    /// that died, and done by another.
    fn is_blurred(&self, sector: usize, begin: u64, end: u64) -> bool {
        self.changes[sector].iter().map(|version| self.record(*version)).any(|record| {
            record.died.is_some_and(|died| end > died && begin < record.end.unwrap_or(u64::MAX))
        })
    }

    /// The zones of a sector's writes that have certainly happened.
    fn zones(&self, sector: usize) -> Vec<Zone> {
        let initial = Zone { version: self.initial[sector], first_end: 0, last_begin: 0 };
        let certain = |version: &Version| {
            let record = self.record(*version);
            record.is_ok && record.action != Action::Discard
        };
        let changes = self.changes[sector].iter().copied().filter(certain);
        std::iter::once(initial).chain(changes.map(|version| self.zone(version))).collect()
    }

    fn zone(&self, version: Version) -> Zone {
        let record = self.record(version);
        Zone { version, first_end: record.end.unwrap_or(u64::MAX), last_begin: record.begin }
    }

    fn unexplained(&self, sector: usize, read: &Read) -> String {
        let Read { begin, end, version } = *read;
        let changes = self.changes[sector].iter().map(|version| {
            let Record { action, begin, end, is_ok, .. } = *self.record(*version);
            let how = if is_ok { "" } else { " failed" };
            format!(
                "{version} {action:?}{how} {begin}..{}",
                end.map_or("".to_owned(), |end| end.to_string())
            )
        });
        let changes: Vec<String> = changes.collect();
        format!("a read from {begin} to {end} found {version}; there were {}", changes.join(", "))
    }
}

/// Checks that the values can have been there one after the other. A zone is *forward* if its value
/// was certainly there from the first end to the last begin. No two such times may overlap, and no
/// other value's whole zone may lie within one.
fn check_order(zones: &mut [Zone]) -> Result<(), String> {
    zones.sort_by_key(|zone| zone.first_end);
    let mut last: Option<Zone> = None;
    for zone in zones.iter().filter(|zone| zone.first_end < zone.last_begin) {
        if let Some(last) = last.filter(|last| zone.first_end < last.last_begin) {
            return Err(format!(
                "{} was there from {} to {}, and {} from {} to {}",
                last.version,
                last.first_end,
                last.last_begin,
                zone.version,
                zone.first_end,
                zone.last_begin
            ));
        }
        last = Some(*zone);
    }
    for inner in zones.iter().filter(|zone| zone.first_end >= zone.last_begin) {
        let holds =
            |zone: &&Zone| zone.first_end < inner.last_begin && inner.first_end < zone.last_begin;
        if let Some(outer) = zones.iter().find(holds) {
            return Err(format!(
                "{} was there from {} to {}, and {} was written between {} and {}",
                outer.version,
                outer.first_end,
                outer.last_begin,
                inner.version,
                inner.last_begin,
                inner.first_end
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests on sector 0: what, from when to when, what a read found.
    fn history(steps: &[(Action, u64, u64, Version)]) -> History {
        let mut history = History::new(FIRST, vec![INITIAL]);
        for (action, begin, end, found) in steps {
            let version = history.begin(*begin, *action, 0, 1);
            history.end(*end, version, true, None);
            if *action == Action::Read {
                history.found(version, 0, *found);
            }
        }
        history
    }

    #[test]
    fn read_finds_last_or_concurrent_write() {
        use Action::{Read, Write};
        let writes = [(Write, 1, 2, 0), (Write, 3, 6, 0)];
        for (begin, end, found, is_right) in [
            (7, 8, 3, true),
            (7, 8, 2, false),
            (4, 5, 2, true),
            (4, 5, 3, true),
            (4, 5, INITIAL, false),
            (7, 8, 77, false),
            // Not yet begun.
            (1, 2, 3, false),
        ] {
            let mut steps = writes.to_vec();
            steps.push((Read, begin, end, found));
            assert_eq!(history(&steps).check().is_ok(), is_right, "{begin}..{end} {found}");
        }
    }

    #[test]
    fn reads_never_go_back_in_time() {
        use Action::{Read, Write};
        let steps = [(Write, 1, 2, 0), (Write, 3, 20, 0), (Read, 4, 5, 3), (Read, 6, 7, 2)];
        assert!(history(&steps).check().is_err());
        assert!(history(&[steps[0], steps[1], steps[3]]).check().is_ok());
        // Two at a time: their order is open until a read has seen it.
        let both = [(Write, 1, 10, 0), (Write, 2, 9, 0)];
        let after =
            |first, second| [both[0], both[1], (Read, 11, 12, first), (Read, 13, 14, second)];
        assert!(history(&after(2, 2)).check().is_ok() && history(&after(3, 3)).check().is_ok());
        assert!(history(&after(2, 3)).check().is_err());
    }

    #[test]
    fn flushed_data_survives() {
        use Action::{Flush, Write};
        let history =
            history(&[(Write, 1, 2, 0), (Write, 3, 6, 0), (Flush, 5, 7, 0), (Write, 8, 9, 0)]);
        assert!(history.check_cut(0, INITIAL).is_err());
        for version in [2, 3, 5] {
            assert_eq!(history.check_cut(0, version), Ok(()), "{version}");
        }
        assert!(history.check_cut(0, 4).is_err(), "a flush writes nothing");
    }

    #[test]
    fn zeroes_have_any_writer() {
        use Action::{Discard, Read, Write, Zero};
        assert!(history(&[(Write, 1, 2, 0), (Read, 3, 4, ZERO)]).check().is_err());
        assert!(history(&[(Zero, 1, 2, 0), (Read, 3, 4, ZERO)]).check().is_ok());
        assert!(history(&[(Zero, 1, 2, 0), (Write, 3, 4, 0), (Read, 5, 6, ZERO)]).check().is_err());
        // A discard may have no effect, or its full one.
        let discarded =
            |found| history(&[(Write, 1, 2, 0), (Discard, 3, 4, 0), (Read, 5, 6, found)]);
        assert!(discarded(ZERO).check().is_ok() && discarded(2).check().is_ok());
        assert!(discarded(INITIAL).check().is_err());
    }
}
