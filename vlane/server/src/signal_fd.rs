//! Checks the descriptors that a front end gives for kicks, calls and errors.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::FileType;
use vlane_io::Signaller;

/// A descriptor's use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Kick,
    Call,
    Error,
}

impl std::fmt::Display for Use {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Use::Kick => "kick",
            Use::Call => "call",
            Use::Error => "error",
        })
    }
}

/// Checks such descriptors, and signals errors.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// Made when it is first needed.
    signaller: Option<Signaller>,
}

impl Signals {
    fn signaller(&mut self) -> io::Result<&mut Signaller> {
        let signaller = match self.signaller.take() {
            Some(signaller) => signaller,
            None => Signaller::new()?,
        };
        Ok(self.signaller.insert(signaller))
    }

    /// Makes an eventfd readable. Does not wait.
    pub(crate) fn signal(&mut self, fd: &File) -> io::Result<()> {
        self.signaller()?.signal(fd.as_fd())
    }

    /// Kicks, calls and errors are signalled through eventfds. Any other file might block, or
    /// always be ready. Only calls may also use a socket, which can be written to without waiting
    /// (User-Mode Linux gives one). A descriptor that cannot be checked is refused.
    pub(crate) fn check(&mut self, purpose: Use, index: u8, fd: &File) -> io::Result<()> {
        let refuse = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        match self.signaller().and_then(|signaller| signaller.is_eventfd(fd.as_fd())) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => {
                return refuse(format!(
                    "the {purpose} descriptor of queue {index} cannot be checked: {error}"
                ));
            }
        }
        let is_socket =
            |stat: rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
        if purpose == Use::Call && rustix::fs::fstat(fd).is_ok_and(is_socket) {
            return Ok(());
        }
        // Only for the words: without /proc it stays unnamed.
        let name = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let name = name.map_or_else(
            |_| "something else".to_owned(),
            |name| vlane_socket::printable(&name.to_string_lossy()).to_string(),
        );
        refuse(format!("the {purpose} descriptor of queue {index} is not an eventfd but {name}"))
    }
}
