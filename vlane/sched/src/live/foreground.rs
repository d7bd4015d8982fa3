//! Narrows a back end's boosts to express completions, as long as its guest has a foreground.
//!
//! With boosts for all completions, the background's spend the loan that the foreground needs. With
//! boosts for express completions only, a guest without a foreground would have none, although its
//! volume has classes. So an express completion decides.

use std::sync::Arc;

use vlane_hint::{Board, Classes};

/// A foreground without a completion for so long counts as gone. Classes stay mixed for as long in
/// a lane: people make pauses.
const QUIET_NS: u64 = 10_000_000_000;

/// Arms a session's board as the guest's foreground comes and goes.
#[derive(Debug)]
pub(super) struct Foreground {
    board: Arc<Board>,
    /// When an express completion was last seen, unless the foreground counts as gone.
    seen: Option<u64>,
}

impl Foreground {
    /// Follows the foreground of a board with all classes armed.
    pub(super) const fn new(board: Arc<Board>) -> Self {
        Self { board, seen: None }
    }

    /// Looks if there was an express completion since the last look. `now` is `CLOCK_MONOTONIC`,
    /// ns.
    pub(super) fn look(&mut self, now: u64) {
        let was = self.seen.is_some();
        if self.board.take_express() {
            self.seen = Some(now);
        } else if self.seen.is_some_and(|seen| now.saturating_sub(seen) > QUIET_NS) {
            self.seen = None;
        }
        if self.seen.is_some() != was {
            self.board.arm(if was { Classes::ALL } else { Classes::EXPRESS });
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn quiet_foreground_gives_boosts_back() {
        let (board, _fd) = Board::create(1, true).unwrap();
        board.arm(Classes::ALL);
        let mut foreground = Foreground::new(Arc::clone(&board));
        let mut looks = |now| {
            foreground.look(now);
            board.armed()
        };
        assert_eq!(looks(1), Classes::ALL);
        for begin in [2, 3 * QUIET_NS] {
            board.note_express();
            assert_eq!(looks(begin), Classes::EXPRESS);
            assert_eq!(looks(begin + QUIET_NS), Classes::EXPRESS);
            assert_eq!(looks(begin + QUIET_NS + 1), Classes::ALL);
        }
    }
}
