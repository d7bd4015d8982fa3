//! A program that fsyncs a file on ext4, in parallel with readers of the same drive. It is the
//! foreground job of a shell in a guest.
//!
//! An fsync that appends waits for five requests, one after the other. They are the data, blocks of
//! the journal, a flush, the commit block and a second flush. The journal's thread makes most of
//! them, with its own priority. A recorded turn shows how long each of them took.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use vlane::values;

use super::guests::{Sample, keys, typed};
use super::machine::{Behind, FRESH, GuestArgs, Task};
use super::reader;
use vlane_capture::Trace;
use vlane_capture::analyze::class_name;
use vlane_report::Report;
use vlane_testbed::{Call, Machines, Medium, Place, Result};
use vlane_trace::{Priority, RequestKind};

pub(super) mod report;

/// Time of a measurement beside the foreground's, about.
const AROUND: Duration = Duration::from_secs(12);
/// Requests of an fsync, one after the other; no measurement takes longer than ten times as many.
const REQUESTS: u32 = 5;
/// Command of the background program with fsyncs.
const SYNCS: &str = "vlane express-read /mnt/$dev/background --sync --reads 4000000000 > /dev/null \
                     & beside=\"$beside $!\"; ";
/// Command of the background program that writes `@COUNT@` times 64 KiB every 250 ms, without
/// fsyncs. The guest's kernel writes them back after a second.
const WRITER: &str = "echo 100 > /proc/sys/vm/dirty_expire_centisecs; (n=0; while sleep 0.25; do \
                      dd if=/dev/zero of=/mnt/$dev/written bs=64k count=@COUNT@ \
                      seek=$((n++ % 8 * @COUNT@)) conv=notrunc 2> /dev/null; done) & \
                      beside=\"$beside $!\"; ";

/// The options
#[derive(Debug, Clone, Args)]
#[command(mut_arg("variants", |variants| variants.default_value("vanilla,proposed")))]
#[command(mut_arg("readers", |readers| readers.default_value("48")))]
pub struct Options {
    #[command(flatten)]
    pub(super) guest: GuestArgs,
    /// Fsyncs of the foreground program [default: 200 in uml, 100 in qemu]
    #[arg(long, value_name = "N", value_parser = values::whole::<u32>(1..=1_000_000))]
    pub(super) syncs: Option<u32>,
    /// Time from one fsync's begin to the next one's [default: 150ms in uml, 400ms in qemu]
    ///
    /// With an fsync that takes longer, the next one follows at once.
    #[arg(long, value_name = "TIME", value_parser = values::time_or_none)]
    pub(super) every: Option<Duration>,
    /// Directory on a real drive for images, instead of the model in RAM
    ///
    /// Classes can help where the readers keep the drive busy.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["latency", "parallel"])]
    pub(super) disk_dir: Option<PathBuf>,
    /// Read and write the real drive through the page cache
    ///
    /// A flush then writes what the background's programs left dirty there.
    #[arg(long, requires = "disk_dir")]
    pub(super) page_cache: bool,
    /// Run a background program that writes so much a second without fsyncs [default: 4M]
    #[arg(long, value_name = "SIZE", num_args = 0..=1, default_missing_value = "4M")]
    #[arg(value_parser = values::size)]
    pub(super) writer: Option<u64>,
    /// Run a background program that fsyncs a file of its own without a pause
    #[arg(long)]
    pub(super) background_sync: bool,
}

impl Options {
    /// Fsyncs of the foreground.
    fn syncs(&self, place: Machines) -> u32 {
        self.syncs.unwrap_or(if place == Machines::Uml { 200 } else { 100 })
    }

    /// The interval of the foreground's fsyncs. Most fsyncs of all variants are shorter, so all
    /// variants have as many in the same time.
    fn every(&self, place: Machines) -> Duration {
        let ms = if place == Machines::Uml { 150 } else { 400 };
        self.every.unwrap_or(Duration::from_millis(ms))
    }
}

