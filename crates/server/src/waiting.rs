//! A front end that waits while another one is served: both look healthy, and one of them hangs.

use std::os::fd::OwnedFd;
use std::sync::Weak;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::said;
use crate::volume::Volume;

/// How long somebody may wait before that is told: a front end that looks at the configuration is gone by then.
const MOMENT: Duration = Duration::from_secs(2);

/// Says once, for each front end that keeps others waiting, that it does. A thread that sleeps until somebody knocks; it ends with the
/// process, or when the socket is shut down.
pub(crate) fn watch(path: String, socket: OwnedFd, volume: Weak<Volume>) {
    let body = move || {
        let mut told = None;
        while knocks(&socket, None) {
            std::thread::sleep(MOMENT);
            let Some(volume) = volume.upgrade() else { return };
            let Some(session) = volume.session() else { continue };
            if told != Some(session.number) && knocks(&socket, Some(Duration::ZERO)) {
                told = Some(session.number);
                tracing::warn!(
                    "{path}: another front end is waiting until this one hangs up: session {}, {}",
                    session.number,
                    said::process(session.pid)
                );
            }
        }
    };
    // Without it nothing is told.
    let _ = std::thread::Builder::new().name("door".to_owned()).spawn(body);
}

/// Waits until somebody knocks, at most for so long. Not, once the socket is shut down.
fn knocks(socket: &OwnedFd, within: Option<Duration>) -> bool {
    let within = within.map(|_| Timespec { tv_sec: 0, tv_nsec: 0 });
    loop {
        let mut fds = [PollFd::new(socket, PollFlags::IN)];
        match rustix::event::poll(&mut fds, within.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
            Ok(_) => return fds[0].revents() == PollFlags::IN,
        }
    }
}
