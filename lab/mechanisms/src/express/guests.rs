//! Figure 4: a program that reads so much, as the foreground job of a shell in a guest, in parallel
//! with as many readers as the guest can hold.

use std::time::Duration;

use serde::Serialize;
use vlane_guest::Host;

use super::BLOCK;
use super::machine::{Beside, Place, took};
use super::places::{Task, Wanted};
use vlane_report::Report;
use vlane_report::build::Begun;
use vlane_testbed::error::{Error, ErrorKind, Result};
use vlane_testbed::interrupt::Interrupt;

pub(super) mod report;

/// A guest boots, and a crowd starts and ends: what a measurement takes beyond the foreground's
/// time, about.
const AROUND: Duration = Duration::from_secs(12);
/// The foreground's reads would take this long each if all readers stood before each: no
/// measurement takes longer than ten times that.
const SLOWER: u32 = 10;

/// The options.
#[derive(Debug, Clone)]
pub struct Options {
    /// Of the guests.
    pub wanted: Wanted,
    /// Readers in the background; none: as many as each guest can hold ([`Place::readers`]).
    pub readers: Option<u16>,
    /// Reads of the foreground program; none: what takes seconds in each guest ([`Place::reads`]).
    pub reads: Option<u32>,
}

/// Results of one measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Sample {
    /// How long the foreground program took as the shell has it, in seconds.
    pub seconds: f64,
    /// Its reads per second.
    pub iops: f64,
    /// Mean time of its reads, in ms.
    pub mean_ms: f64,
    /// Their 99th percentile.
    pub p99_ms: f64,
    /// The background's reads per second.
    pub background: f64,
    /// Other figures of the background.
    pub beside: Beside,
}

impl Sample {
    fn of(reads: u32, said: &[String], beside: Beside) -> Result<Self> {
        let number = |at: usize| -> Result<f64> {
            let text = said.get(at).map_or("", String::as_str);
            text.parse().map_err(|_| {
                Error::new(ErrorKind::Process, format!("the foreground program says: {text}"))
            })
        };
        let seconds = took("the foreground program", said.first().map_or("", String::as_str))?;
        Ok(Self {
            seconds,
            iops: f64::from(reads) / seconds,
            mean_ms: number(1)? / 1e3,
            p99_ms: number(2)? / 1e3,
            background: (beside.reads - f64::from(reads)) / beside.seconds.max(1e-3),
            beside,
        })
    }

    /// MB per second of the foreground.
    pub fn mb_per_second(&self) -> f64 {
        self.iops * f64::from(BLOCK) / 1e6
    }
}

impl Options {
    /// Reads of the foreground program.
    pub(super) fn reads(&self, place: Place) -> u32 {
        self.reads.unwrap_or(place.reads())
    }
}

/// Commands typed at the shell.
fn typed(reads: u32) -> String {
    // The mark of a result is in two pieces: the terminal echoes what is typed.
    format!(
        "A=$EPOCHREALTIME\nvlane express-read /dev/@DEV@ --reads {reads} --seed @SEQ@ --mark \
         @SEQ@\necho \"RES\"\"ULT exec.@SEQ@=$A $EPOCHREALTIME $?\"\n"
    )
}

/// Measures, and makes a report.
///
/// # Errors
/// [`ErrorKind::Usage`] for options that make no sense, [`ErrorKind::Missing`] without a program
/// that is needed, [`ErrorKind::Interrupted`], and those of back ends and guests.
pub fn run(options: &Options, host: &Host, interrupt: &Interrupt) -> Result<Report> {
    options.wanted.check(" and --repeat")?;
    let begun = Begun::now(&options.wanted.command);
    let task = Task {
        name: "read",
        typed: &|place| typed(options.reads(place)),
        image: None,
        readers: &|place| options.readers.unwrap_or(place.readers()),
        takes: AROUND,
    };
    let found = options.wanted.measure(&task, host, interrupt, |machine, setup, variant| {
        let reads = options.reads(setup.place);
        let each = setup
            .model
            .latency
            .mul_f64(f64::from(setup.readers + 1) / f64::from(setup.model.parallel));
        let keys = ["exec", "mean_us", "p99_us"].map(str::to_owned);
        let (said, beside) = machine.measure(variant, "read", &keys, each * reads * SLOWER)?;
        Sample::of(reads, &said, beside)
    })?;
    let mut report = report::fill(options, &found.results, &begun);
    found.mark(&mut report);
    Ok(report)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn foreground_reads_are_not_the_backgrounds() {
        let said = ["10.0 14.0 0", "40000", "90000"].map(str::to_owned);
        let beside = Beside { seconds: 5.0, reads: 10_100.0, ..Beside::default() };
        let sample = Sample::of(100, &said, beside).unwrap();
        assert_eq!((sample.seconds, sample.iops, sample.background), (4.0, 25.0, 2000.0));
        assert_eq!((sample.mean_ms, sample.p99_ms), (40.0, 90.0));
        assert!((sample.mb_per_second() - 0.1024).abs() < 1e-9);
        let silent = ["10.0 14.0 0", "", "90000"].map(str::to_owned);
        assert_eq!(Sample::of(100, &silent, beside).unwrap_err().kind(), ErrorKind::Process);
    }
}
