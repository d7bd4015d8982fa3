//! `cargo xtask structure`: makes the parts of the architecture's page that come from the code.
//! These are the picture of the crates, and the list of the data path's files.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

use crate::structure::{PICTURE, draw};
use crate::tidy::data_path;
use crate::tidy::source::{self, Source};

/// The page with the list.
pub(crate) const PAGE: &str = "docs/src/architecture.md";
/// The lines around the list.
const BEGIN: &str = "<!-- made by cargo xtask structure -->\n";
const END: &str = "<!-- end of the made part -->\n";

/// Draws the picture and writes the list again.
///
/// # Errors
/// If the sources cannot be read, the page lacks the place of the list, or a file cannot be
/// written.
pub(crate) fn run(root: &Path) -> Result<()> {
    let files = source::files(root)?;
    let sources = source::sources(&files)?;
    let page = page(&files, &sources).with_context(|| format!("{PAGE}: no `{}`", BEGIN.trim()))?;
    for (name, text) in [(PICTURE, draw(&files, &sources)), (PAGE, page)] {
        std::fs::write(root.join(name), text).context(name)?;
        println!("{name}");
    }
    Ok(())
}

/// The page, as it should be; none if it lacks the place of the list.
pub(crate) fn page(files: &BTreeMap<String, String>, sources: &[Source]) -> Option<String> {
    let (before, rest) = files.get(PAGE)?.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    let mut crates: BTreeMap<&str, (usize, Vec<&str>)> = BTreeMap::new();
    for (file, functions) in data_path::on_the_way(files, sources) {
        let Some((home, file)) = file.split_once("/src/") else { continue };
        let (count, names) = crates.entry(home).or_default();
        *count += functions;
        names.push(file);
    }
    let mut list = String::from("| crate | functions | files |\n|---|--:|---|\n");
    for (home, (count, names)) in crates {
        let _ = writeln!(list, "| `{home}` | {count} | {} |", names.join(", "));
    }
    Some(format!("{before}{BEGIN}\n{list}\n{END}{after}"))
}
