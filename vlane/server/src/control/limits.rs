//! `/v1/limits`: the volume's limits per second.

use std::num::NonZeroU64;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use vlane_policy::throttle::{DEFAULT_BURST, ExpressBudget, Limits};

use super::Context;
use super::error::{ApiError, Problem};
use crate::volume::Volume;

/// A volume's limits per second, and how often they kept it waiting.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LimitsInfo {
    /// Requests per second; null: as many as there are.
    iops: Option<u64>,
    /// Bytes read and written per second; null: as many as there are.
    bandwidth: Option<u64>,
    /// The amount of both that may pass at once after a pause: as much as in so many microseconds.
    burst_us: u64,
    /// Express requests are `counted` like others, or `exempt`: they never wait, and are not
    /// charged.
    #[schema(value_type = String)]
    express: ExpressBudget,
    /// Times that a lane had to wait, since the limits were set.
    waits: u64,
    /// For how long, all lanes together, in microseconds.
    waited_us: u64,
}

/// New limits for a volume. An omitted limit does not apply.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewLimits {
    /// Requests per second, from 1 on; null: as many as there are.
    #[serde(default)]
    #[schema(value_type = Option<u64>)]
    iops: Option<NonZeroU64>,
    /// Bytes read and written per second, from 512 on; null: as many as there are.
    #[serde(default)]
    #[schema(value_type = Option<u64>)]
    bandwidth: Option<NonZeroU64>,
    /// The amount of both that may pass at once after a pause: as much as in so many microseconds,
    /// from 1000 on; 100000 if omitted.
    #[serde(default)]
    burst_us: Option<u64>,
    /// `counted` unless said, or `exempt`.
    #[serde(default)]
    #[schema(value_type = String)]
    express: ExpressBudget,
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn info(volume: &Volume) -> LimitsInfo {
    let (Limits { iops, bandwidth, burst, express }, waits) = volume.limits();
    LimitsInfo {
        iops: iops.map(NonZeroU64::get),
        bandwidth: bandwidth.map(NonZeroU64::get),
        burst_us: microseconds(burst),
        express,
        waits: waits.count,
        waited_us: microseconds(waits.time),
    }
}

/// The volume's limits.
#[utoipa::path(
    get, path = "/v1/limits", operation_id = "limits",
    responses((status = 200, description = "The limits", body = LimitsInfo))
)]
pub(super) async fn get(State(context): State<Context>) -> Json<LimitsInfo> {
    Json(info(&context.volume))
}

/// Sets all of the volume's limits, from now on. Requests that have begun continue; waiting ones
/// wait for the new limits.
#[utoipa::path(
    put, path = "/v1/limits", operation_id = "set_limits", request_body = NewLimits,
    responses(
        (status = 200, description = "The limits from now on", body = LimitsInfo),
        (status = 400, description = "Not possible; the limits are unchanged", body = Problem)
    )
)]
pub(super) async fn put(
    State(context): State<Context>,
    body: Result<Json<NewLimits>, JsonRejection>,
) -> Result<Json<LimitsInfo>, ApiError> {
    let volume = &context.volume;
    let bad = |why: String, advice: &str| {
        let what = format!("{}: cannot be limited so", volume.config.name);
        ApiError::new(StatusCode::BAD_REQUEST, what, why, advice)
    };
    let shape = "send JSON (content-type: application/json) such as {\"iops\": 1000, \
                 \"bandwidth\": null}; /openapi.json has all of it";
    let Json(new) = body.map_err(|rejection| bad(rejection.body_text(), shape))?;
    let NewLimits { iops, bandwidth, burst_us, express } = new;
    let burst = burst_us.map_or(DEFAULT_BURST, Duration::from_micros);
    if express == ExpressBudget::Exempt && !volume.config.express.mode.classifies() {
        let why = "no request is express: the volume is served with --classes off".to_owned();
        return Err(bad(why, "serve it with --classes order, shortest or on"));
    }
    let limits = Limits { iops, bandwidth, burst, express };
    volume.set_limits(limits).map_err(|error| bad(error.to_string(), "choose another value"))?;
    Ok(Json(info(volume)))
}
