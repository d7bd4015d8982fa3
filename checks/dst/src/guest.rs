//! The guest: its memory, its driver's queues, its requests and their answers.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use vlane_driver::ring::{Arena, BlkOptions, BlkQueue, Completion, Format, Request, RequestKind};
use vlane_memory::{GuestMemory, Region, RegionSpec};
use vlane_ring::{InflightRegion, Queue, QueueConfig, RingFormat};

use crate::disk::{SECTOR, Version, contents, version_of};
use crate::history::{Action, History};
use crate::log::Log;

/// A result of the system's means for a simulation.
type Given<T> = Result<T, Box<dyn std::error::Error>>;

/// A request that is out.
#[derive(Debug, Clone, Copy)]
struct Out {
    version: Version,
    request: Request,
    /// It is of sectors that the device had.
    is_within: bool,
    /// Number of the queue's requests that were offered before it.
    position: u64,
}

/// One of the driver's queues.
#[derive(Debug)]
pub(crate) struct Virtqueue {
    driver: BlkQueue,
    kick: OwnedFd,
    call: OwnedFd,
    slots: Vec<Option<Out>>,
    offered: u64,
    answered: u64,
    /// It waits for a signal.
    sleeps: bool,
    /// The device wants to be kicked, and was not yet.
    owes_kick: bool,
    /// Submitted and not shown.
    hidden: bool,
}

/// The guarantees of a write's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Since when it has no write cache: what is answered is durable.
    pub(crate) durable_since: Option<u64>,
    /// The storage has had no fault: no request has a reason to fail.
    pub(crate) is_sound: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Guest {
    shape: BlkOptions,
    machine: Rc<Machine>,
    queues: Vec<Virtqueue>,
    /// The memory in which back ends mark their requests in flight.
    marks: Option<Arc<InflightRegion>>,
    log: Log,
    /// Answers that were seen.
    pub(crate) answers: u64,
    pub(crate) flushes: u64,
    pub(crate) errors: u64,
}

fn eventfds() -> Given<(OwnedFd, OwnedFd)> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    Ok((eventfd(0, flags)?, eventfd(0, flags)?))
}

/// Memory that guests have parts of, one after the other, and none twice: to map anew costs more
/// than a run does.
#[derive(Debug)]
struct Machine {
    arena: Arena,
    memory: Arc<GuestMemory>,
    left: Cell<usize>,
}

/// Bytes of it.
const MACHINE: usize = 8 << 20;

thread_local! {
    static MACHINE_NOW: RefCell<Option<Rc<Machine>>> = const { RefCell::new(None) };
}

impl Machine {
    fn new(bytes: usize) -> Given<Rc<Machine>> {
        let arena = Arena::new(0x8000_0000, bytes)?;
        let spec = RegionSpec {
            guest: arena.base(),
            size: arena.size(),
            user: arena.user_addr(),
            offset: 0,
        };
        let file = arena.fd().ok_or("no file behind the memory")?.try_clone_to_owned()?;
        let memory = Arc::new(GuestMemory::new(vec![Region::map(spec, &file.into())?])?);
        Ok(Rc::new(Machine { arena, memory, left: Cell::new(bytes) }))
    }

    /// Makes a guest with room for so many queues.
    fn with_room(shape: BlkOptions, queues: u16) -> Given<Rc<Machine>> {
        let bytes = shape.arena_bytes()? * usize::from(queues);
        let machine = MACHINE_NOW.with_borrow(|machine| machine.clone());
        let machine = match machine.filter(|machine| machine.left.get() >= bytes) {
            Some(machine) => machine,
            None => Machine::new(bytes.max(MACHINE))?,
        };
        machine.left.set(machine.left.get() - bytes);
        MACHINE_NOW.set(Some(Rc::clone(&machine)));
        Ok(machine)
    }
}

fn marks(shape: BlkOptions, queues: u16) -> Given<Arc<InflightRegion>> {
    let size = shape.queue_size()?;
    let (bytes, file) =
        (InflightRegion::bytes(queues, size)?, InflightRegion::create(queues, size)?);
    Ok(InflightRegion::map(&file, 0, bytes, queues, size)?)
}

