//! Real programs on a file system of their own: this machine's, copied with their libraries and
//! what they read, into an ext4 image.
//!
//! It needs no root and takes seconds: mke2fs fills the file system from a directory.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;
use tempfile::TempDir;
use vlane_guest::{Host, libraries_in, run};

use super::word;
use vlane_testbed::{At, Context, Error, ErrorKind, Fail, Result};

/// Copying and mke2fs.
const LIMIT: Duration = Duration::from_secs(300);
/// Free space of the file system, and its own tables.
const SPARE: u64 = 64 << 20;

/// Source file that gcc compiles, and vim shows.
const HELLO: &str = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\nint \
                     main(void)\n{\n    puts(\"hello\");\n    return EXIT_SUCCESS;\n}\n";
/// Files that gcc links, by the names that it knows them by.
const LINKED: &str = "crt1.o Scrt1.o crti.o crtn.o crtbegin.o crtbeginS.o crtend.o crtendS.o \
                      libgcc.a libgcc_s.so libgcc_s.so.1 libc.so libc_nonshared.a liblto_plugin.so";

/// A program that is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Program {
    /// An interpreter that imports some of its library.
    Python3,
    /// A short history, with the files of each commit.
    Git,
    /// A query of a small database.
    Sqlite3,
    /// Compiles and links a small program.
    Gcc,
    /// Opens a file with highlighted syntax, and ends.
    Vim,
}

impl Program {
    /// Its name.
    pub fn name(self) -> String {
        word(self)
    }

    /// The typed command, on the file system that [`Root`] makes.
    pub fn command(self) -> &'static str {
        match self {
            Self::Python3 => "/usr/bin/python3 -c 'import argparse, json, logging, urllib.request'",
            Self::Git => {
                "/usr/bin/git -c safe.directory=/data/repository -C /data/repository log --stat"
            }
            Self::Sqlite3 => {
                "/usr/bin/sqlite3 -readonly /data/database 'select count(*), sum(length(word)) \
                 from words where number % 7 = 0'"
            }
            Self::Gcc => "/usr/bin/gcc -O2 -o /tmp/hello /data/hello.c",
            Self::Vim => {
                "/usr/bin/vim -i NONE -n --not-a-term -c 'syntax on' -c 'edit /data/hello.c' -c \
                 'quitall!'"
            }
        }
    }

    /// Where it is on this machine: the system's own, even if another one is in PATH before it.
    fn find(self, host: &Host) -> Result<PathBuf> {
        let usual = Path::new("/usr/bin").join(self.name());
        if usual.exists() { Ok(usual) } else { Ok(host.program(&self.name())?) }
    }
}

/// The file system with programs.
#[derive(Debug)]
pub struct Root {
    /// The image.
    pub image: PathBuf,
    /// Bytes of files on it.
    pub bytes: u64,
    /// The programs' versions.
    pub versions: Vec<String>,
    _dir: Option<TempDir>,
}

/// A directory that becomes the file system.
struct Staging<'a> {
    host: &'a Host,
    dir: PathBuf,
}

impl Root {
    /// Makes it.
    ///
    /// # Errors
    /// [`ErrorKind::Missing`] without a program, [`ErrorKind::Io`] if files cannot be copied,
    /// [`ErrorKind::Process`] if a program that is asked about itself fails.
    pub fn find(host: &Host, programs: &[Program]) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("vlane-express-root-").tempdir();
        let dir = dir.context(ErrorKind::Io, || "cannot make a directory for programs")?;
        let staging = Staging { host, dir: dir.path().join("root") };
        staging.begin()?;
        for program in programs {
            staging.add(*program)?;
        }
        // Without it the loader looks at every directory that it knows.
        let cache = Path::new("/etc/ld.so.cache");
        if cache.is_file() {
            staging.file(cache)?;
        }
        vlane_report::machine::images_in(dir.path());
        let image = dir.path().join("root.img");
        let said = tell(Command::new(host.program("du")?).arg("-sb").arg(&staging.dir))?;
        let bytes: Option<u64> = said.split_whitespace().next().and_then(|word| word.parse().ok());
        let bytes =
            bytes.ok_or_else(|| Error::new(ErrorKind::Process, format!("du says {said}")))?;
        // Small files take a block each.
        let size = (bytes + bytes / 4 + SPARE).next_multiple_of(1 << 20);
        let file = fs::File::create(&image).and_then(|file| file.set_len(size));
        file.at(&image, "cannot be made")?;
        let mut command = Command::new(host.program("mkfs.ext4")?);
        command
            .args(["-q", "-F", "-b", "4096", "-m", "0", "-O", "^has_journal", "-d"])
            .arg(&staging.dir)
            .arg(&image);
        tell(&mut command)?;
        fs::remove_dir_all(&staging.dir).context(ErrorKind::Io, || "cannot remove copied files")?;
        let version = |program: &Program| {
            let version = vlane_report::machine::version_of(program.find(host).ok()?.to_str()?)?;
            Some(format!("{} {version}", program.name()))
        };
        let versions = programs.iter().filter_map(version).collect();
        Ok(Self { image, bytes, versions, _dir: Some(dir) })
    }
}

