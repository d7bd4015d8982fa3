//! Finds the eventfds of machines in `/proc`: on a separate thread, because a machine may have
//! thousands of files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{fs, io};

use vlane_sched::ProcessId;

use super::program::{Eventfds, Unseen};
use vlane_error::describe;

/// Machines are looked at so often: eventfds come and go with devices.
const EVERY: Duration = Duration::from_secs(1);
/// Looking takes no more than one part in so many of the time.
const PART: u32 = 100;
/// The number of a machine's unreportable interrupts that is worth a warning: a few are raised when
/// a guest starts.
const MANY_UNSEEN: u64 = 100;

/// Orders to the scanner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Watch(u32),
    Forget(u32),
}

#[derive(Debug)]
struct Machine {
    process: ProcessId,
    eventfds: BTreeSet<u32>,
    told: bool,
    /// True if its interrupts without an eventfd were reported.
    told_unseen: bool,
}

/// Looks until no order can come any more. `found` is how many eventfds are known.
pub(crate) fn scan(
    orders: &Receiver<Order>,
    eventfds: &Eventfds,
    unseen: &Unseen,
    found: &Arc<AtomicU64>,
) {
    let mut machines: BTreeMap<u32, Machine> = BTreeMap::new();
    let mut pause = EVERY;
    loop {
        let order = match orders.recv_timeout(pause) {
            Ok(order) => Some(order),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        match order {
            Some(Order::Watch(pid)) => {
                // A process that is gone already is forgotten soon.
                let Ok(process) = ProcessId::of(pid) else { continue };
                let machine =
                    Machine { process, eventfds: BTreeSet::new(), told: false, told_unseen: false };
                unseen.watch(pid);
                look(machines.entry(pid).or_insert(machine), eventfds);
            }
            Some(Order::Forget(pid)) => {
                let gone = machines.remove(&pid);
                unseen.forget(pid);
                gone.iter().flat_map(|gone| &gone.eventfds).for_each(|&id| eventfds.remove(id));
            }
            None => {
                let begun = Instant::now();
                for machine in machines.values_mut() {
                    look(machine, eventfds);
                    warn_of_unseen(machine, unseen.count(machine.process.pid));
                }
                pause = EVERY.max(begun.elapsed() * PART);
            }
        }
        let count: usize = machines.values().map(|machine| machine.eventfds.len()).sum();
        found.store(count as u64, Ordering::Relaxed);
    }
}

/// Notes the eventfds that a machine has now, and takes out those that it had.
fn look(machine: &mut Machine, table: &Eventfds) {
    let pid = machine.process.pid;
    let now = match eventfds_in(Path::new("/proc"), pid) {
        Ok(found) if machine.process.is_alive() => found,
        Ok(_) => BTreeSet::new(),
        // It has ended; the daemon sees that, too.
        Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeSet::new(),
        Err(error) => {
            if !std::mem::replace(&mut machine.told, true) {
                tracing::warn!(
                    "process {pid}: its I/O is not watched: its files cannot be seen: {error}"
                );
            }
            return;
        }
    };
    for &id in machine.eventfds.difference(&now) {
        table.remove(id);
    }
    // Also the known ones: one that was closed and made again meanwhile was taken out by the
    // kernel's side.
    for &id in &now {
        if let Err(error) = table.add(id, pid) {
            if !std::mem::replace(&mut machine.told, true) {
                tracing::warn!(
                    "process {pid}: not all of its I/O is watched: {}",
                    describe(&error)
                );
            }
            break;
        }
    }
    machine.eventfds = now;
}

/// Warns once that a machine has interrupts that cannot be reported. Returns true if it warned.
fn warn_of_unseen(machine: &mut Machine, count: u64) -> bool {
    if count < MANY_UNSEEN || std::mem::replace(&mut machine.told_unseen, true) {
        return false;
    }
    tracing::warn!(
        "process {}: {count} interrupts of its guest were raised by the process itself, without \
         an eventfd: they are invisible, and do not boost. QEMU's own disks need an iothread each \
         for that (-object iothread,id=io1 -device virtio-blk-pci,iothread=io1,...), its network \
         vhost",
        machine.process.pid
    );
    true
}

/// The kernel's numbers of the eventfds that a process has open.
fn eventfds_in(proc: &Path, pid: u32) -> io::Result<BTreeSet<u32>> {
    let of = proc.join(pid.to_string());
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(of.join("fd"))? {
        let entry = entry?;
        // Closed since, or none.
        if fs::read_link(entry.path())
            .map_or(true, |target| target.as_os_str() != "anon_inode:[eventfd]")
        {
            continue;
        }
        let info =
            fs::read_to_string(of.join("fdinfo").join(entry.file_name())).unwrap_or_default();
        found.extend(number(&info));
    }
    Ok(found)
}

/// `eventfd-id` of a file's description: unique among living eventfds, given anew when one is gone.
/// The kernel gives a negative one to those that have none.
fn number(info: &str) -> Option<u32> {
    let id: i32 =
        info.lines().find_map(|line| line.strip_prefix("eventfd-id:"))?.trim().parse().ok()?;
    u32::try_from(id).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::fd::{AsRawFd, OwnedFd};

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    /// Each eventfd has one number.
    #[test]
    fn own_eventfd_numbers_are_found() {
        let before = eventfds_in(Path::new("/proc"), std::process::id()).unwrap();
        let made: Vec<OwnedFd> =
            (0..3).map(|_| eventfd(0, EventfdFlags::CLOEXEC).unwrap()).collect();
        // Another descriptor of the same one.
        let _copy = made[0].try_clone().unwrap();
        let after = eventfds_in(Path::new("/proc"), std::process::id()).unwrap();
        let numbers: BTreeSet<u32> = made
            .iter()
            .map(|fd| {
                number(
                    &fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).unwrap(),
                )
                .unwrap()
            })
            .collect();
        assert_eq!(numbers.len(), 3);
        // Other tests run in parallel.
        assert!(
            after.is_superset(&numbers) && before.is_disjoint(&numbers),
            "{before:?} {after:?}"
        );
        assert_eq!(
            eventfds_in(Path::new("/proc"), 0x7fff_fff0).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    /// A few of them do not warn.
    #[test]
    fn many_unseen_interrupts_warn_once() {
        let process = ProcessId::of(std::process::id()).unwrap();
        let mut machine =
            Machine { process, eventfds: BTreeSet::new(), told: false, told_unseen: false };
        let told = [0, MANY_UNSEEN - 1, MANY_UNSEEN, 2 * MANY_UNSEEN]
            .map(|n| warn_of_unseen(&mut machine, n));
        assert_eq!(told, [false, false, true, false]);
    }

    #[test]
    fn malformed_number_is_refused() {
        assert_eq!(number("pos:\t0\neventfd-count:                0\neventfd-id: 17\n"), Some(17));
        assert_eq!(number("eventfd-count: 0\neventfd-id: -12\n"), None);
        assert_eq!(number("pos:\t0\n"), None);
    }
}
