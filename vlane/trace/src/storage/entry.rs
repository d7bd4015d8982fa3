//! The entries of a record, and their bytes.

use crate::error::{Error, ErrorKind};

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A request that changes the storage, or a flush, was given to the storage engine.
    Request {
        /// Its number: the first one is 1.
        request: u64,
        /// The lane of the request.
        lane: u16,
        /// The kind of the request.
        kind: Purpose,
        /// It is to be durable when it is answered.
        durable: bool,
    },
    /// A request was answered: 0 is success, all else is none.
    Answer {
        /// Its number.
        request: u64,
        /// virtio's status byte.
        status: u8,
    },
    /// A request was put back into its ring, unanswered. Its begun operations may be done or not.
    Forgotten {
        /// Its number.
        request: u64,
    },
    /// An operation is about to be given to the system.
    Begin {
        /// Its number: the first one is 1.
        operation: u64,
        /// For which request; 0: for none.
        request: u64,
        /// The action.
        what: Action,
    },
    /// The system has ended an operation.
    End {
        /// Its number.
        operation: u64,
        /// The system's result: a count of bytes or 0, or a negative error number.
        result: i64,
    },
    /// The record is complete.
    Complete {
        /// How many entries were before this one.
        entries: u64,
    },
}

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To write.
    Write,
    /// To make answered writes durable.
    Flush,
    /// To mark unused data.
    Discard,
    /// To write zeroes.
    WriteZeroes,
}

/// The action of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A write.
    Write {
        /// Which of the volume's open files; 0 is the one that is synced.
        file: u8,
        /// Where, bytes.
        offset: u64,
        /// It is durable when it has ended well.
        durable: bool,
        /// The data to write.
        data: Data,
    },
    /// `fdatasync`, or an equivalent.
    Sync,
    /// A range is made to read as zeroes, or is given back.
    Clear {
        /// How.
        how: Clear,
        /// Where, bytes.
        offset: u64,
        /// Bytes.
        len: u64,
    },
}

/// How a range is cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clear {
    /// Deallocated: reads as zeroes.
    Punch,
    /// Zeroed, and kept allocated.
    Zero,
    /// Discarded by the device, whose later content is unknown.
    Discard,
}

/// The data of a write.
#[derive(Clone, PartialEq, Eq)]
pub enum Data {
    /// These bytes.
    Bytes(Vec<u8>),
    /// As many zeroes.
    Zeroes(u64),
}

impl Data {
    /// Of these bytes; shorter if they are all zero.
    pub fn of(bytes: Vec<u8>) -> Data {
        match bytes.iter().all(|byte| *byte == 0) {
            true => Data::Zeroes(bytes.len() as u64),
            false => Data::Bytes(bytes),
        }
    }

    /// How many bytes.
    #[allow(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> u64 {
        match self {
            Data::Bytes(bytes) => bytes.len() as u64,
            Data::Zeroes(len) => *len,
        }
    }
}

impl std::fmt::Debug for Data {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Data::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Data::Zeroes(len) => write!(f, "{len} zeroes"),
        }
    }
}

impl Entry {
    /// Its bytes are appended.
    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Entry::Request { request, lane, kind, durable } => {
                to.extend([1, *kind as u8, u8::from(*durable)]);
                to.extend(lane.to_le_bytes());
                to.extend(request.to_le_bytes());
            }
            Entry::Answer { request, status } => {
                to.extend([2, *status]);
                to.extend(request.to_le_bytes());
            }
            Entry::Forgotten { request } => {
                to.push(3);
                to.extend(request.to_le_bytes());
            }
            Entry::Begin { operation, request, what } => {
                to.push(4);
                to.extend(operation.to_le_bytes());
                to.extend(request.to_le_bytes());
                what.encode(to);
            }
            Entry::End { operation, result } => {
                to.push(5);
                to.extend(operation.to_le_bytes());
                to.extend(result.to_le_bytes());
            }
            Entry::Complete { entries } => {
                to.push(6);
                to.extend(entries.to_le_bytes());
            }
        }
    }

    /// Of bytes that were read from `at`.
    pub(super) fn decode(bytes: &[u8], at: u64) -> Result<Entry, Error> {
        let mut bytes = Bytes { left: bytes, at };
        let entry = match bytes.byte()? {
            1 => {
                let kind = match bytes.byte()? {
                    0 => Purpose::Write,
                    1 => Purpose::Flush,
                    2 => Purpose::Discard,
                    3 => Purpose::WriteZeroes,
                    other => return Err(bytes.corrupt(format!("a request of kind {other}"))),
                };
                let (durable, lane) = (bytes.bool()?, u16::from_le_bytes(bytes.take()?));
                Entry::Request { request: bytes.number()?, lane, kind, durable }
            }
            2 => {
                let status = bytes.byte()?;
                Entry::Answer { request: bytes.number()?, status }
            }
            3 => Entry::Forgotten { request: bytes.number()? },
            4 => {
                let (operation, request) = (bytes.number()?, bytes.number()?);
                Entry::Begin { operation, request, what: Action::decode(&mut bytes)? }
            }
            5 => {
                let operation = bytes.number()?;
                Entry::End { operation, result: i64::from_le_bytes(bytes.take()?) }
            }
            6 => Entry::Complete { entries: bytes.number()? },
            other => return Err(bytes.corrupt(format!("an entry of kind {other}"))),
        };
        match bytes.left.len() {
            0 => Ok(entry),
            more => Err(bytes.corrupt(format!("an entry with {more} bytes too many"))),
        }
    }
}

