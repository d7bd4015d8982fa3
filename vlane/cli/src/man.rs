//! `vlane man`: the man pages, one for each command, from the definitions of the commands.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use clap::builder::Resettable;
use clap_mangen::Man;

use crate::{Program, manual};

/// Write the man pages into a directory: vlane.1, vlane-serve.1 and so on
///
/// There is one page for each command. Older pages of vlane are replaced. Any other file with such
/// a name is kept, and reported as an error.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Directory, such as /usr/local/share/man/man1
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Writes.
///
/// # Errors
/// The directory is not there, a page cannot be written, or what is in its place is no page of
/// vlane's.
pub fn run(program: &Program, args: &ManArgs) -> Result<()> {
    if !args.dir.is_dir() {
        bail!("{}: there is no such directory; make it first", args.dir.display());
    }
    let mut pages = Vec::new();
    let mut command = (program.command)().disable_help_subcommand(true);
    command.build();
    collect(program, &command, "", &mut pages)?;
    let paths: Vec<_> = pages.into_iter().map(|(name, text)| (args.dir.join(name), text)).collect();
    // All are looked at before the first is written.
    paths.iter().try_for_each(|(path, _)| check(path))?;
    for (path, text) in &paths {
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    println!("{} man pages in {}", paths.len(), args.dir.display());
    Ok(())
}

/// The pages of a command and of those below it: file names and texts.
fn collect(
    program: &Program,
    command: &clap::Command,
    words: &str,
    pages: &mut Vec<(String, Vec<u8>)>,
) -> Result<()> {
    // The exit status has a section of its own.
    let page = Man::new(command.clone().after_help(Resettable::Reset)).manual("vlane");
    let mut text = Vec::new();
    page.render(&mut text).context("cannot make a man page")?;
    if let Some(more) = manual::of(program.pages, words) {
        text.extend(manual::sections(program.name, more).bytes());
    }
    pages.push((page.get_filename(), text));
    let shown = command.get_subcommands().filter(|below| !below.is_hide_set());
    shown.into_iter().try_for_each(|below| {
        collect(program, below, format!("{words} {}", below.get_name()).trim_start(), pages)
    })
}

/// An error if something that is no page of vlane's is in the place of one.
fn check(path: &Path) -> Result<()> {
    let is_page = |text: &[u8]| text.windows(b".TH vlane".len()).any(|words| words == b".TH vlane");
    match std::fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Ok(old) if is_page(&old) => Ok(()),
        Ok(_) => {
            bail!("{}: it is there, and no man page of vlane's; move it away first", path.display())
        }
        Err(error) => {
            Err(error).with_context(|| format!("{}: cannot be looked at", path.display()))
        }
    }
}
