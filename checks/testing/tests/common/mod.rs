//! The repository's own files, for the tests that read them.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folders of the product's crates, the lab's, and those of checks.
pub const HOUSES: [&str; 3] = ["vlane", "lab", "checks"];

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The folder of a crate, by its package's name with or without "vlane-".
pub fn home(name: &str) -> PathBuf {
    let folders = match name {
        "vlane" => vec!["vlane/cli".to_owned()],
        "vlane-lab" | "lab" => vec!["lab/cli".to_owned()],
        name => {
            let name = name.trim_start_matches("vlane-");
            HOUSES.iter().map(|house| format!("{house}/{name}")).collect()
        }
    };
    let mut homes = folders.iter().map(|folder| root().join(folder));
    homes.find(|home| home.is_dir()).unwrap_or_else(|| panic!("there is no crate {name}"))
}

/// True for a file of a crate, by its place in the repository.
pub fn is_of_a_crate(name: &str) -> bool {
    name.split_once('/').is_some_and(|(house, _)| HOUSES.contains(&house))
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
