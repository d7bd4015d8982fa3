//! A server that takes a connection and does not answer in time.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// Says in words that the server at the other end has not answered; `None` for an error of another
/// kind.
///
/// A read or write that runs into its time limit fails with EAGAIN, an error without a hint for
/// people. The parameter `whom` is the server in words, as "the server".
pub fn unanswered(
    stream: impl AsFd,
    error: &io::Error,
    whom: &str,
    after: Duration,
) -> Option<String> {
    if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
        return None;
    }
    let peer = rustix::net::sockopt::socket_peercred(stream).ok();
    let pid = peer.map(|peer| format!(" (pid {})", peer.pid.as_raw_nonzero())).unwrap_or_default();
    let after = match after.as_secs() {
        0 => format!("{} ms", after.as_millis()),
        seconds => format!("{seconds} s"),
    };
    Some(format!("{whom}{pid} has not answered for {after}: is it stopped?"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn silent_server_is_named_with_its_process() {
        let (mut here, _there) = UnixStream::pair().unwrap();
        let patience = Duration::from_millis(20);
        here.set_read_timeout(Some(patience)).unwrap();
        let error = here.read(&mut [0]).unwrap_err();
        let said = unanswered(&here, &error, "the server", patience).unwrap();
        let expected = format!(
            "the server (pid {}) has not answered for 20 ms: is it stopped?",
            std::process::id()
        );
        assert_eq!(said, expected);
        assert_eq!(
            unanswered(&here, &io::ErrorKind::BrokenPipe.into(), "the server", patience),
            None
        );
    }
}
