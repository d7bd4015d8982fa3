//! `cargo xtask bpf`: compiles the BPF programs into the objects that the repository has, so that
//! other builds do not need clang.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use twox_hash::XxHash3_64;

/// A program: its folder, its name without endings, and all of its source in the order in which it
/// is hashed.
struct Program {
    folder: &'static str,
    name: &'static str,
    sources: &'static [&'static str],
}

const PROGRAMS: [Program; 2] = [
    Program {
        folder: "vlane/sched/src/ext/bpf",
        name: "loan",
        sources: &["kernel.h", "loan.bpf.c", "state.h"],
    },
    Program { folder: "vlane/watch/src/bpf", name: "watch", sources: &["kernel.h", "watch.bpf.c"] },
];

/// Compiles, strips, and notes from which source.
pub(crate) fn compile(root: &Path) -> Result<()> {
    PROGRAMS.iter().try_for_each(|program| compile_one(root, program))
}

fn compile_one(root: &Path, program: &Program) -> Result<()> {
    let folder = root.join(program.folder);
    let (source, object) = (format!("{}.bpf.c", program.name), format!("{}.bpf.o", program.name));
    // Types (BTF) are made from debug information. Its paths are relative, so that the object is
    // the same wherever it is made.
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
        &source,
        "-o",
        &object,
    ];
    run(&folder, &["clang-19", "clang"], &clang)?;
    run(&folder, &["llvm-strip-19", "llvm-strip"], &["-g", &object])?;
    let mut text = Vec::new();
    for name in program.sources {
        let path = folder.join(name);
        text.extend(std::fs::read(&path).with_context(|| format!("{}", path.display()))?);
    }
    let note = format!("{:016x}\n", XxHash3_64::oneshot(&text));
    std::fs::write(folder.join(format!("{object}.source")), note)
        .context("the note of the source")?;
    println!("{}", folder.join(object).display());
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
