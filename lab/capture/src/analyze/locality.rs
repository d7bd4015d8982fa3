//! Where requests go: sequential runs, footprint, what is used again, and when.

use std::collections::{HashMap, VecDeque};

use vlane_trace::{Record, RequestKind};

use super::super::Trace;
use super::build::{lines, number, share, text};
use vlane_report::build::table;
use vlane_report::{Cell, Section};

/// Sectors of the blocks that the footprint is counted in: 4 KiB.
const BLOCK: u64 = 8;
/// Blocks of one request that are counted; a longer one (a discard of the whole volume, say) counts
/// with so many.
const MOST_BLOCKS: u64 = 1 << 18;
/// Recent requests of a lane that the next may continue: the number of streams that are
/// distinguished.
const STREAMS: usize = 16;
/// Slices of time, and of the volume, in the picture.
const SLICES: usize = 6;
const PLACES: usize = 64;
/// The kinds whose places are looked at.
const KINDS: [RequestKind; 2] = [RequestKind::Read, RequestKind::Write];

#[derive(Default)]
struct Of {
    requests: u64,
    sequential: u64,
    accesses: u64,
    again: u64,
    blocks: HashMap<u64, ()>,
}

pub(super) fn section(trace: &Trace, first: u64, span: u64) -> (Section, String) {
    let mut of: [Of; 2] = Default::default();
    let mut all: HashMap<u64, ()> = HashMap::new();
    let mut ends: HashMap<(u16, RequestKind), VecDeque<u64>> = HashMap::new();
    for at in trace.by_submission() {
        let record = &trace.requests[at].record;
        let Some(place) = KINDS.iter().position(|kind| *kind == record.kind) else { continue };
        let of = &mut of[place];
        of.requests += 1;
        let recent = ends.entry((record.lane, record.kind)).or_default();
        match recent.iter().position(|end| *end == record.sector) {
            Some(stream) => {
                of.sequential += 1;
                recent.remove(stream);
            }
            None if recent.len() == STREAMS => drop(recent.pop_front()),
            None => {}
        }
        recent.push_back(record.sector.saturating_add(record.sectors.into()));
        for block in blocks(record) {
            of.accesses += 1;
            all.insert(block, ());
            of.again += u64::from(of.blocks.insert(block, ()).is_some());
        }
    }
    let sequential = of[0].sequential + of[1].sequential;
    let requests = (of[0].requests + of[1].requests).max(1);
    let words = format!(
        "{:.0} % of reads and writes continue where one of the lane's last {STREAMS} of the kind \
         ended; they touch {:.1} MiB.",
        number(sequential) * 100.0 / number(requests),
        number(all.len() as u64 * BLOCK * 512) / f64::from(1 << 20)
    );
    let explained = format!(
        "Sequential: begins where one of the last {STREAMS} requests of the same lane and kind \
         ended. Footprint: different blocks of 4 KiB. Used again: accesses to blocks that were \
         accessed before in the trace, by the kind."
    );
    let section = Section::new(
        "locality",
        "Locality",
        vec![explained],
        vec![kinds(&of, all.len(), trace.header.sectors), heat(trace, first, span)],
    );
    (section, words)
}

/// The table of both kinds, and of them together: `all` are the blocks that either touched.
fn kinds(of: &[Of; 2], all: usize, sectors: u64) -> vlane_report::Block {
    let mib =
        |blocks: usize| Cell::Number(number(blocks as u64 * BLOCK * 512) / f64::from(1 << 20));
    let rows = KINDS
        .iter()
        .zip(of)
        .filter(|(_, of)| of.requests > 0)
        .map(|(kind, of)| {
            vec![
                text(kind.name()),
                share(of.sequential, of.requests),
                mib(of.blocks.len()),
                share(of.blocks.len() as u64, sectors / BLOCK),
                share(of.again, of.accesses),
            ]
        })
        .chain([vec![
            text("both"),
            share(of[0].sequential + of[1].sequential, of[0].requests + of[1].requests),
            mib(all),
            share(all as u64, sectors / BLOCK),
            share(
                (of[0].accesses + of[1].accesses).saturating_sub(all as u64),
                of[0].accesses + of[1].accesses,
            ),
        ]])
        .collect();
    let columns = [
        ("", ""),
        ("sequential", "%"),
        ("footprint", "MiB"),
        ("of the volume", "%"),
        ("used again", "%"),
    ];
    table("Where reads and writes go", &columns, rows)
}

fn blocks(record: &Record) -> impl Iterator<Item = u64> + use<> {
    let first = record.sector / BLOCK;
    let end = record.sector.saturating_add(record.sectors.into()).div_ceil(BLOCK);
    first..end.min(first + MOST_BLOCKS)
}

/// How much of the data of each slice of time went to which part of the volume: a line for each
/// slice.
fn heat(trace: &Trace, first: u64, span: u64) -> vlane_report::Block {
    let moved = |record: &Record| {
        matches!(record.kind, RequestKind::Read | RequestKind::Write) && record.sectors > 0
    };
    let records: Vec<&Record> =
        trace.requests.iter().map(|request| &request.record).filter(|r| moved(r)).collect();
    let reach =
        records.iter().map(|r| r.sector.saturating_add(r.sectors.into())).max().unwrap_or(1);
    let sectors = trace.header.sectors.max(reach).max(1);
    let part = |value: u64, all: u64, parts: usize| -> usize {
        let place = u128::from(value) * parts as u128 / u128::from(all.max(1));
        usize::try_from(place).unwrap_or(usize::MAX).min(parts - 1)
    };
    let mut bytes = vec![[0_u64; PLACES]; SLICES];
    for record in records {
        let slice = part(record.submit - first, span + 1, SLICES);
        bytes[slice][part(record.sector, sectors, PLACES)] += record.bytes();
    }
    let seconds = |slice: usize| number(span) / 1e9 * number(slice as u64) / number(SLICES as u64);
    let gib = number(sectors) * 512.0 / f64::from(1 << 30);
    let series = bytes.iter().enumerate().map(|(slice, places)| {
        let points = places.iter().enumerate().map(|(place, bytes)| {
            (gib * (number(place as u64) + 0.5) / number(PLACES as u64), number(*bytes) / 1e6)
        });
        (format!("{:.1} to {:.1} s", seconds(slice), seconds(slice + 1)), points.collect())
    });
    lines(
        "Where data were read and written, by slice of time",
        ("place in the volume", "GiB"),
        ("data per 64th of the volume", "MB"),
        series.collect(),
    )
}
