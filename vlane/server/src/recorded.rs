//! State of a volume's recording.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use tokio::sync::mpsc::WeakSender;
use vlane_error::locked;

/// A volume's recording, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    pub(crate) state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) active: Option<Active>,
    pub(crate) is_ending: bool,
}

#[derive(Debug)]
pub(crate) struct Active {
    /// Set to end it; dropped by its thread when it has ended.
    pub(crate) stop: Arc<AtomicBool>,
    /// The way to its reader.
    pub(crate) reader: WeakSender<Vec<u8>>,
}

impl Recording {
    /// Returns true if a trace is being recorded.
    pub(crate) fn is_running(&self) -> bool {
        let state = locked(&self.state);
        state.active.as_ref().is_some_and(Active::is_alive)
    }
}

impl Active {
    /// Returns true if its thread still runs.
    pub(crate) fn is_alive(&self) -> bool {
        Arc::strong_count(&self.stop) > 1
    }

    /// Returns true if it is about to end, because its reader has gone.
    pub(crate) fn is_left(&self) -> bool {
        self.reader.upgrade().is_none_or(|reader| reader.is_closed())
    }
}
