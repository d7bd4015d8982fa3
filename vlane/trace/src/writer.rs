//! Writing a trace.

use std::io::Write;

use crate::error::{Error, ErrorKind};
use crate::header::Header;
use crate::record::Entry;

/// Writes a trace. Give it a buffered writer: each entry is one `write_all`.
#[derive(Debug)]
pub struct Writer<W: Write> {
    to: W,
    header: Header,
    offset: u64,
    entries: u64,
}

impl<W: Write> Writer<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// [`ErrorKind::Io`].
    pub fn new(mut to: W, header: Header) -> Result<Writer<W>, Error> {
        let bytes = header.encode();
        to.write_all(&bytes).map_err(|e| Error::io(0, "cannot write the header", e))?;
        Ok(Writer { to, header, offset: bytes.len() as u64, entries: 0 })
    }

    /// Writes one entry. [`Entry::End`] is for [`Writer::finish`].
    ///
    /// # Errors
    /// [`ErrorKind::Io`]; [`ErrorKind::Unfit`] for a lane that the header does not have.
    pub fn write(&mut self, entry: &Entry) -> Result<(), Error> {
        let lane = match entry {
            Entry::Record(record) => record.lane,
            Entry::Start { lane, .. } | Entry::Lost { lane, .. } => *lane,
            Entry::Head(head) => head.lane,
            Entry::Layout(_) | Entry::End { .. } => 0,
        };
        if self.header.lanes > 0 && lane >= self.header.lanes {
            let context =
                format!("a request of lane {lane} in a trace of {} lanes", self.header.lanes);
            return Err(Error::new(ErrorKind::Unfit, self.offset, context));
        }
        let len = self.header.entry_len();
        let bytes = entry.encode(self.header.hashes);
        self.to
            .write_all(&bytes[..len])
            .map_err(|e| Error::io(self.offset, "cannot write an entry", e))?;
        self.offset += len as u64;
        self.entries += 1;
        Ok(())
    }

    /// Makes the entries written so far visible.
    ///
    /// # Errors
    /// [`ErrorKind::Io`].
    pub fn flush(&mut self) -> Result<(), Error> {
        self.to.flush().map_err(|e| Error::io(self.offset, "cannot write the entries", e))
    }

    /// Marks the trace as complete, and gives back its target.
    ///
    /// # Errors
    /// [`ErrorKind::Io`].
    pub fn finish(mut self) -> Result<W, Error> {
        self.write(&Entry::End { entries: self.entries })?;
        self.flush()?;
        Ok(self.to)
    }

    /// Returns the target, for a caller that takes the bytes away as they come. The caller must not
    /// write to it.
    pub fn target(&mut self) -> &mut W {
        &mut self.to
    }

    /// Entries written, the end not counted.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Bytes written.
    pub fn bytes(&self) -> u64 {
        self.offset
    }
}
