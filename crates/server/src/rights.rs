//! Rights at a control socket.

/// The rights of those who can connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// Ask and change.
    All,
    /// Ask how the volume is. They change nothing, and record nothing: a trace tells what the guest
    /// does, and keeps an upgrade waiting.
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
