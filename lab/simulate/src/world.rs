//! The machine: physical CPUs, vCPUs with their guests' work, and time, which jumps from event to
//! event.
//!
//! A guest serves events before it computes, in the order in which they came, as an interrupt does.
//! It knows of an event as soon as its vCPU runs. A vCPU does only one thing between two events of
//! the simulation, so CPU time is counted exactly.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use vlane_policy::loan::{Claim, Doing};

use super::credit::CreditQueues;
use super::eevdf::EevdfQueues;
use super::host::Scheduler;
use super::outcome::{LoadOutcome, MachineOutcome, Outcome, due_shares};
use super::random::{Random, Span, nanoseconds};
use super::scenario::{Compute, Load, Scenario};
use super::setup::{Host, Setup};

/// CPU time, of no virtual machine, to switch from one vCPU to another.
const SWITCH_NS: u64 = 2_000;
/// The same, to put a vCPU before the others (`sched_setattr` on a runnable thread: 5 to 12 us).
const BOOST_NS: u64 = 5_000;

/// Runs a scenario with a host scheduler: the same scenario, the same outcome. Loads of all parts
/// are on: give [`Scenario::parts`] one by one.
pub fn run(scenario: &Scenario, setup: &Setup) -> Outcome {
    World::new(scenario, setup).run(&AtomicBool::new(false))
}

/// The same, unless `stop` becomes true before the end: then there is no outcome.
pub fn run_unless(stop: &AtomicBool, scenario: &Scenario, setup: &Setup) -> Option<Outcome> {
    let outcome = World::new(scenario, setup).run(stop);
    (!stop.load(Relaxed)).then_some(outcome)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// An event of a load comes to a stage of its way, on its way since `began`.
    Arrive { load: usize, stage: usize, began: u64 },
    /// A CPU has to be looked at, unless it had another event since.
    Look { cpu: usize, turn: u64 },
    /// A vCPU begins to compute.
    Burst(usize),
    /// The host scheduler's own.
    Periodic,
    /// The warm-up is over.
    Measure,
}

#[derive(Debug, Clone, Copy)]
struct Job {
    load: usize,
    stage: usize,
    began: u64,
    arrived: u64,
    left_ns: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Sleeps,
    Waits,
    Runs(usize),
}

#[derive(Debug, Default)]
struct Vcpu {
    machine: usize,
    compute: Compute,
    random: Random,
    /// Of the burst that is on; 0: none.
    burst_ns: u64,
    jobs: VecDeque<Job>,
    state: State,
    last_cpu: usize,
    /// It was boosted and the switch is not charged yet.
    boost_cost: bool,
    used_ns: u64,
}

impl Vcpu {
    const fn computes(&self) -> bool {
        matches!(self.compute, Compute::Always) || self.burst_ns > 0
    }
}

#[derive(Debug, Clone, Default)]
struct Cpu {
    current: Option<usize>,
    last: Option<usize>,
    /// Time is counted up to here; later than now while it switches.
    since: u64,
    turn: u64,
    idle_ns: u64,
    overhead_ns: u64,
    switches: u64,
}

#[derive(Debug)]
struct Source {
    load: Load,
    /// Where its figures go.
    figures: usize,
    way: Vec<(usize, Span)>,
    random: Random,
    link_free: u64,
}

impl Source {
    /// Of a vCPU; `first_of` has the first vCPU of each machine.
    fn new(load: &Load, vcpu: usize, first_of: &HashMap<&str, usize>, random: Random) -> Self {
        let (_, _, service, via) = load.common();
        let via = via.and_then(|via| Some((*first_of.get(via.vm.as_str())?, via.service)));
        let mut way: Vec<_> = via.into_iter().chain([(vcpu, service)]).collect();
        // An answer passes the machine between again.
        way.extend(via.filter(|_| matches!(load, Load::Ping { .. })));
        Self { load: load.clone(), figures: 0, way, random, link_free: 0 }
    }
}

