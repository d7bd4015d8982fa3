//! Measures one foreground reader in parallel with a crowd of background readers.
//!
//! Every reader has one request out, 4 KiB at random. They are spread over the queues of a session;
//! each group's requests carry the group's I/O priority. One thread drives all of them: a reader is
//! a slot of a queue, so hundreds cost no more than their requests do.
//!
//! The results are the foreground reader's waits, and the crowd's throughput.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::ring::{Completion, Request, RequestKind};
use hdrhistogram::Histogram;
use vlane_error::counted;

use crate::clock::Clock;
use crate::error::{Error, ErrorKind};
use crate::job::{Shared, precise_sleep};
use crate::random::Rng;
use crate::report::{BackendUse, Buckets, Errors, Latency};
use crate::run::{Body, OnProgress, Plan, drive};
use crate::session::{Calls, GuestQueue, Session};
use crate::window::{Window, latency_histogram};
use crate::workload::{Limit, Region, region};

/// The readers and their options.
#[derive(Debug, Clone)]
pub struct Crowd {
    /// Number of the crowd's readers on each queue; queues after the last one have none.
    pub readers: Vec<u16>,
    /// The I/O priority of the crowd's requests.
    pub readers_ioprio: u16,
    /// The queue of the foreground reader.
    pub queue: u16,
    /// The I/O priority of its requests.
    pub ioprio: u16,
    /// The foreground reader's pause between two reads (fio's thinktime). The crowd reads on at
    /// once.
    pub think: Duration,
    /// Bytes per read: a multiple of 512.
    pub block: u32,
    /// Determines the addresses.
    pub seed: u64,
    /// Time that does not count.
    pub ramp: Duration,
    /// Time that counts.
    pub time: Duration,
}

/// A group's results.
#[derive(Debug, Clone)]
pub struct Had {
    /// Reads completed in the time that counts.
    pub ios: u64,
    /// Reads per second.
    pub iops: f64,
    /// Their latencies.
    pub latency: Latency,
    /// The same, all of it.
    pub histogram: Buckets,
}

/// The results.
#[derive(Debug, Clone)]
pub struct CrowdReport {
    /// The foreground reader's results.
    pub one: Had,
    /// The crowd.
    pub readers: Had,
    /// Time that counted, in seconds.
    pub seconds: f64,
    /// The resources that the back end's process used meanwhile.
    pub backend: Option<BackendUse>,
}

impl Crowd {
    /// Slots that the queue with the most readers needs: what the session's depth has to be.
    pub fn depth(&self) -> u16 {
        let of = |(queue, readers): (usize, &u16)| {
            readers.saturating_add(u16::from(queue == usize::from(self.queue)))
        };
        self.readers.iter().enumerate().map(of).max().unwrap_or(0).max(1)
    }

    fn check(&self, session: &Session) -> Result<Region, Error> {
        let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        let queues = usize::from(session.negotiated().queues);
        if self.readers.len() > queues || usize::from(self.queue) >= queues {
            return invalid(format!("readers on more queues than the session's {queues}"));
        }
        if self.depth() > session.depth() {
            let text =
                format!("{} readers on a queue of {} requests", self.depth(), session.depth());
            return invalid(text);
        }
        if self.block == 0 || !self.block.is_multiple_of(512) || self.block > session.data() {
            return invalid(format!(
                "reads of {} bytes: a multiple of 512, up to the session's",
                self.block
            ));
        }
        region(0, None, self.block, session.config())
    }
}

