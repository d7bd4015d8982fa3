//! Possible content of storage after a power cut, sector by sector.
//!
//! A durable write is there. A write that has begun and is not durable may be there, sector by
//! sector, or not. A sector of several such writes holds the data of one of them, or its earlier
//! content: the kernel, or the device, decides which it wrote out last. Its content is never older
//! than the newest durable write that came after it in time. No more is known, and no more is
//! assumed: no order between sectors, none between writes.

use std::collections::BTreeMap;

use vlane_trace::storage::{Action, Data, Effect, History};

/// Bytes that a disk writes whole or not at all.
pub const SECTOR: usize = 512;
/// In pieces of this size the image is written to a file, those of zeroes left out.
const CHUNK: usize = 64 << 10;

/// The storage at one moment of a record.
#[derive(Debug)]
pub struct Storage<'a> {
    history: &'a History,
    /// The certain content. Open sectors have their earlier content.
    image: Vec<u8>,
    /// By chunk, true if data were ever there.
    used: Vec<bool>,
    /// Sectors of which it is not known what they hold.
    open: BTreeMap<usize, Sector>,
    /// Events in order: the place in the record, true or false, and the operation. With true it is
    /// durable from there on, with false it begins there.
    events: Vec<(usize, bool, usize)>,
    next: usize,
}

/// The possible contents of a sector, from the oldest to the newest; not empty. None: the content
/// from before the operations. Else the data of an operation, an index into
/// [`History::operations`].
pub type Sector = Vec<Option<usize>>;

impl<'a> Storage<'a> {
    /// Before the record's first entry: what the image held.
    pub fn new(history: &'a History, image: Vec<u8>) -> Self {
        let mut events = Vec::new();
        for (index, operation) in history.operations.iter().enumerate() {
            if operation.what == Action::Sync {
                continue;
            }
            events.push((operation.begin, false, index));
            events.extend(operation.durable.map(|durable| (durable, true, index)));
        }
        events.sort_unstable();
        let used = image.chunks(CHUNK).map(|chunk| chunk.iter().any(|byte| *byte != 0)).collect();
        Storage { history, image, used, open: BTreeMap::new(), events, next: 0 }
    }

    /// Advances in time: everything up to and with the entry `at` has happened.
    pub fn advance(&mut self, at: usize) {
        while let Some(&(when, is_durable, operation)) = self.events.get(self.next)
            && when <= at
        {
            self.next += 1;
            if is_durable { self.settle(operation) } else { self.begin(operation) }
        }
    }

    /// Sectors of the first `len` bytes of an operation, as far as there are any; at most those
    /// that it is for.
    fn sectors(&self, operation: usize, len: Option<u64>) -> std::ops::Range<usize> {
        let range = self.history.operations[operation].what.range();
        let (begin, end) = range.unwrap_or_default();
        let end = len.map_or(end, |len| end.min(begin.saturating_add(len)));
        let most = self.image.len() / SECTOR;
        let sector = |byte: u64| usize::try_from(byte / SECTOR as u64).unwrap_or(most).min(most);
        sector(begin)..sector(end)
    }

    fn begin(&mut self, operation: usize) {
        for sector in self.sectors(operation, None) {
            self.open.entry(sector).or_insert_with(|| vec![None]).push(Some(operation));
            self.used[sector * SECTOR / CHUNK] = true;
        }
    }

    /// An operation is durable, as far as it did something.
    fn settle(&mut self, operation: usize) {
        let Effect::Done(done) = self.history.operations[operation].effect() else { return };
        let begin = self.history.operations[operation].begin;
        let operations = &self.history.operations;
        for sector in self.sectors(operation, Some(done)) {
            let Some(open) = self.open.get_mut(&sector) else { continue };
            // Something newer may be durable already.
            if !open.contains(&Some(operation)) {
                continue;
            }
            let is_older = |other: usize| operations[other].end.is_some_and(|(end, _)| end < begin);
            open.retain(|other| other.is_some_and(|other| other == operation || !is_older(other)));
            if open[..] == [Some(operation)] {
                self.open.remove(&sector);
                let at = sector * SECTOR;
                copy(self.history, operation, sector, &mut self.image[at..at + SECTOR]);
            }
        }
    }

