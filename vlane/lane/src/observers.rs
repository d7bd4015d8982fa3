//! Observers of a lane's requests, without influence on them: the recorder, the vCPU scheduler's
//! hint, the watch for storage that hangs, the probes. The lane reports its steps to them; an
//! absent one costs a branch.

use std::sync::Arc;

use vlane_hint::LaneHint;
use vlane_policy::express::Class;
use vlane_ring::{Request, Slot, Status, probes};

use crate::pending::{LanePending, PendingRequests};
use crate::recorder::{CLOCK_EVERY, Recorder};

#[derive(Debug)]
pub(crate) struct Observers {
    /// The queue's index, for the probes.
    index: u16,
    /// Gets every request, while a recording runs.
    recorder: Option<Box<Recorder>>,
    /// Tells the vCPU scheduler, if there is one.
    hint: Option<Box<LaneHint>>,
    /// True if one of the two wants single requests.
    is_any: bool,
    watched: Option<LanePending>,
    /// The next request may be the guest's answer to its shown ones: all earlier requests are
    /// answered, or the next request's class decides that.
    may_be_answer: bool,
    /// Requests of this turn.
    taken: usize,
}

impl Observers {
    pub(crate) fn new(index: u16, slots: u16, watch: Option<Arc<PendingRequests>>) -> Observers {
        let watched = watch.map(|watch| LanePending::new(watch, index, slots));
        Observers {
            index,
            recorder: None,
            hint: None,
            is_any: false,
            watched,
            may_be_answer: false,
            taken: 0,
        }
    }

    /// The lane is about to take requests; `has_some` says whether there are any.
    #[inline]
    pub(crate) fn turn_begins(&mut self, has_some: impl FnOnce() -> bool) {
        self.taken = 0;
        self.may_be_answer = false;
        if let Some(hint) = &mut self.hint {
            // Without an interested observer, requests are not looked at one by one.
            self.is_any = self.recorder.is_some() || hint.is_armed();
            self.may_be_answer = hint.is_choosy();
            if hint.is_pending() && has_some() {
                hint.some_taken();
            }
        }
    }

    /// A request was taken out of the ring, and is of this class.
    #[inline(always)]
    pub(crate) fn taken(&mut self, slot: Slot, request: &Request, class: Class) {
        self.taken += 1;
        if self.recorder.is_some() || self.may_be_answer {
            self.tell_taken(slot, request, class);
        }
    }

    /// Requests that were taken in this turn.
    pub(crate) fn taken_in_turn(&self) -> usize {
        self.taken
    }

    #[inline(never)]
    fn tell_taken(&mut self, slot: Slot, request: &Request, class: Class) {
        if self.may_be_answer
            && let Some(hint) = &mut self.hint
        {
            hint.taken(request, class.is_foreground());
            self.may_be_answer = hint.is_choosy();
        }
        if let Some(recorder) = &mut self.recorder {
            if self.taken.is_multiple_of(CLOCK_EVERY) {
                recorder.end_batch(true);
            }
            recorder.taken(slot, request);
        }
    }

    /// A taken request turns out to be part of the foreground's fsync.
    pub(crate) fn promoted(&mut self, request: &Request) {
        if self.may_be_answer
            && let Some(hint) = &mut self.hint
        {
            hint.taken(request, true);
            self.may_be_answer = hint.is_choosy();
        }
    }

    /// The storage gets it next.
    #[inline]
    pub(crate) fn begun(&mut self, slot: Slot, request: &Request) {
        if let Some(watched) = &mut self.watched {
            watched.begun(slot, request);
        }
        probes::request_begun(request);
    }

    /// It was answered; it is still in its slot. `class` is its class, for the observers.
    #[inline]
    pub(crate) fn answered(
        &mut self,
        slot: Slot,
        request: &Request,
        status: Status,
        class: impl FnOnce() -> Class,
    ) {
        if let Some(watched) = &self.watched {
            watched.answered(slot);
        }
        if self.is_any {
            self.tell_answered(slot, request, status, class());
        }
    }

    #[inline(never)]
    fn tell_answered(&mut self, slot: Slot, request: &Request, status: Status, class: Class) {
        if let Some(recorder) = &mut self.recorder {
            recorder.answered(slot, request, status);
        }
        if let Some(hint) = &mut self.hint {
            hint.answered(request, class.is_foreground());
        }
    }

    /// It goes back into the ring, as if it had not been taken.
    pub(crate) fn put_back(&mut self, slot: Slot) {
        if let Some(watched) = &self.watched {
            watched.answered(slot);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.put_back(slot);
        }
    }

    /// Answers of this turn were shown early; `is_empty` says whether the ring is.
    #[inline]
    pub(crate) fn shown_early(&mut self, is_empty: impl FnOnce() -> bool) {
        // If the next request decides it, an earlier request of the guest's may still be the answer
        // to an earlier signal.
        self.may_be_answer = self.hint.is_some() && (self.may_be_answer || is_empty());
    }

    /// Some requests were begun, or answered, together.
    #[inline]
    pub(crate) fn end_batch(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.end_batch(false);
        }
    }

    /// The lane took all it takes at a time; returns how many that were.
    #[inline]
    pub(crate) fn turn_ends(&mut self) -> usize {
        self.end_batch();
        if self.taken > 0 {
            probes::batch_taken(self.index, self.taken);
        }
        self.taken
    }

    /// The guest is about to see all answers, and `show` shows them and says whether it is to be
    /// signalled.
    #[inline]
    pub(crate) fn shown(&mut self, show: impl FnOnce() -> bool) -> bool {
        if let Some(recorder) = &mut self.recorder {
            recorder.shown();
        }
        let signals = show();
        if let Some(hint) = &mut self.hint {
            // First of all: when the interrupt comes, the vCPU is to run already.
            hint.shown(signals);
        }
        if signals {
            probes::signal(self.index);
        }
        signals
    }

    /// Sets or removes the recorder of every request from now on.
    pub(crate) fn set_recorder(
        &mut self,
        recorder: Option<Box<Recorder>>,
        slots: u16,
        in_flight: usize,
    ) {
        self.recorder = recorder;
        self.is_any = self.recorder.is_some() || self.hint.is_some();
        if let Some(recorder) = &mut self.recorder {
            recorder.start(slots, in_flight);
        }
    }

    /// Takes the recorder out, for the lane that comes next.
    pub(crate) fn take_recorder(&mut self) -> Option<Box<Recorder>> {
        self.end_batch();
        self.recorder.take()
    }

    /// Sets or removes the vCPU scheduler's hint from now on.
    pub(crate) fn set_hint(&mut self, hint: Option<Box<LaneHint>>) {
        self.hint = hint;
        self.is_any = self.recorder.is_some() || self.hint.is_some();
    }

    /// Takes the hint out, for the lane that comes next.
    pub(crate) fn take_hint(&mut self) -> Option<Box<LaneHint>> {
        let mut hint = self.hint.take()?;
        hint.forget();
        Some(hint)
    }
}
