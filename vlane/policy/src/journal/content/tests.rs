#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;

use super::*;

const K: u64 = 1024;
const BLOCK: u64 = 4 * K;
const MIB: u64 = K * K;
const SIZE: u64 = 4 << 30;

fn head(offset: u64, words: &[u32]) -> Head {
    let mut bytes = [0; Head::LEN];
    for (at, word) in words.iter().enumerate() {
        bytes[at * 4..at * 4 + 4].copy_from_slice(&word.to_be_bytes());
    }
    Head { offset, bytes }
}

fn jbd2(offset: u64, kind: u32, sequence: u32) -> Head {
    head(offset, &[JBD2, kind, sequence])
}

/// A journal that writes as JBD2 does: descriptor and data in requests of `request` bytes at most,
/// the commit block in one of its own, then the next.
struct Journal2 {
    pieces: Vec<Range<u64>>,
    block: u64,
    /// The next block, counted over all pieces; the first is the superblock's.
    next: u64,
    sequence: u32,
    request: u64,
}

impl Journal2 {
    fn new(pieces: Vec<Range<u64>>, block: u64) -> Journal2 {
        Journal2 { pieces, block, next: 1, sequence: 100, request: 256 * K }
    }

    fn blocks(&self) -> u64 {
        self.pieces.iter().map(|piece| (piece.end - piece.start) / self.block).sum()
    }

    fn place(&self, mut at: u64) -> u64 {
        for piece in &self.pieces {
            let here = (piece.end - piece.start) / self.block;
            if at < here {
                return piece.start + at * self.block;
            }
            at -= here;
        }
        panic!("behind the journal")
    }

    fn advance(&mut self) -> u64 {
        let place = self.place(self.next);
        self.next = if self.next + 1 < self.blocks() { self.next + 1 } else { 1 };
        place
    }

    /// One transaction of `blocks` data blocks, as writes with their heads.
    fn transaction(&mut self, blocks: u64) -> Vec<(Range<u64>, Vec<Head>)> {
        let mut writes: Vec<(Range<u64>, Vec<Head>)> = Vec::new();
        let per_descriptor = self.block / 16 - 2;
        for block in 0..blocks + blocks.div_ceil(per_descriptor) {
            let at = self.advance();
            let heads = if block % (per_descriptor + 1) == 0 {
                vec![jbd2(at, 1, self.sequence)]
            } else {
                vec![]
            };
            match writes.last_mut() {
                Some((range, of)) if range.end == at && range.end - range.start < self.request => {
                    range.end += self.block;
                    of.extend(heads);
                }
                _ => writes.push((at..at + self.block, heads)),
            }
        }
        let at = self.advance();
        writes.push((at..at + self.block, vec![jbd2(at, 2, self.sequence)]));
        self.sequence = self.sequence.wrapping_add(1);
        writes
    }

    fn superblock(&self, sequence: u32, start: u32) -> (Range<u64>, Vec<Head>) {
        let at = self.pieces[0].start;
        let words = [JBD2, 4, 0, self.block as u32, self.blocks() as u32, 1, sequence, start];
        (at..at + self.block, vec![head(at, &words)])
    }
}

fn told(content: &mut Content, writes: &[(Range<u64>, Vec<Head>)]) {
    writes.iter().for_each(|(range, heads)| content.write(range, heads));
}

fn ranges(content: &Content) -> Vec<Range<u64>> {
    content.journals().into_iter().flat_map(|journal| journal.ranges).collect()
}

/// It is known exactly after a loop.
#[test]
fn journal_is_found_after_three_transactions() {
    for block in [K, 2 * K, BLOCK] {
        let mut journal = Journal2::new(vec![512 * MIB..576 * MIB], block);
        let mut content = Content::new(SIZE);
        for count in [5, 1] {
            told(&mut content, &journal.transaction(count));
        }
        assert!(ranges(&content).is_empty());
        told(&mut content, &journal.transaction(3));
        assert_eq!(ranges(&content)[0].start, 512 * MIB + block);
        assert!(ranges(&content)[0].end <= 521 * MIB, "{:?}", ranges(&content));
        let mut before = 0;
        for count in 0.. {
            told(&mut content, &journal.transaction(150 + count % 100));
            if std::mem::replace(&mut before, journal.next) > journal.next {
                break;
            }
        }
        assert_eq!(ranges(&content), [512 * MIB + block..576 * MIB], "block {block}");
        told(&mut content, &[journal.superblock(journal.sequence - 3, 40)]);
        assert_eq!(ranges(&content), [512 * MIB..576 * MIB]);
    }
}

