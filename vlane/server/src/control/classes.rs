//! `/v1/classes`: the volume's lanes' counts by class, and how long requests waited where.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use vlane_lane::{ClassSnapshot, JOURNAL, KindSnapshot, LaneWindow, TimesSnapshot, bucket_end};
use vlane_policy::express::{Class, Ioprio, Mode};

use super::Context;

/// The lanes' counts by class. Counters only rise, across sessions too.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ClassesInfo {
    /// `off`, `order`, `shortest` or `on` (`--classes`). With `off`, no other field here has a
    /// meaning.
    mode: &'static str,
    /// More than one class was seen in the last ten seconds: with `order` and `on`, lanes have
    /// windows then.
    is_mixed: bool,
    /// Express, promoted, normal, background; without the journal.
    classes: Vec<Counted>,
    /// Requests of best effort 3, which ext4's journal thread has, as far as they are not promoted.
    /// They are treated as their class.
    journal: Counted,
    /// Express requests that went to another thread's submission queue (`shortest`, `on`).
    handed_over: u64,
    /// Turns in which lanes took requests.
    turns: u64,
    /// The turns after which a guest had as many requests in flight as the ring has entries. Others
    /// may wait in the guest then, in the order of their arrival, and no back end sees how long.
    full_turns: u64,
    /// Each lane, by its number.
    lanes: Vec<LaneInfo>,
}

/// The counts of one class.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Counted {
    /// `express`, `promoted`, `normal`, `background`.
    class: &'static str,
    /// Requests that were taken out of the rings.
    requests: u64,
    /// From the ring until they were begun.
    queued: Times,
    /// From then on until they were answered. Those that were answered at once are not among them.
    device: Times,
}

/// Times of requests: of all while classes are mixed, of those of one turn of sixty-four otherwise.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Times {
    /// Requests that were timed.
    timed: u64,
    /// The sum of their times, nanoseconds.
    sum_ns: u64,
    /// The mean; null without any.
    mean_ns: Option<u64>,
    /// Half of them took no longer: the end of a histogram's bucket, which is at most half more
    /// than it was.
    p50_ns: Option<u64>,
    /// The time that 99 of 100 did not exceed, by the same rule.
    p99_ns: Option<u64>,
    /// The histogram: the number of requests that took less than so many nanoseconds, and no less
    /// than the bucket before. Empty buckets are omitted.
    buckets: Vec<[u64; 2]>,
}

/// The state of a lane.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LaneInfo {
    /// Normal and background requests that it may have at the device; null: as many as there are.
    /// Express requests may be as many again, and promoted ones half as many.
    window: Option<u64>,
    /// Requests that it had there at the end of its last turn.
    at_device: u64,
}

impl From<&TimesSnapshot> for Times {
    fn from(times: &TimesSnapshot) -> Times {
        let counted = times.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        Times {
            timed: times.count,
            sum_ns: times.nanos,
            mean_ns: times.mean(),
            p50_ns: times.quantile(0.5),
            p99_ns: times.quantile(0.99),
            buckets: counted.map(|(bucket, count)| [bucket_end(bucket), *count]).collect(),
        }
    }
}

impl From<LaneWindow> for LaneInfo {
    fn from(LaneWindow { window, at_device }: LaneWindow) -> LaneInfo {
        LaneInfo { window, at_device }
    }
}

fn counted(class: Class, kind: &KindSnapshot) -> Counted {
    let KindSnapshot { requests, queued, device } = kind;
    Counted {
        class: class.name(),
        requests: *requests,
        queued: queued.into(),
        device: device.into(),
    }
}

/// Requests by class: how many, and how long they waited in the lanes and at the device.
#[utoipa::path(
    get, path = "/v1/classes", operation_id = "classes",
    responses((status = 200, description = "The classes", body = ClassesInfo))
)]
pub(super) async fn get(State(context): State<Context>) -> Json<ClassesInfo> {
    let volume = &context.volume;
    let express = &volume.config.express;
    let snapshot = volume.classes.as_ref().map(|board| board.snapshot()).unwrap_or_default();
    let ClassSnapshot { is_mixed, kinds, turns, full_turns, lanes } = snapshot;
    Json(ClassesInfo {
        mode: match express.mode {
            Mode::Off => "off",
            Mode::Order => "order",
            Mode::Shortest => "shortest",
            Mode::On => "on",
        },
        is_mixed,
        classes: Class::ALL
            .into_iter()
            .map(|class| counted(class, &kinds[class as usize]))
            .collect(),
        journal: counted(express.classes.of(Ioprio::JOURNAL), &kinds[JOURNAL]),
        handed_over: volume.counters().handed_over,
        turns,
        full_turns,
        lanes: lanes.into_iter().map(LaneInfo::from).collect(),
    })
}