impl Action {
    fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Action::Write { file, offset, durable, data } => {
                let is_zero = matches!(data, Data::Zeroes(_));
                to.extend([0, *file, u8::from(*durable), u8::from(is_zero)]);
                to.extend(offset.to_le_bytes());
                match data {
                    Data::Bytes(bytes) => to.extend(bytes),
                    Data::Zeroes(len) => to.extend(len.to_le_bytes()),
                }
            }
            Action::Sync => to.push(1),
            Action::Clear { how, offset, len } => {
                to.extend([2, *how as u8]);
                to.extend(offset.to_le_bytes());
                to.extend(len.to_le_bytes());
            }
        }
    }

    fn decode(bytes: &mut Bytes<'_>) -> Result<Action, Error> {
        let what = match bytes.byte()? {
            0 => {
                let (file, durable, is_zero) = (bytes.byte()?, bytes.bool()?, bytes.bool()?);
                let offset = bytes.number()?;
                let data = match is_zero {
                    true => Data::Zeroes(bytes.number()?),
                    false => Data::Bytes(std::mem::take(&mut bytes.left).to_vec()),
                };
                Action::Write { file, offset, durable, data }
            }
            1 => Action::Sync,
            2 => {
                let how = match bytes.byte()? {
                    0 => Clear::Punch,
                    1 => Clear::Zero,
                    2 => Clear::Discard,
                    other => {
                        return Err(bytes.corrupt(format!("a range cleared in the way {other}")));
                    }
                };
                Action::Clear { how, offset: bytes.number()?, len: bytes.number()? }
            }
            other => return Err(bytes.corrupt(format!("an operation of kind {other}"))),
        };
        match what.range() {
            Some(_) => Ok(what),
            None => Err(bytes.corrupt("an operation beyond the end of any file".to_owned())),
        }
    }

    /// First byte and the one behind the last; empty for a sync, none for a range beyond any file.
    pub fn range(&self) -> Option<(u64, u64)> {
        let (offset, len) = match self {
            Action::Write { offset, data, .. } => (*offset, data.len()),
            Action::Sync => (0, 0),
            Action::Clear { offset, len, .. } => (*offset, *len),
        };
        Some((offset, offset.checked_add(len).filter(|end| i64::try_from(*end).is_ok())?))
    }
}

/// Bytes that are taken one after the other.
struct Bytes<'a> {
    left: &'a [u8],
    at: u64,
}

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let Some((first, left)) = self.left.split_first_chunk::<N>() else {
            return Err(self.corrupt("an entry that is too short".to_owned()));
        };
        self.left = left;
        Ok(*first)
    }

    fn byte(&mut self) -> Result<u8, Error> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn bool(&mut self) -> Result<bool, Error> {
        match self.byte()? {
            byte @ (0 | 1) => Ok(byte == 1),
            other => Err(self.corrupt(format!("{other} instead of yes or no"))),
        }
    }

    fn number(&mut self) -> Result<u64, Error> {
        self.take().map(u64::from_le_bytes)
    }

    fn corrupt(&self, what: String) -> Error {
        Error::new(ErrorKind::Corrupt, self.at, format!("the record is damaged: {what}"))
    }
}