impl Guest {
    pub(crate) fn new(shape: BlkOptions, queues: u16, tracks: bool, log: Log) -> Given<Guest> {
        let marks = tracks.then(|| marks(shape, queues)).transpose()?;
        let machine = Machine::with_room(shape, queues)?;
        let queue = |_| {
            let (kick, call) = eventfds()?;
            let driver = BlkQueue::new(&machine.arena, shape)?;
            let slots = vec![None; shape.depth.into()];
            Ok(Virtqueue {
                driver,
                kick,
                call,
                slots,
                offered: 0,
                answered: 0,
                sleeps: false,
                owes_kick: false,
                hidden: false,
            })
        };
        let queues = (0..queues).map(queue).collect::<Given<Vec<_>>>()?;
        Ok(Guest { shape, machine, queues, marks, log, answers: 0, flushes: 0, errors: 0 })
    }

    /// The queue's descriptors, for a back end.
    pub(crate) fn descriptors(&self, queue: u16) -> Given<(OwnedFd, OwnedFd)> {
        let Virtqueue { kick, call, .. } = &self.queues[usize::from(queue)];
        Ok((kick.try_clone()?, call.try_clone()?))
    }

    /// The device's end of a queue that continues at `base`.
    pub(crate) fn device(&self, queue: u16, base: u32) -> Given<Queue> {
        let at = self.queues[usize::from(queue)].driver.layout();
        let config = QueueConfig {
            layout: match at.format {
                Format::Split => RingFormat::Split,
                Format::Packed => RingFormat::Packed,
            },
            size: at.size,
            event_idx: self.shape.event_idx,
            desc: self.machine.arena.to_user(at.desc),
            driver: self.machine.arena.to_user(at.driver),
            device: self.machine.arena.to_user(at.device),
            base,
            log_addr: None,
        };
        let mut device = Queue::new(config, Arc::clone(&self.machine.memory))?;
        if let Some(part) = self.marks.as_ref().and_then(|marks| marks.part(queue)) {
            let again = device.track(part);
            self.log.say(&[17, queue.into(), again as u64], || {
                format!("queue {queue}: {again} requests of the last back end are done again")
            });
        }
        Ok(device)
    }

    /// The base of a fresh ring.
    pub(crate) fn fresh_base(&self) -> u32 {
        match self.shape.format {
            Format::Split => 0,
            Format::Packed => 0x8000_8000,
        }
    }

    /// A slot of the queue that is free.
    pub(crate) fn free_slot(&self, queue: u16) -> Option<u16> {
        let slots = &self.queues[usize::from(queue)].slots;
        slots.iter().position(Option::is_none).and_then(|slot| u16::try_from(slot).ok())
    }

    /// The versions of the requests that are out, by queue.
    pub(crate) fn versions_out(&self) -> Vec<(u16, Version)> {
        let of = |(number, queue): (u16, &Virtqueue)| -> Vec<(u16, Version)> {
            queue.slots.iter().flatten().map(|out| (number, out.version)).collect()
        };
        (0..).zip(&self.queues).flat_map(of).collect()
    }

    /// Requests that are out.
    pub(crate) fn out(&self) -> usize {
        self.queues.iter().flat_map(|queue| queue.slots.iter().flatten()).count()
    }

    /// Requests of a queue that are out.
    pub(crate) fn out_of(&self, queue: u16) -> usize {
        self.queues[usize::from(queue)].slots.iter().flatten().count()
    }

