//! The event loop's end of the back ends: their lanes' events, heard at once, and the findings of
//! the thread of [`Backends`](super::backends::Backends).

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, epoll, eventfd};
use vlane_hint::Mark as LaneMark;
use vlane_socket::SocketFile;

use super::source::{Mark, Source};
use crate::link::{SessionBoard, SessionBoards, SessionId};
use crate::thread::Thread;
use crate::vehicle::Counter;
use crate::{Error, ErrorKind, Result};

/// The vCPUs that join before events have their turn again: each takes some system calls per
/// thread.
const JOINS: usize = 2;

/// Orders to the loop.
#[derive(Debug)]
pub(super) enum Order {
    /// A session that reports I/O.
    SessionBoard(SessionId, Box<SessionBoard>),
    /// Does not any more.
    Gone(SessionId),
    /// The owners of the lanes' marks.
    Lanes(HashMap<(SessionId, u16), u64>),
    /// For the daemon, and the threads of the vCPU that it is about. Both in one: what the loop
    /// hears of apart, it may take apart.
    Mark(Mark, Vec<Arc<Thread>>),
    /// No more orders will come.
    Failed(Error),
}

/// The thread's end.
#[derive(Debug)]
pub(super) struct Orders {
    sender: Sender<Order>,
    wakeup: Arc<OwnedFd>,
    /// An order was sent since the wakeup was written.
    sent: Cell<bool>,
}

impl Orders {
    /// Heard when the wakeup is written. Unheard when the loop has ended.
    pub(super) fn send(&self, order: Order) {
        let _ = self.sender.send(order);
        self.sent.set(true);
    }

    /// Wakes the loop, if there are orders for it.
    pub(super) fn ring(&self) {
        if self.sent.take() {
            let _ = rustix::io::write(&*self.wakeup, &1_u64.to_ne_bytes());
        }
    }

    pub(super) fn fail(&self, error: Error) {
        self.send(Order::Failed(error));
        self.ring();
    }
}

/// Back ends' events, as a source. Dropping it ends their thread, and removes their socket.
#[derive(Debug)]
pub struct BackEndEvents {
    boards: SessionBoards,
    orders: Receiver<Order>,
    stop: Arc<OwnedFd>,
    /// The epoll set of boards and wakeup. Both are never read: each write tells anew.
    epoll: OwnedFd,
    lanes: HashMap<(SessionId, u16), u64>,
    /// Of the marks that came last, in their order: one token may be among them twice.
    opened: Vec<(u64, Vec<Arc<Thread>>)>,
    /// Orders are left, or a session is to be looked at for the first time.
    more: bool,
    _file: SocketFile,
}

impl BackEndEvents {
    pub(super) fn new(boards: SessionBoards, file: SocketFile) -> Result<(Orders, Self)> {
        let fail = |error| {
            let error = io::Error::from(error);
            Error::caused_by(ErrorKind::Io, "cannot wait for back ends", error)
        };
        let new_wakeup =
            || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(fail);
        let (wakeup, stop) = (Arc::new(new_wakeup()?), Arc::new(new_wakeup()?));
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(fail)?;
        for (fd, name) in [(wakeup.as_fd(), 0), (boards.as_fd(), 1)] {
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&epoll, fd, epoll::EventData::new_u64(name), flags).map_err(fail)?;
        }
        let (sender, orders) = channel();
        let events = Self {
            boards,
            orders,
            stop,
            epoll,
            lanes: HashMap::new(),
            opened: Vec::new(),
            more: false,
            _file: file,
        };
        Ok((Orders { sender, wakeup, sent: Cell::new(false) }, events))
    }

    /// Readable when the thread is to end.
    pub(super) fn stop(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.stop)
    }

    /// Follows orders, until there are no more or enough vCPUs have joined.
    fn follow(&mut self, marks: &mut Vec<Mark>) -> Result<()> {
        let (mut joins, mut is_new) = (0, false);
        self.more = false;
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::SessionBoard(session, board) => {
                    self.boards.add(session, *board);
                    is_new = true;
                }
                Order::Gone(session) => self.boards.remove(session),
                Order::Lanes(lanes) => self.lanes = lanes,
                Order::Mark(mark, threads) => {
                    if let Mark::Joined { token, .. }
                    | Mark::Changed { token, .. }
                    | Mark::Storage { token, .. } = mark
                    {
                        joins += 1;
                        self.opened.push((token, threads));
                    }
                    marks.push(mark);
                }
                Order::Failed(error) => return Err(error),
            }
            if joins == JOINS {
                self.more = true;
                break;
            }
        }
        // Its lanes wake no reader before a first look: without it the wakeup may never ring.
        self.more |= is_new;
        Ok(())
    }
}

impl Source for BackEndEvents {
    fn name(&self) -> &'static str {
        "back ends"
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn stays_readable(&self) -> bool {
        true
    }

