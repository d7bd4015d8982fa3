//! The plan: jobs, arms and cells, and the expectation of a cell before it is measured.

use std::time::Duration;

use serde::Serialize;
use vlane_units::show_size;

/// Writer to the volume whose cache mode is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Job {
    /// The driver: commits of 16K, round and round a journal.
    Commits,
    /// A guest: the steps of filebench's varmail.
    Mail,
    /// A guest: SQLite with a rollback journal, transactions as sysbench's OLTP has them.
    OltpRollback,
    /// The same with a write-ahead log.
    OltpWal,
    /// A guest: SQLite, LinkBench's mix of requests to a graph of nodes and links.
    Graph,
    /// A guest: SQLite, single inserts, updates and deletes, each a transaction, as MobiBench has
    /// them.
    Mobile,
    /// A guest: records appended to a log that each is made durable, as db_bench's fillsync does.
    Fill,
    /// A guest: tables of sorted records merged into new ones, as a compaction does.
    KvCompact,
    /// A guest: random reads and writes that are never made durable, as a control.
    Plain,
    /// The driver: what a guest with [`Job::Mail`] sent, again and again, as fast as it is taken.
    MailReplay,
}

impl Job {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Commits,
        Self::Mail,
        Self::OltpRollback,
        Self::OltpWal,
        Self::Graph,
        Self::Mobile,
        Self::Fill,
        Self::KvCompact,
        Self::Plain,
        Self::MailReplay,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Commits => "commits",
            Self::Mail => "mail",
            Self::OltpRollback => "oltp-rollback",
            Self::OltpWal => "oltp-wal",
            Self::Graph => "graph",
            Self::Mobile => "mobile",
            Self::Fill => "fill",
            Self::KvCompact => "kv-compact",
            Self::Plain => "plain",
            Self::MailReplay => "mail-replay",
        }
    }

    /// By its name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|job| job.name() == name)
    }

    /// True if a guest does it during the measurement.
    pub fn is_guest(self) -> bool {
        !matches!(self, Self::Commits | Self::MailReplay)
    }

    /// True if there is a guest at all.
    pub fn needs_guest(self) -> bool {
        self != Self::Commits
    }

    /// The job, and the case that it stands for.
    pub fn about(self) -> &'static str {
        match self {
            Self::Commits => "16K are written and flushed, round and round the journal",
            Self::Mail => {
                "a mail server: files made, appended to, fsynced, read, removed, by 16 threads \
                 (filebench's varmail)"
            }
            Self::OltpRollback => {
                "SQLite with a rollback journal: ten point and four range reads, two updates, a \
                 delete and an insert in each transaction (for sysbench's OLTP)"
            }
            Self::OltpWal => "the same transactions on SQLite with a write-ahead log",
            Self::Graph => {
                "SQLite with a write-ahead log: nodes and links in LinkBench's mix, 69 % reads \
                 (for LinkBench, which needs MySQL)"
            }
            Self::Mobile => {
                "SQLite with a rollback journal: an insert, an update or a delete in each \
                 transaction (for MobiBench, which does that on a phone's file system)"
            }
            Self::Fill => {
                "records of 116 bytes appended to a log and fdatasynced one by one (what LevelDB \
                 does for db_bench's fillsync; no compaction)"
            }
            Self::KvCompact => {
                "two tables of 2 MiB are read, merged by their keys, and written as two new ones, \
                 each fsynced (for LevelDB's compaction)"
            }
            Self::Plain => {
                "4K read and 4K written at random places of a file of 64 MiB, and nothing made \
                 durable (a control: db_bench's reads, and writes without sync)"
            }
            Self::MailReplay => {
                "what a guest with the mail job wrote, flushed and read, recorded once and sent \
                 again and again by the driver; an operation is a request"
            }
        }
    }
}

/// A way to serve the volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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

    /// Any options of `vlane serve`. The cache mode comes first in its name, without the option's.
    pub fn options(words: &[String]) -> Self {
        let (mode, rest) = split(words);
        let words_of_name: Vec<&str> = mode.into_iter().chain(rest).collect();
        Self { name: words_of_name.join(" "), arguments: words.to_vec() }
    }

    /// True if it is meant to reach the goals: it keeps the journal out of the cache, and keeps a
    /// flush's promise.
    pub fn has_goals(&self) -> bool {
        let (mode, rest) = split(&self.arguments);
        mode == Some(GOOD) && !rest.iter().any(|word| word.starts_with("--danger-"))
    }
}

/// The cache mode that the goals are for.
const GOOD: &str = "pdc";

/// The cache mode among options of `vlane serve`, and the others.
fn split(words: &[String]) -> (Option<&str>, Vec<&str>) {
    let (mut mode, mut rest) = (None, Vec::new());
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        match word.strip_prefix("--cache") {
            Some("") => mode = words.next(),
            Some(value) if value.starts_with('=') => mode = value.get(1..),
            _ => rest.push(word),
        }
    }
    (mode, rest)
}

