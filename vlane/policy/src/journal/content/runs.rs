//! The last runs of writes that continue where one ended: the writes just before an understood
//! block.

use std::ops::Range;

/// Runs that are remembered.
const MOST: usize = 16;

/// The runs that were written to last.
#[derive(Debug, Default)]
pub(super) struct Runs {
    runs: [Run; MOST],
}

#[derive(Debug, Clone, Default)]
struct Run {
    range: Range<u64>,
    /// The write that it began with, and the last one.
    first: u64,
    last: u64,
}

impl Runs {
    /// The `clock`th write.
    pub(super) fn add(&mut self, range: &Range<u64>, clock: u64) {
        let mut oldest = 0;
        for place in 0..MOST {
            let run = &mut self.runs[place];
            if run.range.end == range.start && run.last > 0 {
                (run.range.end, run.last) = (range.end, clock);
                return;
            }
            if run.range.start == range.end && run.last > 0 {
                (run.range.start, run.last) = (range.start, clock);
                return;
            }
            if run.last < self.runs[oldest].last {
                oldest = place;
            }
        }
        self.runs[oldest] = Run { range: range.clone(), first: clock, last: clock };
    }

    /// Returns the range that was written together with the byte at `at`, by writes from the
    /// `since`th on.
    pub(super) fn around(&self, at: u64, since: u64) -> Option<Range<u64>> {
        let found = self.runs.iter().filter(|run| run.range.contains(&at) && run.first >= since);
        found.max_by_key(|run| run.last).map(|run| run.range.clone())
    }
}
