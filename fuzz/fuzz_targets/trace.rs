//! A trace from somebody else: read to its end or its first error, never more; and what was read is
//! written as it was.
//!
//! The input is a header and entries with the right magic and checksums, and then damage: of random
//! bytes nearly all are refused at the first one.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use vlane_trace::{Header, Reader, Writer};

#[derive(Debug, Arbitrary)]
struct Input {
    started: u64,
    sectors: u64,
    lanes: u16,
    hashes: bool,
    name: String,
    entries: Vec<([u8; 46], u64)>,
    /// Bytes that are changed, and what they become.
    damage: Vec<(u16, u8)>,
    cut: Option<u16>,
}

/// The checksum, as the format's page describes it: in the simplest way.
fn checksum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) | u32::from(pair[1]) << 8).sum();
    let sum = (sum >> 16) + (sum & 0xffff);
    !(((sum >> 16) + (sum & 0xffff)) as u16)
}

fn bytes(input: &Input) -> Vec<u8> {
    let Input { started, sectors, lanes, hashes, ref name, .. } = *input;
    let header = Header { started, sectors, block_size: 512, lanes, hashes, name: name.clone() };
    let mut bytes = header.encode();
    for (fields, hash) in &input.entries {
        let mut entry = fields.to_vec();
        // Nearly always a known kind, so that there is something to read.
        entry[0] = if entry[0] < 240 { entry[0] % 7 } else { entry[0] };
        entry.extend([0, 0]);
        if hashes {
            entry.extend(hash.to_le_bytes());
        }
        let check = checksum(&entry);
        entry[46..48].copy_from_slice(&check.to_le_bytes());
        bytes.extend(entry);
    }
    for (at, value) in &input.damage {
        if let Some(byte) = bytes.get_mut(usize::from(*at)) {
            *byte = *value;
        }
    }
    bytes.truncate(input.cut.map_or(usize::MAX, usize::from));
    bytes
}

fuzz_target!(|input: Input| {
    let bytes = bytes(&input);
    let Ok(mut reader) = Reader::new(&bytes[..]) else { return };
    let mut writer = Writer::new(Vec::new(), reader.header().clone()).unwrap();
    let mut error = None;
    for entry in &mut reader {
        assert!(error.is_none(), "an entry after an error");
        match entry {
            Ok(entry) => writer.write(&entry).unwrap(),
            Err(e) => error = Some(e),
        }
    }
    if let Some(error) = &error {
        assert_eq!(error.offset(), reader.offset(), "{error}");
    }
    assert!(reader.offset() <= bytes.len() as u64);
    // The same again from what was written: as many entries, and the same bytes.
    let entries = writer.entries();
    let again = writer.finish().unwrap();
    let mut reader = Reader::new(&again[..]).unwrap();
    let mut writer = Writer::new(Vec::new(), reader.header().clone()).unwrap();
    (&mut reader).map(Result::unwrap).for_each(|entry| writer.write(&entry).unwrap());
    assert!(reader.is_complete());
    assert_eq!(writer.entries(), entries);
    assert_eq!(writer.finish().unwrap(), again);
});
