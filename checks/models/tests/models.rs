//! Every execution of the models. A failure prints the steps; `LOOM_LOG=trace LOOM_LOCATION=1`
//! prints more.

use loom::model::Builder;
use vlane_models::PlacedStep::{self, Both, End, Forget as PutBack, Serve};
use vlane_models::Step::{Answer, OtherAnswer, OtherSignal, Signal};
use vlane_models::Task::{Change, ChangeAndEnd, Changes, Forget, Write, WriteAndEnd, Writes};
use vlane_models::Turn::{self, Cancel, Change as Place, PutOff};
use vlane_models::Work::{self, Flush, FlushAndEnd, Flushes, Forget as TakenBack};
use vlane_models::{Plan, every_operation_that_is_handed_over_comes_back_once};
use vlane_models::{no_answered_write_is_missed, no_byte_goes_both_ways, no_change_undoes_a_write};

/// Tries all executions with at most so many switches that no thread has asked for. A fault that
/// needs more than three has never been seen.
fn every(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn sleeping_lane_loses_no_message() {
    every(vlane_models::sleeping_lane_loses_no_message);
}

#[test]
fn lane_loses_no_event() {
    every(vlane_models::lane_loses_no_event);
}

/// Its thread may leave at any time.
#[test]
fn handed_operation_returns_exactly_once() {
    let plan = |hands_over, takes| Plan { hands_over, takes };
    let two = |one, other| {
        every(move || every_operation_that_is_handed_over_comes_back_once(&[one, other]))
    };
    // One waits for what the other hands over; leaves before; or in between.
    two(plan(1, 0), plan(0, 1));
    two(plan(1, 0), plan(0, 0));
    two(plan(2, 0), plan(0, 1));
    // Both hand over, and leave when they have their own results.
    two(plan(1, 0), plan(1, 0));
}

#[test]
fn mark_wakes_scheduler_or_is_seen() {
    every(|| vlane_models::no_mark_of_a_lane_is_lost(false, &[Signal]));
    every(|| vlane_models::no_mark_of_a_lane_is_lost(false, &[Signal, Signal]));
}

#[test]
fn signal_is_counted_once_during_answers() {
    every(|| vlane_models::no_mark_of_a_lane_is_lost(false, &[Signal, Answer]));
    every(|| vlane_models::no_mark_of_a_lane_is_lost(false, &[Signal, Answer, Signal]));
}

#[test]
fn background_does_not_count_with_express() {
    every(|| vlane_models::no_mark_of_a_lane_is_lost(true, &[OtherSignal, Signal, OtherAnswer]));
    every(|| {
        vlane_models::no_mark_of_a_lane_is_lost(true, &[Signal, OtherAnswer, Answer, OtherSignal])
    });
    every(|| vlane_models::no_mark_of_a_lane_is_lost(true, &[Signal, OtherSignal, Answer, Signal]));
}

#[test]
fn partial_change_never_undoes_write() {
    every(|| no_change_undoes_a_write(&[&[Change(0)], &[Write(0)]]));
    every(|| no_change_undoes_a_write(&[&[Change(0)], &[Write(0), Write(0)]]));
    every(|| no_change_undoes_a_write(&[&[Change(0)], &[Writes(1, 0)]]));
    every(|| no_change_undoes_a_write(&[&[Change(0), Change(0)], &[Write(0), Write(0)]]));
    every(|| no_change_undoes_a_write(&[&[Change(0), Write(1)], &[Write(0), Change(1)]]));
}

#[test]
fn changes_exclude_each_other_and_writes() {
    every(|| no_change_undoes_a_write(&[&[Change(0)], &[Change(0)]]));
    every(|| no_change_undoes_a_write(&[&[Change(0)], &[Write(0)], &[Write(1)]]));
    every(|| no_change_undoes_a_write(&[&[Change(0)], &[Change(0)], &[Write(0)]]));
    every(|| no_change_undoes_a_write(&[&[Change(0)], &[Change(1)], &[Write(0)]]));
}

#[test]
fn lane_gets_all_awaited_blocks() {
    every(|| no_change_undoes_a_write(&[&[Changes(0, 0)], &[Write(0)]]));
    every(|| no_change_undoes_a_write(&[&[Changes(0, 1)], &[Write(0)]]));
    every(|| no_change_undoes_a_write(&[&[Changes(0, 1)], &[Changes(0, 1)]]));
}

#[test]
fn ended_lane_delays_no_other() {
    every(|| no_change_undoes_a_write(&[&[Change(0)], &[Forget(0), Write(0)]]));
    every(|| no_change_undoes_a_write(&[&[Change(0)], &[Forget(0)], &[Write(0)]]));
    every(|| no_change_undoes_a_write(&[&[Change(0)], &[WriteAndEnd(0)]]));
    every(|| no_change_undoes_a_write(&[&[Change(0)], &[ChangeAndEnd(0)]]));
    every(|| no_change_undoes_a_write(&[&[Write(0)], &[ChangeAndEnd(0)], &[Change(0)]]));
}

/// As [`every`] with fewer switches: the thread of the flushes is one more.
fn flushed(lanes: &'static [&'static [Work]], first_fails: bool) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(if lanes.len() > 2 { 1 } else { 2 });
    builder.check(move || no_answered_write_is_missed(lanes, first_fails));
}