#[test]
fn hole_is_no_part_of_journal() {
    let pieces = vec![100 * MIB..128 * MIB, 130 * MIB..140 * MIB];
    let mut journal = Journal2::new(pieces.clone(), BLOCK);
    let mut content = Content::new(SIZE);
    for count in 0..1000 {
        told(&mut content, &journal.transaction(10 + count % 37));
    }
    let all: Map = Map::new(&content.journals());
    let found: u64 = ranges(&content).iter().map(|range| range.end - range.start).sum();
    let overlap = |range: &Range<u64>| -> u64 {
        all.overlapping(range.clone())
            .map(|p| p.range.end.min(range.end) - p.range.start.max(range.start))
            .sum()
    };
    let right: u64 = pieces.iter().map(overlap).sum();
    assert_eq!(found, right, "{:?}", ranges(&content));
    assert!(right >= 37 * MIB, "{:?}", ranges(&content));
}

use super::super::Map;

/// Copied by requests of a size, a journal's blocks come together as JBD2 never sends them.
#[test]
fn copied_journal_gets_no_verdict() {
    for request in [16 * K, 64 * K, 512 * K, MIB, 4 * MIB] {
        let mut journal = Journal2::new(vec![0..64 * MIB], BLOCK);
        let mut heads = vec![journal.superblock(1, 1).1[0]];
        for count in 0..1000 {
            heads.extend(
                journal.transaction(1 + count % 5).into_iter().flat_map(|(_, heads)| heads),
            );
        }
        heads.truncate(
            heads
                .iter()
                .skip(1)
                .position(|head| head.offset == BLOCK)
                .map_or(heads.len(), |at| at + 1)
                .max(1500),
        );
        let mut content = Content::new(SIZE);
        let mut copied = heads.into_iter().peekable();
        for at in 0..40 * MIB / request {
            let range = at * request..(at + 1) * request;
            let mut of = Vec::new();
            while let Some(head) = copied.next_if(|head| head.offset < range.end) {
                of.push(Head { offset: head.offset + 2048 * MIB, ..head });
            }
            content.write(&(range.start + 2048 * MIB..range.end + 2048 * MIB), &of);
        }
        assert!(ranges(&content).is_empty(), "requests of {request}: {:?}", ranges(&content));
    }
}

#[test]
fn single_journal_like_blocks_get_no_verdict() {
    let mut content = Content::new(SIZE);
    for count in 0..10_000_u64 {
        let at = count * 7919 % 1000 * MIB;
        let kind = [1, 2, 3, 4, 5, 9][(count % 6) as usize];
        content.write(&(at..at + BLOCK), &[jbd2(at, kind, (count / 3) as u32)]);
    }
    assert!(ranges(&content).is_empty(), "{:?}", ranges(&content));
}

/// A new file system: the old journal is written over, and the new one has begun with the first
/// number again. A journal ends when it is made anew, overwritten or discarded.
#[test]
fn verdict_ends_with_the_journal() {
    let run = || {
        let mut journal = Journal2::new(vec![512 * MIB..576 * MIB], BLOCK);
        let mut content = Content::new(SIZE);
        for _ in 0..400 {
            told(&mut content, &journal.transaction(30));
        }
        told(&mut content, &[journal.superblock(journal.sequence, 0)]);
        assert_eq!(ranges(&content).len(), 1);
        (journal, content)
    };
    let (journal, mut content) = run();
    told(&mut content, &[journal.superblock(1, 0)]);
    assert!(ranges(&content).is_empty(), "a new superblock");
    let (_, mut content) = run();
    for at in 0..16 {
        content.write(&((512 + at) * MIB..(513 + at) * MIB), &[]);
    }
    assert!(ranges(&content).is_empty(), "zeroes");
    let (_, mut content) = run();
    content.cleared(&(0..SIZE));
    assert!(ranges(&content).is_empty(), "discarded");
    assert!(content.take_change());
}

#[test]
fn remounted_journal_restarts_at_its_beginning() {
    let mut journal = Journal2::new(vec![512 * MIB..576 * MIB], BLOCK);
    let mut content = Content::new(SIZE);
    for _ in 0..200 {
        told(&mut content, &journal.transaction(30));
    }
    let before = ranges(&content);
    journal.next = 1;
    journal.sequence += 2;
    told(&mut content, &journal.transaction(2));
    told(&mut content, &journal.transaction(2));
    assert_eq!(ranges(&content)[0].start, before[0].start);
    assert!(ranges(&content)[0].end + AHEAD >= before[0].end);
    assert_eq!(content.journals().len(), 1);
}

/// Requests of a transaction that several lanes take are reported out of order.
#[test]
fn out_of_order_requests_are_reassembled() {
    let mut journal = Journal2::new(vec![512 * MIB..576 * MIB], BLOCK);
    journal.request = 64 * K;
    let mut content = Content::new(SIZE);
    for count in 0..400 {
        let mut writes = journal.transaction(60);
        let data = writes.len() - 1;
        writes[..data].rotate_left(count % data);
        // Another writer is active meanwhile.
        writes.insert(1, (MIB..MIB + BLOCK, vec![]));
        told(&mut content, &writes);
    }
    let found = ranges(&content);
    let len: u64 = found.iter().map(|range| range.end - range.start).sum();
    assert!(found[0].start >= 512 * MIB && found.last().unwrap().end <= 580 * MIB, "{found:?}");
    assert!(len >= 63 * MIB, "{found:?}");
}

