//! A read trace equals the written one; damage is reported with its place, and costs no entry
//! before it.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use proptest::prelude::*;
use vlane_trace::{
    BlockHead, Entry, ErrorKind, Header, LayoutPiece, Magic, Priority, Reader, Record, RequestKind,
    Status, Writer,
};

const LANES: u16 = 4;

fn record(hashes: bool) -> impl Strategy<Value = Entry> {
    let what = (0..7_usize, 0..3_usize, 0..LANES, any::<u32>(), any::<bool>(), any::<bool>());
    let numbers = (
        any::<u64>(),
        any::<u64>(),
        any::<u64>(),
        any::<u32>(),
        any::<u32>(),
        any::<u32>(),
        any::<u64>(),
    );
    (what, numbers).prop_map(move |((kind, status, lane, priority, more, unmap), n)| {
        Entry::Record(Record {
            kind: RequestKind::ALL[kind],
            status: [Status::Ok, Status::IoErr, Status::Unsupported][status],
            lane,
            priority: Priority(priority),
            submit: n.0,
            service: n.1,
            sector: n.2,
            sectors: n.3,
            seq: n.4,
            after: n.5,
            more,
            unmap,
            hash: if hashes { n.6 } else { 0 },
        })
    })
}

fn entry(hashes: bool) -> impl Strategy<Value = Entry> {
    prop_oneof![
        8 => record(hashes),
        1 => (0..LANES, any::<u64>(), any::<u32>()).prop_map(|(lane, time, in_flight)| Entry::Start { lane, time, in_flight }),
        1 => (0..LANES, any::<u64>(), any::<u64>()).prop_map(|(lane, time, count)| Entry::Lost { lane, time, count }),
        1 => (0..LANES, any::<u32>(), any::<u64>(), any::<bool>(), any::<[u8; 28]>()).prop_map(|(lane, seq, sector, is_xfs, rest)| {
            Entry::Head(BlockHead { lane, seq, sector, magic: if is_xfs { Magic::Xfs } else { Magic::Jbd2 }, rest })
        }),
        1 => (any::<u64>(), any::<u8>(), any::<u64>(), any::<u64>(), any::<bool>()).prop_map(|(time, filesystem, sector, sectors, more)| {
            Entry::Layout(LayoutPiece { time, filesystem, sector, sectors, more })
        }),
    ]
}

fn trace() -> impl Strategy<Value = (Header, Vec<Entry>)> {
    let header = (any::<u64>(), any::<u64>(), any::<u32>(), any::<bool>(), "\\PC{0,40}");
    header.prop_flat_map(|(started, sectors, block_size, hashes, name)| {
        let header = Header { started, sectors, block_size, lanes: LANES, hashes, name };
        (Just(header), prop::collection::vec(entry(hashes), 0..40))
    })
}

fn written(header: &Header, entries: &[Entry]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), header.clone()).unwrap();
    entries.iter().for_each(|entry| writer.write(entry).unwrap());
    assert_eq!(writer.entries(), entries.len() as u64);
    writer.finish().unwrap()
}

/// Entries until the end or the first error, and the error.
fn read(bytes: &[u8]) -> (Vec<Entry>, Option<vlane_trace::Error>, bool) {
    let mut reader = match Reader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some(error), false),
    };
    let mut entries = Vec::new();
    let mut error = None;
    for entry in &mut reader {
        match entry {
            Ok(entry) => entries.push(entry),
            Err(e) => error = Some(e),
        }
    }
    (entries, error, reader.is_complete())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn written_trace_is_read_back((header, entries) in trace()) {
        let bytes = written(&header, &entries);
        let reader = Reader::new(&bytes[..]).unwrap();
        prop_assert_eq!(reader.header(), &header);
        let (read, error, complete) = read(&bytes);
        prop_assert!(error.is_none(), "{:?}", error);
        prop_assert!(complete);
        prop_assert_eq!(read, entries);
    }

    /// The error says where they end.
    #[test]
    fn cut_trace_gives_its_whole_entries((header, entries) in trace(), at in any::<prop::sample::Index>()) {
        let bytes = written(&header, &entries);
        let (cut, head) = (at.index(bytes.len()), header.encode().len());
        let (read, error, complete) = read(&bytes[..cut]);
        prop_assert!(!complete);
        if cut < head {
            let kind = error.unwrap().kind();
            prop_assert_eq!(kind, if cut < 8 { ErrorKind::NotATrace } else { ErrorKind::Truncated });
            return Ok(());
        }
        let whole = (cut - head) / header.entry_len();
        prop_assert_eq!(&read, &entries[..whole.min(entries.len())]);
        if (cut - head).is_multiple_of(header.entry_len()) {
            prop_assert!(error.is_none());
        } else {
            let error = error.unwrap();
            prop_assert_eq!(error.kind(), ErrorKind::Truncated);
            prop_assert_eq!(error.offset(), (head + whole * header.entry_len()) as u64);
        }
    }

    /// One flipped bit anywhere in the entries is noticed, at the entry that has it.
    #[test]
    fn damaged_entry_keeps_entries_before_it(
        (header, entries) in trace(), at in any::<prop::sample::Index>(), bit in 0..8_u32,
    ) {
        let mut bytes = written(&header, &entries);
        let head = header.encode().len();
        let place = head + at.index(bytes.len() - head);
        bytes[place] ^= 1 << bit;
        let (read, error, complete) = read(&bytes);
        prop_assert!(!complete);
        let error = error.unwrap();
        let index = (place - head) / header.entry_len();
        prop_assert_eq!(error.kind(), ErrorKind::Corrupt);
        prop_assert_eq!(error.offset(), (head + index * header.entry_len()) as u64);
        prop_assert_eq!(&read, &entries[..index]);
    }

    #[test]
    fn other_bytes_are_no_trace(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let (entries, error, _) = read(&bytes);
        prop_assert!(entries.is_empty());
        prop_assert_eq!(error.unwrap().kind(), ErrorKind::NotATrace);
    }
}