    /// Puts a request into a slot. The device does not see it yet.
    pub(crate) fn submit(
        &mut self,
        history: &mut History,
        (queue, slot): (u16, u16),
        (action, sector, count): (Action, u64, u64),
        (ioprio, unmap, size): (u32, bool, u64),
    ) -> Given<()> {
        let version = history.begin(self.log.tick(), action, sector, count);
        let at = &mut self.queues[usize::from(queue)];
        let len = u32::try_from(count * SECTOR as u64)?;
        let data = at.driver.data_mut(slot).ok_or("no such slot")?;
        let (kind, at_sector, len) = match action {
            Action::Read => {
                // So that what is not written is seen.
                data.copy_in(0, &vec![0xee; len as usize])?;
                (RequestKind::Read, sector, len)
            }
            Action::Write => {
                for index in 0..count {
                    data.copy_in(
                        usize::try_from(index)? * SECTOR,
                        &contents(sector + index, version),
                    )?;
                }
                (RequestKind::Write, sector, len)
            }
            Action::Zero | Action::Discard => {
                let mut range = [0; 16];
                range[..8].copy_from_slice(&sector.to_le_bytes());
                range[8..12].copy_from_slice(&u32::try_from(count)?.to_le_bytes());
                range[12] = u8::from(unmap && action == Action::Zero);
                data.copy_in(0, &range)?;
                (
                    if action == Action::Zero {
                        RequestKind::WriteZeroes
                    } else {
                        RequestKind::Discard
                    },
                    0,
                    16,
                )
            }
            Action::Flush => (RequestKind::Flush, 0, 0),
            Action::Other => (RequestKind::GetId, 0, 20),
        };
        let request = Request { kind, sector: at_sector, len, ioprio };
        at.driver.submit(slot, request)?;
        at.slots[usize::from(slot)] =
            Some(Out { version, request, is_within: sector + count <= size, position: at.offered });
        at.offered += 1;
        at.hidden = true;
        self.log.say(&[10, queue.into(), version, sector, count], || {
            format!("guest: queue {queue} slot {slot}: {version} is {action:?} {sector}+{count}")
        });
        Ok(())
    }

    /// Shows the device what was submitted.
    pub(crate) fn publish(&mut self, queue: u16) {
        let at = &mut self.queues[usize::from(queue)];
        if !std::mem::take(&mut at.hidden) {
            return;
        }
        at.owes_kick |= at.driver.publish();
        let kicks = at.owes_kick;
        self.log.say(&[11, queue.into(), kicks.into()], || {
            format!("guest: queue {queue} publishes, kick: {kicks}")
        });
    }

    /// Returns true if there is a request to be shown, or a kick to be given.
    pub(crate) fn owes(&self, queue: u16) -> bool {
        let at = &self.queues[usize::from(queue)];
        at.hidden || at.owes_kick
    }

    /// Kicks, if the device wants that.
    pub(crate) fn kick(&mut self, queue: u16) {
        let at = &mut self.queues[usize::from(queue)];
        if std::mem::take(&mut at.owes_kick) {
            let _ = rustix::io::write(&at.kick, &1u64.to_ne_bytes());
            self.log.say(&[12, queue.into()], || format!("guest: queue {queue} kicks"));
        }
    }

    /// Returns true if the driver would find an answer, if it looked.
    pub(crate) fn has_answers(&self, queue: u16) -> bool {
        self.queues[usize::from(queue)].driver.has_used()
    }

    /// Returns true if the driver waits for a signal, and has none.
    pub(crate) fn sleeps(&mut self, queue: u16) -> bool {
        let at = &mut self.queues[usize::from(queue)];
        if at.sleeps && rustix::io::read(&at.call, &mut [0; 8]).is_ok() {
            at.sleeps = false;
            at.driver.disable_interrupts();
            self.log.say(&[13, queue.into()], || format!("guest: queue {queue} is signalled"));
        }
        at.sleeps
    }

    /// Wakes a driver from any wait.
    pub(crate) fn wake(&mut self, queue: u16) {
        self.queues[usize::from(queue)].sleeps = false;
    }

    /// Waits for a signal from now on, if there is no answer to see.
    pub(crate) fn sleep(&mut self, queue: u16) {
        let at = &mut self.queues[usize::from(queue)];
        // Signals of before.
        let _ = rustix::io::read(&at.call, &mut [0; 8]);
        at.sleeps = !at.driver.enable_interrupts();
        let sleeps = at.sleeps;
        self.log.say(&[14, queue.into(), sleeps.into()], || {
            format!("guest: queue {queue} sleeps: {sleeps}")
        });
    }

    /// Looks at what was answered.
    pub(crate) fn reap(&mut self, history: &mut History, queue: u16, terms: Terms) {
        let mut answers = Vec::new();
        if let Err(error) = self.queues[usize::from(queue)].driver.reap(&mut answers) {
            self.log.fail(|| format!("queue {queue}: the device broke it: {error}"));
        }
        for answer in answers {
            self.take(history, queue, terms, answer);
        }
    }

