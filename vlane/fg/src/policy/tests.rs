#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;

const RAISE: Raise = Raise { nice: -10, io: Some(IoPriority::BEST) };
const PLAIN: Values = Values { nice: 0, io: IoPriority::NONE };
const TERMINAL: i32 = 34816;
const INIT: i32 = 1;
const SHELL: i32 = 100;

/// A thread of the model: what it has, and what it would have if the program under test did not
/// exist.
#[derive(Debug, Clone)]
struct Task {
    tid: i32,
    start: u64,
    has: Values,
    own: Values,
}

#[derive(Debug, Clone)]
struct Process {
    parent: i32,
    group: i32,
    session: i32,
    terminal: i32,
    stack: u64,
    tasks: Vec<Task>,
}

/// Processes of a machine with one terminal, and the policy that looks at them now and then.
struct World {
    now: u64,
    next: i32,
    foreground: i32,
    processes: BTreeMap<i32, Process>,
    policy: Policy,
}

impl World {
    fn new() -> Self {
        let one = |tid| Task { tid, start: 1, has: PLAIN, own: PLAIN };
        let process = |pid: i32, terminal| Process {
            parent: if pid == INIT { 0 } else { INIT },
            group: pid,
            session: pid,
            terminal,
            stack: 7,
            tasks: vec![one(pid)],
        };
        let processes = [(INIT, process(INIT, 0)), (SHELL, process(SHELL, TERMINAL))].into();
        Self { now: 50, next: 101, foreground: SHELL, processes, policy: Policy::new(RAISE) }
    }

    fn pick(&self, index: usize) -> i32 {
        // Not init.
        *self
            .processes
            .keys()
            .filter(|pid| **pid != INIT)
            .nth(index % (self.processes.len() - 1))
            .unwrap()
    }

    fn at(&mut self, pid: i32) -> &mut Process {
        self.processes.get_mut(&pid).unwrap()
    }

    fn task(&mut self, pid: i32) -> &mut Task {
        &mut self.at(pid).tasks[0]
    }

    fn fork(&mut self, parent: i32) -> i32 {
        let (pid, start) = (self.next, self.now);
        self.next += 1;
        let mut child = self.processes[&parent].clone();
        child.parent = parent;
        child.tasks.truncate(1);
        (child.tasks[0].tid, child.tasks[0].start) = (pid, start);
        self.processes.insert(pid, child);
        pid
    }

    /// Starts a process and a thread in the very tick in which the program works. Only the values
    /// tell then which have inherited, and a process whose I/O priority was set by hand has only
    /// the half of them.
    fn race(&mut self, index: usize) {
        let pid = self.pick(index);
        if self.task(pid).own.io.is_default() {
            self.fork(pid);
            self.thread(pid);
        }
    }

    fn thread(&mut self, pid: i32) {
        let (tid, start) = (self.next, self.now);
        self.next += 1;
        let task = Task { tid, start, ..self.processes[&pid].tasks[0].clone() };
        self.at(pid).tasks.push(task);
    }

    /// nice(1): a change by some, and then another program.
    fn nice(&mut self, pid: i32, by: i32) {
        let task = self.task(pid);
        if [task.has.nice + by, task.own.nice + by].iter().any(|nice| *nice != clamp(*nice)) {
            // A value cut off at the end of the scale cannot be known.
            return;
        }
        task.has.nice = clamp(task.has.nice + by);
        task.own.nice = clamp(task.own.nice + by);
        self.exec(pid);
    }

    fn exec(&mut self, pid: i32) {
        let process = self.at(pid);
        process.stack += 1;
        process.tasks.truncate(1);
    }

    /// Ends; its children are init's.
    fn exit(&mut self, pid: i32) {
        self.processes.remove(&pid);
        for process in self.processes.values_mut().filter(|process| process.parent == pid) {
            process.parent = INIT;
        }
    }

