//! Synchronisation types where this crate's threads meet. The models (checks/models) compile
//! [`crate::file::exclusion`], [`crate::file::flushes`] and [`crate::file::placements`] with loom's
//! in their place.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
pub(crate) use vlane_io::{Waker, wake};