/// Runs a program; what it printed.
fn tell(command: &mut Command) -> Result<String> {
    let output = run(command, LIMIT)?;
    if output.status.success() {
        return Ok(output.text);
    }
    let text = format!("{command:?} failed ({}): {}", output.status, output.text.trim());
    ErrorKind::Process.fail(text)
}

/// Where a file of this machine is on the file system: there `/lib` and `/bin` are links into
/// `/usr`.
fn inside(path: &Path) -> PathBuf {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => parts.push(name),
            Component::ParentDir => drop(parts.pop()),
            _ => {}
        }
    }
    let moved = parts.first().is_some_and(|first| LINKS.iter().any(|link| first == link));
    let prefix: PathBuf = if moved { "usr".into() } else { PathBuf::new() };
    parts.into_iter().fold(prefix, |path, part| path.join(part))
}

/// Directories that are of no use to a launch.
const USELESS: [&str; 5] = ["test", "tests", "doc", "tutor", "idlelib"];
/// Directories that are links into `/usr`.
const LINKS: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

impl Staging<'_> {
    fn begin(&self) -> Result<()> {
        for name in LINKS {
            let (link, to) = (self.dir.join(name), Path::new("usr").join(name));
            self.directory(&to)?;
            std::os::unix::fs::symlink(&to, &link).at(&link, "cannot be made")?;
        }
        for name in ["proc", "dev", "tmp", "root", "data", "etc"] {
            self.directory(Path::new(name))?;
        }
        self.write("data/hello.c", HELLO)?;
        self.write("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
    }

    fn directory(&self, path: &Path) -> Result<()> {
        fs::create_dir_all(self.dir.join(path)).at(path, "cannot be made")
    }

    fn write(&self, path: &str, text: &str) -> Result<()> {
        fs::write(self.dir.join(path), text)
            .context(ErrorKind::Io, || format!("{path}: cannot be written"))
    }

    /// Copies a file of this machine; links are followed.
    fn file(&self, from: &Path) -> Result<()> {
        let to = self.dir.join(inside(from));
        if to.exists() {
            return Ok(());
        }
        if let Some(above) = to.parent() {
            fs::create_dir_all(above).at(from, "cannot be copied")?;
        }
        fs::copy(from, &to).at(from, "cannot be copied")?;
        // Python compares the time of a module with that of its compiled form.
        let times =
            fs::metadata(from).and_then(|meta| meta.modified()).at(from, "cannot be copied")?;
        let written = fs::OpenOptions::new().append(true).open(&to);
        // A file that may not be written keeps the time of now.
        if let Ok(file) = written {
            file.set_modified(times).at(from, "cannot be copied")?;
        }
        Ok(())
    }

    /// Copies a directory of this machine and all below it, but for what is of no use to a launch.
    fn tree(&self, from: &Path) -> Result<()> {
        for entry in fs::read_dir(from).at(from, "cannot be read")? {
            let path = entry.at(from, "cannot be read")?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match fs::metadata(&path) {
                Ok(meta) if meta.is_dir() && !USELESS.contains(&name.as_str()) => {
                    self.tree(&path)?;
                }
                Ok(meta) if meta.is_file() => {
                    self.file(&path)?;
                    if name.ends_with(".so") {
                        self.libraries_of(&path)?;
                    }
                }
                // Sockets, and dangling links.
                _ => {}
            }
        }
        Ok(())
    }

    /// A program, with its libraries.
    fn program(&self, path: &Path) -> Result<()> {
        self.file(path)?;
        self.libraries_of(path)
    }

    fn libraries_of(&self, path: &Path) -> Result<()> {
        let output = run(Command::new(self.host.program("ldd")?).arg(path), LIMIT)?;
        // A library missing here is missing to this machine's program, too; a static program has
        // none.
        libraries_in(&output.text).iter().try_for_each(|library| self.file(library))
    }

    fn add(&self, program: Program) -> Result<()> {
        let path = program.find(self.host)?;
        self.program(&path)?;
        let said = |words: &[&str]| -> Result<PathBuf> {
            Ok(PathBuf::from(tell(Command::new(&path).args(words))?.trim()))
        };
        match program {
            Program::Python3 => {
                self.tree(&said(&[
                    "-c",
                    "import sysconfig; print(sysconfig.get_paths()['stdlib'])",
                ])?)?;
            }
            Program::Git => self.repository(&path)?,
            Program::Sqlite3 => self.database(&path)?,
            Program::Gcc => {
                for name in ["cc1", "collect2", "as", "ld"] {
                    let found = said(&[&format!("-print-prog-name={name}")])?;
                    let found =
                        if found.is_absolute() { found } else { self.host.program(name)? };
                    self.program(&found)?;
                }
                for name in LINKED.split(' ') {
                    let found = said(&[&format!("-print-file-name={name}")])?;
                    // gcc calls a missing file by its bare name.
                    if found.is_absolute() && found.exists() {
                        self.file(&found)?;
                        if name.starts_with("liblto") {
                            self.libraries_of(&found)?;
                        }
                    }
                }
                let hello = self.dir.join("data/hello.c");
                // Headers include others when it optimizes: as it is typed.
                let rules = tell(Command::new(&path).args(["-O2", "-M"]).arg(hello))?;
                for header in rules.split_whitespace().filter(|word| word.ends_with(".h")) {
                    self.file(Path::new(header))?;
                }
            }
            Program::Vim => {
                for dir in ["/usr/share/vim", "/etc/vim"] {
                    if Path::new(dir).is_dir() {
                        self.tree(Path::new(dir))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// A history of twelve commits.
    fn repository(&self, git: &Path) -> Result<()> {
        let dir = self.dir.join("data/repository");
        let call = |words: &[&str]| {
            let mut command = Command::new(git);
            // None of the user's own settings.
            command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
            for who in ["AUTHOR", "COMMITTER"] {
                command.env(format!("GIT_{who}_NAME"), "vlane");
                command.env(format!("GIT_{who}_EMAIL"), "vlane@localhost");
            }
            tell(command.arg("-C").arg(&dir).args(words)).map(drop)
        };
        fs::create_dir_all(&dir).context(ErrorKind::Io, || "cannot make a repository")?;
        call(&["init", "-q", "-b", "main"])?;
        for commit in 0..12 {
            for file in 0..4 {
                let text = format!("{commit}\n{HELLO}").repeat(file + 1);
                self.write(&format!("data/repository/file-{file}"), &text)?;
            }
            call(&["add", "."])?;
            call(&["commit", "-q", "-m", &format!("commit {commit}")])?;
        }
        Ok(())
    }

    /// A table of twenty thousand rows.
    fn database(&self, sqlite3: &Path) -> Result<()> {
        let path = self.dir.join("data/database");
        let fill = "create table words (number integer primary key, word text); with recursive \
                    n(i) as (select 1 union all select i + 1 from n where i < 20000) insert into \
                    words select i, printf('word %d of the table', i) from n;";
        tell(Command::new(sqlite3).arg(&path).arg(fill)).map(drop)
    }
}

#[cfg(test)]
impl Root {
    /// One without anything, for reports.
    pub(crate) fn empty() -> Self {
        Self { image: PathBuf::new(), bytes: 0, versions: Vec::new(), _dir: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linked_directories_are_found_below_usr() {
        for (outside, expected) in [
            ("/lib64/ld-linux-x86-64.so.2", "usr/lib64/ld-linux-x86-64.so.2"),
            ("/usr/lib/gcc/x/12/../../../x/crt1.o", "usr/lib/x/crt1.o"),
            ("/usr/bin/git", "usr/bin/git"),
            ("/etc/vim/vimrc", "etc/vim/vimrc"),
        ] {
            assert_eq!(inside(Path::new(outside)), Path::new(expected));
        }
    }

    #[test]
    fn programs_are_typed_by_their_paths() {
        for program in Program::value_variants() {
            assert!(program.command().starts_with(&format!("/usr/bin/{} ", program.name())));
        }
    }
}
