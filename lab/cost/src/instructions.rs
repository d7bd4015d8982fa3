//! Instructions, counted by the processor: of user mode and kernel, of all threads of some roles
//! and of all that these start.
//!
//! Many virtual machines show their guests no counters of the processor; then there is a reason
//! instead of a figure.

use std::io;

use perf_event::events::Hardware;

use super::counters::{self, Counters};
use super::{Counted, Role};

/// A counter for each thread that the roles had when it was opened.
#[derive(Debug)]
pub struct Instructions {
    counters: Counters,
    roles: usize,
}

fn reason(error: &io::Error) -> String {
    let absent = [io::ErrorKind::NotFound, io::ErrorKind::Unsupported].contains(&error.kind());
    match error.kind() {
        io::ErrorKind::PermissionDenied => "not counted: instructions of the kernel may not be \
                                            counted by this user (kernel.perf_event_paranoid)"
            .to_owned(),
        // ENOENT, ENODEV, EOPNOTSUPP: the event has no counter.
        _ if absent || error.raw_os_error() == Some(19) => "not counted: this machine shows no \
                                                            counter of instructions (many virtual \
                                                            machines do not)"
            .to_owned(),
        _ => {
            format!("not counted: the processor's counter of instructions cannot be used: {error}")
        }
    }
}

/// Counters of instructions, or the reason for their absence.
pub fn available() -> Counted<()> {
    counters::available(Hardware::INSTRUCTIONS, reason)
}

impl Instructions {
    /// Counts from now on.
    pub fn open(roles: &[Role]) -> Counted<Self> {
        let counters = Counters::open(roles, Hardware::INSTRUCTIONS);
        let counters = counters.map_err(|error| reason(&error))?;
        Ok(Self { counters, roles: roles.len() })
    }

    /// How many up to now.
    pub fn read(&mut self) -> u64 {
        self.counters.read(self.roles).iter().sum()
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
            (Ok(()), Ok(mut counters)) => {
                let before = counters.read();
                std::hint::black_box(
                    (0..1_000_000_u64).fold(0, |sum, n| std::hint::black_box(sum ^ n)),
                );
                let counted = counters.read() - before;
                assert!(counted >= 1_000_000, "{counted}");
            }
            // A machine may have no counters.
            (Err(one), Err(other)) => {
                assert!(one.starts_with("not counted: ") && one == other, "{one}; {other}");
            }
            other => panic!("{other:?}"),
        }
    }
}
