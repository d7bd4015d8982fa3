//! A guest kernel's modules: which ones a guest needs, in the order in which they load.
//!
//! The dependencies are read from the modules themselves (`depends=` in `.modinfo`), not from
//! `modules.dep`. That file is made when a kernel is installed, and a kernel unpacked into the
//! cache has none.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::compressed;
use crate::error::{Error, ErrorKind, Result, io};

/// The modules of one kernel: a directory like `/lib/modules/6.1.0-56-cloud-amd64`.
#[derive(Debug, Clone)]
pub struct Modules {
    directory: PathBuf,
    files: BTreeMap<String, PathBuf>,
    /// None when the kernel's package does not say what is built in.
    built_in: Option<BTreeSet<String>>,
}

/// A module's name and its uncompressed content.
pub type Module = (String, Vec<u8>);

impl Modules {
    /// Reads the directory's index; the modules themselves are read when they are asked for.
    pub fn at(directory: impl Into<PathBuf>) -> Result<Self> {
        let directory = directory.into();
        let mut files = BTreeMap::new();
        index(&directory, &mut files).map_err(io(|| {
            format!("{}: the kernel's modules cannot be read", directory.display())
        }))?;
        let built_in = std::fs::read_to_string(directory.join("modules.builtin")).ok();
        let built_in = built_in
            .map(|list| list.lines().filter_map(|line| module_name(Path::new(line))).collect());
        Ok(Self { directory, files, built_in })
    }

    /// True if the kernel has this module, loadable or built in.
    pub fn has(&self, name: &str) -> bool {
        self.is_built_in(name) || self.files.contains_key(name)
    }

    fn is_built_in(&self, name: &str) -> bool {
        self.built_in.as_ref().is_some_and(|names| names.contains(name))
    }

    /// The wanted modules and what they depend on, in loading order. Built-in ones need no loading.
    pub fn closure(&self, wanted: &[&str]) -> Result<Vec<Module>> {
        let mut order = Vec::new();
        let mut seen = BTreeSet::new();
        for name in wanted {
            self.visit(name, &mut seen, &mut order)?;
        }
        Ok(order)
    }

    fn missing(&self, name: &str) -> Error {
        Error::new(
            ErrorKind::Missing,
            format!(
                "{}: the guest's kernel has no {name}, neither built in nor as a module; use \
                 another kernel",
                self.directory.display()
            ),
        )
    }

    fn visit(
        &self,
        name: &str,
        seen: &mut BTreeSet<String>,
        order: &mut Vec<Module>,
    ) -> Result<()> {
        if self.is_built_in(name) || !seen.insert(name.to_string()) {
            return Ok(());
        }
        let Some(path) = self.files.get(name) else {
            // With no list of what is built in, what is no module is taken to be: the guest will
            // tell.
            return if self.built_in.is_none() { Ok(()) } else { Err(self.missing(name)) };
        };

        let content =
            std::fs::read(path).map_err(io(|| format!("{}: cannot be read", path.display())))?;
        let content = compressed::unpack(&content)
            .map_err(|why| Error::new(ErrorKind::Format, format!("{}: {why}", path.display())))?;
        for dependency in depends(&content) {
            self.visit(&dependency, seen, order)?;
        }
        order.push((name.to_string(), content));
        Ok(())
    }
}

fn index(directory: &Path, files: &mut BTreeMap<String, PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            index(&entry.path(), files)?;
        } else if let Some(name) = module_name(&entry.path()) {
            files.insert(name, entry.path());
        }
    }
    Ok(())
}

/// `virtio_blk` for `.../virtio-blk.ko.xz`: the kernel holds `-` and `_` for the same.
fn module_name(path: &Path) -> Option<String> {
    let (name, packing) = path.file_name()?.to_str()?.split_once(".ko")?;
    matches!(packing, "" | ".xz" | ".zst" | ".gz").then(|| name.replace('-', "_"))
}

/// The names in a module's `depends=`.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|w| w == KEY) else { return Vec::new() };
    let value = &module[at + KEY.len()..];
    let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
    let value = String::from_utf8_lossy(&value[..end]);
    value.split(',').filter(|n| !n.is_empty()).map(|n| n.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn module(directory: &Path, file: &str, depends: &str) {
        let content = format!("\x7fELF....license=GPL\0depends={depends}\0name=x\0");
        std::fs::write(directory.join(file), content).unwrap();
    }

    fn names(modules: &[Module]) -> Vec<&str> {
        modules.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn dependencies_load_first_and_once() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("kernel/drivers");
        std::fs::create_dir_all(&deep).unwrap();
        module(&deep, "virtio.ko", "virtio_ring");
        module(&deep, "virtio_ring.ko", "");
        module(&deep, "virtio_pci.ko", "virtio-pci-modern-dev,virtio,virtio_ring");
        module(&deep, "virtio-pci-modern-dev.ko", "");
        module(&deep, "virtio_blk.ko", "virtio,virtio_ring");
        std::fs::write(dir.path().join("modules.builtin"), "kernel/fs/ext4/ext4.ko\n").unwrap();
        let modules = Modules::at(dir.path()).unwrap();
        let closure = modules.closure(&["virtio_pci", "virtio_blk", "ext4"]).unwrap();
        let expected =
            ["virtio_pci_modern_dev", "virtio_ring", "virtio", "virtio_pci", "virtio_blk"];
        assert_eq!(names(&closure), expected);
        assert!(modules.has("ext4") && !modules.has("xfs"));
        let error = modules.closure(&["xfs"]).unwrap_err();
        assert!(error.to_string().contains("xfs"), "{error}");

        std::fs::remove_file(dir.path().join("modules.builtin")).unwrap();
        let unlisted = Modules::at(dir.path()).unwrap();
        assert_eq!(names(&unlisted.closure(&["virtio_ring", "xfs"]).unwrap()), ["virtio_ring"]);
    }
}
