//! A simulated scenario: CPUs, virtual machines, and their loads. Written in TOML; an unknown key
//! is an error.

use serde::{Deserialize, Serialize};
use vlane_policy::loan::units::DEFAULT_WEIGHT;

use super::random::Span;
use crate::{Error, ErrorKind, Result};

/// A scenario.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// The case that it stands for.
    #[serde(default)]
    pub about: String,
    /// Physical CPUs.
    pub cpus: u32,
    /// Simulated time that is measured.
    pub seconds: f64,
    /// Simulated time before that, which is not.
    #[serde(default)]
    pub warmup_seconds: f64,
    /// All chance follows from it.
    #[serde(default = "one")]
    pub seed: u64,
    /// Parts, each a run of its own, in which only the loads of that part are on. None: one part
    /// with all loads.
    #[serde(default)]
    pub phases: Vec<String>,
    /// The virtual machines.
    pub vm: Vec<Machine>,
}

fn one<T: From<u8>>() -> T {
    1.into()
}

const fn default_weight() -> u32 {
    DEFAULT_WEIGHT
}

/// Virtual machines that are alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The name; with several, a number follows it.
    pub name: String,
    /// How many of them.
    #[serde(default = "one")]
    pub count: u32,
    /// The number of the first, if there are several.
    #[serde(default = "one")]
    pub first: u32,
    /// The weight of each against other machines.
    #[serde(default = "default_weight")]
    pub weight: u32,
    /// vCPUs of each.
    #[serde(default = "one")]
    pub vcpus: u32,
    /// Idle vCPUs of each, besides those.
    #[serde(default)]
    pub inactive_vcpus: u32,
    /// Computation of each vCPU besides its I/O.
    #[serde(default)]
    pub compute: Compute,
    /// The I/O of each vCPU.
    #[serde(default)]
    pub load: Vec<Load>,
}

/// Computation of a vCPU whenever there is no event to be served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Compute {
    /// None: it sleeps between events.
    #[default]
    Never,
    /// All it can get (`stress -c`).
    Always,
    /// For a time, then not for a time.
    Mixed {
        /// CPU time of a burst.
        on: Span,
        /// Time from its end to the next.
        off: Span,
    },
}

/// A source of events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "kebab-case")]
pub enum Load {
    /// Requests from outside that come when they come (hping). The response is what the client sees
    /// of the host.
    Ping {
        /// Its name.
        name: String,
        /// The part in which it is on; all of them without.
        phase: Option<String>,
        /// Time between two requests.
        every: Span,
        /// CPU time of the vCPU per request.
        service: Span,
        /// The machine that each request passes on its way in and out (Xen's domain 0).
        via: Option<Via>,
    },
    /// Traffic with a window (iperf): a segment follows when an earlier one was served.
    Window {
        /// Its name.
        name: String,
        /// The part in which it is on; all of them without.
        phase: Option<String>,
        /// Segments under way at once.
        segments: u32,
        /// Bytes of each.
        segment_bytes: u32,
        /// Bandwidth of the link, megabits per second.
        link_mbit: f64,
        /// Way of an answer to the other side and of the next segment back.
        rtt: Span,
        /// CPU time of the vCPU per segment.
        service: Span,
        /// The machine that each segment passes on its way in.
        via: Option<Via>,
    },
    /// Synchronous requests to a disk: the next follows when the last was served (fio; `stress -i`,
    /// which calls `sync`).
    Disk {
        /// Its name.
        name: String,
        /// The part in which it is on; all of them without.
        phase: Option<String>,
        /// Requests under way at once.
        #[serde(default = "one")]
        depth: u32,
        /// Time of the device.
        device: Span,
        /// Time before the next request.
        think: Span,
        /// CPU time of the vCPU per completion.
        service: Span,
        /// The machine that each completion passes on its way in.
        via: Option<Via>,
    },
}

/// A machine between the world and another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Via {
    /// Its name in the scenario.
    pub vm: String,
    /// CPU time that passing takes it, each way.
    pub service: Span,
}

