//! A run: the guest, the back end and the kernel take steps in an order that the seed decides.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use vlane_engine::file::Cache;
use vlane_io::Instant;
use vlane_io::system;
use vlane_lane::simulated::Step;
use vlane_policy::express::Mode;

use crate::backend::Backend;
use crate::bug::Bug;
use crate::disk::Disk;
use crate::guest::{Guest, Terms};
use crate::history::{Action, FIRST, History};
use crate::kernel::{Files, Handle, Kernel};
use crate::log::Log;
use crate::plan::{Plan, limits};

type Given<T> = Result<T, Box<dyn std::error::Error>>;

/// Steps in which all begun requests must have come to their end.
pub(crate) const PATIENCE: u32 = 50_000;

/// Counts of a run's events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Steps of the guest, of threads, of the kernel.
    pub steps: u64,
    /// Requests that were answered.
    pub answers: u64,
    /// Flushes that were answered well.
    pub flushes: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Deaths of the back end.
    pub kills: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Back ends that stopped in order, and others that continued.
    pub stops: u64,
    /// Changes: of the write cache, of limits, of a lane's thread, of the size.
    pub changes: u64,
    /// Restarts on the ring that was there, with requests in it.
    pub resumed: u64,
    /// Threads that stood still while all others came to rest.
    pub held: u64,
    /// Times that one operation was slow.
    pub slow: u64,
}

impl Tally {
    /// Adds another run's.
    pub fn add(&mut self, other: Tally) {
        let Tally {
            steps,
            answers,
            flushes,
            errors,
            kills,
            cuts,
            stops,
            changes,
            resumed,
            held,
            slow,
        } = other;
        self.steps += steps;
        self.answers += answers;
        self.flushes += flushes;
        self.errors += errors;
        self.kills += kills;
        self.cuts += cuts;
        self.stops += stops;
        self.changes += changes;
        self.resumed += resumed;
        self.held += held;
        self.slow += slow;
    }
}

/// The guest's write cache.
#[derive(Debug, Clone, Copy, Default)]
struct WriteCache {
    /// True if the write cache is to be off.
    is_off: bool,
    /// The time since when it is off, for all lanes.
    in_force: Option<u64>,
    /// True if it was to be off at some time: a request of then may still be out.
    was_off: bool,
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    bug: Option<Bug>,
    pub(crate) rng: Rng,
    pub(crate) log: Log,
    pub(crate) kernel: Rc<RefCell<Kernel>>,
    pub(crate) guest: Guest,
    pub(crate) history: History,
    /// None: it is dead.
    pub(crate) backend: Option<Backend>,
    cache: WriteCache,
    /// Sectors that the guest knows of.
    size: u64,
    /// The storage had failed before the present guest began.
    failures_before: u64,
    pub(crate) tally: Tally,
}

impl World {
    pub(crate) fn new(seed: u64, bug: Option<Bug>, log: Log) -> Given<World> {
        let mut rng = Rng::with_seed(seed);
        let plan = Plan::new(&mut rng, bug);
        log.say(&[seed], || format!("seed {seed}: {plan:?}"));
        let none = Files {
            direct: None,
            buffered: -1,
            witness: -1,
            block: plan.block,
            memory: plan.memory,
        };
        let disk = Disk::new(plan.size, plan.most);
        let initial = (0..plan.most).map(|sector| disk.read(sector)).collect();
        let kernel = Kernel::new(disk, none, plan.faults, bug, rng.fork(), log.clone());
        let kernel = Rc::new(RefCell::new(kernel));
        system::begin(Box::new(Handle(Rc::clone(&kernel))));
        let guest = Guest::new(plan.shape, plan.queues, plan.tracks, log.clone())?;
        let mut world = World {
            size: plan.size,
            bug,
            rng,
            log,
            kernel,
            guest,
            history: History::new(FIRST, initial),
            backend: None,
            cache: WriteCache::default(),
            failures_before: 0,
            tally: Tally::default(),
            plan,
        };
        world.start_fresh()?;
        Ok(world)
    }

    /// Runs to its end.
    pub(crate) fn run(&mut self) -> Given<()> {
        let ran = self.run_steps();
        self.spare();
        if let Some(backend) = self.backend.take() {
            self.kernel.borrow_mut().bury();
            backend.die();
        }
        self.count_guest();
        ran
    }

