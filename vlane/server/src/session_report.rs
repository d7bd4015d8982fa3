//! Facts on a session for the operator: its front end, the number of queues used, and that its
//! memory is not shared.

use std::sync::Arc;
use std::time::{Duration, Instant};

use vlane_error::counted;
use vlane_memory::GuestMemory;

use crate::volume::Volume;

/// Front ends start their queues one after the other: their number is reported after a pause of
/// this length.
const SETTLED: Duration = Duration::from_millis(300);
/// The time in which a front end that starts the device has to give the guest's memory. It is the
/// next thing that it says.
const GIVES_MEMORY: Duration = Duration::from_secs(1);
/// The times of checks for missing requests, after the first queue began to run. A guest that is
/// idle for longer is not reported.
const LOOKS: [Duration; 3] =
    [Duration::from_secs(3), Duration::from_secs(10), Duration::from_secs(30)];
/// Bytes at the start of each region that a running guest has not left all zero.
const LOOKED_AT: u64 = 64 << 10;

/// Advice on sharing a VM's memory.
pub(crate) const SHARE: &str = "Give the VM shared memory (QEMU: -object \
                                memory-backend-memfd,id=mem,size=...,share=on -machine \
                                memory-backend=mem; Cloud Hypervisor: --memory shared=on)";
/// Advice on plugging in shared memory.
pub(crate) const PLUG: &str = "Memory that is plugged in as memory-backend-ram is not shared: \
                               unplug it, and plug in memory-backend-memfd with share=on";

/// The number of queues that a front end's command line asks for, if it says one: of a disk, or as
/// many as vCPUs.
pub(crate) fn wanted_queues(pid: Option<i32>) -> Option<u32> {
    let line = vlane_socket::command_line(u32::try_from(pid?).ok()?).ok()?;
    wanted_by(&String::from_utf8_lossy(&line).split('\0').collect::<Vec<_>>())
}

fn wanted_by(words: &[&str]) -> Option<u32> {
    let value = |text: &str| text.split(',').next().and_then(|value| value.parse().ok());
    let named = |word: &&str| {
        let spelt = ["num-queues=", "num_queues="];
        spelt.iter().find_map(|name| word.split_once(name).and_then(|(_, rest)| value(rest)))
    };
    let is_disk =
        |word: &&&str| word.starts_with("vhost-user-blk") || word.contains("vhost_user=on");
    let disks: Vec<&&str> = words.iter().filter(is_disk).collect();
    let vcpus = || {
        let mut smp = words
            .iter()
            .zip(words.iter().skip(1))
            .filter(|(option, _)| ["-smp", "--smp"].contains(*option));
        let smp = smp.next_back()?.1;
        value(smp).or_else(|| smp.split_once("cpus=").and_then(|(_, rest)| value(rest)))
    };
    let most = disks.iter().copied().filter_map(named).max();
    // A disk without a number has as many as vCPUs.
    match disks.iter().all(|disk| named(disk).is_some()) && !disks.is_empty() {
        true => most,
        false => vcpus().max(most),
    }
}

/// A process, for people. Its name is its own choice, and cannot be more than a word in a line.
pub(crate) fn process(pid: Option<i32>) -> String {
    // 0 is a process that is invisible here (another PID namespace).
    let Some(pid) = pid.filter(|pid| *pid > 0) else { return "of an unknown process".to_owned() };
    match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("pid {pid} ({})", name.trim_end_matches('\n').escape_debug()),
        Err(_) => format!("pid {pid}"),
    }
}

/// The visible state of a session at a moment.
#[derive(Debug, Clone)]
pub(crate) struct Sight {
    /// Of each queue that runs, the place of its descriptors and their size in bytes. Only the
    /// guest writes there before its first request.
    pub(crate) running: Vec<(Option<u64>, u64)>,
    pub(crate) memory: Arc<GuestMemory>,
    /// The front end starts the device, and there is no memory.
    pub(crate) lacks_memory: bool,
}

/// The facts of a session that were reported.
#[derive(Debug)]
pub(crate) struct SessionReport {
    session: u64,
    /// Running queues, as last reported.
    told: usize,
    running: usize,
    /// The time of their last change.
    changed: Option<Instant>,
    /// Kicks and requests before the session: the first kick may come before any look.
    before: (u64, u64),
    /// The time at which the first queue began to run.
    began: Option<Instant>,
    looks: usize,
    /// Since when memory lacks.
    lacks: Option<Instant>,
    has_told_lack: bool,
}

impl SessionReport {
    pub(crate) fn new(session: u64, volume: &Volume) -> SessionReport {
        let counted = volume.counters();
        let before = (counted.kicks, counted.requests());
        SessionReport {
            session,
            told: 0,
            running: 0,
            changed: None,
            before,
            began: None,
            looks: 0,
            lacks: None,
            has_told_lack: false,
        }
    }

