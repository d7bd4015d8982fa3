//! Checks that each flush kept its promise.
//!
//! A flush answered `Ok` promises that some operations are durable: every write, discard and
//! zeroing that was answered `Ok` before the flush was given to the storage. Each of these was a
//! durable write itself, or a successful `fdatasync` began after it had ended, and ended before the
//! flush was answered. Data that an earlier program left in the page cache counts as one such
//! write, from before the record: so the first flush has a sync of its own. A write that was to be
//! durable when it is answered promises as much of itself.

use super::entry::{Action, Purpose};
use super::history::{History, Operation};

/// The findings of the check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// Promises that were not kept.
    pub violations: Vec<Violation>,
    /// Flushes that were answered well.
    pub flushes: usize,
    /// Those of them during which no sync began.
    pub without_sync: usize,
    /// Syncs.
    pub syncs: usize,
    /// Operations that change the storage.
    pub changes: usize,
}

/// A promise that was not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation {
    /// Which request promised it: an index into [`History::requests`].
    pub promised_by: usize,
    /// Which operation is not durable: an index into [`History::operations`]. None: data that was
    /// in the page cache before the record.
    pub operation: Option<usize>,
    /// Why it is not.
    pub reason: Reason,
}

/// Why an operation is not durable when that was promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// No sync began after it had ended, nor was one under way.
    NoSync,
    /// A sync went well that began before it had ended.
    BeganTooEarly,
    /// A sync that would do ended only after the promise.
    EndedTooLate,
    /// A sync that would do failed, or one before it did, after which no sync can be trusted.
    Failed,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Reason::NoSync => "no fdatasync began after it had ended",
            Reason::BeganTooEarly => "the fdatasync began before it had ended",
            Reason::EndedTooLate => "the fdatasync ended only after the answer",
            Reason::Failed => "the fdatasync failed",
        })
    }
}

impl History {
    /// Checks all promises.
    pub fn flushes(&self) -> Findings {
        let syncs = self.syncs();
        let changes =
            self.operations.iter().filter(|operation| operation.what != Action::Sync).count();
        let mut findings = Findings { changes, ..Findings::default() };
        findings.syncs = self.operations.len() - changes;

        // Operations whose requests were answered well, by that answer.
        let mut answered: Vec<(usize, usize)> = Vec::new();
        for (index, operation) in self.operations.iter().enumerate() {
            let request = operation.request.map(|request| (request, self.requests[request]));
            let Some((request, about)) = request.filter(|_| operation.is_change()) else {
                continue;
            };
            let Some((at, 0)) = about.answer else { continue };
            answered.push((at, index));
            let must_be_durable = about.durable && about.kind != Purpose::Discard;
            if must_be_durable && operation.durable.is_none_or(|durable| durable > at) {
                let reason = reason(operation, &syncs, at);
                findings.violations.push(Violation {
                    promised_by: request,
                    operation: Some(index),
                    reason,
                });
            }
        }
        answered.sort_unstable();

        let mut sync_begins: Vec<usize> = syncs.iter().map(|(begin, ..)| *begin).collect();
        sync_begins.sort_unstable();
        let first_good = syncs.iter().find(|(_, _, result)| *result >= 0).map(|(_, end, _)| *end);
        let mut next = answered.into_iter().peekable();
        let mut open: Vec<usize> = Vec::new();
        for (promised_by, flush) in self.requests.iter().enumerate() {
            let (Purpose::Flush, Some((answer, 0))) = (flush.kind, flush.answer) else {
                continue;
            };
            findings.flushes += 1;
            let first = sync_begins.partition_point(|begin| *begin < flush.begin);
            findings.without_sync +=
                usize::from(sync_begins.get(first).is_none_or(|begin| *begin > answer));
            if first_good.is_none_or(|end| end > answer) {
                let reason = match first_good {
                    Some(_) => Reason::EndedTooLate,
                    None if syncs.is_empty() => Reason::NoSync,
                    None => Reason::Failed,
                };
                findings.violations.push(Violation { promised_by, operation: None, reason });
            }
            while let Some((_, index)) = next.next_if(|(answered, _)| *answered < flush.begin) {
                open.push(index);
            }
            let durable = |index: usize| self.operations[index].durable;
            // Later flushes begin later.
            open.retain(|index| durable(*index).is_none_or(|durable| durable > flush.begin));
            for index in &open {
                if durable(*index).is_none_or(|durable| durable > answer) {
                    let reason = reason(&self.operations[*index], &syncs, answer);
                    findings.violations.push(Violation {
                        promised_by,
                        operation: Some(*index),
                        reason,
                    });
                }
            }
        }
        findings
    }

    /// A violation in words.
    pub fn tell(&self, violation: Violation) -> String {
        let promise = self.requests.get(violation.promised_by);
        let promise = match promise {
            Some(request) => format!(
                "{:?} of lane {} (entry {}, answered at {})",
                request.kind,
                request.lane,
                request.begin,
                request.answer.map_or(0, |(at, _)| at)
            ),
            None => "a request".to_owned(),
        };
        let operation = violation.operation.and_then(|index| self.operations.get(index));
        let what = match operation {
            None => "earlier data of the page cache".to_owned(),
            Some(operation) => {
                let (offset, end) = operation.what.range().unwrap_or_default();
                format!(
                    "{} bytes at {offset} (begun at entry {}, ended at {})",
                    end - offset,
                    operation.begin,
                    operation.end.map_or(0, |(at, _)| at)
                )
            }
        };
        format!("{promise} was answered OK, and {what} is not durable: {}", violation.reason)
    }
}

/// Why an operation that has ended is not durable at `by`.
fn reason(operation: &Operation, syncs: &[(usize, usize, i64)], by: usize) -> Reason {
    let ended = operation.end.map_or(usize::MAX, |(end, _)| end);
    let since = |(begin, ..): &&(usize, usize, i64)| *begin > ended;
    let in_time = |(_, end, _): &&(usize, usize, i64)| *end < by;
    if operation.is_lost || syncs.iter().filter(since).any(|sync| in_time(&sync) && sync.2 < 0) {
        return Reason::Failed;
    }
    // The next sync after it, however late it began: one that belongs to a later request is none
    // that ended too late.
    if syncs.iter().filter(since).any(|sync| sync.0 < by && !in_time(&sync)) {
        return Reason::EndedTooLate;
    }
    match syncs.iter().any(|sync| sync.0 < ended && sync.1 > ended && in_time(&sync)) {
        true => Reason::BeganTooEarly,
        false => Reason::NoSync,
    }
}
