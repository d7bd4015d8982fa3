//! Writing and reading a record.

use std::io::{Read, Write};

use twox_hash::XxHash3_64;

use super::entry::Entry;
use crate::error::{Error, ErrorKind};
use crate::fill;
use crate::header::{int, long, short};

/// The first eight bytes.
pub const MAGIC: [u8; 8] = *b"VLANESTO";
/// The format's version. It rises when a reader of the older one would misunderstand the newer.
pub const VERSION: u16 = 1;
/// The most bytes that an entry may have.
pub const MAX_ENTRY: u32 = 64 << 20;
/// Bytes of the header, its checksum included.
const HEADER: usize = 32;
/// Bytes before each entry: its length and its checksum.
const FRAME: usize = 12;
/// Bit of the flags: the image lies in memory.
const IN_MEMORY: u16 = 1;

/// The description of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header {
    /// Size of the volume, bytes.
    pub size: u64,
    /// The image lies in memory, where no data is ever durable and a flush has no effect.
    pub in_memory: bool,
}

impl Header {
    fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10..12].copy_from_slice(&if self.in_memory { IN_MEMORY } else { 0 }.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.size.to_le_bytes());
        let sum = XxHash3_64::oneshot(&bytes[..HEADER - 8]);
        bytes[HEADER - 8..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEADER]) -> Result<Header, Error> {
        let fail = |kind, context: String| Err(Error::new(kind, 0, context));
        if bytes[..8] != MAGIC {
            let context = "not a record of the storage's writes: it does not begin with VLANESTO";
            return fail(ErrorKind::NotATrace, context.to_owned());
        }
        let version = short(bytes, 8);
        if version != VERSION {
            let context =
                format!("a record of version {version}; this program knows version {VERSION}");
            return fail(ErrorKind::Version, context);
        }
        if long(bytes, HEADER - 8) != XxHash3_64::oneshot(&bytes[..HEADER - 8]) {
            return fail(
                ErrorKind::Corrupt,
                "the record's header is damaged: its checksum is wrong".to_owned(),
            );
        }
        Ok(Header { size: long(bytes, 16), in_memory: short(bytes, 10) & IN_MEMORY != 0 })
    }
}

/// Writes a record. Give it a buffered writer.
#[derive(Debug)]
pub struct Writer<W: Write> {
    to: W,
    bytes: Vec<u8>,
    offset: u64,
    entries: u64,
}

impl<W: Write> Writer<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// [`ErrorKind::Io`].
    pub fn new(mut to: W, header: Header) -> Result<Writer<W>, Error> {
        to.write_all(&header.encode()).map_err(|e| Error::io(0, "cannot write the header", e))?;
        Ok(Writer { to, bytes: Vec::new(), offset: HEADER as u64, entries: 0 })
    }

    /// Writes one entry.
    ///
    /// # Errors
    /// [`ErrorKind::Io`]; [`ErrorKind::Unfit`] for more data than an entry can have.
    pub fn write(&mut self, entry: &Entry) -> Result<(), Error> {
        self.bytes.clear();
        self.bytes.resize(FRAME, 0);
        entry.encode(&mut self.bytes);
        let len = u32::try_from(self.bytes.len() - FRAME).ok().filter(|len| *len <= MAX_ENTRY);
        let Some(len) = len else {
            let context = format!("an entry of {} bytes does not fit", self.bytes.len());
            return Err(Error::new(ErrorKind::Unfit, self.offset, context));
        };
        let sum = XxHash3_64::oneshot(&self.bytes[FRAME..]);
        self.bytes[..4].copy_from_slice(&len.to_le_bytes());
        self.bytes[4..FRAME].copy_from_slice(&sum.to_le_bytes());
        self.to
            .write_all(&self.bytes)
            .map_err(|e| Error::io(self.offset, "cannot write an entry", e))?;
        self.offset += self.bytes.len() as u64;
        self.entries += 1;
        Ok(())
    }

    /// Marks the record as complete, and gives back its target.
    ///
    /// # Errors
    /// [`ErrorKind::Io`].
    pub fn finish(mut self) -> Result<W, Error> {
        self.write(&Entry::Complete { entries: self.entries })?;
        self.to.flush().map_err(|e| Error::io(self.offset, "cannot write the entries", e))?;
        Ok(self.to)
    }
}

/// Reads a record: an iterator over its entries, [`Entry::Complete`] not among them. Give it a
/// buffered reader.
///
/// A record that does not end with [`Entry::Complete`] is cut off, which is an error after the last
/// entry: the missing part may be the important one.
#[derive(Debug)]
pub struct Reader<R: Read> {
    from: R,
    header: Header,
    offset: u64,
    entries: u64,
    is_over: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// [`ErrorKind::NotATrace`], [`ErrorKind::Version`], [`ErrorKind::Truncated`],
    /// [`ErrorKind::Corrupt`], [`ErrorKind::Io`].
    pub fn new(mut from: R) -> Result<Reader<R>, Error> {
        let mut bytes = [0; HEADER];
        let got =
            fill(&mut from, &mut bytes).map_err(|e| Error::io(0, "cannot read the header", e))?;
        if got < HEADER && (got < 8 || bytes[..8] == MAGIC) {
            return Err(Error::new(
                ErrorKind::Truncated,
                got as u64,
                "it ends in the middle of the header",
            ));
        }
        Ok(Reader {
            header: Header::decode(&bytes)?,
            from,
            offset: HEADER as u64,
            entries: 0,
            is_over: false,
        })
    }

    /// Returns the description of the record.
    pub fn header(&self) -> Header {
        self.header
    }

    fn read(&mut self) -> Result<Option<Entry>, Error> {
        let at = self.offset;
        let cut = |entries: u64| {
            let context =
                format!("the record is cut off after {entries} entries: its end is missing");
            Error::new(ErrorKind::Truncated, at, context)
        };
        let io = |error| Error::io(at, "cannot read an entry", error);
        let mut frame = [0; FRAME];
        if fill(&mut self.from, &mut frame).map_err(io)? < FRAME {
            return Err(cut(self.entries));
        }
        let (len, sum) = (int(&frame, 0), long(&frame, 4));
        if len > MAX_ENTRY {
            let context = format!("the record is damaged: an entry of {len} bytes");
            return Err(Error::new(ErrorKind::Corrupt, at, context));
        }
        // As much as really comes: a length alone costs no memory.
        let mut bytes = Vec::new();
        (&mut self.from).take(u64::from(len)).read_to_end(&mut bytes).map_err(io)?;
        if bytes.len() < len as usize {
            return Err(cut(self.entries));
        }
        if XxHash3_64::oneshot(&bytes) != sum {
            let context = "the record is damaged: an entry's checksum is wrong";
            return Err(Error::new(ErrorKind::Corrupt, at, context));
        }
        let entry = Entry::decode(&bytes, at)?;
        self.offset += (FRAME + bytes.len()) as u64;
        if let Entry::Complete { entries } = entry {
            if entries != self.entries {
                let context =
                    format!("its end counts {entries} entries, and there were {}", self.entries);
                return Err(Error::new(ErrorKind::Corrupt, at, context));
            }
            return Ok(None);
        }
        self.entries += 1;
        Ok(Some(entry))
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Entry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let next = self.read().transpose();
        self.is_over = !matches!(next, Some(Ok(_)));
        next
    }
}