    /// Sectors of which it is not known what they hold.
    pub fn open(&self) -> &BTreeMap<usize, Sector> {
        &self.open
    }

    /// Operations that may have left something, or not: by their beginning.
    pub fn unsure(&self) -> Vec<usize> {
        let mut all: Vec<usize> = self.open.values().flatten().flatten().copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The image with a choice for each open sector: what it holds, in pieces, each with its place;
    /// between them there are zeroes.
    pub fn state<T>(
        &mut self,
        mut choose: impl FnMut(usize, &Sector) -> Option<usize>,
        write: impl FnOnce(&mut dyn Iterator<Item = (usize, &[u8])>) -> T,
    ) -> T {
        let mut undo = Vec::new();
        for (sector, open) in &self.open {
            let choice = choose(*sector, open);
            debug_assert!(open.contains(&choice), "{choice:?} of {open:?}");
            if let Some(operation) = choice {
                let bytes = &mut self.image[sector * SECTOR..][..SECTOR];
                undo.push((*sector, bytes.to_vec()));
                copy(self.history, operation, *sector, bytes);
            }
        }
        let used = self.image.chunks(CHUNK).enumerate().filter(|(chunk, _)| self.used[*chunk]);
        let done = write(&mut used.map(|(chunk, bytes)| (chunk * CHUNK, bytes)));
        for (sector, bytes) in undo {
            self.image[sector * SECTOR..][..SECTOR].copy_from_slice(&bytes);
        }
        done
    }
}

/// Data that an operation gives to a sector.
fn copy(history: &History, operation: usize, sector: usize, to: &mut [u8]) {
    let Action::Write { offset, data: Data::Bytes(bytes), .. } =
        &history.operations[operation].what
    else {
        return to.fill(0);
    };
    let from = (sector * SECTOR).saturating_sub(usize::try_from(*offset).unwrap_or(usize::MAX));
    let from = bytes.get(from..).unwrap_or_default();
    let len = from.len().min(to.len());
    to[..len].copy_from_slice(&from[..len]);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use vlane_trace::storage::{Clear, Entry};

    use super::*;

    const IMAGE: usize = 128 << 10;

    fn begin(operation: u64, what: Action) -> Entry {
        Entry::Begin { operation, request: 0, what }
    }

    fn end(operation: u64, result: i64) -> Entry {
        Entry::End { operation, result }
    }

    /// `sectors` sectors of `byte` from sector `at` on.
    fn write(at: usize, sectors: usize, byte: u8, durable: bool) -> Action {
        let data = Data::Bytes(vec![byte; sectors * SECTOR]);
        Action::Write { file: 0, offset: (at * SECTOR) as u64, durable, data }
    }

    fn sync(operation: u64) -> [Entry; 2] {
        [begin(operation, Action::Sync), end(operation, 0)]
    }

    fn history(parts: &[&[Entry]]) -> History {
        History::new(parts.concat().into_iter().map(Ok)).unwrap()
    }

    /// The first bytes that each of the first `n` sectors may have, when the whole record has
    /// happened.
    fn possible(history: &History, n: usize) -> Vec<Vec<u8>> {
        let mut storage = Storage::new(history, vec![b'o'; IMAGE]);
        storage.advance(usize::MAX);
        let mut all = vec![Vec::new(); n];
        for (sector, found) in all.iter_mut().enumerate() {
            let count = storage.open().get(&sector).map_or(1, Vec::len);
            for choice in 0..count {
                let mut image = vec![0; IMAGE];
                let choose = |at: usize, open: &Sector| open[if at == sector { choice } else { 0 }];
                storage.state(choose, |pieces| {
                    pieces
                        .for_each(|(at, bytes)| image[at..at + bytes.len()].copy_from_slice(bytes));
                });
                assert!(
                    image[sector * SECTOR..][..SECTOR].iter().all(|b| *b == image[sector * SECTOR])
                );
                found.push(image[sector * SECTOR]);
            }
        }
        all
    }

    #[test]
    fn only_synced_writes_are_certain() {
        let first = [begin(1, write(0, 2, b'a', false)), end(1, 1024)];
        let second = [begin(2, write(1, 2, b'b', false)), end(2, 1024)];
        let record = history(&[&first, &sync(9), &second]);
        assert_eq!(
            possible(&record, 4),
            [b"a".to_vec(), b"ab".to_vec(), b"ob".to_vec(), b"o".to_vec()]
        );
        let record = history(&[&first, &sync(9), &second, &sync(10)]);
        assert_eq!(possible(&record, 4), [b"a", b"b", b"b", b"o"]);
        // Without any, each of the three.
        let record = history(&[&first, &second]);
        assert_eq!(possible(&record, 3), [b"oa".to_vec(), b"oab".to_vec(), b"ob".to_vec()]);
        // A sync that began before the write had ended does not cover it.
        let record = history(&[&first[..1], &[begin(9, Action::Sync)], &first[1..], &[end(9, 0)]]);
        assert_eq!(possible(&record, 1), [b"oa"]);
    }

    #[test]
    fn concurrent_writes_may_end_either_way() {
        let [a, b] = [begin(1, write(0, 1, b'a', false)), begin(2, write(0, 1, b'b', false))];
        let ends = [end(1, 512), end(2, 512)];
        let record = history(&[&[a.clone(), b.clone()], &ends, &sync(9)]);
        assert_eq!(possible(&record, 1), [b"ab"]);
        // A third one after both settles it.
        let third = [begin(3, write(0, 1, b'c', false)), end(3, 512)];
        assert_eq!(possible(&history(&[&[a, b], &ends, &sync(9), &third, &sync(10)]), 1), [b"c"]);
    }

    #[test]
    fn ended_durable_write_replaces_older_data() {
        let first = [begin(1, write(0, 1, b'a', false)), end(1, 512)];
        let durable = [begin(2, write(0, 1, b'b', true)), end(2, 512)];
        assert_eq!(possible(&history(&[&first, &durable]), 1), [b"b"]);
        assert_eq!(possible(&history(&[&first, &durable[..1]]), 1), [b"oab"]);
    }

    #[test]
    fn failed_and_short_operations_promise_less() {
        let failed = [begin(1, write(0, 2, b'a', false)), end(1, -5)];
        assert_eq!(possible(&history(&[&failed, &sync(9)]), 2), [b"oa", b"oa"]);
        let short = [begin(1, write(0, 2, b'a', false)), end(1, 512)];
        assert_eq!(possible(&history(&[&short, &sync(9)]), 2), [b"a".to_vec(), b"oa".to_vec()]);
        // After a sync that failed, no later one covers what it was to cover.
        let write = [begin(1, write(0, 1, b'a', false)), end(1, 512)];
        let failed = [begin(8, Action::Sync), end(8, -5)];
        assert_eq!(possible(&history(&[&write, &failed, &sync(9)]), 1), [b"oa"]);
    }

    #[test]
    fn zeroes_count_and_discards_promise_nothing() {
        let clear = |how| Action::Clear { how, offset: 0, len: 512 };
        let written = [begin(1, write(0, 1, b'a', false)), end(1, 512)];
        for how in [Clear::Punch, Clear::Zero] {
            let cleared = [begin(2, clear(how)), end(2, 0)];
            assert_eq!(possible(&history(&[&written, &sync(9), &cleared]), 1), [b"a\0"]);
            assert_eq!(possible(&history(&[&written, &sync(9), &cleared, &sync(10)]), 1), [b"\0"]);
        }
        let discarded = [begin(2, clear(Clear::Discard)), end(2, 0)];
        assert_eq!(possible(&history(&[&written, &sync(9), &discarded, &sync(10)]), 1), [b"a\0"]);
    }

    #[test]
    fn data_beyond_the_image_are_ignored() {
        let beyond = [begin(1, write(IMAGE / SECTOR - 1, 8, b'a', false)), end(1, 4096)];
        let far = Action::Clear { how: Clear::Punch, offset: 1 << 60, len: 1 << 61 };
        let record = history(&[&beyond, &[begin(2, far), end(2, 0)], &sync(9)]);
        let mut storage = Storage::new(&record, vec![0; IMAGE]);
        storage.advance(usize::MAX);
        assert!(storage.open().is_empty());
    }
}
