//! The daemon's source: the machines whose vCPUs it schedules are watched, and the programs'
//! reports become marks.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};

use super::program::{MAX_VCPUS, Program, Silencer, Vcpu, VcpuReport};
use super::scan::{Order, scan};
use vlane_error::describe;
use vlane_sched::live::source::{Mark, Source};
use vlane_sched::{Counter, VcpuThreads};
use vlane_sched::{Error, ErrorKind, Result};

/// Watches the eventfds of all machines that the daemon schedules.
#[derive(Debug)]
pub(crate) struct EventfdWatch {
    program: Program,
    /// Ends when this does.
    scanner: Sender<Order>,
    found: Arc<AtomicU64>,
    machines: BTreeMap<u32, Vec<Vcpu>>,
    /// The machine of each token.
    tokens: HashMap<u64, u32>,
    next: u64,
    told: Vec<VcpuReport>,
}

impl EventfdWatch {
    pub(crate) fn load(boost_ns: u64) -> Result<Self> {
        let program = Program::load(boost_ns)?;
        let (eventfds, unseen) = (program.eventfds()?, program.unseen()?);
        let (scanner, orders) = channel();
        let found = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&found);
        std::thread::Builder::new()
            .name("sched-watch".into())
            .spawn(move || scan(&orders, &eventfds, &unseen, &count))
            .map_err(|error| Error::caused_by(ErrorKind::Io, "watching I/O: no thread", error))?;
        Ok(Self {
            program,
            scanner,
            found,
            machines: BTreeMap::new(),
            tokens: HashMap::new(),
            next: 1,
            told: Vec::new(),
        })
    }

    pub(crate) fn silencer(&self) -> Result<Silencer> {
        self.program.silencer()
    }

    fn note(&self, pid: u32, vcpus: &[Vcpu]) {
        if let Err(error) = self.program.set_machine(pid, vcpus) {
            tracing::warn!("process {pid}: {}", describe(&error));
        }
    }
}

impl Source for EventfdWatch {
    fn name(&self) -> &'static str {
        "the machines' eventfds"
    }

    /// A machine that only receives never kicks.
    fn tells_of_all_served(&self) -> bool {
        false
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.program.fd()
    }

    fn collect(&mut self, marks: &mut Vec<Mark>) -> Result<()> {
        self.program.take(&mut self.told)?;
        marks.extend(self.told.drain(..).map(|told| match told {
            VcpuReport::Event { token } => Mark::Event { token },
            VcpuReport::Served { token, response_ns } => Mark::Served { token, response_ns },
        }));
        Ok(())
    }

    fn meet(&mut self, vcpu: &VcpuThreads) -> Option<u64> {
        // User-Mode Linux has several; the first is its kernel's, and stays.
        let &tid = vcpu.tids.first()?;
        let vcpus = self.machines.entry(vcpu.pid).or_default();
        if let Some(known) = vcpus.iter().find(|known| known.tid == tid) {
            return Some(known.token);
        }
        if vcpus.len() == MAX_VCPUS {
            tracing::warn!("process {}: only {MAX_VCPUS} of its vCPUs are watched", vcpu.pid);
        }
        let (token, first) = (self.next, vcpus.is_empty());
        self.next += 1;
        vcpus.push(Vcpu { tid, token });
        self.tokens.insert(token, vcpu.pid);
        if let Some(vcpus) = self.machines.get(&vcpu.pid) {
            self.note(vcpu.pid, vcpus);
        }
        if first {
            let _ = self.scanner.send(Order::Watch(vcpu.pid));
        }
        Some(token)
    }

    fn part(&mut self, token: u64) {
        let Some(pid) = self.tokens.remove(&token) else { return };
        let Some(vcpus) = self.machines.get_mut(&pid) else { return };
        for gone in vcpus.extract_if(.., |vcpu| vcpu.token == token) {
            self.program.forget_thread(gone.tid);
        }
        let none = vcpus.is_empty();
        if let Some(vcpus) = self.machines.get(&pid) {
            self.note(pid, vcpus);
        }
        if none {
            self.machines.remove(&pid);
            let _ = self.scanner.send(Order::Forget(pid));
        }
    }

    fn counters(&self) -> Vec<Counter> {
        let mut counters = self.program.counters();
        counters
            .push(Counter { name: "watch_eventfds", value: self.found.load(Ordering::Relaxed) });
        counters
    }
}