impl Load {
    /// The parts that each kind has: name, part in which it is on, CPU time of the vCPU per event,
    /// machine between.
    pub(super) fn common(&self) -> (&str, Option<&str>, Span, Option<&Via>) {
        let (Self::Ping { name, phase, service, via, .. }
        | Self::Window { name, phase, service, via, .. }
        | Self::Disk { name, phase, service, via, .. }) = self;
        (name, phase.as_deref(), *service, via.as_ref())
    }
}

/// Scenarios that come with the program.
pub const EMBEDDED: [(&str, &str); 5] = [
    ("paper", include_str!("scenarios/paper.toml")),
    ("table-7", include_str!("scenarios/table-7.toml")),
    ("classes", include_str!("scenarios/classes.toml")),
    ("inactive", include_str!("scenarios/inactive.toml")),
    ("large", include_str!("scenarios/large.toml")),
];

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

impl Scenario {
    /// One that comes with the program, or the file of that name.
    ///
    /// # Errors
    ///
    /// There is neither, or it makes no sense.
    pub fn named(name: &str) -> Result<Self> {
        if let Some((_, text)) = EMBEDDED.iter().find(|(own, _)| *own == name) {
            return Self::parse(name, text);
        }
        let text = std::fs::read_to_string(name).map_err(|error| {
            let names: Vec<_> = EMBEDDED.iter().map(|(name, _)| *name).collect();
            let context = format!(
                "{name}: cannot be read as a scenario's file, and is none of those that come with \
                 vlane ({})",
                names.join(", ")
            );
            Error::caused_by(ErrorKind::Io, context, error)
        })?;
        Self::parse(name, &text)
    }

    /// Reads a scenario; `origin` is for messages.
    ///
    /// # Errors
    ///
    /// It is not TOML, has an unknown key, or makes no sense.
    pub fn parse(origin: &str, text: &str) -> Result<Self> {
        let scenario: Self = toml::from_str(text).map_err(|error| {
            Error::caused_by(ErrorKind::Invalid, format!("{origin}: not a scenario"), error)
        })?;
        scenario.checked()
    }

    /// This scenario, or what cannot be about it.
    ///
    /// # Errors
    ///
    /// Names the value and the range.
    pub fn checked(self) -> Result<Self> {
        let check = |what: &str, value: f64, low: f64, high: f64| {
            let inside = (low..=high).contains(&value);
            inside.then_some(()).ok_or_else(|| {
                invalid(format!(
                    "{}: {what} = {value}: must be between {low} and {high}",
                    self.name
                ))
            })
        };
        check("cpus", f64::from(self.cpus), 1.0, 4096.0)?;
        check("seconds", self.seconds, 0.1, 100_000.0)?;
        check("warmup_seconds", self.warmup_seconds, 0.0, 100_000.0)?;
        if self.vm.is_empty() {
            return Err(invalid(format!("{}: there is no [[vm]]", self.name)));
        }
        check("vCPUs in all", self.vcpus(), 1.0, 1e6)?;
        for (at, vm) in self.vm.iter().enumerate() {
            let of = |what: &str| format!("{}: {what}", vm.name);
            if self.vm[..at].iter().any(|other| other.name == vm.name && other.count == vm.count) {
                return Err(invalid(format!("{}: two [[vm]] of that name", vm.name)));
            }
            check(&of("count"), f64::from(vm.count), 1.0, 100_000.0)?;
            check(&of("vcpus"), f64::from(vm.vcpus), 1.0, 1024.0)?;
            check(&of("inactive_vcpus"), f64::from(vm.inactive_vcpus), 0.0, 1024.0)?;
            check(&of("weight"), f64::from(vm.weight), 1.0, 65_535.0)?;
            if let Compute::Mixed { on, off } = vm.compute {
                check(&of("compute.on.us"), on.us, 1.0, 1e8)?;
                check(&of("compute.off.us"), off.us, 1.0, 1e8)?;
            }
            for load in &vm.load {
                let (name, phase, service, via) = load.common();
                let of = |what: &str| format!("{}: load {name}: {what}", vm.name);
                if let Some(phase) = phase.filter(|phase| !self.phases.iter().any(|p| p == phase)) {
                    let phase = of(&format!("phase {phase:?}"));
                    return Err(invalid(format!("{phase} is none of `phases`")));
                }
                let is_single = |via: &Via| {
                    self.vm.iter().any(|other| other.name == via.vm && other.count == 1)
                };
                if let Some(via) = via.filter(|via| !is_single(via)) {
                    let via = of(&format!("via {:?}", via.vm));
                    return Err(invalid(format!("{via} is not a single [[vm]]")));
                }
                // A source without any time would go round for ever in the same moment.
                let time = |name: &str, span: Span, least: f64| {
                    check(&of(&format!("{name}.us")), span.us, least, 1e9)
                };
                time("service", service, 0.1)?;
                via.map_or(Ok(()), |via| time("via.service", via.service, 0.0))?;
                match load {
                    Load::Ping { every, .. } => time("every", *every, 0.1)?,
                    Load::Window { segments, segment_bytes, link_mbit, rtt, .. } => {
                        time("rtt", *rtt, 0.0)?;
                        check(&of("segments"), f64::from(*segments), 1.0, 65_536.0)?;
                        check(&of("segment_bytes"), f64::from(*segment_bytes), 1.0, 1e8)?;
                        check(&of("link_mbit"), *link_mbit, 0.001, 1e6)?;
                    }
                    Load::Disk { depth, device, think, .. } => {
                        time("device", *device, 0.0)?;
                        time("think", *think, 0.0)?;
                        check(&of("depth"), f64::from(*depth), 1.0, 65_536.0)?;
                    }
                }
            }
        }
        Ok(self)
    }

