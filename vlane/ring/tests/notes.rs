//! Notes for the next back end, behind the marks of requests in flight. They are there, or they
//! count as missing. The marks lie where they lie without them.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]
#![cfg(not(miri))]

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use common::cases;
use proptest::prelude::*;
use vlane_ring::{InflightRegion, NotedImage, kill};

const SIZE: u16 = 128;
/// Bytes of the notes.
const NOTES: u64 = 120;

struct Kept {
    file: File,
    bytes: u64,
    queues: u16,
}

impl Kept {
    fn new(queues: u16) -> Kept {
        let file = InflightRegion::create(queues, SIZE).unwrap();
        Kept { file, bytes: InflightRegion::bytes(queues, SIZE).unwrap(), queues }
    }

    fn region(&self) -> Arc<InflightRegion> {
        InflightRegion::map(&self.file, 0, self.bytes, self.queues, SIZE).unwrap()
    }

    fn notes_at(&self) -> u64 {
        self.bytes - NOTES
    }
}

fn image(name: &str) -> NotedImage {
    NotedImage { kind: 0x1_0000_0002, digest: [3, u64::MAX], name: name.to_owned() }
}

#[test]
fn next_back_end_reads_the_notes() {
    let kept = Kept::new(3);
    let notes = kept.region().notes().unwrap();
    assert_eq!((notes.image(), notes.sectors(), notes.write_back()), (None, None, None));
    notes.set_image(&image("/srv/p.raw"));
    notes.set_sectors(8192);
    notes.set_write_back(false);
    drop(notes);
    let notes = kept.region().notes().unwrap();
    assert_eq!(notes.image(), Some(image("/srv/p.raw")));
    assert_eq!((notes.sectors(), notes.write_back()), (Some(8192), Some(false)));
    notes.set_write_back(true);
    assert_eq!(kept.region().notes().unwrap().write_back(), Some(true));
}

#[test]
fn long_name_keeps_its_end() {
    let notes = Kept::new(1).region().notes().unwrap();
    notes.set_image(&image(&format!("{}/the.raw", "\u{e9}".repeat(60))));
    let name = notes.image().unwrap().name;
    assert!(name.len() <= 64 && name.len() > 60 && name.ends_with("\u{e9}/the.raw"), "{name}");
}

/// A back end without notes divides the memory among the queues.
#[test]
fn notes_move_no_marks() {
    for queues in 1..=64 {
        for size in [1, 2, 127, 128, 1024, 32768] {
            let bytes = InflightRegion::bytes(queues, size).unwrap();
            let others = bytes / u64::from(queues) / 64 * 64;
            let parts = bytes - NOTES;
            let is_same = others == parts / u64::from(queues) || queues == 1;
            assert!(is_same && parts.is_multiple_of(64), "{queues} queues of {size}");
        }
    }
}

#[test]
fn other_program_s_memory_has_no_notes() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 20).unwrap();
    let bytes = InflightRegion::bytes(2, SIZE).unwrap();
    for other in [bytes - NOTES, bytes - NOTES + 128, 1 << 20] {
        assert!(
            InflightRegion::map(&file, 0, other, 2, SIZE).unwrap().notes().is_none(),
            "{other}"
        );
    }
}

/// A process that is killed while it notes an image leaves the whole of it, or none.
#[test]
fn kill_leaves_a_whole_image_or_none() {
    let mut came = 0;
    for stores in 0..40 {
        let kept = Kept::new(2);
        kept.region().notes().unwrap().set_image(&image("before"));
        let notes = kept.region().notes().unwrap();
        let ended = kill::run(stores, || notes.set_image(&image("after"))).is_some();
        let left = kept.region().notes().unwrap().image();
        // The first store is what takes the image away.
        assert!(left.is_none() || left == Some(image("after")), "{stores}: {left:?}");
        came += u32::from(left.is_some());
        assert!(!ended || left.is_some(), "{stores}");
    }
    assert!(came > 0 && came < 40, "{came}");
}

proptest! {
    #![proptest_config(cases(1000))]

    /// The front end can write any bytes.
    #[test]
    fn damaged_notes_count_as_missing(
        junk in proptest::collection::vec((0u64..NOTES - 16, 1u8..), 1..4),
        others in proptest::collection::vec((NOTES - 16..NOTES, any::<u8>()), 0..4),
    ) {
        let kept = Kept::new(2);
        let notes = kept.region().notes().unwrap();
        notes.set_image(&image("/srv/p.raw"));
        let mut before = vec![0; NOTES as usize];
        kept.file.read_exact_at(&mut before, kept.notes_at()).unwrap();
        let mut after = before.clone();
        junk.iter().for_each(|(at, byte)| after[*at as usize] ^= byte);
        others.iter().for_each(|(at, byte)| after[*at as usize] = *byte);
        kept.file.write_all_at(&after, kept.notes_at()).unwrap();
        let is_same = before[..NOTES as usize - 16] == after[..NOTES as usize - 16];
        prop_assert_eq!(notes.image().is_some(), is_same);
        // Any value will do, or none.
        let _ = (notes.sectors(), notes.write_back());
    }
}
