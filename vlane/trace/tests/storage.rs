//! A record of the storage's changes: the written entries are read back, damage is seen, and each
//! way to break a flush's promise is found.

#![allow(clippy::unwrap_used, reason = "tests may")]

use proptest::prelude::*;
use vlane_trace::ErrorKind;
use vlane_trace::storage::{
    Action, Clear, Data, Entry, Header, History, MAX_ENTRY, Purpose, Reader, Reason, Writer,
};

const HEADER: Header = Header { size: 64 << 20, in_memory: false };

fn written(entries: &[Entry]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), HEADER).unwrap();
    entries.iter().for_each(|entry| writer.write(entry).unwrap());
    writer.finish().unwrap()
}

fn any_entry() -> impl Strategy<Value = Entry> {
    use Purpose::{Discard, Flush, Write, WriteZeroes};
    let kind = prop_oneof![Just(Write), Just(Flush), Just(Discard), Just(WriteZeroes)];
    let data = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..2000).prop_map(Data::Bytes),
        (0u64..1 << 40).prop_map(Data::Zeroes)
    ];
    let how = prop_oneof![Just(Clear::Punch), Just(Clear::Zero), Just(Clear::Discard)];
    let what = prop_oneof![
        Just(Action::Sync),
        (any::<u8>(), 0u64..1 << 50, any::<bool>(), data).prop_map(
            |(file, offset, durable, data)| Action::Write { file, offset, durable, data }
        ),
        (how, 0u64..1 << 50, 0u64..1 << 50).prop_map(|(how, offset, len)| Action::Clear {
            how,
            offset,
            len
        })
    ];
    prop_oneof![
        (any::<u64>(), any::<u16>(), kind, any::<bool>()).prop_map(
            |(request, lane, kind, durable)| { Entry::Request { request, lane, kind, durable } }
        ),
        (any::<u64>(), any::<u8>()).prop_map(|(request, status)| Entry::Answer { request, status }),
        any::<u64>().prop_map(|request| Entry::Forgotten { request }),
        (any::<u64>(), any::<u64>(), what).prop_map(|(operation, request, what)| Entry::Begin {
            operation,
            request,
            what
        }),
        (any::<u64>(), any::<i64>())
            .prop_map(|(operation, result)| Entry::End { operation, result }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn written_record_is_read_back(entries in proptest::collection::vec(any_entry(), 0..40)) {
        let bytes = written(&entries);
        let reader = Reader::new(&bytes[..]).unwrap();
        prop_assert_eq!(reader.header(), HEADER);
        let read: Vec<Entry> = reader.map(Result::unwrap).collect();
        prop_assert_eq!(read, entries);
    }

    /// It never reads as a shorter record.
    #[test]
    fn cut_or_damaged_record_is_an_error(
        entries in proptest::collection::vec(any_entry(), 1..20),
        at in any::<prop::sample::Index>(),
        bit in 0u8..8,
        cut in any::<bool>(),
    ) {
        let mut bytes = written(&entries);
        let at = at.index(bytes.len());
        if cut {
            bytes.truncate(at);
        } else {
            bytes[at] ^= 1 << bit;
        }
        // Unused bits of the header are covered by its checksum, too.
        let read = Reader::new(&bytes[..]).and_then(|reader| reader.collect::<Result<Vec<_>, _>>());
        prop_assert!(read.is_err(), "{at} of {}: {read:?}", bytes.len());
    }
}

#[test]
fn impossible_lengths_and_versions_are_refused() {
    let good = written(&[Entry::Forgotten { request: 1 }]);
    let kind = |bytes: &[u8]| {
        let read = Reader::new(bytes).and_then(|reader| reader.collect::<Result<Vec<_>, _>>());
        read.unwrap_err().kind()
    };
    let mut long = good.clone();
    long[32..36].copy_from_slice(&(MAX_ENTRY + 1).to_le_bytes());
    assert_eq!(kind(&long), ErrorKind::Corrupt);
    // A length that is not there does not make the reader ask for memory.
    long[32..36].copy_from_slice(&MAX_ENTRY.to_le_bytes());
    assert_eq!(kind(&long), ErrorKind::Truncated);
    let mut newer = good.clone();
    newer[8] = 99;
    assert_eq!(kind(&newer), ErrorKind::Version);
    assert_eq!(
        kind(b"VLANETRC and more than thirty-two bytes of another file"),
        ErrorKind::NotATrace
    );
    assert_eq!(kind(b""), ErrorKind::Truncated);
    // Two entries swapped, each whole: what ends has not begun.
    let nonsense = [Entry::End { operation: 7, result: 0 }];
    assert_eq!(History::new(nonsense.map(Ok)).unwrap_err().kind(), ErrorKind::Corrupt);
}

// Records by hand. Requests and operations have numbers of the test's choice; data does not matter.

fn request(request: u64, kind: Purpose) -> Entry {
    Entry::Request { request, lane: 0, kind, durable: false }
}

fn answer(request: u64) -> Entry {
    Entry::Answer { request, status: 0 }
}

fn begin(operation: u64, request: u64, what: Action) -> Entry {
    Entry::Begin { operation, request, what }
}

fn end(operation: u64, result: i64) -> Entry {
    Entry::End { operation, result }
}

fn bytes(durable: bool) -> Action {
    Action::Write { file: 0, offset: 4096, durable, data: Data::Zeroes(4096) }
}

fn cleared(how: Clear) -> Action {
    Action::Clear { how, offset: 8192, len: 512 }
}

/// The first flush, which every record needs: request 100, operation 100.
fn opening() -> Vec<Entry> {
    vec![request(100, Purpose::Flush), begin(100, 100, Action::Sync), end(100, 0), answer(100)]
}

/// A write that is answered: request 1, operation 1.
fn answered_write() -> Vec<Entry> {
    vec![request(1, Purpose::Write), begin(1, 1, bytes(false)), end(1, 4096), answer(1)]
}

fn reasons(parts: &[&[Entry]]) -> Vec<Reason> {
    let history = History::new(parts.concat().into_iter().map(Ok)).unwrap();
    let findings = history.flushes();
    for violation in &findings.violations {
        assert!(
            history.tell(*violation).contains("is not durable"),
            "{}",
            history.tell(*violation)
        );
    }
    findings.violations.into_iter().map(|violation| violation.reason).collect()
}

#[test]
fn flush_with_own_sync_is_right() {
    let flush = [request(2, Purpose::Flush), begin(2, 2, Action::Sync), end(2, 0), answer(2)];
    assert_eq!(reasons(&[&opening(), &answered_write(), &flush]), []);
    // Nor does a write that is not answered belong to it, or one that failed.
    let open = [request(3, Purpose::Write), begin(3, 3, bytes(false)), end(3, 4096)];
    let failed = [request(4, Purpose::Write), begin(4, 4, bytes(false)), end(4, -5)];
    let failed = [&failed[..], &[Entry::Answer { request: 4, status: 1 }]].concat();
    let flush = [request(2, Purpose::Flush), answer(2)];
    assert_eq!(reasons(&[&opening(), &open, &failed, &flush, &[answer(3)]]), []);
    // Nor one that was answered while the flush was under way.
    let late = [request(2, Purpose::Flush), begin(2, 2, Action::Sync)];
    let end_of_it = [end(2, 0), answer(2)];
    assert_eq!(reasons(&[&opening(), &late, &answered_write(), &end_of_it]), []);
}

#[test]
fn missing_sync_is_found() {
    let flush = [request(2, Purpose::Flush), answer(2)];
    assert_eq!(reasons(&[&opening(), &answered_write(), &flush]), [Reason::NoSync]);
    // And again by each flush that promises it.
    let again = [request(3, Purpose::Flush), answer(3)];
    assert_eq!(reasons(&[&opening(), &answered_write(), &flush, &again]), [Reason::NoSync; 2]);
}

#[test]
fn sync_begun_too_early_is_found() {
    let record = [
        request(1, Purpose::Write),
        begin(1, 1, bytes(false)),
        begin(5, 0, Action::Sync),
        end(1, 4096),
        answer(1),
        request(2, Purpose::Flush),
        end(5, 0),
        answer(2),
    ];
    assert_eq!(reasons(&[&opening(), &record]), [Reason::BeganTooEarly]);
}

#[test]
fn sync_ended_after_answer_is_found() {
    let flush = [request(2, Purpose::Flush), begin(2, 2, Action::Sync), answer(2), end(2, 0)];
    assert_eq!(reasons(&[&opening(), &answered_write(), &flush]), [Reason::EndedTooLate]);
}

#[test]
fn failed_sync_is_never_made_up() {
    let flush = |n: u64, result| {
        [request(n, Purpose::Flush), begin(n, n, Action::Sync), end(n, result), answer(n)]
    };
    assert_eq!(reasons(&[&opening(), &answered_write(), &flush(2, -5)]), [Reason::Failed]);
    // The system reports a failure once; then it reports success.
    let refused = [request(2, Purpose::Flush), begin(2, 2, Action::Sync), end(2, -5)];
    let refused = [&refused[..], &[Entry::Answer { request: 2, status: 1 }]].concat();
    assert_eq!(reasons(&[&opening(), &answered_write(), &refused, &flush(3, 0)]), [Reason::Failed]);
    // An interrupted one had no effect, and can be done again.
    let again = [
        request(2, Purpose::Flush),
        begin(2, 2, Action::Sync),
        end(2, -4),
        begin(3, 2, Action::Sync),
        end(3, 0),
        answer(2),
    ];
    assert_eq!(reasons(&[&opening(), &answered_write(), &again]), []);
}

/// One that was not durable is found.
#[test]
fn durable_write_needs_no_sync() {
    let flush = [request(2, Purpose::Flush), answer(2)];
    let write = |durable, what| {
        let request = Entry::Request { request: 1, lane: 0, kind: Purpose::Write, durable };
        [request, begin(1, 1, what), end(1, 4096), answer(1)]
    };
    assert_eq!(reasons(&[&opening(), &write(true, bytes(true)), &flush]), []);
    assert_eq!(reasons(&[&opening(), &write(false, bytes(true)), &flush]), []);
    // It was promised with the write itself, and again with the flush.
    assert_eq!(reasons(&[&opening(), &write(true, bytes(false))]), [Reason::NoSync]);
    assert_eq!(reasons(&[&opening(), &write(true, bytes(false)), &flush]), [Reason::NoSync; 2]);
}

#[test]
fn flush_covers_discards_and_zeroes() {
    let flush = [request(2, Purpose::Flush), answer(2)];
    let ways = [
        (Purpose::Discard, Clear::Punch),
        (Purpose::Discard, Clear::Discard),
        (Purpose::WriteZeroes, Clear::Zero),
        (Purpose::WriteZeroes, Clear::Punch),
    ];
    for (kind, how) in ways {
        let clear = [request(1, kind), begin(1, 1, cleared(how)), end(1, 0), answer(1)];
        assert_eq!(reasons(&[&opening(), &clear, &flush]), [Reason::NoSync], "{kind:?}, {how:?}");
    }
}

/// Skipping it is wrong if a write was answered since the last sync.
#[test]
fn skipped_flush_needs_no_new_answers() {
    let sync = [begin(5, 0, Action::Sync), end(5, 0)];
    let skipped = [request(2, Purpose::Flush), answer(2)];
    assert_eq!(reasons(&[&opening(), &answered_write(), &sync, &skipped]), []);
    assert_eq!(reasons(&[&opening(), &sync, &answered_write(), &skipped]), [Reason::NoSync]);
    let history = [&opening()[..], &answered_write(), &sync, &skipped].concat();
    let findings = History::new(history.into_iter().map(Ok)).unwrap().flushes();
    assert_eq!(
        (findings.flushes, findings.without_sync, findings.syncs, findings.changes),
        (2, 1, 2, 1)
    );
}

#[test]
fn flush_sharing_another_sync_is_right() {
    let record = [
        request(2, Purpose::Flush),
        request(3, Purpose::Flush),
        begin(2, 2, Action::Sync),
        end(2, 0),
        answer(3),
        answer(2),
    ];
    assert_eq!(reasons(&[&opening(), &answered_write(), &record]), []);
}

#[test]
fn first_flush_is_never_skipped() {
    let flush = [request(2, Purpose::Flush), answer(2)];
    assert_eq!(reasons(&[&flush]), [Reason::NoSync]);
    let late = [request(2, Purpose::Flush), answer(2), begin(5, 0, Action::Sync), end(5, 0)];
    assert_eq!(reasons(&[&late]), [Reason::EndedTooLate]);
}

#[test]
fn broken_sync_breaks_all_its_promises() {
    let flush = [request(2, Purpose::Flush), begin(2, 2, Action::Sync), end(2, 0), answer(2)];
    let record = [&opening()[..], &answered_write(), &flush].concat();
    let history = History::new(record.into_iter().map(Ok)).unwrap();
    assert_eq!(history.flushes().violations, []);
    let broken = history.clone().with_broken_syncs(|number| number == 1).flushes();
    assert_eq!(broken.violations.len(), 1, "{broken:?}");
    // Without the first one, too, the first flush had none.
    assert_eq!(history.clone().with_broken_syncs(|_| true).flushes().violations.len(), 3);
    // A durable write is none any more, either.
    let durable = [request(1, Purpose::Write), begin(1, 1, bytes(true)), end(1, 4096), answer(1)];
    let skipped = [request(2, Purpose::Flush), answer(2)];
    let record = [&opening()[..], &durable, &skipped].concat();
    let history = History::new(record.into_iter().map(Ok)).unwrap();
    assert_eq!(history.flushes().violations, []);
    assert_eq!(history.with_nothing_durable().flushes().violations.len(), 3);
}
