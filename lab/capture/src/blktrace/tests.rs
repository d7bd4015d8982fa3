#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use proptest::prelude::*;
use vlane_trace::{Header, Record, RequestKind};

use super::*;

/// `enum blktrace_act` and categories, by their names in blkparse.
const D: u64 = ISSUE | category::ISSUE;
const C: u64 = COMPLETE | category::COMPLETE;
const Q: u64 = QUEUE | category::QUEUE;
/// Requeue, in its category.
const R: u64 = 5 | 1 << 21;

fn event(time: u64, action: u64, sector: u64, bytes: u32) -> Event {
    Event { time, sector, bytes: bytes.into(), action, pid: 1, device: 8 << 20, cpu: 0, error: 0 }
}

fn file(events: &[Event]) -> Vec<u8> {
    (0..).zip(events).flat_map(|(number, event)| encode(event, number, 0)).collect()
}

fn import(events: &[Event]) -> Imported {
    read(&file(events)[..], None).unwrap()
}

/// RequestKind, sector, sectors and service time of each request.
fn told(read: &Imported) -> Vec<(RequestKind, u64, u32, u64)> {
    let of =
        |r: &crate::Request| (r.record.kind, r.record.sector, r.record.sectors, r.record.service);
    read.trace.requests.iter().map(of).collect()
}

fn record(kind: RequestKind, lane: u16, submit: u64, sector: u64) -> Record {
    let sectors = if kind == RequestKind::Flush { 0 } else { 8 };
    Record { lane, service: 700, ..crate::import::record(kind, submit, sector, sectors) }
}

#[test]
fn own_trace_survives_blktraces_format() {
    let kinds = [
        RequestKind::Write,
        RequestKind::Read,
        RequestKind::Flush,
        RequestKind::Discard,
        RequestKind::Read,
    ];
    let records: Vec<_> = (0_u64..)
        .zip(kinds)
        .map(|(i, kind)| {
            record(
                kind,
                (i % 2) as u16,
                i * 300,
                if kind == RequestKind::Flush { 0 } else { 64 * i },
            )
        })
        .collect();
    let trace = Trace::from_records(
        Header { lanes: 2, name: "blktrace".into(), ..Header::default() },
        records,
    );
    let mut bytes = Vec::new();
    assert_eq!(write(&trace, &mut bytes).unwrap(), 0);
    assert!(sniff::blktrace(&bytes).is_some());
    let again = read(&bytes[..], None).unwrap();
    assert_eq!(again.trace.requests, trace.requests);
    assert!(again.notes.is_empty(), "{:?}", again.notes);
}

#[test]
fn cut_file_gives_the_events_before() {
    let bytes =
        file(&[event(1, D | category::WRITE, 8, 4096), event(5, C | category::WRITE, 8, 4096)]);
    for cut in EVENT + 1..bytes.len() {
        let read = read(&bytes[..cut], None).unwrap();
        assert_eq!(told(&read), [(RequestKind::Write, 8, 8, 0)]);
        assert!(read.trace.damage.unwrap().contains("byte 48: it ends in the middle of an event"));
        assert!(read.notes[0].contains("1 request without a completion"), "{:?}", read.notes);
    }
    assert!(read(&bytes[..EVENT - 1], None).is_err(), "half an event is no trace");
}

#[test]
fn several_devices_need_a_choice() {
    let mut other = event(2, D | category::READ, 16, 512);
    other.device = 8 << 20 | 16;
    let bytes = file(&[event(1, D | category::WRITE, 8, 4096), other]);
    let error = read(&bytes[..], None).unwrap_err().to_string();
    assert!(error.contains("8:0 (1 event), 8:16 (1 event)"), "{error}");
    assert_eq!(told(&read(&bytes[..], Some("8:16")).unwrap()), [(RequestKind::Read, 16, 1, 0)]);
    assert!(read(&bytes[..], Some("9:9")).is_err());
}

#[test]
fn passthrough_commands_are_left_out() {
    let read = import(&[
        event(1, D | category::READ | category::PASSTHROUGH, 0, 512),
        event(2, C | category::READ | category::PASSTHROUGH, 0, 0),
        event(3, D | category::READ, 100, 4096),
        event(4, C | category::READ, 100, 4096),
    ]);
    assert_eq!(told(&read), [(RequestKind::Read, 100, 8, 1)]);
    assert_eq!(read.notes.len(), 1, "{:?}", read.notes);
    assert!(read.notes[0].contains("1 passthrough command"), "{:?}", read.notes);
}

#[test]
fn long_writes_become_write_zeroes() {
    let long = 2_147_483_136;
    let read = import(&[
        event(1, D | category::WRITE, 0, long),
        event(2, C | category::WRITE, 0, long),
        event(3, D | category::WRITE, 0, 8 << 20),
        event(4, C | category::WRITE, 0, 8 << 20),
    ]);
    assert_eq!(
        told(&read),
        [(RequestKind::WriteZeroes, 0, long / 512, 1), (RequestKind::Write, 0, 16384, 1)]
    );
    assert!(read.notes[0].contains("1 write of more than 32 MiB"), "{:?}", read.notes);
    assert!(read.notes[1].contains("8388608 bytes in all"), "{:?}", read.notes);
}

#[test]
fn preflush_of_a_queued_write_is_a_flush() {
    let what = category::WRITE | category::FLUSH | category::FUA;
    let read = import(&[event(1, Q | what, 8, 4096), event(4, C | what, 8, 4096)]);
    assert_eq!(told(&read), [(RequestKind::Flush, 0, 0, 0), (RequestKind::Write, 8, 8, 3)]);
    assert!(read.notes[0].contains("1 write with FUA"), "{:?}", read.notes);
}

