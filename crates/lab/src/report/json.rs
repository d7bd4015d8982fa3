//! A report as a file: JSON, the page that holds it, or text; written by its name's ending, read whatever it is.

use std::path::Path;

use serde::Deserialize;

use super::{Report, SCHEMA, html, text};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::output::{self, Output};
use crate::sniff::{Wanted, mistaken};

/// Columns of a report that is written to a text file.
const TEXT_WIDTH: usize = 110;

/// What is read first, to refuse a file that is something else with words that help.
#[derive(Deserialize)]
struct Head {
    schema: Option<String>,
}

impl Report {
    /// The report as JSON, as `docs/src/report-format.md` describes it. A figure that is not a number becomes `null`.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] if it cannot be written so.
    pub fn to_json(&self) -> Result<String> {
        let text = serde_json::to_string_pretty(self);
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
        match head.schema.as_deref() {
            Some(SCHEMA) => {}
            Some(other) => {
                let context = format!(
                    "a report of the format `{other}`; this program reads `{SCHEMA}`: use the version of vlane that wrote it, or measure again"
                );
                return Err(Error::new(ErrorKind::Format, context));
            }
            None => return Err(Error::new(ErrorKind::Format, "not a report of vlane: it names no schema")),
        }
        serde_json::from_str(json).context(ErrorKind::Format, || "a damaged report")
    }

    /// Reads a report from a file: JSON or page.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the file cannot be read, else those of [`Report::from_json`].
    pub fn read(path: &Path) -> Result<Self> {
        if let Some(words) = mistaken(path, Wanted::Report) {
            return Err(Error::new(ErrorKind::Format, words));
        }
        let at = || path.display().to_string();
        let text = std::fs::read_to_string(path).context(ErrorKind::Io, at)?;
        Self::from_json(&text).map_err(|error| Error::caused_by(error.kind(), at(), error))
    }

    /// Whether a file's content is a report in any form and of any version, which a new report may replace.
    pub fn is_one(content: &[u8]) -> bool {
        let Ok(text) = str::from_utf8(content) else { return false };
        let name = SCHEMA.split('/').next().unwrap_or(SCHEMA);
        output::is_json_of(in_page(text).unwrap_or(text).as_bytes(), name) || text::is_rendered(text)
    }

    /// Writes it in the form that the file's name ends in: `.json`, `.html` (`.htm`), `.txt`.
    ///
    /// The file appears whole or not at all. It replaces another report; with `force`, any file that nobody uses ([`Output`]).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for another ending or if there is something that must stay, [`ErrorKind::Io`] if it cannot be written.
    pub fn write_to(&self, path: &Path, force: bool) -> Result<()> {
        let text = match extension(path).as_str() {
            "json" => self.to_json()?,
            "html" | "htm" => html::page(self)?,
            "txt" => text::render(self, TEXT_WIDTH),
            _ => return Err(unknown(path)),
        };
        Self::output(path, force).write(text.as_bytes())
    }

    /// Says before anything is measured whether [`Report::write_to`] will have a form and a place for a file.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`], [`ErrorKind::Io`].
    pub fn check_path(path: &Path, force: bool) -> Result<()> {
        if !["json", "html", "htm", "txt"].contains(&extension(path).as_str()) {
            return Err(unknown(path));
        }
        Self::output(path, force).check()
    }

    fn output(path: &Path, force: bool) -> Output {
        Output::new(path).replacing(Self::is_one).force(force)
    }
}

fn extension(path: &Path) -> String {
    path.extension().unwrap_or_default().to_string_lossy().to_lowercase()
}

fn unknown(path: &Path) -> Error {
    let context =
        format!("{}: a report can be written as .json, .html or .txt; end the name so", path.display());
    Error::new(ErrorKind::Usage, context)
}

/// The JSON inside a page.
fn in_page(text: &str) -> Option<&str> {
    let (_, after) = text.trim_start().starts_with('<').then(|| text.split_once(html::DATA.0)).flatten()?;
    after.split_once(html::DATA.1).map(|(json, _)| json)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
#[path = "json/tests.rs"]
mod tests;
