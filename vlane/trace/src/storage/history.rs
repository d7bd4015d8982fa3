//! The history of each operation and each request in a record.

use std::collections::HashMap;

use super::entry::{Action, Clear, Data, Entry, Purpose};
use crate::error::{Error, ErrorKind};

/// An operation. Positions count entries of the record.
#[derive(Debug, Clone)]
pub struct Operation {
    /// For which request, as an index into [`History::requests`].
    pub request: Option<usize>,
    /// The action.
    pub what: Action,
    /// Where it begins.
    pub begin: usize,
    /// Its end, if there is one, and the system's result.
    pub end: Option<(usize, i64)>,
    /// The entry from which on its effect is durable, for sure.
    pub durable: Option<usize>,
    /// A sync failed that may have been to make it durable: no later one does.
    pub is_lost: bool,
}

/// The effect of an operation on its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The first so many bytes have the new content, and the others were left alone.
    Done(u64),
    /// Each may have the new content, or not: the operation has not ended, or failed, or its effect
    /// is unknown.
    Open,
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The lane of the request.
    pub lane: u16,
    /// The kind of the request.
    pub kind: Purpose,
    /// It is to be durable when it is answered.
    pub durable: bool,
    /// Where it was given to the storage engine.
    pub begin: usize,
    /// Where it was answered, if it was, and the status.
    pub answer: Option<(usize, u8)>,
}

/// The history of each operation and each request in a record.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// By their beginning.
    pub operations: Vec<Operation>,
    /// By their beginning.
    pub requests: Vec<Request>,
    /// How many entries the record has.
    pub len: usize,
}

impl Operation {
    /// Returns its effect, as it is known at the end of the record.
    pub fn effect(&self) -> Effect {
        let len = self.what.range().map_or(0, |(begin, end)| end - begin);
        match (&self.what, self.end) {
            (Action::Clear { how: Clear::Discard, .. }, _) | (_, None) => Effect::Open,
            (_, Some((_, result))) if result < 0 => Effect::Open,
            (Action::Write { .. }, Some((_, result))) => {
                Effect::Done(len.min(result.unsigned_abs()))
            }
            (Action::Clear { .. } | Action::Sync, Some(_)) => Effect::Done(len),
        }
    }

    /// It changes the storage, and has ended well.
    pub(super) fn is_change(&self) -> bool {
        let has_ended_well = self.end.is_some_and(|(_, result)| result >= 0);
        has_ended_well && self.what != Action::Sync
    }
}

/// True if the system refused only for the moment, without an effect.
fn is_momentary(result: i64) -> bool {
    // EINTR, EAGAIN, EBUSY
    matches!(result, -4 | -11 | -16)
}

impl History {
    /// Of a whole record.
    ///
    /// # Errors
    /// The reader's error; [`ErrorKind::Corrupt`] for a record in which an operation ends that has
    /// not begun.
    pub fn new(entries: impl IntoIterator<Item = Result<Entry, Error>>) -> Result<History, Error> {
        let mut history = History::default();
        let (mut operations, mut requests) = (HashMap::new(), HashMap::new());
        for (at, entry) in entries.into_iter().enumerate() {
            let corrupt = |what: String| {
                Error::new(
                    ErrorKind::Corrupt,
                    0,
                    format!("the record is inconsistent: entry {at}: {what}"),
                )
            };
            history.len = at + 1;
            match entry? {
                Entry::Request { request, lane, kind, durable } => {
                    if requests.insert(request, history.requests.len()).is_some() {
                        return Err(corrupt(format!("a second request {request}")));
                    }
                    history.requests.push(Request { lane, kind, durable, begin: at, answer: None });
                }
                Entry::Answer { request, status } => {
                    let index = requests.get(&request);
                    let known = index.map(|index| &mut history.requests[*index]);
                    let Some(known) = known.filter(|known| known.answer.is_none()) else {
                        return Err(corrupt(format!(
                            "request {request} is answered and is not there"
                        )));
                    };
                    known.answer = Some((at, status));
                }
                Entry::Forgotten { request } => {
                    if !requests.contains_key(&request) {
                        return Err(corrupt(format!("request {request} goes and is not there")));
                    }
                }
                Entry::Begin { operation, request, what } => {
                    if operations.insert(operation, history.operations.len()).is_some() {
                        return Err(corrupt(format!("a second operation {operation}")));
                    }
                    let request = requests.get(&request).copied();
                    history.operations.push(Operation {
                        request,
                        what,
                        begin: at,
                        end: None,
                        durable: None,
                        is_lost: false,
                    });
                }
                Entry::End { operation, result } => {
                    let index = operations.get(&operation);
                    let known = index.map(|index| &mut history.operations[*index]);
                    let Some(known) = known.filter(|known| known.end.is_none()) else {
                        return Err(corrupt(format!(
                            "operation {operation} ends and is not there"
                        )));
                    };
                    known.end = Some((at, result));
                }
                Entry::Complete { .. } => {}
            }
        }
        history.find_durable();
        Ok(history)
    }

