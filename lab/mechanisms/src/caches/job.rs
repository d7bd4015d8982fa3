//! Jobs of a guest that write, and wait until the data are durable. They run inside the guest
//! (`vlane caches-job`), and report in lines `RESULT key=value`.

mod kv;

use fastrand::Rng;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use vlane::values;

use super::plan::Job;
use vlane_report::nearest_rank;
use vlane_testbed::{Context, Error, ErrorKind, Result};

/// Threads of the mail server, as filebench's varmail has.
pub(crate) const MAIL_THREADS: u64 = 16;
/// Mails in the spool of each: 1,000 in all.
pub(crate) const MAILS: u64 = 64;
/// The largest mail, and the largest addition to one: 16K on average, as varmail's are.
pub(crate) const MAIL: u64 = 32 << 10;
/// Rows of each table of the databases.
const ROWS: u64 = 10_000;
/// Bytes of a record of the key-value log. LevelDB has 7 of its log, 12 of a batch, 16 of a key and
/// 81 for a value of 100 that is half compressed, rounded.
const RECORD: usize = 116;
/// Bytes of a log.
const LOG: usize = 4 << 20;
/// Logs that are kept.
const LOGS: u64 = 4;
/// Bytes of a backup's writes, and of its files.
const BACKUP: (usize, usize) = (1 << 20, 64 << 20);

/// Does something once; adds how long each wait for the storage took, in ns.
pub(super) type Step = Box<dyn FnMut(&mut Vec<u64>) -> io::Result<()> + Send>;

/// Parameters of a guest's job.
#[derive(Debug, Args)]
pub struct GuestJob {
    /// Job
    #[arg(value_enum, hide_possible_values = true)]
    job: Job,
    /// Directory for the job's files
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Warm-up time
    #[arg(long, value_name = "TIME", value_parser = values::time_or_none)]
    ramp: Duration,
    /// Measured time
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    time: Duration,
    /// Mails of each thread of the mail server
    #[arg(long, value_name = "N", default_value_t = MAILS,
        value_parser = values::whole::<u64>(1..=1 << 20))]
    mails: u64,
}

/// Results of the writer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Done {
    /// Operations per second.
    pub per_second: f64,
    /// 99th percentile of what each waited for, in us.
    pub p99_us: f64,
}

impl Done {
    /// Of so many operations in a time, and of the times in ns that were waited.
    pub(super) fn of(count: u64, mut ns: Vec<u64>, time: Duration) -> Self {
        ns.sort_unstable();
        let p99_us = nearest_rank(&ns, 990).map_or(f64::NAN, |ns| ns as f64 / 1e3);
        Self { per_second: count as f64 / time.as_secs_f64().max(1e-9), p99_us }
    }
}

pub(super) fn needs_sqlite(job: Job) -> bool {
    matches!(job, Job::OltpRollback | Job::OltpWal | Job::Graph | Job::Mobile)
}

