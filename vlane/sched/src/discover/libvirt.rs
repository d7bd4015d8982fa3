//! libvirt's domains by name.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, ErrorKind, Result};

/// The pid of the QEMU of a running libvirt domain, from libvirt's own notes: the system's, or
/// those of this user's session.
///
/// # Errors
/// As [`pid_of_domain_in`].
pub fn pid_of_domain(name: &str) -> Result<u32> {
    let mut directories =
        vec![PathBuf::from("/run/libvirt/qemu"), PathBuf::from("/var/run/libvirt/qemu")];
    if let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR") {
        directories.push(PathBuf::from(runtime).join("libvirt/qemu/run"));
    }
    pid_of_domain_in(&directories, name)
}

/// As [`pid_of_domain`], with the directories to look into.
///
/// # Errors
/// [`ErrorKind::Invalid`]: no domain can be called that.
/// [`ErrorKind::Gone`]: none that is called that runs.
/// [`ErrorKind::Permission`], [`ErrorKind::Io`]: the note cannot be read.
pub fn pid_of_domain_in(directories: &[PathBuf], name: &str) -> Result<u32> {
    // libvirt refuses these names, too.
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\n', '\0']) {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("{name:?} cannot be a libvirt domain's name"),
        ));
    }
    for directory in directories {
        let path = directory.join(format!("{name}.pid"));
        match fs::read(&path) {
            Ok(bytes) => return parse(&path, &bytes),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                let kind = match error.kind() {
                    std::io::ErrorKind::PermissionDenied => ErrorKind::Permission,
                    _ => ErrorKind::Io,
                };
                return Err(Error::caused_by(
                    kind,
                    format!("{}: cannot be read", path.display()),
                    error,
                ));
            }
        }
    }
    let looked: Vec<_> =
        directories.iter().map(|directory| directory.display().to_string()).collect();
    Err(Error::new(
        ErrorKind::Gone,
        format!(
            "no libvirt domain {name:?} runs here (looked for {name}.pid in {})",
            looked.join(", ")
        ),
    ))
}

fn parse(path: &Path, bytes: &[u8]) -> Result<u32> {
    let pid = std::str::from_utf8(bytes)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .filter(|pid| *pid > 0);
    pid.ok_or_else(|| Error::new(ErrorKind::Protocol, format!("{}: holds no pid", path.display())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn domain_is_found_by_exact_name() {
        let directory = tempfile::tempdir().unwrap();
        let none = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        put("web 1.pid", "4711");
        put("db.pid", "4712\n");
        put("bad.pid", "47x");
        put("empty.pid", "");
        let directories = [none.path().to_owned(), directory.path().to_owned()];
        let find = |name: &str| pid_of_domain_in(&directories, name);
        assert_eq!((find("web 1").unwrap(), find("db").unwrap()), (4711, 4712));
        for (name, kind) in [
            ("other", ErrorKind::Gone),
            ("bad", ErrorKind::Protocol),
            ("empty", ErrorKind::Protocol),
            ("../db", ErrorKind::Invalid),
            ("..", ErrorKind::Invalid),
            ("", ErrorKind::Invalid),
        ] {
            assert_eq!(find(name).unwrap_err().kind(), kind, "{name}");
        }
    }
}
