//! Changes of the storage: every operation that changes it or makes it durable, with its beginning
//! and its end, and every answer to such a request that the guest was given.
//!
//! A record is a [`Header`] and then [`Entry`]s. Their order is the order in which things happened, across lanes and threads: a beginning
//! stands in the record before the system call that it announces is made, an end after that call has returned, an answer before the guest
//! can see it. So an operation never ended before another one began if the record says that it did not, and an answer that the record
//! has after an end really came after it. `docs/src/power-cut.md` has the byte offsets.
//!
//! [`History`] is what a record tells of each operation; [`History::flushes`] checks from it that each flush kept its promise.
//!
//! It is for tests and research: it has the data of all writes in it.

mod entry;
mod file;
mod flushes;
mod history;

pub use entry::{Clear, Data, Entry, RequestKind, What};
pub use file::{Header, MAGIC, MAX_ENTRY, Reader, VERSION, Writer};
pub use flushes::{Findings, Reason, Violation};
pub use history::{Effect, History, Operation, Request};
