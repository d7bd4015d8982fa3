//! Storage that hangs: noticed from outside the lanes, which cannot tell when their thread is stuck
//! in the storage itself.
//!
//! A thread, `stalls`, looks once a second at the requests that the lanes wait for. After two empty
//! looks it sleeps until a request comes, so that requests wake it at most once a second. A request
//! that has been waiting for [`STALLED`] makes a stall, which is reported once, with the hanging
//! request; its end is reported, too.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vlane_error::locked;
use vlane_lane::{PendingRequests, Waiting};

/// The time that a request may wait for the storage before that is reported.
pub const STALLED: Duration = Duration::from_secs(5);
/// Interval of the looks.
const PERIOD: Duration = Duration::from_secs(1);

/// A request that the storage has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unanswered {
    /// The waiting request.
    pub request: Waiting,
    /// For how long it has been seen waiting: at most a second less than it has.
    pub age: Duration,
}

impl std::fmt::Display for Unanswered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Waiting { queue, kind, sector, .. } = self.request;
        write!(
            f,
            "queue {queue}: {} at sector {sector}, for {:.0} s",
            kind.name(),
            self.age.as_secs_f64()
        )
    }
}

/// The unanswered requests of a volume.
#[derive(Debug)]
pub(crate) struct Stalls {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    watch: Arc<PendingRequests>,
    /// Since when each has been seen.
    seen: Mutex<HashMap<Waiting, Instant>>,
    count: AtomicU64,
    ended: AtomicBool,
}

impl Stalls {
    /// Begins to look at the volume of that name.
    ///
    /// # Errors
    /// An error if the system gives no thread.
    pub(crate) fn start(name: &str) -> std::io::Result<Stalls> {
        let shared = Arc::new(Shared {
            watch: Arc::default(),
            seen: Mutex::default(),
            count: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        });
        let (looking, name) = (Arc::clone(&shared), name.to_owned());
        let thread = std::thread::Builder::new()
            .name("stalls".to_owned())
            .spawn(move || looking.run(&name))?;
        Ok(Stalls { shared, thread: Some(thread) })
    }

    /// Where lanes write down what they wait for.
    pub(crate) fn watch(&self) -> Arc<PendingRequests> {
        Arc::clone(&self.shared.watch)
    }

    /// Stalls so far, the present one included.
    pub(crate) fn count(&self) -> u64 {
        self.shared.count.load(Ordering::Relaxed)
    }

    /// All waiting requests, the oldest first.
    pub(crate) fn unanswered(&self) -> Vec<Unanswered> {
        self.shared.look()
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the thread that looks for stalls panicked");
            }
        }
    }
}

impl Shared {
    fn look(&self) -> Vec<Unanswered> {
        let (requests, now) = (self.watch.look(), Instant::now());
        let mut seen = locked(&self.seen);
        let before = std::mem::take(&mut *seen);
        let mut found = Vec::with_capacity(requests.len());
        for request in requests {
            let since = before.get(&request).copied().unwrap_or(now);
            seen.insert(request, since);
            found.push(Unanswered { request, age: now - since });
        }
        found.sort_by_key(|unanswered| {
            (std::cmp::Reverse(unanswered.age), unanswered.request.queue)
        });
        found
    }

    fn run(&self, name: &str) {
        let mut stalled_since: Option<Instant> = None;
        let mut was_empty = false;
        while !self.ended.load(Ordering::SeqCst) {
            let found = self.look();
            let oldest = found.first().filter(|oldest| oldest.age >= STALLED);
            match (oldest, stalled_since) {
                (Some(oldest), None) => {
                    stalled_since = Instant::now().checked_sub(oldest.age);
                    self.count.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(
                        "{name}: the storage does not answer: {oldest}; {} unanswered in all",
                        found.len()
                    );
                }
                (None, Some(since)) => {
                    tracing::info!(
                        "{name}: the storage answers again, after {:.1} s",
                        since.elapsed().as_secs_f64()
                    );
                    stalled_since = None;
                }
                _ => {}
            }
            // Requests may come one by one, each answered before the next look. Each would wake
            // this thread if it went to sleep after every empty look.
            if found.is_empty() && was_empty {
                self.sleep();
                was_empty = false;
            } else {
                was_empty = found.is_empty();
                self.pause();
            }
        }
    }

    /// Waits from one look to the next, even if the thread is woken; less only at the end.
    fn pause(&self) {
        let begin = Instant::now();
        while let Some(left) = PERIOD.checked_sub(begin.elapsed()).filter(|left| !left.is_zero())
            && !self.ended.load(Ordering::SeqCst)
        {
            std::thread::park_timeout(left);
        }
    }

    /// Sleeps until there is a request again.
    fn sleep(&self) {
        self.watch.wake_me();
        // A request that came at that moment is there a moment later.
        std::thread::park_timeout(PERIOD);
        while self.watch.is_asleep()
            && !self.ended.load(Ordering::SeqCst)
            && self.watch.look().is_empty()
        {
            std::thread::park();
        }
        // A request that woke us is as old as it is when it is looked at.
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// At most once a second, if each request is answered at once.
    #[test]
    fn quick_requests_wake_stall_thread_seldom() {
        let stalls = Stalls::start("a volume").unwrap();
        let watch = stalls.watch();
        let (begin, mut wakes) = (Instant::now(), 0);
        while begin.elapsed() < 3 * PERIOD || wakes == 0 {
            assert!(begin.elapsed() < 60 * PERIOD, "never sleeps");
            // Does the same as a request that no look sees.
            if watch.is_asleep() {
                watch.wake();
                wakes += 1;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(wakes <= begin.elapsed().as_secs() + 1, "{wakes} wakes in {:?}", begin.elapsed());
    }
}
