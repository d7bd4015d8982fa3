//! The plan: jobs, arms and cells, and the expectation of a cell before it is measured.

use std::time::Duration;

use clap::ValueEnum;
use vlane_testbed::{Also, Result, about, usage, word};

use super::Options;

/// Writer to the volume whose cache mode is compared. Reports have each one's description.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Job {
    /// 16K are written and flushed, round and round the journal
    Commits,
    /// a mail server: files made, appended to, fsynced, read, removed, by 16 threads (filebench's
    /// varmail)
    Mail,
    /// SQLite with a rollback journal: 14 reads, two updates, a delete and an insert in each
    /// transaction (for sysbench's OLTP)
    OltpRollback,
    /// the same transactions on SQLite with a write-ahead log
    OltpWal,
    /// SQLite with a write-ahead log: nodes and links in LinkBench's mix, 69 % reads (for
    /// LinkBench, which needs MySQL)
    Graph,
    /// SQLite with a rollback journal: an insert, an update or a delete in each transaction (for
    /// MobiBench)
    Mobile,
    /// records of 116 bytes, each appended to a log and fdatasynced (for LevelDB under db_bench's
    /// fillsync; no compaction)
    Fill,
    /// files of 64 MiB, written in pieces of 1 MiB, each fsynced at its end; four are kept (a
    /// backup that is not read again). An operation is a piece
    Backup,
    /// two tables of 2 MiB are read, merged by their keys, and written, fsynced, as two new ones
    /// (for LevelDB's compaction)
    KvCompact,
    /// 4K read and 4K written at random places of a file of 64 MiB, never made durable (a control)
    Plain,
    /// requests of a guest with the mail job, recorded once and sent again and again by the driver;
    /// an operation is a request
    MailReplay,
}

impl Job {
    /// Its name on the command line.
    pub fn name(self) -> String {
        word(self)
    }

    /// The job, and the case that it stands for.
    pub fn about(self) -> String {
        about(self)
    }

    /// True if there is a guest at all.
    pub fn needs_guest(self) -> bool {
        self != Self::Commits
    }
}

/// A way to serve the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arm {
    /// Its name in the report.
    pub name: String,
    /// Its options of `vlane serve`.
    pub arguments: Vec<String>,
}

impl Arm {
    /// A cache mode by the name that `vlane serve --cache` has for it.
    pub fn mode(name: &str) -> Self {
        Self { name: name.into(), arguments: vec!["--cache".into(), name.into()] }
    }

    /// The modes and the arms of further options, each once; the first one is the baseline.
    ///
    /// # Errors
    /// [`vlane_testbed::ErrorKind::Usage`] if one is given twice.
    pub fn all(modes: &[Self], also: &[Also]) -> Result<Vec<Self>> {
        let also = also.iter().map(|also| Self::options(&also.0));
        let arms: Vec<Self> = modes.iter().cloned().chain(also).collect();
        for (place, arm) in arms.iter().enumerate() {
            if arms[..place].iter().any(|other| other.name == arm.name) {
                return usage(format!("`{}` is given twice", arm.name));
            }
        }
        Ok(arms)
    }

    /// Any options of `vlane serve`. They are its name, but for the name of the mode's option.
    pub fn options(words: &[String]) -> Self {
        let name = words.join(" ").replace("--cache ", "").replace("--cache=", "");
        Self { name, arguments: words.to_vec() }
    }
}

/// True if an arm of that name is meant to reach the goals: it keeps the journal out of the cache,
/// and keeps a flush's promise.
pub fn has_goals(name: &str) -> bool {
    name.split(' ').any(|word| word == "pdc") && !name.contains("--danger-")
}

/// Conditions under which the arms are compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cell {
    /// The writer.
    pub job: Job,
    /// Bytes of the journal.
    pub journal: u64,
    /// Reads per second that the neighbour asks for; none: the next when one is answered.
    pub rate: Option<f64>,
    /// How much longer each `fdatasync` of the volume takes.
    pub delay: Duration,
}

impl Cell {
    /// Its name, and the id of its section.
    pub fn id(&self) -> String {
        let rate = self.rate.map_or_else(|| "unbounded".to_string(), |rate| format!("{rate:.0}"));
        let delay = match self.delay.as_micros() {
            0 => String::new(),
            us => format!("-delay-{us}us"),
        };
        format!("{}-{}m-{rate}{delay}", self.job.name(), self.journal >> 20)
    }
}

/// The effect of keeping the journal out of the cache, as the sizes alone predict it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Hot set and journal fit together: no difference.
    Fits,
    /// The hot set fits, and with the journal it does not: the journal evicts hot pages.
    Helps,
    /// Not even the hot set fits: misses in any way.
    TooSmall,
    /// The cache has no limit: no difference.
    Unlimited,
}

