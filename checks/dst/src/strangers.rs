//! Requests that a slow operation may keep waiting.
//!
//! A request waits only for those that it overlaps, for its flush's writes, or for its class. So
//! any one operation is held, and all others continue until none can. Each request that is out then
//! must have a reason:
//!
//! | it waits | because |
//! |---|---|
//! | for the operation that is held | it is its own, or of the same blocks |
//! | for an `fdatasync` that is held | it is a flush, or a change by a guest without a write cache |
//! | for a request that waits | it is of the same blocks |
//! | for a read or write, or what makes a write durable | classes are in order, and the device gets no more at a time: see `window` |
//! | behind reads and writes of its queue that wait, and are as much as a lane begins | so much is begun and no more; where classes are in order, perhaps one; of a large one, a share counts |
//! | for a write anywhere | it changes part of a block, and only whole ones can be written: see the engine's `exclusion` |

use vlane_engine::file::Cache;
use vlane_io::system::{self, Call, CallKind};

use crate::history::{Action, Record};
use crate::world::{PATIENCE, World};

type Given<T> = Result<T, Box<dyn std::error::Error>>;

/// Sectors that a lane begins: its part of the 64 MiB, in the simulator.
const ROOM: u64 = 24;
/// Sectors that one request counts there at most.
const SHARE: u64 = 6;

/// Blocks, from the first to the one after the last.
type Blocks = std::ops::Range<u64>;

fn overlap(one: &Blocks, other: &Blocks) -> bool {
    one.start < other.end && other.start < one.end
}

/// An operation in words, with its range in sectors.
fn in_words(Call { what, offset, len, .. }: &Call) -> String {
    format!("{what:?} {}+{}", offset / 512, len / 512)
}

impl World {
    /// Blocks of the storage in which these sectors lie.
    fn blocks(&self, sector: u64, count: u64) -> Blocks {
        let is_direct = self.plan.cache == Cache::None;
        let block = if is_direct { self.plan.block / 512 } else { 1 };
        sector / block..(sector + count).div_ceil(block)
    }

    /// One operation is slow, and all others continue, including requests that come meanwhile.
    pub(crate) fn slows(&mut self) -> Given<()> {
        self.spare();
        let operations = system::operations();
        let is_free = self.backend.as_ref().is_some_and(|backend| !backend.is_asked());
        if operations.is_empty() || !is_free {
            return Ok(());
        }
        let (number, call) = operations[self.rng.usize(0..operations.len())];
        self.tally.slow += 1;
        self.log.say(&[50, number], || format!("operation {number} is slow: {}", in_words(&call)));
        self.kernel.borrow_mut().held = Some(number);
        if let Some(backend) = &mut self.backend {
            // A lane that is to move takes no request for some milliseconds.
            (0..self.plan.queues).for_each(|queue| backend.threads.cancel(queue));
        }
        for _ in 0..self.rng.u32(0..12) {
            self.submit()?;
        }
        for _ in 0..PATIENCE {
            if self.log.has_failed() || !self.goes_on(None)? {
                break;
            }
        }
        if !self.log.has_failed() {
            self.check_strangers(&call);
        }
        self.kernel.borrow_mut().held = None;
        self.log.say(&[51, number], || format!("operation {number} is slow no more"));
        Ok(())
    }

    /// No request waits for the operation that is held without a reason.
    fn check_strangers(&self, held: &Call) {
        let is_sync = held.what == CallKind::Sync;
        let is_at_device =
            matches!(held.what, CallKind::Read | CallKind::Write) || is_sync && !self.has_cache();
        let mut reasons = vec![self.blocks(held.offset / 512, held.len.div_ceil(512))];
        if is_sync {
            reasons.clear();
        }
        let mut out: Vec<_> = self.guest.versions_out();
        let mut begun = vec![0; self.plan.queues.into()];
        let room = if self.plan.express.mode.orders() { 1 } else { ROOM };
        loop {
            let before = out.len();
            out.retain(|(queue, version)| {
                let begun = &mut begun[usize::from(*queue)];
                let record = self.history.record(*version);
                let blocks = self.blocks(record.sector, record.count);
                let has_reason = match record.action {
                    Action::Flush => is_sync,
                    Action::Other => false,
                    _ => {
                        reasons.iter().any(|reason| overlap(reason, &blocks))
                            || is_sync && record.action != Action::Read && !self.has_cache()
                            || held.what == CallKind::Write && self.is_change(record)
                    }
                };
                let has_reason = has_reason || is_at_device && self.plan.express.mode.orders();
                let has_reason = has_reason || *begun >= room;
                if has_reason {
                    reasons.push(blocks);
                    let is_transfer = matches!(record.action, Action::Read | Action::Write);
                    *begun += if is_transfer { record.count.min(SHARE) } else { 0 };
                }
                !has_reason
            });
            if out.len() == before {
                break;
            }
        }
        for (queue, version) in out {
            let Record { action, sector, count, .. } = *self.history.record(version);
            self.log.fail(|| {
                let held = in_words(held);
                format!(
                    "queue {queue}: {version}, {action:?} {sector}+{count}, waits for a stranger, \
                     {held}"
                )
            });
        }
    }

    /// True for a request that writes part of a block where only whole ones can be written.
    fn is_change(&self, record: &Record) -> bool {
        let block = self.plan.block / 512;
        let is_part = !record.sector.is_multiple_of(block) || !record.count.is_multiple_of(block);
        self.plan.cache == Cache::None
            && is_part
            && matches!(record.action, Action::Write | Action::Zero)
    }
}