/// Requests of one kind and I/O priority: their number, and their median and 99th percentile from
/// the ring to the answer, in ms.
type Hop = (&'static str, String, [f64; 3]);

const TITLES: [&str; 6] = [
    "write outside the journal",
    "journal block",
    "flush before the commit block",
    "commit block",
    "flush after the commit block",
    "read",
];

/// The requests of a recorded turn, by kind and priority.
///
/// A file system has one commit at a time. So the first write to the journal after a flush that
/// followed journal blocks is the commit block.
fn hops(trace: &Trace) -> Vec<Hop> {
    let in_journal = |sector: u64| {
        trace.layouts.iter().any(|piece| sector.wrapping_sub(piece.sector) < piece.sectors)
    };
    let (mut times, mut last) = (std::collections::BTreeMap::<_, Vec<u64>>::new(), 4);
    for place in trace.by_submission() {
        let record = &trace.requests[place].record;
        let hop = match (record.kind, in_journal(record.sector), last) {
            (RequestKind::Read, ..) => 5,
            (RequestKind::Write, false, _) => 0,
            (RequestKind::Write, true, 2) => 3,
            (RequestKind::Write, true, _) => 1,
            (RequestKind::Flush, _, 1 | 2) => 2,
            (RequestKind::Flush, ..) => 4,
            _ => continue,
        };
        last = if (1..5).contains(&hop) { hop } else { last };
        times.entry((hop, record.priority.0)).or_default().push(record.service);
    }
    let hop = |((hop, priority), mut ns): ((usize, u32), Vec<u64>)| -> Hop {
        let priority = Priority(priority);
        let priority = format!("{} {}", class_name(priority.class()), priority.level());
        let [_, p50, p99] = reader::mean_and_percentiles(&mut ns);
        (TITLES[hop], priority, [ns.len() as f64, p50 / 1e3, p99 / 1e3])
    };
    times.into_iter().map(hop).collect()
}

/// Measures with vlane's own file, and makes a report.
///
/// # Errors
/// As [`super::guests::run`].
pub fn run(options: &Options, call: &Call<'_>) -> Result<Report> {
    let keys = keys();
    let images = FRESH.0 * options.guest.variants.len() as u64;
    let find = |dir| Place::find(Medium::Disk, Some(dir), images, "--disk-dir");
    let real = options.disk_dir.as_deref().map(find).transpose()?;
    let task = |place| {
        let (model, syncs) = (options.guest.model(place), options.syncs(place));
        let readers = options.guest.readers.unwrap_or_default();
        let request = model.latency.mul_f64(f64::from(readers + 2) / f64::from(model.parallel));
        let every = options.every(place);
        let time = every.max(request * REQUESTS) * syncs;
        let seconds = every.as_secs_f64();
        let job = format!("/mnt/@DEV@/foreground --sync --reads {syncs} --every {seconds}s");
        let syncs_too = options.background_sync.then(|| SYNCS.to_owned());
        let writer =
            options.writer.map(|size| WRITER.replace("@COUNT@", &(size >> 18).max(1).to_string()));
        Task {
            place,
            readers,
            typed: typed(&job),
            keys: &keys,
            beside: syncs_too.into_iter().chain(writer).collect(),
            behind: Behind::Fresh(real.as_ref().map(|place| (place, !options.page_cache))),
            takes: (AROUND + time, time * 10),
        }
    };
    let sample = |place, said: &[String], beside| Sample::of(options.syncs(place), 0, said, beside);
    let show = |results: &[_]| report::fill(options, results, &call.begun);
    options.guest.measure(task, call, sample, show)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use vlane_trace::{Header, LayoutPiece, Record, Status};

    #[test]
    fn commit_is_split_into_its_requests() {
        use RequestKind::{Flush, Read, Write};
        let requests = [
            (Write, 9),
            (Read, 1),
            (Write, 100),
            (Write, 108),
            (Flush, 0),
            (Write, 116),
            (Flush, 0),
        ];
        let record = |(at, (kind, sector)): (u64, (RequestKind, u64))| Record {
            kind,
            status: Status::Ok,
            lane: 0,
            priority: Priority(2 << 13 | 3),
            submit: at * 1000,
            service: (at + 1) * 1_000_000,
            sector,
            sectors: 8,
            seq: 0,
            after: 0,
            more: false,
            unmap: false,
            hash: 0,
        };
        let records = (0..).zip(requests).map(record).collect();
        let mut trace = Trace::from_records(Header::default(), records);
        let piece = LayoutPiece { time: 0, filesystem: 0, sector: 100, sectors: 50, more: false };
        trace.layouts.push(piece);
        let hops = hops(&trace);
        let seen: Vec<_> = hops.iter().map(|(.., [count, p50, _])| (*count, *p50)).collect();
        assert_eq!(seen, [(1.0, 1.0), (2.0, 3.0), (1.0, 5.0), (1.0, 6.0), (1.0, 7.0), (1.0, 2.0)]);
        assert!(hops.iter().map(|hop| hop.0).eq(TITLES));
        assert_eq!(hops[0].1, "best effort 3");
    }
}
