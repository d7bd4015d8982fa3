//! Reading a trace.

use std::io::{self, Read};

use crate::error::{Error, ErrorKind};
use crate::header::RECORD_WITH_HASH;
use crate::header::{FIXED, Header};
use crate::record::Entry;

/// Reads a trace: an iterator over its entries, the end not among them. Give it a buffered reader:
/// each entry is one read.
///
/// After an error there are no more entries; those before it are good.
#[derive(Debug)]
pub struct Reader<R: Read> {
    from: R,
    header: Header,
    offset: u64,
    entries: u64,
    is_complete: bool,
    is_over: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// [`ErrorKind::NotATrace`], [`ErrorKind::Version`], [`ErrorKind::Truncated`],
    /// [`ErrorKind::Corrupt`], [`ErrorKind::Io`].
    pub fn new(mut from: R) -> Result<Reader<R>, Error> {
        let short = |got: usize| {
            Error::new(ErrorKind::Truncated, got as u64, "it ends in the middle of the header")
        };
        let mut fixed = [0; FIXED];
        let got =
            fill(&mut from, &mut fixed).map_err(|e| Error::io(0, "cannot read the header", e))?;
        if got < FIXED && fixed.starts_with(&crate::MAGIC) {
            return Err(short(got));
        }
        let (mut header, len, name) = Header::decode(&fixed)?;
        let mut rest = vec![0; len - FIXED];
        let got = fill(&mut from, &mut rest)
            .map_err(|e| Error::io(FIXED as u64, "cannot read the header", e))?;
        if got < rest.len() {
            return Err(short(FIXED + got));
        }
        rest.truncate(name);
        header.name = String::from_utf8(rest).map_err(|_| {
            let context = "the header is damaged: the volume's name is not UTF-8";
            Error::new(ErrorKind::Corrupt, FIXED as u64, context)
        })?;
        Ok(Reader {
            from,
            header,
            offset: len as u64,
            entries: 0,
            is_complete: false,
            is_over: false,
        })
    }

    /// Returns the description of the trace.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// True if the entry that ends a complete trace was met. Without it, a trace that ended between
    /// two entries may have been cut off there.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Bytes read.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Entries read.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    fn read(&mut self) -> Result<Option<Entry>, Error> {
        let mut bytes = [0; RECORD_WITH_HASH];
        let bytes = &mut bytes[..self.header.entry_len()];
        let got = fill(&mut self.from, bytes)
            .map_err(|e| Error::io(self.offset, "cannot read an entry", e))?;
        if got == 0 {
            return Ok(None);
        }
        if got < bytes.len() {
            let context =
                format!("it ends in the middle of an entry, after {} whole ones", self.entries);
            return Err(Error::new(ErrorKind::Truncated, self.offset, context));
        }
        let entry = Entry::decode(bytes, &self.header, self.offset)?;
        if let Entry::End { entries } = entry {
            if entries != self.entries {
                let context =
                    format!("its end counts {entries} entries, and there were {}", self.entries);
                return Err(Error::new(ErrorKind::Corrupt, self.offset, context));
            }
            self.is_complete = true;
            return Ok(None);
        }
        self.offset += bytes.len() as u64;
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

/// Reads until `bytes` is full or the input ends; returns the count of bytes.
pub(crate) fn fill(from: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        match from.read(&mut bytes[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}
