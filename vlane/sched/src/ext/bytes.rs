//! The C structs of the BPF program as bytes: written and read in order, without pointers.

use crate::{Error, ErrorKind, Result};

/// Reads a struct from its start.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A struct, which has to have this size: another one means that program and object are of
    /// different versions.
    pub(crate) fn new(bytes: &'a [u8], what: &str, size: usize) -> Result<Self> {
        if bytes.len() == size {
            return Ok(Self { bytes });
        }
        Err(Error::new(
            ErrorKind::Protocol,
            format!("sched_ext: the BPF program's {what} has {} bytes, not {size}", bytes.len()),
        ))
    }

    pub(crate) fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        if let Some((first, rest)) = self.bytes.split_first_chunk() {
            (out, self.bytes) = (*first, rest);
        }
        out
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }

    pub(crate) fn i64(&mut self) -> i64 {
        i64::from_ne_bytes(self.take())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    pub(crate) fn i32(&mut self) -> i32 {
        i32::from_ne_bytes(self.take())
    }

    /// A string in an array of `N` characters.
    pub(crate) fn text<const N: usize>(&mut self) -> String {
        let bytes: [u8; N] = self.take();
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(N);
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }
}

/// Numbers side by side, as C lays them out when each is as large as the one before or smaller.
pub(crate) fn of_u64s(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

pub(crate) fn of_u32s(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}
