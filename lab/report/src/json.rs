//! A report as a file: JSON, the page that holds it, or text. The name's ending chooses the written
//! form; each form can be read.

use std::path::Path;

use serde::Deserialize;

use crate::{Report, SCHEMA, html, lines, text};
use vlane_error::program::{Context, Error, ErrorKind, Result};

/// Columns of a report that is written to a text file.
const TEXT_WIDTH: usize = 110;

/// The part that is read first, to refuse other files with words that help.
#[derive(Deserialize)]
struct Head {
    schema: Option<String>,
}

impl Report {
    /// The report as JSON, as `docs/src/report-format.md` describes it; a table's row or a sample
    /// is one line. A figure that is not a number becomes `null`.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] if it cannot be written so.
    pub fn to_json(&self) -> Result<String> {
        let text = lines::to_string(self);
        Ok(text.context(ErrorKind::Format, || "the report cannot be written as JSON")? + "\n")
    }

    /// A report from its JSON, or from the page that holds it.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] if it is no report, or one of another version.
    pub fn from_json(text: &str) -> Result<Self> {
        let json = in_page(text).unwrap_or(text);
        let head: Head = serde_json::from_str(json)
            .context(ErrorKind::Format, || "not a report of vlane: no JSON object")?;
        let context = match head.schema.as_deref() {
            Some(SCHEMA) => {
                let report = serde_json::from_str(json);
                return report.context(ErrorKind::Format, || "a damaged report");
            }
            Some(other) => format!(
                "a report of the format `{other}`; this program reads `{SCHEMA}`: use the version \
                 of vlane that wrote it, or measure again"
            ),
            None => "not a report of vlane: it names no schema".to_owned(),
        };
        Err(Error::new(ErrorKind::Format, context))
    }

    /// Reads a report from a file: JSON or page.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the file cannot be read, else those of [`Report::from_json`].
    pub fn read(path: &Path) -> Result<Self> {
        let at = || path.display().to_string();
        let text = std::fs::read_to_string(path).context(ErrorKind::Io, at)?;
        Self::from_json(&text).map_err(|error| Error::caused_by(error.kind(), at(), error))
    }

    /// True if a file's content is a report in any form and of any version, which a new report may
    /// replace.
    pub fn is_one(content: &[u8]) -> bool {
        let Ok(text) = str::from_utf8(content) else { return false };
        let name = SCHEMA.split('/').next().unwrap_or(SCHEMA);
        is_json_of(in_page(text).unwrap_or(text).as_bytes(), name) || text::is_rendered(text)
    }

    /// The form that a file's name ends in: `.json`, `.html` (`.htm`), `.txt`.
    ///
    /// # Errors
    /// As [`Report::check_name`]; [`ErrorKind::Format`] if it cannot be written so.
    pub fn in_form_of(&self, path: &Path) -> Result<String> {
        form(path)?(self)
    }

    /// Says before anything is measured whether [`Report::in_form_of`] knows the form.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for another ending.
    pub fn check_name(path: &Path) -> Result<()> {
        form(path).map(drop)
    }
}

/// True if `content` is JSON of one of vlane's formats: an object whose `schema` begins with `name`
/// and a slash.
pub fn is_json_of(content: &[u8], name: &str) -> bool {
    let head = serde_json::from_slice::<Head>(content).ok().and_then(|head| head.schema);
    head.is_some_and(|schema| schema.strip_prefix(name).is_some_and(|rest| rest.starts_with('/')))
}

/// The function that writes the form that a file's name ends in.
fn form(path: &Path) -> Result<fn(&Report) -> Result<String>> {
    match path.extension().unwrap_or_default().to_string_lossy().to_lowercase().as_str() {
        "json" => Ok(Report::to_json),
        "html" | "htm" => Ok(html::page),
        "txt" => Ok(|report| Ok(text::render(report, TEXT_WIDTH))),
        _ => {
            let context = format!(
                "{}: a report can be written as .json, .html or .txt; end the name so",
                path.display()
            );
            Err(Error::new(ErrorKind::Usage, context))
        }
    }
}

/// The JSON inside a page.
fn in_page(text: &str) -> Option<&str> {
    let (_, after) =
        text.trim_start().starts_with('<').then(|| text.split_once(html::DATA.0)).flatten()?;
    after.split_once(html::DATA.1).map(|(json, _)| json)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
#[path = "json/tests.rs"]
mod tests;
