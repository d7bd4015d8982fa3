//! The plan: the rows, the contenders in each, and the claims about the results.

use vlane_driver::Wait;
use vlane_report::judge::Bound;
use vlane_testbed::server::Aio;

/// Storage behind the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Medium {
    /// None: requests succeed at once, no data are touched.
    Null,
    /// None, but each request takes so long.
    Slow { us: u64 },
    /// A file on a RAM disk (tmpfs), through the page cache.
    Ram,
    /// A file on the disk, with O_DIRECT.
    Disk,
}

/// The party that does the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contender {
    /// `vlane serve`, with further arguments.
    Vlane(&'static [&'static str]),
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
    /// fio with libblkio: a foreign client.
    Blkio,
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
}

/// A figure of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Metric {
    Iops,
    CpuPerIo,
    P50,
    SwitchesPerIo,
    /// CPU time during the idle time, in ms.
    IdleCpu,
    /// Context switches during the idle time.
    IdleSwitches,
}

/// "The `metric` of `of` is `bound` times that of `over`"; without `over`, the bound is absolute.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    pub(super) metric: Metric,
    /// Place in the row's contenders.
    pub(super) of: usize,
    /// Likewise; qemu-storage-daemon's first place stands for the better of its settings
    /// ([`super::judge::resolve`]).
    pub(super) over: Option<usize>,
    pub(super) bound: Bound,
    /// Its subject, for a reader who sees only this line. Claims that have it make the table of
    /// [`super::markdown`].
    pub(super) headline: Option<&'static str>,
}

impl Claim {
    /// One for the short table.
    fn told(self, headline: &'static str) -> Self {
        Self { headline: Some(headline), ..self }
    }
}

/// A comparison of contenders, and the claims about it.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its name for `--rows`.
    pub id: &'static str,
    /// Its subject.
    pub title: &'static str,
    pub(super) medium: Medium,
    pub(super) client: Client,
    /// `None`: the session is idle.
    pub(super) load: Option<Load>,
    pub(super) contenders: Vec<(&'static str, Contender)>,
    pub(super) claims: Vec<Claim>,
}

const RANDOM_READ: Load = Load {
    pattern: "randread",
    block: 4096,
    depth: 32,
    jobs: 1,
    wait: Wait::Interrupt,
    pinned: true,
};

const VLANE: (&str, Contender) = ("vlane", Contender::Vlane(&[]));
const QSD: (&str, Contender) = ("qemu-storage-daemon", Contender::Qsd(Aio::IoUring));

/// qemu-storage-daemon's settings on a medium. Without a file it has no choice. On a file both
/// settings are tried, and the better is taken.
pub(super) fn daemons(medium: Medium) -> &'static [(&'static str, Aio)] {
    match medium {
        Medium::Null | Medium::Slow { .. } => &[("qemu-storage-daemon", Aio::IoUring)],
        Medium::Ram | Medium::Disk => &[
            ("qemu-storage-daemon, aio=io_uring", Aio::IoUring),
            ("qemu-storage-daemon, aio=threads", Aio::Threads),
        ],
    }
}

/// Them among a row's contenders.
fn storage_daemons(medium: Medium) -> impl Iterator<Item = (&'static str, Contender)> {
    daemons(medium).iter().map(|(name, aio)| (*name, Contender::Qsd(*aio)))
}

fn against(metric: Metric, over: usize, bound: Bound) -> Claim {
    Claim { metric, of: 0, over: Some(over), bound, headline: None }
}

fn absolute(metric: Metric, bound: Bound) -> Claim {
    Claim { metric, of: 0, over: None, bound, headline: None }
}

/// A row of vlane and qemu-storage-daemon.
fn pair(
    id: &'static str,
    title: &'static str,
    medium: Medium,
    load: Load,
    claims: Vec<Claim>,
) -> Row {
    let contenders = std::iter::once(VLANE).chain(storage_daemons(medium)).collect();
    Row { id, title, medium, client: Client::Driver, load: Some(load), contenders, claims }
}

