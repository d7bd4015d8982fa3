//! Jobs of a guest that write, and wait until the data are durable. They run inside the guest
//! (`vlane caches-job`), and report in lines `RESULT key=value`.

mod kv;

use fastrand::Rng;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use self::kv::{Compact, Plain};
use super::done::Done;
use super::plan::Job;
use vlane_testbed::error::{Context, Error, ErrorKind, Result};

/// Threads of the mail server, as filebench's varmail has.
const MAIL_THREADS: u64 = 16;
/// Mails in the spool of each, at first: 1,000 in all.
const MAILS: u64 = 64;
/// The largest mail, and the largest addition to one: 16K on average, as varmail's are.
const MAIL: u64 = 32 << 10;
/// Rows of each table of the databases.
const ROWS: u64 = 10_000;
/// Bytes of a record of the key-value log. LevelDB has 7 of its log, 12 of a batch, 16 of a key and
/// 81 for a value of 100 that is half compressed, rounded.
const RECORD: usize = 116;
/// A log of this size is closed, and another one begun.
const LOG: u64 = 4 << 20;
/// Logs that are kept.
const LOGS: u64 = 4;

/// Something that is done again and again.
trait Step: Send {
    /// Does it once; returns how long each wait for the storage took.
    fn step(&mut self, waits: &mut Vec<Duration>) -> io::Result<()>;
}

/// Does a job in `directory` from the moment on at which `begin` returns: `ramp` of it does not
/// count, `time` does.
///
/// # Errors
/// [`ErrorKind::Io`] if the file system refuses something, [`ErrorKind::Missing`] if sqlite3 is
/// needed and not there.
pub fn run(
    job: Job,
    directory: &Path,
    ramp: Duration,
    time: Duration,
    begin: impl FnOnce() -> io::Result<()>,
) -> Result<Done> {
    let failed = || format!("{}: {} failed", directory.display(), job.name());
    let mut steps: Vec<Box<dyn Step>> = Vec::new();
    match job {
        Job::Mail => {
            for thread in 0..MAIL_THREADS {
                steps.push(Box::new(Mail::new(directory, thread).context(ErrorKind::Io, failed)?));
            }
        }
        Job::Fill => steps.push(Box::new(Fill::new(directory).context(ErrorKind::Io, failed)?)),
        Job::KvCompact => {
            steps.push(Box::new(Compact::new(directory).context(ErrorKind::Io, failed)?))
        }
        Job::Plain => steps.push(Box::new(Plain::new(directory).context(ErrorKind::Io, failed)?)),
        Job::OltpRollback | Job::OltpWal | Job::Graph | Job::Mobile => {
            steps.push(Box::new(Sql::new(directory, job)?));
        }
        Job::Commits | Job::MailReplay => {
            let text = format!("{} is a job of the driver, not of a guest", job.name());
            return Err(Error::new(ErrorKind::Usage, text));
        }
    }
    begin().context(ErrorKind::Io, || "the start signal has no sender")?;
    let from = Instant::now() + ramp;
    let until = from + time;
    let (count, waits) = std::thread::scope(|scope| {
        let threads: Vec<_> = steps
            .iter_mut()
            .map(|step| scope.spawn(move || repeat(step.as_mut(), from, until)))
            .collect();
        let mut sum: (u64, Vec<u64>) = (0, Vec::new());
        for thread in threads {
            let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("it panicked")));
            let (count, waits) = ended?;
            sum.0 += count;
            sum.1.extend(waits);
        }
        Ok::<_, io::Error>(sum)
    })
    .context(ErrorKind::Io, failed)?;
    let per_second = count as f64 / time.as_secs_f64().max(1e-9);
    Ok(Done { per_second, ..Done::of(waits, time) })
}

/// One thread of the mail server, alone: each call is a round of it, which adds what its two waits
/// for the storage took.
///
/// # Errors
/// The file system refuses something.
pub fn mail(
    directory: &Path,
) -> io::Result<impl FnMut(&mut Vec<Duration>) -> io::Result<()> + Send> {
    let mut mail = Mail::new(directory, 0)?;
    Ok(move |waits: &mut Vec<Duration>| mail.step(waits))
}