    /// Syncs, as (beginning, end, result), by their end.
    pub(super) fn syncs(&self) -> Vec<(usize, usize, i64)> {
        let ended = self.operations.iter().filter(|operation| operation.what == Action::Sync);
        let mut syncs: Vec<_> = ended
            .filter_map(|sync| sync.end.map(|(end, result)| (sync.begin, end, result)))
            .collect();
        syncs.sort_by_key(|(_, end, _)| *end);
        syncs
    }

    /// Finds from where on each operation is durable: its own end, if it was a durable write; or
    /// the end of the first sync that began after it had ended, and went well.
    fn find_durable(&mut self) {
        // Those that have ended and are not durable, by their end.
        let mut ended: Vec<(usize, usize)> = Vec::new();
        for (index, operation) in self.operations.iter_mut().enumerate() {
            let Some((end, _)) = operation.end.filter(|_| operation.is_change()) else {
                continue;
            };
            match operation.what {
                Action::Write { durable: true, .. } => operation.durable = Some(end),
                _ => ended.push((end, index)),
            }
        }
        ended.sort_unstable();
        let mut open: Vec<(usize, usize)> = Vec::new();
        let mut next = ended.into_iter().peekable();
        for (begin, end, result) in self.syncs() {
            while let Some(one) = next.next_if(|(ended, _)| *ended < end) {
                open.push(one);
            }
            if is_momentary(result) {
                continue;
            }
            if result < 0 {
                // Its data counts as written from now on, and is not.
                for (_, index) in open.drain(..) {
                    self.operations[index].is_lost = true;
                }
                continue;
            }
            open.retain(|(ended, index)| {
                let is_covered = *ended < begin;
                if is_covered {
                    self.operations[*index].durable = Some(end);
                }
                !is_covered
            });
        }
    }

    /// The same record from storage that does not keep its promise: syncs of which `is_broken`
    /// holds, by their number, have no effect and report success. Data that only they made durable
    /// is not. It shows that a checker of a record can find a fault.
    pub fn with_broken_syncs(mut self, mut is_broken: impl FnMut(usize) -> bool) -> History {
        let mut number = 0;
        for operation in &mut self.operations {
            operation.durable = None;
            operation.is_lost = false;
            if operation.what == Action::Sync {
                if is_broken(number) {
                    operation.end = None;
                }
                number += 1;
            }
        }
        self.find_durable();
        self
    }

    /// The same record from storage on which no data is ever durable, although it reports success:
    /// no sync has an effect, and no write is durable by itself.
    pub fn with_nothing_durable(mut self) -> History {
        for operation in &mut self.operations {
            if let Action::Write { durable, .. } = &mut operation.what {
                *durable = false;
            }
        }
        self.with_broken_syncs(|_| true)
    }

    /// The data of an operation that changes the storage: the new content of its range.
    pub fn data(&self, operation: usize) -> Option<Data> {
        match &self.operations.get(operation)?.what {
            Action::Write { data, .. } => Some(data.clone()),
            Action::Clear { len, .. } => Some(Data::Zeroes(*len)),
            Action::Sync => None,
        }
    }
}
