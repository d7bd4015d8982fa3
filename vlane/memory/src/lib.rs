//! Memory that vlane shares with others.
//!
//! [`GuestMemory`] is a guest's, mapped from the files that its front end sends;
//! [`SharedWords`](shared::SharedWords) carries messages between lanes and the scheduler;
//! [`DirtyLog`] is the front end's map of changed pages. All stand on [`Mapping`], whose
//! [guard](fault) turns the loss of pages into an answer instead of a SIGBUS.

mod dirty;
pub mod fault;
mod guest;
mod mapping;
pub mod shared;

pub use dirty::DirtyLog;
pub use guest::{GuestMemory, MemoryError, Region, RegionSpec, Window};
pub use mapping::{Mapping, PAGE};
