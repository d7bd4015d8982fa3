//! Loans: the effect of a boost at I/O completion on the thread's response and on all shares of the
//! CPU.
//!
//! After Kim, Jang and Hong, "Loan/Redemption Scheme for I/O performance improvement of Virtual
//! Machine Scheduler" (2016).

pub(crate) mod bed;
pub mod express;
mod express_report;
mod figures;
pub mod guests;
pub mod live;
mod live_report;
pub mod simulated;
