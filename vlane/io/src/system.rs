//! The data path's interface to the system. The deterministic simulator (checks/dst) compiles this
//! crate and those above it a second time, with another file in the place of this one.

pub(crate) use io_uring::IoUring;
pub use libc::{pwritev2, sync_file_range};
pub use std::time::Instant;