/// Conditions under which the arms are compared.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cell {
    /// The writer; none: the neighbour's figures alone.
    pub job: Option<Job>,
    /// Bytes of the journal; 0 without a job.
    pub journal: u64,
    /// Reads per second that the neighbour asks for; none: the next when one is answered.
    pub rate: Option<f64>,
    /// True if the host's kernel may throttle write-back.
    pub throttled: bool,
    /// How much longer each `fdatasync` of the volume takes.
    pub delay: Duration,
}

impl Cell {
    /// It in words.
    pub fn title(&self) -> String {
        let rate = match self.rate {
            None => "reads unbounded".to_string(),
            Some(rate) => format!("{rate} reads/s"),
        };
        let control = if self.throttled { "" } else { ", write-back not throttled" };
        let delay = match self.delay {
            Duration::ZERO => String::new(),
            delay => format!(", flushes take {delay:?} longer"),
        };
        match self.job {
            None => format!("nobody writes, {rate}{control}"),
            Some(job) => {
                format!(
                    "{}, journal {}, {rate}{control}{delay}",
                    job.name(),
                    show_size(self.journal)
                )
            }
        }
    }

    /// It as a link.
    pub fn id(&self) -> String {
        let rate = self.rate.map_or_else(|| "unbounded".to_string(), |rate| format!("{rate:.0}"));
        let control = if self.throttled { "" } else { "-unthrottled" };
        let delay = match self.delay.as_micros() {
            0 => String::new(),
            us => format!("-delay-{us}us"),
        };
        match self.job {
            None => format!("alone-{rate}{control}"),
            Some(job) => format!("{}-{}m-{rate}{control}{delay}", job.name(), self.journal >> 20),
        }
    }
}

/// The effect of keeping the journal out of the cache, as the sizes alone predict it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
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

/// Share of the neighbour's reads that an LRU cache would answer. The neighbour reads at random at
/// `reads` bytes per second from a hot set of `hot` bytes. Through the same cache a journal is
/// written cyclically at `writes` bytes per second.
///
/// A page is evicted when the pages used since its last use fill the cache. Since t seconds ago
/// these are hot pages of hot * (1 - exp(-reads * t / hot)) bytes and min(journal, writes * t)
/// bytes of the journal. The t at which they fill the cache is the same for nearly all pages (Che,
/// Tung, Wang, "Hierarchical Web caching systems", 2002), and a read is a miss if its page was not
/// read for that long. Linux evicts otherwise: it separates pages used once from pages used again.
/// So the figures are compared with this, and need not reach it.
pub fn lru_hits(limit: u64, hot: u64, journal: u64, reads: f64, writes: f64) -> Option<f64> {
    let (limit, hot, journal) = (limit as f64, hot as f64, journal as f64);
    if !(hot > 0.0 && reads > 0.0 && reads.is_finite() && writes >= 0.0 && writes.is_finite()) {
        return None;
    }
    let used = |t: f64| hot * (1.0 - (-reads * t / hot).exp()) + journal.min(writes * t);
    // Beyond this the result is constant.
    let mut high = 1e3 * hot / reads + if writes > 0.0 { journal / writes } else { 0.0 };
    if used(high) <= limit {
        return Some(1.0);
    }
    let mut low = 0.0;
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if used(middle) < limit { low = middle } else { high = middle }
    }
    Some(1.0 - (-reads * low / hot).exp())
}

/// The varied parameters; each list has at least one entry.
#[derive(Debug, Clone, Copy)]
pub struct Axes<'a> {
    /// The writers.
    pub jobs: &'a [Job],
    /// Bytes of the journals.
    pub journals: &'a [u64],
    /// Reads per second that the neighbour asks for.
    pub rates: &'a [Option<f64>],
    /// With and without the kernel's write-back throttling.
    pub throttling: &'a [bool],
    /// How much longer flushes take.
    pub delays: &'a [Duration],
    /// On this journal alone all but the first of each list are measured, each with the first of
    /// the other lists; none: everything with everything.
    pub vary_on: Option<u64>,
}

