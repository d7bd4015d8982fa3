//! Back ends as a source: their sessions bring virtual machines, their lanes tell of completed I/O.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::BorrowedFd;

use vlane_hint::{Classes, Mark as LaneMark, ProcessId};
use vlane_policy::loan::Claim;

use super::announced::Announced;
use super::source::{Mark, Source};
use crate::discover::Machine;
use crate::link::{Link, Notice, Registered, SessionId};
use crate::realtime::{describe, monotonic_ns};
use crate::watch::Silence;
use crate::{ErrorKind, Result};

/// One machine is looked at so often, in turns: the tasks of User-Mode Linux come and go with the guest's processes.
const LOOK_NS: u64 = 20_000_000;
/// A machine whose vCPUs could not be told is looked for again after so long: it may not have made them yet.
const AGAIN_NS: u64 = 1_000_000_000;

/// What its owner says of a machine that a back end brings.
pub type Claims = Box<dyn Fn(ProcessId) -> Claim + Send>;

/// A machine that some sessions serve.
#[derive(Debug)]
struct Tracked {
    /// `None` until its vCPUs are found.
    machine: Option<Machine>,
    /// The vCPUs that were told of.
    announced: Announced,
    sessions: Vec<Registered>,
    look_at: u64,
    /// The reason was told why its vCPUs are not known.
    told: bool,
}

/// The scheduler's end of all back ends.
pub struct Backends {
    link: Link,
    classes: Classes,
    claims: Claims,
    machines: BTreeMap<ProcessId, Tracked>,
    /// Which token a lane's marks are for.
    lanes: HashMap<(SessionId, u16), u64>,
    next_token: u64,
    silence: Option<Box<dyn Silence>>,
}

impl std::fmt::Debug for Backends {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backends").field("link", &self.link).field("machines", &self.machines).finish()
    }
}

impl Backends {
    /// Back ends that register on `link`. Completions of `classes` boost.
    pub fn new(link: Link, classes: Classes, claims: Claims) -> Self {
        Self {
            link,
            classes,
            claims,
            machines: BTreeMap::new(),
            lanes: HashMap::new(),
            next_token: 1,
            silence: None,
        }
    }

    /// What these back ends tell is not to be told by whoever watches eventfds.
    pub fn silence(&mut self, silence: Box<dyn Silence>) {
        self.silence = Some(silence);
    }

    /// Schedules the vCPUs of a machine that no back end has brought (yet).
    pub fn expect(&mut self, process: ProcessId) {
        self.track(process);
    }

    /// The same for one whose vCPUs are known already.
    pub fn expect_machine(&mut self, machine: Machine) {
        let process = machine.process();
        self.track(process).machine = Some(machine);
    }

    fn track(&mut self, process: ProcessId) -> &mut Tracked {
        self.machines.entry(process).or_insert_with(|| Tracked {
            machine: None,
            announced: Announced::default(),
            sessions: Vec::new(),
            look_at: 0,
            told: false,
        })
    }

    fn notice(&mut self, notice: Notice, marks: &mut Vec<Mark>) {
        match notice {
            Notice::Joined(registered) => {
                tracing::info!("{}: its back end tells of its I/O", registered.name);
                let process = registered.process;
                let session = registered.session;
                if let Some(silence) = &self.silence {
                    silence.silence(registered.backend, process.pid, true);
                }
                let tracked = self.track(process);
                tracked.sessions.push(registered);
                tracked.look_at = 0;
                self.link.arm(session, self.classes);
                self.look(process, marks);
            }
            Notice::Left { session, why } => {
                self.lanes.retain(|(of, _), _| *of != session);
                for tracked in self.machines.values_mut() {
                    if let Some(at) = tracked.sessions.iter().position(|known| known.session == session) {
                        // The machine may live on, with another back end: it is let go when its process ends.
                        let left = tracked.sessions.remove(at);
                        tracing::info!("{}: {why}", left.name);
                        let others = tracked.sessions.iter().any(|other| other.backend == left.backend);
                        if let Some(silence) = self.silence.as_ref().filter(|_| !others) {
                            silence.silence(left.backend, left.process.pid, false);
                        }
                    }
                }
            }
            Notice::Refused { why } => tracing::warn!("a back end was refused: {why}"),
        }
    }