    fn seen(&self, pid: i32) -> Seen {
        let process = &self.processes[&pid];
        let stat = Stat {
            pid,
            name: String::new(),
            state: 'S',
            parent: process.parent,
            group: process.group,
            session: process.session,
            terminal: process.terminal,
            foreground: if process.terminal == 0 { -1 } else { self.foreground },
            nice: 0,
            threads: 1,
            start: process.tasks[0].start,
            stack: process.stack,
        };
        let thread = |task: &Task| Thread { tid: task.tid, start: task.start, values: task.has };
        let owner = Some("0 0::/".to_owned());
        Seen { stat, threads: process.tasks.iter().map(thread).collect(), owner }
    }

    /// One reading of some processes, with the parents of what is new among them.
    fn decide(&mut self, wanted: impl Fn(i32) -> bool) -> Vec<Change> {
        let ended: Vec<i32> = self
            .policy
            .known()
            .keys()
            .copied()
            .filter(|pid| !self.processes.contains_key(pid))
            .collect();
        ended.into_iter().for_each(|pid| self.policy.gone(pid, self.now));
        let mut pids: Vec<i32> =
            self.processes.keys().copied().filter(|pid| wanted(*pid)).collect();
        let mut at = 0;
        while at < pids.len() {
            let parent = self.processes[&pids[at]].parent;
            if !self.policy.knows(pids[at])
                && parent > 0
                && !self.policy.knows(parent)
                && !pids.contains(&parent)
            {
                pids.push(parent);
            }
            at += 1;
        }
        let seen: Vec<Seen> = pids.into_iter().map(|pid| self.seen(pid)).collect();
        self.policy.decide(&seen, self.now, LookReason::Look)
    }

    fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            let found = self.processes.get_mut(&change.pid);
            let task = found
                .and_then(|process| process.tasks.iter_mut().find(|task| task.tid == change.tid));
            let mut outcome = Outcome { gone: true, ..Outcome::default() };
            if let Some(task) = task.filter(|task| task.has == change.from) {
                task.has = change.to;
                outcome.gone = false;
            }
            self.policy.applied(change, &outcome, (self.now, self.now));
        }
    }

    /// Looks at all processes until no change is left.
    fn look(&mut self) {
        self.now += 60;
        for _ in 0..6 {
            let changes = self.decide(|_| true);
            if changes.is_empty() {
                self.now += 60;
                return;
            }
            self.apply(&changes);
        }
        panic!("it does not come to an end");
    }

    /// A daemon that is killed before it has made all of these changes, and the next one, which
    /// finds its record.
    fn kill(&mut self, changes: &[Change], made: usize) {
        let record = serde_json::to_string(&self.policy.memory()).unwrap();
        self.apply(&changes[..made.min(changes.len())]);
        self.policy = Policy::of(RAISE, serde_json::from_str(&record).unwrap());
    }

    fn all_is_given_back(&mut self) {
        self.foreground = 0;
        self.look();
        for (pid, process) in &self.processes {
            for task in &process.tasks {
                assert_eq!(task.has, task.own, "process {pid} thread {}", task.tid);
            }
        }
        assert!(self.policy.memory().is_clean());
    }

    fn has(&self, pid: i32) -> String {
        self.processes[&pid].tasks[0].has.to_string()
    }
}