/// Runs it on a session, which must not have been started; ends the session.
///
/// # Errors
/// As [`crate::run`]; [`ErrorKind::Invalid`] also if the session has too few queues or slots,
/// [`ErrorKind::System`] if a read failed.
pub fn run_crowd(
    mut session: Session,
    crowd: &Crowd,
    progress: &mut OnProgress<'_>,
) -> Result<CrowdReport, Error> {
    let region = crowd.check(&session)?;
    let (mut queues, waker) = session.start()?;
    let plan = Plan::of(Limit::Time(crowd.time), crowd.ramp);
    let window = plan.window;
    let all = &mut queues;
    let body: Body<'_, Stats> =
        Box::new(move |shared, clock| Driver::new(all, crowd, region, window)?.run(shared, clock));
    let mut broken = false;
    let driven = drive(&mut session, &waker, &[], &plan, vec![body], &mut |state| {
        let answer = progress(state);
        broken |= answer.is_break();
        answer
    });
    let stats = driven.results.into_iter().next();
    let stats = stats.unwrap_or_else(|| Err(Error::new(ErrorKind::System, "nobody read")))?;
    session.stop()?;
    if stats.errors.total() > 0 && !broken {
        return Err(Error::new(
            ErrorKind::System,
            format!("{} failed", counted(stats.errors.total(), "read")),
        ));
    }
    let until = driven.until.min(window.until);
    let seconds = Duration::from_nanos(until.saturating_sub(window.from)).as_secs_f64().max(1e-9);
    let ios = stats.one.len() + stats.readers.len();
    Ok(CrowdReport {
        one: had(&stats.one, seconds),
        readers: had(&stats.readers, seconds),
        seconds,
        backend: driven.usage.map(|(pid, usage)| BackendUse::of(pid, &usage, ios)),
    })
}

fn had(ns: &Histogram<u64>, seconds: f64) -> Had {
    let ios = ns.len();
    Had { ios, iops: ios as f64 / seconds, latency: Latency::of(ns), histogram: Buckets::of(ns) }
}

/// The measured values.
struct Stats {
    one: Histogram<u64>,
    readers: Histogram<u64>,
    errors: Errors,
}

/// One queue, and its readers: a slot for each. The foreground reader's slot is the last.
struct Lane<'a> {
    queue: &'a mut GuestQueue,
    readers: u16,
    has_one: bool,
    /// The time at which each slot's request was made, in ns of the run's clock.
    since: Vec<u64>,
}

/// The thread that is all readers.
struct Driver<'a> {
    lanes: Vec<Lane<'a>>,
    calls: Calls,
    crowd: &'a Crowd,
    region: Region,
    window: Window,
    rng: Rng,
    /// The time of the foreground reader's next read, while it pauses; in ns of the run's clock.
    due: Option<u64>,
    stats: Stats,
}

impl<'a> Driver<'a> {
    fn new(
        queues: &'a mut [GuestQueue],
        crowd: &'a Crowd,
        region: Region,
        window: Window,
    ) -> Result<Self, Error> {
        let calls = Calls::of(queues.iter())?;
        let lanes = queues.iter_mut().enumerate().map(|(index, queue)| {
            let readers = crowd.readers.get(index).copied().unwrap_or(0);
            let has_one = index == usize::from(crowd.queue);
            let slots = usize::from(readers) + usize::from(has_one);
            Lane { queue, readers, has_one, since: vec![0; slots] }
        });
        let stats = Stats {
            one: latency_histogram()?,
            readers: latency_histogram()?,
            errors: Errors::default(),
        };
        let rng = Rng::new(crowd.seed);
        Ok(Self { lanes: lanes.collect(), calls, crowd, region, window, rng, due: None, stats })
    }

    /// Reads until the time is over and all requests have come back.
    fn run(mut self, shared: &Shared, clock: &Clock) -> Result<Stats, Error> {
        precise_sleep();
        let mut done: Vec<Completion> = Vec::new();
        self.lanes.iter_mut().for_each(|lane| lane.queue.blk.disable_interrupts());
        for lane in 0..self.lanes.len() {
            for slot in 0..self.lanes[lane].since.len() {
                // A queue has fewer slots than a u16 can count.
                self.read(lane, u16::try_from(slot).unwrap_or(0), clock.now())?;
            }
            self.publish(lane)?;
        }
        while self.due.is_some() || self.lanes.iter().any(|lane| lane.queue.blk.held() > 0) {
            let mut any = false;
            for lane in 0..self.lanes.len() {
                self.lanes[lane].queue.blk.reap(&mut done)?;
                if done.is_empty() {
                    continue;
                }
                any = true;
                let now = clock.now();
                let ended = now >= self.window.until || shared.stop.load(Ordering::Relaxed);
                shared.done.fetch_add(done.len() as u64, Ordering::Relaxed);
                for completion in done.drain(..) {
                    self.record(lane, &completion, now, ended);
                    if !ended {
                        self.again(lane, completion.slot, now)?;
                    }
                }
                self.publish(lane)?;
            }
            if self.think(shared, clock)? || any {
                continue;
            }
            if shared.abort.load(Ordering::Relaxed) {
                let gone = shared.gone.load(Ordering::Relaxed);
                return Err(match gone {
                    true => Error::new(ErrorKind::Gone, "the back end hung up with reads out"),
                    false => Error::new(ErrorKind::Timeout, "reads never came back"),
                });
            }
            self.wait(clock)?;
        }
        // As an idle guest has it.
        self.lanes.iter_mut().for_each(|lane| {
            lane.queue.blk.enable_interrupts();
        });
        Ok(self.stats)
    }

