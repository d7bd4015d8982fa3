//! The plan: the rows, the contenders in each, and the claims about the results.

use vlane_driver::Wait;
use vlane_report::Bound;
use vlane_testbed::{Aio, Also, Machines};

use super::Sample;

/// Storage behind the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Medium {
    /// None: no data are touched, and each request takes so many us.
    Null { us: u64 },
    /// A file on a RAM disk (tmpfs), through the page cache.
    Ram,
    /// A file on the disk, with O_DIRECT.
    Disk,
}

/// The party that does the work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Contender {
    /// `vlane serve`, with further arguments.
    Vlane(Vec<String>),
    /// qemu-storage-daemon; if there is a file, it reaches it so.
    Qsd(Aio),
    /// A loop of plain pread or pwrite calls on the file, without any guest.
    Loop,
    /// fio on the host: io_uring, O_DIRECT, the same depth.
    Fio,
}

/// The client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Client {
    /// vlane's own driver.
    Driver,
    /// fio with libblkio, on a CPU of its own: a foreign client.
    Blkio,
    /// fio in a guest.
    Guest(Machines),
}

/// The load, as the guest's side makes it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) pattern: &'static str,
    pub(super) block: u32,
    pub(super) depth: u16,
    pub(super) jobs: u16,
    pub(super) wait: Wait,
    /// Server and driver on a CPU each; otherwise both on all.
    pub(super) pinned: bool,
    /// Requests asked for per second (0: as many as there can be), in a comparison of costs.
    pub(super) rate: Option<u32>,
    /// True for a session without requests.
    pub(super) idle: bool,
}

/// A figure of a sample.
#[derive(Debug, Clone, Copy)]
pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) of: fn(&Sample) -> f64,
}

const fn figure(name: &'static str, unit: &'static str, of: fn(&Sample) -> f64) -> Figure {
    Figure { name, unit, of }
}

pub(super) const IOPS: Figure = figure("IOPS", "", |sample| sample.iops);
pub(super) const CPU: Figure = figure("CPU per I/O", "us", |sample| sample.cpu_us);
pub(super) const P50: Figure = figure("p50 latency", "us", |sample| sample.p50_us);
pub(super) const P99: Figure = figure("p99 latency", "us", |sample| sample.p99_us);
const SWITCHES: Figure = figure("context switches per I/O", "", |sample| sample.switches_per_io);
const IDLE_CPU: Figure = figure("CPU time", "ms", |sample| sample.cpu_ms);
const IDLE_SWITCHES: Figure = figure("context switches", "", |sample| sample.switches);

/// Figures with their keys in JSON, where the client asks for all that it can get.
const UNLIMITED: [(&str, Figure); 9] = [
    ("iops", IOPS),
    ("mb_per_second", figure("data", "MB/s", |sample| sample.mb_per_second)),
    ("p50_us", P50),
    ("p99_us", P99),
    ("cpu_us_per_io", CPU),
    ("switches_per_io", SWITCHES),
    ("driver_cpu_us_per_io", figure("client's CPU per I/O", "us", |sample| sample.client_cpu_us)),
    ("cpu_ms", IDLE_CPU),
    ("switches", IDLE_SWITCHES),
];
/// The same at a given rate.
const AT_RATE: [(&str, Figure); 8] = [
    ("iops", IOPS),
    ("p50_us", P50),
    ("p99_us", P99),
    ("cpu_us", CPU),
    ("backend_cpu_us", figure("back end's CPU per I/O", "us", |sample| sample.backend_cpu_us)),
    (
        "guest_cpu_us",
        figure("guest's CPU per I/O", "us", |sample| sample.guest_cpu_us.unwrap_or(f64::NAN)),
    ),
    ("switches", SWITCHES),
    (
        "instructions",
        figure("instructions per I/O", "", |sample| sample.instructions.unwrap_or(f64::NAN)),
    ),
];

/// "The `figure` of `of` is `bound` times that of `over`"; without `over`, the bound is absolute.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    pub(super) figure: Figure,
    /// Place in the row's contenders.
    pub(super) of: usize,
    /// Likewise; qemu-storage-daemon's first place stands for the better of its settings
    /// ([`super::judge::resolve`]).
    pub(super) over: Option<usize>,
    pub(super) bound: Bound,
    /// True in the short table of [`super::markdown`].
    pub(super) headline: bool,
}

