//! Descriptors or memory that are short for the moment: one way to wait for them, and to say so.
//!
//! A listener whose process has no descriptor left stays readable, so a loop around it would spin.
//! The system gives the same errors when a file in `/proc` is opened: they say no more about the
//! process in question.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;

/// The first pause after a refusal; each further one is twice as long, up to the longest.
const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(500);
/// The same shortage is not logged again sooner.
const TOLD_AGAIN: Duration = Duration::from_secs(60);

/// Says whether the system was short of descriptors or memory. Such an error says no more about the
/// requested object.
pub fn is_short(error: &io::Error) -> bool {
    let short = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS];
    short.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// The last descriptors, which work of many is not to take: the process's own are opened in them.
const RESERVE: u64 = 64;

/// Says whether a descriptor that was just opened is one of the last that this process may have.
/// The system gives the lowest free number, so all below it are in use.
pub fn is_scarce(fd: &impl AsFd) -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let number = fd.as_fd().as_raw_fd().unsigned_abs();
    limit.is_some_and(|limit| u64::from(number) + RESERVE.min(limit / 4) >= limit)
}

/// The error that the system gives when there is no descriptor left.
pub fn no_descriptor() -> io::Error {
    Errno::MFILE.into()
}

/// Paces attempts that the system refuses for the moment. It logs a shortage once, and its end.
#[derive(Debug)]
pub struct Shortage {
    /// The thing that does not go on, as the beginning of a sentence.
    what: String,
    pause: Duration,
    /// When the last attempt was refused; `None`: it was not.
    refused: Option<Instant>,
    /// The time when it was logged.
    told: Option<Instant>,
    /// Refusals that were not logged.
    untold: u64,
}

impl Shortage {
    /// The parameter `what` names the work that stops while descriptors are short, for messages:
    /// "/run/x: no connection is accepted".
    pub fn new(what: impl Into<String>) -> Shortage {
        Shortage { what: what.into(), pause: FIRST, refused: None, told: None, untold: 0 }
    }

    /// An attempt was refused at `now`; when to try the next one. Logs it, unless it was logged a
    /// short while ago.
    pub fn refused(&mut self, error: &io::Error, now: Instant) -> Instant {
        if let Some(line) = self.note(error, now) {
            tracing::warn!("{line}");
        }
        let pause = self.pause;
        self.pause = (self.pause * 2).min(LONGEST);
        self.refused = Some(now);
        now + pause
    }

    fn note(&mut self, error: &io::Error, now: Instant) -> Option<String> {
        if self.told.is_some_and(|told| now.saturating_duration_since(told) < TOLD_AGAIN) {
            self.untold += 1;
            return None;
        }
        self.told = Some(now);
        let more = match std::mem::take(&mut self.untold) {
            0 => String::new(),
            1 => " (once since this was last said)".to_owned(),
            untold => format!(" ({untold} times since this was last said)"),
        };
        let remedy = match is_short(error) {
            true => "; raise the limit (ulimit -n, or LimitNOFILE= of the service)",
            false => "",
        };
        Some(format!("{}: {error}{more}; it is tried again{remedy}", self.what))
    }

    /// An attempt was successful at `now`. Logs the end of a shortage that was logged.
    pub fn passed(&mut self, now: Instant) {
        let Some(refused) = self.refused else { return };
        // One success between refusals is no end.
        if now.saturating_duration_since(refused) >= LONGEST {
            tracing::info!("{}: that is over", self.what);
            (self.pause, self.refused) = (FIRST, None);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn error(errno: Errno) -> io::Error {
        errno.into()
    }

    #[test]
    fn other_errors_are_no_shortage() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS] {
            assert!(is_short(&error(errno)), "{errno}");
        }
        for errno in [Errno::NOENT, Errno::SRCH, Errno::ACCESS, Errno::AGAIN, Errno::CONNABORTED] {
            assert!(!is_short(&error(errno)), "{errno}");
        }
        assert!(!is_short(&io::ErrorKind::OutOfMemory.into()));
    }

    #[test]
    fn endless_refusals_are_logged_once_a_minute() {
        let mut shortage = Shortage::new("it is not accepted");
        let begin = Instant::now();
        let (mut now, mut attempts, mut lines) = (begin, 0, Vec::new());
        while now < begin + Duration::from_secs(150) {
            lines.extend(shortage.note(&error(Errno::MFILE), now));
            now = shortage.refused(&error(Errno::MFILE), now);
            attempts += 1;
        }
        assert!((290..400).contains(&attempts), "{attempts}");
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(
            lines[0].contains("it is not accepted: ") && lines[0].contains("ulimit -n"),
            "{lines:?}"
        );
        assert!(lines[1].contains("times since"), "{lines:?}");
    }

    #[test]
    fn success_between_refusals_ends_no_shortage() {
        let mut shortage = Shortage::new("it");
        let begin = Instant::now();
        let next = shortage.refused(&error(Errno::MFILE), begin);
        assert_eq!(next - begin, FIRST);
        shortage.passed(next);
        assert_eq!(shortage.refused(&error(Errno::MFILE), next) - next, 2 * FIRST);
        shortage.passed(next + LONGEST);
        let later = next + LONGEST;
        assert_eq!(shortage.refused(&error(Errno::MFILE), later) - later, FIRST);
    }
}