#[test]
fn flush_waits_for_earlier_writes() {
    flushed(&[&[Work::Write, Flush], &[Flush]], false);
    flushed(&[&[Flush, Work::Write], &[Flush, Flush]], false);
    flushed(&[&[Work::Write, Flush], &[Work::Write, Flush]], false);
    flushed(&[&[Work::Write, Flush], &[Flush], &[Flush]], false);
}

#[test]
fn flushes_of_a_lane_are_ordered() {
    flushed(&[&[Flushes], &[Work::Write, Flush]], false);
    flushed(&[&[Work::Write, Flushes], &[Flushes]], false);
}

/// A lane that forgets its requests, or a sync that fails, delays none either.
#[test]
fn ended_lane_delays_no_flush() {
    flushed(&[&[Work::Write, Flush], &[FlushAndEnd]], false);
    flushed(&[&[Flush], &[Work::Write, FlushAndEnd], &[Flush]], false);
    flushed(&[&[Work::Write, Flush], &[TakenBack, Flush]], false);
    flushed(&[&[Flush], &[TakenBack], &[Work::Write, Flush]], false);
    flushed(&[&[Work::Write, Flush], &[Work::Write, Flush, Flush]], true);
}

/// With several lanes fewer switches: each step of a change wakes all lanes, so there are many
/// executions.
fn placed(turns: &'static [Turn], lanes: &'static [&'static [PlacedStep]]) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(if lanes.len() > 1 { 2 } else { 3 });
    builder.check(move || no_byte_goes_both_ways(turns, lanes));
}

#[test]
fn byte_is_never_used_both_ways() {
    placed(&[Place(0, 2)], &[&[Serve(0, 1)]]);
    placed(&[Place(0, 2)], &[&[Serve(0, 1), Serve(0, 1)]]);
    placed(&[Place(1, 2)], &[&[Both((0, 1), (1, 2))]]);
    placed(&[Place(0, 2), Place(0, 0)], &[&[Serve(0, 1)]]);
    placed(&[Place(0, 2)], &[&[Serve(0, 4)], &[Serve(1, 3)]]);
}

#[test]
fn deferred_change_frees_held_bytes() {
    placed(&[PutOff(0, 2)], &[&[Serve(0, 4)]]);
    placed(&[Cancel(0, 2)], &[&[Both((0, 1), (1, 2))]]);
    placed(&[Cancel(0, 2), Place(1, 3)], &[&[Serve(0, 2)]]);
}

#[test]
fn returned_requests_are_not_awaited() {
    placed(&[Place(0, 2)], &[&[PutBack(0, 1), Serve(0, 1)]]);
    placed(&[Place(0, 2)], &[&[End(0, 1)]]);
    placed(&[Place(0, 2)], &[&[End(0, 1)], &[Serve(0, 2)]]);
}
