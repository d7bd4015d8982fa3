//! Decides how many threads a volume's lanes are worth, and which lane runs on which: the decision
//! alone, without a clock and without I/O.
//!
//! The governor's input is the observation of threads and lanes during a period ([`Look`]). The
//! answer is the lanes that are to go to another thread.
//!
//! * **Spread.** A thread may be busy nearly all the time ([`BUSY`]), with two or more lanes that
//!   have work. It gives some of them to the thread with the most room, or to one without lanes.
//! * **Even.** Two threads may both have too much to do. If one has at least two more lanes with
//!   work than the other, it gives it one.
//! * **Gather.** Threads that are not worth half a CPU together ([`ROOM`]) become one. The two
//!   limits lie far enough apart for a load between them to stay where it is.
//! * **On trial.** The effect of a change is measured against the time before. The measures are
//!   requests per second, CPU time per request, and a request's wait for its turn. More threads
//!   stay when they bring more requests or shorter waits for a bearable price, fewer stay unless
//!   requests become fewer or dearer. A change that does not stay is undone, and not tried again
//!   for a second, then two, up to a minute. Under a very different load it may be tried at once.
//!
//! "Busy" is the time in which a thread has work: a thread that looks for work is not busy. A
//! request's wait is half a round of its thread: it comes at any moment of one, and is seen in the
//! next.

use std::time::Duration;

/// The share of its time above which a thread has too much to do.
const BUSY: f64 = 0.8;
/// The most work of threads that become one, together, in CPUs.
const ROOM: f64 = 0.5;
/// A lane has work when it makes this share of its thread's requests.
const WORK: f64 = 0.05;
/// By how much the busiest of two threads must get less to do for a change between them.
const WORTH: f64 = 0.15;
/// For how long a thread has too much to do before that is believed.
const OVER: Duration = Duration::from_millis(40);
/// ... and before lanes go to a thread that has work, too: it may only have rested for a moment.
const LONG: Duration = Duration::from_millis(100);
/// For how long threads have room for each other before that is believed.
const UNDER: Duration = Duration::from_millis(200);
/// The time that a change may take to show: threads learn anew whether to poll, and the host where
/// to run them.
const SETTLE: Duration = Duration::from_millis(100);
/// The time of the measurement after that. On a host whose CPUs are all busy, less than this is
/// noise.
const TRIAL: Duration = Duration::from_millis(200);
/// For how long a change is waited for: storage that hangs can hold a lane where it is.
const PATIENCE: Duration = Duration::from_millis(500);
/// Fewer requests than these carry no information on a change.
const TELLING: f64 = 50.0;
/// For how long a change that did not pay is not tried again: at first, and at most.
const REST: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(64));
/// A change that is wanted back within this time did not pay, even if the measurement says so.
const REGRET: Duration = Duration::from_secs(10);

/// A thread's work during a period.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ThreadLook {
    /// Time with work: neither asleep nor looking for work.
    pub(crate) busy: Duration,
    /// CPU time, looking for work included.
    pub(crate) cpu: Duration,
    /// Rounds with work.
    pub(crate) rounds: u64,
}

/// A lane's work during a period.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneLook {
    /// Its queue's index.
    pub(crate) lane: u16,
    /// Its thread at the end of the period.
    pub(crate) thread: usize,
    /// Requests taken.
    pub(crate) requests: u64,
}

/// A period.
#[derive(Debug, Clone, Default)]
pub(crate) struct Look {
    pub(crate) length: Duration,
    /// All threads that there may be, by number.
    pub(crate) threads: Vec<ThreadLook>,
    /// The lanes that run.
    pub(crate) lanes: Vec<LaneLook>,
}

/// A lane that is to run on another thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) lane: u16,
    pub(crate) thread: usize,
}

/// The cost of requests during some time.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    seconds: f64,
    requests: f64,
    cpu: f64,
    waited: f64,
}

impl Cost {
    fn of(look: &Look) -> Cost {
        let mut cost = Cost { seconds: look.length.as_secs_f64(), ..Cost::default() };
        for (number, thread) in look.threads.iter().enumerate() {
            let here = look.lanes.iter().filter(|lane| lane.thread == number);
            let requests = here.map(|lane| count(lane.requests)).sum::<f64>();
            cost.requests += requests;
            cost.cpu += thread.cpu.as_secs_f64();
            cost.waited += requests * thread.busy.as_secs_f64() / count(thread.rounds.max(1)) / 2.0;
        }
        cost
    }

