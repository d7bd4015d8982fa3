//! The parts that the readers of other programs' traces share.

use vlane_error::counted;
use vlane_trace::{Priority, Record, RequestKind, Status};

use super::Trace;
use vlane_testbed::{Error, ErrorKind, Fail, Result};

/// A trace that another program made.
#[derive(Debug, Clone, Default)]
pub struct Imported {
    /// The requests.
    pub trace: Trace,
    /// Sentences with counts: requests that were left out, and those that are doubtful.
    pub notes: Vec<String>,
}

/// Counted events that are no plain request of the trace: how many, their noun, and the rest of the
/// sentence.
#[derive(Debug, Default)]
pub(crate) struct Notes(Vec<(u64, &'static str, String)>);

impl Notes {
    /// Counts some more of the same.
    pub(crate) fn add(&mut self, count: u64, noun: &'static str, rest: impl Into<String>) {
        let rest = rest.into();
        match self.0.iter_mut().find(|(_, _, known)| *known == rest) {
            Some((all, ..)) => *all += count,
            None if count > 0 => self.0.push((count, noun, rest)),
            None => {}
        }
    }

    /// The sentences.
    pub(crate) fn told(self) -> Vec<String> {
        let told =
            |(count, noun, rest): (u64, &str, String)| format!("{} {rest}", counted(count, noun));
        self.0.into_iter().map(told).collect()
    }
}

/// A request that went well, on the first lane.
pub(crate) fn record(kind: RequestKind, submit: u64, sector: u64, sectors: u32) -> Record {
    Record {
        kind,
        status: Status::Ok,
        lane: 0,
        priority: Priority(0),
        submit,
        service: 0,
        sector,
        sectors,
        seq: 0,
        after: 0,
        more: false,
        unmap: false,
        hash: 0,
    }
}

/// The one device of a trace that may have several: the one that is `wanted`, or the only one.
///
/// `devices` are their names, each with its number of `unit`s. `None` is a trace without any.
///
/// # Errors
/// [`ErrorKind::Invalid`] with all names, if there are several or not the wanted one.
pub(crate) fn choose(
    devices: impl Iterator<Item = (String, u64)>,
    wanted: Option<&str>,
    unit: &str,
) -> Result<Option<String>> {
    let devices: Vec<(String, u64)> = devices.collect();
    let each = |(name, count): &(String, u64)| format!("{name} ({})", counted(count, unit));
    let list = devices.iter().map(each).collect::<Vec<_>>().join(", ");
    let is_chosen = |name: &str| wanted.map_or(devices.len() == 1, |wanted| wanted == name);
    if let Some((name, _)) = devices.iter().find(|(name, _)| is_chosen(name)) {
        return Ok(Some(name.clone()));
    }
    ErrorKind::Invalid.fail(match wanted {
        None if devices.is_empty() => return Ok(None),
        None => {
            format!("it is of several devices, and a volume is one: choose with --device: {list}")
        }
        Some(wanted) if devices.is_empty() => {
            format!("device {wanted} is not in it: it has no request")
        }
        Some(wanted) => format!("device {wanted} is not in it; it has {list}"),
    })
}

/// The error of a line that makes no sense.
pub(crate) fn senseless(number: u64, why: &str, line: &str) -> Error {
    let context = format!("line {number}: {why}: {:?}", line.trim_end_matches(['\r', '\n']));
    Error::new(ErrorKind::Format, context)
}
