//! Repeats events that the vCPU has not served when their boost was over.
//!
//! A guest may need longer than a boost lasts: it finishes what may not be interrupted, or its own
//! timer has to come first. An event may also have been denied while a loan was redeemed. The vCPU
//! would then wait for its turn behind all others, which is the wait that boosts are to save it. So
//! the event is repeated after a pause, which grows. The loan pays for every boost, and an event
//! that is never served costs at most six of them.

use std::collections::BTreeMap;

use vlane_policy::loan::VcpuId;

/// The number of times that an event is repeated.
const TIMES: u32 = 6;
/// The first pause is no shorter than this, nanoseconds.
const LEAST_NS: u64 = 1_000_000;

#[derive(Debug, Clone, Copy)]
struct Unserved {
    times: u32,
    next: u64,
}

/// The events that are not served yet, one for each vCPU at most.
#[derive(Debug)]
pub(super) struct Retries {
    pause_ns: u64,
    unserved: BTreeMap<VcpuId, Unserved>,
    count: u64,
}

impl Retries {
    /// `boost_ns`: how long a boost lasts at the most.
    pub(super) fn new(boost_ns: u64) -> Self {
        let pause_ns = boost_ns.saturating_mul(2).max(LEAST_NS);
        Self { pause_ns, unserved: BTreeMap::new(), count: 0 }
    }

    /// Notes an event that has just arrived.
    pub(super) fn arrived(&mut self, id: VcpuId, now: u64) {
        let first = Unserved { times: 0, next: now + self.pause_ns };
        // The guest takes the oldest of several first.
        self.unserved.entry(id).or_insert(first);
    }

    /// All events of a vCPU are served, or will not be.
    pub(super) fn served(&mut self, id: VcpuId) {
        self.unserved.remove(&id);
    }

    /// The time of the next repeat.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.unserved.values().map(|unserved| unserved.next).min()
    }

    /// Returns the vCPUs whose events are to be repeated now. `later`: a time before which a repeat
    /// changes nothing, so it would cost a wake-up and no more. `sleeps`: a sleeping vCPU has no
    /// work left.
    pub(super) fn due(
        &mut self,
        now: u64,
        later: impl Fn(VcpuId) -> Option<u64>,
        sleeps: impl Fn(VcpuId) -> bool,
    ) -> Vec<VcpuId> {
        let due = self.unserved.iter().filter(|(_, unserved)| unserved.next <= now);
        let due: Vec<VcpuId> = due.map(|(&id, _)| id).collect();
        let mut again = Vec::new();
        for id in due {
            let Some(unserved) = self.unserved.get_mut(&id) else { continue };
            if let Some(later) = later(id).filter(|&later| later > now) {
                unserved.next = later;
                continue;
            }
            if unserved.times >= TIMES || sleeps(id) {
                self.unserved.remove(&id);
                continue;
            }
            unserved.times += 1;
            // Every pause twice, then twice as long.
            unserved.next = now + (self.pause_ns << (unserved.times / 2));
            self.count += 1;
            again.push(id);
        }
        again
    }

    /// The number of repeated events.
    pub(super) const fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// The pauses between the repeats grow.
    #[test]
    fn unserved_event_repeats_six_times() {
        let mut retries = Retries::new(MS / 2);
        let id = VcpuId(3);
        retries.arrived(id, 0);
        let mut times = Vec::new();
        while let Some(at) = retries.deadline() {
            assert!(retries.due(at - 1, |_| None, |_| false).is_empty());
            if !retries.due(at, |_| None, |_| false).is_empty() {
                times.push(at / MS);
            }
        }
        assert_eq!(times, [1, 2, 4, 6, 10, 14]);
        assert_eq!(retries.count(), 6);
    }

    #[test]
    fn serving_or_sleeping_vcpu_gets_no_repeat() {
        let mut retries = Retries::new(MS);
        retries.arrived(VcpuId(0), 0);
        retries.arrived(VcpuId(1), 0);
        retries.served(VcpuId(0));
        assert!(retries.due(10 * MS, |_| None, |id| id == VcpuId(1)).is_empty());
        assert_eq!(retries.deadline(), None);
    }

    /// No repeat of it is lost by that.
    #[test]
    fn certain_denial_delays_the_repeat() {
        let mut retries = Retries::new(MS);
        let id = VcpuId(0);
        retries.arrived(id, 0);
        let later = |_| Some(30 * MS);
        assert!(retries.due(2 * MS, later, |_| unreachable!()).is_empty());
        assert_eq!(retries.deadline(), Some(30 * MS));
        assert_eq!(retries.due(30 * MS, later, |_| false), [id]);
        assert_eq!(retries.count(), 1);
    }

    #[test]
    fn later_events_do_not_delay_the_first() {
        let mut retries = Retries::new(MS);
        retries.arrived(VcpuId(0), 0);
        retries.arrived(VcpuId(0), MS);
        assert_eq!(retries.deadline(), Some(2 * MS));
    }
}
