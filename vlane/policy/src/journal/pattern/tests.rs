#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;

use super::*;
use crate::journal::LogKind;

const K: u64 = 1024;
const BLOCK: u64 = 4 * K;
const MIB: u64 = K * K;
const SIZE: u64 = 16 << 30;

/// Numbers that look random, the same in each run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// Appends to a ring, block by block; a request ends where the ring does.
struct Ring {
    range: Range<u64>,
    at: u64,
}

impl Ring {
    fn new(range: Range<u64>) -> Ring {
        Ring { at: range.start, range }
    }

    fn append(&mut self, pattern: &mut Pattern, mut len: u64) {
        while len > 0 {
            let part = len.min(self.range.end - self.at);
            pattern.write(&(self.at..self.at + part));
            len -= part;
            self.at += part;
            if self.at == self.range.end {
                self.at = self.range.start;
            }
        }
    }
}

/// Transactions as JBD2 has them, with files written here and there between.
fn commit(ring: &mut Ring, pattern: &mut Pattern, dice: &mut Dice) {
    for _ in 0..dice.roll(4) {
        let at = dice.roll(SIZE / BLOCK) * BLOCK;
        pattern.write(&(at..at + BLOCK));
    }
    let blocks = 2 + dice.roll(20);
    ring.append(pattern, blocks * BLOCK);
    pattern.flush();
    ring.append(pattern, BLOCK);
    pattern.flush();
}

fn verdicts(pattern: &Pattern) -> Vec<(LogKind, Range<u64>)> {
    pattern
        .journals()
        .into_iter()
        .map(|journal| (journal.kind, journal.ranges[0].clone()))
        .collect()
}

#[test]
fn journal_is_found_after_its_first_loop() {
    for (start, len) in [(300 * MIB, 64 * MIB), (1000 * MIB, 1024 * MIB), (127 * MIB, 4 * MIB)] {
        let (mut pattern, mut dice) = (Pattern::new(SIZE), Dice(7));
        let mut ring = Ring::new(start..start + len);
        // From somewhere in its middle.
        ring.at += len / 3 / BLOCK * BLOCK;
        let begin = ring.at;
        let mut loops = 0.0;
        while verdicts(&pattern).is_empty() {
            let before = ring.at;
            commit(&mut ring, &mut pattern, &mut dice);
            let step = (ring.at + len - before) % len;
            loops += step as f64 / len as f64;
            assert!(loops < 2.0, "no verdict on {len} after two loops from {begin}");
        }
        assert!(loops < 1.15, "only after {loops} loops");
        for _ in 0..20_000 {
            commit(&mut ring, &mut pattern, &mut dice);
        }
        let found = verdicts(&pattern);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].0, LogKind::Journal);
        assert!(
            found[0].1.start.abs_diff(start) <= 64 * K
                && found[0].1.end.abs_diff(start + len) <= 64 * K,
            "{found:?}"
        );
    }
}

#[test]
fn file_copy_gets_no_verdict() {
    let mut pattern = Pattern::new(SIZE);
    for file in 0..40 {
        let start = 3 * file % 17 * 100 * MIB;
        for part in 0..100 {
            pattern.write(&(start + part * MIB..start + (part + 1) * MIB));
        }
        pattern.flush();
    }
    assert!(verdicts(&pattern).is_empty(), "{:?}", verdicts(&pattern));
}

