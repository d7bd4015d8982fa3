//! Buffers of vlane's own, for requests that direct I/O cannot take as they are.

/// A page, aligned as one.
#[repr(C, align(4096))]
#[derive(Clone)]
struct Page([u8; PAGE]);

const PAGE: usize = 4096;

/// Memory aligned to a page, a whole number of pages long.
pub struct Piece(Box<[Page]>);

impl Piece {
    /// At least `len` bytes of zeroes.
    // off the data path: a bounce buffer, for requests that direct I/O cannot take.
    pub fn new(len: usize) -> Piece {
        Piece(vec![Page([0; PAGE]); len.max(1).div_ceil(PAGE)].into_boxed_slice())
    }

    /// How many bytes it has.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "none is empty")]
    pub fn len(&self) -> usize {
        self.0.len() * PAGE
    }

    /// Its bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: pages lie side by side and have no padding (`repr(C)`, a size that is a multiple
        // of the alignment).
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * PAGE) }
    }

    /// Its bytes, to be changed.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() * PAGE) }
    }
}

impl std::fmt::Debug for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Piece({} bytes)", self.len())
    }
}
