//! A file system that can be frozen under an image: ext4 on a loop device.
//!
//! A file system that stays frozen would harm the whole machine. It is unfrozen at every end of the
//! test, and by a process of its own after two minutes.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test program uses its own part of this; tests may unwrap"
)]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::served::LIMIT;

/// Runs a program that has to succeed; what it printed.
pub fn run(program: &str, words: &[&str]) -> Result<String, String> {
    let output =
        Command::new(program).args(words).output().map_err(|e| format!("{program}: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(format!(
            "{program} {}: {}",
            words.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

/// ext4 on a loop device, in a file on the disk; frozen on request, and never when it is dropped.
pub struct Ext4 {
    _backing: TempDir,
    pub device: String,
    pub dir: TempDir,
    watchdog: Option<Child>,
}

impl Ext4 {
    pub fn new() -> Result<Ext4, String> {
        let backing = TempDir::with_prefix_in("vlane-stalled-", env!("CARGO_TARGET_TMPDIR"))
            .map_err(|e| e.to_string())?;
        let image = backing.path().join("ext4");
        std::fs::File::create(&image)
            .and_then(|file| file.set_len(64 << 20))
            .map_err(|e| e.to_string())?;
        let device = run("losetup", &["--find", "--show", image.to_str().unwrap()])?;
        let dir = TempDir::with_prefix("vlane-stalled-").unwrap();
        let made = Ext4 { _backing: backing, device, dir, watchdog: None };
        run("mkfs.ext4", &["-q", &made.device])?;
        run("mount", &[&made.device, made.at()])?;
        Ok(made)
    }

    pub fn at(&self) -> &str {
        self.dir.path().to_str().unwrap()
    }

    /// Unmounts it, which works only while no process has a file of it open, and mounts it again.
    pub fn remount(&mut self) -> Result<(), String> {
        run("umount", &[self.at()])?;
        run("mount", &[&self.device, self.at()]).map(drop)
    }

    pub fn freeze(&mut self) -> Result<(), String> {
        // First who ends it. Its own process group: Ctrl-C of the tests is not for it.
        let script = "trap '' INT HUP; sleep 120; exec fsfreeze -u \"$0\"";
        let mut watchdog = Command::new("sh");
        watchdog
            .args(["-c", script, self.at()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        std::os::unix::process::CommandExt::process_group(&mut watchdog, 0);
        self.watchdog = Some(watchdog.spawn().map_err(|e| e.to_string())?);
        run("fsfreeze", &["-f", self.at()]).map(drop)
    }

    pub fn unfreeze(&mut self) {
        let Some(mut watchdog) = self.watchdog.take() else { return };
        let _ = run("fsfreeze", &["-u", self.at()]);
        // Its `sleep` as well.
        let group = rustix::process::Pid::from_child(&watchdog);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = watchdog.wait();
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        self.unfreeze();
        let begin = Instant::now();
        // A killed process releases its files a moment later.
        while run("umount", &[self.at()]).is_err() && begin.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = run("losetup", &["--detach", &self.device]);
    }
}

/// Waits until something holds; if it never does, `log` is shown.
pub fn until(what: &str, log: &Path, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(
            begin.elapsed() < LIMIT,
            "never: {what}\n{}",
            std::fs::read_to_string(log).unwrap()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}
