//! Changes of the storage: every operation that changes it or makes it durable, with its beginning
//! and its end. Every answer to such a request is recorded, too.
//!
//! A record is a [`Header`] and then [`Entry`]s. Their order is the order of the events, across
//! lanes and threads. A beginning stands in the record before its system call is made, an end after
//! that call has returned, an answer before the guest can see it. So an operation never ended
//! before another one began unless the record shows it. An answer that the record has after an end
//! really came after it. `docs/src/power-cut.md` has the byte offsets.
//!
//! [`History`] is the history of each operation in a record; [`History::flushes`] checks from it
//! that each flush kept its promise.
//!
//! It is for tests and research: it has the data of all writes in it.

mod entry;
mod file;
mod flushes;
mod history;

pub use entry::{Action, Clear, Data, Entry, Purpose};
pub use file::{Header, MAGIC, MAX_ENTRY, Reader, VERSION, Writer};
pub use flushes::{Findings, Reason, Violation};
pub use history::{Effect, History, Operation, Request};