    fn read(&mut self, lane: usize, slot: u16, now: u64) -> Result<(), Error> {
        let block = u64::from(self.crowd.block);
        let sector = (self.region.offset + self.rng.below(self.region.blocks) * block) / 512;
        let lane = &mut self.lanes[lane];
        let ioprio = match slot == lane.readers && lane.has_one {
            true => self.crowd.ioprio,
            false => self.crowd.readers_ioprio,
        };
        let request = Request {
            kind: RequestKind::Read,
            sector,
            len: self.crowd.block,
            ioprio: ioprio.into(),
        };
        lane.queue.blk.submit(slot, request)?;
        lane.since[usize::from(slot)] = now;
        Ok(())
    }

    /// Starts a reader's next read: at once, or after its pause.
    fn again(&mut self, lane: usize, slot: u16, now: u64) -> Result<(), Error> {
        let is_one = slot == self.lanes[lane].readers && self.lanes[lane].has_one;
        if !is_one || self.crowd.think.is_zero() {
            return self.read(lane, slot, now);
        }
        self.due = Some(now + u64::try_from(self.crowd.think.as_nanos()).unwrap_or(u64::MAX >> 1));
        Ok(())
    }

    /// Lets the foreground reader read if its pause is over; returns true if it did.
    fn think(&mut self, shared: &Shared, clock: &Clock) -> Result<bool, Error> {
        let Some(due) = self.due else { return Ok(false) };
        let now = clock.now();
        if now >= self.window.until || shared.stop.load(Ordering::Relaxed) {
            self.due = None;
            return Ok(true);
        }
        if now < due {
            return Ok(false);
        }
        self.due = None;
        let lane = usize::from(self.crowd.queue);
        self.read(lane, self.lanes[lane].readers, now)?;
        self.publish(lane)?;
        Ok(true)
    }

    fn publish(&mut self, lane: usize) -> Result<(), Error> {
        let queue = &mut self.lanes[lane].queue;
        if queue.blk.publish() { queue.kick() } else { Ok(()) }
    }

    fn record(&mut self, lane: usize, completion: &Completion, now: u64, ended: bool) {
        if completion.status != 0 {
            self.stats.errors.count(completion.status);
        }
        if ended || now < self.window.from {
            return;
        }
        let lane = &self.lanes[lane];
        let took = now.saturating_sub(lane.since[usize::from(completion.slot)]);
        match completion.slot == lane.readers && lane.has_one {
            true => self.stats.one.saturating_record(took),
            false => self.stats.readers.saturating_record(took),
        }
    }

    /// Sleeps until a queue has a completion, or the foreground reader's pause is over; an
    /// interrupt that came meanwhile is not missed.
    fn wait(&mut self, clock: &Clock) -> Result<(), Error> {
        let mut quiet = true;
        for lane in &mut self.lanes {
            // Every queue's interrupts have to be on, independently of the others.
            quiet &= !lane.queue.blk.enable_interrupts();
        }
        if quiet {
            let now = clock.now();
            self.calls.wait(self.due.map(|due| Duration::from_nanos(due.saturating_sub(now))))?;
        }
        self.lanes.iter_mut().for_each(|lane| lane.queue.blk.disable_interrupts());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crowd(readers: Vec<u16>, queue: u16) -> Crowd {
        let (ramp, time) = (Duration::ZERO, Duration::from_secs(1));
        Crowd {
            readers,
            readers_ioprio: 0,
            queue,
            ioprio: 1,
            think: ramp,
            block: 4096,
            seed: 1,
            ramp,
            time,
        }
    }

    #[test]
    fn foreground_reader_has_a_slot() {
        assert_eq!(crowd(vec![64; 8], 0).depth(), 65);
        assert_eq!(crowd(vec![4, 9, 2], 0).depth(), 9);
        assert_eq!(crowd(vec![4, 9, 2], 1).depth(), 10);
        assert_eq!(crowd(Vec::new(), 3).depth(), 1);
    }
}
