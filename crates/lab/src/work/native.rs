//! The back ends alone: driven natively, with what they do for each request.
//!
//! Each case is measured twice in a row by the same connection's means: with one request, which is
//! the cost of connecting, and with all of them. The difference is the requests' own cost. System
//! calls are counted in a pass of their own, because counting slows them down.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use vlane_driver::{Limit, SessionOptions, Workload};
use vlane_error::counted;

use super::{BLOCKS, Direction, Medium, Options};
use vlane_client::progress::Progress;
use vlane_host::Rounds;
use vlane_host::control::Control;
use vlane_host::error::{Error, ErrorKind, Result};
use vlane_host::interrupt::Interrupt;
use vlane_host::server::{Server, Storage};
use vlane_report::machine::usable_cpus;
use vlane_work::{Calls, Counted, Role, Sampler};

/// Capacity of the null device.
const NULL_BYTES: u64 = 16 << 30;

/// A back end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// `vlane serve`.
    Vlane,
    /// qemu-storage-daemon.
    StorageDaemon,
}

impl Peer {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vlane => "vlane",
            Self::StorageDaemon => "qemu-storage-daemon",
        }
    }
}

/// A measured case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// Where the data are.
    pub medium: Medium,
    /// The back end.
    pub peer: Peer,
    /// Read or write.
    pub direction: Direction,
    /// Bytes per request.
    pub block: u32,
}

/// The work of one measurement, without that of connecting.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// The case.
    pub case: Case,
    /// In which pass.
    pub pass: usize,
    /// Requests.
    pub requests: u64,
    /// Time that they took.
    pub seconds: f64,
    /// Kicks that the guest's side sent.
    pub kicks: f64,
    /// Times that the guest's side slept until it was signalled.
    pub sleeps: f64,
    /// Signals, as the back end counts them.
    pub signals: Counted<u64>,
    /// Requests copied through a bounce buffer, and those that one system call or memory copy of
    /// the lane's own thread answered, as vlane counts them.
    pub copied: Counted<Copied>,
    /// CPU time of the back end in us, without the kernel's workers.
    pub cpu_us: f64,
    /// Its share in user mode.
    pub user_share: Option<f64>,
    /// CPU time of the kernel's workers for it, in us.
    pub worker_us: f64,
    /// Context switches because of waiting.
    pub voluntary: f64,
    /// Context switches because of others.
    pub involuntary: f64,
    /// System calls of the back end; counted in passes of their own, which have no other figures.
    pub calls: Counted<Calls>,
}

/// How the bytes were moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Copied {
    /// Through a bounce buffer.
    pub bounced: u64,
    /// Inline: by the lane's thread, from or to the page cache or a mapping.
    pub inline: u64,
}

/// Resources used by one connection.
struct Raw {
    requests: u64,
    seconds: f64,
    kicks: f64,
    sleeps: f64,
    signals: Option<u64>,
    copied: Option<Copied>,
    used: vlane_work::Used,
}

/// Requirements.
#[derive(Debug)]
pub struct Native<'a> {
    /// The options.
    pub options: &'a Options,
    /// qemu-storage-daemon, if it is there.
    pub storage_daemon: Option<PathBuf>,
    /// For sockets.
    pub dir: &'a Path,
    /// The image on the RAM disk.
    pub ram: Option<&'a Path>,
    /// The image on the disk.
    pub disk: Option<&'a Path>,
    /// Ends it.
    pub interrupt: &'a Interrupt,
}

/// A back end that runs.
struct Running {
    server: Server,
    control: Option<Control>,
}

impl<'a> Native<'a> {
    /// The cases of a pass, those to be compared side by side.
    pub fn cases(&self) -> Vec<Case> {
        let peers = [Some(Peer::Vlane), self.storage_daemon.as_ref().map(|_| Peer::StorageDaemon)];
        let mut all = Vec::new();
        for medium in &self.options.media {
            for direction in Direction::ALL {
                for block in BLOCKS {
                    for peer in peers.into_iter().flatten() {
                        all.push(Case { medium: *medium, peer, direction, block });
                    }
                }
            }
        }
        all
    }

