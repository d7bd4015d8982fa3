//! Reports the program's state to a service manager: systemd's protocol of datagrams to the socket
//! that `NOTIFY_SOCKET` names (sd_notify(3)). Without that variable no datagram is sent.

use std::time::Duration;

use sd_notify::NotifyState;

/// It listens; `status` says what `systemctl status` shows.
pub fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// It cannot begin yet, which is no reason to end it for the next `extension`.
pub fn waiting(status: &str, extension: Duration) {
    let extension = u32::try_from(extension.as_micros()).unwrap_or(u32::MAX);
    send(&[NotifyState::Status(status), NotifyState::ExtendTimeoutUsec(extension)]);
}

/// It looks at what it serves again; [`ready`] ends that.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!("the service manager is not notified: no clock: {error}"),
    }
}

/// It ends.
pub fn stopping() {
    send(&[NotifyState::Stopping]);
}

fn send(states: &[NotifyState<'_>]) {
    // A manager that does not listen is no reason not to serve.
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("NOTIFY_SOCKET: the service manager cannot be notified: {error}");
    }
}
