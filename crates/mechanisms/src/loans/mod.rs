//! Loans: what boosting the one whose I/O completes does to its response and to everybody's share of the CPU.
//!
//! After Kim, Jang and Hong, "Loan/Redemption Scheme for I/O performance improvement of Virtual Machine Scheduler" (2016).

pub(crate) mod bed;
pub mod express;
mod express_report;
mod figures;
pub mod guests;
pub mod live;
mod live_report;
pub mod simulated;