    fn take(&mut self, history: &mut History, queue: u16, terms: Terms, answer: Completion) {
        let Completion { slot, status, .. } = answer;
        let at = &mut self.queues[usize::from(queue)];
        let Some(Out { version, is_within, .. }) = at.slots[usize::from(slot)].take() else {
            self.log.fail(|| format!("queue {queue} slot {slot} is answered, and was not asked"));
            return;
        };
        at.answered += 1;
        self.answers += 1;
        self.log.say(&[15, queue.into(), version, status.into()], || {
            format!("guest: {version} is answered: {status}")
        });
        let record = *history.record(version);
        history.end(self.log.tick(), version, status == 0, terms.durable_since);
        match status {
            0 => {}
            1 => self.errors += 1,
            _ => self.log.fail(|| format!("{version} has the status {status}")),
        }
        if status != 0 && terms.is_sound && is_within {
            self.log
                .fail(|| format!("{version} ({:?}) failed, and nothing was wrong", record.action));
        }
        if status == 0 && record.action == Action::Flush {
            self.flushes += 1;
        }
        if status == 0 && record.action == Action::Read {
            self.compare(history, (queue, slot), version);
        }
    }

    /// Notes what a read found.
    fn compare(&mut self, history: &mut History, (queue, slot): (u16, u16), version: Version) {
        let record = *history.record(version);
        let Some(data) = self.queues[usize::from(queue)].driver.data(slot) else { return };
        for index in 0..record.count {
            let mut bytes = [0; SECTOR];
            let at = usize::try_from(index).unwrap_or(0) * SECTOR;
            if data.copy_out(at, &mut bytes).is_err() {
                return;
            }
            let sector = record.sector + index;
            match version_of(sector, &bytes) {
                Some(found) => history.found(version, sector, found),
                None => self
                    .log
                    .fail(|| format!("{version} found what nobody wrote in sector {sector}")),
            }
        }
    }

    /// The position where a device continues after a killed one, as QEMU has it: at the used index,
    /// or where the ring began. `None` if that device could not know the requests in flight: they
    /// are not marked, and are not simply the requests that were offered last.
    pub(crate) fn base(&self, queue: u16) -> Option<u32> {
        let Virtqueue { driver, slots, answered, .. } = &self.queues[usize::from(queue)];
        if self.marks.is_some() {
            let used = self.machine.arena.half_word(driver.layout().device + 2).map(u32::from);
            return if self.shape.format == Format::Split { used } else { Some(self.fresh_base()) };
        }
        let is_last = slots.iter().flatten().all(|out| out.position >= *answered);
        let is_split = self.shape.format == Format::Split;
        (is_last && is_split).then_some(u32::try_from(answered & 0xffff).unwrap_or(0))
    }

    /// All queues anew, in other memory, with the requests that are out: what a driver does after a
    /// reset of its device.
    pub(crate) fn reset(&mut self) -> Given<()> {
        let count = u16::try_from(self.queues.len())?;
        let machine = Machine::with_room(self.shape, count)?;
        for at in &mut self.queues {
            let mut driver = BlkQueue::new(&machine.arena, self.shape)?;
            let mut out: Vec<usize> =
                (0..at.slots.len()).filter(|slot| at.slots[*slot].is_some()).collect();
            out.sort_by_key(|slot| at.slots[*slot].as_ref().map(|out| out.position));
            for (position, slot) in (0..).zip(&out) {
                let Some(out) = &mut at.slots[*slot] else { continue };
                let number = u16::try_from(*slot)?;
                let mut bytes = vec![0; out.request.len as usize];
                at.driver.data(number).ok_or("no such slot")?.copy_out(0, &mut bytes)?;
                driver.data_mut(number).ok_or("no such slot")?.copy_in(0, &bytes)?;
                driver.submit(number, out.request)?;
                out.position = position;
            }
            at.driver = driver;
            (at.offered, at.answered) = (out.len() as u64, 0);
            (at.sleeps, at.owes_kick, at.hidden) = (false, false, true);
        }
        self.machine = machine;
        if let Some(marks) = &self.marks {
            marks.forget();
        }
        self.log.say(&[16], || "guest: resets its queues".to_owned());
        Ok(())
    }
}