#[derive(Debug)]
struct World {
    now: u64,
    end: u64,
    /// Due events: time, and order of planning for those of one time.
    heap: BinaryHeap<Reverse<(u64, u64, What)>>,
    order: u64,
    vcpus: Vec<Vcpu>,
    cpus: Vec<Cpu>,
    sources: Vec<Source>,
    host: Box<dyn Scheduler>,
    idle: usize,
    waiting: usize,
    measured_since: u64,
    /// Counts so far.
    outcome: Outcome,
}

impl World {
    fn new(scenario: &Scenario, setup: &Setup) -> Self {
        let cpus = scenario.cpus as usize;
        let (mut vcpus, mut claims, mut sources, mut loads) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut outcome = Outcome {
            setup: setup.name.clone(),
            cpus: scenario.cpus,
            time_ns: nanoseconds(scenario.seconds * 1e6),
            ..Outcome::default()
        };
        let mut first_of = HashMap::new();
        for (group, vm) in scenario.vm.iter().enumerate() {
            let first_figures = outcome.loads.len();
            let figures = vm.load.iter().map(|load| LoadOutcome::new(&vm.name, group, load));
            outcome.loads.extend(figures);
            for n in 0..vm.count {
                let machine = outcome.machines.len();
                let name = match vm.count {
                    1 => vm.name.clone(),
                    _ => format!("{}-{}", vm.name, vm.first + n),
                };
                outcome.machines.push(MachineOutcome {
                    name,
                    group,
                    weight: vm.weight,
                    vcpus: vm.vcpus,
                    is_hog: vm.compute == Compute::Always,
                    ..MachineOutcome::default()
                });
                first_of.entry(vm.name.as_str()).or_insert(vcpus.len());
                for number in 0..vm.vcpus + vm.inactive_vcpus {
                    let place = vcpus.len();
                    let vm_number = u32::try_from(machine).unwrap_or(u32::MAX);
                    claims.push(Claim { vm: vm_number, weight: vm.weight, cap_permille: 0 });
                    let is_active = number < vm.vcpus;
                    let own = vm.load.iter().enumerate().filter(|_| is_active);
                    loads.extend(own.map(|(n, load)| (place, first_figures + n, load)));
                    vcpus.push(Vcpu {
                        machine,
                        compute: if is_active { vm.compute } else { Compute::Never },
                        random: Random::new(scenario.seed, place as u64 * 2),
                        last_cpu: place % cpus,
                        ..Vcpu::default()
                    });
                }
            }
        }
        for (stream, (vcpu, figures, load)) in loads.into_iter().enumerate() {
            let random = Random::new(scenario.seed, stream as u64 * 2 + 1);
            sources.push(Source { figures, ..Source::new(load, vcpu, &first_of, random) });
        }
        let host: Box<dyn Scheduler> = match &setup.host {
            Host::Eevdf => Box::new(EevdfQueues::new(cpus, &claims)),
            Host::Credit(setup) => Box::new(CreditQueues::new(setup, cpus, &claims)),
        };
        let warmup = nanoseconds(scenario.warmup_seconds * 1e6);
        Self {
            now: 0,
            end: warmup + outcome.time_ns,
            heap: BinaryHeap::new(),
            order: 0,
            vcpus,
            cpus: vec![Cpu::default(); cpus],
            sources,
            host,
            idle: cpus,
            waiting: 0,
            measured_since: warmup,
            outcome,
        }
    }

    fn plan(&mut self, at: u64, what: What) {
        self.order += 1;
        self.heap.push(Reverse((at, self.order, what)));
    }