/// Steps of people, programs and the daemon.
#[derive(Debug, Clone)]
enum Step {
    Fork(usize),
    Group(usize),
    Session(usize),
    Foreground(usize),
    Exec(usize),
    Nice(usize, i32),
    Renice(usize, i32),
    Ionice(usize, u32),
    Thread(usize),
    Exit(usize),
    Wait(u64),
    Look,
    Glance(u64, usize),
    Race(usize, usize),
    Kill(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = 0..12_usize;
    let step = prop_oneof![
        6 => who.clone().prop_map(Step::Fork),
        4 => who.clone().prop_map(Step::Group),
        1 => who.clone().prop_map(Step::Session),
        6 => who.clone().prop_map(Step::Foreground),
        3 => who.clone().prop_map(Step::Exec),
        2 => (who.clone(), 1..25).prop_map(|(who, by)| Step::Nice(who, by)),
        2 => (who.clone(), 0..20).prop_map(|(who, to)| Step::Renice(who, to)),
        2 => (who.clone(), prop_oneof![Just(2 << 13 | 2), Just(2 << 13 | 4), Just(3 << 13), Just(2 << 13 | 7)])
            .prop_map(|(who, to)| Step::Ionice(who, to)),
        2 => who.clone().prop_map(Step::Thread),
        2 => who.clone().prop_map(Step::Exit),
        2 => (1..9_u64).prop_map(Step::Wait),
        5 => Just(Step::Look),
        4 => (any::<u64>(), 1..4_usize).prop_map(|(which, passes)| Step::Glance(which, passes)),
        2 => (who.clone(), who.clone()).prop_map(|(one, other)| Step::Race(one, other)),
        1 => who.prop_map(Step::Kill),
    ];
    proptest::collection::vec(step, 1..60)
}

fn take(world: &mut World, step: &Step) {
    match *step {
        Step::Fork(who) => drop(world.fork(world.pick(who))),
        Step::Group(who) => {
            let pid = world.pick(who);
            world.at(pid).group = pid;
        }
        Step::Session(who) => {
            let pid = world.pick(who);
            if pid != SHELL {
                let process = world.at(pid);
                (process.session, process.group, process.terminal) = (pid, pid, 0);
            }
        }
        Step::Foreground(who) => world.foreground = world.processes[&world.pick(who)].group,
        Step::Exec(who) => world.exec(world.pick(who)),
        Step::Nice(who, by) => world.nice(world.pick(who), by),
        Step::Renice(who, to) => {
            // By hand, of a process that has been there for a while.
            world.look();
            let pid = world.pick(who);
            // All threads: which of them starts a process is not known.
            for task in &mut world.at(pid).tasks {
                // The raised value, or the process's own one, does not count as another one.
                if to != task.has.nice && to != task.own.nice {
                    (task.has.nice, task.own.nice) = (to, to);
                }
            }
            world.look();
        }
        Step::Ionice(who, to) => {
            world.look();
            let pid = world.pick(who);
            for task in &mut world.at(pid).tasks {
                if task.own.io != IoPriority::of(to) {
                    (task.has.io, task.own.io) = (IoPriority::of(to), IoPriority::of(to));
                }
            }
            world.look();
        }
        Step::Thread(who) => world.thread(world.pick(who)),
        Step::Exit(who) => {
            let pid = world.pick(who);
            let known = |(child, process): (&i32, &Process)| {
                process.parent != pid || world.policy.knows(*child)
            };
            if pid != SHELL && world.processes.iter().all(known) {
                world.exit(pid);
            }
        }
        Step::Wait(ticks) => world.now += ticks,
        Step::Look => world.look(),
        Step::Glance(which, passes) => {
            world.now += 60;
            for _ in 0..passes {
                let changes = world.decide(|pid| which >> (pid % 64) & 1 == 1);
                world.apply(&changes);
            }
            world.now += 60;
        }
        Step::Race(one, other) => {
            // Processes that are started while the program works.
            let changes = world.decide(|_| true);
            world.race(one);
            world.apply(&changes);
            world.race(other);
            world.look();
        }
        Step::Kill(made) => {
            world.now += 60;
            let changes = world.decide(|_| true);
            world.kill(&changes, made);
            world.now += 60;
            // As the daemon does first of all.
            world.look();
        }
    }
}

// The same cases each time, and PROPTEST_CASES=100000 for more of them.
proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0x6667), ..ProptestConfig::default() })]

    /// After any steps, a background thread has the values that it would have without this program.
    #[test]
    fn background_has_its_own_values(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            take(&mut world, step);
            if world.processes.len() > 11 {
                let pid = world.pick(3);
                world.look();
                world.exit(if pid == SHELL { world.pick(4) } else { pid });
            }
        }
        world.all_is_given_back();
    }
}

