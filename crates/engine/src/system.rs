//! This crate's system calls on a request's way. The file has no logic of its own: the
//! deterministic simulator (crates/dst) compiles the crate a second time, with `simulated.rs` in
//! its place.

pub(crate) use io_uring::IoUring;
pub(crate) use libc::{pwritev2, sync_file_range};
pub use std::time::Instant;