    fn run_steps(&mut self) -> Given<()> {
        for _ in 0..self.plan.steps {
            self.step()?;
            if self.log.has_failed() {
                return Ok(());
            }
        }
        self.come_to_rest()?;
        if !self.log.has_failed() {
            self.look_at_everything();
            self.judge();
        }
        Ok(())
    }

    fn count_guest(&mut self) {
        self.tally.answers += self.guest.answers;
        self.tally.flushes += self.guest.flushes;
        self.tally.errors += self.guest.errors;
    }

    fn queue(&mut self) -> u16 {
        self.rng.u16(0..self.plan.queues)
    }

    fn happens(&mut self, permille: u32) -> bool {
        permille > 0 && self.rng.u32(0..1000) < permille
    }

    /// True if no request that is out need be durable when it is answered.
    pub(crate) fn has_cache(&self) -> bool {
        self.plan.cache != Cache::WriteThrough && !self.cache.was_off
    }

    fn terms(&self) -> Terms {
        Terms {
            durable_since: if self.plan.cache == Cache::WriteThrough {
                Some(0)
            } else {
                self.cache.in_force
            },
            is_sound: self.kernel.borrow().failures == self.failures_before,
        }
    }

    fn step(&mut self) -> Given<()> {
        self.tally.steps += 1;
        let rates = self.plan.rates;
        if self.backend.is_none() {
            if self.rng.u32(0..8) == 0 {
                return self.restart();
            }
        } else if self.happens(rates.kill) {
            return self.kill_some_time();
        } else if self.happens(rates.stop) {
            self.stop();
        } else if self.happens(rates.change) {
            self.change();
        } else if self.happens(rates.slow) {
            self.slows()?;
        }
        if self.happens(rates.cut) {
            return self.cut();
        }
        if self.happens(rates.hold) {
            return self.hold();
        }
        match self.rng.u32(0..100) {
            0..35 => self.step_thread(),
            35..60 => self.step_kernel(),
            60..74 => self.submit()?,
            74..81 => {
                let queue = self.queue();
                self.guest.publish(queue);
            }
            81..87 => {
                let queue = self.queue();
                self.guest.kick(queue);
            }
            87..94 => {
                let queue = self.queue();
                self.reap(queue);
            }
            94..97 => {
                let queue = self.queue();
                if !self.guest.sleeps(queue) {
                    self.guest.sleep(queue);
                }
            }
            _ => system::pass(Duration::from_micros(self.rng.u64(1..1000))),
        }
        self.hear()
    }

    fn step_kernel(&mut self) {
        let mut kernel = self.kernel.borrow_mut();
        if kernel.is_busy() {
            kernel.step();
        }
    }

    fn step_thread(&mut self) {
        let Some(backend) = &mut self.backend else { return };
        let thread = self.rng.usize(0..=backend.threads.count());
        if thread == backend.threads.count() {
            self.step_syncs();
            return;
        }
        if !backend.threads.can_step(thread) {
            return;
        }
        let step = backend.threads.step(thread);
        self.log.say(&[30, thread as u64, step.number()], || format!("thread {thread} {step:?}"));
        if step == Step::Dies {
            self.kill();
        }
    }

    /// The thread that does the `fdatasync`s; returns true if it had work.
    fn step_syncs(&mut self) -> bool {
        let did = self.backend.as_mut().is_some_and(|backend| backend.syncs.step());
        if did {
            self.log.say(&[43], || "the thread of the flushes goes on".to_owned());
        }
        did
    }

    fn reap(&mut self, queue: u16) {
        if !self.guest.sleeps(queue) && self.guest.has_answers(queue) {
            let (terms, flushes) = (self.terms(), self.guest.flushes);
            self.guest.reap(&mut self.history, queue, terms);
            if self.guest.flushes > flushes {
                self.check_cut();
            }
        }
    }

    pub(crate) fn submit(&mut self) -> Given<()> {
        let queue = self.queue();
        let Some(slot) = self.guest.free_slot(queue) else { return Ok(()) };
        let Plan { reads, flushes, zeroes, largest, .. } = self.plan;
        let action = match self.rng.u32(0..100) {
            0 => Action::Other,
            n if n < reads => Action::Read,
            n if n < reads + flushes => Action::Flush,
            n if n < reads + flushes + zeroes && self.rng.bool() => Action::Zero,
            n if n < reads + flushes + zeroes => Action::Discard,
            _ => Action::Write,
        };
        let is_range = matches!(action, Action::Zero | Action::Discard) && self.rng.bool();
        let count = self.rng.u64(1..=if is_range { self.size } else { largest });
        // Sometimes beyond the end, which is refused.
        let end = if self.rng.u32(0..200) == 0 { self.plan.most } else { self.size };
        let sector = self.rng.u64(0..=end - count);
        let ioprio = [0, 0, 1 << 13 | 4, 3 << 13, 2 << 13][self.rng.usize(0..5)];
        let what = match action {
            Action::Flush | Action::Other => (action, 0, 0),
            _ => (action, sector, count),
        };
        let how = (ioprio, self.rng.bool(), self.size);
        self.guest.submit(&mut self.history, (queue, slot), what, how)
    }