/// The shell is raised while its job is not in the foreground.
#[test]
fn job_and_shell_are_raised_in_turn() {
    let mut world = World::new();
    world.look();
    assert_eq!(world.has(SHELL), "nice -10 io be/0");
    let job = world.fork(SHELL);
    world.at(job).group = job;
    world.foreground = job;
    world.look();
    assert_eq!(
        (world.has(job).as_str(), world.has(SHELL).as_str()),
        ("nice -10 io be/0", "nice 0 io none")
    );
    world.foreground = SHELL;
    world.look();
    assert_eq!(
        (world.has(job).as_str(), world.has(SHELL).as_str()),
        ("nice 0 io none", "nice -10 io be/0")
    );
}

#[test]
fn nice_adds_to_the_shells_own_value() {
    for (by, own) in [(5, 5), (10, 10), (19, 19), (1, 1)] {
        // The process is seen before nice(1) and after it, or after it only.
        for seen_before in [true, false] {
            let mut world = World::new();
            world.look();
            let job = world.fork(SHELL);
            if seen_before {
                world.look();
            }
            world.at(job).group = job;
            world.nice(job, by);
            world.look();
            assert_eq!(world.has(job), format!("nice {own} io none"), "{seen_before}");
        }
    }
}

/// It stays in the foreground and after.
#[test]
fn value_set_by_hand_stays() {
    let mut world = World::new();
    let job = world.fork(SHELL);
    (world.at(job).group, world.foreground) = (job, job);
    world.look();
    world.task(job).has = Values { nice: 7, io: "be/6".parse().unwrap() };
    world.look();
    assert_eq!(world.has(job), "nice 7 io be/6");
    world.foreground = SHELL;
    world.look();
    assert_eq!(world.has(job), "nice 7 io be/6");
}

/// A job that has inherited, in the foreground, and a change of it before half a second is over.
fn a_young_job_is_changed(change: impl Fn(&mut World, i32)) -> (World, i32) {
    let mut world = World::new();
    world.look();
    let job = world.fork(SHELL);
    (world.at(job).group, world.foreground) = (job, job);
    for step in [false, true] {
        world.now += 10;
        if step {
            change(&mut world, job);
        }
        let changes = world.decide(|_| true);
        world.apply(&changes);
    }
    world.foreground = SHELL;
    world.look();
    (world, job)
}

/// Another program resets the values within the first half second.
#[test]
fn early_reset_is_not_plus_10() {
    for exec in [false, true] {
        let (world, job) = a_young_job_is_changed(|world, job| {
            world.task(job).has = PLAIN;
            if exec {
                world.exec(job);
            }
        });
        assert_eq!(world.has(job), "nice 0 io none", "{exec}");
    }
}

#[test]
fn renice_10_of_young_process_stays() {
    for nice in [10, 1] {
        let (world, job) = a_young_job_is_changed(|world, job| world.task(job).has.nice = nice);
        assert_eq!(world.has(job), format!("nice {nice} io none"));
    }
    // A part of the raise: only nice(1) sets that.
    let (world, job) = a_young_job_is_changed(|world, job| world.task(job).has.nice = -5);
    assert_eq!(world.has(job), "nice 5 io none");
}

/// Its parents have ended unseen.
#[test]
fn orphan_has_its_sessions_values() {
    for own_session in [false, true] {
        let mut world = World::new();
        world.task(SHELL).has.nice = 3;
        world.task(SHELL).own.nice = 3;
        world.look();
        let between = world.fork(SHELL);
        let left = world.fork(between);
        if own_session {
            let process = world.at(left);
            (process.session, process.group, process.terminal) = (left, left, 0);
        } else {
            world.at(left).group = left;
        }
        world.exit(between);
        world.look();
        assert_eq!(world.has(left), "nice 3 io none", "{own_session}");
        // And where the shell has ended as well.
        let later = world.fork(SHELL);
        world.at(later).group = later;
        world.exit(SHELL);
        world.look();
        assert_eq!(world.has(later), "nice 3 io none");
    }
}

