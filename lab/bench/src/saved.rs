//! Results of a bench run: every single measurement, in a file for comparison with a later run.
//!
//! The file is JSON, one object, whose first key is the schema's name and version. Figures are
//! those of [`Run`]; distributions are [`Buckets`], which can be added and drawn.

use std::path::Path;

use serde::{Deserialize, Serialize};
use vlane_driver::Buckets;

use super::profile::{Load, Pin, Target};
use vlane_report::{Machine, median};
use vlane_testbed::{Context, ErrorKind, Fail, Output, Result, SAVED, Wanted, mistaken};

/// A whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// [`SAVED`].
    pub schema: String,
    /// The profile's title.
    pub title: String,
    /// The profile's text.
    #[serde(default)]
    pub text: Vec<String>,
    /// The command that makes it again.
    pub command: String,
    /// When it was begun, RFC 3339 in UTC.
    pub created: String,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Where it was made.
    pub machine: Machine,
    /// Length of each measurement, in seconds.
    pub time: f64,
    /// Time before each that did not count, in seconds.
    pub ramp: f64,
    /// True if targets were measured in turns.
    pub interleaved: bool,
    /// Differences up to this share do not matter.
    pub threshold: f64,
    /// Which CPUs were used.
    pub pin: Pin,
    /// True if it was interrupted: loads and targets then lack measurements, or have none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// The results, by load.
    pub loads: Vec<LoadRuns>,
}

/// The results of a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadRuns {
    /// The load.
    pub load: Load,
    /// The results, by target.
    pub targets: Vec<TargetRuns>,
}

/// The results of a load on a target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TargetRuns {
    /// The target.
    pub target: Target,
    /// The command that started its back end, if the lab did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// The command of its client, if that is another program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// Each measurement, in the order of the rounds.
    pub runs: Vec<Run>,
}

/// One measurement. Latencies are in us; with a rate they are response latencies.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Requests per second.
    pub iops: f64,
    /// MB (10^6 bytes) per second.
    pub mb_per_second: f64,
    /// Mean latency.
    pub mean_us: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p99_9_us: f64,
    /// CPU time of the back end per request in us, if its process can be looked at.
    pub server_cpu_us_per_io: Option<f64>,
    /// Context switches of the back end per request.
    pub server_switches_per_io: Option<f64>,
    /// CPU time of the client per request in us.
    pub client_cpu_us_per_io: f64,
    /// With a rate: whether it was kept.
    pub kept_up: Option<bool>,
    /// With a rate: the 99th percentile of how late the driver itself was, in us.
    pub late_p99_us: Option<f64>,
    /// Figures of flushes, if there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flushes: Option<Flushing>,
    /// All latencies; empty if the client does not tell them.
    pub latencies: Buckets,
}

/// The flushes of one measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Flushing {
    /// Flushes per second.
    pub per_second: f64,
    /// Median latency in us.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// `fdatasync`s per flush, if they are counted.
    pub fdatasyncs: Option<f64>,
}

impl Run {
    /// Figures of the driver's report.
    pub(super) fn of(report: &vlane_driver::Report) -> Self {
        let (latency, latencies) = match &report.open {
            Some(open) => (&open.response, &open.response_histogram),
            None => (&report.latency, &report.histogram),
        };
        Self {
            iops: report.iops,
            mb_per_second: report.mb_per_second,
            mean_us: latency.mean,
            p50_us: latency.p50,
            p99_us: latency.p99,
            p99_9_us: latency.p99_9,
            server_cpu_us_per_io: report.backend.map(|used| used.cpu_us_per_io),
            server_switches_per_io: report.backend.map(|used| used.switches_per_io),
            client_cpu_us_per_io: report.driver_cpu_us_per_io,
            kept_up: report.open.as_ref().map(|open| open.kept_up),
            late_p99_us: report.open.as_ref().map(|open| open.late.p99),
            flushes: report.flushes.map(|flushes| Flushing {
                per_second: flushes.iops,
                p50_us: flushes.latency.p50,
                p99_us: flushes.latency.p99,
                fdatasyncs: None,
            }),
            latencies: latencies.clone(),
        }
    }

    /// CPUs that the client kept busy.
    pub fn client_cpus(&self) -> f64 {
        self.client_cpu_us_per_io * self.iops / 1e6
    }
}

impl TargetRuns {
    /// The median of a figure.
    pub(super) fn median(&self, value: impl Fn(&Run) -> f64) -> f64 {
        median(&self.runs.iter().map(value).collect::<Vec<_>>())
    }
}

impl Saved {
    /// Writes it to a file.
    ///
    /// # Errors
    /// As [`Output::write`].
    pub fn write(&self, output: &Output) -> Result<()> {
        let failed = || format!("cannot write {}", output.path().display());
        let text = serde_json::to_string(self).context(ErrorKind::Format, failed)? + "\n";
        output.write(text.as_bytes())
    }

    /// A file for a saved run: it may replace another.
    pub fn output(path: &Path, force: bool) -> Output {
        let name = |content: &[u8]| {
            vlane_report::is_json_of(content, SAVED.split('/').next().unwrap_or(SAVED))
        };
        Output::new(path).replacing(name).force(force)
    }

    /// Reads one from a file.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if it cannot be read, [`ErrorKind::Format`] if it is no saved run, or one
    /// of another version.
    pub fn read(path: &Path) -> Result<Self> {
        if let Some(words) = mistaken(path, Wanted::SavedRun) {
            return ErrorKind::Format.fail(words);
        }
        let at = |what: &str| format!("{}: {what}", path.display());
        let text = std::fs::read_to_string(path).context(ErrorKind::Io, || at("cannot be read"))?;
        let unknown = "not a saved run of `vlane-lab bench --save`";
        let run: serde_json::Value =
            serde_json::from_str(&text).context(ErrorKind::Format, || at(unknown))?;
        match run["schema"].as_str() {
            Some(SAVED) => {
                serde_json::from_value(run).context(ErrorKind::Format, || at("a damaged saved run"))
            }
            Some(other) => ErrorKind::Format.fail(at(&format!(
                "of the format `{other}`; this program reads `{SAVED}`: save the older run \
                     again"
            ))),
            None => ErrorKind::Format.fail(at(unknown)),
        }
    }
}