/// The cells, in the order in which they are measured: for each way to read, the neighbour alone,
/// then each job on each journal.
pub fn cells(axes: &Axes<'_>) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (a, &throttled) in axes.throttling.iter().enumerate() {
        for (b, &rate) in axes.rates.iter().enumerate() {
            let alone = cells.len();
            for (c, &delay) in axes.delays.iter().enumerate() {
                for (d, &job) in axes.jobs.iter().enumerate() {
                    let varied = [a, b, c, d].into_iter().filter(|place| *place > 0).count();
                    let is_wanted = |journal: &&u64| match (axes.vary_on, varied) {
                        (None, _) | (_, 0) => true,
                        (Some(only), 1) => **journal == only,
                        _ => false,
                    };
                    let with =
                        |&journal: &u64| Cell { job: Some(job), journal, rate, throttled, delay };
                    cells.extend(axes.journals.iter().filter(is_wanted).map(with));
                }
            }
            if cells.len() > alone {
                let cell = Cell { job: None, journal: 0, rate, throttled, delay: Duration::ZERO };
                cells.insert(alone, cell);
            }
        }
    }
    cells
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use proptest::prelude::*;

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
    fn model_matches_earlier_measurements() {
        // 24,000 reads of 4K and 4,000 commits of 16K in a second: 0.73 to 0.85 were seen.
        let hits = |journal: u64, reads: u64| {
            let (reads, writes) = ((reads * 4096) as f64, f64::from(4000 * 16384));
            lru_hits(512 * MIB, 400 * MIB, journal * MIB, reads, writes).unwrap()
        };
        assert!((0.55..0.9).contains(&hits(256, 24_000)), "{}", hits(256, 24_000));
        // Pages that are read more often than the journal comes round stay.
        assert!(hits(256, 300_000) > 0.99);
        // Journals that fit stay, and so does a hot set without a journal beside it.
        assert!(hits(64, 24_000) > 0.9999);
        assert!(hits(0, 24_000) > 0.9999);
    }

    #[test]
    fn model_of_empty_cell_is_none() {
        assert_eq!(lru_hits(1, 0, 1, 1.0, 1.0), None);
        assert_eq!(lru_hits(1, 1, 1, 0.0, 1.0), None);
        assert_eq!(lru_hits(1, 1, 1, f64::NAN, 1.0), None);
    }

    #[test]
    fn arm_is_named_by_mode_and_options() {
        let of = |text: &str| Arm::options(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for (options, name, has_goals) in [
            ("--cache pdc --journal direct", "pdc --journal direct", true),
            ("--journal direct --cache=pdc", "pdc --journal direct", true),
            ("--cache pdc --danger-flush-journal-only", "pdc --danger-flush-journal-only", false),
            ("--cache writeback --poll off", "writeback --poll off", false),
            ("--poll off", "--poll off", false),
        ] {
            let arm = of(options);
            assert_eq!((arm.name.as_str(), arm.has_goals()), (name, has_goals));
            assert_eq!(arm.arguments.join(" "), options);
        }
        assert!(Arm::mode("pdc").has_goals() && !Arm::mode("none").has_goals());
        assert_eq!(of("--cache pdc"), Arm::mode("pdc"));
    }

    #[test]
    fn job_names_are_unique() {
        for job in Job::ALL {
            assert_eq!(Job::named(job.name()), Some(job));
        }
        assert_eq!(Job::named("no such job"), None);
    }

    const AXES: Axes<'_> = Axes {
        jobs: &[Job::Commits, Job::Mail],
        journals: &[MIB, 2 * MIB],
        rates: &[None, Some(5000.0)],
        throttling: &[true, false],
        delays: &[Duration::ZERO, Duration::from_millis(1)],
        vary_on: None,
    };

    #[test]
    fn cells_begin_with_neighbour_alone() {
        let cells = cells(&AXES);
        assert_eq!(cells.len(), 2 * 2 * (1 + 8));
        assert_eq!(cells.iter().filter(|cell| cell.job.is_none()).count(), 4);
        let mut ids: Vec<String> = cells.iter().map(Cell::id).collect();
        let mut titles: Vec<String> = cells.iter().map(Cell::title).collect();
        for names in [&mut ids, &mut titles] {
            names.sort();
            names.dedup();
            assert_eq!(names.len(), cells.len(), "links lead to one place");
        }
    }

    #[test]
    fn one_journal_varies_one_parameter_each() {
        let cells = cells(&Axes { vary_on: Some(2 * MIB), ..AXES });
        let ids: Vec<String> = cells.iter().map(Cell::id).collect();
        let expected = [
            "alone-unbounded",
            "commits-1m-unbounded",
            "commits-2m-unbounded",
            "mail-2m-unbounded",
            "commits-2m-unbounded-delay-1000us",
            "alone-5000",
            "commits-2m-5000",
            "alone-unbounded-unthrottled",
            "commits-2m-unbounded-unthrottled",
        ];
        assert_eq!(ids, expected);
    }

    proptest! {
        #[test]
        fn model_is_share_growing_with_cache(
            limit in 1..2048u64, more in 0..512u64, hot in 1..2048u64, journal in 0..2048u64, reads in 1.0..1e9f64, writes in 0.0..1e9f64,
        ) {
            let of = |limit: u64| lru_hits(limit * MIB, hot * MIB, journal * MIB, reads, writes).unwrap();
            let (less, greater) = (of(limit), of(limit + more));
            prop_assert!((0.0..=1.0).contains(&less));
            prop_assert!(greater >= less - 1e-9);
        }

        #[test]
        fn fitting_cache_has_no_misses(hot in 1..512u64, journal in 0..512u64, reads in 1.0..1e9f64, writes in 1.0..1e9f64) {
            prop_assert_eq!(lru_hits((hot + journal) * MIB, hot * MIB, journal * MIB, reads, writes), Some(1.0));
        }
    }
}
