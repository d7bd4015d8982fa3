//! How many requests a lane has at its device while classes are mixed.
//!
//! Requests at the device cannot be reordered any more: an express request stands behind them.
//! Requests held back in the lane cannot keep the device busy. The bound between the two is the
//! number of requests that the device works on at a time. It is its rate x the service time of a
//! request that does not wait there (Little's law; TCP's bandwidth-delay product, as BBR finds it:
//! Cardwell, Cheng, Gunn, Yeganeh, Jacobson, "BBR: Congestion-Based Congestion Control", ACM Queue
//! 14(5), 2016). Half of it more, and one, keep the device busy while the thread goes round.
//!
//! * **The rate** is the number of answers over some milliseconds, the second highest of the last
//!   eight such times. A thread that has no CPU for a while sees too little, never too much, so
//!   that these times do not count.
//! * **The service time** cannot be seen while requests wait in the device. So there is a **probe**
//!   every four seconds: the lane lets its requests there run down to half of the number that the
//!   device works on. It then takes the times of the next requests, in five groups of sixteen or
//!   more. The median of the groups' means counts: a mean, because a device has quick and slow
//!   requests and is busy with both; a median of means, because a pause of the thread spoils one of
//!   them and not the others. The mean of the last four probes counts; the first of them follow
//!   each other faster.
//! * Lanes that share a device probe **at the same time**, or each would measure the others'
//!   requests: at the whole multiples of four seconds of a clock that they share, and whenever one
//!   of them needs it. Each waits until the requests of all of them have run down, and continues
//!   when none of them measures any more. The lanes share their results. ([`Shared`])
//! * A device that becomes slower or faster is noticed by its answers' times: twice or half of
//!   those after the last probe, four times running. Then there is another probe.
//!
//! Express requests have a window of their own of the same size: they are begun while others fill
//! theirs. Promoted ones have one of half the size.
//!
//! A request that is answered at once is not at the device, and is not counted. All times are
//! nanoseconds of one clock.

mod probe;
mod rate;
#[cfg(test)]
mod simulation_tests;
#[cfg(test)]
mod tests;

use super::{Class, Each, Turns};
use probe::Probe;
use rate::Rate;

/// Nanoseconds of a clock that all lanes of a volume share.
pub type Nanos = u64;

const MS: Nanos = 1_000_000;
/// From one probe to the next.
pub const PROBE_EVERY: Nanos = 4000 * MS;
/// How long a window stays after the last time that more than one class was there: a person at a
/// shell makes pauses of seconds.
pub const STAYS: Nanos = 10_000 * MS;
/// The window of a lane that does not know its device yet, and of one whose guest never asks for
/// enough to fill it.
const UNKNOWN: u32 = 16;
/// More than any device works on at a time.
const MOST: u32 = 1024;
/// The bound is the requests that the device works on, times this; and one.
const GAIN: f64 = 1.5;
/// Probes that count.
const PROBES: usize = 4;
/// A probe is not wanted earlier than this after the last one.
const PROBES_APART: Nanos = 1000 * MS;
/// Answers that take so many times as long as after the last probe, or as short, so many times
/// running: another device.
const ODD: f64 = 2.0;
const ODD_TIMES: u32 = 4;

/// The events of a lane's turn.
#[derive(Debug, Clone, Copy, Default)]
pub struct Turn {
    /// Requests that the lane has at the device.
    pub at_device: u32,
    /// ... of which it began so many in this turn.
    pub begun: u32,
    /// More wait than there is room for.
    pub is_wanted: bool,
    /// The last time at which any lane of the device wanted a probe; zero: none did.
    pub probe_at: Nanos,
}

/// A lane's message to the others about its device: a number that they read whenever they like. See
/// [`Window::message`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaneMessage(pub u64);

/// The summary of the other lanes' messages about a device.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Shared {
    /// The service time of a request that does not wait at the device.
    service: Option<f64>,
    /// One of them has more at the device than it has in a probe.
    drains: bool,
    /// One of them takes the time of its requests.
    measures: bool,
}

/// The window of one lane. It is called once per turn of the lane, but for [`Window::answered`] and
/// [`Window::next`].
#[derive(Debug)]
pub struct Window {
    size: u32,
    probe: Option<Probe>,
    rate: Rate,
    /// The service times, without waiting at the device, that the last probes found.
    found: [f64; PROBES],
    known: usize,
    /// ... and the value for all lanes.
    service: Option<f64>,
    /// The time since when there is a window, the number of the last regular probe, the time of the
    /// last wanted probe, and the end of the last one.
    closed: Nanos,
    period: u64,
    wanted: Nanos,
    ended: Nanos,
    /// Answers' mean time after the last probe, and how often running it has been another one.
    usual: Option<f64>,
    odd: u32,
}

