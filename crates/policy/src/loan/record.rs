//! What happened to accounts, written down, and decided again: a second implementation of the policy (the BPF program)
//! exports what it saw and what it decided, and [`replay`] says whether this one decides the same.

use serde::{Deserialize, Serialize};

use super::account::{Account, Decision, Doing};
use super::params::Params;

/// One thing that happened to an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "what")]
pub enum What {
    /// An I/O completed, and this was decided.
    Event {
        /// What the vCPU did then.
        doing: Doing,
        /// What was decided.
        decision: Decision,
    },
    /// CPU time was used; whether a boost is on afterwards.
    Ran {
        /// Nanoseconds.
        ns: u64,
        /// Whether a boost is on afterwards.
        boosted: bool,
    },
    /// The event was served.
    Served,
    /// The accounting gave an allotment; the state afterwards.
    Allot {
        /// Nanoseconds of CPU time.
        ns: u64,
        /// Credits afterwards.
        credit_ns: i64,
        /// What is owed afterwards.
        debt_ns: u64,
        /// The loan's line afterwards.
        line_ns: u64,
    },
    /// The terms were changed from outside ([`Policy::Adaptive`](super::Policy::Adaptive)).
    Terms {
        /// The new base line.
        base_line_ns: u64,
        /// The new redemption share.
        redemption_permille: u64,
    },
}

/// One entry of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Nanoseconds, of whatever clock the recorder had.
    pub now: u64,
    /// Which account.
    pub vcpu: u32,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// Where a record and this policy part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("entry {index} (vCPU {vcpu} at {now} ns): recorded {recorded}, but the policy says {decided}", vcpu = .entry.vcpu, now = .entry.now)]
pub struct Mismatch {
    /// Which entry, from 0.
    pub index: usize,
    /// The entry.
    pub entry: Entry,
    /// What was recorded.
    pub recorded: String,
    /// What this policy decides.
    pub decided: String,
}

/// Decides everything in a record again; the accounts at its end.
///
/// # Errors
///
/// The first entry at which the record and this policy part.
pub fn replay<'a>(
    entries: impl IntoIterator<Item = &'a Entry>,
    params: &Params,
) -> Result<Vec<Account>, Box<Mismatch>> {
    let mut accounts: Vec<Account> = Vec::new();
    for (index, entry) in entries.into_iter().enumerate() {
        let place = entry.vcpu as usize;
        if accounts.len() <= place {
            accounts.resize_with(place + 1, || Account::new(params));
        }
        let account = &mut accounts[place];
        let (recorded, decided) = match entry.what {
            What::Event { doing, decision } => {
                (format!("{decision:?}"), format!("{:?}", account.event(entry.now, doing, params)))
            }
            What::Ran { ns, boosted } => {
                account.ran(entry.now, ns, params);
                (format!("boosted: {boosted}"), format!("boosted: {}", account.boosted.is_some()))
            }
            What::Served => {
                account.served();
                continue;
            }
            What::Allot { ns, credit_ns, debt_ns, line_ns } => {
                account.allot(entry.now, ns, params);
                let now = (account.credit_ns, account.loan.debt_ns(), account.loan.line_ns);
                (format!("{:?}", (credit_ns, debt_ns, line_ns)), format!("{now:?}"))
            }
            What::Terms { base_line_ns, redemption_permille } => {
                account.base_line_ns = base_line_ns;
                account.redemption_permille = redemption_permille;
                continue;
            }
        };
        if recorded != decided {
            return Err(Box::new(Mismatch { index, entry: *entry, recorded, decided }));
        }
    }
    Ok(accounts)
}
