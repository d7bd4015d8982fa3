//! Unix sockets that are listened on: their files ([`SocketFile`]), the names of other processes
//! ([`printable`], [`command_line`]), and a process without a free descriptor ([`Shortage`]).
//!
//! One rule for every socket of the program: only a dead socket is removed to make room, never
//! anything else, and at the end only one's own.

#![forbid(unsafe_code)]

mod changes;
mod command_line;
mod error;
mod file;
mod printable;
mod shortage;
mod silence;

pub use changes::Changes;
pub use command_line::command_line;
pub use error::ListenError;
pub use file::{Access, Place, SocketFile, SocketKind};
pub use printable::{Printable, printable};
pub use shortage::{Shortage, is_scarce, is_short, no_descriptor};
pub use silence::unanswered;
