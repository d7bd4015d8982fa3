//! The guest's programs: how their data are made, how they are run, and what they answer.

use std::time::Duration;

use clap::ValueEnum;
use vlane_testbed::{Error, ErrorKind, Result, about, word};

use crate::caches::job::{Done, MAIL, MAIL_THREADS};

/// Bytes of a record of the key-value store: a key of 16 and a value.
const RECORD: u64 = 16 + VALUE;
const VALUE: u64 = 1000;
/// Readers of the key-value store, beside one writer.
const READERS: u16 = 4;
/// Threads that make records durable, each on its own.
const WRITERS: u16 = 4;
/// Tables of the database, and bytes of a row with its index.
const TABLES: u64 = 4;
const ROW: u64 = 240;
/// Clients of the database.
const CLIENTS: u16 = 8;

/// A program in the guest, with data of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Program {
    /// a mail server: files made, appended to, fsynced, read, removed (filebench's varmail, step by
    /// step)
    Mail,
    /// RocksDB's db_bench readwhilewriting: four threads read, one writes with an fsync each time.
    /// An operation is a read
    KeyValue,
    /// RocksDB's db_bench overwrite: four threads write, with an fsync each time, beside compaction
    /// (fillsync, on a store that has its data)
    FillSync,
    /// sysbench's oltp_read_write with MariaDB: eight clients. An operation is a transaction
    Oltp,
}

impl Program {
    /// Its name on the command line.
    pub fn name(self) -> String {
        word(self)
    }

    /// The program, and the case that it stands for.
    pub fn about(self) -> String {
        about(self)
    }

    /// The programs that it needs.
    pub fn needs(self) -> &'static [&'static str] {
        match self {
            Self::Mail => &[],
            Self::KeyValue | Self::FillSync => &["db_bench"],
            Self::Oltp => &["mariadbd", "sysbench"],
        }
    }

    /// Bytes of a file system for data of so many. One with room to spare spreads new files over
    /// all of it. The host's cache then has pages of files that are gone.
    pub fn room(self, bytes: u64) -> u64 {
        match self {
            Self::Mail | Self::Oltp => bytes.saturating_add(64 << 20),
            // Compaction writes all anew before it removes the old.
            Self::KeyValue | Self::FillSync => bytes.saturating_mul(2).saturating_add(256 << 20),
        }
    }

    /// The job's name for db_bench.
    fn db_bench(self) -> &'static str {
        if self == Self::KeyValue { "readwhilewriting" } else { "overwrite" }
    }

    /// Operations that are under way at once.
    pub fn threads(self) -> u64 {
        match self {
            Self::Mail => MAIL_THREADS,
            Self::KeyValue => READERS.into(),
            Self::FillSync => WRITERS.into(),
            Self::Oltp => CLIENTS.into(),
        }
    }

    /// Commands that make data of so many bytes in `/run/disk`.
    pub fn prepare(self, bytes: u64) -> String {
        match self {
            Self::Mail => {
                let mails = mails(bytes);
                // For so long that most mails have been appended to.
                format!(
                    "echo | $VLANE caches-job mail --mails {mails} --dir /run/disk --ramp 0 --time \
                     60s > /dev/null\n"
                )
            }
            Self::KeyValue | Self::FillSync => {
                let all = store(bytes);
                format!(
                    "{all} --benchmarks=fillseq,compact --disable_wal=1 > /dev/null 2> /run/said \
                     || {{ cat /run/said; exit 1; }}\n"
                )
            }
            Self::Oltp => format!(
                "mkdir -p /run/disk/db/sbtest\n{}{} prepare > /dev/null\nkill -TERM $server\nwait \
                 $server\n",
                database(),
                clients(bytes)
            ),
        }
    }

    /// Commands that run it for the ramp, tell that this is over, and run it for the time.
    pub fn run(self, bytes: u64, (ramp, time): (Duration, Duration)) -> String {
        let seconds = |time: Duration| time.as_secs().max(1);
        let begun = "echo RESULT begun=1";
        match self {
            Self::Mail => {
                let (mails, ramp, time) = (mails(bytes), ramp.as_millis(), time.as_millis());
                format!(
                    "(sleep {}; {begun}) &\necho | $VLANE caches-job mail --mails {mails} --dir \
                     /run/disk --ramp {ramp}ms --time {time}ms\n",
                    ramp as f64 / 1e3
                )
            }
            Self::KeyValue | Self::FillSync => {
                let (job, all) = (self.db_bench(), store(bytes));
                let threads = self.threads();
                let run = |time| {
                    format!(
                        "{all} --benchmarks={job} --use_existing_db=1 --threads={threads} --sync=1 \
                         --duration={} --histogram=1 2> /run/said",
                        seconds(time)
                    )
                };
                let failed = "{ cat /run/said; exit 1; }";
                format!(
                    "{} > /dev/null || {failed}\n{begun}\n{} || {failed}\n",
                    run(ramp),
                    run(time)
                )
            }
            Self::Oltp => {
                let run = |time| format!("{} --time={} run", clients(bytes), seconds(time));
                format!(
                    "{}{} > /dev/null\n{begun}\n{}\nkill -TERM $server\nwait $server\n",
                    database(),
                    run(ramp),
                    run(time)
                )
            }
        }
    }

    /// Its figures, in what it said from the ramp's end on.
    ///
    /// # Errors
    /// [`ErrorKind::Process`] if they are not there.
    pub fn parse(self, said: &str) -> Result<Done> {
        let after = |key: &str| said.lines().rev().find_map(|line| line.split_once(key)?.1.into());
        let number = |text: Option<&str>| text?.split_whitespace().next()?.parse::<f64>().ok();
        let (per_second, p99_us) = match self {
            Self::Mail => (number(after("RESULT per_second=")), number(after("RESULT p99_us="))),
            Self::KeyValue | Self::FillSync => {
                // `readwhilewriting :     210.1 micros/op 19034 ops/sec 10.0 seconds ...`, then
                // `Percentiles: P50: 7.29 P75: 10.44 P99: 26.55 P99.9: ...`, first of this job's.
                let job = self.db_bench();
                let line = said.lines().find(|line| line.trim_start().starts_with(job));
                let p99 = said.lines().find_map(|line| line.split_once(" P99: "));
                (
                    number(line.and_then(|line| Some(line.split_once("micros/op")?.1))),
                    number(p99.map(|(_, rest)| rest)),
                )
            }
            Self::Oltp => {
                let line = said.lines().find(|line| line.trim_start().starts_with("transactions:"));
                let ms = number(after("99th percentile:"));
                (number(line.and_then(|line| Some(line.split_once('(')?.1))), ms.map(|ms| ms * 1e3))
            }
        };
        let missing = || {
            let text = format!("{} did not report its figures", self.name());
            Error::new(ErrorKind::Process, text)
        };
        let (per_second, p99_us) = per_second.zip(p99_us).ok_or_else(missing)?;
        Ok(Done { per_second, p99_us })
    }
}