/// InnoDB's: blocks of 512 bytes, written page by page through the guest's page cache, the last
/// page again with each commit.
#[test]
fn database_redo_log_is_no_journal() {
    let (mut pattern, mut dice) = (Pattern::new(SIZE), Dice(3));
    let file = 900 * MIB..948 * MIB;
    let mut at = 2 * K;
    for commits in 0..60_000_u64 {
        let len = 512 * (1 + dice.roll(8));
        let first = at / BLOCK * BLOCK;
        at += len;
        let end = at.next_multiple_of(BLOCK);
        if file.start + end > file.end {
            at = 2 * K;
            continue;
        }
        pattern.write(&(file.start + first..file.start + end));
        pattern.flush();
        if commits % 50 == 0 {
            // A checkpoint, and pages.
            pattern.write(&(file.start..file.start + BLOCK));
            for _ in 0..20 {
                let page = dice.roll(1000) * 16 * K;
                pattern.write(&(page..page + 16 * K));
            }
        }
    }
    assert_eq!(
        verdicts(&pattern).iter().map(|(kind, _)| *kind).collect::<Vec<_>>(),
        [LogKind::Log],
        "{:?}",
        verdicts(&pattern)
    );
}

/// SQLite's: frames of 24 bytes and a page; after about a thousand the database gets them, and the
/// log begins anew.
#[test]
fn write_ahead_log_is_no_journal() {
    let (mut pattern, mut dice) = (Pattern::new(SIZE), Dice(5));
    let file = 400 * MIB;
    let mut at = 32;
    for _ in 0..20_000 {
        let first = at / BLOCK * BLOCK;
        at += (1 + dice.roll(4)) * 4120;
        pattern.write(&(file + first..file + at.next_multiple_of(BLOCK)));
        pattern.flush();
        if at > 1000 * 4120 {
            at = 32;
            for _ in 0..200 {
                let page = dice.roll(2000) * BLOCK;
                pattern.write(&(page..page + BLOCK));
            }
            pattern.flush();
        }
    }
    assert_eq!(
        verdicts(&pattern).iter().map(|(kind, _)| *kind).collect::<Vec<_>>(),
        [LogKind::Log],
        "{:?}",
        verdicts(&pattern)
    );
}

/// Tables of 2 MiB, and a log of 4 MiB that is begun anew elsewhere: written in order, each where
/// space was freed, never in the same order.
#[test]
fn log_structured_store_gets_no_verdict() {
    let (mut pattern, mut dice) = (Pattern::new(SIZE), Dice(11));
    // Freed, but not in the order in which they were taken; what was just written is not free.
    let mut free: Vec<u64> = (0..300).map(|place| 2000 * MIB + place * 4 * MIB).collect();
    let mut place = |dice: &mut Dice| {
        let place = free.remove(dice.roll(free.len() as u64 - 50) as usize);
        free.push(place);
        place
    };
    let (mut log, mut written) = (place(&mut dice), 0);
    for _ in 0..100_000 {
        let len = BLOCK * (1 + dice.roll(8));
        pattern.write(&(log + written..log + written + len));
        written += len;
        if dice.roll(10) == 0 {
            pattern.flush();
        }
        if written >= 4 * MIB {
            (log, written) = (place(&mut dice), 0);
            for _ in 0..2 + dice.roll(5) {
                let table = place(&mut dice);
                for part in 0..4 {
                    pattern.write(&(table + part * 512 * K..table + (part + 1) * 512 * K));
                }
                pattern.flush();
            }
        }
    }
    assert!(verdicts(&pattern).is_empty(), "{:?}", verdicts(&pattern));
}

/// Mails that are written, fsynced and removed, and the next ones in their places.
#[test]
fn files_recreated_in_place_are_no_journal() {
    let (mut pattern, mut dice) = (Pattern::new(SIZE), Dice(5));
    let mut journal = Ring::new(512 * MIB..576 * MIB);
    let mut mails = Ring::new(1024 * MIB..1056 * MIB);
    for _ in 0..6000 {
        mails.append(&mut pattern, 16 * K);
        commit(&mut journal, &mut pattern, &mut dice);
    }
    let found = verdicts(&pattern);
    let of = |kind| {
        found.iter().filter(|found| found.0 == kind).map(|found| found.1.start).collect::<Vec<_>>()
    };
    assert_eq!(
        (of(LogKind::Journal), of(LogKind::Log)),
        (vec![512 * MIB], vec![1024 * MIB]),
        "{found:?}"
    );
}