/// A comparison of contenders, and the claims about it.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its name for `--rows`.
    pub id: String,
    /// Its subject.
    pub title: String,
    /// Name and subject of the rows that it is one of.
    pub group: (&'static str, String),
    pub(super) medium: Medium,
    pub(super) client: Client,
    pub(super) load: Load,
    pub(super) contenders: Vec<(String, Contender)>,
    pub(super) claims: Vec<Claim>,
}

impl Row {
    /// True if a name stands for it: its own, or its group's.
    pub fn is_called(&self, name: &str) -> bool {
        name == self.id || self.load.rate.is_some() && name == self.group.0
    }

    /// Figures of its samples, with their keys in JSON.
    pub(super) fn figures(&self) -> &'static [(&'static str, Figure)] {
        if self.load.rate.is_some() { &AT_RATE } else { &UNLIMITED }
    }

    pub(super) fn is_daemon(&self, place: usize) -> bool {
        matches!(self.contenders[place].1, Contender::Qsd(_))
    }
}

/// Every row in which the client asks for all that it can get, or has a given rate. At a rate,
/// vlane is also measured with other options.
pub fn rows(fixed_load: bool, also: &[Also]) -> Vec<Row> {
    if fixed_load {
        return at_rates(also);
    }
    let mut rows = at_most();
    // Some again, with a second client.
    rows.extend(
        [("null-fio", NULL), ("ram-read-fio", Medium::Ram), ("disk-read-fio", Medium::Disk)].map(
            |(id, medium)| {
                let row = Row::new(id, medium, RANDOM_READ).and(", by fio with libblkio");
                Row { client: Client::Blkio, ..row }.claim(IOPS, 1, Bound::AtLeast(1.0))
            },
        ),
    );
    rows
}

const RANDOM_READ: Load = Load {
    pattern: "randread",
    block: 4096,
    depth: 32,
    jobs: 1,
    wait: Wait::Interrupt,
    pinned: true,
    rate: None,
    idle: false,
};

/// vlane with further options.
fn vlane(words: &[String]) -> (String, Contender) {
    (
        ["vlane"].into_iter().chain(words.iter().map(String::as_str)).collect::<Vec<_>>().join(" "),
        Contender::Vlane(words.to_vec()),
    )
}

/// vlane, and qemu-storage-daemon with its settings on a medium. Without a file it has no choice.
/// On a file both settings are tried, and the better is taken.
fn both(medium: Medium) -> Vec<(String, Contender)> {
    let daemons: &[(&str, Aio)] = match medium {
        Medium::Null { .. } => &[("qemu-storage-daemon", Aio::IoUring)],
        Medium::Ram | Medium::Disk => &[
            ("qemu-storage-daemon, aio=io_uring", Aio::IoUring),
            ("qemu-storage-daemon, aio=threads", Aio::Threads),
        ],
    };
    let daemons = daemons.iter().map(|(name, aio)| ((*name).to_owned(), Contender::Qsd(*aio)));
    std::iter::once(vlane(&[])).chain(daemons).collect()
}

impl Medium {
    /// For people.
    fn name(self) -> String {
        match self {
            Self::Null { us: 0 } => "null".into(),
            Self::Null { us } => format!("null that takes {us} us"),
            Self::Ram => "RAM disk".into(),
            Self::Disk => "disk, direct".into(),
        }
    }
}

impl Row {
    /// A row of vlane and qemu-storage-daemon, without claims.
    fn new(id: impl Into<String>, medium: Medium, load: Load) -> Self {
        let (name, size) = (medium.name(), load.block >> 10);
        let access = match load.pattern.strip_prefix("rand") {
            Some(direction) => format!("random {direction}"),
            None => format!("sequential {}", load.pattern),
        };
        Self {
            id: id.into(),
            title: format!("{name}, {size}K {access}, depth {}", load.depth),
            group: ("figures", "Everything that was measured".into()),
            medium,
            client: Client::Driver,
            load,
            contenders: both(medium),
            claims: Vec::new(),
        }
    }

    /// Further words of the title.
    fn and(self, words: &str) -> Self {
        Self { title: self.title + words, ..self }
    }

    fn with(mut self, name: &str, contender: Contender) -> Self {
        self.contenders.push((name.to_owned(), contender));
        self
    }

    /// Claims it of the first contender.
    fn claim(mut self, figure: Figure, over: impl Into<Option<usize>>, bound: Bound) -> Self {
        self.claims.push(Claim { figure, of: 0, over: over.into(), bound, headline: false });
        self
    }

