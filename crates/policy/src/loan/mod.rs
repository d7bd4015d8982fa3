//! Loans: who is put before the others when its I/O completes, and how that stays fair.
//!
//! A vCPU that only waits for I/O is boosted by any scheduler when the I/O completes. One that also computes waits for
//! its turn, and its finished I/O lies there. Boosting it always would give the CPU away. Kim, Jang and Hong
//! ("Loan/Redemption Scheme for I/O performance improvement of Virtual Machine Scheduler", 2016) lend it credits:
//! boosted time is charged to the loan; when the loan is spent there is no boost until it is redeemed from a share of
//! what the vCPU is allotted. How fast a loan is spent tells what the vCPU does, and how large the next one is:
//!
//! - cb = spent / n: CPU time per boost, how much computing goes with an event (equation 1);
//! - bm = n / p: boosts per time, how frequent events are (equation 2);
//! - cm = cb * bm = spent / p: the rate of spending, parts per million of a CPU here (equation 3);
//! - next loan = line * cm_ref / cm, between two limits (equation 4, whose units do not match as printed: credits by
//!   credits per millisecond is a time).
//!
//! Redemption is a share of the allotment before the ceiling of credits cuts it, and what is cut redeems too: in the paper, too, it
//! comes from what a vCPU leaves, so that who is idle redeems fastest.
//!
//! What is different here, and can be set back with [`Params::paper`]: a boost ends when its event is served, not at a
//! tick; it is charged to the vCPU's own share at once ([`Payment::Share`]), so that nobody runs ahead of its weight; a
//! loan is redeemed all the time ([`Redemption::Always`]), so that who spends less than it redeems is never denied;
//! what one boost is charged is clamped. [`Policy::Adaptive`] finds line and redemption share from a [`Goal`].
//!
//! [`Account`] is one vCPU's, [`Book`] is a host's. All of it is integers. Units and constants are in [`units`].

mod account;
mod book;
mod goal;
mod params;
pub mod units;

pub use account::{Account, Boosted, Decision, Denial, Doing, Loan, Priority, Totals};
pub use book::{Book, Claim, Vcpu, VcpuId};
pub use goal::{Goal, REDEMPTION_MIN_PERMILLE, WINDOW_NS};
pub use params::{Params, ParamsError, Payment, Policy, Redemption};
