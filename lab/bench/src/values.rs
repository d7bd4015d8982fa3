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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
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
    /// Its text, as the command line would have it.
    fn text(self) -> String {
        match self {
            Self::Whole(number) => number.to_string(),
            Self::Real(number) => number.to_string(),
            Self::Text(text) => text,
        }
    }
}

impl TryFrom<Written> for Size {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        parse_size(&written.text()).map(Self)
    }
}

impl TryFrom<Written> for Time {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        parse_duration(&written.text()).map(Self)
    }
}

impl TryFrom<Written> for Pattern {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        written.text().parse().map(Self)
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
        let text = written.text();
        text.parse().or_else(|_| parse_ioprio(&text)).map(Self)
    }
}