/// The child has one of the two values from before.
#[test]
fn fork_during_restore_has_half() {
    for (nice, io) in [(-10, "none"), (0, "be/0"), (-10, "be/0"), (0, "none")] {
        let mut world = World::new();
        world.look();
        world.foreground = 0;
        let changes = world.decide(|_| true);
        let child = world.fork(SHELL);
        world.apply(&changes);
        world.at(child).group = child;
        world.task(child).has = Values { nice, io: io.parse().unwrap() };
        world.look();
        assert_eq!(world.has(child), "nice 0 io none", "from {nice} {io}");
    }
}

#[test]
fn fork_during_raise_is_raised_whole() {
    // The I/O priority is set first and copied last: the nice value alone never occurs.
    for (nice, io) in [(0, "be/0"), (-10, "be/0"), (0, "none")] {
        let mut world = World::new();
        // Raised in the tick in which it starts a job; the job has what was copied of it meanwhile.
        let changes = world.decide(|_| true);
        let job = world.fork(SHELL);
        world.apply(&changes);
        world.task(job).has = Values { nice, io: io.parse().unwrap() };
        (world.at(job).group, world.foreground) = (job, job);
        world.look();
        assert_eq!(world.has(job), "nice -10 io be/0", "from {nice} {io}");
        world.foreground = SHELL;
        world.look();
        assert_eq!(world.has(job), "nice 0 io none", "from {nice} {io}");
    }
}

#[test]
fn removed_value_is_set_by_next_look() {
    let mut world = World::new();
    world.look();
    world.task(SHELL).has.io = IoPriority::NONE;
    world.look();
    assert_eq!(world.has(SHELL), "nice -10 io be/0");
}

/// A daemon without its record raised the thread before.
#[test]
fn lost_record_does_not_raise_twice() {
    let mut world = World::new();
    world.look();
    world.policy = Policy::new(RAISE);
    world.look();
    assert_eq!(world.has(SHELL), "nice -10 io be/0");
}

/// A thread that cannot be restored is remembered.
#[test]
fn forbidden_value_is_tried_once() {
    let mut world = World::new();
    let refused = Some("not permitted".to_owned());
    let changes = world.decide(|_| true);
    world.task(SHELL).has.io = IoPriority::BEST;
    for change in &changes {
        let outcome = Outcome { nice: refused.clone(), ..Outcome::default() };
        world.policy.applied(change, &outcome, (world.now, world.now));
    }
    assert_eq!(world.decide(|_| true), []);
    world.foreground = 0;
    let changes = world.decide(|_| true);
    assert_eq!(changes.len(), 1);
    let outcome = Outcome { io: refused, ..Outcome::default() };
    world.policy.applied(&changes[0], &outcome, (world.now, world.now));
    let memory = world.policy.memory();
    let stuck = memory.known[&SHELL].entries().next().unwrap().1.stuck.clone();
    assert_eq!(stuck.as_deref(), Some("not permitted"));
    world.all_is_given_back();
}

#[test]
fn reused_process_number_is_left_alone() {
    let mut world = World::new();
    let job = world.fork(SHELL);
    (world.at(job).group, world.foreground) = (job, job);
    world.look();
    world.foreground = SHELL;
    let now = world.now;
    let task = world.task(job);
    let other = Values { nice: -10, io: "be/1".parse().unwrap() };
    (task.start, task.has, task.own) = (now, other, other);
    world.look();
    assert_eq!(world.has(job), "nice -10 io be/1");
}
