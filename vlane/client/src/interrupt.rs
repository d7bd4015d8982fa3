//! Ctrl-C: measurements end early, and what they started is taken down in order.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use vlane_error::program::{Context, Error, ErrorKind, Result};

/// The user's request to end. While one exists, the signals set the flag instead of ending the
/// process, so destructors run. Code that waits or loops calls [`Interrupt::check`].
#[derive(Debug)]
pub struct Interrupt {
    flag: Arc<AtomicBool>,
    handlers: Vec<SigId>,
}

impl Interrupt {
    /// Listens for SIGINT, SIGTERM and SIGHUP.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if signals cannot be handled.
    pub fn listen() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        let mut handlers = Vec::new();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let handler = signal_hook::flag::register(signal, Arc::clone(&flag));
            handlers.push(handler.context(ErrorKind::Io, || "cannot handle signals")?);
        }
        Ok(Self { flag, handlers })
    }

    /// The bare flag, for threads.
    pub fn flag(&self) -> &Arc<AtomicBool> {
        &self.flag
    }

    /// True if a signal came.
    pub fn is_raised(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// Ends a loop of callbacks once a signal came.
    pub fn going_on(&self) -> ControlFlow<()> {
        if self.is_raised() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// An error once a signal came.
    ///
    /// # Errors
    /// [`ErrorKind::Interrupted`].
    pub fn check(&self) -> Result<()> {
        match self.is_raised() {
            true => Err(Error::new(ErrorKind::Interrupted, "interrupted")),
            false => Ok(()),
        }
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for handler in self.handlers.drain(..) {
            signal_hook::low_level::unregister(handler);
        }
    }
}
