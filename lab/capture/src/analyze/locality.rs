//! Where requests go: sequential runs, footprint, what is used again.

use std::collections::{HashMap, HashSet, VecDeque};

use vlane_trace::{Record, RequestKind};

use super::super::Trace;
use super::build::{number, share};
use vlane_report::{Cell, Section, table};

/// Sectors of the blocks that the footprint is counted in: 4 KiB.
const BLOCK: u64 = 8;
/// Blocks of one request that are counted; a longer one (a discard of the whole volume, say) counts
/// with so many.
const MOST_BLOCKS: u64 = 1 << 18;
/// Recent requests of a lane that the next may continue: the number of streams that are
/// distinguished.
const STREAMS: usize = 16;

/// Figures of some requests.
#[derive(Default)]
struct Of {
    requests: u64,
    sequential: u64,
    accesses: u64,
    blocks: HashSet<u64>,
}

pub(super) fn section(trace: &Trace) -> Section {
    let [mut reads, mut writes, mut both]: [Of; 3] = Default::default();
    let mut ends: HashMap<(u16, RequestKind), VecDeque<u64>> = HashMap::new();
    for at in trace.by_submission() {
        let record = &trace.requests[at].record;
        let of = match record.kind {
            RequestKind::Read => &mut reads,
            RequestKind::Write => &mut writes,
            _ => continue,
        };
        let recent = ends.entry((record.lane, record.kind)).or_default();
        let stream = recent.iter().position(|end| *end == record.sector);
        match stream {
            Some(stream) => drop(recent.remove(stream)),
            None if recent.len() == STREAMS => drop(recent.pop_front()),
            None => {}
        }
        recent.push_back(record.sector.saturating_add(record.sectors.into()));
        for of in [of, &mut both] {
            of.requests += 1;
            of.sequential += u64::from(stream.is_some());
            of.accesses += blocks(record).count() as u64;
            of.blocks.extend(blocks(record));
        }
    }
    let explained = format!(
        "Sequential: begins where one of the last {STREAMS} requests of the same lane and kind \
         ended. Footprint: different blocks of 4 KiB. Used again: accesses to blocks that were \
         accessed before in the trace, by the kind."
    );
    let all = trace.header.sectors / BLOCK;
    let row = |(name, of): (&str, &Of)| {
        let blocks = of.blocks.len() as u64;
        vec![
            name.into(),
            share(of.sequential, of.requests),
            Cell::Number(number(blocks * BLOCK * 512) / f64::from(1 << 20)),
            share(blocks, all),
            share(of.accesses - blocks, of.accesses),
        ]
    };
    let rows = [("read", &reads), ("write", &writes), ("both", &both)];
    let rows = rows.into_iter().filter(|(name, of)| of.requests > 0 || *name == "both").map(row);
    let columns = " | sequential [%] | footprint [MiB] | of the volume [%] | used again [%]";
    let kinds = table("Where reads and writes go", columns, rows.collect());
    Section::new("locality", "Locality", vec![explained], vec![kinds])
}

fn blocks(record: &Record) -> impl Iterator<Item = u64> + use<> {
    let first = record.sector / BLOCK;
    let end = record.sector.saturating_add(record.sectors.into()).div_ceil(BLOCK);
    first..end.min(first + MOST_BLOCKS)
}
