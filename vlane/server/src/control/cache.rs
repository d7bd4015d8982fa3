//! `/v1/cache`: the volume's share of the host's page cache, if it is bounded.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use vlane_engine::file::CacheReport;

use super::Context;

/// The volume's share of the host's page cache. Looked at once a second while the volume is used.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CacheInfo {
    /// Bytes that the volume may hold (`--cache-budget`); null if its share is not bounded. Then no
    /// other field here has a meaning.
    budget_bytes: Option<u64>,
    /// Bytes that it held at the last look.
    cached_bytes: u64,
    /// Bytes of them that were not on the storage yet.
    dirty_bytes: u64,
    /// Bytes that were dropped because they were above the budget, since the volume is served.
    dropped_bytes: u64,
    /// Dropped chunks of 2 MiB that the guest read afterwards.
    chunks_read_again: u64,
    /// True if no page is dropped for a while, because the guest read too many dropped chunks.
    is_paused: bool,
    /// True if the system does not report the page cache's content (before Linux 6.5).
    /// `cached_bytes` is an estimate then: bytes written, and neither read nor dropped.
    is_estimate: bool,
}

/// The volume's share of the host's page cache, and its bound.
#[utoipa::path(
    get, path = "/v1/cache", operation_id = "cache",
    responses((status = 200, description = "The share", body = CacheInfo))
)]
pub(super) async fn get(State(context): State<Context>) -> Json<CacheInfo> {
    let report = context.volume.engine.cache_budget();
    let CacheReport { budget, cached, dirty, dropped, read_again, is_paused, is_estimate } =
        report.unwrap_or_default();
    Json(CacheInfo {
        budget_bytes: report.map(|_| budget),
        cached_bytes: cached,
        dirty_bytes: dirty,
        dropped_bytes: dropped,
        chunks_read_again: read_again,
        is_paused,
        is_estimate,
    })
}
