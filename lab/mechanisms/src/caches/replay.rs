//! The driver repeats a guest's recorded requests cyclically, as fast as the back end takes them.
//! So the guest's own CPU time does not hide the effect of a mode.
//!
//! A trace has no data. Data in the place of a superblock, or of other blocks that locate the
//! journal, would be read as a damaged file system. The journal would then be unknown. So these few
//! writes are left out. All others are made, the journal's among them, at their places and in their
//! order (see [`vlane_driver::replay`]).

use std::fs::File;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use vlane_driver::Session;
use vlane_driver::replay::{ReplayKind, ReplayOptions, ReplayPlan, ReplayRequest, Timing, replay};
use vlane_error::counted;
use vlane_policy::journal::{Disk, layout};
use vlane_units::show_size;

use super::job::Done;
use super::plan::Job;
use super::volume::Volume;
use vlane_capture::Trace;
use vlane_capture::replay::prepare;
use vlane_testbed::{At, ErrorKind, Fail, Result};

/// Seed of the written data.
const SEED: u64 = 1;
/// A trace that is shorter than this is sent several times before the session ends.
const REQUESTS: usize = 300_000;
/// Requests out at once, at most.
const DEPTH: u16 = 64;
/// Bytes of a journal's superblock.
const BLOCK: u64 = 4096;
/// Bytes per second of a journal that a guest is taken to write at least: how long it is recorded.
const JOURNAL_RATE: u64 = 4 << 20;

/// A guest's requests to a volume, ready to be repeated.
#[derive(Debug)]
pub struct Replay {
    plan: ReplayPlan,
    depth: u16,
    /// Its description, for people.
    pub about: String,
}

/// For so long a guest is recorded, that it may write all of a journal of so many bytes.
pub fn recording_time(time: Duration, journal: u64) -> Duration {
    time.max(Duration::from_secs(journal / JOURNAL_RATE))
}

struct Image(File);

impl Disk for Image {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> bool {
        self.0.read_exact_at(buffer, offset).is_ok()
    }
}

impl Replay {
    /// Of a trace of a volume's.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the volume cannot be read, [`ErrorKind::Invalid`] if no request of the
    /// trace can be replayed.
    pub fn new(trace: &Trace, volume: &Volume) -> Result<Self> {
        let prepared = prepare(trace, SEED)?;
        let depth = prepared.depth.clamp(1, DEPTH);
        let kept = untouched(volume)?;
        let all = prepared.requests.len();
        let is_kept =
            |request: &ReplayRequest| request.kind.writes() && overlaps(&kept, &bytes(request));
        let requests: Vec<ReplayRequest> =
            prepared.requests.into_iter().filter(|request| !is_kept(request)).collect();
        if !requests.iter().any(|request| request.kind.writes()) {
            return ErrorKind::Invalid.fail("the recorded guest did not write");
        }
        let about = about(volume, &requests, all - requests.len());
        Ok(Self { plan: ReplayPlan::new(repeated(&requests))?, depth, about })
    }

