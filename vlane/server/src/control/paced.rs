//! The control socket's listener. It accepts a limited number of connections, so that a client with
//! the right to ask takes no descriptors from the guest. When descriptors are short it waits, as
//! all sockets of the program do, and says so once.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::SocketAddr;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use vlane_socket::Shortage;

/// Connections at a time; a further one is hung up on at once.
const CONNECTIONS: usize = 64;

/// A listener that continues after each error.
#[derive(Debug)]
pub(super) struct Paced {
    listener: UnixListener,
    path: String,
    places: Arc<Semaphore>,
    shortage: Shortage,
}

/// A connection that has a place.
#[derive(Debug)]
pub(super) struct Placed {
    stream: UnixStream,
    _place: OwnedSemaphorePermit,
}

impl Paced {
    /// `path` is the socket's, for messages.
    pub(super) fn new(listener: UnixListener, path: &std::path::Path) -> Paced {
        let path = path.display().to_string();
        let shortage = Shortage::new(format!("{path}: no connection is accepted"));
        Paced { listener, path, places: Arc::new(Semaphore::new(CONNECTIONS)), shortage }
    }
}

impl axum::serve::Listener for Paced {
    type Io = Placed;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Placed, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    self.shortage.passed(Instant::now());
                    match Arc::clone(&self.places).try_acquire_owned() {
                        Ok(place) => return (Placed { stream, _place: place }, address),
                        Err(_) => tracing::warn!(
                            "{}: a connection is refused: there are {CONNECTIONS} already; end \
                             those that are not used",
                            self.path
                        ),
                    }
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

impl AsyncRead for Placed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Placed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
