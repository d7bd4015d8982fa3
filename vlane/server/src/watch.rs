//! Reports failures of the storage to the operator: the first failure of each kind at once, the
//! others at a bounded rate. A lost write is reported once and for all.
//!
//! One thread for each volume, `watch`. The thread sleeps until a lane raises the volume's alarm,
//! after the counters that it publishes showed failures. No line is written for a single request,
//! and a volume without failures has no cost.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use vlane_engine::Engine;
use vlane_lane::{Alarm, Counters, Snapshot};
use vlane_ring::SECTOR;

/// From one line about failures to the next.
const INTERVAL: Duration = Duration::from_secs(10);
/// From one look for failures of another kind, and for lost writes, to the next meanwhile.
const GLANCE: Duration = Duration::from_secs(1);

/// The words for requests beyond the end of what there is.
const SHORT: &str = "the image is shorter than its volume";
/// The kinds of failures: the report of each, and the advice.
const KINDS: [(&str, &str); 3] = [
    (
        "no space was left on the storage",
        "make room; requests succeed again as soon as there is some",
    ),
    (SHORT, "it was cut short; stop, and restore it"),
    ("the storage failed", "see the kernel's log"),
];

/// Called when writes were lost.
type OnLoss = Box<dyn Fn() + Send + Sync>;

/// Watches over one volume until it is dropped.
#[derive(Debug)]
pub(crate) struct VolumeWatch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    name: String,
    engine: Arc<dyn Engine>,
    counters: Vec<Arc<Counters>>,
    alarm: Arc<Alarm>,
    ends: AtomicBool,
    /// The loss was reported.
    is_told: AtomicBool,
    on_loss: OnceLock<OnLoss>,
    /// It was done.
    is_done: AtomicBool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("name", &self.name).finish_non_exhaustive()
    }
}

impl VolumeWatch {
    /// Starts the thread.
    pub(crate) fn start(
        name: &str,
        engine: Arc<dyn Engine>,
        counters: Vec<Arc<Counters>>,
        alarm: Arc<Alarm>,
    ) -> io::Result<VolumeWatch> {
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            engine,
            counters,
            alarm,
            ends: AtomicBool::new(false),
            is_told: AtomicBool::new(false),
            on_loss: OnceLock::new(),
            is_done: AtomicBool::new(false),
        });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("watch".to_owned())
            .spawn(move || own.run(INTERVAL))?;
        Ok(VolumeWatch { shared, thread: Some(thread) })
    }

    /// Does this when writes were lost; at once, if they are already.
    pub(crate) fn on_loss(&self, what: OnLoss) {
        // The first one stays.
        if self.shared.on_loss.set(what).is_ok() && self.shared.engine.lost_write().is_some() {
            self.shared.alarm.wake();
        }
    }

    /// Looks for lost writes, and reports them: for a caller that found out itself.
    pub(crate) fn look(&self) {
        self.shared.tell_loss();
    }
}

impl Drop for VolumeWatch {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        self.shared.alarm.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(
                "{}: the thread that watches over the volume panicked",
                self.shared.name
            );
        }
    }
}

impl Shared {
    fn run(&self, interval: Duration) {
        let mut teller = Teller::default();
        loop {
            match teller.is_busy {
                true => self.pause(&mut teller, interval),
                // No failure since the last look: waits for one.
                false => self.wait(None),
            }
            self.alarm.lower();
            self.tell(&mut teller, true);
            if self.ends() {
                return;
            }
        }
    }

    fn ends(&self) -> bool {
        self.ends.load(Ordering::Acquire)
    }

    /// Until then failures of reported kinds are counted, and not reported.
    fn pause(&self, teller: &mut Teller, interval: Duration) {
        let until = Instant::now() + interval;
        while let Some(left) = until.checked_duration_since(Instant::now())
            && !self.ends()
        {
            self.wait(Some(left.min(GLANCE)));
            self.tell(teller, false);
        }
    }

    fn tell(&self, teller: &mut Teller, again: bool) {
        let sum = self.counters.iter().fold(Snapshot::default(), |mut sum, lane| {
            sum.add(&lane.snapshot());
            sum
        });
        teller.tell(&sum, Instant::now(), again, |line| {
            // The sizes are those of the moment of the report.
            let sizes = match (line.strip_prefix(SHORT), self.engine.stored_bytes()) {
                (Some(rest), Some(stored)) => {
                    Some((rest, stored, self.engine.geometry().sectors * SECTOR))
                }
                _ => None,
            };
            match sizes.filter(|(_, stored, volume)| stored < volume) {
                Some((rest, stored, volume)) => {
                    tracing::warn!(
                        "{}: {SHORT} ({stored} of {volume} bytes are there){rest}",
                        self.name
                    );
                }
                None => tracing::warn!("{}: {line}", self.name),
            }
        });
        if teller.is_busy {
            self.tell_refusal(&mut teller.refusal);
        }
        self.tell_loss();
    }

    /// Tells once why the storage takes no writes, and again when the reason has changed.
    fn tell_refusal(&self, told: &mut Option<String>) {
        let reason = self.engine.refuses_writes();
        if let Some(reason) = reason.as_ref().filter(|reason| told.as_ref() != Some(reason)) {
            tracing::warn!("{}: {reason}", self.name);
        }
        *told = reason;
    }

