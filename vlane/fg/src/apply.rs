//! Makes a change that was decided on.

use std::io;

use crate::policy::{Change, Outcome};
use crate::{proc, sys};

/// Makes the change, if the thread still has the identity and values for which it was decided.
pub fn apply(change: &Change) -> Outcome {
    // A thread that cannot be read for the moment is left as it is, and tried again.
    let now = proc::thread(change.pid, change.tid).ok().flatten();
    if now.is_none_or(|thread| thread.start != change.start || thread.values != change.from) {
        return Outcome { gone: true, ..Outcome::default() };
    }
    let mut outcome = Outcome::default();
    // The I/O priority first, as the policy relies on: a fork copies the nice value first.
    if change.to.io != change.from.io {
        outcome.io = said(sys::set_io_priority(change.tid, change.to.io), &mut outcome.gone);
    }
    if change.to.nice != change.from.nice {
        // Once more: nice(1) at this very moment would have had no effect.
        if sys::nice(change.tid).ok() != Some(change.from.nice) {
            return Outcome { gone: true, ..outcome };
        }
        outcome.nice = said(sys::set_nice(change.tid, change.to.nice), &mut outcome.gone);
    }
    outcome
}

fn said(result: io::Result<()>, gone: &mut bool) -> Option<String> {
    let error = result.err()?;
    *gone |= error.raw_os_error() == Some(libc::ESRCH);
    Some(error.to_string())
}
