//! `/v1/counters`: the lanes' counts, and the process's use of resources.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde::Serialize;
use utoipa::ToSchema;
use vlane_lane::Snapshot;

use super::Context;
use super::error::{ApiError, Problem};

/// Counters, by name. All of them only ever rise, across sessions too.
type Counted = BTreeMap<&'static str, u64>;

/// All counters.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CountersInfo {
    /// The time of reading them: nanoseconds of the system's monotonic clock (CLOCK_MONOTONIC).
    monotonic_ns: u64,
    process: ProcessInfo,
    /// The sum of all lanes: reads, read_bytes, writes, written_bytes, flushes, others, refused,
    /// failed, no_space, short, lost, retries, bounced, inline, fdatasyncs, flushes_skipped,
    /// flushes_shared, handed_over, signals, kicks.
    #[schema(value_type = BTreeMap<String, u64>)]
    sum: Counted,
    /// Each lane, by its number.
    #[schema(value_type = Vec<BTreeMap<String, u64>>)]
    lanes: Vec<Counted>,
}

/// Resources that the volume's process used since it began, by all threads, including the one that
/// answers here.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ProcessInfo {
    /// Its number.
    pid: u32,
    /// CPU time in user mode, in nanoseconds.
    user_ns: i64,
    /// CPU time in the kernel, in nanoseconds.
    system_ns: i64,
    /// Times that a thread gave its CPU away.
    voluntary_switches: i64,
    /// Times that a thread's CPU was taken from it.
    involuntary_switches: i64,
}

fn counted(snapshot: &Snapshot) -> Counted {
    snapshot.fields().collect()
}

/// Counters of each lane and of all, and the process's CPU time.
///
/// Lanes publish their counters once a batch, so those of one answer belong together to within a
/// batch.
#[utoipa::path(
    get, path = "/v1/counters", operation_id = "counters",
    responses(
        (status = 200, description = "The counters", body = CountersInfo),
        (status = 500, description = "The system does not tell", body = Problem)
    )
)]
pub(super) async fn get(State(context): State<Context>) -> Result<Json<CountersInfo>, ApiError> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).map_err(|error| {
        let what = "the process's CPU time cannot be read";
        ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            what,
            error.desc(),
            "this should not happen; report it",
        )
    })?;
    let monotonic_ns = vlane_hint::now();
    let lanes: Vec<_> = context.volume.counters.iter().map(|lane| lane.snapshot()).collect();
    let sum = lanes.iter().fold(Snapshot::default(), |mut sum, lane| {
        sum.add(lane);
        sum
    });
    Ok(Json(CountersInfo {
        monotonic_ns,
        process: ProcessInfo {
            pid: std::process::id(),
            user_ns: usage.user_time().num_nanoseconds(),
            system_ns: usage.system_time().num_nanoseconds(),
            voluntary_switches: usage.voluntary_context_switches(),
            involuntary_switches: usage.involuntary_context_switches(),
        },
        sum: counted(&sum),
        lanes: lanes.iter().map(counted).collect(),
    }))
}