/// A row on a RAM disk, also against a loop of system calls on the host.
fn ram(
    id: &'static str,
    title: &'static str,
    pattern: &'static str,
    headline: &'static str,
) -> Row {
    let claims = vec![
        against(Metric::Iops, 1, Bound::AtLeast(3.5)).told(headline),
        against(Metric::Iops, 3, Bound::AtLeast(0.85)),
    ];
    let mut row = pair(id, title, Medium::Ram, Load { pattern, ..RANDOM_READ }, claims);
    row.contenders.push(("plain loop", Contender::Loop));
    row
}

/// Two jobs on two queues: two threads, one, and qemu-storage-daemon.
fn two_lanes(id: &'static str, title: &'static str, medium: Medium, qsd: Claim) -> Row {
    let load = Load { jobs: 2, pinned: false, ..RANDOM_READ };
    let mut contenders = vec![
        ("vlane, 2 threads", Contender::Vlane(&["--queues", "2", "--threads", "2"])),
        ("vlane, 1 thread", Contender::Vlane(&["--queues", "2", "--threads", "1"])),
    ];
    contenders.extend(storage_daemons(medium));
    let claims = vec![
        against(Metric::Iops, 1, Bound::AtLeast(1.0)),
        qsd,
        against(Metric::SwitchesPerIo, 2, Bound::AtMost(0.25)),
    ];
    Row { contenders, ..pair(id, title, medium, load, claims) }
}

/// Every row.
pub fn rows() -> Vec<Row> {
    let mut rows = small();
    rows.extend(others());
    rows.extend(second_client());
    rows
}

/// Some of the rows again, with fio and libblkio as the client.
fn second_client() -> Vec<Row> {
    let row = |id, title, medium| {
        let claims = vec![against(Metric::Iops, 1, Bound::AtLeast(1.0))];
        Row { client: Client::Blkio, ..pair(id, title, medium, RANDOM_READ, claims) }
    };
    vec![
        row("null-fio", "null, 4K random read, depth 32, by fio with libblkio", Medium::Null),
        row(
            "ram-read-fio",
            "RAM disk, 4K random read, depth 32, by fio with libblkio",
            Medium::Ram,
        ),
        row(
            "disk-read-fio",
            "disk, direct, 4K random read, depth 32, by fio with libblkio",
            Medium::Disk,
        ),
    ]
}

/// Requests of 4K by one job.
fn small() -> Vec<Row> {
    use Bound::{AtLeast, AtMost};
    use Metric::{CpuPerIo, Iops, P50};
    let one = Load { depth: 1, ..RANDOM_READ };
    vec![
        pair(
            "null",
            "null, 4K random read, depth 32",
            Medium::Null,
            RANDOM_READ,
            vec![
                against(Iops, 1, AtLeast(6.0))
                    .told("no medium, random reads of 4K, 32 at once: IOPS"),
                against(CpuPerIo, 1, AtMost(1.0 / 6.0))
                    .told("the same: back end's CPU time per request"),
            ],
        ),
        pair(
            "null-poll",
            "null, 4K random read, depth 32, driver polls",
            Medium::Null,
            Load { wait: Wait::Poll, ..RANDOM_READ },
            vec![absolute(Iops, AtLeast(2.0e6)), against(Iops, 1, AtLeast(6.0))],
        ),
        ram(
            "ram-read",
            "RAM disk, 4K random read, depth 32",
            "randread",
            "RAM disk, random reads of 4K, 32 at once: IOPS",
        ),
        ram(
            "ram-write",
            "RAM disk, 4K random write, depth 32",
            "randwrite",
            "RAM disk, random writes of 4K, 32 at once: IOPS",
        ),
        disk_read(),
        pair(
            "latency",
            "null, 4K random read, depth 1",
            Medium::Null,
            one,
            vec![
                against(P50, 1, AtMost(0.4))
                    .told("no medium, random reads of 4K, one at a time: median latency"),
            ],
        ),
        Row {
            contenders: vec![("vlane --poll-max 0", Contender::Vlane(&["--poll-max", "0"])), QSD],
            ..pair(
                "latency-no-poll",
                "null, 4K random read, depth 1, vlane without polling",
                Medium::Null,
                one,
                vec![against(P50, 1, AtMost(0.9))],
            )
        },
    ]
}

