//! Measurements on the user's own machine.
//!
//! Every measurement ends as a [`vlane_report::Report`]: text for the terminal, JSON for programs,
//! a page with pictures for people.

#![forbid(unsafe_code)]

pub mod compare;
pub mod peers;
pub mod work;
