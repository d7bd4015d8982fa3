//! Loans: boosts for vCPUs whose I/O completes, and how that stays fair.
//!
//! A vCPU that only waits for I/O is boosted by any scheduler when the I/O completes. One that also
//! computes waits for its turn, and its finished I/O lies there. Boosting it always would give the
//! CPU away. Kim, Jang and Hong ("Loan/Redemption Scheme for I/O performance improvement of Virtual
//! Machine Scheduler",
//! 2016) lend it credits. Boosted time is charged to the loan; when the loan is spent there is no
//! boost until it is redeemed from a share of the vCPU's allotment. The rate at which a loan is
//! spent shows the vCPU's load, and gives the size of the next one:
//!
//! - cb = spent / n: CPU time per boost, how much computing goes with an event (equation 1);
//! - bm = n / p: boosts per time, how frequent events are (equation 2);
//! - cm = cb * bm = spent / p: the rate of spending, parts per million of a CPU here (equation 3);
//! - next loan = line * cm_ref / cm, between two limits (equation 4, whose units do not match as
//!   printed: credits by credits per millisecond is a time).
//!
//! # What deviates from the paper
//!
//! All of it but the last two is set back with [`Params::paper`]:
//!
//! - A boost ends when its event is served or its time is over ([`Params::boost_max_ns`]), not at a
//!   tick. The time really used is charged, also after the boost's time because a timer came late.
//! - The share pays: a boost is charged to the vCPU's own credits at once ([`Payment::Share`]), so
//!   that no vCPU runs ahead of its weight.
//! - A loan is redeemed all the time ([`Redemption::Always`]), not only from when it is spent: a
//!   vCPU that spends less than it redeems is never denied.
//! - A line is at least as much as one accounting redeems.
//! - A loan that is not spent is reviewed after [`Params::review_ns`]: cm is taken then, and the
//!   next loan follows it.
//! - A vCPU that owes its share more than the overdraft ([`Params::overdraft_ns`]) is denied.
//! - Accountings are levelled ([`Params::level_permille`]): the sum of the contenders' credits and
//!   debts does not drift.
//! - cm has a reference ([`Params::cm_ref_ppm`]), and the next loan limits.
//! - An accounting gives out the CPU time that the vCPUs have used ([`Book::account_all`]), not the
//!   time of all CPUs. The part that one vCPU cannot take goes to the others.
//! - Redemption is a share of the allotment before the ceiling of credits cuts it, as in the paper.
//!   There a vCPU that leaves credits unused redeems sooner still, by an unstated amount; here an
//!   idle vCPU redeems as fast as a computing one.
//!
//! [`Policy::Adaptive`] finds line, redemption share and the length of a boost from a [`Goal`],
//! which the paper leaves open. It leaves boosts out while they make responses longer.
//!
//! [`Account`] is one vCPU's, [`Book`] is a host's. All of it is integers. Units and constants are
//! in [`units`].

mod account;
mod book;
mod goal;
mod params;
mod trial;
pub mod units;

pub use account::{Account, Boosted, Decision, Denial, Doing, Loan, Priority, Totals};
pub use book::{Book, Claim, Vcpu, VcpuId};
pub use goal::{Goal, REDEMPTION_MIN_PERMILLE, WINDOW_NS};
pub use params::{Params, ParamsError, Payment, Policy, Redemption};
