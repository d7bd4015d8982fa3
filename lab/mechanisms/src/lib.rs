//! The worth of each of vlane's mechanisms in real guests: lanes, cache modes with and without the
//! journal bypass, express, loans, the sched_ext vehicle, limits.
//!
//! Each module is one experiment: what is measured, how, and its report.

#![forbid(unsafe_code)]

pub mod bypass;
pub mod caches;
pub mod express;
pub mod lanes;
pub mod loans;
pub mod sched_ext;
pub mod throttle;
pub mod together;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use clap::Args;

    /// A command's options, of these words.
    pub(crate) fn try_options<O: Args>(words: &[&str]) -> Result<O, clap::Error> {
        let command = O::augment_args(clap::Command::new("vlane"));
        let all = std::iter::once("vlane").chain(words.iter().copied());
        O::from_arg_matches(&command.try_get_matches_from(all)?)
    }

    pub(crate) fn options<O: Args>(words: &[&str]) -> O {
        try_options(words).unwrap()
    }
}