/// ext4 lays its group tables between the pieces of a large journal. A transaction may lie in two
/// of them.
#[test]
fn journal_in_pieces_is_found_after_loop() {
    for lens in [vec![128, 300], vec![2, 3], vec![30, 20, 40, 3, 30]] {
        let (mut pattern, mut dice) = (Pattern::new(SIZE), Dice(7));
        let mut start = 500 * MIB;
        let mut pieces = Vec::new();
        for len in &lens {
            pieces.push(start..start + len * MIB);
            start += (len + 33) * MIB;
        }
        let all = lens.iter().sum::<u64>() * MIB;
        let mut rings: Vec<Ring> = pieces.iter().cloned().map(Ring::new).collect();
        let (mut turn, mut written) = (0, 0);
        let mut append = |pattern: &mut Pattern, blocks: u64| {
            for _ in 0..blocks {
                rings[turn].append(pattern, BLOCK);
                if rings[turn].at == pieces[turn].start {
                    turn = (turn + 1) % pieces.len();
                }
            }
        };
        let mut found = None;
        while written < 3 * all {
            for _ in 0..dice.roll(4) {
                let at = dice.roll(SIZE / BLOCK / 32) * BLOCK;
                pattern.write(&(at..at + BLOCK));
            }
            let blocks = 2 + dice.roll(20);
            append(&mut pattern, blocks);
            pattern.flush();
            append(&mut pattern, 1);
            pattern.flush();
            written += (blocks + 1) * BLOCK;
            if found.is_none() && !verdicts(&pattern).is_empty() {
                found = Some(written);
            }
        }
        let found = found.unwrap_or(u64::MAX);
        assert!(found < all + all / 32 + MIB, "{lens:?}: only after {found} bytes");
        let journals = pattern.journals();
        assert_eq!(journals.len(), 1, "{journals:?}");
        assert_eq!(journals[0].kind, LogKind::Journal);
        assert_eq!(journals[0].ranges.len(), pieces.len(), "{journals:?}");
        for (found, piece) in journals[0].ranges.iter().zip(&pieces) {
            let is_near = |a: u64, b: u64| a.abs_diff(b) <= 64 * K;
            assert!(
                is_near(found.start, piece.start) && is_near(found.end, piece.end),
                "{journals:?}"
            );
        }
    }
}

/// Files whose data goes through the journal: their writes home come in bursts, each behind the one
/// before.
#[test]
fn files_written_in_bursts_are_no_journal() {
    let (mut pattern, mut dice) = (Pattern::new(SIZE), Dice(9));
    let mut journal = Ring::new(512 * MIB..576 * MIB);
    let mut mails = Ring::new(1024 * MIB..1056 * MIB);
    for _ in 0..40 {
        for _ in 0..200 {
            commit(&mut journal, &mut pattern, &mut dice);
        }
        for _ in 0..2 {
            for _ in 0..100 {
                mails.append(&mut pattern, 16 * K);
            }
            pattern.flush();
        }
    }
    let found = verdicts(&pattern);
    let of = |kind| {
        found.iter().filter(|found| found.0 == kind).map(|found| found.1.start).collect::<Vec<_>>()
    };
    assert_eq!(
        (of(LogKind::Journal), of(LogKind::Log)),
        (vec![512 * MIB], vec![1024 * MIB]),
        "{found:?}"
    );
}

