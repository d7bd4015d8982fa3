//! The end of `vlane serve`, which does not wait for ever: storage that hangs lets no request be
//! answered and no data be written back.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vlane_engine::file::FileEngine;
use vlane_error::counted;
use vlane_server::{Listener, Vanishing, Volume};

use crate::{logging, notify};

/// How long those at the control socket may take to leave: more than it gives them itself. The
/// storage has no part in it.
const CLOSING: Duration = Duration::from_secs(10);
/// Requests that are named at the end; of more there is only their number.
const NAMED: usize = 20;

/// How far the end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// No end was requested.
    Serving,
    /// The end was requested: requests in flight are waited for.
    Draining,
    /// Everything is answered; those at the control socket get the rest of what they read. The
    /// storage has no part in it.
    Closing,
    /// Everything is answered and is being written to the device.
    WritingBack,
    /// The end is complete: no further step can hang.
    Done,
}

/// Watches over the end.
#[derive(Debug, Clone)]
pub(super) struct Ending {
    /// With the moment when the stage began.
    stage: Arc<(Mutex<(Stage, Instant)>, Condvar)>,
    /// How long a stage may take.
    limit: Duration,
}

/// Objects that a process tidies up when it cannot wait longer.
pub(super) struct Remains {
    pub(super) name: String,
    pub(super) volume: Arc<Volume>,
    pub(super) image: Option<Arc<FileEngine>>,
    pub(super) listener: Arc<Listener>,
    pub(super) sockets: Arc<Vanishing>,
    /// Removes the control sockets.
    pub(super) control: Box<dyn Fn() + Send>,
}

impl Ending {
    pub(super) fn new(limit: Duration) -> Self {
        let stage = Arc::new((Mutex::new((Stage::Serving, Instant::now())), Condvar::new()));
        Self { stage, limit }
    }

    /// The end has come this far; from now on the time of the stage counts.
    pub(super) fn enter(&self, next: Stage) {
        let (stage, changed) = &*self.stage;
        let mut stage = vlane_error::locked(stage);
        // The end may come from two sides, and only goes forward.
        if stage.0 < next {
            *stage = (next, Instant::now());
            changed.notify_all();
        }
    }

    /// When the end is asked for, `stop` asks the session for it, which may take for ever; the
    /// process ends all the same. Both have threads, made now: later there may be none.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(super) fn guard(
        &self,
        remains: Remains,
        stop: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let ending = self.clone();
        let stopping = move || {
            ending.wait_for_its_beginning();
            // The cause is a signal, or a lost write.
            notify::stopping();
            stop();
        };
        thread("stop").spawn(stopping)?;
        let ending = self.clone();
        let watching = move || {
            if let Some(stage) = ending.wait() {
                ending.give_up(stage, &remains);
            }
        };
        thread("deadline").spawn(watching).map(drop)
    }

    fn wait_for_its_beginning(&self) {
        let (stage, changed) = &*self.stage;
        let now = vlane_error::locked(stage);
        drop(changed.wait_while(now, |(stage, _)| *stage == Stage::Serving));
    }

    /// Waits for the end; the stage that took too long, if one did.
    fn wait(&self) -> Option<Stage> {
        let (stage, changed) = &*self.stage;
        let mut now = vlane_error::locked(stage);
        loop {
            let (stage, since) = *now;
            now = match stage {
                Stage::Done => return None,
                Stage::Serving => changed.wait(now).unwrap_or_else(PoisonError::into_inner),
                Stage::Draining | Stage::Closing | Stage::WritingBack => {
                    let limit = if stage == Stage::Closing { CLOSING } else { self.limit };
                    let left = limit.saturating_sub(since.elapsed());
                    if left.is_zero() {
                        return Some(stage);
                    }
                    changed.wait_timeout(now, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn give_up(&self, stage: Stage, remains: &Remains) {
        let Remains { name, volume, image, listener, sockets, control } = remains;
        let limit = self.limit;
        if stage == Stage::Closing {
            tracing::error!(
                "{name}: cannot be ended in order: everything is answered, but the control socket \
                 did not end within {CLOSING:?}; unflushed data may be lost if the host fails"
            );
        } else if stage == Stage::WritingBack || volume.unanswered().is_empty() {
            tracing::error!(
                "{name}: cannot be ended in order: everything is answered, but it was not written \
                 to the device within {limit:?} (--stop-timeout); unflushed data may be lost if \
                 the host fails"
            );
        } else {
            let left = volume.unanswered();
            tracing::error!(
                "{name}: cannot be ended in order: {} {} unanswered after {limit:?} \
                 (--stop-timeout)",
                counted(left.len(), "request"),
                if left.len() == 1 { "is" } else { "are" }
            );
            for one in left.iter().take(NAMED) {
                tracing::error!("{name}: unanswered: {one}");
            }
            if left.len() > NAMED {
                tracing::error!("{name}: unanswered: {} more", left.len() - NAMED);
            }
        }
        if let Err(lost) = super::astray::at_the_end(name, image.as_ref()) {
            tracing::error!("{lost}");
        }
        tracing::error!(
            "{name}: ends now; threads that are inside a system call of the storage keep the \
             process, and the image locked, until the storage answers"
        );
        sockets.end();
        control();
        listener.abandon();
        logging::tell_left_out();
        std::process::exit(1);
    }
}
