//! Values of options: parsers whose errors name the valid values. clap puts the option's name
//! before them.

use std::fmt::Display;
use std::ops::{Bound, RangeBounds};
use std::time::Duration;

use vlane_units::{parse_duration, parse_size};

/// The longest time that an option takes: a hundred years are a mistake.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
/// The largest number of a CPU that Linux' masks have here.
const LAST_CPU: u64 = 1023;

/// Parses a whole number within a range.
pub fn whole<T: TryFrom<u64>>(
    range: impl RangeBounds<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    let (low, high) = ends(&range);
    move |text| {
        let number = digits(text, "")?;
        T::try_from(within(number, low, high)?).map_err(|_| format!("`{text}` is too large"))
    }
}

/// Parses a time that is counted in a unit, which a bare number has: `us`, `ms` or `s`. `50`,
/// `50us` and `1ms` are the same kind of thing.
pub fn time_in<T: TryFrom<u64>>(
    unit: &'static str,
    range: impl RangeBounds<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    let (low, high) = ends(&range);
    move |text| {
        let bare = text.bytes().all(|c| c.is_ascii_digit());
        if !bare && text.bytes().all(|c| c.is_ascii_digit() || c == b'.') {
            return Err(format!(
                "`{text}` is not a whole number of {unit}; a fraction needs its unit"
            ));
        }
        let count = match bare {
            true => digits(text, unit)?,
            false => {
                let time = signed(text).and_then(|()| parse_duration(text))?;
                let ns: u128 = match unit {
                    "us" => 1_000,
                    "ms" => 1_000_000,
                    _ => 1_000_000_000,
                };
                if !time.as_nanos().is_multiple_of(ns) {
                    return Err(format!("`{text}` is not a whole number of {unit}"));
                }
                u64::try_from(time.as_nanos() / ns).map_err(|_| format!("`{text}` is too large"))?
            }
        };
        let count = within(count, low, high).map_err(|why| format!("{why} ({unit})"))?;
        T::try_from(count).map_err(|_| format!("`{text}` is too large"))
    }
}

/// Parses a file's mode, in octal digits.
pub fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| format!("{text:?} is not a file mode: up to three octal digits, as 660"))
}

/// Parses a group, by name or number.
pub fn group(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    match nix::unistd::Group::from_name(text) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err(format!(
            "no group is called {text:?}; `getent group` lists them, `groupadd` makes one"
        )),
        Err(error) => Err(format!("{text:?} cannot be looked up: {error}")),
    }
}

/// Parses a time above zero.
pub fn time(text: &str) -> Result<Duration, String> {
    time_between(Duration::from_nanos(1), LONGEST)(text)
}

/// Parses a time, which may be zero.
pub fn time_or_none(text: &str) -> Result<Duration, String> {
    time_between(Duration::ZERO, LONGEST)(text)
}

/// Parses a time within bounds.
pub fn time_between(
    low: Duration,
    high: Duration,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text| {
        let time = signed(text).and_then(|()| parse_duration(text))?;
        match time {
            _ if time.is_zero() && !low.is_zero() => {
                Err(format!("`{text}` is not a time; at least {low:?}"))
            }
            _ if time < low => Err(format!("`{text}` is too short: at least {low:?}")),
            _ if time > high => Err(format!("`{text}` is too long: at most {} s", high.as_secs())),
            _ => Ok(time),
        }
    }
}

/// Parses a number of seconds, fractions allowed, within bounds; `500ms` and `2m` are possible,
/// too.
pub fn seconds(
    low: f64,
    high: f64,
) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let time = signed(text).and_then(|()| parse_duration(text))?.as_secs_f64();
        match (low..=high).contains(&time) {
            true => Ok(time),
            false => Err(format!("`{text}` is not from {low} to {high} seconds")),
        }
    }
}

/// Parses a size in whole MiB, which a bare number has: `1024`, `1024M` and `1G` are the same.
pub fn mebibytes(
    range: impl RangeBounds<u64>,
) -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync + 'static {
    const MIB: u64 = 1 << 20;
    let (low, high) = ends(&range);
    move |text| {
        let count = match text.bytes().all(|c| c.is_ascii_digit()) {
            true => digits(text, "MiB")?,
            false => match parse_size(text)? {
                bytes if bytes % MIB == 0 => bytes / MIB,
                _ => return Err(format!("`{text}` is not a whole number of MiB")),
            },
        };
        let count = within(count, low, high).map_err(|why| format!("{why} (MiB)"))?;
        u32::try_from(count).map_err(|_| format!("`{text}` is too large"))
    }
}

/// Parses how many times as much or as fast something is to be.
pub fn factor(text: &str) -> Result<f64, String> {
    signed(text)?;
    let factor = text
        .parse::<f64>()
        .map_err(|_| format!("`{text}` is not a factor; write it like 1, 0.5 or 10"))?;
    match (1e-6..=1e6).contains(&factor) {
        true => Ok(factor),
        false => Err(format!("`{text}` is not from 0.000001 to 1000000")),
    }
}

/// Parses a size of at least a sector, in whole sectors: that of a device, or of a part of it.
pub fn size(text: &str) -> Result<u64, String> {
    match place(text)? {
        0 => Err(format!(
            "size {text}: there must be at least one sector of 512 bytes; write it like 16G"
        )),
        bytes => Ok(bytes),
    }
}

