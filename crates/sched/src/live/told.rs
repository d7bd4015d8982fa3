//! The event loop's end of the back ends: what their lanes tell, heard at once, and what the thread of
//! [`Backends`](super::backends::Backends) has found out.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, epoll, eventfd};
use vlane_hint::Mark as LaneMark;
use vlane_socket::SocketFile;

use super::source::{Mark, Source};
use crate::link::{Ear, Ears, SessionId};
use crate::thread::Thread;
use crate::vehicle::Counter;
use crate::{Error, ErrorKind, Result};

/// So many vCPUs join before events have their turn again: each takes some system calls per thread.
const JOINS: usize = 2;

/// What the loop is to know.
#[derive(Debug)]
pub(super) enum Order {
    /// Somebody who tells of I/O.
    Ear(SessionId, Box<Ear>),
    /// Does not any more.
    Gone(SessionId),
    /// Whose marks the lanes' are.
    Lanes(HashMap<(SessionId, u16), u64>),
    /// The threads of the vCPU that the next mark is about.
    Opened(u64, Vec<Arc<Thread>>),
    /// For the daemon.
    Mark(Mark),
    /// Nothing more will come.
    Failed(Error),
}

/// The thread's end.
#[derive(Debug)]
pub(super) struct Orders {
    sender: Sender<Order>,
    bell: Arc<OwnedFd>,
}

impl Orders {
    /// Heard when the bell is rung. Nobody hears it when the loop has ended.
    pub(super) fn send(&self, order: Order) {
        let _ = self.sender.send(order);
    }

    pub(super) fn ring(&self) {
        let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
    }

    pub(super) fn fail(&self, error: Error) {
        self.send(Order::Failed(error));
        self.ring();
    }
}

/// What back ends tell, as a source. Dropping it ends their thread, and removes their socket.
#[derive(Debug)]
pub struct Told {
    ears: Ears,
    orders: Receiver<Order>,
    bell: Arc<OwnedFd>,
    stop: Arc<OwnedFd>,
    /// Of ears and bell.
    epoll: OwnedFd,
    lanes: HashMap<(SessionId, u16), u64>,
    opened: HashMap<u64, Vec<Arc<Thread>>>,
    /// Orders are left.
    more: bool,
    _file: SocketFile,
}

impl Told {
    pub(super) fn new(ears: Ears, file: SocketFile) -> Result<(Orders, Self)> {
        let fail = |error| {
            let error = io::Error::from(error);
            Error::caused_by(ErrorKind::Io, "cannot wait for back ends", error)
        };
        let new_bell = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(fail);
        let (bell, stop) = (Arc::new(new_bell()?), Arc::new(new_bell()?));
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(fail)?;
        for (fd, name) in [(bell.as_fd(), 0), (ears.as_fd(), 1)] {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(name), epoll::EventFlags::IN).map_err(fail)?;
        }
        let (sender, orders) = channel();
        let told = Self {
            ears,
            orders,
            bell: Arc::clone(&bell),
            stop,
            epoll,
            lanes: HashMap::new(),
            opened: HashMap::new(),
            more: false,
            _file: file,
        };
        Ok((Orders { sender, bell }, told))
    }

    /// Readable when the thread is to end.
    pub(super) fn stop(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.stop)
    }

    /// Follows orders, until there are no more or enough vCPUs have joined.
    fn follow(&mut self, marks: &mut Vec<Mark>) -> Result<()> {
        let mut joins = 0;
        self.more = false;
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Ear(session, ear) => self.ears.add(session, *ear)?,
                Order::Gone(session) => self.ears.remove(session),
                Order::Lanes(lanes) => self.lanes = lanes,
                Order::Opened(token, threads) => {
                    self.opened.insert(token, threads);
                }
                Order::Mark(mark) => {
                    joins += usize::from(matches!(mark, Mark::Joined { .. } | Mark::Changed { .. }));
                    marks.push(mark);
                }
                Order::Failed(error) => return Err(error),
            }
            if joins == JOINS {
                self.more = true;
                break;
            }
        }
        Ok(())
    }
}

impl Source for Told {
    fn name(&self) -> &'static str {
        "back ends"
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn collect(&mut self, marks: &mut Vec<Mark>) -> Result<()> {
        // First the bell, then the orders: what comes in between rings again.
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
        // Whoever wanted them has them.
        self.opened.clear();
        let now = vlane_hint::now();
        self.ears.look(now)?;
        let lanes = &self.lanes;
        let told = self.ears.collect(now).filter_map(|(session, lane, mark)| {
            let token = *lanes.get(&(session, lane))?;
            Some(match mark {
                LaneMark::Event { .. } => Mark::Event { token },
                LaneMark::Served { response_ns, .. } => Mark::Served { token, response_ns },
            })
        });
        marks.extend(told);
        self.follow(marks)
    }

    fn deadline(&self) -> Option<u64> {
        if self.more { Some(0) } else { self.ears.deadline() }
    }

    fn may_bring_vcpus(&self) -> bool {
        true
    }

    fn opened(&mut self, token: u64) -> Vec<Arc<Thread>> {
        self.opened.remove(&token).unwrap_or_default()
    }

    fn counters(&self) -> Vec<Counter> {
        self.ears.counters()
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
    }
}