    /// Runs to the end, or until `stop` says so.
    fn run(mut self, stop: &AtomicBool) -> Outcome {
        self.plan(self.measured_since, What::Measure);
        self.plan(self.host.next_periodic(), What::Periodic);
        for source in 0..self.sources.len() {
            self.start(source);
        }
        for vcpu in 0..self.vcpus.len() {
            match self.vcpus[vcpu].compute {
                Compute::Never => {}
                Compute::Always => self.look_for_cpu(vcpu),
                Compute::Mixed { .. } => self.plan_burst(vcpu),
            }
        }
        while let Some(Reverse((at, _, what))) = self.heap.pop() {
            if at > self.end || stop.load(Relaxed) {
                break;
            }
            if at > self.now {
                if self.idle > 0 && self.waiting > 0 {
                    self.outcome.wasted_ns += at - self.now;
                }
                self.now = at;
            }
            self.happen(what);
        }
        self.now = self.end;
        for cpu in 0..self.cpus.len() {
            self.settle(cpu);
            let own = &self.cpus[cpu];
            self.outcome.idle_ns += own.idle_ns;
            // The rest of a switch belongs to the time after now.
            self.outcome.overhead_ns += own.overhead_ns - own.since.saturating_sub(self.now);
            self.outcome.switches += own.switches;
        }
        for (vcpu, own) in self.vcpus.iter().enumerate() {
            let machine = &mut self.outcome.machines[own.machine];
            machine.used_ns += own.used_ns;
            machine.loans += self.host.loans(vcpu);
        }
        due_shares(&mut self.outcome.machines, self.outcome.time_ns);
        self.outcome
    }

    fn happen(&mut self, what: What) {
        self.outcome.events += u64::from(!matches!(what, What::Look { .. } | What::Measure));
        match what {
            What::Arrive { load, stage, began } => {
                self.arrive(load, stage, began);
                let source = &mut self.sources[load];
                // The next request of an open load.
                if let (Load::Ping { every, .. }, 0) = (&source.load, stage) {
                    let next = self.now + every.draw(&mut source.random).max(1);
                    self.plan_request(load, next);
                }
            }
            What::Look { cpu, turn } => {
                if self.cpus[cpu].turn == turn {
                    self.outcome.events += 1;
                    self.settle(cpu);
                    self.go_on(cpu);
                }
            }
            What::Burst(vcpu) => self.burst(vcpu),
            What::Periodic => {
                for cpu in 0..self.cpus.len() {
                    self.settle(cpu);
                }
                if self.host.periodic(self.now) {
                    self.repeat();
                }
                for cpu in 0..self.cpus.len() {
                    if self.cpus[cpu].current.is_some() {
                        self.go_on(cpu);
                    }
                }
                self.plan(self.host.next_periodic(), What::Periodic);
            }
            What::Measure => self.measure(),
        }
    }

    fn plan_request(&mut self, load: usize, at: u64) {
        self.plan(at, What::Arrive { load, stage: 0, began: at });
    }

    /// The first requests of a load; open loads begin at different moments.
    fn start(&mut self, at: usize) {
        let source = &mut self.sources[at];
        match source.load {
            Load::Ping { every, .. } => {
                let first = Span { law: super::random::Law::Uniform, us: every.us / 2.0 };
                let first = first.draw(&mut source.random);
                self.plan_request(at, first);
            }
            Load::Window { segments: number, .. } | Load::Disk { depth: number, .. } => {
                for _ in 0..number {
                    self.follow(at);
                }
            }
        }
    }

    /// Plans the next event of a closed loop, whose last one was served now.
    fn follow(&mut self, at: usize) {
        let source = &mut self.sources[at];
        let next = match &source.load {
            Load::Ping { .. } => return,
            Load::Window { segment_bytes, link_mbit, rtt, .. } => {
                let back = self.now + rtt.draw(&mut source.random);
                let on_link = nanoseconds(f64::from(*segment_bytes) * 8.0 / link_mbit);
                source.link_free = back.max(source.link_free) + on_link;
                source.link_free
            }
            Load::Disk { device, think, .. } => {
                let thought = self.now + think.draw(&mut source.random);
                thought + device.draw(&mut source.random)
            }
        };
        self.plan_request(at, next);
    }