impl GuestJob {
    fn steps(&self) -> io::Result<Vec<Step>> {
        let dir = &self.dir;
        Ok(vec![match self.job {
            Job::Mail => {
                let step = |mut mail: Mail| -> Step { Box::new(move |waits| mail.step(waits)) };
                let new = |thread| Mail::new(dir, thread, self.mails).map(step);
                return (0..MAIL_THREADS).map(new).collect();
            }
            Job::Fill => fill(dir.clone(), (RECORD, LOG), true)?,
            Job::Backup => fill(dir.clone(), BACKUP, false)?,
            Job::KvCompact => kv::compact(dir.clone())?,
            Job::Plain => kv::plain(dir)?,
            Job::Commits | Job::MailReplay => {
                let text = "a job of the driver, not of a guest";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
            job => {
                let mut sql = Sql::new(dir, job)?;
                Box::new(move |waits| sql.step(waits))
            }
        }])
    }

    /// Does the job from the moment on at which `begin` returns: the ramp does not count, the time
    /// does.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the file system refuses something, [`ErrorKind::Missing`] if sqlite3 is
    /// needed and not there.
    pub fn run_in_guest(&self) -> Result<()> {
        let done = self.run(|| {
            println!("RESULT ready=1");
            io::stdin().read_line(&mut String::new()).map(drop)
        })?;
        println!("RESULT per_second={}\nRESULT p99_us={}", done.per_second, done.p99_us);
        Ok(())
    }

    /// Does the job from a start signal on.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the file system refuses something, [`ErrorKind::Missing`] if sqlite3 is
    /// needed and not there.
    fn run(&self, begin: impl FnOnce() -> io::Result<()>) -> Result<Done> {
        let failed = || format!("{}: {} failed", self.dir.display(), self.job.name());
        let mut steps = self.steps().map_err(|error| {
            let kind = match error.kind() {
                io::ErrorKind::NotFound => ErrorKind::Missing,
                io::ErrorKind::InvalidInput => ErrorKind::Usage,
                _ => ErrorKind::Io,
            };
            Error::caused_by(kind, failed(), error)
        })?;
        begin().context(ErrorKind::Io, || "the start signal has no sender")?;
        let from = Instant::now() + self.ramp;
        let until = from + self.time;
        let (mut count, mut waits) = (0, Vec::new());
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for step in &mut steps {
                threads.push(scope.spawn(move || repeat(from, until, step)));
            }
            for thread in threads {
                let panicked = |_| Err(io::Error::other("it panicked"));
                let ended = thread.join().unwrap_or_else(panicked)?;
                count += ended.0;
                waits.extend(ended.1);
            }
            Ok::<_, io::Error>(())
        })
        .context(ErrorKind::Io, failed)?;
        Ok(Done::of(count, waits, self.time))
    }
}

/// Repeats a step until it is time: how many began in the window, and their waits.
pub(crate) fn repeat(
    from: Instant,
    until: Instant,
    mut step: impl FnMut(&mut Vec<u64>) -> io::Result<()>,
) -> io::Result<(u64, Vec<u64>)> {
    let (mut count, mut all) = (0, Vec::new());
    loop {
        let (begin, mut waits) = (Instant::now(), Vec::new());
        if begin >= until {
            return Ok((count, all));
        }
        step(&mut waits)?;
        if begin >= from {
            count += 1;
            all.append(&mut waits);
        }
    }
}

/// Time from one moment to another, in ns.
pub(crate) fn ns_between(begin: Instant, end: Instant) -> u64 {
    u64::try_from((end - begin).as_nanos()).unwrap_or(u64::MAX)
}

/// How long something takes.
fn timed(waits: &mut Vec<u64>, wait: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let begin = Instant::now();
    wait()?;
    waits.push(ns_between(begin, Instant::now()));
    Ok(())
}

/// One of a mail server's threads. Its step is that of varmail's. It deletes a mail. It makes one,
/// writes it, fsyncs. It opens one, reads it, appends to it, fsyncs. It opens one and reads it.
pub(crate) struct Mail {
    spool: PathBuf,
    dice: Rng,
    /// The oldest mail and the next one's number.
    mails: std::ops::Range<u64>,
    text: Vec<u8>,
}

impl Mail {
    /// A spool of so many mails; those of an earlier run are kept.
    pub(crate) fn new(directory: &Path, thread: u64, wanted: u64) -> io::Result<Self> {
        let spool = directory.join(format!("spool-{thread}"));
        fs::create_dir_all(&spool)?;
        let text = vec![b'm'; usize::try_from(MAIL).unwrap_or(0)];
        let numbers = fs::read_dir(&spool)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().parse().ok()))
            .collect::<io::Result<Vec<Option<u64>>>>()?;
        let numbers = || numbers.iter().flatten();
        let mails = match (numbers().min(), numbers().max()) {
            (Some(oldest), Some(newest)) => *oldest..newest + 1,
            _ => 0..0,
        };
        let mut new = Self { spool, dice: Rng::with_seed(0x9e37_79b9 + thread), mails, text };
        while new.mails.end - new.mails.start < wanted {
            new.make()?;
        }
        Ok(new)
    }

    fn path(&self, mail: u64) -> PathBuf {
        self.spool.join(mail.to_string())
    }

    fn some_text(&mut self) -> usize {
        usize::try_from(1 + self.dice.u64(..MAIL)).unwrap_or(1)
    }

    fn make(&mut self) -> io::Result<File> {
        let len = self.some_text();
        let mut file = File::create_new(self.path(self.mails.end))?;
        self.mails.end += 1;
        file.write_all(&self.text[..len])?;
        Ok(file)
    }

    fn some_mail(&mut self) -> PathBuf {
        let mail = self.mails.start + self.dice.u64(..(self.mails.end - self.mails.start).max(1));
        self.path(mail)
    }

    pub(crate) fn step(&mut self, waits: &mut Vec<u64>) -> io::Result<()> {
        fs::remove_file(self.path(self.mails.start))?;
        self.mails.start += 1;

        let made = self.make()?;
        timed(waits, || made.sync_all())?;
        drop(made);

        let mut mail = OpenOptions::new().read(true).append(true).open(self.some_mail())?;
        let mut read = Vec::new();
        mail.read_to_end(&mut read)?;
        let len = self.some_text();
        mail.write_all(&self.text[..len])?;
        timed(waits, || mail.sync_all())?;
        drop(mail);

        read.clear();
        File::open(self.some_mail())?.read_to_end(&mut read).map(drop)
    }
}

