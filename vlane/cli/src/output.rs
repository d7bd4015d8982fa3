//! Results of commands: files that they may replace, JSON and text.

use std::path::Path;

use anyhow::Result;
use clap::Args;
use vlane_client::Output;

/// Permission to replace files
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Overwrite {
    /// Replace existing files, but never a file in use or a device
    #[arg(long)]
    pub force: bool,
}

/// Gives a result that is no report as JSON: into a file that it may not replace without `--force`,
/// or to standard output.
pub fn give_json(path: &Path, json: &str, overwrite: Overwrite) -> Result<()> {
    match is_standard(path) {
        true => println!("{json}"),
        false => Output::new(path).force(overwrite.force).write(format!("{json}\n").as_bytes())?,
    }
    Ok(())
}

/// The same, and gives the text where the result is not on standard output already: also if its
/// file cannot be written.
pub fn give_json_or_text(
    path: Option<&Path>,
    json: &str,
    overwrite: Overwrite,
    text: &str,
) -> Result<()> {
    let given = path.map_or(Ok(()), |path| give_json(path, json, overwrite));
    if given.is_err() || !path.is_some_and(is_standard) {
        println!("{text}");
    }
    given
}

/// Says before the work whether [`give_json`] can write.
pub fn check_json(path: Option<&Path>, overwrite: Overwrite) -> Result<()> {
    match path.filter(|path| !is_standard(path)) {
        Some(path) => Ok(Output::new(path).force(overwrite.force).check()?),
        None => Ok(()),
    }
}

/// True if a file's name means standard output.
pub fn is_standard(path: &Path) -> bool {
    path == Path::new("-")
}
