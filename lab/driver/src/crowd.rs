//! Measures one foreground reader in parallel with a crowd of background readers.
//!
//! Every reader has one request out, 4 KiB at random. They are spread over the queues of a session;
//! each group's requests carry the group's I/O priority. One thread drives all of them: a reader is
//! a slot of a queue, so hundreds cost no more than their requests do.
//!
//! The results are the foreground reader's waits, and the crowd's throughput.

use std::time::Duration;

use hdrhistogram::Histogram;
use vlane_error::counted;

use crate::error::{Error, ErrorKind};
use crate::lanes::{Manner, Moment, Next, Out, Source};
use crate::random::Rng;
use crate::report::{BackendUse, Buckets, Latency};
use crate::ring::{BlkQueue, Completion, Request, RequestKind};
use crate::run::{OnProgress, Plan, drive};
use crate::session::Session;
use crate::window::{Errors, Latencies};
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
        let invalid = |text: String| ErrorKind::Invalid.fail(text);
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
    let rng = Rng::new(crowd.seed);
    let (idle, stats) = (crowd.readers.clone(), Stats::default());
    let readers = Readers { crowd, region, rng, idle, due: Some(0), stats };
    let mut broken = false;
    let sources = vec![(queues.as_mut_slice(), readers)];
    let manner = Manner { spin_ns: 0, ..Manner::usual(plan.window) };
    let driven = drive(&mut session, &waker, &plan, manner, sources, &mut |state| {
        let answer = progress(state);
        broken |= answer.is_break();
        answer
    })
    .whole()?;
    session.stop()?;
    let [(Readers { stats, .. }, _)] = &driven.jobs[..] else {
        return ErrorKind::System.fail("the readers' thread is gone");
    };
    let errors = stats.errors.total();
    if errors > 0 && !broken {
        return ErrorKind::System.fail(format!("{} failed", counted(errors, "read")));
    }
    let until = driven.until.min(plan.window.until);
    let time = Duration::from_nanos(until.saturating_sub(plan.window.from));
    let seconds = time.as_secs_f64().max(1e-9);
    Ok(CrowdReport {
        one: had(&stats.one, seconds),
        readers: had(&stats.readers, seconds),
        seconds,
        backend: driven.backend(stats.one.len() + stats.readers.len()),
    })
}

fn had(ns: &Histogram<u64>, seconds: f64) -> Had {
    let ios = ns.len();
    Had { ios, iops: ios as f64 / seconds, latency: Latency::of(ns), histogram: Buckets::of(ns) }
}

/// The thread that is all readers.
struct Readers<'a> {
    crowd: &'a Crowd,
    region: Region,
    rng: Rng,
    /// By queue, the crowd's readers that are to read.
    idle: Vec<u16>,
    /// The time of the foreground reader's next read, in ns of the run's clock; none while it
    /// reads.
    due: Option<u64>,
    stats: Stats,
}

/// The measured values.
#[derive(Default)]
struct Stats {
    one: Latencies,
    readers: Latencies,
    errors: Errors,
}

impl Source for Readers<'_> {
    /// True for the foreground reader.
    type Tag = bool;

    fn next(
        &mut self,
        lane: usize,
        _queue: &mut BlkQueue,
        _slot: u16,
        at: &Moment,
        out: &mut Out<bool>,
    ) -> Result<Next, Error> {
        let due = self.due.filter(|_| lane == usize::from(self.crowd.queue));
        let is_one = match (self.idle.get_mut(lane), due) {
            _ if at.ended => return Ok(Next::Later),
            (Some(idle @ 1..), _) => {
                *idle -= 1;
                false
            }
            (_, Some(due)) if due > at.now => return Ok(Next::At(due)),
            (_, Some(_)) => {
                self.due = None;
                true
            }
            (_, None) => return Ok(Next::Later),
        };
        let Crowd { block, ioprio, readers_ioprio, .. } = *self.crowd;
        let place = self.rng.below(self.region.blocks) * u64::from(block);
        let request = Request {
            kind: RequestKind::Read,
            sector: (self.region.offset + place) / 512,
            len: block,
            ioprio: if is_one { ioprio } else { readers_ioprio }.into(),
        };
        Ok(out.send(request, is_one, at))
    }

    fn done(
        &mut self,
        lane: usize,
        _queue: &BlkQueue,
        out: &Out<bool>,
        completion: &Completion,
        at: &Moment,
    ) -> Result<(), Error> {
        let Stats { one, readers, errors } = &mut self.stats;
        errors.count(completion.status);
        if at.counts() {
            let latencies = if out.tag { one } else { readers };
            latencies.saturating_record(at.now - out.since);
        }
        if out.tag {
            let think = u64::try_from(self.crowd.think.as_nanos()).unwrap_or(u64::MAX >> 1);
            self.due = Some(at.now.saturating_add(think));
        } else {
            self.idle[lane] += 1;
        }
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
