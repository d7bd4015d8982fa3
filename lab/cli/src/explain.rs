//! Explains failed connections by the kind of the file: a user who gave an image or a control
//! socket learns so.

use std::path::Path;

use anyhow::Result;
use vlane_testbed::{Wanted, mistaken};

/// The result of talking to a vhost-user back end at `socket`; a failure names the kind of another
/// file there.
pub fn connecting<T, E: Into<anyhow::Error>>(socket: &Path, result: Result<T, E>) -> Result<T> {
    result.map_err(|error| match mistaken(socket, Wanted::VhostUserSocket) {
        Some(words) => anyhow::Error::msg(words),
        None => error.into(),
    })
}