    /// Handles the answers to control.
    fn hear(&mut self) -> Given<()> {
        let Some(backend) = &mut self.backend else { return Ok(()) };
        let news = backend.news();
        if let Some(failure) = news.failure {
            self.log.fail(|| failure);
        }
        if news.is_switched && self.cache.is_off {
            // Earlier answers were given on other terms.
            self.reap_all();
            self.cache.in_force = Some(self.log.tick());
            self.log.say(&[31], || "control: the write cache is off".to_owned());
        }
        if news.is_resized {
            self.size = self.kernel.borrow().disk.size;
        }
        if let Some(bases) = news.stopped {
            self.stopped(bases)?;
        }
        Ok(())
    }

    fn reap_all(&mut self) {
        for queue in 0..self.plan.queues {
            let terms = self.terms();
            self.guest.wake(queue);
            self.guest.reap(&mut self.history, queue, terms);
        }
    }

    fn change(&mut self) {
        let Some(backend) = &mut self.backend else { return };
        self.tally.changes += 1;
        let Plan { queues, most, .. } = self.plan;
        match self.rng.u32(0..4) {
            0 if !backend.is_asked() => {
                let on = !self.cache.is_off;
                self.cache = WriteCache { is_off: on, in_force: None, was_off: true };
                backend.set_write_through(queues, on);
                self.log.say(&[32, on.into()], || format!("control: write-through {on}"));
            }
            1 => {
                let limits =
                    if self.rng.bool() { limits(&mut self.rng) } else { Default::default() };
                backend.threads.set_limits(limits);
                self.log.say(&[33], || format!("control: {limits:?}"));
            }
            2 => {
                let (queue, thread) =
                    (self.rng.u16(0..queues), self.rng.usize(0..backend.threads.count()));
                backend.threads.move_lane(queue, thread);
                self.log.say(&[34, queue.into(), thread as u64], || {
                    format!("control: queue {queue} to thread {thread}")
                });
            }
            _ if !backend.is_asked() && self.size < most => {
                let size = self.rng.u64(self.size / 8..=most / 8) * 8;
                self.kernel.borrow_mut().disk.size = size;
                backend.set_sectors(queues, size);
                self.log.say(&[35, size], || format!("control: {size} sectors"));
            }
            _ => {}
        }
    }

    fn stop(&mut self) {
        let Some(backend) = &mut self.backend else { return };
        if !backend.is_asked() {
            let suspends = self.rng.bool();
            backend.stop(self.plan.queues, suspends);
            self.log.say(&[36, suspends.into()], || {
                format!("control: the lanes stop, suspended: {suspends}")
            });
        }
    }

    /// All lanes have stopped: others continue where they were.
    fn stopped(&mut self, mut bases: Vec<u32>) -> Given<()> {
        let Some(backend) = self.backend.take() else { return Ok(()) };
        self.tally.stops += 1;
        self.spare();
        // As with a death, the guest sees what was answered before.
        self.reap_all();
        let now = self.log.tick();
        self.history.stopped(now);
        self.misplace(&mut bases);
        let write_through = self.cache.is_off;
        let same = self.rng.bool();
        self.log.say(&[37, same.into()], || {
            format!("control: lanes start at {bases:x?}, same engine: {same}")
        });
        let next = match same {
            true => backend.goes_on(&self.plan, &self.guest, &bases, write_through)?,
            false => {
                backend.die();
                self.opens_anew();
                Backend::new(
                    &self.plan,
                    self.disk_size(),
                    &self.kernel,
                    &self.guest,
                    &bases,
                    write_through,
                )?
            }
        };
        self.backend = Some(next);
        self.size = self.disk_size();
        Ok(())
    }

    /// A planted bug.
    fn misplace(&mut self, bases: &mut [u32]) {
        if self.bug == Some(Bug::DoubledCompletion) {
            for base in bases.iter_mut().filter(|base| **base & 0x7fff > 0) {
                *base -= 1;
            }
        }
    }

