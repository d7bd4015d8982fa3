//! `/v1/volume`: the served disk and its front end.

use std::collections::{BTreeMap, BTreeSet};

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use vlane_lane::{PollMode, Topology};

use super::Context;
use crate::features;
use crate::stall::{STALLED, Unanswered};

/// A volume.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct VolumeInfo {
    /// Its name: the image's path, or `null`.
    name: String,
    /// The serial number that the guest sees.
    serial: String,
    /// Size in bytes.
    size: u64,
    /// Logical block size in bytes.
    block_size: u32,
    /// True if writes are refused.
    read_only: bool,
    /// True if DISCARD has an effect.
    discard: bool,
    /// True if WRITE_ZEROES is possible.
    write_zeroes: bool,
    topology: TopologyInfo,
    /// Threads that have ended by a fault; their queues are not served until vlane is started
    /// again.
    lost_threads: Vec<usize>,
    /// The polling mode of threads: `latency`, `balanced` or `off`.
    poll: &'static str,
    /// The longest busy polling, in microseconds; 0: none.
    poll_us: u64,
    /// Sessions since the volume is served, the present one included.
    sessions: u64,
    /// The present session; null without one.
    session: Option<SessionInfo>,
    /// True if a trace is being recorded.
    recording: bool,
    /// Writes that were answered and are lost; null if there are none. Since then writes and
    /// flushes are answered with an error.
    lost_write: Option<LostWriteInfo>,
    /// Times that the storage took 5 s or longer for a request.
    stalls: u64,
    /// Requests that it has taken that long for and not answered, the oldest first; at most 64 are
    /// named.
    stalled: Vec<UnansweredInfo>,
}

/// Writes that were answered and could not be made durable. The affected writes are unknown.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LostWriteInfo {
    /// The error number of the first failure.
    errno: i32,
    /// The same in words.
    error: String,
    /// The request that met it: a guest's `flush`, a durable `write`, or a `sync` of the whole
    /// volume.
    during: &'static str,
    /// Failures to write back that were seen, the first one included.
    failures: u64,
}

/// A request that the storage has not answered.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct UnansweredInfo {
    /// Its queue.
    queue: u16,
    /// `read`, `write`, `flush`, `discard` or `write-zeroes`.
    kind: &'static str,
    /// Its first sector, of 512 bytes.
    sector: u64,
    /// For how long it has been waiting, in ms.
    age_ms: u64,
}

impl From<Unanswered> for UnansweredInfo {
    fn from(unanswered: Unanswered) -> UnansweredInfo {
        let Unanswered { request, age } = unanswered;
        UnansweredInfo {
            queue: request.queue,
            kind: request.kind.name(),
            sector: request.sector,
            age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// Queues, threads, CPUs.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TopologyInfo {
    /// Queues that are offered: one lane each.
    queues: u16,
    /// Threads; lane i runs on thread i modulo their number. If they adapt: the most that are used.
    threads: u16,
    /// True if the number of threads chooses itself (`--threads auto`).
    adapts: bool,
    /// Threads that have lanes now.
    threads_used: u16,
    /// The CPU of each thread; empty: not pinned.
    cpus: Vec<usize>,
}

/// A connected front end.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SessionInfo {
    /// Counted from 1.
    number: u64,
    /// The front end's process; null if the system does not tell.
    pid: Option<i32>,
    /// The virtio feature bits that were agreed on.
    feature_bits: u64,
    /// Their names.
    features: Vec<&'static str>,
    /// Lanes that run.
    lanes: Vec<u16>,
    /// The thread of each of them.
    threads: Vec<usize>,
}

/// The volume: name, size, topology, and the present session.
#[utoipa::path(
    get, path = "/v1/volume", operation_id = "volume",
    responses((status = 200, description = "The volume", body = VolumeInfo))
)]
pub(super) async fn get(State(context): State<Context>) -> Json<VolumeInfo> {
    let volume = &context.volume;
    let (config, geometry) = (&volume.config, volume.geometry());
    let Topology { queues, threads, ref cpus, adapts } = config.topology;
    let poll = config.poll.within(config.poll_max);
    let places: BTreeMap<_, _> = volume.places().into_iter().collect();
    let used: BTreeSet<_> = places.values().collect();
    let session = volume.session().map(|session| SessionInfo {
        threads: session.lanes.iter().filter_map(|lane| places.get(lane).copied()).collect(),
        number: session.number,
        pid: session.pid,
        feature_bits: session.features,
        features: features::names(session.features),
        lanes: session.lanes,
    });
    let stalled = volume.unanswered().into_iter().filter(|one| one.age >= STALLED).take(64);
    Json(VolumeInfo {
        name: config.name.clone(),
        serial: config.serial.clone(),
        size: geometry.sectors * 512,
        block_size: geometry.block_size,
        read_only: geometry.read_only,
        discard: geometry.discard,
        write_zeroes: geometry.write_zeroes,
        topology: TopologyInfo {
            queues,
            threads,
            adapts,
            threads_used: u16::try_from(used.len()).unwrap_or(u16::MAX),
            cpus: cpus.clone(),
        },
        lost_threads: volume.lost_threads(),
        poll: poll.name(),
        poll_us: match poll {
            PollMode::Off => 0,
            _ => u64::try_from(config.poll_max.as_micros()).unwrap_or(u64::MAX),
        },
        sessions: volume.sessions(),
        session,
        recording: volume.recording.is_running(),
        lost_write: volume.lost_write().map(|lost| LostWriteInfo {
            errno: lost.errno,
            error: lost.error().to_string(),
            during: lost.during.name(),
            failures: lost.failures,
        }),
        stalls: volume.stalls(),
        stalled: stalled.map(UnansweredInfo::from).collect(),
    })
}