/// Mails of each thread, for a spool of so many bytes. A mail is appended to once in its life, on
/// average.
fn mails(bytes: u64) -> u64 {
    (bytes / MAIL_THREADS / MAIL).max(1)
}

/// The key-value store's program, with what is the same for all its jobs.
fn store(bytes: u64) -> String {
    let records = (bytes / RECORD).max(1);
    format!(
        "db_bench --db=/run/disk/store --num={records} --key_size=16 --value_size={VALUE} \
         --compression_type=none --cache_size=8388608"
    )
}

/// Starts the database's server, with its process ID in `$server`. It has no users of its own, so
/// it needs no tables of them. A pool that could grow would reserve more addresses than User-Mode
/// Linux has.
fn database() -> String {
    "mariadbd --no-defaults --user=root --datadir=/run/disk/db --socket=/run/db.sock \
     --pid-file=/run/db.pid --tmpdir=/run --skip-networking --skip-grant-tables \
     --innodb-buffer-pool-size=64M --loose-innodb-buffer-pool-size-max=64M \
     --innodb-log-file-size=32M > /run/said 2>&1 &\nserver=$!\nuntil [ -S /run/db.sock ]; do\n    \
     kill -0 $server || { cat /run/said; exit 1; }\n    sleep 0.2\ndone\n"
        .to_owned()
}

/// The database's clients, for data of so many bytes.
fn clients(bytes: u64) -> String {
    let rows = (bytes / TABLES / ROW).max(1);
    format!(
        "sysbench oltp_read_write --db-driver=mysql --mysql-socket=/run/db.sock --mysql-user=root \
         --tables={TABLES} --table-size={rows} --threads={CLIENTS} --percentile=99 \
         --rand-type=uniform"
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn figures_come_from_answers() {
        let mail = "RESULT ready=1\nRESULT per_second=512.5\nRESULT p99_us=8100\n";
        assert_eq!(Program::Mail.parse(mail).unwrap(), Done { per_second: 512.5, p99_us: 8100.0 });
        let store = "Initializing RocksDB Options from the specified file\n\
                     DB path: [/run/disk/store]\n\
                     readwhilewriting :      52.521 micros/op 19039 ops/sec 10.003 seconds 190454 \
                     operations;   18.4 MB/s (47661 of 47999 found)\n\n\
                     Microseconds per read:\nCount: 190454 Average: 209.7  StdDev: 301.52\n\
                     Min: 4  Median: 139.1  Max: 30211\n\
                     Percentiles: P50: 139.17 P75: 210.99 P99: 1411.52 P99.9: 2812.84 P99.99: 3e3\n\
                     -----\nMicroseconds per write:\n\
                     Percentiles: P50: 739.17 P75: 910.99 P99: 9411.52 P99.9: 2812.84\n";
        let done = Done { per_second: 19039.0, p99_us: 1411.52 };
        assert_eq!(Program::KeyValue.parse(store).unwrap(), done);
        let oltp = "SQL statistics:\n    transactions:                        1234   (41.07 per \
                    sec.)\n    queries:      24680  (821.4 per sec.)\nLatency (ms):\n         \
                    99th percentile:                      397.39\n         sum:    239\n";
        let done = Done { per_second: 41.07, p99_us: 397_390.0 };
        assert_eq!(Program::Oltp.parse(oltp).unwrap(), done);
    }

    #[test]
    fn missing_figures_are_an_error() {
        for program in Program::value_variants() {
            let error = program.parse("Killed\nRESULT begun=1\n").unwrap_err();
            assert!(error.to_string().starts_with(&program.name()), "{error}");
        }
    }

    #[test]
    fn data_have_requested_size() {
        let bytes = 400 << 20;
        assert_eq!(mails(bytes) * MAIL_THREADS * MAIL, bytes);
        assert!(store(bytes).contains("--num=412825 "), "{}", store(bytes));
        assert!(clients(bytes).contains("--table-size=436906 "), "{}", clients(bytes));
    }
}
