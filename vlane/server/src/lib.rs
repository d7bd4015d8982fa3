//! Volumes and vhost-user sessions.
//!
//! A [`Volume`] is the served disk: an engine, lane threads, a name. A [`Listener`] waits on a unix
//! socket for front ends and serves them one after another. Each connection is a session, and ends
//! without effect on the others. The protocol's messages are taken apart by the `vhost` crate; the
//! meaning they have here is in [`Session`].

#![forbid(unsafe_code)]
// A recording is asked for at the control socket only, and so are an image's numbers.
#![cfg_attr(not(feature = "control"), allow(dead_code, reason = "the control socket's"))]

mod acceptor;
mod arriving;
mod config_change;
mod config_space;
#[cfg(feature = "control")]
mod control;
mod features;
mod handover;
mod listener;
mod padded_table;
mod recorded;
mod recording;
mod report;
mod rights;
mod sched;
mod schedulers;
mod session;
mod session_report;
mod signal_fd;
mod skip_drain;
mod stall;
mod unused;
mod vanished;
mod volume;
mod vring;
mod waiting;
mod watch;

pub use arriving::none_arrives;
pub use config_space::ConfigSpace;
#[cfg(feature = "control")]
pub use control::{Control, ControlError};
pub use handover::{
    Arrived, Descriptors, FORMAT as HANDOVER_FORMAT, HandedServer, HandedSocket, HandoverError,
    Successor,
};
pub use listener::{Listener, Stopper};
pub use rights::Rights;
pub use schedulers::Schedulers;
pub use session::{End, Session};
pub use stall::{STALLED, Unanswered};
pub use vanished::Vanishing;
pub use vlane_socket::{Access, ListenError};
pub use volume::{Volume, VolumeConfig, VolumeError};
