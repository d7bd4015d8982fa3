//! `/v1/trace`: every request, as it is served.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use utoipa::IntoParams;

use super::Context;
use super::error::{ApiError, Problem};
use crate::recorded::Recording;
use crate::recording::Refused;

/// The parts to record.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TraceQuery {
    /// 1: with a hash of each request's data, which costs more; 0: without.
    #[serde(default)]
    #[param(minimum = 0, maximum = 1)]
    hash: u8,
}

/// A trace from now on, until the client hangs up or the volume ends.
///
/// The body is the trace itself, in vlane's trace format. Only when the volume ends does it have an
/// entry that says it is complete. A client that hangs up adds that by itself, after the last whole
/// entry.
#[utoipa::path(
    get, path = "/v1/trace", operation_id = "trace", params(TraceQuery),
    responses(
        (status = 200, description = "The trace", content_type = "application/vnd.vlane.trace", body = Vec<u8>),
        (status = 400, description = "Not a possible parameter", body = Problem),
        (status = 409, description = "A trace is being recorded already", body = Problem),
        (status = 503, description = "The volume is ending, or there is no thread", body = Problem)
    )
)]
pub(super) async fn get(
    State(context): State<Context>,
    query: Result<Query<TraceQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let bad = |why: String| {
        let advice = "ask for /v1/trace, /v1/trace?hash=0 or /v1/trace?hash=1";
        ApiError::new(StatusCode::BAD_REQUEST, "/v1/trace: cannot record", why, advice)
    };
    let Query(TraceQuery { hash }) = query.map_err(|rejection| bad(rejection.body_text()))?;
    if hash > 1 {
        return Err(bad(format!("hash is {hash}, and can be 0 or 1")));
    }
    let name = &context.volume.config.name;
    let chunks = Recording::follow(&context.volume, hash == 1).await.map_err(|refused| {
        let (status, why, advice) = match refused {
            Refused::Busy => (
                StatusCode::CONFLICT,
                "a trace is being recorded already".to_owned(),
                "end the other recording first",
            ),
            Refused::Ending => (
                StatusCode::SERVICE_UNAVAILABLE,
                "the volume is ending".to_owned(),
                "serve it again first",
            ),
            Refused::System(error) => (
                StatusCode::SERVICE_UNAVAILABLE,
                format!("there is no thread to be had: {error}"),
                "try again when the system has less to do",
            ),
        };
        ApiError::new(status, format!("{name}: cannot record"), why, advice)
    })?;
    let body = Body::from_stream(
        ReceiverStream::new(chunks).map(|chunk| Ok::<_, Infallible>(Bytes::from(chunk))),
    );
    Ok(([(header::CONTENT_TYPE, "application/vnd.vlane.trace")], body).into_response())
}