impl Default for Window {
    fn default() -> Window {
        Window {
            size: UNKNOWN,
            probe: None,
            rate: Rate::default(),
            found: [0.0; PROBES],
            known: 0,
            service: None,
            closed: 0,
            period: 0,
            wanted: 0,
            ended: 0,
            usual: None,
            odd: 0,
        }
    }
}

impl LaneMessage {
    const DRAINS: u64 = 1 << 63;
    const MEASURES: u64 = 1 << 62;
    /// The time when it was found, in [`PROBE_EVERY`], and the value.
    const WHEN: u32 = 40;
    const FOUND: u64 = (1 << LaneMessage::WHEN) - 1;

    /// A lane without a window, that has so many requests at the device.
    pub fn unbounded(at_device: u32) -> LaneMessage {
        LaneMessage(if at_device > 1 { LaneMessage::DRAINS } else { 0 })
    }

    /// Periods are counted modulo this and one: more than a month of them.
    const PERIODS: u64 = (1 << 20) - 1;

    /// True if it was found in that period, or in one of the two before it.
    fn is_of(self, period: u64) -> bool {
        period.wrapping_sub((self.0 & (LaneMessage::MEASURES - 1)) >> LaneMessage::WHEN)
            & LaneMessage::PERIODS
            <= 2
    }
}

impl Shared {
    /// Summarises the messages of all lanes. Of the times that their last probes found, it is the
    /// lower quartile: a few lanes that were paused, or late, are overruled. A lane that has not
    /// probed of late does not count.
    pub fn of(told: impl Iterator<Item = LaneMessage>, now: Nanos) -> Shared {
        let mut shared = Shared::default();
        let mut times = [0; 64];
        let mut known = 0;
        let period = now / PROBE_EVERY;
        for told in told {
            shared.drains |= told.0 & LaneMessage::DRAINS != 0;
            shared.measures |= told.0 & LaneMessage::MEASURES != 0;
            if told.0 & LaneMessage::FOUND != 0 && told.is_of(period) && known < times.len() {
                times[known] = told.0 & LaneMessage::FOUND;
                known += 1;
            }
        }
        times[..known].sort_unstable();
        shared.service = times[..known].get(known / 4).map(|time| *time as f64);
        shared
    }
}

impl Window {
    /// Requests of the lower classes that may be at the device, express ones included: no more are
    /// begun. At least 1.
    #[inline]
    pub fn size(&self) -> u32 {
        self.probe.as_ref().map_or(self.size, |probe| probe.size)
    }

    /// Express requests that may be at the device, however many others are. At least 2.
    #[inline]
    pub fn express(&self) -> u32 {
        self.size().max(2)
    }

    /// Promoted requests that may be at the device, however many others are. At least 1.
    #[inline]
    pub fn promoted(&self) -> u32 {
        self.size().div_ceil(2)
    }

    /// Returns the class whose request is begun next among those that wait: as [`Turns`] has it, as
    /// far as there is room. `at_device` is how many express requests, promoted ones and others the
    /// lane has there.
    #[inline]
    pub fn next(&self, turns: &Turns, waits: Each<bool>, at_device: [u32; 3]) -> Option<Class> {
        let [express, promoted, others] = at_device;
        let has_room = express + promoted + others < self.size();
        // A class that is due has room that express requests cannot take from it.
        let has_due = others < self.size();
        let may = |class: Class| match class {
            Class::Express => express < self.express(),
            Class::Promoted => promoted < self.promoted(),
            _ => has_room || (has_due && turns.is_due(class)),
        };
        turns.next(Each(Class::ALL.map(|class| waits.of(class) && may(class))))
    }

    /// The device answered a request, which was not answered at once.
    #[inline]
    pub fn answered(&mut self, begun: Nanos, now: Nanos) {
        let took = now.saturating_sub(begun);
        self.rate.count(took);
        if let Some(probe) = &mut self.probe {
            probe.answered(begun, took);
        }
    }

    /// More than one class is there from now on: until now, requests were begun without a bound.
    /// The known rate is out of date. All lanes of the device are to probe at `now`.
    pub fn closes(&mut self, now: Nanos) {
        *self = Window { size: self.size, service: self.service, closed: now, ..Window::default() };
        self.period = self.period_of(now);
        self.rate = Rate::new(now);
    }