    /// Looks at a machine: finds its vCPUs, or whether they have changed, or ended.
    fn look(&mut self, process: ProcessId, marks: &mut Vec<Mark>) {
        let now = monotonic_ns();
        let Some(tracked) = self.machines.get_mut(&process) else { return };
        let looked = match &mut tracked.machine {
            Some(machine) => machine.refresh(),
            None => Machine::find(process).map(|machine| {
                tracked.machine = Some(machine);
                true
            }),
        };
        match looked {
            Ok(_) => {
                tracked.look_at = now + LOOK_NS;
                self.name_vcpus(process, marks);
            }
            Err(error) if error.kind() == ErrorKind::Gone => {
                tracing::info!("{}", describe(&error));
                let Some(tracked) = self.machines.remove(&process) else { return };
                marks.extend(tracked.announced.tokens().map(|token| Mark::Left { token }));
                for registered in tracked.sessions {
                    if let Some(silence) = &self.silence {
                        silence.silence(registered.backend, process.pid, false);
                    }
                    self.link.dismiss(registered.session);
                    self.lanes.retain(|(of, _), _| *of != registered.session);
                }
            }
            Err(error) => {
                tracked.look_at = now + AGAIN_NS;
                if !tracked.told {
                    tracked.told = true;
                    tracing::warn!("{}", describe(&error));
                }
            }
        }
    }

    /// Tells which vCPUs have come and gone, and gives lanes their tokens.
    fn name_vcpus(&mut self, process: ProcessId, marks: &mut Vec<Mark>) {
        let Some(Tracked { machine: Some(machine), announced, sessions, .. }) =
            self.machines.get_mut(&process)
        else {
            return;
        };
        let next = &mut self.next_token;
        let token = || {
            *next += 1;
            *next - 1
        };
        announced.compare(machine.vcpus(), token, || (self.claims)(process), marks);
        for registered in sessions {
            for (lane, &index) in (0_u16..).zip(&registered.vcpus) {
                let lane = (registered.session, lane);
                match machine.vcpu(index).and_then(|vcpu| announced.token(vcpu.index)) {
                    Some(token) => self.lanes.insert(lane, token),
                    // Not plugged in, or no longer.
                    None => self.lanes.remove(&lane),
                };
            }
        }
    }
}

impl Source for Backends {
    fn name(&self) -> &'static str {
        "back ends"
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.link.fd()
    }

    fn collect(&mut self, marks: &mut Vec<Mark>) -> Result<()> {
        for notice in self.link.poll()? {
            self.notice(notice, marks);
        }
        let lanes = &self.lanes;
        let told = self.link.collect(vlane_hint::now()).filter_map(|(session, lane, mark)| {
            let token = *lanes.get(&(session, lane))?;
            Some(match mark {
                LaneMark::Event { .. } => Mark::Event { token },
                LaneMark::Served { response_ns, .. } => Mark::Served { token, response_ns },
            })
        });
        marks.extend(told);
        // One machine at a time: an event must not wait for a look at all of them.
        let now = monotonic_ns();
        let due = self.machines.iter().filter(|(_, tracked)| tracked.look_at <= now);
        if let Some(process) = due.min_by_key(|(_, tracked)| tracked.look_at).map(|(&process, _)| process) {
            self.look(process, marks);
        }
        Ok(())
    }

    fn deadline(&self) -> Option<u64> {
        self.machines.values().map(|tracked| tracked.look_at).min()
    }

    fn may_bring_vcpus(&self) -> bool {
        true
    }
}