    /// The same for the short table.
    fn tell(self, figure: Figure, over: usize, bound: Bound) -> Self {
        let mut row = self.claim(figure, over, bound);
        row.claims.last_mut().into_iter().for_each(|claim| claim.headline = true);
        row
    }
}

const NULL: Medium = Medium::Null { us: 0 };

/// Rows with a given rate: the group's name, its client and medium, depths and rates.
type Group = (&'static str, Client, Medium, &'static [u16], &'static [u32]);

const fn native(name: &'static str, medium: Medium) -> Group {
    (name, Client::Blkio, medium, &[4, 1], &[1_000, 10_000, 50_000, 100_000])
}

const UML: Client = Client::Guest(Machines::Uml);
const QEMU: Client = Client::Guest(Machines::Qemu);
const GUEST_RATES: &[u32] = &[1_000, 3_000, 10_000];
const GROUPS: [Group; 9] = [
    native("null", NULL),
    native("null-25us", Medium::Null { us: 25 }),
    native("null-100us", Medium::Null { us: 100 }),
    native("ram", Medium::Ram),
    native("disk", Medium::Disk),
    ("uml", UML, NULL, &[4, 1], GUEST_RATES),
    ("uml-fast", UML, NULL, &[32, 1], &[0]),
    ("qemu", QEMU, NULL, &[4], GUEST_RATES),
    ("qemu-fast", QEMU, NULL, &[32], &[0]),
];

/// A row for each depth and rate of each group: at the same load vlane needs at most as much CPU
/// time and latency as qemu-storage-daemon.
fn at_rates(also: &[Also]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (group, client, medium, depths, rates) in GROUPS {
        let subject = match client {
            UML => format!("User-Mode Linux guest, {}", medium.name()),
            QEMU => format!("QEMU guest, {}", medium.name()),
            _ => medium.name(),
        };
        for (depth, rate) in depths.iter().flat_map(|d| rates.iter().map(move |r| (*d, *r))) {
            let (short, words) = match rate {
                0 => ("all".into(), "as fast as it goes".into()),
                rate => (format!("{}k", rate / 1000), format!("{}k IOPS", rate / 1000)),
            };
            let load = Load { depth, rate: Some(rate), ..RANDOM_READ };
            let mut row = Row {
                title: format!("{subject}, {words}, depth {depth}"),
                group: (group, subject.clone()),
                client,
                ..Row::new(format!("{group}-{short}-d{depth}"), medium, load)
            };
            row.contenders.extend(also.iter().map(|also| vlane(&also.0)));
            let vlanes = (0..row.contenders.len()).filter(|place| !row.is_daemon(*place));
            let claims = vlanes.flat_map(|of| {
                let (over, bound, headline) = (Some(1), Bound::AtMost(1.0), false);
                [CPU, P50].map(|figure| Claim { figure, of, over, bound, headline })
            });
            row.claims = claims.collect();
            rows.push(row);
        }
    }
    rows
}

/// Rows in which the driver asks for all that it can get.
fn at_most() -> Vec<Row> {
    use Bound::{AtLeast, AtMost};
    let (sixth, quarter) = (AtMost(1.0 / 6.0), AtMost(0.25));
    let one = Load { depth: 1, ..RANDOM_READ };
    let large = |pattern| Load { pattern, block: 32768, ..RANDOM_READ };
    let (write, idle) =
        (Load { pattern: "randwrite", ..RANDOM_READ }, Load { idle: true, ..RANDOM_READ });
    // Also against a loop of system calls on the host.
    let ram = |id: &str, load| {
        let row = Row::new(id, Medium::Ram, load).with("plain loop", Contender::Loop);
        row.tell(IOPS, 1, AtLeast(3.5)).claim(IOPS, 3, AtLeast(0.85))
    };
    // Two jobs on two queues: two threads, one, and qemu-storage-daemon.
    let lanes = |id: &str, medium: Medium| {
        let load = Load { jobs: 2, pinned: false, ..RANDOM_READ };
        let title = format!("{}, two jobs on two queues, shared CPUs", medium.name());
        let mut row = Row { title, ..Row::new(id, medium, load) };
        let by = |name: &str, threads: &str| {
            let words = ["--queues", "2", "--threads", threads].map(str::to_owned);
            (name.to_owned(), Contender::Vlane(words.into()))
        };
        row.contenders.splice(..1, [by("vlane, 2 threads", "2"), by("vlane, 1 thread", "1")]);
        row.claim(IOPS, 1, AtLeast(1.0))
    };
    let mut no_poll = Row::new("latency-no-poll", NULL, one).and(", vlane without polling");
    no_poll.contenders[0] = vlane(&["--poll-max", "0"].map(str::to_owned));
    vec![
        Row::new("null", NULL, RANDOM_READ).tell(IOPS, 1, AtLeast(6.0)).tell(CPU, 1, sixth),
        Row::new("null-poll", NULL, Load { wait: Wait::Poll, ..RANDOM_READ })
            .and(", driver polls")
            .claim(IOPS, None, AtLeast(2.0e6))
            .claim(IOPS, 1, AtLeast(6.0)),
        ram("ram-read", RANDOM_READ),
        ram("ram-write", write),
        Row::new("disk-read", Medium::Disk, RANDOM_READ)
            .with("fio on the host", Contender::Fio)
            .tell(IOPS, 3, AtLeast(0.98))
            .tell(IOPS, 1, AtLeast(1.0))
            .claim(CPU, 1, AtMost(1.0)),
        Row::new("latency", NULL, one).tell(P50, 1, AtMost(0.4)),
        no_poll.claim(P50, 1, AtMost(0.9)),
        Row::new("ram-read-32k", Medium::Ram, large("read")).tell(IOPS, 1, AtLeast(1.7)),
        Row::new("ram-write-32k", Medium::Ram, large("write")).claim(IOPS, 1, AtLeast(1.7)),
        Row { title: "idle session, 10 s".into(), ..Row::new("idle", NULL, idle) }
            .claim(IDLE_CPU, None, AtMost(0.0))
            .claim(IDLE_SWITCHES, None, AtMost(0.0)),
        lanes("lanes-null", NULL).claim(IOPS, 2, AtLeast(1.0)).claim(SWITCHES, 2, quarter),
        lanes("lanes-ram", Medium::Ram).tell(IOPS, 2, AtLeast(1.0)).claim(SWITCHES, 2, quarter),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_unique_and_claims_fit() {
        let also = [Also(vec!["--poll-max".into(), "0".into()])];
        let (usual, rated) = (rows(false, &[]), rows(true, &also));
        for all in [&usual, &rated] {
            for (i, row) in all.iter().enumerate() {
                assert!(all[..i].iter().all(|other| other.id != row.id), "{}", row.id);
                let is_there = |place: usize| place < row.contenders.len();
                assert!(row.claims.iter().all(|c| is_there(c.of) && c.over.is_none_or(is_there)));
                assert!(row.load.pattern.parse::<vlane_driver::Pattern>().is_ok());
                let settings =
                    (0..row.contenders.len()).filter(|place| row.is_daemon(*place)).count();
                let has_file = matches!(row.medium, Medium::Ram | Medium::Disk);
                assert_eq!(settings, if has_file { 2 } else { 1 }, "{}", row.id);
            }
        }
        // The second client gets the first's load, as far as it can express it.
        assert!(usual.iter().filter(|row| row.client == Client::Blkio).all(|row| {
            (row.load.pattern, row.load.block, row.load.jobs) == ("randread", 4096, 1)
                && row
                    .contenders
                    .iter()
                    .all(|(_, who)| matches!(who, Contender::Vlane(_) | Contender::Qsd(_)))
        }));
        let told = usual.iter().flat_map(|row| &row.claims).filter(|claim| claim.headline);
        assert!((1..=9).contains(&told.count()), "the short table is short");
        assert!(Bound::AtLeast(2.0).holds(2.0) && !Bound::AtMost(0.25).holds(f64::NAN));
    }

    #[test]
    fn names_select_rows_or_groups() {
        let all = rows(true, &[]);
        assert_eq!(all.len(), 5 * 8 + 6 + 2 + 3 + 1);
        for row in &all {
            assert_eq!(
                all.iter().filter(|other| other.is_called(&row.id)).count(),
                1,
                "{}",
                row.id
            );
        }
        for (group, .., depths, rates) in GROUPS {
            let named = all.iter().filter(|row| row.is_called(group)).count();
            assert_eq!(named, depths.len() * rates.len(), "{group}");
        }
        assert_eq!(all[1].id, "null-10k-d4");
        assert!(all.iter().any(|row| row.id == "uml-fast-all-d32"));
    }
}
