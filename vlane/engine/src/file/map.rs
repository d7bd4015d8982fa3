//! The mapping of an image in memory, and the known state of its pages.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::SeekFrom;
use vlane_memory::Mapping;

/// Bytes that one bit stands for. The system's pages may be larger, never smaller.
const PAGE: u64 = 4096;
/// How far one look at the file's holes goes, bytes.
const LEARN: u64 = 64 << 20;
/// Pieces of data that are looked for when an image is opened.
const PIECES_AT_OPEN: usize = 1000;

#[derive(Debug)]
pub(super) struct Map {
    pages: Mapping,
    /// One bit per page that is known to exist. Losing a bit only costs a system call.
    present: Box<[AtomicU64]>,
}

impl Map {
    /// Maps the file for reading: no code in this process can write to it by accident.
    pub(super) fn new(file: &File, size: u64) -> io::Result<Map> {
        let len = usize::try_from(size.next_multiple_of(PAGE))
            .map_err(|_| io::ErrorKind::FileTooLarge)?;
        let pages = Mapping::read_only(file, len)?;
        let words = (len / 4096).div_ceil(64);
        let present = (0..words).map(|_| AtomicU64::new(0)).collect();
        let map = Map { pages, present };
        let mut at = 0;
        // An image in a few pieces is known from the start; a scattered one is learnt as it is
        // used.
        for _ in 0..PIECES_AT_OPEN {
            match map.learn(file, at, size, size) {
                Some(next) => at = next,
                None => break,
            }
        }
        Ok(map)
    }

