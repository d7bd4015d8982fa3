//! A measurement that ended early: its report has the complete rounds, and says that it is partial.

use vlane_report::{Note, Report};

use crate::error::Error;

/// What the note of a partial report begins with.
const MARK: &str = "PARTIAL: ";

/// Marks a report as partial, for the failure or interruption that ended its measurement.
pub fn mark(report: &mut Report, cause: &Error, wanted: usize) {
    let mut words = cause.to_string();
    let mut source = std::error::Error::source(cause);
    while let Some(below) = source {
        words += &format!(": {below}");
        source = below.source();
    }
    let text =
        format!("{MARK}{words}; not all of {wanted} rounds were measured, and only complete ones count");
    report.notes.insert(0, Note::warning(text));
}

/// Why a report is partial; none: it is whole.
pub fn of(report: &Report) -> Option<&str> {
    report.notes.first()?.text.strip_prefix(MARK)
}