/// The documented layout, byte by byte: other programs rely on it.
#[test]
fn trace_layout_matches_the_documentation() {
    let header = Header {
        started: 0x0102_0304_0506_0708,
        sectors: 2048,
        block_size: 512,
        lanes: 4,
        hashes: true,
        name: "disk".into(),
    };
    let entry = Entry::Record(Record {
        kind: RequestKind::WriteZeroes,
        status: Status::IoErr,
        lane: 3,
        priority: Priority(2 << 13 | 4),
        submit: 1000,
        service: 500,
        sector: 77,
        sectors: 8,
        seq: 5,
        after: 2,
        more: true,
        unmap: true,
        hash: 0x1122_3344_5566_7788,
    });
    let bytes = written(&header, &[entry]);
    let mut want =
        b"VLANETRC\x02\x00\x38\x00\x38\x00\x01\x00\x08\x07\x06\x05\x04\x03\x02\x01".to_vec();
    want.extend(
        b"\x00\x08\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x04\x00\x04\x00\0\0\0\0\0\0\0\0disk\0\0\0\0",
    );
    assert_eq!(bytes[..56], want);
    let e = &bytes[56..112];
    let word =
        |at: usize, n: usize| e[at..at + n].iter().rev().fold(0_u64, |w, b| w << 8 | u64::from(*b));
    let fields = [
        (0, 1),
        (1, 1),
        (2, 2),
        (4, 4),
        (8, 8),
        (16, 8),
        (24, 8),
        (32, 4),
        (36, 4),
        (40, 4),
        (44, 1),
        (48, 8),
    ];
    let want = [5, 1, 3, 0x4004, 1000, 500, 77, 8, 5, 2, 3, 0x1122_3344_5566_7788];
    assert_eq!(fields.map(|(at, n)| word(at, n)), want);
    // RFC 1071: the words of an entry, the checksum among them, add up to 0xffff with the carries
    // brought round.
    let sum: u64 = (0..28).map(|i| word(2 * i, 2)).sum();
    assert_eq!((sum >> 16) + (sum & 0xffff), 0xffff);
    assert_eq!(bytes.len(), 56 + 2 * 56);
}

#[test]
fn other_version_is_named_in_error() {
    let mut bytes = Header::default().encode();
    bytes[8] = 9;
    let error = Reader::new(&bytes[..]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Version);
    assert!(error.to_string().contains("version 9"), "{error}");
}

/// A trace of the first version differs only in its number, and in having no heads.
#[test]
fn first_version_trace_is_read() {
    let entries = [Entry::Start { lane: 0, time: 1, in_flight: 0 }];
    let header = Header { lanes: LANES, ..Header::default() };
    let mut bytes = written(&header, &entries);
    bytes[8] = 1;
    let (read, error, complete) = read(&bytes);
    assert!(error.is_none() && complete, "{error:?}");
    assert_eq!(read, entries);
}

#[test]
fn head_and_journal_layout_matches_documentation() {
    let rest = std::array::from_fn(|at| at as u8);
    let head = BlockHead { lane: 3, seq: 5, sector: 77, magic: Magic::Xfs, rest };
    let piece = LayoutPiece { time: 1000, filesystem: 1, sector: 77, sectors: 8, more: true };
    let head = Entry::Head(head).encode(false);
    assert_eq!(head[..16], *b"\xfc\x01\x03\0\x05\0\0\0\x4d\0\0\0\0\0\0\0");
    assert_eq!(head[16..44], rest);
    let piece = Entry::Layout(piece).encode(false);
    assert_eq!(piece[..16], *b"\xfb\0\0\0\0\0\0\0\xe8\x03\0\0\0\0\0\0");
    assert_eq!(piece[16..36], *b"\x08\0\0\0\0\0\0\0\x4d\0\0\0\0\0\0\0\x01\0\0\0");
    assert_eq!(piece[44..46], [1, 0]);
    assert_eq!(Magic::of(Magic::Jbd2.bytes()), Some(Magic::Jbd2));
    assert_eq!(Magic::of(*b"abcd"), None);
}