    /// Measurements in all: the passes, and one in which system calls are counted.
    pub fn steps(&self) -> usize {
        self.cases().len() * (self.options.passes + 1)
    }

    /// Measures everything.
    ///
    /// # Errors
    /// Those of starting and driving back ends; [`ErrorKind::Interrupted`].
    pub fn run(&self, progress: &mut Progress) -> Result<(Vec<Measured>, Rounds)> {
        let mut all = Vec::new();
        let rounds = Rounds::measure(self.options.passes + 1, |pass| {
            let counting = pass == self.options.passes;
            let mut cases = self.cases();
            if pass % 2 == 1 {
                cases.reverse();
            }
            for case in cases {
                self.interrupt.check()?;
                let what = if counting { ", counting system calls" } else { "" };
                let size = case.block >> 10;
                let (medium, peer) = (case.medium.name(), case.peer.name());
                progress.step(format!("{medium}: {peer}, {size}K {}{what}", case.direction.name()));
                all.push((pass, self.measure(case, pass, counting)?));
            }
            Ok(())
        })?;
        all.retain(|(pass, _)| *pass < rounds.whole());
        Ok((all.into_iter().map(|(_, measured)| measured).collect(), rounds))
    }

    fn start(&self, medium: Medium, peer: Peer) -> Result<Running> {
        let none = || Error::new(ErrorKind::Invalid, format!("there is no image: {}", medium.name()));
        let image = |path: Option<&'a Path>| path.ok_or_else(none);
        let storage = match medium {
            Medium::Null => Storage::null(NULL_BYTES),
            Medium::Ram => Storage::File { path: image(self.ram)?, direct: false },
            Medium::Disk => Storage::File { path: image(self.disk)?, direct: true },
        };
        let cpus: Vec<usize> = cpus().map(|(server, _)| vec![server]).unwrap_or_default();
        match (peer, &self.storage_daemon) {
            (Peer::StorageDaemon, Some(program)) => {
                let server = Server::qemu_storage_daemon(program, self.dir, storage, &cpus, 1)?;
                Ok(Running { server, control: None })
            }
            _ => {
                let socket = self.dir.join(format!("control-{medium:?}.sock"));
                let control = socket.display().to_string();
                let words = ["--queues", "1", "--control", &control];
                let server = Server::vlane(&self.options.vlane, self.dir, storage, &cpus, &words)?;
                Ok(Running { server, control: Some(Control::new(socket)) })
            }
        }
    }

    fn measure(&self, case: Case, pass: usize, counting: bool) -> Result<Measured> {
        // An image is for one back end at a time (they lock it).
        let back_end = &mut self.start(case.medium, case.peer)?;
        let setup = self.drive(back_end, case, 1, counting)?;
        let count = self.options.bytes / u64::from(case.block);
        let all = self.drive(back_end, case, count + 1, counting)?;
        Ok(difference(case, pass, &all, &setup))
    }

