//! The state's file: a line with the format's name and a checksum, then the state as JSON.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use super::VerifyState;
use crate::error::{Error, ErrorKind};

const FORMAT: &str = "vlverify/2";

fn head(body: &str) -> String {
    format!("{FORMAT} {:016x}", twox_hash::XxHash3_64::oneshot(body.as_bytes()))
}

impl VerifyState {
    /// Reads a state from a file.
    ///
    /// # Errors
    /// [`ErrorKind::State`] if it cannot be read or is not one.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let bytes = std::fs::read(path).map_err(|e| {
            let context = format!("{}: cannot read the verification state", path.display());
            Error::caused_by(ErrorKind::State, context, e)
        })?;
        parse(&bytes).ok_or_else(|| {
            let context = format!("{}: not a verification state, or a damaged one", path.display());
            Error::new(ErrorKind::State, context)
        })
    }

    /// Writes the state to a file, replacing an existing one, in one step.
    ///
    /// # Errors
    /// [`ErrorKind::State`] if it cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        // Never half a state: into a second file, then renamed over it.
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}.new", std::process::id()));
        let write = |mut file: File| {
            let body = serde_json::to_string(self)?;
            file.write_all(format!("{}\n{body}", head(&body)).as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&beside, path)
        };
        let written = File::create_new(&beside).and_then(|file| {
            write(file).inspect_err(|_| {
                let _ = std::fs::remove_file(&beside);
            })
        });
        written.map_err(|e| {
            let context = format!("{}: cannot write the verification state", path.display());
            Error::caused_by(ErrorKind::State, context, e)
        })
    }
}

fn parse(bytes: &[u8]) -> Option<VerifyState> {
    let (first, body) = std::str::from_utf8(bytes).ok()?.split_once('\n')?;
    let state: VerifyState =
        (first == head(body)).then(|| serde_json::from_str(body).ok()).flatten()?;
    (state.block > 0 && state.block.is_multiple_of(512)).then_some(state)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::model::Block;
    use super::*;

    #[test]
    fn damaged_state_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let mut blocks = vec![Block::default(); 100];
        blocks[7] = Block { durable: 1, floor: 2, ceiling: 3, issued: 4, acked: 2 };
        let state = VerifyState { run: 5, block: 4096, offset: 512, capacity: 1 << 30, blocks };
        state.save(&path).unwrap();
        assert_eq!(VerifyState::load(&path).unwrap(), state);
        let bytes = std::fs::read(&path).unwrap();
        for bad in [&bytes[..bytes.len() - 1], &bytes[..10], &[]] {
            std::fs::write(&path, bad).unwrap();
            assert_eq!(VerifyState::load(&path).unwrap_err().kind(), ErrorKind::State);
        }
        let mut flipped = bytes;
        flipped[200] ^= 1;
        std::fs::write(&path, flipped).unwrap();
        assert!(VerifyState::load(&path).is_err());
    }
}
