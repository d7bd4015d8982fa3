//! The repository's own files, for the tests that read them.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::Command;

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The repository's own files and what is in them; binary ones are left out.
pub fn files() -> Result<Vec<(String, String)>, String> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .map_err(|error| format!("git: {error}"))?;
    if !listed.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&listed.stderr)));
    }
    let names = String::from_utf8(listed.stdout).unwrap();
    let read =
        |name: &str| Some((name.to_owned(), std::fs::read_to_string(root().join(name)).ok()?));
    Ok(names.split_terminator('\0').filter_map(read).collect())
}
