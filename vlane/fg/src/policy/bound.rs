//! Limits the number of a user's raised threads at a time: any user may open terminals, and start
//! programs that compute in their foreground.

use std::collections::{BTreeMap, BTreeSet};

use super::{Known, Seen};

/// The number of threads of a user other than root that are raised at a time, in so many terminals.
pub(super) const THREADS: usize = 1024;
pub(super) const TERMINALS: usize = 16;
/// Root's number.
pub const ROOT: &str = "0";

/// The user in what is known of a process's owner.
pub fn user_of(owner: &str) -> &str {
    owner.split(' ').next().unwrap_or_default()
}

/// The raised threads and terminals of each user.
#[derive(Debug, Default)]
pub(super) struct Raised(BTreeMap<String, OfUser>);

#[derive(Debug, Default)]
struct OfUser {
    terminals: BTreeSet<i32>,
    threads: BTreeMap<i32, usize>,
}

impl Raised {
    /// The part of these processes.
    pub(super) fn of(known: &BTreeMap<i32, Known>) -> Self {
        let mut raised = Self::default();
        for (pid, known) in known {
            let threads = known.entries().count();
            if threads > 0 {
                let of_user = raised.0.entry(user(known.owner.as_deref())).or_default();
                of_user.terminals.insert(known.terminal);
                of_user.threads.insert(*pid, threads);
            }
        }
        raised
    }

    /// Returns true if a process in the foreground is raised; it counts from then on. A process
    /// that has become too large for its user is not raised any more.
    pub(super) fn admits(&mut self, seen: &Seen) -> bool {
        let (pid, user) = (seen.stat.pid, user(seen.owner.as_deref()));
        if user == ROOT {
            return true;
        }
        let of_user = self.0.entry(user).or_default();
        let others: usize = of_user
            .threads
            .iter()
            .filter(|(other, _)| **other != pid)
            .map(|(_, threads)| threads)
            .sum();
        let is_new = !of_user.terminals.contains(&seen.stat.terminal);
        if others + seen.threads.len() > THREADS || (is_new && of_user.terminals.len() >= TERMINALS)
        {
            return false;
        }
        of_user.terminals.insert(seen.stat.terminal);
        of_user.threads.insert(pid, seen.threads.len());
        true
    }
}

/// Processes whose user is not known count as one user's.
fn user(owner: Option<&str>) -> String {
    user_of(owner.unwrap_or_default()).to_owned()
}
