//! Host schedulers to simulate, by name.

use vlane_policy::loan::units::MS;
use vlane_policy::loan::{Params, Payment, Policy, Redemption};

use crate::{Error, ErrorKind, Result};

/// When a boost ends, besides at its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// When the vCPU has served all events that it knows of.
    Served,
    /// At the host's next tick of so many nanoseconds, served or not; or when the vCPU goes to
    /// sleep (Xen).
    Tick(u64),
}

/// Queues as in Xen's Credit scheduler, with the decisions of [`vlane_policy::loan`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credit {
    /// The policy's parameters.
    pub params: Params,
    /// When a boost ends.
    pub ends: Ends,
    /// The CPU time that an accounting gives out.
    pub pool: Pool,
}

/// The CPU time that an accounting gives out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pool {
    /// Time of all CPUs, used or not (Xen). No vCPU is charged for the part used by switches. So
    /// over time all vCPUs have credits up to the limit, all are UNDER, and no boosted vCPU is held
    /// back.
    Whole,
    /// Time that the vCPUs have used since the last one: each gain is another's payment.
    Used,
}

/// A host scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// Linux' EEVDF, which is unaware of vCPUs.
    Eevdf,
    /// Xen's queues.
    Credit(Credit),
}

/// A host scheduler with a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setup {
    /// Its name.
    pub name: String,
    /// The scheduler.
    pub host: Host,
}

/// Xen's tick.
const TICK_NS: u64 = 10 * MS;

/// All that can be asked for, in the order in which they are compared, with their differences in a
/// few words.
const SETUPS: [(&str, &str); 14] = [
    ("eevdf", "Linux' EEVDF"),
    ("credit", "vlane's credit: boosts vCPUs that were blocked and have credits"),
    ("always-boost", "every event boosts, without a charge"),
    ("loan", "vlane's loans"),
    ("adaptive", "vlane's loans; their terms find themselves"),
    (
        "paper",
        "the paper's loans: 1000 credits, 20 % redeemed once all is spent, boosts until a 10 ms \
         tick",
    ),
    ("xen", "Xen's Credit scheduler: the paper's base line"),
    ("paper+small", "paper, with loans of 5 to 100 credits, 20 to begin with"),
    ("paper+served", "paper, with boosts that end when served, 1 ms at most"),
    ("paper+always", "paper, with redemption at every accounting"),
    ("paper+share", "paper, with boosts charged to the own share too"),
    ("paper+all", "paper, with all four changes (and its 20 % redemption)"),
    ("loan-unlevelled", "loan, but sleepers' savings are the contenders' debts"),
    ("loan-inflated", "loan, but credits are given out for switches' time too, as in Xen"),
];

/// Setups that are compared by default.
pub const COMPARED: [&str; 6] = ["eevdf", "credit", "always-boost", "loan", "adaptive", "paper"];

/// The ablation: the paper's parameters, one change at a time, then all of them, then vlane's.
pub const ABLATION: [&str; 11] = [
    "eevdf",
    "xen",
    "paper",
    "paper+small",
    "paper+served",
    "paper+always",
    "paper+share",
    "paper+all",
    "loan-unlevelled",
    "loan-inflated",
    "loan",
];

/// Names of all that can be asked for, in the order in which they are compared.
pub fn names() -> impl Iterator<Item = &'static str> {
    SETUPS.into_iter().map(|(name, _)| name)
}

impl Setup {
    /// The one of that name.
    ///
    /// # Errors
    ///
    /// There is none; the message names those that there are.
    pub fn named(name: &str) -> Result<Self> {
        let credit = |params, ends, pool| Host::Credit(Credit { params, ends, pool });
        let sound = |policy| credit(Params::sound(policy), Ends::Served, Pool::Used);
        let ticking = |params| credit(params, Ends::Tick(TICK_NS), Pool::Whole);
        let served = |params| credit(params, Ends::Served, Pool::Whole);
        let (paper, own) = (Params::paper(), Params::sound(Policy::Loan));
        let unlevelled = Params { level_permille: 0, ..own };
        // Boosts of vlane's length.
        let short = |params| Params { boost_max_ns: own.boost_max_ns, ..params };
        // Loans of vlane's size, by cm.
        let small = |params| Params {
            line_ns: own.line_ns,
            line_min_ns: own.line_min_ns,
            line_max_ns: own.line_max_ns,
            cm_ref_ppm: own.cm_ref_ppm,
            ..params
        };
        let host = match name {
            "eevdf" => Host::Eevdf,
            "credit" => sound(Policy::Credit),
            "always-boost" => sound(Policy::AlwaysBoost),
            "loan" => sound(Policy::Loan),
            "adaptive" => sound(Policy::Adaptive),
            "paper" => ticking(paper),
            "xen" => ticking(Params { policy: Policy::Credit, ..paper }),
            "paper+small" => ticking(small(paper)),
            "paper+served" => served(short(paper)),
            "paper+always" => ticking(Params { redemption: Redemption::Always, ..paper }),
            "paper+share" => ticking(Params { payment: Payment::Share, ..paper }),
            "paper+all" => {
                let (redemption, payment) = (Redemption::Always, Payment::Share);
                served(short(small(Params { redemption, payment, ..paper })))
            }
            "loan-unlevelled" => credit(unlevelled, Ends::Served, Pool::Used),
            "loan-inflated" => credit(unlevelled, Ends::Served, Pool::Whole),
            _ => {
                let names = names().collect::<Vec<_>>().join(", ");
                let context = format!("no scheduler {name:?}: there are {names}");
                return Err(Error::new(ErrorKind::Invalid, context));
            }
        };
        Ok(Self { name: name.into(), host })
    }

    /// Its difference, in a few words.
    pub fn about(&self) -> &'static str {
        SETUPS.iter().find(|(name, _)| *name == self.name).map_or("", |(_, about)| about)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_valid_scheduler() {
        for name in names() {
            let setup = Setup::named(name).unwrap();
            assert!(!setup.about().is_empty(), "{name}");
            if let Host::Credit(credit) = setup.host {
                credit.params.checked().unwrap();
            }
        }
        assert!(ABLATION.iter().all(|name| names().any(|known| known == *name)));
        assert!(Setup::named("cfs").unwrap_err().to_string().contains("always-boost"));
    }
}
