//! What this crate asks of the system on a request's way. Nothing of its own: the deterministic simulator (crates/dst) compiles the crate a
//! second time, with `simulated.rs` in the place of this file.

pub(crate) use io_uring::IoUring;
pub(crate) use libc::{pwritev2, sync_file_range};
pub use std::time::Instant;
