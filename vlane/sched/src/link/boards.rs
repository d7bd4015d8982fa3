//! The event loop's half of the link: the lanes' events, and the limits on how often they are read.
//!
//! A back end that writes its eventfd or its board in a loop must not occupy the event loop, which
//! is real-time. So each session, and each user's sessions together, have an allowance of looks and
//! marks. A session that has used it up is not woken for any more: it is looked at when it has
//! earned the next look. No event is lost by that, because a board counts: events are only heard
//! later.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{Timespec, epoll};
use rustix::io::{Errno, ReadWriteFlags};
use vlane_hint::{Board, BoardReader, Classes, Mark};

use super::{EVENTS, SessionId, io, watch};
use crate::Result;
use crate::vehicle::Counter;

/// Looks and marks per second of one session, and of all sessions of one user other than root. A
/// look takes the loop about 5 us, a boost 15.
const PER_SESSION: u64 = 5_000;
const PER_USER: u64 = 20_000;
/// Unused allowance is kept for so long: a burst.
const KEPT_NS: u64 = 50_000_000;
/// A session that has used up what it may is left alone at least for so long.
const PAUSE_NS: u64 = 1_000_000;
/// A session whose eventfd the system cannot watch, for want of memory for example, is looked at so
/// often.
const UNWATCHED_NS: u64 = 20_000_000;
/// At most so many boards are read at each wake-up, instead of asking the system which ones have
/// events.
const SCANNED: usize = 64;
/// Lanes that are looked at for the price of one mark.
const LANES: u64 = 64;
const SECOND_NS: u64 = 1_000_000_000;

/// An allowance to spend, earned again by time.
#[derive(Debug, Clone, Copy)]
struct Allowance {
    rate: u64,
    left: i64,
    at: Option<u64>,
}

impl Allowance {
    const fn new(rate: u64) -> Self {
        Self { rate, left: 0, at: None }
    }

    fn most(&self) -> i64 {
        i64::try_from(self.rate * KEPT_NS / SECOND_NS).unwrap_or(i64::MAX)
    }

    /// Pays, or returns the time until which the allowance is used up.
    fn spend(&mut self, cost: u64, now: u64) -> Option<u64> {
        let most = self.most();
        let passed = self.at.map_or(KEPT_NS, |at| now.saturating_sub(at));
        let earned =
            i64::try_from(u128::from(passed) * u128::from(self.rate) / u128::from(SECOND_NS));
        let earned = earned.unwrap_or(i64::MAX);
        // A time too short to earn anything counts the next time.
        if earned > 0 || self.at.is_none() {
            self.at = Some(now);
        }
        self.left = self.left.saturating_add(earned).min(most).saturating_sub_unsigned(cost);
        let owed = self.left.min(0).unsigned_abs();
        (self.left <= 0).then(|| now + (owed * SECOND_NS / self.rate).max(PAUSE_NS))
    }

    /// Returns true if it is as full as a new one.
    fn is_whole(&mut self, now: u64) -> bool {
        self.spend(0, now).is_none() && self.left >= self.most()
    }
}

/// One session's channel: its board, and the eventfd that its lanes write.
#[derive(Debug)]
pub struct SessionBoard {
    user: u32,
    wake: OwnedFd,
    watch: BoardReader,
    allowance: Allowance,
    /// True if it is not woken for at present.
    paused: bool,
}

impl SessionBoard {
    pub(super) const fn new(user: u32, wake: OwnedFd, watch: BoardReader) -> Self {
        Self { user, wake, watch, allowance: Allowance::new(PER_SESSION), paused: false }
    }

    /// The back end's user.
    pub const fn user(&self) -> u32 {
        self.user
    }

    /// Returns true if any of the volume's requests may be express, by the back end's own account.
    pub fn has_express(&self) -> bool {
        self.watch.has_express()
    }

    /// Its board.
    pub const fn board(&self) -> &Arc<Board> {
        self.watch.board()
    }

    /// As [`SessionBoards::arm`].
    pub fn arm(&self, classes: Classes) {
        self.watch.arm(classes);
    }

    /// Makes the eventfd unreadable. Never waits, even if the back end, which has the same file
    /// open, changed its mode or its count.
    fn calm(&self) {
        let (mut count, current) = ([0; 8], u64::MAX);
        let _ = rustix::io::preadv2(
            &self.wake,
            &mut [IoSliceMut::new(&mut count)],
            current,
            ReadWriteFlags::NOWAIT,
        );
    }
}

impl Drop for SessionBoard {
    fn drop(&mut self) {
        self.watch.arm(Classes::NONE);
    }
}