    /// Sends it until then, or until it is to stop, to who serves at `socket`.
    ///
    /// # Errors
    /// [`ErrorKind::Process`] if requests fail; those of the driver.
    pub fn run(&self, socket: &Path, until: Instant, stop: &AtomicBool) -> Result<Done> {
        let options = ReplayOptions { timing: Timing::AsFast, ..ReplayOptions::default() };
        let session = self.plan.session_options(self.depth)?;
        let is_over = || stop.load(Ordering::Relaxed) || Instant::now() >= until;
        let mut reports = Vec::new();
        while !is_over() {
            let session = Session::connect(socket, &session)?;
            let report = replay(session, &self.plan, &options, &mut |_| {
                if is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            if report.run.errors.total() > 0 {
                return ErrorKind::Process.fail("the volume answers replayed requests with errors");
            }
            reports.push(report.run);
        }
        // The 99th percentile is that of flushes, of the report that has the most of them.
        let flushes = reports.iter().filter_map(|report| report.flushes.as_ref());
        let longest = flushes.max_by_key(|flushes| flushes.ios);
        let requests: u64 = reports.iter().map(|report| report.ios).sum();
        let seconds: f64 = reports.iter().map(|report| report.seconds).sum();
        Ok(Done {
            per_second: requests as f64 / seconds.max(1e-9),
            p99_us: longest.map_or(f64::NAN, |flushes| flushes.latency.p99),
        })
    }
}

fn bytes(request: &ReplayRequest) -> Range<u64> {
    let begin = request.sector.saturating_mul(512);
    begin..begin.saturating_add(u64::from(request.sectors) * 512)
}

fn overlaps(ranges: &[Range<u64>], range: &Range<u64>) -> bool {
    ranges.iter().any(|other| other.start < range.end && range.start < other.end)
}

/// Places that must stay unwritten for the journal to stay known: the blocks read to find it, and
/// its superblock.
fn untouched(volume: &Volume) -> Result<Vec<Range<u64>>> {
    let file = File::open(volume.image.path());
    let file = file.at(volume.image.path(), "cannot be read")?;
    let layout = layout::read(&mut Image(file), volume.image.bytes());
    let first = volume.ranges.first().map(|range| range.start..range.start + BLOCK);
    Ok(layout.watched.into_iter().chain(first).collect())
}

/// Several times the same, one behind the other.
fn repeated(requests: &[ReplayRequest]) -> Vec<ReplayRequest> {
    let ends = requests.iter().map(|request| request.done_ns.unwrap_or(request.at_ns));
    let length = ends.max().unwrap_or(0).saturating_add(1);
    let times = (REQUESTS / requests.len().max(1)).max(1) as u64;
    let again = |time: u64| {
        requests.iter().map(move |request| ReplayRequest {
            at_ns: request.at_ns.saturating_add(time * length),
            done_ns: request.done_ns.map(|done| done.saturating_add(time * length)),
            ..*request
        })
    };
    (0..times).flat_map(again).collect()
}

/// The replayed trace, in words.
fn about(volume: &Volume, requests: &[ReplayRequest], left_out: usize) -> String {
    let is_flush = |request: &&ReplayRequest| request.kind == ReplayKind::Flush;
    let mut blocks: Vec<u64> = requests
        .iter()
        .filter(|request| {
            request.kind == ReplayKind::Write && overlaps(&volume.ranges, &bytes(request))
        })
        .flat_map(|request| bytes(request).start / BLOCK..bytes(request).end.div_ceil(BLOCK))
        .collect();
    blocks.sort_unstable();
    blocks.dedup();
    format!(
        "{}, journal of {}: {} of a guest with the {} job, flushes among them: {}. They write {} \
         of the journal. Left out: {left_out} that write to the file system's superblock, or to \
         other blocks that say where the journal is, and a trace has no data.",
        Job::MailReplay.name(),
        show_size(volume.journal),
        counted(requests.len(), "request"),
        Job::Mail.name(),
        requests.iter().filter(is_flush).count(),
        show_size(blocks.len() as u64 * BLOCK),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use vlane_guest::{Host, Install};

    use super::*;
    use vlane_testbed::{Interrupt, Medium, Place};

    fn request(at_ns: u64, kind: ReplayKind, sector: u64, sectors: u32) -> ReplayRequest {
        let done_ns = Some(at_ns + 5);
        ReplayRequest { at_ns, done_ns, queue: 0, kind, sector, sectors, ioprio: 0, data: None }
    }

    #[test]
    fn trace_repeats_in_order_without_overlap() {
        let requests = [request(0, ReplayKind::Write, 8, 8), request(7, ReplayKind::Flush, 0, 0)];
        let repeated = repeated(&requests);
        assert!(repeated.len() >= REQUESTS && repeated.len().is_multiple_of(2));
        for (number, pair) in (0..).zip(repeated.chunks(2)) {
            assert_eq!((pair[0].at_ns, pair[1].at_ns), (number * 13, number * 13 + 7));
            assert_eq!((pair[0].sector, pair[1].kind), (8, ReplayKind::Flush));
        }
        assert!(repeated.windows(2).all(|pair| pair[0].at_ns < pair[1].at_ns));
    }

    #[test]
    fn replay_spares_only_journal_metadata() {
        let host = Host::new(Install::Never).unwrap();
        if host.program("mkfs.ext4").is_err() {
            return vlane_testing::skip("mkfs.ext4 is not on this machine");
        }
        let journal = super::super::SMALLEST_JOURNAL;
        let bytes = Volume::bytes(journal, false);
        let Ok(place) = Place::find(Medium::Disk, None, bytes, "--disk-dir") else {
            return vlane_testing::skip("no disk with direct I/O and 300 MiB free");
        };
        let interrupt = Interrupt::listen().unwrap();
        let volume = Volume::new(&place, &host, bytes, journal, &interrupt).unwrap();
        let kept = untouched(&volume).unwrap();
        let first = volume.ranges[0].clone();
        assert!(overlaps(&kept, &(1024..2048)), "the superblock");
        assert!(overlaps(&kept, &(first.start..first.start + 512)), "the journal's");
        assert!(!overlaps(&kept, &(first.start + BLOCK..first.end)), "{kept:?}");
        // All of the rest may be written over: the journal is where it was.
        let file = File::options().read(true).write(true).open(volume.image.path()).unwrap();
        let pattern = vec![0xa5; 1 << 20];
        let mut at = 0;
        while at < volume.image.bytes() {
            let next =
                kept.iter().filter(|range| range.end > at).map(|range| range.start.max(at)).min();
            let end = next.unwrap_or(volume.image.bytes()).min(at + pattern.len() as u64);
            if end == at {
                at = kept
                    .iter()
                    .filter(|range| range.start <= at && range.end > at)
                    .map(|range| range.end)
                    .max()
                    .unwrap();
                continue;
            }
            file.write_all_at(&pattern[..usize::try_from(end - at).unwrap()], at).unwrap();
            at = end;
        }
        let layout = layout::read(&mut Image(file), volume.image.bytes());
        let found: Vec<_> =
            layout.journals.iter().flat_map(|journal| journal.ranges.clone()).collect();
        assert_eq!(found, volume.ranges);
    }

    #[test]
    fn longer_journal_is_recorded_longer() {
        let of = |journal: u64| recording_time(Duration::from_secs(6), journal << 20).as_secs();
        assert_eq!((of(4), of(256), of(1024)), (6, 64, 256));
    }
}
