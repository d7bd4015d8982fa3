#![allow(clippy::unwrap_used)]
use super::*;

fn request(
    at_ns: u64,
    done_ns: u64,
    queue: u16,
    kind: ReplayKind,
    sector: u64,
    sectors: u32,
) -> ReplayRequest {
    ReplayRequest { at_ns, done_ns: Some(done_ns), queue, kind, sector, sectors, ioprio: 0, data: None }
}