    /// The address of `len` bytes at `offset`, if all of them are known to exist. The caller must
    /// ask [`Map::is_lost`] after the access.
    #[inline]
    pub(super) fn address(&self, offset: u64, len: u64) -> Option<*const u8> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.pages.len() as u64);
        if !inside || !self.is_present(offset, len) || self.is_lost() {
            return None;
        }
        // SAFETY: inside the mapping, as just checked.
        #[allow(clippy::cast_possible_truncation)]
        Some(unsafe { self.pages.base().as_ptr().add(offset as usize).cast_const() })
    }

    /// True if pages vanished under the mapping: an access before that may have met zeroes, or have
    /// been lost.
    #[inline]
    pub(super) fn is_lost(&self) -> bool {
        self.pages.is_lost()
    }

    /// Bytes of the mapping.
    pub(super) fn len(&self) -> u64 {
        self.pages.len() as u64
    }

    /// A read of `len` bytes at `offset` met a page that is not known: looks at the file.
    pub(super) fn learn_after_read(&self, file: &File, offset: u64, len: u64) {
        if offset < self.len() {
            self.learn(
                file,
                offset,
                offset.saturating_add(len),
                offset.saturating_add(LEARN).min(self.len()),
            );
        }
    }

    /// Notes the first piece of data from `from` on, if it begins before `begin_limit`, up to
    /// `limit`; says where to go on, if there is more.
    fn learn(&self, file: &File, from: u64, begin_limit: u64, limit: u64) -> Option<u64> {
        let begins = |start: &u64| *start < begin_limit && *start < limit;
        let start = rustix::fs::seek(file, SeekFrom::Data(from)).ok().filter(begins)?;
        let end = rustix::fs::seek(file, SeekFrom::Hole(start)).ok()?.min(limit);
        self.set_present(start, end.saturating_sub(start));
        Some(end)
    }

    /// The bits of a range: whole words with a mask.
    fn words(offset: u64, len: u64) -> impl Iterator<Item = (usize, u64)> {
        let end = offset.saturating_add(len).div_ceil(PAGE);
        let mut page = if len == 0 { end } else { offset / PAGE };
        std::iter::from_fn(move || {
            if page >= end {
                return None;
            }
            let upto = end.min((page / 64 + 1) * 64);
            let mask = (u64::MAX >> (64 - (upto - page))) << (page % 64);
            let word = usize::try_from(page / 64).unwrap_or(usize::MAX);
            page = upto;
            Some((word, mask))
        })
    }

    /// Every page that the range touches exists.
    pub(super) fn set_present(&self, offset: u64, len: u64) {
        for (word, mask) in Map::words(offset, len) {
            if let Some(word) = self.present.get(word) {
                word.fetch_or(mask, Ordering::Relaxed);
            }
        }
    }

    /// Of no page that the range touches it is known whether it exists.
    pub(super) fn clear_present(&self, offset: u64, len: u64) {
        for (word, mask) in Map::words(offset, len) {
            if let Some(word) = self.present.get(word) {
                word.fetch_and(!mask, Ordering::Relaxed);
            }
        }
    }

    #[inline]
    fn is_present(&self, offset: u64, len: u64) -> bool {
        let has = |word: usize, mask| {
            self.present.get(word).is_some_and(|word| word.load(Ordering::Relaxed) & mask == mask)
        };
        // A page or two, in one word: the usual request.
        let (first, last) = (offset / PAGE, offset.saturating_add(len.max(1) - 1) / PAGE);
        if first / 64 == last / 64 {
            let mask = (u64::MAX >> (63 - (last - first))) << (first % 64);
            return usize::try_from(first / 64).is_ok_and(|word| has(word, mask));
        }
        Map::words(offset, len).all(|(word, mask)| has(word, mask))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn memfd(size: u64) -> File {
        let fd = rustix::fs::memfd_create("map", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
        let file = File::from(fd);
        file.set_len(size).expect("set_len");
        file
    }

    #[test]
    fn map_words_cover_exactly_touched_pages() {
        let pages = |offset, len| {
            let bits = |(word, mask): (usize, u64)| {
                (0..64)
                    .filter(move |bit| mask >> bit & 1 != 0)
                    .map(move |bit| word as u64 * 64 + bit)
            };
            Map::words(offset, len).flat_map(bits).collect::<Vec<u64>>()
        };
        assert_eq!(pages(512, 0), [] as [u64; 0]);
        assert_eq!(pages(512, 1), [0]);
        assert_eq!(pages(4095, 2), [0, 1]);
        assert_eq!(pages(63 * PAGE, PAGE * 2), [63, 64]);
        assert_eq!(pages(0, 200 * PAGE), (0..200).collect::<Vec<u64>>());
    }

    #[test]
    fn image_is_mapped_read_only() {
        let file = memfd(PAGE);
        let map = Map::new(&file, PAGE).expect("map");
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let line = maps
            .lines()
            .find(|line| line.starts_with(&format!("{:x}-", map.pages.base().as_ptr() as usize)));
        assert_eq!(line.and_then(|line| line.split_whitespace().nth(1)), Some("r--s"));
    }

    #[test]
    fn only_existing_pages_have_an_address() {
        let file = memfd(10 * PAGE + 512);
        file.write_all_at(&[1; 8192], PAGE).expect("write");
        let map = Map::new(&file, 10 * PAGE + 512).expect("map");
        assert!(map.address(PAGE, 8192).is_some());
        assert!(map.address(PAGE + 512, 512).is_some());
        assert!(map.address(0, 512).is_none());
        assert!(map.address(PAGE, 8193).is_none());
        assert!(map.address(0, 0).is_none() && map.address(PAGE, 0).is_some());
        file.write_all_at(&[1], 10 * PAGE).expect("write");
        assert!(map.address(10 * PAGE, 512).is_none());
        map.learn_after_read(&file, 9 * PAGE, 2 * PAGE);
        assert!(map.address(10 * PAGE, 512).is_some());
        assert!(map.address(11 * PAGE, 512).is_none(), "beyond the mapping");
        map.clear_present(PAGE, 1);
        assert!(map.address(PAGE, 1).is_none());
        assert!(map.address(2 * PAGE, 1).is_some());
    }
}
