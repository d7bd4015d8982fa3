//! Foreground work in the guest: mails that are written, one fsync after the other, and a program
//! that is launched with a cold cache, repeatedly. Runs inside the guest (`vlane together-job`), as
//! the foreground job of a shell, and reports in lines `RESULT key=value`.

use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::caches::job::mail;
use crate::express::root::Program;
use vlane_testbed::error::{Context, Error, ErrorKind, Result};

/// Parameters of the job.
#[derive(Debug, Clone)]
pub struct Job {
    /// The file system with the program; mails are written below it, too.
    pub dir: PathBuf,
    /// The launched program.
    pub program: Program,
    /// The readers' process.
    pub readers: u32,
    /// A file that grows by a byte for so much that was computed.
    pub computed: PathBuf,
    /// Time that does not count.
    pub ramp: Duration,
    /// Time that counts.
    pub time: Duration,
}

/// Results of the job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// Durations of the launches that began in the measured time, us.
    pub launches_us: Vec<u64>,
    /// Durations of the fsyncs that began in it, us.
    pub fsyncs_us: Vec<u64>,
    /// Bytes that the readers read, per second.
    pub read: f64,
    /// Units computed per second.
    pub computed: f64,
}

/// The time that counts.
#[derive(Debug, Clone, Copy)]
struct Window {
    from: Instant,
    until: Instant,
}

impl Window {
    /// Does something again and again until the window's end; what each one took that began in the
    /// window, us.
    fn repeat(self, mut one: impl FnMut() -> io::Result<Vec<Duration>>) -> io::Result<Vec<u64>> {
        let mut all = Vec::new();
        loop {
            let begin = Instant::now();
            if begin >= self.until {
                return Ok(all);
            }
            let took = one()?;
            if begin >= self.from {
                all.extend(
                    took.iter().map(|took| u64::try_from(took.as_micros()).unwrap_or(u64::MAX)),
                );
            }
        }
    }
}

impl Job {
    /// Launches the program once, on a cold cache.
    fn launch(&self) -> io::Result<Duration> {
        std::fs::write("/proc/sys/vm/drop_caches", "3")?;
        let line = format!("chroot {} {}", self.dir.display(), self.program.command());
        let mut command = Command::new("sh");
        command
            .args(["-c", &line])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let begin = Instant::now();
        let status = command.status()?;
        match status.success() {
            true => Ok(begin.elapsed()),
            false => Err(io::Error::other(format!("`{line}` ended with {status}"))),
        }
    }

    /// Bytes that the readers have read, and how much was computed.
    fn progress(&self) -> Result<(u64, u64)> {
        let path = format!("/proc/{}/io", self.readers);
        let text = std::fs::read_to_string(&path)
            .context(ErrorKind::Io, || format!("{path}: cannot be read"))?;
        let computed = std::fs::metadata(&self.computed).context(ErrorKind::Io, || {
            format!("{}: cannot be looked at", self.computed.display())
        })?;
        let read = read_bytes(&text)
            .ok_or_else(|| Error::new(ErrorKind::Format, format!("{path}: has no read_bytes")))?;
        Ok((read, computed.len()))
    }

    /// Runs the job. `mark` is called when the measured time begins, and when it ends.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if a file or a launch fails.
    pub fn run(&self, mut mark: impl FnMut(&str)) -> Result<Done> {
        let failed = |what: &'static str| move || format!("{}: {what}", self.dir.display());
        let spool = self.dir.join("spool-0");
        if spool.exists() {
            std::fs::remove_dir_all(&spool)
                .context(ErrorKind::Io, failed("old mails cannot be removed"))?;
        }
        let mut mail = mail(&self.dir).context(ErrorKind::Io, failed("mails cannot be made"))?;
        let from = Instant::now() + self.ramp;
        let window = Window { from, until: from + self.time };
        std::thread::scope(|scope| {
            let mails = scope.spawn(move || {
                window.repeat(|| {
                    let mut waits = Vec::new();
                    mail(&mut waits).map(|()| waits)
                })
            });
            let launches = scope.spawn(move || window.repeat(|| Ok(vec![self.launch()?])));
            let sleep = |until: Instant| {
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
                Instant::now()
            };
            let begin = sleep(window.from);
            mark("begin");
            let before = self.progress()?;
            let end = sleep(window.until);
            let after = self.progress()?;
            mark("end");
            let seconds = (end - begin).as_secs_f64();
            let joined = |thread: std::thread::ScopedJoinHandle<'_, io::Result<Vec<u64>>>, what| {
                let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("it panicked")));
                ended.context(ErrorKind::Io, failed(what))
            };
            Ok(Done {
                fsyncs_us: joined(mails, "mails cannot be written")?,
                launches_us: joined(launches, "the program cannot be launched")?,
                read: after.0.saturating_sub(before.0) as f64 / seconds,
                computed: after.1.saturating_sub(before.1) as f64 / seconds,
            })
        })
    }
}

/// `read_bytes` of `/proc/PID/io`.
fn read_bytes(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.trim().parse().ok())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Counts the starts in a window that begins after `wait`; false if the first one was late.
    fn counts_starts(wait: Duration) -> bool {
        let from = Instant::now() + wait;
        let window = Window { from, until: from + Duration::from_millis(1) };
        let (mut calls, mut is_early) = (0, false);
        let counted = window.repeat(|| {
            calls += 1;
            is_early |= Instant::now() < from;
            // The first one ends in the window, or after it; the second one would be over late.
            let until = if calls == 1 { from } else { window.until };
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            Ok(vec![Duration::from_micros(calls)])
        });
        let counted = counted.unwrap();
        if !is_early {
            return false;
        }
        assert!(!counted.contains(&1), "{counted:?}");
        assert_eq!(counted.len() as u64, calls - 1);
        true
    }

    #[test]
    fn only_starts_within_the_window_count() {
        // On a busy machine a later window has to do.
        assert!((0..9).any(|n| counts_starts(Duration::from_millis(40 << n))));
    }

    #[test]
    fn readers_bytes_come_from_read_bytes() {
        assert_eq!(read_bytes("rchar: 5\nread_bytes: 4096\nwrite_bytes: 7\n"), Some(4096));
        assert_eq!(read_bytes("rchar: 5\n"), None);
    }
}
