//! Measures foreground first: the gain of the foreground, and the loss of all others.
//!
//! Source: Shin, Kim, "Improvement of Multi-Queue Block Layer for Fast User Response" (2019). It
//! runs 512 one-deep readers (fio, libaio, random reads) in the background and one foreground
//! program, in five variants. These are the unchanged kernel (Vanilla), with the foreground's CPU
//! priority raised (CPU), with its requests first (CPU+IO), with its requests to the shortest
//! submission queue (CPU+SIZE), and all of it (Proposed).
//!
//! * [`native`]: vlane's own driver on a model of a drive with a queue for each thread. No guest
//!   takes part, so only the back end's effect is measured.
//! * [`guests`]: the five variants in a real guest on such a model, with a program that reads as
//!   the foreground job of a shell (Figure 4).
//! * [`launch`]: start times of real programs there with a cold cache (Figure 5).
//! * [`fsync`]: fsyncs of a program there, which the paper does not have.
//!
//! All arms are measured in turns, and each round begins with another one. The first arm is
//! measured twice (A/A): a difference counts only if it exceeds the first arm's difference from
//! itself.

pub mod fsync;
pub mod guests;
pub mod launch;
pub mod machine;
pub mod native;
pub mod reader;
pub(crate) mod report;
pub mod root;
pub(crate) mod script;

use std::time::Duration;

use clap::{Args, ValueEnum};
use vlane::values;

/// Mode of the back end for classes, in the paper's order.
pub use vlane::serve::ClassesArg as Mode;
pub(crate) use vlane_testbed::{distinct, word};

/// Size of a sparse volume.
pub const VOLUME: u64 = 4 << 30;
/// Bytes of each read.
pub const BLOCK: u32 = 4096;

/// I/O priority of the foreground: best effort, level 0.
pub const FOREGROUND: u16 = 2 << 13;
/// I/O priority of everything else: best effort, level 4, the default of a task.
pub const BACKGROUND: u16 = 2 << 13 | 4;

/// One of the paper's variants. The values are in the paper's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Variant {
    /// The baseline.
    Vanilla,
    /// The foreground is raised in the guest, and the back end does not look at that.
    Cpu,
    /// Raised, and its requests first.
    #[value(name = "cpu+io")]
    CpuIo,
    /// Raised, and its requests to the shortest queue.
    #[value(name = "cpu+size")]
    CpuSize,
    /// Everything.
    Proposed,
}

impl Variant {
    /// As the paper calls it.
    pub fn title(self) -> &'static str {
        match self {
            Self::Vanilla => "Vanilla",
            Self::Cpu => "CPU",
            Self::CpuIo => "CPU+IO",
            Self::CpuSize => "CPU+SIZE",
            Self::Proposed => "Proposed",
        }
    }

    /// Mode of the back end.
    pub fn mode(self) -> Mode {
        match self {
            Self::Vanilla | Self::Cpu => Mode::Off,
            Self::CpuIo => Mode::Order,
            Self::CpuSize => Mode::Shortest,
            Self::Proposed => Mode::On,
        }
    }

    /// True if the foreground is raised in the guest.
    pub fn is_raised(self) -> bool {
        self != Self::Vanilla
    }
}

/// A drive that is a model. Each submission queue of the back end's (one per thread) is one of its
/// queues, and they are served in turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub struct Model {
    /// Service time of the drive: microseconds, or a time such as 1ms
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = parse_latency)]
    pub latency: Duration,
    /// Requests that the drive serves in parallel
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = values::whole::<u16>(1..))]
    pub parallel: u16,
}

fn parse_latency(text: &str) -> Result<Duration, String> {
    values::time_in::<u64>("us", 1..=1_000_000)(text).map(Duration::from_micros)
}

impl Model {
    /// Options of `vlane serve`.
    pub fn options(self) -> Vec<String> {
        let (latency, parallel) = (self.latency.as_micros(), self.parallel);
        let words =
            format!("--latency {latency}us --parallel {parallel} --device-queues round-robin");
        words.split(' ').map(str::to_owned).collect()
    }

    /// Requests per second that it can do.
    pub fn rate(self) -> f64 {
        f64::from(self.parallel) / self.latency.as_secs_f64()
    }

    /// In words.
    pub fn describe(self) -> String {
        format!(
            "{} at a time, {:?} each: {:.0} per second",
            self.parallel,
            self.latency,
            self.rate()
        )
    }
}

/// Options of a back end in a mode, with so many queues and a thread for each.
fn options_in(mode: Mode, queues: u16) -> Vec<String> {
    let queues = queues.to_string();
    ["--queues", &queues, "--threads", &queues, "--classes", &word(mode)].map(str::to_owned).into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn the_variants_are_the_papers_table_3() {
        let table: Vec<_> = Variant::value_variants()
            .iter()
            .map(|v| (v.title(), word(v.mode()), v.is_raised()))
            .collect();
        let expected = [
            ("Vanilla", "off", false),
            ("CPU", "off", true),
            ("CPU+IO", "order", true),
            ("CPU+SIZE", "shortest", true),
            ("Proposed", "on", true),
        ];
        assert_eq!(table, expected.map(|(title, mode, raised)| (title, mode.to_owned(), raised)));
        assert_eq!(word(Variant::CpuSize), "cpu+size");
    }

    #[test]
    fn a_model_says_what_it_can_do() {
        let model = Model { latency: Duration::from_millis(1), parallel: 4 };
        assert_eq!(
            model.options().join(" "),
            "--latency 1000us --parallel 4 --device-queues round-robin"
        );
        assert_eq!(options_in(Mode::On, 8).join(" "), "--queues 8 --threads 8 --classes on");
        assert!((model.rate() - 4000.0).abs() < 1e-9);
        assert_eq!(model.describe(), "4 at a time, 1ms each: 4000 per second");
    }
}
