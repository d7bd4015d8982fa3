//! Values as people write them in a profile and programs in a saved run: `"4k"` or 4096, `"3s"`
//! or 3.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use vlane_units::{parse_duration, parse_ioprio, parse_size};

/// A number of bytes: a number, or text such as `4k`, `1M`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Written")]
pub struct Size(pub u64);

/// A time: a number of seconds, or text such as `3s`, `250ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "f64")]
pub struct Time(pub Duration);

/// The kind of requests and their addresses, as `--rw` takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "String")]
pub struct Pattern(pub vlane_driver::Pattern);

/// A request's ioprio field: a number, or text such as `be/4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Written")]
pub struct Ioprio(pub u16);

/// A value as it stands in a file.
#[derive(Deserialize)]
#[serde(untagged, expecting = "neither a number nor text")]
enum Written {
    Whole(i64),
    Real(f64),
    Text(String),
}

impl Written {
    /// Its text by a parser, or its whole number as it is.
    fn read<T>(
        &self,
        text: impl Fn(&str) -> Result<T, String>,
        whole: impl Fn(u64) -> Option<T>,
        what: &str,
    ) -> Result<T, String> {
        match self {
            Self::Text(words) => text(words),
            Self::Whole(n) => u64::try_from(*n)
                .ok()
                .and_then(whole)
                .ok_or_else(|| format!("{n} stands where {what} is expected")),
            Self::Real(n) => Err(format!("{n} stands where {what} is expected")),
        }
    }
}

impl TryFrom<Written> for Size {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        written.read(parse_size, Some, "a size such as 4096 or \"4k\"").map(Self)
    }
}

impl TryFrom<Written> for Time {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        if let Written::Real(seconds) = written {
            return Duration::try_from_secs_f64(seconds)
                .map(Self)
                .map_err(|error| error.to_string());
        }
        let whole = |n| Some(Duration::from_secs(n));
        written.read(parse_duration, whole, "a time such as 3 (seconds) or \"250ms\"").map(Self)
    }
}

impl From<Time> for f64 {
    fn from(time: Time) -> Self {
        time.0.as_secs_f64()
    }
}

impl TryFrom<Written> for Pattern {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let text = |text: &str| text.parse();
        written.read(text, |_| None, "a pattern such as \"randread\" or \"randrw:70\"").map(Self)
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.0.to_string()
    }
}

impl TryFrom<Written> for Ioprio {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let whole = |n| u16::try_from(n).ok();
        written.read(parse_ioprio, whole, "an I/O priority such as \"be/4\"").map(Self)
    }
}
