//! Numbers for people: three significant digits, thousands by a letter or a gap, units where they
//! belong.
//!
//! Counts take a letter from ten thousand on (`347.6k`, `1.09M`). Figures with a unit never do
//! (`0.192 us`, `12 345 MB/s`): a letter before such a unit would be another unit. A [`Format`] is
//! chosen for a whole column, so that its figures can be compared by their places.

use std::time::Duration;

use crate::Spread;

/// Text where there is no number.
pub const NONE: &str = "-";
/// As wide as a digit, where digits have one width.
const FIGURE_SPACE: char = '\u{2007}';
/// As wide as the decimal point.
const POINT_SPACE: char = '\u{2008}';
/// Between groups of three digits.
const GAP: char = '\u{202f}';

/// Units that are written in full and have prefixes of their own.
const OWN_PREFIX: [&str; 20] = [
    "ns", "us", "ms", "s", "min", "h", "%", "x", "B", "kB", "MB", "GB", "KiB", "MiB", "GiB", "TiB",
    "bit/s", "Hz", "MHz", "GHz",
];

/// True if a figure of this unit may be followed by `k`, `M`, `G`.
fn takes_letter(unit: &str) -> bool {
    let first = unit.split(['/', ' ']).next().unwrap_or("");
    !OWN_PREFIX.contains(&first)
}

/// How the figures of one column or axis are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// True if large figures take a letter.
    letters: bool,
    /// One letter for all of them: place in [`LETTERS`].
    common: Option<usize>,
}

