//! Journals by content: magic numbers in what is written.

/// The beginning of a block that was written and begins with a journal's magic number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Head {
    /// Where the block lies, bytes from the beginning of the volume.
    pub offset: u64,
    /// Its first bytes.
    pub bytes: [u8; Head::LEN],
}

impl Head {
    /// Bytes of a head.
    pub const LEN: usize = 32;

    /// Whether a block that begins with these bytes is worth a head.
    #[inline]
    pub fn is_magic(first: [u8; 4]) -> bool {
        // JBD2's and XFS's log record's, both big-endian.
        matches!(u32::from_be_bytes(first), 0xc03b_3998 | 0xfeed_babe)
    }
}
