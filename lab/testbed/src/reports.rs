//! Files of reports: their form by the name's ending, and what they may replace.

use std::path::Path;

use vlane_client::Output;
use vlane_report::Report;

use crate::error::Result;

/// Says before anything is measured whether [`write_report`] will have a form and a place for a
/// file.
///
/// # Errors
/// [`crate::ErrorKind::Usage`], [`crate::ErrorKind::Invalid`], [`crate::ErrorKind::Io`].
pub fn check_report(path: &Path, force: bool) -> Result<()> {
    Report::check_name(path)?;
    for_report(path, force).check()
}

/// Writes a report in the form that the file's name ends in: `.json`, `.html` (`.htm`), `.txt`.
///
/// The file appears whole or not at all. It replaces another report; with `force`, any file that
/// nobody uses ([`Output`]).
///
/// # Errors
/// [`crate::ErrorKind::Usage`] for another ending, [`crate::ErrorKind::Invalid`] if there is
/// something that must stay, [`crate::ErrorKind::Io`] if it cannot be written.
pub fn write_report(report: &Report, path: &Path, force: bool) -> Result<()> {
    for_report(path, force).write(report.in_form_of(path)?.as_bytes())
}

fn for_report(path: &Path, force: bool) -> Output {
    Output::new(path).replacing(Report::is_one).force(force)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            schema: vlane_report::SCHEMA.into(),
            kind: "test".into(),
            title: "What was measured".into(),
            command: "vlane test".into(),
            created: vlane_report::date::now(),
            seconds: 1.0,
            ..Report::default()
        }
    }

    #[test]
    fn report_file_is_whole_or_absent() {
        let dir = tempfile::tempdir().unwrap();
        let report = report();
        for (name, start) in [
            ("a.json", "{"),
            ("a.html", "<!DOCTYPE html>"),
            ("a.HTM", "<!DOCTYPE html>"),
            ("a.txt", "What"),
        ] {
            let path = dir.path().join(name);
            write_report(&report, &path, false).unwrap();
            // Again: a report may replace one.
            check_report(&path, false).unwrap();
            write_report(&report, &path, false).unwrap();
            assert!(std::fs::read_to_string(&path).unwrap().starts_with(start), "{name}");
        }
        for name in ["a.pdf", "a", "no/such/dir/a.json"] {
            let path = dir.path().join(name);
            assert!(
                write_report(&report, &path, true).is_err() && check_report(&path, true).is_err(),
                "{name}"
            );
        }
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            4,
            "no half-written file is left"
        );
        let error = Report::read(&dir.path().join("a.txt")).unwrap_err();
        assert!(error.to_string().contains("a.txt"), "{error}");
    }

    #[test]
    fn report_replaces_only_reports() {
        let dir = tempfile::tempdir().unwrap();
        let report = report();
        let path = dir.path().join("a.json");
        let json = report.to_json().unwrap();
        for (content, may) in [
            (json.replace("vlane-report/1", "vlane-report/0"), true),
            (vlane_report::html::page(&report).unwrap(), true),
            (vlane_report::text::render(&report, 80), true),
            (json.replace("vlane-report/1", "vlane-bench/1"), false),
            ("{\"results\": 1}".to_owned(), false),
            ("<!DOCTYPE html><html></html>".to_owned(), false),
            ("Notes\n=====\n".to_owned(), false),
        ] {
            std::fs::write(&path, &content).unwrap();
            assert_eq!(check_report(&path, false).is_ok(), may, "{content:.40}");
            assert_eq!(write_report(&report, &path, false).is_ok(), may, "{content:.40}");
            assert_eq!(std::fs::read_to_string(&path).unwrap() == content, !may);
            write_report(&report, &path, true).unwrap();
        }
    }

    #[test]
    fn recognised_format_name_matches() {
        assert_eq!(vlane_report::SCHEMA, vlane_client::sniff::REPORT);
    }
}
