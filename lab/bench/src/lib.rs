//! `vlane-lab bench` with more than one run: profiles of loads, targets measured in turns, medians
//! and verdicts, saved runs.
//!
//! A [`Profile`] says which loads are measured on which targets, how often and for how long.
//! [`order`] puts the measurements into an order that is fair to all targets, and [`measure()`]
//! makes them. The result is a [`Saved`] run: every single measurement. It can be written to a
//! file, compared with another one ([`against_saved`]), and presented to people ([`report`]).

#![forbid(unsafe_code)]

pub mod blkio;
mod compare;
mod measure;
mod plan;
mod profile;
mod saved;
mod tell;
mod threads;
mod values;

pub use compare::{Comparison, against_saved, between_targets, check_saved, is_worse};
pub use measure::{Setting, measure};
pub use plan::{Step, order};
pub use profile::{Backend, Client, Load, Pin, Profile, Storage, Target, embedded, embedded_names};
pub use saved::{Flushing, LoadRuns, Run, Saved, TargetRuns};
pub use tell::{CLIENT_BOUND, report};
pub use values::{Ioprio, Pattern, Size};

#[cfg(test)]
mod tests;