#[test]
fn big_endian_files_are_the_same_trace() {
    let events =
        [event(1000, D | category::WRITE, 8, 4096), event(2000, C | category::WRITE, 8, 4096)];
    let mut bytes = file(&events);
    // Every field of an event is turned round: 4, 4, 8, 8, six of 4, two of 2 bytes.
    for event in bytes.chunks_mut(EVENT) {
        let mut at = 0;
        for size in [4, 4, 8, 8, 4, 4, 4, 4, 4, 2, 2] {
            event[at..at + size].reverse();
            at += size;
        }
        assert_eq!(at, EVENT);
    }
    let read = read(&bytes[..], None).unwrap();
    assert_eq!(told(&read), told(&import(&events)));
}

/// A request of the generator: it is requeued some times, then completes in parts.
#[derive(Debug, Clone)]
struct Made {
    is_write: bool,
    parts: Vec<u32>,
    requeues: u8,
    fails: bool,
}

fn made() -> impl Strategy<Value = Made> {
    let parts = prop::collection::vec(1_u32..64, 1..5);
    (any::<bool>(), parts, 0_u8..3, any::<bool>())
        .prop_map(|(is_write, parts, requeues, fails)| Made { is_write, parts, requeues, fails })
}

proptest! {
    /// Each request is read once, lasts from its first issue to its last completion, and keeps its
    /// outcome, however the events of several are interleaved.
    #[test]
    fn interleaved_requests_keep_their_times(
        requests in prop::collection::vec(made(), 1..20),
        order in prop::collection::vec(any::<prop::sample::Index>(), 400),
    ) {
        let mut scripts: Vec<Vec<Event>> = Vec::new();
        for (number, request) in (0_u64..).zip(&requests) {
            let what = if request.is_write { category::WRITE } else { category::READ };
            let bytes: u32 = request.parts.iter().map(|part| part * 512).sum();
            // Requests are apart, or the places of two are the same.
            let mut sector = (number / 2) * 4096;
            let sector_of_second = number % 2 == 1 && !request.is_write;
            sector += u64::from(sector_of_second) * 2048;
            let mut script = vec![event(0, D | what, sector, bytes)];
            for _ in 0..request.requeues {
                script.push(event(0, R | what, sector, bytes));
                script.push(event(0, D | what, sector, bytes));
            }
            for (index, part) in request.parts.iter().enumerate() {
                let mut done = event(0, C | what, sector, part * 512);
                done.error = u64::from(request.fails && index + 1 == request.parts.len()) * 5;
                sector += u64::from(*part);
                script.push(done);
            }
            script.reverse();
            scripts.push(script);
        }
        // Two requests at the same place at the same time cannot be distinguished: one after the
        // other.
        let mut at_place: BTreeMap<(u64, u64), usize> = BTreeMap::new();
        let (mut events, mut wanted) = (Vec::new(), Vec::new());
        let mut begun = vec![None; requests.len()];
        let mut picks = order.iter();
        while scripts.iter().any(|script| !script.is_empty()) {
            let live: Vec<usize> = (0..scripts.len())
                .filter(|at| {
                    scripts[*at].last().is_some_and(|next| {
                        let place = (next.sector, next.action & 0x3_0000);
                        begun[*at].is_some() || !at_place.contains_key(&place)
                    })
                })
                .collect();
            let Some(pick) = picks.next() else { return Err(TestCaseError::reject("order is short")) };
            let at = live[pick.index(live.len())];
            let mut next = scripts[at].pop().unwrap();
            let time = events.len() as u64 * 10 + 10;
            next.time = time;
            let place = (next.sector, next.action & 0x3_0000);
            if begun[at].is_none() {
                begun[at] = Some((time, place));
                at_place.insert(place, at);
            }
            if scripts[at].is_empty() {
                let (begin, place) = begun[at].unwrap();
                at_place.remove(&place);
                let request = &requests[at];
                let kind = if request.is_write { RequestKind::Write } else { RequestKind::Read };
                let status = if request.fails { Status::IoErr } else { Status::Ok };
                wanted.push((kind, place.0, request.parts.iter().sum::<u32>(), begin, time - begin, status));
            }
            events.push(next);
        }
        let read = import(&events);
        let mut got: Vec<_> = read.trace.requests.iter().map(|r| {
            let r = &r.record;
            (r.kind, r.sector, r.sectors, r.submit, r.service, r.status)
        }).collect();
        got.sort_unstable_by_key(|request| request.3);
        wanted.sort_unstable_by_key(|request| request.3);
        prop_assert_eq!(got, wanted);
    }

    /// A completion of a merged request ends each of the bios that were queued for it.
    #[test]
    fn merged_bios_end_with_their_request(parts in prop::collection::vec(1_u32..64, 1..8)) {
        let (mut events, mut sector) = (Vec::new(), 0_u64);
        for (time, part) in (1..).zip(&parts) {
            events.push(event(time, Q | category::READ, sector, part * 512));
            sector += u64::from(*part);
        }
        events.push(event(100, C | category::READ, 0, parts.iter().sum::<u32>() * 512));
        let read = import(&events);
        prop_assert_eq!(read.trace.requests.len(), parts.len());
        prop_assert!(read.trace.requests.iter().all(|r| r.record.completed() == 100));
        prop_assert!(read.notes.is_empty(), "{:?}", read.notes);
    }

    /// Bytes that are no trace give an error or a damage, never a panic.
    #[test]
    fn random_bytes_never_panic(head in any::<bool>(), mut bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if head && bytes.len() >= 4 {
            bytes[..4].copy_from_slice(&BLKTRACE.to_le_bytes());
        }
        let _ = read(&bytes[..], None);
    }
}
