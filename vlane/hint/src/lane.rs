//! A lane's end of the board.

use vlane_ring::Request;

use crate::board::{Board, Classes, Slot};
use crate::now;
use crate::sync::{Arc, Ordering, Waker, fence, wake};

/// A lane's messages to the scheduler, in its own slot of the board.
///
/// An event is marked before the guest is signalled: the scheduler puts the vCPU before others, and
/// then the interrupt finds it. It counts as served when the guest submits again on this queue: the
/// process that waited for the answer has got to run. That the guest's driver took the answer would
/// come earlier, but then the waiting process has not run yet.
///
/// Where only express completions are marked, only an express request is an answer: one from the
/// guest's background is no sign of the waiting program. And an express completion counts, too, if
/// the guest is not signalled for it because it has not taken an earlier signal yet, which showed
/// others.
#[derive(Debug)]
pub struct LaneHint {
    board: Arc<Board>,
    lane: u16,
    waker: Arc<Waker>,
    events: u64,
    served: u64,
    /// The time since when the guest has had unanswered completions; 0: it has none.
    since: u64,
    /// True if only an express request is the answer to that.
    by_express: bool,
    /// Where only express completions are marked: the guest was signalled, for any class, and has
    /// not submitted a request since.
    is_signalled: bool,
    /// The classes of the completions that the next signal shows to the guest.
    classes: u64,
}

impl LaneHint {
    /// The hint of lane `lane`, or none if the board has no such lane. There must be only one for
    /// each.
    pub fn new(board: Arc<Board>, lane: u16, waker: Arc<Waker>) -> Option<LaneHint> {
        board.slot(lane)?;
        Some(LaneHint {
            board,
            lane,
            waker,
            events: 0,
            served: 0,
            since: 0,
            by_express: false,
            is_signalled: false,
            classes: 0,
        })
    }

    /// A request was answered, and the guest does not see it yet. `is_express`: that is its class.
    #[inline]
    pub fn answered(&mut self, request: &Request, is_express: bool) {
        self.answered_of(Classes::of(request, is_express));
    }

    #[inline]
    pub(crate) fn answered_of(&mut self, classes: Classes) {
        self.classes |= classes.0;
    }

    /// The guest can see the answers; `signals`: and is going to be signalled. Costs a load when
    /// the scheduler does not want to know.
    #[inline]
    pub fn shown(&mut self, signals: bool) {
        let classes = std::mem::take(&mut self.classes);
        let armed = self.board.armed();
        let by_express = armed.is_express_only();
        self.is_signalled = by_express && (signals || self.is_signalled);
        if !armed.meets(Classes(classes)) {
            return;
        }
        if Classes::EXPRESS.meets(Classes(classes)) {
            self.board.note_express();
        }
        if signals || self.is_signalled {
            self.event(by_express);
        }
    }

    /// True if the scheduler wants to know.
    #[inline]
    pub fn is_armed(&self) -> bool {
        self.board.armed() != Classes::NONE
    }

    /// True if it matters that the guest submits requests.
    #[inline]
    pub fn is_pending(&self) -> bool {
        self.since != 0 || self.is_signalled
    }

    /// True if the kind of the guest's request decides whether it is the answer: then
    /// [`LaneHint::taken`] must see each request.
    #[inline]
    pub fn is_choosy(&self) -> bool {
        self.since != 0 && self.by_express
    }

    /// The guest has submitted something. Where it depends on the kind of request, that is not an
    /// answer yet.
    #[inline]
    pub fn some_taken(&mut self) {
        self.is_signalled = false;
        if self.since != 0 && !self.by_express {
            self.serve();
        }
    }

    /// The guest has submitted this request. `is_express`: that is its class.
    #[inline]
    pub fn taken(&mut self, request: &Request, is_express: bool) {
        self.taken_of(Classes::of(request, is_express));
    }

    #[inline]
    pub(crate) fn taken_of(&mut self, classes: Classes) {
        if self.since != 0 && (!self.by_express || classes.meets(Classes::EXPRESS)) {
            self.serve();
        }
    }

    /// The lane stops: pending completions will never be reported as served.
    pub fn forget(&mut self) {
        self.is_signalled = false;
        if std::mem::take(&mut self.since) != 0
            && let Some(slot) = self.board.slot(self.lane)
        {
            slot.since.store(0, Ordering::Release);
        }
    }

    fn event(&mut self, by_express: bool) {
        self.by_express = by_express;
        let Some(Slot { events, since, .. }) = self.board.slot(self.lane) else { return };
        if self.since == 0 {
            self.since = now().max(1);
            since.store(self.since, Ordering::Relaxed);
        }
        self.events += 1;
        events.store(self.events, Ordering::Release);
        self.wake();
    }

    fn serve(&mut self) {
        let Some(Slot { since, served, served_at, response, .. }) = self.board.slot(self.lane)
        else {
            return;
        };
        let now = now();
        served_at.store(now, Ordering::Relaxed);
        response.store(now.saturating_sub(self.since), Ordering::Relaxed);
        self.since = 0;
        since.store(0, Ordering::Relaxed);
        self.served += 1;
        served.store(self.served, Ordering::Release);
        self.wake();
    }

    /// Wakes the scheduler, if it wants to be: the same question and answer as between two sides of
    /// a virtqueue.
    fn wake(&self) {
        // Orders the mark before the look; the scheduler asks for the wake-up first, and looks at
        // the marks then.
        fence(Ordering::SeqCst);
        let wanted = self.board.wake();
        if wanted.load(Ordering::Relaxed) != 0 && wanted.swap(0, Ordering::SeqCst) != 0 {
            wake(&self.waker);
        }
    }
}

impl Drop for LaneHint {
    fn drop(&mut self) {
        self.forget();
    }
}