    /// An event comes to a vCPU.
    fn arrive(&mut self, load: usize, stage: usize, began: u64) {
        let (vcpu, service) = self.sources[load].way[stage];
        let left_ns = service.draw(&mut self.sources[load].random).max(1);
        let job = Job { load, stage, began, arrived: self.now, left_ns };
        let doing = match self.vcpus[vcpu].state {
            State::Sleeps => Doing::Blocked,
            State::Waits => Doing::Waiting,
            State::Runs(cpu) => {
                self.settle(cpu);
                Doing::Running
            }
        };
        let is_boosted = self.host.event(vcpu, self.now, doing);
        self.vcpus[vcpu].jobs.push_back(job);
        self.vcpus[vcpu].boost_cost |= is_boosted;
        self.has_news(vcpu, is_boosted);
    }

    /// Announces the unserved events of vCPUs that wait for their turn again.
    fn repeat(&mut self) {
        for vcpu in 0..self.vcpus.len() {
            let own = &self.vcpus[vcpu];
            if own.state == State::Waits
                && !own.jobs.is_empty()
                && self.host.event(vcpu, self.now, Doing::Waiting)
            {
                self.vcpus[vcpu].boost_cost = true;
                self.has_news(vcpu, true);
            }
        }
    }

    /// A vCPU has more work; if it is boosted, it does not wait for its turn.
    fn has_news(&mut self, vcpu: usize, is_boosted: bool) {
        match self.vcpus[vcpu].state {
            State::Waits if !is_boosted => {}
            State::Sleeps | State::Waits => self.look_for_cpu(vcpu),
            State::Runs(cpu) => self.go_on(cpu),
        }
    }

    /// A vCPU that waits, or slept until now, runs at once if it may.
    fn look_for_cpu(&mut self, vcpu: usize) {
        let cpu = self.host.target(vcpu, self.vcpus[vcpu].last_cpu);
        self.settle(cpu);
        if self.vcpus[vcpu].state == State::Sleeps {
            self.vcpus[vcpu].state = State::Waits;
            self.waiting += 1;
            self.host.wake(vcpu, cpu);
        }
        if self.host.preempts(vcpu, cpu) {
            self.reschedule(cpu);
        }
    }

    fn plan_burst(&mut self, vcpu: usize) {
        let own = &mut self.vcpus[vcpu];
        if let Compute::Mixed { off, .. } = own.compute {
            let at = self.now + off.draw(&mut own.random).max(1);
            self.plan(at, What::Burst(vcpu));
        }
    }

    fn burst(&mut self, vcpu: usize) {
        if let State::Runs(cpu) = self.vcpus[vcpu].state {
            self.settle(cpu);
        }
        let own = &mut self.vcpus[vcpu];
        if let Compute::Mixed { on, .. } = own.compute {
            own.burst_ns = on.draw(&mut own.random).max(1);
        }
        self.has_news(vcpu, false);
    }

    /// Counts the running vCPU's time until now, or the idle time.
    fn settle(&mut self, cpu: usize) {
        let own = &mut self.cpus[cpu];
        if self.now <= own.since {
            return;
        }
        let ns = self.now - own.since;
        own.since = self.now;
        let Some(vcpu) = own.current else {
            own.idle_ns += ns;
            return;
        };
        let running = &mut self.vcpus[vcpu];
        running.used_ns += ns;
        match running.jobs.front_mut() {
            Some(job) => job.left_ns = job.left_ns.saturating_sub(ns),
            None => running.burst_ns = running.burst_ns.saturating_sub(ns),
        }
        self.host.ran(vcpu, cpu, self.now, ns);
    }

    /// Ends the finished work of the running vCPU. False if no work is left.
    fn has_work(&mut self, vcpu: usize) -> bool {
        while let Some(job) = self.vcpus[vcpu].jobs.front().copied().filter(|job| job.left_ns == 0)
        {
            self.vcpus[vcpu].jobs.pop_front();
            self.finish(vcpu, &job);
        }
        let own = &self.vcpus[vcpu];
        !own.jobs.is_empty() || own.computes()
    }

