//! Joins that were refused, and are tried again.
//!
//! Another scheduler may still have the thread, a group its real-time budget not yet, the guard may
//! be started again just now. The pauses grow, and they end: a refusal that lasts two minutes has a
//! reason that retries do not change.

use std::collections::BTreeMap;

use vlane_error::describe;
use vlane_policy::loan::Claim;

use crate::vehicle::VcpuThreads;
use crate::{Error, ErrorKind};

/// The first pause; the others are twice as long each, up to the longest.
const FIRST_NS: u64 = 250_000_000;
const LONGEST_NS: u64 = 32_000_000_000;
/// The most retries of a join.
const TIMES: u32 = 10;

/// The refused action: a source's vCPU is there, or its threads are others now.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Join {
    pub(super) source: usize,
    pub(super) token: u64,
    pub(super) vcpu: VcpuThreads,
    /// `None`: the vCPU is scheduled already, and its threads are others now.
    pub(super) claim: Option<Claim>,
}

#[derive(Debug)]
struct Failed {
    join: Join,
    times: u32,
    next: u64,
}

/// The joins that were refused, one for each vCPU of a source at most.
#[derive(Debug, Default)]
pub(super) struct Joins {
    failed: BTreeMap<(usize, u64), Failed>,
    /// The number of refusals of each join, while it is retried.
    trying: BTreeMap<(usize, u64), u32>,
}

/// Returns true if a retry may help: a vCPU that is gone or left alone stays so.
fn may_change(error: &Error) -> bool {
    !matches!(error.kind(), ErrorKind::Gone | ErrorKind::LeftAlone)
}

impl Joins {
    /// A join was refused; says so the first time and the last.
    pub(super) fn refused(&mut self, join: Join, error: &Error, now: u64) {
        let key = (join.source, join.token);
        let times = self.trying.remove(&key).unwrap_or(0);
        if !may_change(error) {
            match error.kind() {
                ErrorKind::Gone => tracing::info!("{}", describe(error)),
                _ => tracing::warn!("{}", describe(error)),
            }
            return;
        }
        if times >= TIMES {
            let name = &join.vcpu.name;
            tracing::warn!("{name}: not scheduled, and not tried again: {}", describe(error));
            return;
        }
        match times {
            0 => tracing::warn!("{}; it is tried again", describe(error)),
            _ => tracing::debug!("{}", describe(error)),
        }
        let next = now + (FIRST_NS << times).min(LONGEST_NS);
        self.failed.insert(key, Failed { join, times: times + 1, next });
    }

    /// A join was successful.
    pub(super) fn done(&mut self, source: usize, token: u64) {
        self.trying.remove(&(source, token));
    }

    /// A vCPU has left, or is to join in another way: its refused join is not retried any more.
    /// Returns the join, if there was one.
    pub(super) fn forget(&mut self, source: usize, token: u64) -> Option<Join> {
        self.trying.remove(&(source, token));
        self.failed.remove(&(source, token)).map(|failed| failed.join)
    }

    /// The time of the next retry.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.failed.values().map(|failed| failed.next).min()
    }

    /// Returns the next join to retry now: one at a time, events come first.
    pub(super) fn due(&mut self, now: u64) -> Option<Join> {
        let (&key, _) = self.failed.iter().find(|(_, failed)| failed.next <= now)?;
        let failed = self.failed.remove(&key)?;
        self.trying.insert(key, failed.times);
        Some(failed.join)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn join() -> Join {
        let vcpu = VcpuThreads { pid: 1, index: 0, tids: vec![7], name: "machine".into() };
        Join { source: 2, token: 3, vcpu, claim: Some(Claim::of(1)) }
    }

    fn error(kind: ErrorKind) -> Error {
        Error::new(kind, "refused")
    }

    /// The pauses grow, and then the retries end.
    #[test]
    fn refused_join_is_retried_ten_times() {
        let mut joins = Joins::default();
        let (mut now, mut pauses) = (5, Vec::new());
        joins.refused(join(), &error(ErrorKind::Permission), now);
        while let Some(at) = joins.deadline() {
            assert_eq!(joins.due(at - 1), None);
            assert_eq!(joins.due(at).unwrap(), join());
            pauses.push((at - now) / 1_000_000);
            now = at;
            joins.refused(join(), &error(ErrorKind::Invalid), now);
        }
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 8000, 16000, 32000, 32000, 32000]);
    }

    /// A vCPU that has left is not retried.
    #[test]
    fn successful_join_restarts_the_retry_count() {
        let mut joins = Joins::default();
        joins.refused(join(), &error(ErrorKind::Io), 0);
        joins.due(FIRST_NS).unwrap();
        joins.done(2, 3);
        joins.refused(join(), &error(ErrorKind::Io), 0);
        assert_eq!(joins.deadline(), Some(FIRST_NS));
        assert_eq!(joins.forget(2, 3), Some(join()));
        assert_eq!((joins.deadline(), joins.forget(2, 3)), (None, None));
    }

    #[test]
    fn gone_vcpu_is_not_retried() {
        let mut joins = Joins::default();
        for kind in [ErrorKind::Gone, ErrorKind::LeftAlone] {
            joins.refused(join(), &error(kind), 0);
            assert_eq!(joins.deadline(), None);
        }
    }
}