/// Parses a place on a device: whole sectors, from 0 on.
pub fn place(text: &str) -> Result<u64, String> {
    let bytes = signed(text).and_then(|()| parse_size(text))?;
    match bytes.is_multiple_of(512) {
        true => Ok(bytes),
        false => Err(format!("{bytes} bytes are not a multiple of the sector size, 512")),
    }
}

/// Parses the bytes of a request.
pub fn block(text: &str) -> Result<u64, String> {
    let bytes = signed(text).and_then(|()| parse_size(text))?;
    match bytes {
        512..=0x400_0000 if bytes.is_multiple_of(512) => Ok(bytes),
        _ => Err(format!("`{text}`: a block is a multiple of 512 bytes, up to 64M")),
    }
}

/// Parses the number of a CPU.
pub fn cpu(text: &str) -> Result<usize, String> {
    whole::<usize>(0..=LAST_CPU)(text)
}

/// Parses one of some names.
pub fn one_of<N: Display>(
    text: &str,
    what: &str,
    names: impl IntoIterator<Item = N>,
) -> Result<String, String> {
    let names: Vec<String> = names.into_iter().map(|name| name.to_string()).collect();
    match names.iter().any(|name| name == text) {
        true => Ok(text.to_owned()),
        false => Err(format!("`{text}` is not a known {what}; there are {}", names.join(", "))),
    }
}

fn ends(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let low = match range.start_bound() {
        Bound::Included(low) => *low,
        Bound::Excluded(low) => low.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let high = match range.end_bound() {
        Bound::Included(high) => *high,
        Bound::Excluded(high) => high.saturating_sub(1),
        Bound::Unbounded => u64::MAX,
    };
    (low, high)
}

fn within(number: u64, low: u64, high: u64) -> Result<u64, String> {
    match number {
        n if n < low => Err(format!("{number} is too small: at least {low}")),
        n if n > high => Err(format!("{number} is too large: at most {high}")),
        n => Ok(n),
    }
}

/// An error for a value below zero.
fn signed(text: &str) -> Result<(), String> {
    match text.trim_start().starts_with('-') {
        true => Err(format!("`{text}` is negative")),
        false => Ok(()),
    }
}

/// The digits of a number without unit and fraction.
fn digits(text: &str, unit: &str) -> Result<u64, String> {
    signed(text)?;
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    match (&text[..end], &text[end..]) {
        ("", _) => Err(format!("`{text}` is not a number")),
        (number, "") => number.parse().map_err(|_| format!("`{text}` is too large")),
        (_, rest) if rest.starts_with('.') => Err(format!("`{text}` is not a whole number")),
        (number, rest) if unit.is_empty() => Err(format!(
            "`{text}`: `{rest}` does not belong there; give a bare number, as {number}"
        )),
        _ => Err(format!("`{text}` is not a whole number")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_whole_and_in_range() {
        let parse = whole::<u16>(1..=1024);
        assert_eq!((parse("1"), parse("1024")), (Ok(1), Ok(1024)));
        for (text, says) in [
            ("0", "at least 1"),
            ("1025", "at most 1024"),
            ("-3", "negative"),
            ("1.5", "not a whole number"),
            ("50us", "give a bare number, as 50"),
            ("many", "not a number"),
            ("99999999999999999999999", "too large"),
            ("", "not a number"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
        assert!(whole::<u16>(0..)("65536").unwrap_err().contains("too large"));
    }

    #[test]
    fn counts_may_have_their_unit() {
        let parse = time_in::<u64>("us", 1..=1_000_000);
        for (text, us) in
            [("50", 50), ("50us", 50), ("1ms", 1000), ("0.5ms", 500), ("1s", 1_000_000)]
        {
            assert_eq!(parse(text), Ok(us), "{text}");
        }
        for (text, says) in [
            ("0", "at least 1"),
            ("2s", "at most 1000000"),
            ("-5us", "negative"),
            ("5 parsecs", "not a unit"),
            ("0.5us", "whole"),
            // Not half a second: a bare number is one of the unit.
            ("0.5", "not a whole number of us"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn times_sizes_and_factors_are_bounded() {
        assert_eq!(time("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(time_or_none("0"), Ok(Duration::ZERO));
        assert!(
            time("0").is_err()
                && time("-1s").unwrap_err().contains("negative")
                && time("1e9h").is_err()
        );
        assert_eq!((size("4k"), place("0")), (Ok(4096), Ok(0)));
        assert!(size("0").is_err() && size("513").is_err() && place("-1").is_err());
        assert_eq!(block("64M"), Ok(64 << 20));
        assert!(block("0").is_err() && block("1000").is_err() && block("65M").is_err());
        assert_eq!(factor("0.5"), Ok(0.5));
        assert!(
            ["0", "-1", "x", "inf", "NaN", "1e9"].into_iter().all(|text| factor(text).is_err())
        );
        assert_eq!(seconds(0.1, 100.0)("500ms"), Ok(0.5));
        assert!(seconds(0.1, 100.0)("0").is_err());
    }
}