    fn disk_size(&self) -> u64 {
        self.kernel.borrow().disk.size
    }

    /// Now, or in one of its next system calls.
    fn kill_some_time(&mut self) -> Given<()> {
        if self.rng.bool() {
            self.kill();
        } else if self.rng.bool() {
            let stores = self.rng.u64(0..60);
            vlane_ring::kill::after(Some(stores));
            self.log.say(&[42, stores], || format!("the back end dies after {stores} stores"));
        } else {
            let calls = self.rng.u32(0..12);
            self.kernel.borrow_mut().dies_after = Some(calls);
            self.log.say(&[38, calls.into()], || {
                format!("the back end dies after {calls} system calls")
            });
        }
        Ok(())
    }

    /// Averts the planned end of the back end.
    pub(crate) fn spare(&self) {
        vlane_ring::kill::after(None);
        self.kernel.borrow_mut().dies_after = None;
    }

    fn kill(&mut self) {
        self.spare();
        let Some(backend) = self.backend.take() else { return };
        self.tally.kills += 1;
        self.log.say(&[39], || "the back end is dead".to_owned());
        self.kernel.borrow_mut().bury();
        backend.die();
        let now = self.log.tick();
        self.history.died(now);
    }

    /// The storage's locks are free: no operation is in progress any more, and earlier losses break
    /// no promise any more.
    fn opens_anew(&mut self) {
        let has_failed = self.kernel.borrow().failures > self.failures_before;
        if has_failed || self.cache.is_off != self.cache.in_force.is_some() {
            // Earlier answers count as earlier.
            self.reap_all();
        }
        let mut kernel = self.kernel.borrow_mut();
        kernel.reap_orphans();
        if has_failed {
            self.history.forgives();
        }
    }

    /// Starts a back end after a dead one.
    fn restart(&mut self) -> Given<()> {
        self.opens_anew();
        if !self.plan.tracks {
            self.reap_all();
        }
        let bases: Option<Vec<u32>> =
            (0..self.plan.queues).map(|queue| self.guest.base(queue)).collect();
        let mut bases = match bases.filter(|_| self.rng.u32(0..4) > 0) {
            Some(bases) => {
                self.tally.resumed += u64::from(self.guest.out() > 0);
                bases
            }
            None => {
                self.guest.reset()?;
                vec![self.guest.fresh_base(); self.plan.queues.into()]
            }
        };
        self.misplace(&mut bases);
        self.start(&bases)
    }

    fn start(&mut self, bases: &[u32]) -> Given<()> {
        let write_through = self.cache.is_off;
        self.log.say(&[40], || {
            format!("a back end starts at {bases:x?}, write-through: {write_through}")
        });
        self.size = self.disk_size();
        let backend =
            Backend::new(&self.plan, self.size, &self.kernel, &self.guest, bases, write_through)?;
        self.backend = Some(backend);
        self.cache.in_force =
            write_through.then(|| self.cache.in_force.unwrap_or_else(|| self.log.tick()));
        Ok(())
    }

    fn start_fresh(&mut self) -> Given<()> {
        let bases = vec![self.guest.fresh_base(); self.plan.queues.into()];
        self.start(&bases)
    }

    /// The power fails: guest and back end are gone, and what was not durable may be.
    fn cut(&mut self) -> Given<()> {
        self.tally.cuts += 1;
        self.log.say(&[41], || "the power fails".to_owned());
        self.check_cut();
        self.judge();
        self.kill();
        self.count_guest();
        let mut kernel = self.kernel.borrow_mut();
        kernel.cut();
        self.failures_before = kernel.failures;
        let initial = (0..self.plan.most).map(|sector| kernel.disk.read(sector)).collect();
        drop(kernel);
        self.history = History::new(self.history.next(), initial);
        let Plan { shape, queues, tracks, .. } = self.plan;
        self.guest = Guest::new(shape, queues, tracks, self.log.clone())?;
        self.cache = WriteCache::default();
        self.start_fresh()
    }

    /// Checks the contents after a power failure at this moment.
    fn check_cut(&self) {
        let kernel = self.kernel.borrow();
        for sector in 0..self.plan.most {
            for version in kernel.disk.outcomes(sector) {
                if let Err(why) = self.history.check_cut(sector, version) {
                    self.log.fail(|| why);
                }
            }
        }
    }

    fn judge(&self) {
        if let Err(why) = self.history.check() {
            self.log.fail(|| why);
        }
    }

