//! A published figure, held against the measured one: direction, size and spread, each by itself.
//!
//! - **Direction** ([`Direction`]): whether the change goes the way that was published. It is
//!   *unclear* when the interval of the measurement includes no change, and when there were too few
//!   runs for an interval.
//! - **Size** ([`Size`]): the figure here over the published one, and whether it is within
//!   [`TOLERANCE`].
//! - **Spread** ([`Interval`]): between what the true figure lies, and of how many runs that is
//!   known.
//!
//! None of them says that the publication is right or wrong. Two figures on the same side of 1 may
//! be far apart, and two that are near may be noise. Goals of our own programs are no published
//! figures, and do not stand among them.
//!
//! # Method
//!
//! Of repeated measurements the smallest and the largest are kept ([`Spread`]). They are the ends
//! of the widest interval that ranks can give. Its confidence follows from the number of runs
//! alone, for any noise. With n runs it is 1 - 2^(1-n). Figures that were measured in turns
//! are divided round by round, and each ratio is a run. Figures without stored rounds are
//! [unpaired](Interval::unpaired). The ratio then goes from the smallest over the largest to the
//! largest over the smallest. The confidence for m runs to n runs is 1 - 2 / C(m+n, n). Both are
//! the intervals of [`vlane_report::stats`] without any values cut off. As there, less than 90 % is
//! inconclusive: five runs, or three against three, are the least.

use vlane_report::stats::LEAST_CONFIDENCE;
use vlane_report::{Cell, Spread, Table, figure};

/// A size is within it if it is at most so many times the published one, and at least the same part
/// of it.
///
/// It is one for all figures, and is not to be chosen by the measured results. A quarter exceeds
/// the difference of the publications from themselves where they give the same figure twice (2.67
/// and 2.55 times, 34.1 and 37.1 Mbit/s). It is less than the smallest gap between two of their
/// configurations that matters (1.32 times).
pub(crate) const TOLERANCE: f64 = 1.25;

/// A publication's statement of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Said {
    /// This number.
    Number(f64),
    /// In words or in a graph without numbers: more than without the change.
    More,
    /// In words or in a graph without numbers: less than without the change.
    Less,
}

/// A published figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Published {
    /// The published value.
    pub(crate) said: Said,
    /// The value that would mean no change: 1 for a ratio, 100 for per cent of something. None for
    /// a level (37.2 ms), which has no direction.
    pub(crate) no_change: Option<f64>,
}

/// Which way a figure goes, seen from the published one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The whole interval is on the published side of no change.
    Same,
    /// The whole interval is on the other side.
    Opposite,
    /// The interval includes no change, or there were too few runs for one.
    Unclear,
}

/// How large a figure is, seen from the published one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Size {
    /// The figure here over the published one.
    pub(crate) ratio: f64,
}

/// A measured figure, and the interval of the true one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Interval {
    /// The figure: the median.
    pub(crate) middle: f64,
    /// The lower end.
    pub(crate) low: f64,
    /// The upper end.
    pub(crate) high: f64,
    /// Confidence that the true figure is between them, for any noise; 0 with one run.
    pub(crate) confidence: f64,
    /// Of how many runs; of a ratio, the fewer of both sides.
    pub(crate) runs: usize,
    /// True for a ratio of two spreads, which is wider than that of their rounds.
    pub(crate) is_unpaired: bool,
}

/// Result of the comparison.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Comparison {
    /// Which way; none for a level, and where no change was published.
    pub(crate) direction: Option<Direction>,
    /// How large; none where no number was published, or zero.
    pub(crate) size: Option<Size>,
}

impl Interval {
    /// Of repeated measurements of the figure itself.
    pub(crate) fn of(spread: &Spread) -> Self {
        let Spread { median, min, max, runs } = *spread;
        Self {
            middle: median,
            low: min,
            high: max,
            confidence: (1.0 - 2.0 * 0.5_f64.powf(runs as f64)).max(0.0),
            runs,
            is_unpaired: false,
        }
    }

    /// Of the ratio of two figures that were measured apart from each other, both of them positive;
    /// none if one is not.
    pub(crate) fn unpaired(of: &Spread, over: &Spread) -> Option<Self> {
        let interval = Self {
            middle: of.median / over.median,
            low: of.min / over.max,
            high: of.max / over.min,
            confidence: (1.0 - 2.0 / ways(of.runs, over.runs)).max(0.0),
            runs: of.runs.min(over.runs),
            is_unpaired: true,
        };
        let fits = [of.min, over.min].iter().all(|least| *least > 0.0)
            && [interval.middle, interval.low, interval.high].iter().all(|value| value.is_finite());
        fits.then_some(interval)
    }

