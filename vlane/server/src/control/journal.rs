//! `/v1/journal`: the guest's journals, as far as they are looked for.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;
use vlane_engine::file::{DirectReport, JournalReport};
use vlane_policy::journal::Journal;
use vlane_policy::journal::bypass::ByWay;

use super::Context;
use super::error::{ApiError, Problem};

/// The guest's journals, and what is done about them. Counters only rise, as long as the volume is
/// served.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct JournalInfo {
    /// True if journals are looked for (`--cache pdc`, and not read-only). If not, no other field
    /// here has a meaning.
    is_watched: bool,
    /// True if all writes before the question are counted. If not, the thread that counts hangs
    /// with its storage.
    is_current: bool,
    /// The journals that are known now.
    journals: Vec<Found>,
    /// Bytes that the guest wrote.
    written_bytes: u64,
    /// The bytes of them that were written to a journal, by the way in which it was found.
    journal_written_bytes: Ways,
    /// Bytes written to a cyclic log that is no file system's journal; they stay in the page cache.
    log_written_bytes: u64,
    /// Flushes that succeeded.
    flushes: u64,
    /// The flushes before which, and after the flush before, a journal was written to.
    journal_flushes: u64,
    /// Bytes of the distinct blocks that were written.
    footprint_bytes: u64,
    /// Bytes of the distinct blocks of journals that were written.
    journal_footprint_bytes: u64,
    /// Bytes of a block, for the footprints: 4096 unless the volume is larger than 1 TiB.
    footprint_block: u64,
    /// Bytes of journals that were dropped from the page cache, by how the journal was found.
    dropped_bytes: Ways,
    /// Bytes of journals that are in the page cache now; null where the system does not tell
    /// (before Linux 6.5).
    cached_bytes: Option<u64>,
    /// The journals' reads and writes around the page cache (`--journal direct`).
    direct: Direct,
    /// Events that were not looked at because there were too many; what they wrote is in no figure
    /// here.
    lost: u64,
}

/// Reads and writes around the page cache.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Direct {
    /// The reason why no journal is direct, if none can be.
    refusal: Option<String>,
    /// Start and length of each region, in bytes.
    ranges: Vec<[u64; 2]>,
    /// The regions are changing, or are to change and it is tried again.
    is_changing: bool,
    /// Bytes written to regions.
    written_bytes: u64,
    /// Number of changes of the regions.
    changes: u64,
    /// Number of changes that were put off: the regions stayed as they were.
    put_off: u64,
    /// Start and length of what is not direct any more, because another program of the host used it
    /// through the page cache.
    given_up: Vec<[u64; 2]>,
}

impl From<DirectReport> for Direct {
    fn from(report: DirectReport) -> Direct {
        let DirectReport { refusal, ranges, is_changing, written, changes, put_off, given_up } =
            report;
        let pairs = |ranges: Vec<std::ops::Range<u64>>| {
            ranges.into_iter().map(|range| [range.start, range.end - range.start]).collect()
        };
        Direct {
            refusal,
            ranges: pairs(ranges),
            is_changing,
            written_bytes: written,
            changes,
            put_off,
            given_up: pairs(given_up),
        }
    }
}

/// A journal.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Found {
    /// `ext4`, `xfs` or `unknown`.
    #[schema(value_type = String)]
    filesystem: vlane_policy::journal::FileSystem,
    /// `journal`, or `log`: a cyclic log that is no file system's.
    #[schema(value_type = String)]
    kind: vlane_policy::journal::LogKind,
    /// `layout`, `content` or `pattern`.
    #[schema(value_type = String)]
    way: vlane_policy::journal::Evidence,
    /// Start and length of each of its pieces, in bytes.
    ranges: Vec<[u64; 2]>,
}

impl From<Journal> for Found {
    fn from(journal: Journal) -> Found {
        let Journal { filesystem, kind, way, ranges } = journal;
        let ranges =
            ranges.into_iter().map(|range| [range.start, range.end - range.start]).collect();
        Found { filesystem, kind, way, ranges }
    }
}

/// Bytes by how a journal was found.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Ways {
    /// From partition table and superblock.
    layout: u64,
    /// From what is written.
    content: u64,
    /// From the order of the writes.
    pattern: u64,
}

impl From<ByWay> for Ways {
    fn from(ByWay { layout, content, pattern }: ByWay) -> Ways {
        Ways { layout, content, pattern }
    }
}

/// The guest's journals: where they are, what is written to them, what of them is in the page
/// cache.
#[utoipa::path(
    get, path = "/v1/journal", operation_id = "journal",
    responses(
        (status = 200, description = "The journals", body = JournalInfo),
        (status = 500, description = "The question was not answered", body = Problem)
    )
)]
pub(super) async fn get(State(context): State<Context>) -> Result<Json<JournalInfo>, ApiError> {
    // It waits for the thread that knows, which may hang.
    let asked = tokio::task::spawn_blocking(move || context.volume.engine.journal());
    let report = asked.await.map_err(|error| {
        let what = "the journals are unavailable";
        let advice = "this should not happen; report it";
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, what, error.to_string(), advice)
    })?;
    let is_watched = report.is_some();
    let JournalReport { journals, traffic, dropped, cached, direct, lost, is_current } =
        report.unwrap_or_default();
    Ok(Json(JournalInfo {
        is_watched,
        is_current,
        journals: journals.into_iter().map(Found::from).collect(),
        written_bytes: traffic.written,
        journal_written_bytes: traffic.journal_written.into(),
        log_written_bytes: traffic.log_written,
        flushes: traffic.flushes,
        journal_flushes: traffic.journal_flushes,
        footprint_bytes: traffic.footprint,
        journal_footprint_bytes: traffic.journal_footprint,
        footprint_block: traffic.footprint_block,
        dropped_bytes: dropped.into(),
        cached_bytes: cached,
        direct: direct.into(),
        lost,
    }))
}