/// A log of records: of so many bytes each, and so many in all, after which another one begins.
/// Each record is made durable before the next, or each log at its end.
fn fill(directory: PathBuf, (record, most): (usize, usize), each: bool) -> io::Result<Step> {
    let record = vec![0x6b; record];
    let path = move |log: u64| directory.join(format!("log-{log}"));
    let (mut log, mut number, mut bytes) = (File::create(path(0))?, 0, 0);
    Ok(Box::new(move |waits| {
        if bytes >= most {
            (number, bytes) = (number + 1, 0);
            log = File::create_new(path(number))?;
            if let Some(old) = number.checked_sub(LOGS) {
                fs::remove_file(path(old))?;
            }
        }
        log.write_all(&record)?;
        bytes += record.len();
        if each || bytes >= most { timed(waits, || log.sync_data()) } else { Ok(()) }
    }))
}

/// A database: sqlite3 as a child process, which gets one transaction after the other.
struct Sql {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    dice: Rng,
    job: Job,
    /// The number of the next row.
    next: u64,
}

/// sqlite3's output at the end of a transaction.
const OVER: &str = "over";

impl Sql {
    fn new(directory: &Path, job: Job) -> io::Result<Self> {
        let mut command = Command::new("sqlite3");
        // Interactive: it writes out what it has to say before it reads the next line.
        command.args(["-interactive", "-batch"]).arg(directory.join("base.db"));
        command.env("HOME", directory).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("sqlite3 has no pipes"));
        };
        let (from, dice) = (BufReader::new(from), Rng::with_seed(0x5851_f42d));
        let mut new = Self { child, to, from, dice, job, next: ROWS };
        new.tell(&schema(job))?;
        Ok(new)
    }

    fn tell(&mut self, sql: &str) -> io::Result<()> {
        writeln!(self.to, "{sql}\nSELECT '{OVER}';")?;
        self.to.flush()?;
        let mut line = String::new();
        loop {
            line.clear();
            if self.from.read_line(&mut line)? == 0 {
                return Err(io::Error::other(format!("sqlite3 has ended, after: {sql}")));
            }
            // The prompt may stand before it.
            if line.trim_end().ends_with(OVER) {
                return Ok(());
            }
        }
    }

    fn step(&mut self, waits: &mut Vec<u64>) -> io::Result<()> {
        let sql = transaction(self.job, &mut self.dice, &mut self.next);
        timed(waits, || self.tell(&sql))
    }
}

