//! `cargo xtask bpf`: compiles the BPF programs into the objects that the repository has, so that nobody else needs clang.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use twox_hash::XxHash3_64;

const FOLDER: &str = "crates/sched/src/ext/bpf";
const SOURCES: [&str; 3] = ["account.h", "kernel.h", "loan.bpf.c"];

/// Compiles, strips, and notes from which source.
pub(crate) fn compile(root: &Path) -> Result<()> {
    let folder = root.join(FOLDER);
    // Debug information is what types (BTF) are made from; the paths in it are relative, so that the object is the same
    // wherever it is made.
    let clang = [
        "-O2",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-unused-parameter",
        "-Wno-sign-compare",
        "-Wno-missing-field-initializers",
        "-target",
        "bpf",
        "-mcpu=v3",
        "-fdebug-compilation-dir=.",
        "-c",
        "loan.bpf.c",
        "-o",
        "loan.bpf.o",
    ];
    run(&folder, &["clang-19", "clang"], &clang)?;
    run(&folder, &["llvm-strip-19", "llvm-strip"], &["-g", "loan.bpf.o"])?;
    let mut source = Vec::new();
    for name in SOURCES {
        let path = folder.join(name);
        source.extend(std::fs::read(&path).with_context(|| format!("{}", path.display()))?);
    }
    let note = format!("{:016x}\n", XxHash3_64::oneshot(&source));
    std::fs::write(folder.join("loan.bpf.o.source"), note).context("the note of the source")?;
    println!("{}", folder.join("loan.bpf.o").display());
    Ok(())
}

/// Runs the first of some names that is there.
fn run(folder: &Path, names: &[&str], args: &[&str]) -> Result<()> {
    for name in names {
        match Command::new(name).args(args).current_dir(folder).status() {
            Ok(status) if status.success() => return Ok(()),
            Ok(status) => bail!("{name} ended with {status}"),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(e).with_context(|| format!("{name} cannot be started")),
        }
    }
    bail!("none of {} is there; on Debian: apt-get install clang-19 llvm-19", names.join(", "))
}