    /// True if there were enough runs for a decision.
    pub(crate) fn is_decisive(&self) -> bool {
        // Exactly the least is enough, however the sum was rounded.
        self.confidence >= LEAST_CONFIDENCE - 1e-9
    }

    /// `1.21 to 1.45, 5 runs`.
    pub(crate) fn words(&self) -> String {
        let (low, high) = (shown(self.low), shown(self.high));
        match self.runs {
            0 | 1 => "one run".into(),
            runs => format!("{low} to {high}, {runs} runs{}", self.pairing()),
        }
    }

    /// `, unpaired` for a ratio of several runs that are not paired.
    pub(crate) fn pairing(&self) -> &'static str {
        if self.is_unpaired && self.runs > 1 { ", unpaired" } else { "" }
    }
}

/// In how many orders the values of two samples can come: C(m + n, n).
fn ways(m: usize, n: usize) -> f64 {
    (1..=n.min(m)).map(|i| (m.max(n) + i) as f64 / i as f64).product()
}

impl Direction {
    /// It in a word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Opposite => "opposite",
            Self::Unclear => "unclear",
        }
    }
}

impl Size {
    /// True if it is within [`TOLERANCE`].
    pub(crate) fn is_within(self) -> bool {
        (1.0 / TOLERANCE..=TOLERANCE).contains(&self.ratio)
    }

    /// `0.54, not within`.
    pub(crate) fn words(self) -> String {
        format!("{}, {}", shown(self.ratio), if self.is_within() { "within" } else { "not within" })
    }
}

impl Published {
    /// True if more than no change was published; none if that is undefined.
    fn is_more(&self) -> Option<bool> {
        match self.said {
            Said::More => Some(true),
            Said::Less => Some(false),
            Said::Number(value) => {
                self.no_change.filter(|none| (value - none).abs() > 1e-9).map(|none| value > none)
            }
        }
    }

    /// Holds it against what was measured.
    pub(crate) fn compare(&self, here: &Interval) -> Comparison {
        let direction = self.no_change.zip(self.is_more()).map(|(none, is_more)| {
            if !here.is_decisive() || (here.low..=here.high).contains(&none) {
                Direction::Unclear
            } else if (here.low > none) == is_more {
                Direction::Same
            } else {
                Direction::Opposite
            }
        });
        let size = match self.said {
            Said::Number(value) => Some(Size { ratio: here.middle / value })
                .filter(|size| size.ratio.is_finite() && size.ratio > 0.0),
            Said::More | Said::Less => None,
        };
        Comparison { direction, size }
    }

    fn cell(&self) -> Cell {
        match self.said {
            Said::Number(value) => Cell::Number(value),
            Said::More => "more".into(),
            Said::Less => "less".into(),
        }
    }
}

/// A line of [`table`].
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    /// Which figure, with its unit.
    pub(crate) figure: String,
    /// Its published value.
    pub(crate) published: Published,
    /// The measured figure; or the reason for its absence.
    pub(crate) here: Result<Interval, String>,
}

impl Row {
    /// Result of the comparison; none without a measurement.
    pub(crate) fn comparison(&self) -> Option<Comparison> {
        self.here.as_ref().ok().map(|here| self.published.compare(here))
    }
}

/// The columns of [`table`], in words for readers.
pub(crate) const LEGEND: &str = "\
    Direction: whether the figure goes the way that was published; unclear if its interval \
    includes no change, or if there were too few runs (five, or three against three, are the \
    least). Size: the figure here over the published one, and whether it is within a factor of \
    1.25, which is one for all figures. Spread: the interval that the runs leave for the figure \
    here. Ratios are taken in each round; an unpaired ratio is of the spreads, where no rounds \
    are stored.";

/// Published figures beside those measured here: the one form of it, for all reports.
pub(crate) fn table(caption: impl Into<String>, rows: &[Row]) -> Table {
    let cells = |row: &Row| {
        let (here, direction, size, spread) = match (&row.here, row.comparison()) {
            (Ok(here), Some(Comparison { direction, size })) => (
                here.middle.into(),
                direction.map_or(Cell::Empty, |direction| direction.word().into()),
                size.map_or(Cell::Empty, |size| size.words().into()),
                here.words().into(),
            ),
            (Ok(_), None) => (Cell::Empty, Cell::Empty, Cell::Empty, Cell::Empty),
            (Err(why), _) => ("not measured".into(), Cell::Empty, Cell::Empty, why.clone().into()),
        };
        vec![row.figure.clone().into(), row.published.cell(), here, direction, size, spread]
    };
    Table::new(
        caption,
        "figure | published | here | direction | size | spread",
        rows.iter().map(cells).collect(),
    )
}

/// Three significant digits or so.
fn shown(value: f64) -> String {
    figure::Format::of_unit("x").show(value)
}

#[cfg(test)]
#[path = "published/tests.rs"]
mod tests;
