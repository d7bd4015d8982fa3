use super::*;
use crate::journal::{Evidence, FileSystem, LogKind};

const MIB: u64 = 1 << 20;

fn layout(ranges: Vec<Range<u64>>, watched: Vec<Range<u64>>) -> JournalLayout {
    let journal = Journal {
        filesystem: FileSystem::Ext4,
        kind: LogKind::Journal,
        way: Evidence::Layout,
        ranges,
    };
    JournalLayout { journals: vec![journal], watched }
}

/// A ring that is appended to and flushed.
fn goes_round(detector: &mut Detector, range: &Range<u64>) {
    for _ in 0..3 {
        let mut at = range.start;
        while at < range.end {
            detector.write(at..at + 16_384, &[]);
            detector.flush();
            at += 16_384;
        }
    }
}

#[test]
fn layout_journal_is_found_no_other_way() {
    let mut detector = Detector::new(1 << 30);
    detector.set_layout(layout(vec![100 * MIB..110 * MIB], vec![]));
    goes_round(&mut detector, &(100 * MIB..110 * MIB));
    assert_eq!(detector.journals().len(), 1);
    goes_round(&mut detector, &(300 * MIB..310 * MIB));
    let ways: Vec<_> = detector.journals().iter().map(|journal| journal.way).collect();
    assert_eq!(ways, [Evidence::Layout, Evidence::Pattern]);
}

#[test]
fn map_stays_the_same_without_changes() {
    let mut detector = Detector::new(1 << 30);
    goes_round(&mut detector, &(300 * MIB..310 * MIB));
    let map = Arc::clone(detector.map());
    assert!(!map.is_empty());
    goes_round(&mut detector, &(300 * MIB..310 * MIB));
    detector.write(0..4096, &[]);
    assert!(Arc::ptr_eq(&map, detector.map()));
    detector.cleared(0..1 << 30);
    assert!(detector.map().is_empty());
}

/// Only writes to a watched part count.
#[test]
fn layout_is_needed_first_and_after_writes() {
    let mut detector = Detector::new(1 << 30);
    assert!(detector.needs_layout());
    detector.set_layout(layout(vec![100 * MIB..110 * MIB], vec![0..4096, 8192..12_288]));
    detector.write(4096..8192, &[]);
    detector.write(100 * MIB..101 * MIB, &[]);
    assert!(!detector.needs_layout());
    detector.write(512..1024, &[]);
    assert!(detector.needs_layout());
    detector.set_layout(layout(vec![100 * MIB..110 * MIB], vec![0..4096, 8192..12_288]));
    detector.cleared(10_000..10_001);
    assert!(detector.needs_layout());
    assert_eq!(
        detector.map().bytes(LogKind::Journal),
        10 * MIB,
        "what is known is believed until it is read again"
    );
}
