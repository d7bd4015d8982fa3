//! `vlane volume CTL limit`, and the limits of `vlane serve`.

use std::num::NonZeroU64;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use vlane_client::control::{Control, Limits as Current};
use vlane_error::counted;
use vlane_policy::express::Mode;
use vlane_policy::throttle::{
    DEFAULT_BURST, ExpressBudget, Limits, MAX_BANDWIDTH, MAX_BURST, MAX_IOPS, MIN_BURST,
};
use vlane_units::show_size;

use crate::values;

/// Show or set a served volume's limits per second
///
/// The volume is served with --control. Without options, the command shows the limits; with
/// options, it changes only those named. The limits hold for all queues together. Requests that
/// wait for the old limits wait for the new ones. The limits end with the volume.
#[derive(Debug, Args)]
pub struct LimitArgs {
    /// Requests per second, or none
    #[arg(long, value_name = "N|none", value_parser = or_none(iops))]
    iops: Option<OrNone>,

    /// Bytes read and written per second, such as 100M, or none
    #[arg(long, value_name = "SIZE|none", value_parser = or_none(bandwidth))]
    bandwidth: Option<OrNone>,

    /// Burst after a pause: as much as the limits allow in this time
    #[arg(long, value_name = "TIME", value_parser = burst)]
    burst: Option<Duration>,

    /// Effect of the limits on express requests (--classes)
    #[arg(long, value_enum, value_name = "exempt|counted")]
    express: Option<ExpressArg>,
}

/// Initial limits of the volume
#[derive(Debug, Args)]
pub struct ServeLimits {
    /// Limit of requests per second, all queues together [default: no limit]
    ///
    /// `vlane volume CTL limit` changes it while the volume is served.
    #[arg(long, value_name = "N", value_parser = iops)]
    limit_iops: Option<NonZeroU64>,

    /// Limit of bytes read and written per second, such as 100M [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = bandwidth)]
    limit_bandwidth: Option<NonZeroU64>,

    /// Burst after a pause: as much as a limit allows in this time [default: 100ms]
    #[arg(long, value_name = "TIME", value_parser = burst)]
    limit_burst: Option<Duration>,

    /// Effect of the limits on express requests (--classes) [default: counted]
    #[arg(long, value_enum, value_name = "exempt|counted")]
    limit_express: Option<ExpressArg>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ExpressArg {
    /// Express requests never wait and do not count
    Exempt,
    /// Express requests wait and count like others
    Counted,
}

impl From<ExpressArg> for ExpressBudget {
    fn from(arg: ExpressArg) -> ExpressBudget {
        match arg {
            ExpressArg::Exempt => ExpressBudget::Exempt,
            ExpressArg::Counted => ExpressBudget::Counted,
        }
    }
}

/// A limit, or that there is none.
#[derive(Debug, Clone, Copy)]
struct OrNone(Option<NonZeroU64>);

fn or_none(
    parse: fn(&str) -> Result<NonZeroU64, String>,
) -> impl Fn(&str) -> Result<OrNone, String> + Clone + Send + Sync + 'static {
    move |text| match text {
        "none" => Ok(OrNone(None)),
        _ => parse(text)
            .map(|limit| OrNone(Some(limit)))
            .map_err(|why| format!("{why}; `none` is possible, too")),
    }
}

fn iops(text: &str) -> Result<NonZeroU64, String> {
    let number = values::whole::<u64>(1..=MAX_IOPS)(text)?;
    NonZeroU64::new(number).ok_or_else(|| format!("`{text}` is nothing"))
}

fn bandwidth(text: &str) -> Result<NonZeroU64, String> {
    let bytes = values::size(text)?;
    match NonZeroU64::new(bytes) {
        Some(bytes) if bytes.get() <= MAX_BANDWIDTH => Ok(bytes),
        _ => Err(format!("`{text}` is too large: at most {}", show_size(MAX_BANDWIDTH))),
    }
}

fn burst(text: &str) -> Result<Duration, String> {
    values::time_between(MIN_BURST, MAX_BURST)(text)
}

impl ServeLimits {
    /// As they are, if they make sense with the rest of the command line.
    pub fn limits(&self, mode: Mode) -> Result<Limits> {
        let ServeLimits { limit_iops, limit_bandwidth, limit_burst, limit_express } = *self;
        let express = limit_express.unwrap_or(ExpressArg::Counted).into();
        let burst = limit_burst.unwrap_or(DEFAULT_BURST);
        let limits = Limits { iops: limit_iops, bandwidth: limit_bandwidth, burst, express };
        if !limits.is_any() && (limit_burst.is_some() || limit_express.is_some()) {
            usage!(
                "--limit-burst and --limit-express are about a limit; give --limit-iops or \
                 --limit-bandwidth with them"
            );
        }
        if express == ExpressBudget::Exempt && !mode.classifies() {
            usage!(
                "--limit-express exempt: no request is express with --classes off; give --classes \
                 order, shortest or on with it"
            );
        }
        Ok(limits)
    }
}

/// Limits, or shows the limits.
pub fn run(control: &Path, args: &LimitArgs) -> Result<()> {
    let control = Control::new(control);
    let mut limits = control.limits()?;
    let LimitArgs { iops, bandwidth, burst, express, .. } = *args;
    if iops.is_some() || bandwidth.is_some() || burst.is_some() || express.is_some() {
        let changed =
            |new: Option<OrNone>, old| new.map_or(old, |OrNone(limit)| limit.map(NonZeroU64::get));
        limits.iops = changed(iops, limits.iops);
        limits.bandwidth = changed(bandwidth, limits.bandwidth);
        limits.burst_us = burst
            .map_or(limits.burst_us, |burst| u64::try_from(burst.as_micros()).unwrap_or(u64::MAX));
        limits.express = express.map_or(limits.express, Into::into);
        limits = control.set_limits(&limits)?;
    }
    println!("{}", describe(&limits));
    Ok(())
}

/// The limits, for people.
pub fn describe(limits: &Current) -> String {
    let rates: Vec<String> = [
        limits.iops.map(|iops| format!("{} per second", counted(iops, "request"))),
        limits.bandwidth.map(|bytes| format!("{} per second", show_size(bytes))),
    ]
    .into_iter()
    .flatten()
    .collect();
    if rates.is_empty() {
        return "no limits".to_owned();
    }
    let express = match limits.express {
        ExpressBudget::Exempt => "express requests are exempt",
        ExpressBudget::Counted => "express requests count",
    };
    let (burst, waited) =
        (Duration::from_micros(limits.burst_us), Duration::from_micros(limits.waited_us));
    format!(
        "{}; bursts of {burst:?}; {express}\nwaited {}, {:.1} s in all, since that was set",
        rates.join(" and "),
        counted(limits.waits, "time"),
        waited.as_secs_f64()
    )
}
