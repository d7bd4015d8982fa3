//! Counters of one event of the kernel or the processor (perf_event_open(2)): one for each thread
//! of some roles, which threads that it starts inherit.

use std::collections::BTreeMap;
use std::io;

use perf_event::events::Event;
use perf_event::{Builder, Counter};

use super::proc::ProcessLook;
use super::{Counted, Role};

/// One for each thread that the roles had when they were opened, by the role's place.
pub(super) struct Counters(Vec<(usize, Counter, u64)>);

impl std::fmt::Debug for Counters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "counters of {}", vlane_error::counted(self.0.len(), "thread"))
    }
}

impl Counters {
    /// Counts from now on.
    pub(super) fn open<E: Event + Copy>(roles: &[Role], event: E) -> io::Result<Self> {
        let mut counters = Vec::new();
        for (tid, role) in threads(roles) {
            let mut builder = Builder::new(event);
            builder.observe_pid(tid).any_cpu().inherit(true).enabled(true).include_kernel();
            match builder.build() {
                Ok(counter) => counters.push((role, counter, 0)),
                // ESRCH: it has ended.
                Err(error) if error.raw_os_error() == Some(3) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self(counters))
    }

    /// The counts now, for so many roles.
    pub(super) fn read(&mut self, roles: usize) -> Vec<u64> {
        let mut all = vec![0; roles];
        for (role, counter, last) in &mut self.0 {
            *last = counter.read().unwrap_or(*last);
            all[*role] += *last;
        }
        all
    }
}

/// True if this process may count the event at all; else the reason.
pub(super) fn available<E: Event>(event: E, reason: fn(&io::Error) -> String) -> Counted<()> {
    let counter = Builder::new(event).observe_self().include_kernel().build();
    counter.map(drop).map_err(|error| reason(&error))
}

/// All threads of the roles, each with the role that it counts for.
fn threads(roles: &[Role]) -> BTreeMap<i32, usize> {
    let mut found = BTreeMap::new();
    for (index, role) in roles.iter().enumerate() {
        for process in role.processes().into_iter().filter_map(ProcessLook::take) {
            for ((tid, _), thread) in process.threads {
                if role.threads.fits(&thread.comm) {
                    found.entry(tid).or_insert(index);
                }
            }
        }
    }
    found
}