impl Drop for Sql {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The tables of a job, filled.
fn schema(job: Job) -> String {
    let mode = if matches!(job, Job::OltpWal | Job::Graph) { "WAL" } else { "DELETE" };
    let numbers = format!(
        "WITH RECURSIVE c(i) AS (VALUES(0) UNION ALL SELECT i+1 FROM c WHERE i < {})",
        ROWS - 1
    );
    let tables = match job {
        Job::Graph => format!(
            "CREATE TABLE node(id INTEGER PRIMARY KEY, version INTEGER, data BLOB);\nCREATE TABLE \
             link(id1 INTEGER, id2 INTEGER, data BLOB, PRIMARY KEY(id1, id2)) WITHOUT \
             ROWID;\nCREATE TABLE count(id INTEGER PRIMARY KEY, n INTEGER);\nBEGIN; {numbers} \
             INSERT INTO node SELECT i, 0, randomblob(128) FROM c;\n{numbers} INSERT INTO link \
             SELECT i, (i * 7919) % {ROWS}, randomblob(8) FROM c;\n{numbers} INSERT INTO count \
             SELECT i, 1 FROM c; COMMIT;"
        ),
        _ => format!(
            "CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, c TEXT, pad TEXT);\nCREATE INDEX \
             by_k ON t(k);\nBEGIN; {numbers} INSERT INTO t SELECT i, (i * 7919) % {ROWS}, \
             hex(randomblob(60)), hex(randomblob(30)) FROM c; COMMIT;"
        ),
    };
    format!("PRAGMA journal_mode={mode};\nPRAGMA synchronous=FULL;\n{tables}")
}

/// LinkBench's mix (Armstrong, Ponnekanti, Borthakur, Callaghan, "LinkBench", SIGMOD 2013). Each
/// part has its per mille, added to those before it. `@A` and `@B` are rows, `@N` is the next row.
const GRAPH: [(u64, &str); 8] = [
    (512, "SELECT count(*) FROM (SELECT * FROM link WHERE id1 = @A LIMIT 1000);"),
    (641, "SELECT length(data) FROM node WHERE id = @A;"),
    (690, "SELECT n FROM count WHERE id = @A;"),
    (
        860,
        "BEGIN; INSERT OR REPLACE INTO link VALUES(@A, @B, randomblob(8)); UPDATE count SET n = n \
         + 1 WHERE id = @A; COMMIT;",
    ),
    (890, "BEGIN; DELETE FROM link WHERE id1 = @A; UPDATE count SET n = 0 WHERE id = @A; COMMIT;"),
    (964, "UPDATE node SET version = version + 1, data = randomblob(128) WHERE id = @A;"),
    (990, "INSERT INTO node VALUES(@N, 0, randomblob(128));"),
    (1000, "DELETE FROM node WHERE id = @A;"),
];

/// A third each; the parts as in [`GRAPH`].
const MOBILE: [(u64, &str); 3] = [
    (333, "INSERT INTO t VALUES(@N, @A, hex(randomblob(50)), '');"),
    (667, "UPDATE t SET c = hex(randomblob(50)) WHERE id = @A;"),
    (1000, "DELETE FROM t WHERE id = (SELECT id FROM t WHERE id >= @A LIMIT 1);"),
];

/// The writes of an OLTP transaction; the parts as in [`GRAPH`].
const OLTP: &str = "UPDATE t SET k = k + 1 WHERE id = @A; UPDATE t SET c = hex(randomblob(60)) \
                    WHERE id = @B; DELETE FROM t WHERE id = @A; INSERT INTO t VALUES(@A, @B, \
                    hex(randomblob(60)), hex(randomblob(30))); COMMIT;";

/// A transaction, in one line.
fn transaction(job: Job, dice: &mut Rng, next: &mut u64) -> String {
    let (a, b, chance) = (dice.u64(..ROWS), dice.u64(..ROWS), dice.u64(..1000));
    let drawn = |mix: &[(u64, &str)]| -> String {
        mix.iter().find(|(below, _)| chance < *below).map_or("", |(_, sql)| sql).into()
    };
    let sql = match job {
        Job::Graph => drawn(&GRAPH),
        Job::Mobile => drawn(&MOBILE),
        _ => {
            let mut sql = String::from("BEGIN; ");
            for _ in 0..10 {
                sql += &format!("SELECT length(c) FROM t WHERE id = {}; ", dice.u64(..ROWS));
            }
            for what in ["length(max(c))", "sum(k)", "count(c)", "count(DISTINCT c)"] {
                let first = dice.u64(..ROWS);
                let last = first + 99;
                sql += &format!("SELECT {what} FROM t WHERE id BETWEEN {first} AND {last}; ");
            }
            sql + OLTP
        }
    };
    *next += 1;
    let values = [("@A", a), ("@B", b), ("@N", *next)];
    values.iter().fold(sql, |sql, (name, value)| sql.replace(name, &value.to_string()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use clap::ValueEnum;

    use super::*;

    fn done(job: Job, time: Duration) -> Result<Done> {
        let (dir, mut has_begun) = (tempfile::tempdir().unwrap(), false);
        let job = GuestJob { job, dir: dir.path().into(), ramp: Duration::ZERO, time, mails: 4 };
        let done = job.run(|| {
            has_begun = true;
            Ok(())
        });
        assert_eq!(has_begun, done.is_ok());
        done
    }

    /// True if a guest does it during the measurement.
    fn is_guest(job: Job) -> bool {
        !matches!(job, Job::Commits | Job::MailReplay)
    }

    #[test]
    fn guest_jobs_run_and_report() {
        for job in Job::value_variants().iter().filter(|job| is_guest(**job)) {
            match done(*job, Duration::from_millis(200)) {
                // On a slow disk not one transaction may end in time; that is no failure, though.
                Ok(done) => assert!(done.per_second == 0.0 || done.p99_us > 0.0, "{done:?}"),
                Err(error) if error.kind() == ErrorKind::Missing => vlane_testing::skip(error),
                Err(error) => panic!("{job:?}: {error}"),
            }
        }
    }

    #[test]
    fn percentile_is_a_measured_value() {
        let times = |us: std::ops::RangeInclusive<u64>| us.rev().map(|us| us * 1000);
        let two_seconds = Duration::from_secs(2);
        let done = Done::of(200, times(1..=200).collect(), two_seconds);
        assert_eq!(done, Done { per_second: 100.0, p99_us: 198.0 });
        assert_eq!(Done::of(1, times(7..=7).collect(), two_seconds).p99_us, 7.0);
        let none = Done::of(0, Vec::new(), two_seconds);
        assert!(none.p99_us.is_nan() && none.per_second == 0.0);
    }

    /// Counts the starts in a window that begins after `wait`; false if the first one was late.
    fn counts_starts(wait: Duration) -> bool {
        let from = Instant::now() + wait;
        let end = from + Duration::from_millis(1);
        let (mut calls, mut is_early) = (0, false);
        let counted = repeat(from, end, |took| {
            calls += 1;
            is_early |= Instant::now() < from;
            // The first one ends in the window, or after it; the second one would be over late.
            let until = if calls == 1 { from } else { end };
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            took.push(calls);
            Ok(())
        });
        let counted = counted.unwrap();
        if !is_early {
            return false;
        }
        assert!(!counted.1.contains(&1), "{counted:?}");
        assert_eq!((counted.0, counted.1.len() as u64), (calls - 1, calls - 1));
        true
    }

    #[test]
    fn only_starts_within_the_window_count() {
        // On a busy machine a later window has to do.
        assert!((0..9).any(|n| counts_starts(Duration::from_millis(40 << n))));
    }

    #[test]
    fn mail_spool_keeps_its_size() {
        let dir = tempfile::tempdir().unwrap();
        let mut mail = Mail::new(dir.path(), 0, MAILS).unwrap();
        let mails = || fs::read_dir(dir.path().join("spool-0")).unwrap().count() as u64;
        let mut waits = Vec::new();
        for _ in 0..20 {
            mail.step(&mut waits).unwrap();
            assert_eq!(mails(), MAILS);
        }
        assert_eq!(waits.len(), 40, "two fsyncs each");
        drop(mail);
        let again = Mail::new(dir.path(), 0, MAILS + 2).unwrap();
        assert_eq!((again.mails.clone(), mails()), (20..MAILS + 22, MAILS + 2), "it goes on");
    }

    #[test]
    fn old_logs_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut fill = fill(dir.path().into(), (RECORD, RECORD), true).unwrap();
        for _ in 0..10 {
            fill(&mut Vec::new()).unwrap();
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count() as u64, LOGS);
    }

    #[test]
    fn guest_jobs_differ_from_driver_jobs() {
        for job in Job::value_variants().iter().filter(|job| !is_guest(**job)) {
            assert_eq!(done(*job, Duration::ZERO).unwrap_err().kind(), ErrorKind::Usage);
        }
    }
}