impl Expected {
    /// Of a cache of `limit` bytes (none: unlimited), a hot set and a journal.
    pub fn of(limit: Option<u64>, hot: u64, journal: u64) -> Self {
        match limit {
            None => Self::Unlimited,
            Some(limit) if hot >= limit => Self::TooSmall,
            Some(limit) if hot.saturating_add(journal) <= limit => Self::Fits,
            Some(_) => Self::Helps,
        }
    }

    /// For people.
    pub fn says(self) -> &'static str {
        match self {
            Self::Fits => "no difference: hot set and journal fit",
            Self::Helps => "keeping the journal out helps",
            Self::TooSmall => "little: not even the hot set fits",
            Self::Unlimited => "no difference: the cache is not limited",
        }
    }
}

/// The cells, in the order in which they are measured: for each way to read, each job on each
/// journal.
pub fn cells(options: &Options) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (a, rate) in options.rates.iter().map(|rate| rate.0).enumerate() {
        for (b, &delay) in options.delays.iter().enumerate() {
            for (c, &job) in options.jobs.iter().enumerate() {
                let varied = [a, b, c].into_iter().filter(|place| *place > 0).count();
                let is_wanted = |journal: &&u64| match (options.vary_on, varied) {
                    (None, _) | (_, 0) => true,
                    (Some(only), 1) => **journal == only,
                    _ => false,
                };
                let with = |&journal: &u64| Cell { job, journal, rate, delay };
                cells.extend(options.journals.iter().filter(is_wanted).map(with));
            }
        }
    }
    cells
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::tests::options;
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn bypass_helps_only_with_oversized_journal() {
        let of = |limit, hot, journal| Expected::of(Some(limit * MIB), hot * MIB, journal * MIB);
        assert_eq!(of(512, 400, 64), Expected::Fits);
        assert_eq!(of(512, 400, 112), Expected::Fits);
        assert_eq!(of(512, 400, 113), Expected::Helps);
        assert_eq!(of(512, 400, 1024), Expected::Helps);
        assert_eq!(of(512, 512, 64), Expected::TooSmall);
        assert_eq!(Expected::of(None, 400, 1024), Expected::Unlimited);
        assert_eq!(Expected::of(Some(u64::MAX), 1, u64::MAX), Expected::Fits);
    }

    #[test]
    fn arm_is_named_by_mode_and_options() {
        let of = |text: &str| Arm::options(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for (options, name, has_goals) in [
            ("--cache pdc --journal direct", "pdc --journal direct", true),
            ("--journal direct --cache=pdc", "--journal direct pdc", true),
            ("--cache pdc --danger-flush-journal-only", "pdc --danger-flush-journal-only", false),
            ("--cache writeback --poll off", "writeback --poll off", false),
            ("--poll off", "--poll off", false),
        ] {
            let arm = of(options);
            assert_eq!((arm.name.as_str(), super::has_goals(&arm.name)), (name, has_goals));
            assert_eq!(arm.arguments.join(" "), options);
        }
        assert!(has_goals("pdc") && !has_goals("none"));
        assert_eq!(of("--cache pdc"), Arm::mode("pdc"));
    }

    #[test]
    fn arm_given_twice_is_an_error() {
        let arms = |words: &[&str]| {
            let options = options(words);
            Arm::all(&options.modes, &options.also)
        };
        let also = ["--modes=none,pdc", "--also=--cache pdc --journal direct"];
        let names: Vec<String> = arms(&also).unwrap().into_iter().map(|arm| arm.name).collect();
        assert_eq!(names, ["none", "pdc", "pdc --journal direct"]);
        for twice in [&["--modes=none,pdc,none"][..], &["--modes=none", "--also=--cache none"]] {
            let error = arms(twice).unwrap_err();
            assert_eq!(error.kind(), vlane_testbed::ErrorKind::Usage);
            assert!(error.to_string().contains("`none` is given twice"), "{error}");
        }
    }

    const AXES: [&str; 8] = [
        "--jobs=commits,mail",
        "--journals=4M,8M",
        "--rates=unbounded,5000",
        "--delays=0,1ms",
        "--hot=1M",
        "--ramp=0",
        "--time=1s",
        "--repeat=1",
    ];

    #[test]
    fn every_cell_has_its_own_id() {
        let cells = cells(&options(&AXES));
        assert_eq!(cells.len(), 2 * 8);
        let mut ids: Vec<String> = cells.iter().map(Cell::id).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), cells.len(), "links lead to one place");
    }

    #[test]
    fn one_journal_varies_one_parameter_each() {
        let cells = cells(&options(&[&AXES[..], &["--vary-on=8M"]].concat()));
        let ids: Vec<String> = cells.iter().map(Cell::id).collect();
        let expected = [
            "commits-4m-unbounded",
            "commits-8m-unbounded",
            "mail-8m-unbounded",
            "commits-8m-unbounded-delay-1000us",
            "commits-8m-5000",
        ];
        assert_eq!(ids, expected);
    }
}
