//! Rounds of a measurement, of which the whole ones are kept when a later one breaks off.
//!
//! A measurement takes minutes to hours, and its rounds are whole results of their own. So an
//! interruption, a guest that dies or a full disk costs the round in which it happens, no other.

use std::time::{Duration, Instant};

use vlane_report::machine::others;
use vlane_report::{Arms, ENOUGH, Report};

use crate::Interrupt;
use crate::error::{Error, Result};

/// Rounds that were measured.
#[derive(Debug)]
pub struct Rounds {
    /// One of them, in the singular.
    what: &'static str,
    wanted: usize,
    whole: usize,
    broken: Option<Error>,
}

impl Rounds {
    /// Measures `wanted` rounds, which are numbered from 0.
    ///
    /// # Errors
    /// That of the first round. A later one that fails is the last one, and the others are kept.
    pub fn measure(wanted: usize, round: impl FnMut(usize) -> Result<()>) -> Result<Self> {
        Self::measure_each("round", wanted, round)
    }

    /// The same of other whole parts of a measurement: `what` is the word for one of them.
    ///
    /// # Errors
    /// As [`Rounds::measure`].
    pub fn measure_each(
        what: &'static str,
        wanted: usize,
        mut round: impl FnMut(usize) -> Result<()>,
    ) -> Result<Self> {
        let mut rounds = Self { what, wanted, whole: 0, broken: None };
        while rounds.whole < wanted {
            match round(rounds.whole) {
                Ok(()) => {
                    rounds.whole += 1;
                    tracing::debug!("{what} {} of {wanted} is whole", rounds.whole);
                }
                Err(error) if rounds.whole == 0 => return Err(error),
                Err(error) => {
                    rounds.broken = Some(error);
                    break;
                }
            }
        }
        Ok(rounds)
    }

    /// Rounds that were measured as a whole.
    pub fn whole(&self) -> usize {
        self.whole
    }

    /// The sentence on rounds that are missing, if some are.
    pub fn missing(&self) -> Option<String> {
        let error = self.broken.as_ref()?;
        Some(missing(self.what, self.whole, self.wanted, error))
    }

    /// The report, marked as partial if it is of fewer rounds than were wanted.
    pub fn marked(&self, mut report: Report) -> Report {
        if let Some(missing) = self.missing() {
            report.mark_partial(missing);
        }
        report
    }
}

/// Waits for five seconds in which other programs use little, a minute at most. Few rounds, of
/// which no conclusion is drawn, wait for nothing.
///
/// # Errors
/// [`ErrorKind::Interrupted`](crate::ErrorKind::Interrupted).
pub fn settle(rounds: usize, interrupt: &Interrupt) -> Result<()> {
    for _ in 0..if rounds < ENOUGH { 0 } else { 12 } {
        let (begin, start) = (others::look(), Instant::now());
        while start.elapsed() <= others::WINDOW {
            interrupt.check()?;
            std::thread::sleep(Duration::from_millis(100));
        }
        let cpus = begin.zip(others::look()).and_then(others::between);
        let Some(cpus) = cpus.filter(|cpus| *cpus >= others::MOST) else { break };
        eprintln!("waiting, a minute at most: other programs use {cpus:.2} CPUs");
    }
    Ok(())
}

/// Measures all arms once, in turns: each round begins with another arm. `one` gets the index of
/// the arm's name, which the repetition shares with the first arm, and its name.
///
/// # Errors
/// The first one of `one`.
pub fn in_turns<S: std::fmt::Debug>(
    arms: &mut Arms<S>,
    round: usize,
    mut one: impl FnMut(usize, &str) -> Result<S>,
) -> Result<()> {
    let (all, names) = (arms.0.len(), arms.distinct());
    let last = arms.0.iter().position(vlane_report::judge::Measured::is_again);
    for turn in (0..all).map(|turn| (turn + round) % all) {
        let index = if Some(turn) == last { 0 } else { turn % names.max(1) };
        let arm = &mut arms.0[turn];
        let sample = one(index, &arm.arm)?;
        tracing::debug!(?sample, arm = arm.arm, "measured");
        arm.rounds.push(sample);
    }
    Ok(())
}

/// The sentence on parts that are missing of a measurement that broke off; `what` is the word for
/// one.
pub fn missing(what: &str, whole: usize, wanted: usize, error: &Error) -> String {
    let were = if whole == 1 { " was" } else { "s were" };
    format!("PARTIAL: {whole} of {wanted} {what}{were} measured, the next one failed: {error}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::{ErrorKind, Fail};

    fn breaking(at: usize) -> Result<(Rounds, usize)> {
        let mut calls = 0;
        let rounds = Rounds::measure(3, |round| {
            calls += 1;
            if round == at { ErrorKind::Interrupted.fail("interrupted") } else { Ok(()) }
        })?;
        Ok((rounds, calls))
    }

    #[test]
    fn broken_round_keeps_whole_ones() {
        assert_eq!(breaking(0).unwrap_err().kind(), ErrorKind::Interrupted);
        for at in 1..3 {
            let (rounds, calls) = breaking(at).unwrap();
            assert_eq!((rounds.whole(), calls), (at, at + 1));
            assert!(rounds.missing().unwrap().contains(&format!("{at} of 3")));
        }
        let (rounds, _) = breaking(3).unwrap();
        assert_eq!((rounds.whole(), rounds.missing()), (3, None));
    }

    #[test]
    fn interrupt_ends_the_wait() {
        let interrupt = Interrupt::listen().unwrap();
        settle(ENOUGH - 1, &interrupt).unwrap();
        interrupt.flag().store(true, std::sync::atomic::Ordering::Relaxed);
        let error = settle(ENOUGH, &interrupt).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted);
    }

    #[test]
    fn every_round_begins_with_another_arm() {
        let mut arms = Arms::named(&["off".to_owned(), "on".to_owned()]);
        let mut order = Vec::new();
        for round in 0..3 {
            in_turns(&mut arms, round, |index, arm| {
                order.push((index, arm.to_owned()));
                Ok(round)
            })
            .unwrap();
        }
        let names: Vec<(usize, &str)> =
            order.iter().map(|(index, arm)| (*index, arm.as_str())).collect();
        assert_eq!(names[..3], [(0, "off"), (1, "on"), (0, "off again")]);
        assert_eq!((names[3], names[6]), ((1, "on"), (0, "off again")));
        assert!(arms.0.iter().all(|arm| arm.rounds == [0, 1, 2]));
    }
}
