#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use vlane_testbed::Output;

const MIB: u64 = 1 << 20;

/// A real guest's: ext4 with a journal of 4 MiB, mails made, fsynced and removed
/// (`vlane-lab prove journal --only ordered-4 --keep DIR`).
const GUEST: &[u8] = include_bytes!("ordered-4.trc");
/// debugfs's output for it.
const JOURNAL: Range<u64> = 1024 * MIB..1028 * MIB;

#[test]
fn recorded_journal_is_found_both_ways() {
    let trace = Trace::read(GUEST).unwrap();
    assert!(trace.is_complete && trace.lost() == 0);
    let truth = layout_journal(FileSystem::Ext4, vec![JOURNAL]);
    let [_, content, pattern] = evaluate(&trace, &[truth]);
    let at_least = |score: Score, part: f64| {
        assert!(score.precision().unwrap() >= part && score.recall().unwrap() >= part, "{score:?}");
    };
    at_least(content.since_found, 0.99);
    at_least(content.since_loop, 0.99);
    at_least(pattern.since_loop, 0.95);
    assert_eq!(content.journals.len(), 1);
    assert_eq!(content.journals[0].ranges, [JOURNAL]);
}

#[test]
fn heads_and_layouts_are_saved_with_a_trace() {
    let trace = Trace::read(GUEST).unwrap();
    assert!(!trace.heads.is_empty());
    let mut with_layout = trace.clone();
    let piece = |sector, more| vlane_trace::LayoutPiece {
        time: 5,
        filesystem: 0,
        sector,
        sectors: 8,
        more,
    };
    with_layout.layouts = vec![piece(0, false), piece(16, true), piece(32, false)];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("again.trc");
    with_layout.save(&Output::new(&path)).unwrap();
    let again = Trace::load(&path).unwrap();
    assert_eq!(
        (&again.requests, again.heads_by_write()),
        (&trace.requests, trace.heads_by_write())
    );
    // The last value read holds.
    let ranges: Vec<_> = layout_of(&again).into_iter().flat_map(|journal| journal.ranges).collect();
    assert_eq!(ranges, [8192..12_288, 16_384..20_480]);
}

#[test]
fn score_counts_bytes_of_each_side() {
    let of = |range: Range<u64>| Map::new(&[layout_journal(FileSystem::Ext4, vec![range])]);
    let mut score = Score::default();
    assert_eq!((score.precision(), score.recall()), (None, None));
    score.add(&(0..10 * MIB), &of(2 * MIB..6 * MIB), &of(4 * MIB..9 * MIB));
    assert_eq!(score, Score { right: 2 * MIB, wrong: 3 * MIB, missed: 2 * MIB });
    assert_eq!((score.precision(), score.recall()), (Some(0.4), Some(0.5)));
}
