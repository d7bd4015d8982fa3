//! Figure 4: a program that reads so much, as the foreground job of a shell in a guest, in parallel
//! with as many readers as the guest can hold.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use vlane::values;

use super::BLOCK;
use super::machine::{Behind, Beside, GuestArgs, Task, took};
use vlane_report::Report;
use vlane_testbed::{Call, Error, ErrorKind, Machines, Result};

pub(super) mod report;

/// A guest boots, and a crowd starts and ends: what a measurement takes beyond the foreground's
/// time, about.
const AROUND: Duration = Duration::from_secs(12);
/// The foreground's reads would take this long each if all readers stood before each: no
/// measurement takes longer than ten times that.
const SLOWER: u32 = 10;

/// The options
#[derive(Debug, Clone, Args)]
#[command(mut_arg("readers", |readers| {
    readers.help("Readers in the background [default: 240 in uml, 512 in qemu]")
}))]
pub struct Options {
    #[command(flatten)]
    pub(super) guest: GuestArgs,
    /// Reads of the foreground program [default: 100 in uml, 40 in qemu]
    #[arg(long, value_name = "N", value_parser = values::whole::<u32>(1..=1_000_000))]
    pub(super) reads: Option<u32>,
}

/// Results of one measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Sample {
    /// How long the foreground program took as the shell has it, in seconds.
    pub seconds: f64,
    /// Its reads, or fsyncs, per second.
    pub iops: f64,
    /// Mean time of them, in ms.
    pub mean_ms: f64,
    /// Their median.
    pub p50_ms: f64,
    /// Their 99th percentile.
    pub p99_ms: f64,
    /// The background's reads per second.
    pub background: f64,
    /// Other figures of the background.
    pub beside: Beside,
}

impl Sample {
    /// Of so many requests, of which so many are reads. `said` are the results of [`keys`].
    pub(super) fn of(count: u32, reads: u32, said: &[String], beside: Beside) -> Result<Self> {
        let text = |at: usize| said.get(at).map_or("", String::as_str);
        let ms = |at: usize| -> Result<f64> {
            let us = text(at).parse::<f64>().map_err(|_| {
                Error::new(ErrorKind::Process, format!("the foreground program says: {}", text(at)))
            });
            Ok(us? / 1e3)
        };
        let seconds = took("the foreground program", text(0))?;
        Ok(Self {
            seconds,
            iops: f64::from(count) / seconds.max(1e-3),
            mean_ms: ms(1)?,
            p50_ms: ms(2)?,
            p99_ms: ms(3)?,
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
    /// Readers in the background: as many as the guest can hold beside the foreground's request.
    fn readers(&self, place: Machines) -> u16 {
        self.guest.readers.unwrap_or(if place == Machines::Uml { 240 } else { 512 })
    }

    /// Reads of the foreground program: it takes 10 to 20 s with all readers before each of them.
    fn reads(&self, place: Machines) -> u32 {
        self.reads.unwrap_or(if place == Machines::Uml { 100 } else { 40 })
    }
}

/// Names of the foreground program's results.
pub(super) fn keys() -> [String; 4] {
    ["exec", "mean_us", "p50_us", "p99_us"].map(str::to_owned)
}

/// Commands typed at the shell; `job` has the foreground program's own words.
pub(super) fn typed(job: &str) -> String {
    // The mark of a result is in two pieces: the terminal echoes what is typed.
    format!(
        "A=$EPOCHREALTIME\nvlane express-read {job} --mark @SEQ@\necho \"RES\"\"ULT \
         exec.@SEQ@=$A $EPOCHREALTIME $?\"\n"
    )
}

/// Measures with vlane's own file, and makes a report.
///
/// # Errors
/// [`ErrorKind::Missing`] without a program that is needed, [`ErrorKind::Interrupted`], and those
/// of back ends and guests.
pub fn run(options: &Options, call: &Call<'_>) -> Result<Report> {
    let keys = keys();
    let task = |place| {
        let (model, readers) = (options.guest.model(place), options.readers(place));
        let reads = options.reads(place);
        let each = model.latency.mul_f64(f64::from(readers + 1) / f64::from(model.parallel));
        let takes = (AROUND, each * reads * SLOWER);
        let typed = typed(&format!("/dev/@DEV@ --reads {reads} --seed @SEQ@"));
        let (beside, behind) = (String::new(), Behind::Nothing);
        Task { place, readers, typed, keys: &keys, beside, behind, takes }
    };
    let sample = |place, said: &[String], beside| {
        let reads = options.reads(place);
        Sample::of(reads, reads, said, beside)
    };
    let show = |results: &[_]| report::fill(options, results, &call.begun);
    options.guest.measure(task, call, sample, show)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn foreground_reads_are_not_the_backgrounds() {
        let said = ["10.0 14.0 0", "40000", "30000", "90000"].map(str::to_owned);
        let beside = Beside { seconds: 5.0, reads: 10_100.0, ..Beside::default() };
        let sample = Sample::of(100, 100, &said, beside).unwrap();
        assert_eq!((sample.seconds, sample.iops, sample.background), (4.0, 25.0, 2000.0));
        assert_eq!((sample.mean_ms, sample.p50_ms, sample.p99_ms), (40.0, 30.0, 90.0));
        assert!((sample.mb_per_second() - 0.1024).abs() < 1e-9);
        let silent = ["10.0 14.0 0", "", "30000", "90000"].map(str::to_owned);
        assert_eq!(Sample::of(100, 100, &silent, beside).unwrap_err().kind(), ErrorKind::Process);
    }
}
