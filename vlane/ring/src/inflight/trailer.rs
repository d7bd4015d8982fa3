//! Notes for the next back end, behind the last queue's part: of which image the guest's disk is,
//! and how it was served.
//!
//! They are not in the specification. They are so short that the division of the memory among its
//! queues stays the same as without them. The front end can write here, too. So the notes guard
//! against mistakes, and are no security: unreadable notes count as missing.
//!
//! The image is written once, and has a checksum: a process that is killed meanwhile leaves no
//! image, or one. Size and cache are one word each.

use super::InflightPart;

/// Bytes of the notes. Fewer than 64 for each queue from the second on, and no multiple of 64: the
/// parts of no back end add up to it.
pub(super) const BYTES: usize = WORD * 15;
const WORD: usize = 8;

const MAGIC: u64 = u64::from_le_bytes(*b"vlane\0i1");
const MAGIC_AT: usize = 0;
const CHECKSUM: usize = WORD;
const IMAGE: usize = 2 * WORD;
/// Words of the image: how it is known, the digest, the name.
const IMAGE_WORDS: usize = 3 + NAME / WORD;
const SECTORS: usize = IMAGE + IMAGE_WORDS * WORD;
const CACHE: usize = SECTORS + WORD;

/// Bytes of a name that are kept.
pub const NAME: usize = 64;

/// Words of the switch of the write cache. Other values mean that none was noted.
const ON: u64 = 1;
const OFF: u64 = 2;

/// An image, as it is noted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotedImage {
    /// How it is known, and where that holds; as its writer likes.
    pub kind: u64,
    /// The digest that it is known by.
    pub digest: [u64; 2],
    /// For people; the last 64 bytes of it. Bytes that another process may have chosen.
    pub name: String,
}

impl NotedImage {
    fn words(&self) -> [u64; IMAGE_WORDS] {
        let mut words = [0; IMAGE_WORDS];
        words[..3].copy_from_slice(&[self.kind, self.digest[0], self.digest[1]]);
        // The end of a path says more than its beginning.
        let mut start = self.name.len().saturating_sub(NAME);
        while !self.name.is_char_boundary(start) {
            start += 1;
        }
        for (word, bytes) in words[3..].iter_mut().zip(self.name.as_bytes()[start..].chunks(WORD)) {
            let mut whole = [0; WORD];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(whole);
        }
        words
    }

    fn from_words(words: &[u64; IMAGE_WORDS]) -> NotedImage {
        let bytes: Vec<u8> = words[3..]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .take_while(|byte| *byte != 0)
            .collect();
        let name = String::from_utf8_lossy(&bytes).into_owned();
        NotedImage { kind: words[0], digest: [words[1], words[2]], name }
    }
}

/// FNV-1a over words.
fn checksum(words: &[u64]) -> u64 {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The notes of a region that has room for them.
#[derive(Debug)]
pub struct Notes(pub(super) InflightPart);

impl Notes {
    /// The image whose requests are in flight, if it is noted.
    pub fn image(&self) -> Option<NotedImage> {
        let mut words = [0; IMAGE_WORDS];
        let is_there = self.0.load64(MAGIC_AT) == MAGIC;
        // Read once: the checked words are the ones that are used.
        (IMAGE..).step_by(WORD).zip(&mut words).for_each(|(at, word)| *word = self.0.load64(at));
        (is_there && self.0.load64(CHECKSUM) == checksum(&words))
            .then(|| NotedImage::from_words(&words))
    }

    /// Notes the image, unless that is noted.
    pub fn set_image(&self, image: &NotedImage) {
        let words = image.words();
        if self.image().is_some_and(|noted| noted.words() == words) {
            return;
        }
        // Until it is written whole there is none.
        self.0.store64(MAGIC_AT, 0);
        (IMAGE..).step_by(WORD).zip(words).for_each(|(at, word)| self.0.store64(at, word));
        self.0.store64(CHECKSUM, checksum(&words));
        self.0.store64(MAGIC_AT, MAGIC);
    }

    /// The size that the front end got last, in sectors, if that is noted.
    pub fn sectors(&self) -> Option<u64> {
        self.0.load64(SECTORS).checked_sub(1)
    }

    /// Notes the size.
    pub fn set_sectors(&self, sectors: u64) {
        self.0.store64(SECTORS, sectors.saturating_add(1));
    }

    /// True if the guest's write cache is on; none if that is not noted.
    pub fn write_back(&self) -> Option<bool> {
        match self.0.load64(CACHE) {
            ON => Some(true),
            OFF => Some(false),
            _ => None,
        }
    }

    /// Notes the switch of the write cache.
    pub fn set_write_back(&self, on: bool) {
        self.0.store64(CACHE, if on { ON } else { OFF });
    }
}
