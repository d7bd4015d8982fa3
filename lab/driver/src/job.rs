//! One job: the requests of a [`Workload`] on one queue.

use crate::error::Error;
use crate::lanes::{Moment, Next, Out, Source};
use crate::rate::Books;
use crate::ring::{BlkQueue, Completion, Request, RequestKind};
use crate::window::Counts;
use crate::workload::{Requests, Workload};

/// A job, and its measured values.
pub(crate) struct Job<'a> {
    pub(crate) workload: &'a Workload,
    pub(crate) requests: Requests,
    /// Requests that it may still begin.
    pub(crate) left: u64,
    /// The account of arrivals, if requests do not wait for each other (open loop).
    pub(crate) books: Option<Books>,
    pub(crate) counts: Counts,
}

impl Source for Job<'_> {
    /// The time at which it should have been submitted (open loop).
    type Tag = u64;

    #[inline]
    fn next(
        &mut self,
        _lane: usize,
        _queue: &mut BlkQueue,
        slot: u16,
        at: &Moment,
        out: &mut Out<u64>,
    ) -> Result<Next, Error> {
        let arrival = match &mut self.books {
            // Every completion makes room for the next request.
            None if at.ended || self.left == 0 => return Ok(Next::Later),
            None => {
                self.left -= 1;
                at.now
            }
            // Requests go out when the schedule says so, if there is a slot.
            Some(books) => match books.take(at.now) {
                Some(arrival) => arrival,
                None => return Ok(books.next().map_or(Next::Later, Next::At)),
            },
        };
        let (kind, offset) = self.requests.next(slot);
        let len = if kind == RequestKind::Flush { 0 } else { self.workload.block };
        let ioprio = self.workload.ioprio.into();
        Ok(out.send(Request { kind, sector: offset / 512, len, ioprio }, arrival, at))
    }

    #[inline]
    fn done(
        &mut self,
        _lane: usize,
        _queue: &BlkQueue,
        out: &Out<u64>,
        completion: &Completion,
        at: &Moment,
    ) -> Result<(), Error> {
        let counts = at.counts();
        let is_recorded = match &mut self.books {
            None => counts,
            Some(books) => books.complete(out.tag, at.now),
        };
        if is_recorded {
            self.counts.record(out.request.kind, at.now - out.since);
        }
        if counts {
            self.counts.count(&out.request, completion, at.now);
        }
        Ok(())
    }

    fn end(&mut self, now: u64) {
        self.counts.settle();
        if let Some(books) = &mut self.books {
            books.end(now);
        }
    }
}