/// Repeats a step until it is time: how often it ended within the window, and the waits of those,
/// in ns.
fn repeat(step: &mut dyn Step, from: Instant, until: Instant) -> io::Result<(u64, Vec<u64>)> {
    let (mut count, mut all, mut waits) = (0, Vec::new(), Vec::new());
    loop {
        waits.clear();
        step.step(&mut waits)?;
        let now = Instant::now();
        if now >= until {
            return Ok((count, all));
        }
        if now >= from {
            count += 1;
            all.extend(waits.iter().map(|wait| u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)));
        }
    }
}

/// How long something takes.
fn timed(waits: &mut Vec<Duration>, wait: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let begin = Instant::now();
    wait()?;
    waits.push(begin.elapsed());
    Ok(())
}

/// One of a mail server's threads. Its step is that of varmail's. It deletes a mail. It makes one,
/// writes it, fsyncs. It opens one, reads it, appends to it, fsyncs. It opens one and reads it.
struct Mail {
    spool: PathBuf,
    dice: Rng,
    /// The oldest mail and the next one's number.
    mails: std::ops::Range<u64>,
    text: Vec<u8>,
}

impl Mail {
    fn new(directory: &Path, thread: u64) -> io::Result<Self> {
        let spool = directory.join(format!("spool-{thread}"));
        fs::create_dir_all(&spool)?;
        let text = vec![b'm'; usize::try_from(MAIL).unwrap_or(0)];
        let mut new = Self { spool, dice: Rng::with_seed(0x9e37_79b9 + thread), mails: 0..0, text };
        for _ in 0..MAILS {
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
}

impl Step for Mail {
    fn step(&mut self, waits: &mut Vec<Duration>) -> io::Result<()> {
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

/// A log of records, each of them durable before the next.
struct Fill {
    directory: PathBuf,
    log: File,
    number: u64,
    bytes: u64,
}

impl Fill {
    fn new(directory: &Path) -> io::Result<Self> {
        let log = File::create(directory.join("log-0"))?;
        Ok(Self { directory: directory.into(), log, number: 0, bytes: 0 })
    }
}

impl Step for Fill {
    fn step(&mut self, waits: &mut Vec<Duration>) -> io::Result<()> {
        if self.bytes >= LOG {
            self.number += 1;
            self.bytes = 0;
            self.log = File::create_new(self.directory.join(format!("log-{}", self.number)))?;
            if let Some(old) = self.number.checked_sub(LOGS) {
                fs::remove_file(self.directory.join(format!("log-{old}")))?;
            }
        }
        self.log.write_all(&[0x6b; RECORD])?;
        self.bytes += RECORD as u64;
        timed(waits, || self.log.sync_data())
    }
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
    fn new(directory: &Path, job: Job) -> Result<Self> {
        let database = directory.join("base.db");
        let mut command = Command::new("sqlite3");
        // Interactive: it writes out what it has to say before it reads the next line.
        command.args(["-interactive", "-batch"]).arg(&database).env("HOME", directory);
        let child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
        let mut child = child.context(ErrorKind::Missing, || "sqlite3 cannot be started")?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::new(ErrorKind::Process, "sqlite3 has no pipes"));
        };
        let mut new = Self {
            child,
            to,
            from: BufReader::new(from),
            dice: Rng::with_seed(0x5851_f42d),
            job,
            next: ROWS,
        };
        let said = || format!("{}: the database cannot be made", database.display());
        new.tell(&schema(job)).context(ErrorKind::Process, said)?;
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
}

impl Step for Sql {
    fn step(&mut self, waits: &mut Vec<Duration>) -> io::Result<()> {
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

/// A transaction, in one line.
fn transaction(job: Job, dice: &mut Rng, next: &mut u64) -> String {
    let row = dice.u64(..ROWS);
    match job {
        Job::Graph => {
            let (a, b) = (row, dice.u64(..ROWS));
            // LinkBench's mix (Armstrong, Ponnekanti, Borthakur, Callaghan, "LinkBench", SIGMOD
            // 2013), in per mille.
            match dice.u64(..1000) {
                0..512 => {
                    format!("SELECT count(*) FROM (SELECT * FROM link WHERE id1 = {a} LIMIT 1000);")
                }
                512..641 => format!("SELECT length(data) FROM node WHERE id = {a};"),
                641..690 => format!("SELECT n FROM count WHERE id = {a};"),
                690..860 => format!(
                    "BEGIN; INSERT OR REPLACE INTO link VALUES({a}, {b}, randomblob(8)); UPDATE \
                     count SET n = n + 1 WHERE id = {a}; COMMIT;"
                ),
                860..890 => format!(
                    "BEGIN; DELETE FROM link WHERE id1 = {a}; UPDATE count SET n = 0 WHERE id = \
                     {a}; COMMIT;"
                ),
                890..964 => {
                    format!(
                        "UPDATE node SET version = version + 1, data = randomblob(128) WHERE id = \
                         {a};"
                    )
                }
                964..990 => {
                    *next += 1;
                    format!("INSERT INTO node VALUES({next}, 0, randomblob(128));")
                }
                _ => format!("DELETE FROM node WHERE id = {a};"),
            }
        }
        Job::Mobile => match dice.u64(..3) {
            0 => {
                *next += 1;
                format!("INSERT INTO t VALUES({next}, {row}, hex(randomblob(50)), '');")
            }
            1 => format!("UPDATE t SET c = hex(randomblob(50)) WHERE id = {row};"),
            _ => format!("DELETE FROM t WHERE id = (SELECT id FROM t WHERE id >= {row} LIMIT 1);"),
        },
        _ => {
            let mut sql = String::from("BEGIN; ");
            for _ in 0..10 {
                sql += &format!("SELECT length(c) FROM t WHERE id = {}; ", dice.u64(..ROWS));
            }
            for what in ["length(max(c))", "sum(k)", "count(c)", "count(DISTINCT c)"] {
                let first = dice.u64(..ROWS);
                sql +=
                    &format!("SELECT {what} FROM t WHERE id BETWEEN {first} AND {}; ", first + 99);
            }
            let other = dice.u64(..ROWS);
            sql + &format!(
                "UPDATE t SET k = k + 1 WHERE id = {row}; UPDATE t SET c = hex(randomblob(60)) \
                 WHERE id = {other}; DELETE FROM t WHERE id = {row}; INSERT INTO t VALUES({row}, \
                 {other}, hex(randomblob(60)), hex(randomblob(30))); COMMIT;"
            )
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn done(job: Job) -> Option<Done> {
        let dir = tempfile::tempdir().unwrap();
        let mut has_begun = false;
        let done = run(job, dir.path(), Duration::ZERO, Duration::from_millis(200), || {
            has_begun = true;
            Ok(())
        });
        let done = match done {
            Err(error) if error.kind() == ErrorKind::Missing => {
                vlane_testing::skip(format!("{}: {error}", job.name()));
                return None;
            }
            done => done.unwrap(),
        };
        assert!(has_begun);
        Some(done)
    }

    #[test]
    fn guest_jobs_run_and_report() {
        for job in Job::ALL.into_iter().filter(|job| job.is_guest()) {
            let Some(done) = done(job) else { continue };
            // On a slow disk not one transaction may end in time; that is no failure, though.
            assert!(done.per_second == 0.0 || done.p99_us > 0.0, "{}: {done:?}", job.name());
        }
    }

    #[test]
    fn mail_spool_keeps_its_size() {
        let dir = tempfile::tempdir().unwrap();
        let mut mail = Mail::new(dir.path(), 0).unwrap();
        let mails = || fs::read_dir(dir.path().join("spool-0")).unwrap().count() as u64;
        let mut waits = Vec::new();
        for _ in 0..20 {
            mail.step(&mut waits).unwrap();
            assert_eq!(mails(), MAILS);
        }
        assert_eq!(waits.len(), 40, "two fsyncs each");
    }

    #[test]
    fn old_logs_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut fill = Fill::new(dir.path()).unwrap();
        for _ in 0..10 {
            fill.bytes = LOG;
            fill.step(&mut Vec::new()).unwrap();
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count() as u64, LOGS);
    }

    #[test]
    fn guest_jobs_differ_from_driver_jobs() {
        for job in Job::ALL.into_iter().filter(|job| !job.is_guest()) {
            let error =
                run(job, Path::new("/"), Duration::ZERO, Duration::ZERO, || Ok(())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage);
        }
    }
}