    /// vCPUs in all.
    pub fn vcpus(&self) -> f64 {
        let each = |vm: &Machine| f64::from(vm.vcpus) + f64::from(vm.inactive_vcpus);
        self.vm.iter().map(|vm| f64::from(vm.count) * each(vm)).sum()
    }

    /// Machines in all.
    pub fn machines(&self) -> u64 {
        self.vm.iter().map(|vm| u64::from(vm.count)).sum()
    }

    /// The parts, each with its loads only.
    pub fn parts(&self) -> Vec<(String, Self)> {
        if self.phases.is_empty() {
            return vec![(String::new(), self.clone())];
        }
        let part = |phase: &String| {
            let mut part = self.clone();
            for vm in &mut part.vm {
                vm.load.retain(|load| load.common().1.is_none_or(|of| of == phase));
            }
            (phase.clone(), part)
        };
        self.phases.iter().map(part).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn embedded_scenarios_are_sound() {
        for (name, _) in EMBEDDED {
            let scenario = Scenario::named(name).unwrap();
            assert_eq!(scenario.name, name);
            let again = Scenario::parse(name, &toml::to_string(&scenario).unwrap()).unwrap();
            assert_eq!(again, scenario);
        }
        let large = Scenario::named("large").unwrap();
        assert!(large.cpus == 256 && (large.vcpus() - 4000.0).abs() < 0.5);
        let paper = Scenario::named("paper").unwrap();
        assert_eq!((paper.cpus, paper.machines(), paper.parts().len()), (2, 13, 2));
    }

    #[test]
    fn senseless_scenarios_are_refused() {
        let (_, paper) = EMBEDDED[0];
        let said = |text: &str| {
            let error = Scenario::parse("x", text).unwrap_err();
            let cause =
                std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            format!("{error} {cause}")
        };
        assert!(
            said(&paper.replace("cpus = 2", "cpus = 0"))
                .contains("cpus = 0: must be between 1 and 4096")
        );
        assert!(said(&paper.replace("cpus = 2", "cpus = 2\nfast = true")).contains("fast"));
        assert!(said(&paper.replace("phase = \"hping\"", "phase = \"hpong\"")).contains("hpong"));
        assert!(said(&paper.replace("vm = \"domain-0\"", "vm = \"nobody\"")).contains("nobody"));
        assert!(said(&paper.replacen("service = {", "serwice = {", 1)).contains("serwice"));
        assert!(Scenario::named("no such").unwrap_err().to_string().contains("table-7"));
    }
}