    fn add(&mut self, other: Cost) {
        self.seconds += other.seconds;
        self.requests += other.requests;
        self.cpu += other.cpu;
        self.waited += other.waited;
    }

    /// Older costs count less.
    fn fade(&mut self) {
        for part in [&mut self.seconds, &mut self.requests, &mut self.cpu, &mut self.waited] {
            *part *= 0.9;
        }
    }

    /// Requests per second, and CPU time and wait per request, as shares of those of `before`.
    fn over(&self, before: &Cost) -> Ratios {
        let ratio = |now: f64, then: f64| if then > 0.0 { now / then } else { 1.0 };
        let per = |what: f64, of: f64| if of > 0.0 { what / of } else { 0.0 };
        Ratios {
            rate: ratio(per(self.requests, self.seconds), per(before.requests, before.seconds)),
            cpu: ratio(per(self.cpu, self.requests), per(before.cpu, before.requests)),
            wait: ratio(per(self.waited, self.requests), per(before.waited, before.requests)),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Ratios {
    rate: f64,
    cpu: f64,
    wait: f64,
}

/// A way to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Spread,
    Even,
    Gather,
}

impl Direction {
    /// Returns true if a change with these effects pays.
    fn pays(self, ratios: Ratios) -> bool {
        let Ratios { rate, cpu, wait } = ratios;
        match self {
            // Twice the requests at twice the CPU time each is what a second thread may cost at
            // most.
            Direction::Spread => {
                (rate >= 1.1 && cpu <= rate) || (rate >= 0.95 && wait <= 0.75 && cpu <= 1.25)
            }
            // All lanes together get as much; it is between them that it is more even.
            Direction::Even | Direction::Gather => rate >= 0.9 && cpu <= 1.1,
        }
    }
}

/// A change whose effect is being measured.
#[derive(Debug)]
struct Trial {
    way: Direction,
    steps: Vec<Step>,
    undo: Vec<Step>,
    before: Cost,
    /// The work of all threads, in CPUs.
    busy: f64,
    since: Duration,
    /// The time at which the lanes had arrived.
    arrived: Option<Duration>,
    after: Cost,
}

/// A way that did not pay.
#[derive(Debug, Clone, Copy, Default)]
struct Ban {
    until: Duration,
    rest: Duration,
    /// The work of all threads then, in CPUs.
    busy: f64,
}

/// A thread's lanes and load.
#[derive(Debug, Clone, Default)]
struct Held {
    /// Share of its time.
    busy: f64,
    /// Its lanes, and each lane's part of `busy`.
    lanes: Vec<(u16, f64)>,
    /// The lanes with work, the busiest first.
    working: Vec<(u16, f64)>,
}

/// Decides. Feed it every period.
#[derive(Debug)]
pub(crate) struct Governor {
    /// The most threads.
    limit: usize,
    now: Duration,
    /// Since the last change.
    before: Cost,
    /// By thread, for how long it has had too much to do.
    over: Vec<Duration>,
    /// By thread, the share of its time that it was busy of late.
    of_late: Vec<f64>,
    under: Duration,
    trial: Option<Trial>,
    /// By [`Direction`].
    bans: [Ban; 3],
    /// The last change that stayed.
    kept: Option<(Direction, Duration)>,
    lanes: Vec<u16>,
    is_settled: bool,
}

impl Governor {
    /// For lanes on at most `limit` threads.
    pub(crate) fn new(limit: usize) -> Governor {
        Governor {
            limit: limit.max(1),
            now: Duration::ZERO,
            before: Cost::default(),
            over: Vec::new(),
            of_late: Vec::new(),
            under: Duration::ZERO,
            trial: None,
            bans: [Ban::default(); 3],
            kept: None,
            lanes: Vec::new(),
            is_settled: false,
        }
    }

    /// Returns true if no change will follow as long as all lanes are idle.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// The lanes that are to move, after a period.
    pub(crate) fn decide(&mut self, look: &Look) -> Vec<Step> {
        self.now += look.length;
        let lanes: Vec<_> = look.lanes.iter().map(|lane| lane.lane).collect();
        if lanes != self.lanes {
            // Another guest, or another load: what was measured before is of no use.
            self.lanes = lanes;
            self.forget();
            self.trial = None;
            self.kept = None;
            self.bans = [Ban::default(); 3];
        }
        let cost = Cost::of(look);
        let held = held(look);
        let busy = held.iter().map(|thread| thread.busy).sum();
        let steps = match self.trial.take() {
            Some(trial) => self.judge(trial, look, cost, busy),
            None => {
                self.before.fade();
                self.before.add(cost);
                self.change(look, &held, busy)
            }
        };
        let used = held.iter().filter(|thread| !thread.lanes.is_empty()).count();
        self.is_settled = steps.is_empty() && self.trial.is_none() && used <= 1;
        steps
    }

    /// Begins to measure anew.
    fn forget(&mut self) {
        self.before = Cost::default();
        self.over.clear();
        self.of_late.clear();
        self.under = Duration::ZERO;
    }

    fn change(&mut self, look: &Look, held: &[Held], busy: f64) -> Vec<Step> {
        self.over.resize(held.len(), Duration::ZERO);
        for (over, thread) in self.over.iter_mut().zip(held) {
            let is_over = thread.busy > BUSY && thread.working.len() >= 2;
            *over = if is_over { *over + look.length } else { Duration::ZERO };
        }
        let unknown = self.of_late.len()..held.len();
        self.of_late.extend(held[unknown].iter().map(|thread| thread.busy));
        for (of_late, thread) in self.of_late.iter_mut().zip(held) {
            *of_late = *of_late * 0.6 + thread.busy * 0.4;
        }
        let mut full: Vec<_> =
            (0..held.len()).filter(|thread| self.over[*thread] >= OVER).collect();
        full.sort_by_key(|thread| std::cmp::Reverse(held[*thread].working.len()));
        if !self.is_banned(Direction::Spread, busy)
            && let Some(steps) = full.iter().find_map(|thread| self.spread(held, *thread))
        {
            return self.try_out(Direction::Spread, steps, look, busy);
        }
        if !self.is_banned(Direction::Even, busy)
            && let Some(step) = full.first().and_then(|thread| self.even(held, *thread))
        {
            return self.try_out(Direction::Even, vec![step], look, busy);
        }
        let group = group(held);
        self.under = if group.len() >= 2 { self.under + look.length } else { Duration::ZERO };
        if self.under >= UNDER && !self.is_banned(Direction::Gather, busy) {
            let steps = gather(held, &group);
            return self.try_out(Direction::Gather, steps, look, busy);
        }
        Vec::new()
    }

    /// Lanes of a thread that has too much to do, for the thread that has the least.
    fn spread(&self, held: &[Held], from: usize) -> Option<Vec<Step>> {
        let used = held.iter().filter(|thread| !thread.lanes.is_empty()).count();
        let may_grow = used < self.limit;
        let others =
            (0..held.len()).filter(|to| *to != from && (may_grow || !held[*to].lanes.is_empty()));
        // A thread with little to do is better than one more.
        let of_late = |to: usize| if held[to].lanes.is_empty() { 0.0 } else { self.of_late[to] };
        let rank = |to: usize| match of_late(to) {
            _ if held[to].lanes.is_empty() => 1,
            busy if busy <= BUSY - ROOM => 0,
            _ => 2,
        };
        let to = others
            .min_by(|a, b| rank(*a).cmp(&rank(*b)).then(of_late(*a).total_cmp(&of_late(*b))))?;
        if !held[to].lanes.is_empty() && self.over[from] < LONG {
            return None;
        }
        let (mut stays, mut goes) = (0.0, of_late(to));
        let mut steps = Vec::new();
        for (lane, load) in &held[from].working {
            if stays <= goes {
                stays += load;
            } else {
                goes += load;
                steps.push(Step { lane: *lane, thread: to });
            }
        }
        let is_worth = f64::max(stays, goes) + WORTH <= held[from].busy;
        (is_worth && !steps.is_empty()).then_some(steps)
    }

    /// Moves a lane from an overloaded thread to another such thread with fewer working lanes.
    fn even(&self, held: &[Held], from: usize) -> Option<Step> {
        let many = held[from].working.len();
        let others =
            (0..held.len()).filter(|to| self.over[from] >= LONG && self.of_late[*to] > BUSY);
        let to = others
            .min_by_key(|to| held[*to].working.len())
            .filter(|to| held[*to].working.len() + 2 <= many)?;
        let (lane, _) = held[from].working.last()?;
        Some(Step { lane: *lane, thread: to })
    }

    fn try_out(&mut self, way: Direction, steps: Vec<Step>, look: &Look, busy: f64) -> Vec<Step> {
        if let Some((kept, at)) = self.kept
            && (kept == Direction::Gather) != (way == Direction::Gather)
            && self.now - at <= REGRET
        {
            self.ban(kept, busy);
        }
        let present = |step: &Step| {
            look.lanes.iter().find(|lane| lane.lane == step.lane).map(|lane| lane.thread)
        };
        let undo = steps
            .iter()
            .filter_map(|step| Some(Step { lane: step.lane, thread: present(step)? }))
            .collect();
        self.trial = Some(Trial {
            way,
            steps: steps.clone(),
            undo,
            before: self.before,
            busy,
            since: self.now,
            arrived: None,
            after: Cost::default(),
        });
        steps
    }

    fn judge(&mut self, mut trial: Trial, look: &Look, cost: Cost, busy: f64) -> Vec<Step> {
        let is_there = |step: &Step| {
            look.lanes.iter().any(|lane| lane.lane == step.lane && lane.thread == step.thread)
        };
        if !trial.steps.iter().all(is_there) {
            if self.now.saturating_sub(trial.since) <= PATIENCE {
                self.trial = Some(trial);
                return Vec::new();
            }
            // The moved lanes may stay: the new state is as good as the old one.
            self.ban(trial.way, busy);
            self.forget();
            return Vec::new();
        }
        if trial.before.requests < TELLING {
            // There is no earlier period to compare with.
            self.forget();
            return Vec::new();
        }
        let arrived = *trial.arrived.get_or_insert(self.now);
        if self.now - arrived < SETTLE {
            self.trial = Some(trial);
            return Vec::new();
        }
        trial.after.add(cost);
        if trial.after.seconds < TRIAL.as_secs_f64() {
            self.trial = Some(trial);
            return Vec::new();
        }
        self.forget();
        if trial.after.requests < TELLING || trial.way.pays(trial.after.over(&trial.before)) {
            self.before = trial.after;
            self.kept = Some((trial.way, self.now));
            return Vec::new();
        }
        self.ban(trial.way, trial.busy);
        trial.undo
    }

    fn ban(&mut self, way: Direction, busy: f64) {
        let ban = &mut self.bans[way as usize];
        ban.rest = (ban.rest * 2).clamp(REST.0, REST.1);
        ban.until = self.now + ban.rest;
        ban.busy = busy;
    }

    /// Returns true if that way did not pay of late, at about this load.
    fn is_banned(&mut self, way: Direction, busy: f64) -> bool {
        let ban = &mut self.bans[way as usize];
        if ban.rest.is_zero() {
            return false;
        }
        if busy > ban.busy * 2.0 || busy < ban.busy / 2.0 {
            *ban = Ban::default();
            return false;
        }
        self.now < ban.until
    }
}

/// The lanes and load of each thread.
fn held(look: &Look) -> Vec<Held> {
    let length = look.length.as_secs_f64().max(1e-9);
    let mut threads = vec![Held::default(); look.threads.len()];
    for (number, (held, thread)) in threads.iter_mut().zip(&look.threads).enumerate() {
        held.busy = (thread.busy.as_secs_f64() / length).min(1.0);
        let here = || look.lanes.iter().filter(|lane| lane.thread == number);
        let all: f64 = here().map(|lane| count(lane.requests)).sum();
        let share = |lane: &LaneLook| if all > 0.0 { count(lane.requests) / all } else { 0.0 };
        held.lanes = here().map(|lane| (lane.lane, held.busy * share(lane))).collect();
        held.working = here()
            .filter(|lane| share(lane) >= WORK)
            .map(|lane| (lane.lane, held.busy * share(lane)))
            .collect();
        held.working.sort_by(|a, b| b.1.total_cmp(&a.1));
    }
    threads
}

/// The threads that have room for each other, those with the least to do first.
fn group(held: &[Held]) -> Vec<usize> {
    let mut used: Vec<_> =
        (0..held.len()).filter(|thread| !held[*thread].lanes.is_empty()).collect();
    used.sort_by(|a, b| held[*a].busy.total_cmp(&held[*b].busy));
    let mut together = 0.0;
    used.retain(|thread| {
        together += held[*thread].busy;
        together <= ROOM
    });
    used
}

/// All lanes of these threads on the first of them by number.
fn gather(held: &[Held], group: &[usize]) -> Vec<Step> {
    let Some(to) = group.iter().copied().min() else { return Vec::new() };
    let others = group.iter().filter(|thread| **thread != to);
    others
        .flat_map(|thread| &held[*thread].lanes)
        .map(|(lane, _)| Step { lane: *lane, thread: to })
        .collect()
}

fn count(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests;