/// XFS' log on a disk with sectors of 4 KiB: one write and a flush for each commit. mkfs.xfs writes
/// it once from end to end. Files that are fsynced look the same, but none is made without a
/// commit.
#[test]
fn log_that_others_wait_for_is_journal() {
    let (mut pattern, mut dice) = (Pattern::new(SIZE), Dice(3));
    let mut journal = Ring::new(512 * MIB..576 * MIB);
    let mut mails = Ring::new(64 * MIB..96 * MIB);
    for _ in 0..64 {
        journal.append(&mut pattern, MIB);
    }
    pattern.flush();
    let mut loops = 0;
    for count in 0..40_000_u64 {
        let before = journal.at;
        if count % 10 != 0 {
            mails.append(&mut pattern, 16 * K);
            pattern.flush();
        }
        let len = 8 * K + dice.roll(2) * 4 * K;
        journal.append(&mut pattern, len);
        pattern.flush();
        loops += u32::from(journal.at < before);
        let found = verdicts(&pattern);
        if loops >= 1 {
            let journals: Vec<_> =
                found.iter().filter(|found| found.0 == LogKind::Journal).collect();
            assert_eq!(journals.len(), 1, "{found:?}");
            assert_eq!(journals[0].1, 512 * MIB..576 * MIB);
        }
    }
    assert!(loops >= 3);
    assert_eq!(verdicts(&pattern).len(), 2, "the mails are a log: {:?}", verdicts(&pattern));
}

/// Writes after a flush in a few bursts are no journal; writes after a flush in many are.
#[test]
fn verdict_changes_with_the_writes() {
    let mut pattern = Pattern::new(SIZE);
    let mut ring = Ring::new(100 * MIB..150 * MIB);
    for _ in 0..200 {
        ring.append(&mut pattern, 512 * K);
    }
    assert_eq!(verdicts(&pattern), [(LogKind::Log, 100 * MIB..150 * MIB)]);
    pattern.take_change();
    let mut dice = Dice(1);
    for _ in 0..3000 {
        commit(&mut ring, &mut pattern, &mut dice);
    }
    assert_eq!(verdicts(&pattern), [(LogKind::Journal, 100 * MIB..150 * MIB)]);
    assert!(pattern.take_change());
}

#[test]
fn flushed_video_ring_is_a_log() {
    let (mut pattern, mut dice) = (Pattern::new(SIZE), Dice(4));
    let mut ring = Ring::new(100 * MIB..150 * MIB);
    for _ in 0..300 {
        ring.append(&mut pattern, 512 * K);
        pattern.flush();
        let at = 600 * MIB + dice.roll(100 * MIB / BLOCK) * BLOCK;
        pattern.write(&(at..at + BLOCK));
    }
    assert_eq!(verdicts(&pattern), [(LogKind::Log, 100 * MIB..150 * MIB)]);
}

/// InnoDB's: pages in the order in which they come, from the beginning on each time, and then in
/// their places.
#[test]
fn doublewrite_buffer_is_no_journal() {
    let (mut pattern, mut dice) = (Pattern::new(SIZE), Dice(4));
    for _ in 0..300 {
        for part in 0..16 {
            let at = 100 * MIB + part * 128 * K;
            pattern.write(&(at..at + 128 * K));
        }
        pattern.flush();
        for _ in 0..128 {
            let at = 600 * MIB + dice.roll(1000 * MIB / BLOCK) * BLOCK;
            pattern.write(&(at..at + 16 * K));
        }
        pattern.flush();
    }
    let journals: Vec<_> =
        verdicts(&pattern).into_iter().filter(|found| found.0 == LogKind::Journal).collect();
    assert!(journals.is_empty(), "{journals:?}");
}

/// Transactions of many MiB: hundreds of writes for each flush.
/// The files written home are none.
#[test]
fn large_transactions_are_still_a_journal() {
    let (mut pattern, mut dice) = (Pattern::new(SIZE), Dice(6));
    let mut journal = Ring::new(512 * MIB..640 * MIB);
    let mut mails = Ring::new(1024 * MIB..1056 * MIB);
    for _ in 0..300 {
        for _ in 0..4 {
            mails.append(&mut pattern, 256 * K);
            pattern.flush();
            for _ in 0..20 + dice.roll(20) {
                journal.append(&mut pattern, 16 * K);
            }
            pattern.flush();
            journal.append(&mut pattern, BLOCK);
            pattern.flush();
        }
    }
    let found = verdicts(&pattern);
    let of = |kind| {
        found.iter().filter(|found| found.0 == kind).map(|found| found.1.start).collect::<Vec<_>>()
    };
    assert_eq!(
        (of(LogKind::Journal), of(LogKind::Log)),
        (vec![512 * MIB], vec![1024 * MIB]),
        "{found:?}"
    );
}