    fn collect(&mut self, marks: &mut Vec<Mark>) -> Result<()> {
        // The daemon has taken the ones that it wanted.
        self.opened.clear();
        let now = vlane_hint::now();
        self.boards.scan(now)?;
        let lanes = &self.lanes;
        let events = self.boards.collect(now).filter_map(|(session, lane, mark)| {
            let token = *lanes.get(&(session, lane))?;
            Some(match mark {
                LaneMark::Event { .. } => Mark::Event { token },
                LaneMark::Served { response_ns, .. } => Mark::Served { token, response_ns },
            })
        });
        marks.extend(events);
        self.follow(marks)
    }

    fn deadline(&self) -> Option<u64> {
        if self.more { Some(0) } else { self.boards.deadline() }
    }

    fn may_bring_vcpus(&self) -> bool {
        true
    }

    fn opened(&mut self, token: u64) -> Vec<Arc<Thread>> {
        let at = self.opened.iter().position(|(of, _)| *of == token);
        at.map(|at| self.opened.remove(at).1).unwrap_or_default()
    }

    fn counters(&self) -> Vec<Counter> {
        self.boards.counters()
    }
}

impl Drop for BackEndEvents {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::mem::MaybeUninit;
    use std::time::{Duration, Instant};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use vlane_hint::{Change, Client, Guest, ProcessId};
    use vlane_policy::loan::Claim;

    use super::*;
    use crate::VcpuThreads;
    use crate::link::Link;

    /// The daemon's set.
    fn outer(events: &BackEndEvents) -> OwnedFd {
        let outer = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&outer, events.fd(), epoll::EventData::new_u64(0), flags).unwrap();
        outer
    }

    fn is_woken(outer: &OwnedFd) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(outer, PollFlags::IN)], Some(&now)).unwrap() == 1
            && epoll::wait(outer, &mut [const { MaybeUninit::uninit() }; 1], Some(&now))
                .unwrap()
                .0
                .len()
                == 1
    }

    /// The wakeup is written only for new orders.
    #[test]
    fn each_mark_comes_with_its_threads() {
        let dir = tempfile::tempdir().unwrap();
        let (_registrar, boards, file) = Link::bind(&dir.path().join("s"), 0o600).unwrap().split();
        let (orders, mut events) = BackEndEvents::new(boards, file).unwrap();
        let outer = outer(&events);
        orders.ring();
        assert!(!is_woken(&outer));

        let thread = Arc::new(Thread::open(std::process::id()).unwrap());
        let vcpu = VcpuThreads { pid: 1, index: 0, tids: vec![1], name: "it".into() };
        let joined = Mark::Joined { token: 7, vcpu: vcpu.clone(), claim: Claim::of(1) };
        let changed = Mark::Changed { token: 7, vcpu };
        orders.send(Order::Mark(joined.clone(), vec![Arc::clone(&thread)]));
        orders.send(Order::Mark(changed.clone(), vec![Arc::clone(&thread), thread]));
        orders.ring();
        assert!(is_woken(&outer));
        let mut marks = Vec::new();
        events.collect(&mut marks).unwrap();
        assert_eq!(marks, [joined, changed]);
        assert_eq!([(); 3].map(|()| events.opened(7).len()), [1, 2, 0]);
        orders.ring();
        assert!(!is_woken(&outer));
    }

    /// Its lanes wake no reader before a first look, and no other session may ever ring: a machine
    /// that is there already brings no mark.
    #[test]
    fn new_session_is_looked_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (mut registrar, boards, file) = Link::bind(&path, 0o600).unwrap().split();
        let (orders, mut events) = BackEndEvents::new(boards, file).unwrap();
        let process = ProcessId::of(std::process::id()).unwrap();
        let guest = Guest { process, vcpus: vec![0], name: "it".into(), has_express: false };
        let mut client = Client::new(vec![path], guest, true, Instant::now());
        let limit = Instant::now() + Duration::from_secs(10);
        let (session, board) = loop {
            let change = client.turn(Instant::now());
            assert!(change.is_none(), "{change:?}");
            registrar.poll().unwrap();
            if let Some(board) = registrar.boards().pop() {
                break board;
            }
            assert!(Instant::now() < limit, "it never registers");
        };
        orders.send(Order::SessionBoard(session, Box::new(board)));
        orders.ring();
        events.collect(&mut Vec::new()).unwrap();
        assert_eq!(events.deadline(), Some(0));
        events.collect(&mut Vec::new()).unwrap();
        assert_eq!(events.deadline(), None);

        // The eventfd is never read, and each write tells anew.
        let (outer, mut told) = (outer(&events), 0);
        is_woken(&outer);
        let Some(Change::Joined(_, wake)) = client.turn(Instant::now()) else {
            panic!("it was not welcomed")
        };
        for _ in 0..3 {
            assert!(!is_woken(&outer));
            rustix::io::write(&*wake, &1_u64.to_ne_bytes()).unwrap();
            told += usize::from(is_woken(&outer));
        }
        assert_eq!(told, 3);
    }
}