/// All sessions' boards.
#[derive(Debug)]
pub struct SessionBoards {
    epoll: OwnedFd,
    boards: BTreeMap<u64, SessionBoard>,
    /// Sessions with marks to collect.
    ready: BTreeSet<u64>,
    users: HashMap<u32, Allowance>,
    /// Paused sessions, each with the end of its pause.
    until: BTreeSet<(u64, u64)>,
    marks: Vec<(SessionId, u16, Mark)>,
    pauses: u64,
}

impl AsFd for SessionBoards {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl SessionBoards {
    pub(super) fn new() -> Result<Self> {
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io("no epoll".to_owned()))?;
        Ok(Self {
            epoll,
            boards: BTreeMap::new(),
            ready: BTreeSet::new(),
            users: HashMap::new(),
            until: BTreeSet::new(),
            marks: Vec::new(),
            pauses: 0,
        })
    }

    /// Listens to one more session. A session that the system cannot watch for the moment is looked
    /// at later, and then retried.
    pub fn add(&mut self, session: SessionId, board: SessionBoard) {
        if watch(&self.epoll, &board.wake, session.0).is_err() {
            self.until.insert((vlane_hint::now() + UNWATCHED_NS, session.0));
        }
        self.boards.insert(session.0, board);
        // It asks for wake-ups by looking.
        self.ready.insert(session.0);
    }

    /// Does not listen to it any more, and switches its board off.
    pub fn remove(&mut self, session: SessionId) {
        // Its eventfd is closed here, but the back end still has it: taken out by hand.
        if let Some(board) = self.boards.remove(&session.0) {
            let _ = epoll::delete(&self.epoll, &board.wake);
        }
        self.ready.remove(&session.0);
    }

    /// Lets a session's lanes mark completions of these classes from now on; [`Classes::NONE`]: no
    /// longer.
    pub fn arm(&mut self, session: SessionId, classes: Classes) {
        if let Some(board) = self.boards.get(&session.0) {
            board.arm(classes);
            self.ready.insert(session.0);
        }
    }

    /// The next time for [`SessionBoards::look`], unless the descriptor is readable before;
    /// `CLOCK_MONOTONIC`, ns.
    pub fn deadline(&self) -> Option<u64> {
        self.until.first().map(|&(until, _)| until)
    }

    /// Finds the sessions with new events by their boards. Leaves the descriptor readable.
    ///
    /// Asks the system only if there are many sessions, or if no board has events. A session that
    /// has written its eventfd without an event is charged for the look then.
    ///
    /// # Errors
    /// The system refuses.
    pub fn scan(&mut self, now: u64) -> Result<()> {
        if self.boards.len() <= SCANNED {
            let is_marked = |board: &SessionBoard| !board.paused && board.watch.is_marked();
            let marked = self.boards.iter().filter(|(_, board)| is_marked(board));
            self.ready.extend(marked.map(|(&id, _)| id));
        }
        if self.ready.is_empty() || self.until.first().is_some_and(|&(until, _)| until <= now) {
            self.look(now)?;
        }
        Ok(())
    }

