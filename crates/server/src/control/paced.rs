//! The control socket's listener when descriptors are short: it waits, as all sockets of the
//! program do, and says so once.

use std::io;
use std::time::Instant;

use tokio::net::unix::SocketAddr;
use tokio::net::{UnixListener, UnixStream};
use vlane_socket::Shortage;

/// A listener that goes on after each error.
#[derive(Debug)]
pub(super) struct Paced {
    listener: UnixListener,
    shortage: Shortage,
}

impl Paced {
    /// `path` is the socket's, for messages.
    pub(super) fn new(listener: UnixListener, path: &std::path::Path) -> Paced {
        Paced { listener, shortage: Shortage::new(format!("{}: no connection is accepted", path.display())) }
    }
}

impl axum::serve::Listener for Paced {
    type Io = UnixStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (UnixStream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok(accepted) => {
                    self.shortage.passed(Instant::now());
                    return accepted;
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    let until = self.shortage.refused(&error, Instant::now());
                    tokio::time::sleep_until(until.into()).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}
