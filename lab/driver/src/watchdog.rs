//! A limit on the time that a back end may take to answer.
//!
//! The `vhost` crate reads until it has a whole message, a receive timeout of the socket
//! notwithstanding. So a thread cuts the connection when the time is over, and the read ends.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::error::{Error, ErrorKind};

/// The time after which a missing answer is reported.
const TELL: Duration = Duration::from_secs(2);

/// Does some work on a connection; fails with [`ErrorKind::Timeout`] if it takes longer than
/// `timeout`.
pub(crate) fn within<T>(
    timeout: Duration,
    socket: &Path,
    stream: &UnixStream,
    work: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    let fired = AtomicBool::new(false);
    let peer = rustix::net::sockopt::socket_peercred(stream).ok();
    let pid = peer.map(|peer| format!(" (pid {})", peer.pid.as_raw_nonzero())).unwrap_or_default();
    let result = std::thread::scope(|scope| {
        let (finished, signal) = channel::<()>();
        let (fired, pid) = (&fired, &pid);
        scope.spawn(move || {
            if signal.recv_timeout(TELL.min(timeout)) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            tracing::warn!(
                "{}: the back end{pid} does not answer yet; it hangs, or serves another front \
                 end. Waiting for it {} s in all",
                socket.display(),
                timeout.as_secs_f64()
            );
            if signal.recv_timeout(timeout.saturating_sub(TELL)) == Err(RecvTimeoutError::Timeout) {
                fired.store(true, Ordering::Relaxed);
                let _ = stream.shutdown(Shutdown::Both);
            }
        });
        let result = work();
        drop(finished);
        result
    });
    match result {
        // The cause would be the connection that was cut here.
        Err(_) if fired.load(Ordering::Relaxed) => ErrorKind::Timeout.fail(format!(
            "{}: the back end{pid} has not answered for {} s: is it stopped, or does it serve \
                 another front end?",
            socket.display(),
            timeout.as_secs_f64()
        )),
        result => result,
    }
}
