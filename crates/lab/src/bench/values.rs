//! Values as people write them in a profile and programs in a saved run: `"4k"` or 4096, `"3s"` or 3.

use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use vlane_driver::units::{parse_duration, parse_ioprio, parse_size};

/// A number of bytes: a number, or text such as `4k`, `1M`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// A time: a number of seconds, or text such as `3s`, `250ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time(pub Duration);

/// The kind of requests and their addresses, as `--rw` takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern(pub vlane_driver::Pattern);

/// A request's ioprio field: a number, or text such as `be/4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ioprio(pub u16);

/// Reads text by a parser, and numbers too where those make sense.
struct Either<T> {
    what: &'static str,
    text: fn(&str) -> Result<T, String>,
    whole: fn(u64) -> Option<T>,
    real: fn(f64) -> Option<T>,
}

impl<T> Visitor<'_> for Either<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.text)(text).map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, n: u64) -> Result<T, E> {
        (self.whole)(n).ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(n), &self))
    }

    fn visit_i64<E: de::Error>(self, n: i64) -> Result<T, E> {
        let whole = u64::try_from(n).ok().and_then(self.whole);
        whole.ok_or_else(|| E::invalid_value(de::Unexpected::Signed(n), &self))
    }

    fn visit_f64<E: de::Error>(self, n: f64) -> Result<T, E> {
        (self.real)(n).ok_or_else(|| E::invalid_value(de::Unexpected::Float(n), &self))
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Either {
            what: "a size such as 4096 or \"4k\"",
            text: |text| parse_size(text).map(Self),
            whole: |n| Some(Self(n)),
            real: |_| None,
        })
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Either {
            what: "a time such as 3 (seconds) or \"250ms\"",
            text: |text| parse_duration(text).map(Self),
            whole: |n| Some(Self(Duration::from_secs(n))),
            real: |n| Duration::try_from_secs_f64(n).ok().map(Self),
        })
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0.as_secs_f64())
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Either {
            what: "a pattern such as \"randread\" or \"randrw:70\"",
            text: |text| text.parse().map(Self),
            whole: |_| None,
            real: |_| None,
        })
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Ioprio {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Either {
            what: "an I/O priority such as \"be/4\"",
            text: |text| parse_ioprio(text).map(Self),
            whole: |n| u16::try_from(n).ok().map(Self),
            real: |_| None,
        })
    }
}

impl Serialize for Ioprio {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u16(self.0)
    }
}