/// The disk, also against fio on the host.
fn disk_read() -> Row {
    use Metric::{CpuPerIo, Iops};
    let claims = vec![
        against(Iops, 3, Bound::AtLeast(0.98))
            .told("disk, random reads of 4K, 32 at once, against no guest at all: IOPS"),
        against(Iops, 1, Bound::AtLeast(1.0)).told("disk, random reads of 4K, 32 at once: IOPS"),
        against(CpuPerIo, 1, Bound::AtMost(1.0)),
    ];
    let mut row = pair(
        "disk-read",
        "disk, direct, 4K random read, depth 32",
        Medium::Disk,
        RANDOM_READ,
        claims,
    );
    row.contenders.push(("fio on the host", Contender::Fio));
    row
}

/// Large requests, none, and two jobs.
fn others() -> Vec<Row> {
    use Bound::{AtLeast, AtMost};
    use Metric::{IdleCpu, IdleSwitches, Iops};
    let large = |pattern| Load { pattern, block: 32768, ..RANDOM_READ };
    vec![
        pair(
            "ram-read-32k",
            "RAM disk, 32K sequential read, depth 32",
            Medium::Ram,
            large("read"),
            vec![
                against(Iops, 1, AtLeast(1.7))
                    .told("RAM disk, sequential reads of 32K, 32 at once: IOPS"),
            ],
        ),
        pair(
            "ram-write-32k",
            "RAM disk, 32K sequential write, depth 32",
            Medium::Ram,
            large("write"),
            vec![against(Iops, 1, AtLeast(1.7))],
        ),
        Row {
            id: "idle",
            title: "idle session, 10 s",
            medium: Medium::Null,
            client: Client::Driver,
            load: None,
            contenders: vec![VLANE, QSD],
            claims: vec![absolute(IdleCpu, AtMost(0.0)), absolute(IdleSwitches, AtMost(0.0))],
        },
        two_lanes(
            "lanes-null",
            "null, two jobs on two queues, shared CPUs",
            Medium::Null,
            against(Iops, 2, AtLeast(1.0)),
        ),
        two_lanes(
            "lanes-ram",
            "RAM disk, two jobs on two queues, shared CPUs",
            Medium::Ram,
            against(Iops, 2, AtLeast(1.0))
                .told("RAM disk, random reads of 4K by two vCPUs, a queue and a thread each: IOPS"),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_unique_and_claims_fit() {
        let rows = rows();
        for (i, row) in rows.iter().enumerate() {
            assert!(rows[..i].iter().all(|other| other.id != row.id), "{}", row.id);
            assert!(row.claims.iter().all(|c| c.of < row.contenders.len()));
            assert!(
                row.claims.iter().all(|c| c.over.is_none_or(|over| over < row.contenders.len()))
            );
            assert!(
                row.load.is_none_or(|load| load.pattern.parse::<vlane_driver::Pattern>().is_ok())
            );
        }
        // The second client gets the first's load, as far as it can express it.
        assert!(rows.iter().filter(|row| row.client == Client::Blkio).all(|row| {
            row.load
                .is_some_and(|load| (load.pattern, load.block, load.jobs) == ("randread", 4096, 1))
                && row
                    .contenders
                    .iter()
                    .all(|(_, who)| matches!(who, Contender::Vlane(_) | Contender::Qsd(_)))
        }));
        for row in &rows {
            let settings =
                row.contenders.iter().filter(|(_, who)| matches!(who, Contender::Qsd(_))).count();
            let has_file = matches!(row.medium, Medium::Ram | Medium::Disk);
            assert_eq!(settings, if has_file { 2 } else { 1 }, "{}", row.id);
        }
        let told = rows.iter().flat_map(|row| &row.claims).filter(|claim| claim.headline.is_some());
        assert!((1..=9).contains(&told.count()), "the short table is short");
        assert!(Bound::AtLeast(2.0).holds(2.0) && !Bound::AtMost(0.25).holds(f64::NAN));
    }
}
