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
//!
//! All arms are measured in turns, and each round begins with another one. The first arm is
//! measured twice (A/A): a difference counts only if it exceeds the first arm's difference from
//! itself.

pub mod guests;
pub mod launch;
pub mod machine;
pub mod native;
pub mod places;
pub mod reader;
pub(crate) mod report;
pub mod root;
pub(crate) mod script;

use std::time::Duration;

/// Size of a sparse volume.
pub const VOLUME: u64 = 4 << 30;
/// Bytes of each read.
pub const BLOCK: u32 = 4096;

/// I/O priority of the foreground: best effort, level 0.
pub const FOREGROUND: u16 = 2 << 13;
/// I/O priority of everything else: best effort, level 4, the default of a task.
pub const BACKGROUND: u16 = 2 << 13 | 4;

/// Mode of the back end for classes: `vlane serve --classes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Classes are ignored.
    Off,
    /// Express requests first, in front of a bounded window.
    Order,
    /// Express requests to the submission queue with the fewest in flight.
    Shortest,
    /// Both.
    On,
}

impl Mode {
    /// All, in the paper's order.
    pub const ALL: [Self; 4] = [Self::Off, Self::Order, Self::Shortest, Self::On];

    /// As the option has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Order => "order",
            Self::Shortest => "shortest",
            Self::On => "on",
        }
    }

    /// The mode of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// One of the paper's variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Variant {
    /// The baseline.
    Vanilla,
    /// The foreground is raised in the guest, and the back end does not look at that.
    Cpu,
    /// Raised, and its requests first.
    CpuIo,
    /// Raised, and its requests to the shortest queue.
    CpuSize,
    /// Everything.
    Proposed,
}

impl Variant {
    /// All, in the paper's order.
    pub const ALL: [Self; 5] =
        [Self::Vanilla, Self::Cpu, Self::CpuIo, Self::CpuSize, Self::Proposed];

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

    /// As an option has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vanilla => "vanilla",
            Self::Cpu => "cpu",
            Self::CpuIo => "cpu+io",
            Self::CpuSize => "cpu+size",
            Self::Proposed => "proposed",
        }
    }

    /// The variant of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|variant| variant.name() == name)
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

    /// The paper's execution time of its foreground program, over Vanilla's (Figure 4).
    pub fn published(self) -> f64 {
        match self {
            Self::Vanilla => 1.0,
            Self::Cpu => 0.91,
            Self::CpuIo => 0.89,
            Self::CpuSize => 0.88,
            Self::Proposed => 0.85,
        }
    }
}

/// A drive that is a model. Each submission queue of the back end's (one per thread) is one of its
/// queues, and they are served in turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Model {
    /// How long each request takes once it is begun.
    pub latency: Duration,
    /// Requests that it works on at the same time.
    pub parallel: u16,
}

impl Model {
    /// Options of `vlane serve`.
    pub fn options(self) -> Vec<String> {
        let latency = format!("{}us", self.latency.as_micros());
        let words = [
            "--latency",
            &latency,
            "--parallel",
            &self.parallel.to_string(),
            "--device-queues",
            "round-robin",
        ];
        words.map(str::to_owned).to_vec()
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_values() {
        assert!(Mode::ALL.iter().all(|mode| Mode::named(mode.name()) == Some(*mode)));
        assert!(
            Variant::ALL.iter().all(|variant| Variant::named(variant.name()) == Some(*variant))
        );
        assert_eq!((Mode::named("all"), Variant::named("Vanilla")), (None, None));
    }

    #[test]
    fn the_variants_are_the_papers_table_3() {
        let table: Vec<_> =
            Variant::ALL.map(|v| (v.title(), v.mode().name(), v.is_raised())).into();
        let expected = [
            ("Vanilla", "off", false),
            ("CPU", "off", true),
            ("CPU+IO", "order", true),
            ("CPU+SIZE", "shortest", true),
            ("Proposed", "on", true),
        ];
        assert_eq!(table, expected);
    }

    #[test]
    fn a_model_says_what_it_can_do() {
        let model = Model { latency: Duration::from_millis(1), parallel: 4 };
        assert_eq!(
            model.options().join(" "),
            "--latency 1000us --parallel 4 --device-queues round-robin"
        );
        assert!((model.rate() - 4000.0).abs() < 1e-9);
        assert_eq!(model.describe(), "4 at a time, 1ms each: 4000 per second");
    }
}