    /// Lets all begun requests come to their end, without any more faults.
    fn come_to_rest(&mut self) -> Given<()> {
        self.kernel.borrow_mut().faults = Default::default();
        self.spare();
        if self.backend.is_none() {
            self.restart()?;
        }
        for _ in 0..PATIENCE {
            if self.log.has_failed() {
                return Ok(());
            }
            if !self.goes_on(None)? {
                self.check_rest();
                return Ok(());
            }
            self.tally.steps += 1;
        }
        self.log.fail(|| "it does not come to rest".to_owned());
        Ok(())
    }

    /// A thread stands still, as in a write that does not end. All requests of lanes on other
    /// threads are answered without it.
    fn hold(&mut self) -> Given<()> {
        let Plan { cache, block, express, .. } = self.plan;
        // A change of part of a block keeps writes of that block waiting, and a class keeps others
        // waiting; that is as it should be.
        let is_exclusive = cache == Cache::None && block > 512;
        let Some(backend) = &self.backend else { return Ok(()) };
        let count = backend.threads.count();
        if count < 2 || is_exclusive || express.mode != Mode::Off || backend.is_asked() {
            return Ok(());
        }
        self.spare();
        let held = self.rng.usize(0..count);
        self.tally.held += 1;
        self.log.say(&[44, held as u64], || format!("thread {held} stands still"));
        for _ in 0..PATIENCE {
            if self.log.has_failed() {
                return Ok(());
            }
            if !self.goes_on(Some(held))? {
                break;
            }
            self.tally.steps += 1;
        }
        for queue in 0..self.plan.queues {
            let Some(backend) = &self.backend else { return Ok(()) };
            let out = self.guest.out_of(queue);
            if out > 0 && backend.threads.of_lane(queue) != Some(held) {
                self.log.fail(|| {
                    format!(
                        "{out} requests of queue {queue} are never answered while thread {held} \
                         stands still"
                    )
                });
            }
        }
        Ok(())
    }

    /// Returns true if any part had work, except a thread that stands still.
    pub(crate) fn goes_on(&mut self, held: Option<usize>) -> Given<bool> {
        let mut any = false;
        for queue in 0..self.plan.queues {
            if self.guest.owes(queue) {
                self.guest.publish(queue);
                self.guest.kick(queue);
                any = true;
            }
            if !self.guest.sleeps(queue) {
                self.reap(queue);
                self.guest.sleep(queue);
                any = true;
            }
        }
        if self.kernel.borrow().is_busy() {
            self.step_kernel();
            any = true;
        }
        any |= self.step_syncs();
        let Some(backend) = &mut self.backend else { return Ok(any) };
        let awake = |thread: &usize| Some(*thread) != held;
        for thread in (0..backend.threads.count()).filter(awake) {
            if backend.threads.can_step(thread) {
                let step = backend.threads.step(thread);
                self.log.say(&[30, thread as u64, step.number()], || {
                    format!("thread {thread} {step:?}")
                });
                any = true;
            }
        }
        if !any {
            let threads = (0..backend.threads.count()).filter(awake);
            let deadline = threads.filter_map(|thread| backend.threads.deadline(thread)).min();
            if let Some(deadline) = deadline {
                system::pass(
                    deadline.saturating_duration_since(Instant::now()) + Duration::from_nanos(1),
                );
                any = true;
            }
        }
        self.hear()?;
        Ok(any)
    }

    /// At rest, no part waits for another.
    fn check_rest(&mut self) {
        for queue in 0..self.plan.queues {
            if self.guest.sleeps(queue) && self.guest.has_answers(queue) {
                self.log
                    .fail(|| format!("queue {queue} has answers, and the guest was not signalled"));
            }
        }
        let out = self.guest.out();
        if out > 0 {
            self.log.fail(|| format!("{out} requests are never answered"));
        }
        if self.backend.as_ref().is_some_and(|backend| backend.is_asked() || backend.stops()) {
            self.log.fail(|| "control waits for an answer that does not come".to_owned());
        }
    }

    /// Checks the disk's final contents, as reads of each sector.
    fn look_at_everything(&mut self) {
        self.check_cut();
        for sector in 0..self.size {
            let version = self.history.begin(self.log.tick(), Action::Read, sector, 1);
            self.history.end(self.log.tick(), version, true, None);
            let found = self.kernel.borrow().disk.read(sector);
            self.history.found(version, sector, found);
        }
    }
}