    fn tell_loss(&self) {
        let Some(lost) = self.engine.lost_write() else { return };
        if !self.is_told.swap(true, Ordering::AcqRel) {
            let stops = self.on_loss.get().is_some();
            let then = match stops {
                true => "stopping, as --on-lost-write stop says",
                false => {
                    "from now on writes and flushes are answered with an error; reads continue"
                }
            };
            tracing::error!(
                "{}: writes that were answered are lost, and it is unknown which: {lost}; {then}. \
                 See the kernel's log, repair the storage or make room on it, then serve the \
                 image again and let the guest check its file systems",
                self.name
            );
        }
        if let Some(on_loss) = self.on_loss.get()
            && !self.is_done.swap(true, Ordering::AcqRel)
        {
            on_loss();
        }
    }

    /// Waits for the alarm.
    fn wait(&self, limit: Option<Duration>) {
        let fd: BorrowedFd<'_> = self.alarm.wake_fd();
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // An error is an early return, and loses no report.
        let _ =
            rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], limit.as_ref());
        self.alarm.woken();
    }
}

/// Failures reported so far.
#[derive(Debug, Default)]
struct Teller {
    /// By kind, reported failures.
    told: [u64; 3],
    since: Option<Instant>,
    /// All failures up to the last look, even those reported in another way.
    failed: u64,
    /// A request failed before the last look.
    is_busy: bool,
    /// The reason why the storage takes no writes, as it was reported.
    refusal: Option<String>,
}

impl Teller {
    /// Writes a line for each kind of which there are more than at the last look; without `again`,
    /// only if none was reported yet.
    fn tell(&mut self, sum: &Snapshot, now: Instant, again: bool, mut line: impl FnMut(String)) {
        let counted = [
            sum.no_space,
            sum.short,
            sum.failed.saturating_sub(sum.no_space + sum.short + sum.lost),
        ];
        if again {
            // After a loss all requests but reads fail, which is not reported here: no thread needs
            // to be woken for it either.
            self.is_busy = sum.failed > self.failed;
            self.failed = sum.failed;
        }
        let since = self.since.map(|since| now.saturating_duration_since(since).as_secs().max(1));
        for ((what, advice), (now, told)) in
            KINDS.iter().zip(counted.into_iter().zip(&mut self.told))
        {
            let more = now.saturating_sub(*told);
            if more == 0 || (*told > 0 && !again) {
                continue;
            }
            let requests =
                |n: u64| if n == 1 { "1 request".to_owned() } else { format!("{n} requests") };
            line(match (*told, since) {
                (1.., Some(since)) => {
                    format!(
                        "{what}: {} failed in the last {since} s, {} in all",
                        requests(more),
                        requests(now)
                    )
                }
                _ => format!(
                    "{what}: {} failed; {advice}; more are logged every {} s",
                    requests(more),
                    INTERVAL.as_secs()
                ),
            });
            *told = now;
            self.is_busy = true;
        }
        if self.is_busy && (again || self.since.is_none()) {
            self.since = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(teller: &mut Teller, sum: Snapshot, now: Instant, again: bool) -> Vec<String> {
        let mut lines = Vec::new();
        teller.tell(&sum, now, again, |line| lines.push(line));
        lines
    }

    /// Later failures of the kind are reported by their number.
    #[test]
    fn first_failure_of_kind_is_reported_with_advice() {
        let (mut teller, begin) = (Teller::default(), Instant::now());
        assert_eq!(lines(&mut teller, Snapshot::default(), begin, true), [] as [String; 0]);
        assert!(!teller.is_busy);
        let mut sum = Snapshot { failed: 1, no_space: 1, ..Snapshot::default() };
        let first = lines(&mut teller, sum, begin, true);
        assert!(
            first.len() == 1
                && first[0].contains("no space")
                && first[0].contains("1 request failed; make room")
        );
        assert!(teller.is_busy);
        sum = Snapshot { failed: 10, no_space: 10, ..sum };
        assert_eq!(
            lines(&mut teller, sum, begin, false),
            [] as [String; 0],
            "nothing of another kind"
        );
        sum = Snapshot { failed: 11, short: 1, ..sum };
        assert!(
            lines(&mut teller, sum, begin, false)[0].contains("1 request failed; it was cut short")
        );
        assert!(teller.is_busy);
        sum = Snapshot { failed: 602, no_space: 571, short: 20, lost: 10, ..sum };
        let later = lines(&mut teller, sum, begin + Duration::from_secs(10), true);
        assert_eq!(
            later[0],
            "no space was left on the storage: 570 requests failed in the last 10 s, 571 requests \
             in all"
        );
        assert!(later[1].ends_with(
            "shorter than its volume: 19 requests failed in the last 10 s, 20 requests in all"
        ));
        // Failures that only follow from lost writes are reported as such.
        assert!(
            later.len() == 3 && later[2].starts_with("the storage failed: 1 request failed; see")
        );
        assert_eq!(lines(&mut teller, sum, begin, true), [] as [String; 0], "nothing new");
        assert!(!teller.is_busy);
        sum = Snapshot { failed: 702, lost: 110, ..sum };
        assert_eq!(lines(&mut teller, sum, begin, true), [] as [String; 0], "told as a loss");
        assert!(teller.is_busy, "each of them would wake the thread");
        assert_eq!(lines(&mut teller, sum, begin, true), [] as [String; 0]);
        assert!(!teller.is_busy);
    }
}