    fn finish(&mut self, vcpu: usize, job: &Job) {
        let last = self.vcpus[vcpu].jobs.is_empty();
        self.host.served(vcpu, self.now - job.arrived, last);
        let source = job.load;
        let next = job.stage + 1;
        if next < self.sources[source].way.len() {
            self.plan(self.now, What::Arrive { load: job.load, stage: next, began: job.began });
            return;
        }
        if self.now >= self.measured_since {
            let figures = self.sources[source].figures;
            self.outcome.loads[figures].count(&self.sources[source].load, self.now - job.began);
        }
        self.follow(source);
    }

    /// The running vCPU continues, sleeps, or goes back to the queue. All time that it used is
    /// counted.
    fn go_on(&mut self, cpu: usize) {
        let Some(vcpu) = self.cpus[cpu].current else { return };
        if !self.has_work(vcpu) || self.host.yields(vcpu, cpu, self.now) {
            self.reschedule(cpu);
            return;
        }
        self.plan_look(cpu, vcpu);
    }

    /// Plans when the CPU is looked at again: something is done by then, or the turn is over.
    fn plan_look(&mut self, cpu: usize, vcpu: usize) {
        let from = self.now.max(self.cpus[cpu].since);
        let own = &self.vcpus[vcpu];
        let mut at = self.host.until(vcpu, cpu, from);
        if let Some(job) = own.jobs.front() {
            at = at.min(from + job.left_ns);
        } else if own.burst_ns > 0 {
            at = at.min(from + own.burst_ns);
        }
        let own = &mut self.cpus[cpu];
        own.turn += 1;
        let what = What::Look { cpu, turn: own.turn };
        self.plan(at, what);
    }

    /// The running vCPU, if any, waits or sleeps; the next runs, if there is one. All time used is
    /// counted.
    fn reschedule(&mut self, cpu: usize) {
        if let Some(vcpu) = self.cpus[cpu].current.take() {
            let since = self.cpus[cpu].since;
            self.cpus[cpu].overhead_ns -= since.saturating_sub(self.now);
            self.vcpus[vcpu].last_cpu = cpu;
            if self.has_work(vcpu) {
                self.vcpus[vcpu].state = State::Waits;
                self.waiting += 1;
                self.host.put_back(vcpu, cpu);
            } else {
                self.vcpus[vcpu].state = State::Sleeps;
                self.host.sleep(vcpu, cpu);
                self.plan_burst(vcpu);
            }
        } else {
            self.idle -= 1;
        }
        let next = self.host.pick(cpu);
        let own = &mut self.cpus[cpu];
        own.current = next;
        own.turn += 1;
        let Some(vcpu) = next else {
            self.idle += 1;
            own.since = self.now;
            return;
        };
        let is_other = u64::from(own.last != next);
        let is_boosted = u64::from(std::mem::take(&mut self.vcpus[vcpu].boost_cost));
        let cost = is_other * SWITCH_NS + is_boosted * BOOST_NS;
        own.switches += is_other;
        own.last = next;
        own.overhead_ns += cost;
        own.since = self.now + cost;
        self.vcpus[vcpu].state = State::Runs(cpu);
        self.waiting -= 1;
        self.plan_look(cpu, vcpu);
    }

    /// Forgets the counts of the warm-up.
    fn measure(&mut self) {
        for cpu in 0..self.cpus.len() {
            self.settle(cpu);
            let now = self.now;
            let own = &mut self.cpus[cpu];
            own.overhead_ns = own.since.saturating_sub(now);
            (own.idle_ns, own.switches) = (0, 0);
        }
        self.vcpus.iter_mut().for_each(|own| own.used_ns = 0);
        self.host.measure();
        (self.outcome.wasted_ns, self.outcome.events) = (0, 0);
    }
}
