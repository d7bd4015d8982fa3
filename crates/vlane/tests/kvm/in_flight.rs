//! Whether the program under test tracks requests in flight for the front end (protocol feature INFLIGHT_SHMFD).
//!
//! Without it only split rings with one request at a time survive a kill under load: what was in flight is found by the used index alone
//! then. When every back end offers it, this file goes, with its two uses in `guest_kvm.rs`, where the answer is "yes".

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const GET_PROTOCOL_FEATURES: u32 = 15;
const INFLIGHT_SHMFD: u64 = 1 << 12;

/// Asks the back end at a socket.
pub fn is_tracked_by(socket: &Path) -> bool {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // Request, flags (version 1), size of what follows.
    let words = [GET_PROTOCOL_FEATURES, 1, 0];
    let message: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    stream.write_all(&message).unwrap();
    let mut answer = [0; 20];
    stream.read_exact(&mut answer).unwrap();
    let features = u64::from_ne_bytes(answer[12..].try_into().unwrap());
    features & INFLIGHT_SHMFD != 0
}