    /// The time until the next look.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        let settled = self.changed.map(|at| at + SETTLED);
        let look = self.began.and_then(|at| LOOKS.get(self.looks).map(|after| at + *after));
        let memory = self.lacks.map(|at| at + GIVES_MEMORY);
        [settled, look, memory]
            .into_iter()
            .flatten()
            .min()
            .map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Looks at the session, after each message and when the time has come. Returns true if memory
    /// lacks for too long by now.
    pub(crate) fn turn(
        &mut self,
        volume: &Volume,
        sight: impl FnOnce() -> Sight,
        is_message: bool,
    ) -> bool {
        let is_due = self.timeout().is_some_and(|left| left.is_zero());
        if !is_message && !is_due {
            return false;
        }
        let (sight, now) = (sight(), Instant::now());
        if sight.running.len() != self.running {
            self.running = sight.running.len();
            self.changed = Some(now);
            self.began.get_or_insert(now);
        }
        if self.changed.is_some_and(|at| now >= at + SETTLED) {
            self.changed = None;
            self.tell_queues(volume);
        }
        let (kicks, requests) = self.before;
        if let Some(began) = self.began
            && LOOKS.get(self.looks).is_some_and(|after| now >= began + *after)
        {
            self.looks += 1;
            let counted = volume.counters();
            if counted.requests() > requests {
                self.looks = LOOKS.len();
            } else if counted.kicks > kicks && is_untouched(&sight) {
                self.looks = LOOKS.len();
                tracing::warn!(
                    "{}: session {}: the guest kicks, and its memory is all zero as it is seen \
                     here: it is not shared. {SHARE}",
                    volume.config.name,
                    self.session
                );
            }
        }
        if !sight.lacks_memory || self.has_told_lack {
            self.lacks = None;
            return false;
        }
        self.has_told_lack = now >= *self.lacks.get_or_insert(now) + GIVES_MEMORY;
        self.has_told_lack
    }

    fn tell_queues(&mut self, volume: &Volume) {
        if self.told != self.running {
            self.told = self.running;
            tracing::info!(
                "{}: session {}: {} of {} {} used",
                volume.config.name,
                self.session,
                self.running,
                counted(volume.queues(), "offered queue"),
                if self.running == 1 { "is" } else { "are" }
            );
        }
    }
}

/// Returns true if the places that every running guest writes to have never been written.
fn is_untouched(sight: &Sight) -> bool {
    let starts = sight.memory.starts().map(|at| (at, LOOKED_AT));
    let queues = sight.running.iter().filter_map(|(at, len)| at.map(|at| (at, *len)));
    !sight.running.is_empty() && starts.chain(queues).all(|(at, len)| sight.memory.is_zero(at, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wanted_queues_follow_disk_or_vcpus() {
        let disk = "vhost-user-blk-pci,chardev=c";
        let numbered = "vhost-user-blk-pci,num-queues=6,chardev=c";
        for (words, wanted) in [
            (vec!["qemu", "-smp", "4", "-device", disk], Some(4)),
            (vec!["qemu", "-smp", "cpus=5,sockets=5", "-device", disk], Some(5)),
            (vec!["qemu", "-smp", "8", "-device", numbered], Some(6)),
            (vec!["qemu", "-smp", "8", "-device", numbered, "-device", disk], Some(8)),
            (
                vec![
                    "cloud-hypervisor",
                    "--disk",
                    "vhost_user=on,socket=/s,num_queues=3,queue_size=8",
                ],
                Some(3),
            ),
            (vec!["qemu", "-device", disk], None),
            (vec!["qemu", "-smp", "many"], None),
            (vec!["qemu", "-smp"], None),
            (vec![], None),
        ] {
            assert_eq!(wanted_by(&words), wanted, "{words:?}");
        }
    }

    #[test]
    fn process_name_is_one_word() {
        let own = i32::try_from(std::process::id()).ok();
        assert!(process(own).starts_with(&format!("pid {} (", std::process::id())));
        assert_eq!(process(Some(0)), "of an unknown process");
        assert_eq!(process(None), "of an unknown process");
        let named = std::thread::spawn(|| {
            // A thread has a directory in /proc as a process does.
            let tid = rustix::thread::gettid();
            let _ = std::fs::write("/proc/thread-self/comm", "\x1b[2Jx\ny");
            process(Some(tid.as_raw_nonzero().get()))
        });
        let named = named.join().unwrap_or_default();
        assert!(named.ends_with("(\\u{1b}[2Jx\\ny)"), "{named:?}");
    }
}