    /// Returns the message to the other lanes of the device after a turn.
    pub fn message(&self, turn: Turn) -> LaneMessage {
        let found = &self.found[..self.known];
        let mut told = 0;
        if !found.is_empty() {
            let mean = found.iter().sum::<f64>() / found.len() as f64;
            let when = (self.ended / PROBE_EVERY) & LaneMessage::PERIODS;
            told = when << LaneMessage::WHEN | (mean as u64).clamp(1, LaneMessage::FOUND);
        }
        if turn.at_device > self.probe_size() {
            told |= LaneMessage::DRAINS;
        }
        // A light guest delays no other.
        if turn.is_wanted && self.probe.as_ref().is_some_and(|probe| !probe.is_done()) {
            told |= LaneMessage::MEASURES;
        }
        LaneMessage(told)
    }

    /// Some requests were begun, or answered; `shared` gives the other lanes' messages, and is
    /// called when they matter. Returns when all lanes of the device are to probe, if this one
    /// wants it.
    pub fn turn(
        &mut self,
        now: Nanos,
        turn: Turn,
        shared: impl FnOnce() -> Shared,
    ) -> Option<Nanos> {
        let interval = (self.service.unwrap_or(0.0) * 2.0) as u64;
        let sample = self.rate.turn(now, interval, turn.is_wanted && self.probe.is_none());
        if let Some(probe) = &mut self.probe {
            let shared = shared();
            probe.turn(now, turn, shared.drains, self.service);
            if probe.is_done() && (!shared.measures || probe.is_late(now, self.service)) {
                self.end_probe(now);
            }
        } else if self.period_of(now) != self.period || turn.probe_at > self.wanted {
            self.period = self.period_of(now);
            self.wanted = turn.probe_at.max(self.wanted);
            self.probe = Some(Probe::new(now, self.probe_size()));
        } else if let Some(mean) = sample {
            self.service = shared().service.or(self.service);
            self.adapt();
            return mean.and_then(|mean| self.compare(now, mean));
        }
        None
    }

    /// In the first seconds, probes follow each other faster.
    fn period_of(&self, now: Nanos) -> u64 {
        let is_young = now.saturating_sub(self.closed) < PROBE_EVERY;
        if is_young { now / (PROBE_EVERY / 4) } else { now / PROBE_EVERY }
    }

    /// Half of the requests that the device works on.
    fn probe_size(&self) -> u32 {
        self.works_on().map_or(1, |works_on| (works_on / 2.0) as u32).clamp(1, MOST)
    }

    /// The newest stands first. A value that two probes running contradict is forgotten: it was
    /// another device.
    fn remember(&mut self, found: f64) {
        self.found.rotate_right(1);
        self.found[0] = found;
        self.known = (self.known + 1).min(PROBES);
        if self.known > 2 {
            let [newer, older] = [&self.found[..2], &self.found[2..self.known]];
            let mean = older.iter().sum::<f64>() / older.len() as f64;
            let is_above = newer.iter().all(|found| *found > mean * ODD);
            let is_below = newer.iter().all(|found| *found < mean / ODD);
            self.known = if is_above || is_below { 2 } else { self.known };
        }
    }

    fn end_probe(&mut self, now: Nanos) {
        // Without a request there is no news.
        if let Some(found) = self.probe.take().and_then(|probe| probe.service(now)) {
            self.remember(found);
            self.ended = now;
            self.service = self.service.or(Some(found));
        }
        (self.usual, self.odd) = (None, 0);
        self.rate.again(now);
        self.adapt();
    }

    /// Returns how many requests the device works on for this lane at a time.
    fn works_on(&self) -> Option<f64> {
        Some(self.rate.known()? * self.service?)
    }

    fn adapt(&mut self) {
        self.size = match self.works_on() {
            Some(works_on) => ((works_on * GAIN).ceil() as u32).saturating_add(1).clamp(2, MOST),
            None => UNKNOWN,
        };
    }

    /// Answers took `mean`: is it the same device still?
    fn compare(&mut self, now: Nanos, mean: f64) -> Option<Nanos> {
        // The window settles first.
        let since = now.saturating_sub(self.ended);
        let Some(usual) = self.usual else {
            if since > PROBES_APART / 10 {
                self.usual = Some(mean);
            }
            return None;
        };
        let is_odd = mean > usual * ODD || mean < usual / ODD;
        self.odd = if is_odd { self.odd + 1 } else { 0 };
        if self.odd < ODD_TIMES || since < PROBES_APART {
            return None;
        }
        (self.odd, self.known) = (0, 0);
        Some(now)
    }
}
