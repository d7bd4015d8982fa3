//! Finds out which vehicle this host allows.

use std::path::Path;

use crate::Result;
use crate::realtime;

/// The vehicle that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// The better one of those that work here.
    Auto,
    /// Bounded real-time slices, or an error.
    RealTime,
    /// sched_ext, or an error.
    SchedExt,
}

/// The host's support for sched_ext.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ext {
    /// No sched_ext in this kernel.
    Missing,
    /// sched_ext is there and free.
    Free,
    /// Another program's scheduler is loaded.
    Taken,
}

/// Checks if sched_ext is available.
pub fn sched_ext() -> Ext {
    ext_at(Path::new("/sys/kernel/sched_ext"))
}

fn ext_at(dir: &Path) -> Ext {
    match std::fs::read_to_string(dir.join("state")) {
        Ok(state) if state.trim() == "disabled" => Ext::Free,
        Ok(_) => Ext::Taken,
        Err(_) => Ext::Missing,
    }
}

impl Ext {
    /// In words, for people.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Missing => {
                "this kernel has no sched_ext (/sys/kernel/sched_ext is not there; Linux 6.12 with \
                 CONFIG_SCHED_CLASS_EXT has it)"
            }
            Self::Free => "this kernel has sched_ext, and it is unused",
            Self::Taken => {
                "another sched_ext scheduler is loaded (/sys/kernel/sched_ext/state); it is left \
                 alone"
            }
        }
    }
}

/// Checks if the realtime vehicle can run: privileges and the kernel's budget. Has no effect on the
/// host.
///
/// # Errors
///
/// Names the missing part and the remedy.
pub fn real_time() -> Result<()> {
    realtime::check()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn kernel_state_is_parsed() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(ext_at(dir.path()), Ext::Missing);
        std::fs::write(dir.path().join("state"), "disabled\n").unwrap();
        assert_eq!(ext_at(dir.path()), Ext::Free);
        std::fs::write(dir.path().join("state"), "enabled\n").unwrap();
        assert_eq!(ext_at(dir.path()), Ext::Taken);
    }
}
