//! A front end that waits while another one is served: both look healthy, and one of them hangs.

use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::acceptor::Acceptor;
use crate::session_report;
use crate::volume::Volume;

/// The time that a front end may wait before that is reported: one that only reads the
/// configuration is gone by then.
const MOMENT: Duration = Duration::from_secs(2);
/// The interval of looks after the state was reported.
const LATER: Duration = Duration::from_secs(30);

/// Says once, for each front end that keeps others waiting, that it does. A thread that sleeps
/// until a front end comes; it ends with the process, or when the socket is shut down.
pub(crate) fn watch(path: String, acceptor: Arc<Acceptor>, volume: Weak<Volume>) {
    let body = move || {
        let mut told = None;
        while look(&acceptor, true) == Seen::Somebody {
            std::thread::sleep(MOMENT);
            let Some(volume) = volume.upgrade() else { return };
            let Some(session) = volume.session() else { continue };
            drop(volume);
            if told == Some(session.number) {
                std::thread::sleep(LATER);
            } else if look(&acceptor, false) == Seen::Somebody {
                told = Some(session.number);
                tracing::warn!(
                    "{path}: another front end is waiting until this one hangs up: session {}, {}",
                    session.number,
                    session_report::process(session.pid)
                );
            }
        }
    };
    // Without the thread no wait is reported.
    let _ = std::thread::Builder::new().name("acceptor".to_owned()).spawn(body);
}

/// The state of the acceptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Nobody,
    /// A front end that has connected, or was admitted and waits.
    Somebody,
    /// The socket is shut down.
    Closed,
}

/// Looks for a front end at the acceptor; may wait for one.
fn look(acceptor: &Acceptor, waits: bool) -> Seen {
    loop {
        let is_awaited = acceptor.is_awaited();
        let limit = (is_awaited || !waits).then_some(Timespec { tv_sec: 0, tv_nsec: 0 });
        let admitted = acceptor.admitted();
        let mut fds =
            [PollFd::new(acceptor.socket(), PollFlags::IN), PollFd::new(&admitted, PollFlags::IN)];
        match rustix::event::poll(&mut fds, limit.as_ref()) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return Seen::Closed,
            Ok(_) => {}
        }
        let (knocks, came) = (fds[0].revents(), !fds[1].revents().is_empty());
        if came {
            acceptor.saw();
        }
        match () {
            () if !knocks.difference(PollFlags::IN).is_empty() => return Seen::Closed,
            () if is_awaited || !knocks.is_empty() => return Seen::Somebody,
            // An admitted front end is seen next time round, if it is still there.
            () if came || waits => {}
            () => return Seen::Nobody,
        }
    }
}
