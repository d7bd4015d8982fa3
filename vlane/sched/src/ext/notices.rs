//! Reports of the scheduler in the kernel: its counters, and the reason why it was unloaded.

use super::bytes::Reader;
use crate::{Error, ErrorKind, Result};

/// Size of `struct told`, bytes.
const TOLD: usize = 432;
/// `SCX_EXIT_ERROR_STALL` in `kernel/sched/ext_internal.h`: a thread waited longer than the
/// timeout.
const STALL: i32 = 1026;
/// `SCX_EXIT_SYSRQ`.
const SYSRQ: i32 = 67;
/// `SCX_EXIT_UNREG` to `SCX_EXIT_UNREG_KERN`.
const UNREGISTERED: std::ops::RangeInclusive<i32> = 64..=66;

/// The contents of `struct told`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Notices {
    pub(crate) exit: Option<Exit>,
    pub(crate) moved: u64,
    pub(crate) missed: u64,
    pub(crate) overtime: u64,
    pub(crate) foreign: u64,
}

/// The kernel's last words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exit {
    pub(crate) kind: i32,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Notices {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        let mut from = Reader::new(bytes, "told", TOLD)?;
        let _exit_code = from.i64();
        let (kind, exited) = (from.i32(), from.u32() != 0);
        let (moved, missed, overtime, foreign) = (from.u64(), from.u64(), from.u64(), from.u64());
        let exit = Exit { kind, reason: from.text::<128>(), message: from.text::<256>() };
        Ok(Self { exit: exited.then_some(exit), moved, missed, overtime, foreign })
    }
}

impl Exit {
    /// The reason why the scheduler has ended, and the fate of the threads.
    pub(crate) fn error(&self) -> Error {
        let why = match self.kind {
            STALL => "a vCPU did not get a CPU for too long, and the kernel's watchdog ended it; \
                      tasks of SCHED_OTHER or real-time tasks keep the CPUs from it (they come \
                      before sched_ext): give them less, or take --vehicle realtime"
                .to_string(),
            SYSRQ => "it was ended with SysRq-S".to_string(),
            kind if UNREGISTERED.contains(&kind) => "it was taken out from outside".to_string(),
            kind => format!("the kernel ended it (kind {kind})"),
        };
        let told = [self.reason.as_str(), self.message.as_str()];
        let told: Vec<&str> = told.into_iter().filter(|text| !text.is_empty()).collect();
        let told = if told.is_empty() {
            String::new()
        } else {
            format!(" (the kernel: {})", told.join("; "))
        };
        Error::new(
            ErrorKind::Gone,
            format!(
                "sched_ext: the scheduler is no longer loaded: {why}{told}; the vCPUs are \
                 scheduled as ordinary threads again"
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn watchdog_reason_comes_with_a_remedy() {
        let mut bytes = vec![0; TOLD];
        bytes[8..12].copy_from_slice(&STALL.to_ne_bytes());
        bytes[12] = 1;
        bytes[16] = 3;
        bytes[48..61].copy_from_slice(b"runnable task");
        let told = Notices::read(&bytes).unwrap();
        assert_eq!(told.moved, 3);
        let text = told.exit.unwrap().error().to_string();
        assert!(
            text.contains("watchdog")
                && text.contains("runnable task")
                && text.contains("realtime"),
            "{text}"
        );
        assert!(Notices::read(&bytes[1..]).unwrap_err().to_string().contains("431 bytes"));
    }
}
