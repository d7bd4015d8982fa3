//! Rights at a control socket.

/// The rights of clients that can connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// Ask and change.
    All,
    /// Ask how the volume is. They change no state and record no trace: a trace reveals the guest's
    /// actions, and keeps an upgrade waiting.
    Questions,
}

impl Rights {
    /// The option that makes such a socket.
    pub(crate) const fn option(self) -> &'static str {
        match self {
            Rights::All => "--control",
            Rights::Questions => "--control-read-only",
        }
    }
}