const LETTERS: [(&str, f64); 5] = [("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)];

/// The letter for a figure: none below ten thousand, then the largest that leaves at least 1.
fn letter_of(value: f64) -> usize {
    // 999.96k is 1.00M: rounded as it will be shown.
    let magnitude = value.abs() * 1.000_05;
    match magnitude {
        m if m < 1e4 => 0,
        m => LETTERS.iter().rposition(|(_, scale)| m >= *scale).unwrap_or(0),
    }
}

impl Format {
    /// For figures of one unit that are written one by one.
    pub fn of_unit(unit: &str) -> Self {
        Self { letters: takes_letter(unit), common: None }
    }

    /// For a column: one letter for all if they are near enough to each other to be compared so.
    pub fn of_column(values: impl IntoIterator<Item = f64>, unit: &str) -> Self {
        let mut format = Self::of_unit(unit);
        let sizes = values.into_iter().map(f64::abs).filter(|v| v.is_finite() && *v > 0.0);
        let (min, max) =
            sizes.fold((f64::INFINITY, 0.0_f64), |(min, max), v| (min.min(v), max.max(v)));
        if min <= max {
            let letter = if format.letters { letter_of(min) } else { 0 };
            if max / LETTERS[letter].1 < 1e6 {
                format.common = Some(letter);
            }
        }
        format
    }

    /// A figure: `1.09M`, `347.6k`, `0.192`, `12 345`; `-` if it is not a number.
    pub fn show(self, value: f64) -> String {
        if !value.is_finite() {
            return NONE.into();
        }
        let letter = self.common.unwrap_or_else(|| if self.letters { letter_of(value) } else { 0 });
        let (letter, scale) = LETTERS[letter];
        let scaled = value / scale;
        let least = usize::from(!letter.is_empty());
        format!("{}{letter}", group(scaled, decimals(scaled).max(least)))
    }

    /// A figure with blanks behind it. The blanks align the decimal points of a right-justified
    /// column, if digits have one width. `deepest` is the largest of the column's
    /// [`Format::decimals`].
    pub fn aligned(self, value: f64, deepest: usize) -> String {
        let mut text = self.show(value);
        if self.common.is_some() && value.is_finite() {
            let own = self.decimals(value);
            if own == 0 && deepest > 0 {
                text.push(POINT_SPACE);
            }
            text.extend(std::iter::repeat_n(FIGURE_SPACE, deepest.saturating_sub(own)));
        }
        text
    }

    /// Decimal places with which [`Format::show`] writes a figure.
    pub fn decimals(self, value: f64) -> usize {
        let text = self.show(value);
        let digits = text.split_once('.').map_or("", |(_, after)| after);
        digits.chars().take_while(char::is_ascii_digit).count()
    }
}

/// Decimal places that leave three significant digits, six at most.
fn decimals(value: f64) -> usize {
    // Counts: 8 jobs, not 8.00.
    if value.fract() == 0.0 {
        return 0;
    }
    let text = format!("{value:.2e}");
    let exponent = text.split_once('e').and_then(|(_, exponent)| exponent.parse::<i32>().ok());
    usize::try_from((2 - exponent.unwrap_or(2)).min(6)).unwrap_or(0)
}

/// A number with so many decimals, and a thin gap between thousands from ten thousand on.
fn group(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let (sign, digits) = text.strip_prefix('-').map_or(("", text.as_str()), |rest| ("-", rest));
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let mut out = String::new();
    // -0.00 is 0.00.
    if digits.chars().any(|c| matches!(c, '1'..='9')) {
        out.push_str(sign);
    }
    for (i, digit) in whole.chars().enumerate() {
        if whole.len() > 4 && i > 0 && (whole.len() - i).is_multiple_of(3) {
            out.push(GAP);
        }
        out.push(digit);
    }
    if !part.is_empty() {
        out.push('.');
        out.push_str(part);
    }
    out
}

/// A figure with its unit: `1.09M IOPS`, `0.192 us`, `6.13x`.
pub fn with_unit(value: f64, unit: &str) -> String {
    let text = Format::of_unit(unit).show(value);
    match unit {
        "" => text,
        "x" if value.is_finite() => text + unit,
        _ => format!("{text} {unit}"),
    }
}

/// The spread in small print: `11.9k-12.8k`; `None` where there was one run, or all are shown
/// alike.
pub fn range(spread: &Spread, format: Format) -> Option<String> {
    let (min, max) = (format.show(spread.min), format.show(spread.max));
    (spread.runs > 1 && min != max && spread.min.is_finite() && spread.max.is_finite())
        .then(|| format!("{min}-{max}"))
}

/// The label of a tick on an axis whose largest tick is `max`: a figure without needless zeros.
pub fn tick(value: f64, max: f64, unit: &str) -> String {
    labelled(value, if max.abs() >= 1e4 { max } else { 0.0 }, unit)
}

/// The label of a tick on a logarithmic axis.
pub fn log_tick(value: f64, unit: &str) -> String {
    labelled(value, if value >= 1e3 { value * 1.000_05 } else { 0.0 }, unit)
}

/// A figure without needless zeros, with the letter of a size.
fn labelled(value: f64, size: f64, unit: &str) -> String {
    let is_lettered = |(_, scale): &(&str, f64)| takes_letter(unit) && size.abs() >= *scale;
    let (letter, scale) = LETTERS.into_iter().rfind(is_lettered).unwrap_or(LETTERS[0]);
    let scaled = value / scale;
    if scaled != 0.0 && !(1e-6..1e9).contains(&scaled.abs()) {
        return format!("{scaled:e}{letter}");
    }
    let text = group(scaled, 6);
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text}{}", if scaled == 0.0 { "" } else { letter })
}

/// A time span for people, of seconds: `4m 12s`.
pub fn duration(seconds: f64) -> String {
    let step = match seconds {
        s if s < 9.95 => 0.1,
        s if s < 3600.0 => 1.0,
        _ => 60.0,
    };
    let time = Duration::try_from_secs_f64((seconds / step).round() * step);
    time.map_or_else(|_| NONE.into(), |time| humantime::format_duration(time).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_counts_take_letters() {
        for (value, unit, text) in [
            (1_090_000.0, "IOPS", "1.09M IOPS"),
            (347_600.0, "IOPS", "347.6k IOPS"),
            (12_345.0, "IOPS", "12.3k IOPS"),
            (9_999.0, "IOPS", "9999 IOPS"),
            (999_960.0, "IOPS", "1.00M IOPS"),
            (0.192, "us", "0.192 us"),
            (24.06, "us", "24.1 us"),
            (1_234_567.0, "us", "1\u{202f}234\u{202f}567 us"),
            (6.13, "x", "6.13x"),
            (0.0, "us", "0 us"),
            (-0.000_000_1, "us", "0.000000 us"),
            (12_345.6, "MB/s", "12\u{202f}346 MB/s"),
            (45_000.0, "per I/O", "45.0k per I/O"),
            (3.0, "", "3"),
            (3.04, "", "3.04"),
        ] {
            assert_eq!(with_unit(value, unit), text);
        }
        assert_eq!(with_unit(f64::NAN, "x"), "- x");
    }

    #[test]
    fn column_has_one_letter_and_aligned_points() {
        let values = [347_600.0, 1_090_000.0, 12_340.0];
        let format = Format::of_column(values, "IOPS");
        let shown = values.map(|v| format.show(v));
        assert_eq!(shown, ["347.6k", "1090.0k", "12.3k"]);
        let values = [0.192, 24.1, 120.0];
        let format = Format::of_column(values, "us");
        let deepest = values.iter().map(|v| format.decimals(*v)).max().unwrap_or(0);
        let ends = values.map(|v| format.aligned(v, deepest).chars().rev().collect::<Vec<_>>());
        assert_eq!(deepest, 3);
        assert!(ends.iter().all(|end| end[3] == '.' || end[3] == POINT_SPACE), "{ends:?}");
        let apart = Format::of_column([3.0, 1e9], "requests");
        assert!(apart.common.is_none());
        assert_eq!((apart.show(3.0), apart.show(1e9)), ("3".into(), "1.0G".into()));
        assert!(Format::of_column([], "us").common.is_none());
    }

    #[test]
    fn only_existing_spreads_are_shown() {
        let spread = |min, max, runs| Spread { median: 12_300.0, min, max, runs };
        let format = Format::of_unit("IOPS");
        let shown = range(&spread(11_900.0, 12_800.0, 5), format);
        assert_eq!(shown.as_deref(), Some("11.9k-12.8k"));
        assert_eq!(range(&spread(12_300.0, 12_300.0, 1), format), None);
        assert_eq!(range(&spread(f64::NAN, f64::NAN, 3), format), None);
    }

    #[test]
    fn ticks_have_minimal_digits() {
        assert_eq!(tick(200_000.0, 1_000_000.0, "IOPS"), "0.2M");
        assert_eq!(tick(400_000.0, 800_000.0, "IOPS"), "400k");
        assert_eq!(tick(0.25, 1.0, ""), "0.25");
        assert_eq!(tick(20_000.0, 50_000.0, "us"), "20\u{202f}000");
        for (value, text) in
            [(1.0, "1"), (0.5, "0.5"), (16.0, "16"), (1000.0, "1k"), (2_000_000.0, "2M")]
        {
            assert_eq!(log_tick(value, ""), text);
        }
        assert_eq!(
            (log_tick(1000.0, "us"), log_tick(0.001, "us")),
            ("1000".into(), "0.001".into())
        );
    }

    #[test]
    fn durations() {
        for (seconds, text) in
            [(1.26, "1s 300ms"), (42.4, "42s"), (252.0, "4m 12s"), (3725.0, "1h 2m")]
        {
            assert_eq!(duration(seconds), text);
        }
        assert_eq!(duration(f64::NAN), NONE);
    }

    /// The number that a shown figure stands for.
    fn read(text: &str) -> f64 {
        let plain: String = text.chars().filter(|c| *c != GAP).collect();
        let (number, scale) =
            match LETTERS.iter().skip(1).find(|(letter, _)| plain.ends_with(letter)) {
                Some((letter, scale)) => (plain.trim_end_matches(letter), *scale),
                None => (plain.as_str(), 1.0),
            };
        number.parse::<f64>().unwrap_or(f64::NAN) * scale
    }

    proptest! {
        #[test]
        fn figures_keep_three_digits(exponent in -3.0..14.0_f64, sign in any::<bool>(), letters in any::<bool>()) {
            let value = 10_f64.powf(exponent) * if sign { 1.0 } else { -1.0 };
            let shown = Format::of_unit(if letters { "IOPS" } else { "us" }).show(value);
            prop_assert!((read(&shown) - value).abs() <= value.abs() * 0.005_01, "{value} as {shown}");
        }

        #[test]
        fn any_number_can_be_shown(value in any::<f64>(), step in any::<f64>()) {
            for unit in ["", "us"] {
                let format = Format::of_column([value, step], unit);
                let _ = (format.aligned(value, 3), tick(value, step, unit), log_tick(value, unit), duration(value));
            }
        }
    }
}