fn record(start: u64, cycle: u32, block: u64, len: u64) -> (Range<u64>, Head) {
    let at = start + block * 512;
    (at..at + 512 + len, head(at, &[XFS, cycle, 2, len as u32, cycle, block as u32]))
}

#[test]
fn xfs_log_length_is_known_after_loop() {
    let (start, blocks) = (700 * MIB + 512, 65_536);
    let mut content = Content::new(SIZE);
    let (mut cycle, mut block) = (3, 1000);
    for count in 0..20_000_u64 {
        let len = 512 * (1 + count % 60);
        let (range, head) = record(start, cycle, block, len);
        let end = start + blocks * 512;
        content.write(&(range.start..range.end.min(end)), &[head]);
        if range.end > end {
            content.write(&(start..start + range.end - end), &[]);
        }
        if count == 20 {
            assert_eq!(ranges(&content)[0].start, start);
            assert!(ranges(&content)[0].end < start + 8 * MIB);
        }
        block += 1 + len / 512;
        if block >= blocks {
            (cycle, block) = (cycle + 1, block - blocks);
        }
    }
    assert_eq!(ranges(&content), [start..start + blocks * 512]);
}

/// They are also found behind each record.
#[test]
fn heads_are_found_at_every_kib() {
    let mut data = vec![0; 64 << 10];
    for at in [0, 4096, 5120, 60 << 10] {
        data[at..at + 4].copy_from_slice(&JBD2.to_be_bytes());
    }
    data[512..516].copy_from_slice(&JBD2.to_be_bytes());
    let find = |data: &[u8]| {
        let mut found = Vec::new();
        let word = |at: u64| data[at as usize..at as usize + 4].try_into().unwrap();
        let whole = |at: u64| data[at as usize..at as usize + Head::LEN].try_into().unwrap();
        scan(512, data.len() as u64, word, whole, |head| found.push(head.offset - 512));
        found
    };
    assert_eq!(find(&data), [0, 4096, 5120, 60 << 10]);
    data.fill(0);
    for at in [0, 512 + 1024, 2560] {
        data[at..at + 4].copy_from_slice(&XFS.to_be_bytes());
    }
    data[12..16].copy_from_slice(&1000_u32.to_be_bytes());
    data[512 + 1024 + 12..512 + 1024 + 16].copy_from_slice(&1_u32.to_be_bytes());
    assert_eq!(find(&data), [0, 1536, 2560]);
    assert_eq!(find(&data[..31]), []);
}

proptest! {
    /// All writes are looked at in bounded time, and each found range lies in the volume.
    #[test]
    fn arbitrary_heads_are_survived(writes in prop::collection::vec(
        (0..64_u64, 1..20_u64, prop::collection::vec((0..8_usize, prop::collection::vec(any::<u32>(), 8)), 0..3), any::<bool>()), 0..300)
    ) {
        let mut content = Content::new(300 * BLOCK);
        for (at, len, heads, is_low) in writes {
            let range = at * BLOCK..(at + len) * BLOCK;
            let heads: Vec<_> = heads.into_iter().map(|(block, mut words)| {
                words[0] = if words[0] % 4 == 0 { XFS } else { JBD2 };
                if is_low {
                    words.iter_mut().skip(1).for_each(|word| *word %= 8);
                }
                head(range.start + block as u64 * K, &words)
            }).collect();
            content.write(&range, &heads);
            for range in ranges(&content) {
                prop_assert!(range.start < range.end && range.end <= 300 * BLOCK, "{:?}", range);
            }
        }
    }
}

/// The superblock names the length alone: a journal with a hole ends later than one without.
#[test]
fn journal_with_hole_is_known_to_end() {
    let pieces = vec![512 * MIB..544 * MIB, 560 * MIB..592 * MIB];
    let mut journal = Journal2::new(pieces.clone(), BLOCK);
    let mut content = Content::new(SIZE);
    told(&mut content, &[journal.superblock(100, 1)]);
    let mut before = 0;
    for count in 0.. {
        for (range, heads) in journal.transaction(100) {
            let is_known = ranges(&content)
                .iter()
                .any(|known| known.start <= range.start && range.end <= known.end);
            let is_behind_hole = (560 * MIB..564 * MIB).contains(&range.start);
            content.write(&range, &heads);
            assert!(is_known || count < 3 || is_behind_hole, "{range:?} of {:?}", ranges(&content));
        }
        if std::mem::replace(&mut before, journal.next) > journal.next {
            break;
        }
    }
    assert_eq!(ranges(&content), pieces);
}