    /// Finds the sessions with new events by their eventfds, which are unreadable then. Does not
    /// wait.
    ///
    /// # Errors
    /// The system refuses.
    pub fn look(&mut self, now: u64) -> Result<()> {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; EVENTS];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let woken = match epoll::wait(&self.epoll, &mut events, Some(&at_once)) {
            Ok((woken, _)) => woken,
            Err(Errno::INTR) => return Ok(()),
            Err(errno) => return Err(io("cannot wait for back ends".to_owned())(errno)),
        };
        for event in woken {
            let id = event.data.u64();
            if let Some(board) = self.boards.get(&id) {
                board.calm();
                self.ready.insert(id);
            }
        }
        while let Some(&(until, id)) = self.until.first()
            && until <= now
        {
            self.until.pop_first();
            // It may be gone.
            let Some(board) = self.boards.get_mut(&id) else { continue };
            board.paused = false;
            board.calm();
            // A refusal for one is no reason not to hear the others, nor it.
            if !matches!(watch(&self.epoll, &board.wake, id), Ok(()) | Err(Errno::EXIST)) {
                self.until.insert((now + UNWATCHED_NS, id));
            }
            self.ready.insert(id);
        }
        Ok(())
    }

    /// Returns the lanes' events since the last call, of those sessions that
    /// [`SessionBoards::look`] found: session, lane, mark. `now` is `CLOCK_MONOTONIC`, ns. Take all
    /// of it: the rest is not returned again.
    pub fn collect(&mut self, now: u64) -> impl Iterator<Item = (SessionId, u16, Mark)> + '_ {
        self.marks.clear();
        while let Some(id) = self.ready.pop_first() {
            let Some(board) = self.boards.get_mut(&id).filter(|board| !board.paused) else {
                continue;
            };
            let before = self.marks.len();
            let told = board.watch.collect(now).map(|(lane, mark)| (SessionId(id), lane, mark));
            self.marks.extend(told);
            let marks = (self.marks.len() - before) as u64;
            let cost = 1 + marks + u64::from(board.watch.lanes()) / LANES;
            let mut pause = board.allowance.spend(cost, now);
            if board.user != 0 {
                let of_user =
                    self.users.entry(board.user).or_insert_with(|| Allowance::new(PER_USER));
                pause = pause.max(of_user.spend(cost, now));
            }
            if let Some(until) = pause {
                // Out of the set, so that later writes to its eventfd are not heard.
                let _ = epoll::delete(&self.epoll, &board.wake);
                board.paused = true;
                self.until.insert((until, id));
                self.pauses += 1;
            }
        }
        if self.users.len() > self.boards.len() {
            self.users.retain(|_, allowance| !allowance.is_whole(now));
        }
        self.marks.drain(..)
    }

    /// Its counters, for people.
    pub fn counters(&self) -> Vec<Counter> {
        vec![Counter { name: "back_ends_paused", value: self.pauses }]
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn board(user: u32) -> (SessionBoard, OwnedFd) {
        let (board, fd) = Board::create(1, false).unwrap();
        drop(board);
        let watch = BoardReader::new(Board::open(fd.as_fd(), 1).unwrap());
        let flags = rustix::event::EventfdFlags::NONBLOCK | rustix::event::EventfdFlags::CLOEXEC;
        let wake = rustix::event::eventfd(0, flags).unwrap();
        let others = wake.try_clone().unwrap();
        (SessionBoard::new(user, wake, watch), others)
    }

    /// Sessions of these users all write their eventfds whenever the loop looks, every 10 us; how
    /// often it finds one in a second.
    fn looks(users: &[u32]) -> u64 {
        let mut boards = SessionBoards::new().unwrap();
        let mut wakes = Vec::new();
        for (n, &user) in (1..).zip(users) {
            let (board, wake) = board(user);
            boards.add(SessionId(n), board);
            wakes.push(wake);
        }
        let mut found = 0;
        for step in 0..100_000_u64 {
            let now = 7 * SECOND_NS + step * 10_000;
            for wake in &wakes {
                rustix::io::write(wake, &1_u64.to_ne_bytes()).unwrap();
            }
            boards.look(now).unwrap();
            found += boards.ready.len() as u64;
            assert_eq!(boards.collect(now).count(), 0);
        }
        found
    }

    #[test]
    fn flooding_session_is_heard_at_limited_rate() {
        let most = PER_SESSION + PER_SESSION * KEPT_NS / SECOND_NS + 1;
        let found = looks(&[1000]);
        assert!(found <= most && found > PER_SESSION / 2, "{found}");
    }

    #[test]
    fn users_sessions_share_one_rate_limit() {
        let most = PER_USER + PER_USER * KEPT_NS / SECOND_NS + 20;
        let found = looks(&[1000; 20]);
        assert!(found <= most && found > PER_USER / 4, "{found}");
    }

    #[test]
    fn events_during_a_pause_are_heard_later() {
        let (_board, fd) = Board::create(1, false).unwrap();
        let flags = rustix::event::EventfdFlags::NONBLOCK | rustix::event::EventfdFlags::CLOEXEC;
        let wake = std::sync::Arc::new(rustix::event::eventfd(0, flags).unwrap());
        let watch = BoardReader::new(Board::open(fd.as_fd(), 1).unwrap());
        let mut boards = SessionBoards::new().unwrap();
        boards.add(SessionId(1), SessionBoard::new(5, wake.try_clone().unwrap(), watch));
        boards.arm(SessionId(1), Classes::ALL);
        let begin = vlane_hint::now();
        // Flood until its allowance is used up.
        let mut now = begin;
        while boards.deadline().is_none() {
            rustix::io::write(&wake, &1_u64.to_ne_bytes()).unwrap();
            boards.look(now).unwrap();
            boards.collect(now).count();
            now += 1000;
        }
        // As a lane does it: one event, which came at 1.
        let words = vlane_memory::shared::SharedWords::open(fd.as_fd(), 4096).unwrap();
        for (word, value) in [(64, 1), (65, 1)] {
            words.word(word).unwrap().store(value, std::sync::atomic::Ordering::SeqCst);
        }
        rustix::io::write(&wake, &1_u64.to_ne_bytes()).unwrap();
        boards.look(now).unwrap();
        assert_eq!(boards.collect(now).count(), 0, "heard in the pause");
        let now = boards.deadline().unwrap();
        boards.look(now).unwrap();
        assert_eq!(boards.collect(now).count(), 1);
    }
}