    /// One connection with so many requests.
    fn drive(&self, back_end: &mut Running, case: Case, count: u64, counting: bool) -> Result<Raw> {
        let pid = i32::try_from(back_end.server.pid()).unwrap_or(i32::MAX);
        let mut sampler = Sampler::new(match case.peer {
            Peer::Vlane => Role::vlane(pid),
            Peer::StorageDaemon => Role::peer(pid),
        });
        if counting {
            sampler = sampler.count_calls();
        }
        let counters = |control: &Option<Control>| control.as_ref().map(Control::counters).transpose();
        let counted_before = counters(&back_end.control)?;
        let before = sampler.take();
        let options = SessionOptions {
            depth: self.options.depth,
            data: case.block,
            write_cache: Some(true),
            ..SessionOptions::default()
        };
        let session = back_end.server.connect(&options)?;
        let pattern = case.direction.pattern().parse();
        let workload = Workload {
            pattern: pattern.map_err(|why: String| Error::new(ErrorKind::Invalid, why))?,
            block: case.block,
            limit: Limit::Count(count),
            cpus: cpus().map(|(_, driver)| vec![driver]).unwrap_or_default(),
            ..Workload::default()
        };
        let report = vlane_driver::run(session, &workload, &mut |_| match self.interrupt.is_raised() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        })?;
        let used = sampler.take().since(&before);
        self.interrupt.check()?;
        let name = back_end.server.name();
        if report.errors.total() > 0 {
            let failed =
                format!("{name}: {} of {} failed", report.errors.total(), counted(report.ios, "request"));
            return Err(Error::new(ErrorKind::Process, failed));
        }
        if used.roles.iter().any(|role| role.lost) {
            return Err(Error::new(ErrorKind::Process, format!("{name} (pid {pid}) cannot be looked at")));
        }
        let counted = counted_before.zip(counters(&back_end.control)?);
        let rose = |name: &str| {
            let of = |c: &vlane_host::control::Counters| c.sum.get(name).copied().unwrap_or(0);
            counted.as_ref().map(|(before, after)| of(after).saturating_sub(of(before)))
        };
        let ios = report.ios as f64;
        Ok(Raw {
            requests: report.ios,
            seconds: report.seconds,
            kicks: report.kicks_per_io * ios,
            sleeps: report.sleeps_per_io * ios,
            signals: rose("signals"),
            copied: rose("bounced").zip(rose("inline")).map(|(bounced, inline)| Copied { bounced, inline }),
            used,
        })
    }
}

/// A CPU for the back end and one for the driver, if there are two.
fn cpus() -> Option<(usize, usize)> {
    match usable_cpus().ok()?[..] {
        [server, driver, ..] => Some((server, driver)),
        _ => None,
    }
}

/// A back end's figure, if it has one.
fn told<T>(figure: Option<T>) -> Counted<T> {
    figure.map_or_else(|| Counted::Not("not counted: this back end does not tell".into()), Counted::Is)
}

/// Cost of the requests beyond the cost of connecting.
fn difference(case: Case, pass: usize, all: &Raw, setup: &Raw) -> Measured {
    let worker = |raw: &Raw| raw.used.role("kernel worker").map_or(0.0, |role| role.cpu.as_secs_f64() * 1e6);
    let total = |raw: &Raw| raw.used.cpu().as_secs_f64() * 1e6;
    let sum = |raw: &Raw, figure: fn(&vlane_work::RoleUse) -> u64| -> f64 {
        raw.used.roles.iter().map(|role| figure(role) as f64).sum()
    };
    let less = |figure: &dyn Fn(&Raw) -> f64| (figure(all) - figure(setup)).max(0.0);
    // The main thread's time is not the requests'.
    let busy = all.used.roles.iter().filter(|role| role.name != "kernel worker").max_by_key(|role| role.cpu);
    let copied = told(all.copied).with(told(setup.copied), |all, setup| Copied {
        bounced: all.bounced.saturating_sub(setup.bounced),
        inline: all.inline.saturating_sub(setup.inline),
    });
    Measured {
        case,
        pass,
        requests: all.requests.saturating_sub(setup.requests),
        seconds: all.seconds,
        kicks: less(&|raw| raw.kicks),
        sleeps: less(&|raw| raw.sleeps),
        signals: told(all.signals).with(told(setup.signals), u64::saturating_sub),
        copied,
        cpu_us: less(&|raw| total(raw) - worker(raw)),
        user_share: busy.and_then(|role| role.user_share),
        worker_us: less(&worker),
        voluntary: less(&|raw| sum(raw, |role| role.voluntary)),
        involuntary: less(&|raw| sum(raw, |role| role.involuntary)),
        calls: all.used.calls().with(setup.used.calls(), |all, setup| all.since(&setup)),
    }
}
