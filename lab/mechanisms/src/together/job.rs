//! Foreground work in the guest: mails that are written, one fsync after the other, and a program
//! that is launched with a cold cache, repeatedly. Runs inside the guest (`vlane together-job`), as
//! the foreground job of a shell, and reports in lines `RESULT key=value`.

use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};
use vlane::values;

use super::PROGRAM;
use crate::caches::job::{MAILS, Mail, ns_between, repeat};
use crate::caches::transferred;
use vlane_testbed::{At, Context, Error, ErrorKind, Result};

/// Parameters of the job.
#[derive(Debug, Clone, Args)]
pub struct Job {
    /// File system with the program, for the mails
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Process ID of the readers
    #[arg(long, value_name = "PID", value_parser = values::whole::<u32>(1..))]
    readers: u32,
    /// File that grows by a byte for each unit of computing
    #[arg(long, value_name = "FILE")]
    computed: PathBuf,
    /// Warm-up time
    #[arg(long, value_name = "TIME", value_parser = values::time_or_none)]
    ramp: Duration,
    /// Measured time
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    time: Duration,
    /// Time between the beginnings of two launches; without it one follows the other
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    launch_every: Option<Duration>,
    /// The same of mails
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    mail_every: Option<Duration>,
    /// Number after each result's name
    #[arg(long, value_name = "N", value_parser = values::whole::<u64>(0..))]
    mark: u64,
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

type Repeated = io::Result<Vec<u64>>;

/// Repeats a step until it is time, and returns the waits that began in the window, in ns.
///
/// With `every` the steps are due at fixed moments (open loop). A step that begins late waits from
/// the moment at which it was due.
fn paced(
    every: Option<Duration>,
    from: Instant,
    until: Instant,
    mut step: impl FnMut(&mut Vec<u64>) -> io::Result<()>,
) -> Repeated {
    let Some(every) = every else { return Ok(repeat(from, until, step)?.1) };
    let (mut due, mut all) = (from, Vec::new());
    while due < until {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let (late, first) = (ns_between(due, Instant::now()), all.len());
        step(&mut all)?;
        all[first..].iter_mut().take(1).for_each(|wait| *wait += late);
        due += every;
    }
    Ok(all)
}

impl Job {
    /// Launches the program once, on a cold cache; how long it took, in ns.
    fn launch(&self) -> io::Result<u64> {
        std::fs::write("/proc/sys/vm/drop_caches", "3")?;
        let line = format!("chroot {} {}", self.dir.display(), PROGRAM.command());
        let mut command = Command::new("sh");
        command.args(["-c", &line]).stdin(Stdio::null()).stdout(Stdio::null());
        let begin = Instant::now();
        let status = command.stderr(Stdio::null()).status()?;
        match status.success() {
            true => Ok(ns_between(begin, Instant::now())),
            false => Err(io::Error::other(format!("`{line}` ended with {status}"))),
        }
    }

    /// Bytes that the readers have read, and how much was computed.
    fn progress(&self) -> Result<(u64, u64)> {
        let computed =
            std::fs::metadata(&self.computed).at(&self.computed, "cannot be looked at")?;
        Ok((transferred(self.readers)?.0, computed.len()))
    }

    /// Runs the job, and tells when the measured time begins, when it ends, and of the results.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if a file or a launch fails.
    pub fn run(&self) -> Result<()> {
        let failed = |what: &'static str| move || format!("{}: {what}", self.dir.display());
        let spool = self.dir.join("spool-0");
        if spool.exists() {
            std::fs::remove_dir_all(&spool)
                .context(ErrorKind::Io, failed("old mails cannot be removed"))?;
        }
        let mail =
            Mail::new(&self.dir, 0, MAILS).context(ErrorKind::Io, failed("mails cannot be made"));
        let mut mail = mail?;
        let from = Instant::now() + self.ramp;
        let until = from + self.time;
        let done = std::thread::scope(|scope| {
            let mails =
                scope.spawn(move || paced(self.mail_every, from, until, |waits| mail.step(waits)));
            let launches = scope.spawn(move || {
                paced(self.launch_every, from, until, |times| {
                    self.launch().map(|time| times.push(time))
                })
            });
            let look = |moment, at: Instant| {
                std::thread::sleep(at.saturating_duration_since(Instant::now()));
                println!("RESULT {moment}.{}=1", self.mark);
                Ok::<_, Error>((Instant::now(), self.progress()?))
            };
            let (begin, before) = look("begin", from)?;
            let (end, after) = look("end", until)?;
            let seconds = (end - begin).as_secs_f64();
            let joined = |thread: ScopedJoinHandle<'_, Repeated>, what| {
                let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("it panicked")));
                let times = ended.context(ErrorKind::Io, failed(what))?;
                Ok::<_, Error>(times.iter().map(|ns| ns / 1000).collect())
            };
            Ok::<_, Error>(Done {
                fsyncs_us: joined(mails, "mails cannot be written")?,
                launches_us: joined(launches, "the program cannot be launched")?,
                read: after.0.saturating_sub(before.0) as f64 / seconds,
                computed: after.1.saturating_sub(before.1) as f64 / seconds,
            })
        })?;
        let done = serde_json::to_string(&done)
            .context(ErrorKind::Format, || "the results cannot be written")?;
        println!("RESULT done.{}={done}", self.mark);
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn late_step_waits_from_its_due_moment() {
        let every = Duration::from_millis(20);
        let from = Instant::now();
        let mut steps = 0;
        let waits = paced(Some(every), from, from + every * 5, |waits| {
            steps += 1;
            // The first one makes the second one late, and each has a second wait.
            std::thread::sleep(if steps == 1 { every * 2 } else { Duration::ZERO });
            waits.extend([1, 2]);
            Ok(())
        });
        let waits = waits.unwrap();
        assert_eq!((steps, waits.len()), (5, 10), "as many as are due");
        let late = u64::try_from(every.as_nanos()).unwrap();
        assert!(waits[2] >= late, "{waits:?}");
        assert!(waits.iter().skip(1).step_by(2).all(|second| *second == 2), "{waits:?}");
    }
}
