//! Sizes and times as people write and read them.

#![forbid(unsafe_code)]

use std::time::Duration;

/// Parses a number of bytes: `4096`, `4k`, `1M`, `2G`, `1T`, also `4KiB` and `4kB`; all powers
/// of 1024.
///
/// # Errors
/// A sentence that names what is wrong with the text.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(format!("`{text}` is not a size; write it like 4096, 4k, 1M or 2G"));
    }
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(format!("`{text}`: `{unit}` is not a unit of size; use k, M, G or T")),
    };
    let bad = || format!("`{text}` is not a size; write it like 4096, 4k, 1M or 2G");
    let too_big = || format!("`{text}` is more than 64 bits can hold");
    if !number.contains('.') {
        let n: u64 = number.parse().map_err(|_| bad())?;
        return n.checked_mul(1 << shift).ok_or_else(too_big);
    }
    let n: f64 = number.parse().map_err(|_| bad())?;
    let bytes = n * (1_u64 << shift) as f64;
    if bytes >= 9.0e18 {
        return Err(too_big());
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked; there is no sign"
    )]
    Ok(bytes as u64)
}

/// A number of bytes for people: `4 KiB`, `1.5 GiB`.
pub fn show_size(bytes: u64) -> String {
    let (mut value, mut unit) = (bytes as f64, "B");
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    if (value - value.round()).abs() < 0.005 {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.2} {unit}")
    }
}

/// Parses a time: `5` and `5s` are seconds, `250ms`, `2m`.
///
/// # Errors
/// A sentence that names what is wrong with the text.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(format!("`{text}` is not a time; write it like 5, 0.5, 250ms or 2m"));
    }
    let scale = match unit {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => {
            return Err(format!("`{text}`: `{unit}` is not a unit of time; use us, ms, s, m or h"));
        }
    };
    let bad = || format!("`{text}` is not a time; write it like 5, 0.5, 250ms or 2m");
    let n: f64 = number.parse().map_err(|_| bad())?;
    Duration::try_from_secs_f64(n * scale).map_err(|_| bad())
}

/// Parses a rate in requests per second: `20000`, `20k`, `1.5M`; powers of 1000.
///
/// # Errors
/// A sentence that names what is wrong with the text.
pub fn parse_rate(text: &str) -> Result<f64, String> {
    let (number, scale) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1e3),
        Some((at, 'm' | 'M')) => (&text[..at], 1e6),
        _ => (text, 1.0),
    };
    let rate = number.parse::<f64>().ok().map(|n| n * scale).filter(|n| *n > 0.0 && *n <= 1e12);
    rate.ok_or_else(|| format!("`{text}` is not a rate; write it like 500, 20k or 1.5M"))
}

/// Parses an I/O priority into a request's ioprio field: `none`, `rt/0` to `rt/7`, `be/0` to
/// `be/7`, `idle`.
///
/// # Errors
/// A sentence that names what is wrong with the text.
pub fn parse_ioprio(text: &str) -> Result<u16, String> {
    let bad =
        || format!("`{text}` is not an I/O priority; use none, rt/0 to rt/7, be/0 to be/7 or idle");
    let (class, level) = match text.split_once('/') {
        Some((class, level)) => {
            (class, level.parse::<u16>().ok().filter(|l| *l < 8).ok_or_else(bad)?)
        }
        None => (text, 0),
    };
    // The class is in bits 13 to 15, as in Linux' ioprio_set(2); an idle task's level is 7.
    match class {
        "none" if text == "none" => Ok(0),
        "rt" => Ok(1 << 13 | level),
        "be" => Ok(2 << 13 | level),
        "idle" if text == "idle" => Ok(3 << 13 | 7),
        _ => Err(bad()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("4k", 4096),
            ("4KiB", 4096),
            ("1M", 1 << 20),
            ("1.5G", 3 << 29),
            (" 2T ", 2 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "k", "4x", "-1", "1..5k", "99999999999T", "9e9"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times() {
        for (text, ms) in [("5", 5000), ("0.5s", 500), ("250ms", 250), ("2m", 120_000)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "5 parsecs", "-1", "1e400"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn priorities_are_those_of_linux() {
        for (text, value) in
            [("none", 0), ("rt/0", 8192), ("be/3", 16387), ("be/4", 16388), ("idle", 24583)]
        {
            assert_eq!(parse_ioprio(text), Ok(value));
        }
        for text in ["", "rt/8", "be/x", "idle/1", "none/0", "high"] {
            assert!(parse_ioprio(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates() {
        for (text, rate) in [("500", 500.0), ("20k", 20_000.0), ("1.5M", 1_500_000.0), ("0.5", 0.5)]
        {
            assert!((parse_rate(text).unwrap() - rate).abs() < 1e-6, "{text}");
        }
        for text in ["", "k", "0", "-5", "inf", "NaN", "1e13", "5 per minute"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_in_binary_units() {
        assert_eq!(
            (show_size(4096), show_size(3 << 29), show_size(100)),
            ("4 KiB".into(), "1.50 GiB".into(), "100 B".into())
        );
    }
}