/// Files that are written over in the same order again and again, each flushed at its end.
#[test]
fn files_copied_in_turn_are_no_journal() {
    let mut pattern = Pattern::new(SIZE);
    for _ in 0..20 {
        for file in [3, 1, 4] {
            let mut file = Ring::new(file * 300 * MIB..file * 300 * MIB + 8 * MIB);
            for _ in 0..64 {
                file.append(&mut pattern, 128 * K);
            }
            pattern.flush();
        }
    }
    assert!(
        verdicts(&pattern).iter().all(|found| found.0 != LogKind::Journal),
        "{:?}",
        verdicts(&pattern)
    );
}

#[test]
fn pieces_that_meet_become_one() {
    let (mut pattern, mut dice) = (Pattern::new(SIZE), Dice(2));
    let pieces = [100 * MIB..108 * MIB, 110 * MIB..130 * MIB];
    for _ in 0..2 {
        for piece in &pieces {
            let mut ring = Ring::new(piece.start..piece.end + MIB);
            while ring.at < piece.end {
                commit(&mut ring, &mut pattern, &mut dice);
            }
        }
    }
    let found = pattern.journals();
    assert_eq!(found[0].ranges.len(), 2, "{found:?}");
    // From the middle of the first on: over the hole, and to the end of the second.
    let mut ring = Ring::new(100 * MIB..130 * MIB);
    while ring.at < 129 * MIB {
        commit(&mut ring, &mut pattern, &mut dice);
    }
    let found = pattern.journals();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].kind, found[0].ranges.len()), (LogKind::Journal, 1), "{found:?}");
}

#[test]
fn cyclic_writes_without_flush_are_log() {
    let mut pattern = Pattern::new(SIZE);
    let mut ring = Ring::new(100 * MIB..150 * MIB);
    pattern.flush();
    for _ in 0..300 {
        ring.append(&mut pattern, 512 * K);
    }
    assert_eq!(verdicts(&pattern), [(LogKind::Log, 100 * MIB..150 * MIB)]);
}

#[test]
fn verdict_ends_where_others_write() {
    let (mut pattern, mut dice) = (Pattern::new(SIZE), Dice(1));
    let mut ring = Ring::new(512 * MIB..576 * MIB);
    for _ in 0..3000 {
        commit(&mut ring, &mut pattern, &mut dice);
    }
    assert_eq!(verdicts(&pattern).len(), 1);
    assert!(pattern.take_change());
    for _ in 0..3000 {
        let at = 512 * MIB + dice.roll(64 * MIB / BLOCK) * BLOCK;
        pattern.write(&(at..at + BLOCK));
    }
    assert!(verdicts(&pattern).is_empty(), "{:?}", verdicts(&pattern));
    assert!(pattern.take_change());
}

proptest! {
    #[test]
    fn arbitrary_writes_are_survived(writes in prop::collection::vec((0..200_u64, 1..400_u64, 0..10_u8), 0..400)) {
        let mut pattern = Pattern::new(512 * MIB);
        for (at, len, kind) in writes {
            let range = at * 700 * K..at * 700 * K + len * 4 * K;
            match kind {
                0 => pattern.flush(),
                1 => pattern.cleared(&range),
                _ => pattern.write(&range),
            }
            for journal in pattern.journals() {
                let mut ranges = journal.ranges;
                prop_assert!(!ranges.is_empty());
                prop_assert!(ranges.iter().all(|range| range.start < range.end && range.end <= 512 * MIB));
                ranges.sort_by_key(|range| range.start);
                prop_assert!(ranges.is_sorted_by(|a, b| a.end <= b.start));
            }
        }
        pattern.write(&(u64::MAX - 4096..u64::MAX));
    }
}
