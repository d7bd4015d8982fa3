//! The service time of a request that does not wait at the device: measured while the lane has few
//! there.

use super::{MS, Nanos, Turn};

/// Groups of a probe, and requests of a group: as many, or as many as may be there at a time.
const GROUPS: usize = 5;
const GROUP: u32 = 16;
/// How long a probe waits until the requests at the device have run down; then some of them hang,
/// and the probe is given up.
const DRAINS: Nanos = 4000 * MS;
/// ... and for the requests that it takes the time of: so many service times, but no shorter and no
/// longer than that.
const MEASURES: u64 = 24;
const MEASURES_LEAST: Nanos = 50 * MS;
const MEASURES_MOST: Nanos = 1000 * MS;

/// Requests that were begun one after the other. Those that were answered one after the other would
/// be the quick ones.
#[derive(Debug, Clone, Copy, Default)]
struct Group {
    since: Nanos,
    begun: u32,
    answered: u32,
    took: f64,
}

/// One probe.
#[derive(Debug, Default)]
pub(super) struct Probe {
    began: Nanos,
    /// Requests that the lane may have at the device.
    pub(super) size: u32,
    groups: [Group; GROUPS],
    /// Groups that were begun.
    open: usize,
    /// When the device had run down.
    measures: Option<Nanos>,
    /// When the last group had its requests; zero: not yet.
    closed: Nanos,
    is_done: bool,
}

impl Probe {
    pub(super) fn new(now: Nanos, size: u32) -> Probe {
        Probe { began: now, size, ..Probe::default() }
    }

    /// True if it has its result.
    pub(super) fn is_done(&self) -> bool {
        self.is_done
    }

    #[inline]
    pub(super) fn answered(&mut self, begun: Nanos, took: Nanos) {
        if self.closed > 0 && begun > self.closed {
            return;
        }
        if let Some(group) =
            self.groups[..self.open].iter_mut().rev().find(|group| group.since <= begun)
        {
            group.answered += 1;
            group.took += took as f64;
        }
    }

    /// A turn ends, at `now`. `drains` is true if another lane has more at the device than in a
    /// probe; `service` is the earlier value.
    pub(super) fn turn(&mut self, now: Nanos, turn: Turn, drains: bool, service: Option<f64>) {
        if self.measures.is_none() {
            if turn.at_device <= self.size && !drains {
                self.measures = Some(now);
                self.begin_group(now + 1);
            }
            self.is_done = now.saturating_sub(self.began) > DRAINS;
            return;
        }
        let most = GROUP.max(self.size);
        let group = &mut self.groups[self.open - 1];
        // When the last one has its requests, what is begun belongs to none.
        if now >= group.since && group.begun < most {
            group.begun += turn.begun;
            if group.begun >= most && self.open < GROUPS {
                self.begin_group(now + 1);
            } else if group.begun >= most {
                self.closed = now;
            }
        }
        let is_answered = |group: &Group| group.answered >= group.begun;
        self.is_done |=
            (self.closed > 0 && self.groups.iter().all(is_answered)) || self.is_late(now, service);
    }

    /// It has measured for long enough.
    pub(super) fn is_late(&self, now: Nanos, service: Option<f64>) -> bool {
        let patience =
            service.map_or(MEASURES_MOST / 2, |service| (service as u64).saturating_mul(MEASURES));
        let patience = patience.clamp(MEASURES_LEAST, MEASURES_MOST);
        self.measures.is_some_and(|since| now.saturating_sub(since) > patience)
    }

    fn begin_group(&mut self, since: Nanos) {
        self.groups[self.open] = Group { since, ..Group::default() };
        self.open += 1;
    }

    /// The median of the groups' means; none without an answer. A request that is not answered yet
    /// counts with the time that it has taken so far.
    pub(super) fn service(&self, now: Nanos) -> Option<f64> {
        let mut means = [0.0; GROUPS];
        let mut known = 0;
        for group in self.groups[..self.open].iter().filter(|group| group.answered > 0) {
            let late = group.begun.saturating_sub(group.answered);
            let late_took = f64::from(late) * now.saturating_sub(group.since) as f64;
            means[known] = (group.took + late_took) / f64::from(group.answered + late);
            known += 1;
        }
        let means = &mut means[..known];
        means.sort_by(f64::total_cmp);
        means.get(known / 2).map(|median| median.max(1.0))
    }
}
