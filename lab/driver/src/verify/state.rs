//! The state's file: a header of 56 bytes, 20 bytes per block, a checksum; all little-endian.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use super::VerifyState;
use super::model::Block;
use crate::error::{Error, ErrorKind};

const MAGIC: [u8; 8] = *b"vlverify";
const VERSION: u64 = 1;
const HEADER: usize = 56;
const ENTRY: usize = 20;

pub(super) fn save(state: &VerifyState, path: &Path) -> Result<(), Error> {
    let mut bytes = Vec::with_capacity(HEADER + ENTRY * state.blocks.len() + 8);
    bytes.extend(MAGIC);
    let count = state.blocks.len() as u64;
    for word in [VERSION, state.run, state.block.into(), state.offset, state.capacity, count] {
        bytes.extend(word.to_le_bytes());
    }
    for b in &state.blocks {
        for word in [b.durable, b.floor, b.ceiling, b.issued, b.acked] {
            bytes.extend(word.to_le_bytes());
        }
    }
    bytes.extend(twox_hash::XxHash3_64::oneshot(&bytes).to_le_bytes());
    // Never half a state: into a second file, then renamed over it.
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.new", std::process::id()));
    let failed = |e| {
        Error::caused_by(
            ErrorKind::State,
            format!("{}: cannot write the verification state", path.display()),
            e,
        )
    };
    let mut file = File::create_new(&beside).map_err(failed)?;
    let written = file.write_all(&bytes).and_then(|()| file.sync_all());
    written.and_then(|()| std::fs::rename(&beside, path)).map_err(|e| {
        let _ = std::fs::remove_file(&beside);
        failed(e)
    })
}

pub(super) fn load(path: &Path) -> Result<VerifyState, Error> {
    let bytes = std::fs::read(path).map_err(|e| {
        Error::caused_by(
            ErrorKind::State,
            format!("{}: cannot read the verification state", path.display()),
            e,
        )
    })?;
    parse(&bytes).ok_or_else(|| {
        let context = format!("{}: not a verification state, or a damaged one", path.display());
        Error::new(ErrorKind::State, context)
    })
}

fn parse(bytes: &[u8]) -> Option<VerifyState> {
    let (body, sum) = bytes.split_last_chunk::<8>()?;
    let (header, entries) = body.split_at_checked(HEADER)?;
    let words: Vec<u64> =
        header.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    if header[..8] != MAGIC
        || words[1] != VERSION
        || u64::from_le_bytes(*sum) != twox_hash::XxHash3_64::oneshot(body)
        || entries.len() as u64 != words[6].checked_mul(ENTRY as u64)?
    {
        return None;
    }
    let block =
        u32::try_from(words[3]).ok().filter(|size| *size > 0 && size.is_multiple_of(512))?;
    let blocks = entries.as_chunks::<ENTRY>().0.iter().map(|entry| {
        let word =
            |i: usize| u32::from_le_bytes([entry[i], entry[i + 1], entry[i + 2], entry[i + 3]]);
        Block {
            durable: word(0),
            floor: word(4),
            ceiling: word(8),
            issued: word(12),
            acked: word(16),
        }
    });
    Some(VerifyState {
        run: words[2],
        block,
        offset: words[4],
        capacity: words[5],
        blocks: blocks.collect(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn damaged_state_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let mut blocks = vec![Block::default(); 100];
        blocks[7] = Block { durable: 1, floor: 2, ceiling: 3, issued: 4, acked: 2 };
        let state = VerifyState { run: 5, block: 4096, offset: 512, capacity: 1 << 30, blocks };
        save(&state, &path).unwrap();
        assert_eq!(load(&path).unwrap(), state);
        let bytes = std::fs::read(&path).unwrap();
        for bad in [&bytes[..bytes.len() - 1], &bytes[..10], &[]] {
            std::fs::write(&path, bad).unwrap();
            assert_eq!(load(&path).unwrap_err().kind(), ErrorKind::State);
        }
        let mut flipped = bytes;
        flipped[200] ^= 1;
        std::fs::write(&path, flipped).unwrap();
        assert!(load(&path).is_err());
    }
}
