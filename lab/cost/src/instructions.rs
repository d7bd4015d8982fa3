//! Instructions, counted by the processor: of user mode and kernel, of all threads of some roles
//! and of what these threads start.
//!
//! Many virtual machines show their guests no counters of the processor; then there is a reason
//! instead of a figure.

use std::io;

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};

use super::{Counted, Role, calls};

/// A counter for each thread that the roles had when it was opened.
pub struct Instructions {
    counters: Vec<(Counter, u64)>,
}

impl std::fmt::Debug for Instructions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instructions")
            .field("threads", &self.counters.len())
            .finish_non_exhaustive()
    }
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "not counted: instructions of the kernel may not be \
                                            counted by this user (kernel.perf_event_paranoid)"
            .to_owned(),
        // ENOENT, ENODEV, EOPNOTSUPP: the event has no counter.
        io::ErrorKind::NotFound | io::ErrorKind::Unsupported => no_counter(),
        _ if error.raw_os_error() == Some(19) => no_counter(),
        _ => {
            format!("not counted: the processor's counter of instructions cannot be used: {error}")
        }
    }
}

fn no_counter() -> String {
    "not counted: this machine shows no counter of instructions (many virtual machines do not)"
        .to_owned()
}

/// Counters of instructions, or the reason for their absence.
pub fn available() -> Counted<()> {
    match Builder::new(Hardware::INSTRUCTIONS).observe_self().include_kernel().build() {
        Ok(_) => Counted::Is(()),
        Err(error) => Counted::Not(reason(&error)),
    }
}

impl Instructions {
    /// Counts from now on.
    pub fn open(roles: &[Role]) -> Counted<Self> {
        let mut counters = Vec::new();
        for (tid, _) in calls::threads(roles) {
            let mut builder = Builder::new(Hardware::INSTRUCTIONS);
            builder.observe_pid(tid).any_cpu().inherit(true).enabled(true).include_kernel();
            match builder.build() {
                Ok(counter) => counters.push((counter, 0)),
                // ESRCH: it has ended.
                Err(error) if error.raw_os_error() == Some(3) => {}
                Err(error) => return Counted::Not(reason(&error)),
            }
        }
        Counted::Is(Self { counters })
    }

    /// How many up to now.
    pub fn read(&mut self) -> u64 {
        let all = self.counters.iter_mut().map(|(counter, last)| {
            *last = counter.read().unwrap_or(*last);
            *last
        });
        all.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::ThreadFilter;
    use super::*;

    #[test]
    fn uncounted_instructions_have_a_reason() {
        let own = Role::new("this", std::process::id().cast_signed(), ThreadFilter::All);
        match (available(), Instructions::open(&[own])) {
            (Counted::Is(()), Counted::Is(mut counters)) => {
                let before = counters.read();
                std::hint::black_box(
                    (0..1_000_000_u64).fold(0, |sum, n| std::hint::black_box(sum ^ n)),
                );
                let counted = counters.read() - before;
                assert!(counted >= 1_000_000, "{counted}");
            }
            // A machine without counters is none that lacks something.
            (Counted::Not(one), Counted::Not(other)) => {
                assert!(one.starts_with("not counted: ") && one == other, "{one}; {other}");
            }
            other => panic!("{other:?}"),
        }
    }
}
