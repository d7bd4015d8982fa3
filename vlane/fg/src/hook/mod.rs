//! Code that a shell evaluates so that it rings the bell.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::dir::OF_ROOT;

/// A shell with a hook
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Shell {
    /// bash 4.4 and later
    Bash,
    /// zsh
    Zsh,
}

/// The text. Without a directory that is given: root's bell, and the user's own.
pub fn text(shell: Shell, dir: Option<&Path>) -> Result<String> {
    let dirs = match dir {
        Some(dir) => {
            let dir = dir.to_str().context("a state directory with a name that is no text")?;
            if dir.contains(['\'', '\n']) {
                bail!("a state directory with a quotation mark or a new line in its name");
            }
            format!("('{dir}')")
        }
        // For root they are one.
        None => format!(
            "({OF_ROOT}); if (( UID != 0 )); then \
             __vlane_fg_dirs+=(\"${{XDG_RUNTIME_DIR:-/run/user/$UID}}/vlane-fg\"); fi"
        ),
    };
    let template = match shell {
        Shell::Bash => include_str!("fg.bash"),
        Shell::Zsh => include_str!("fg.zsh"),
    };
    Ok(template.replace("@DIRS@", &dirs))
}
