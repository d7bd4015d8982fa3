//! Queues, threads and the CPUs they run on: configuration, checked.
//!
//! Kim, Kang and Eom (2016) have three forms with n queues: Baseline (1 queue, 1 thread), MQ (n
//! queues, 1 thread) and MT (n queues, n threads, the default).

use rustix::thread::CpuSet;

/// The most queues that a volume offers: the protocol numbers them in a byte.
pub const MAX_QUEUES: u16 = 256;

/// The queues that a volume offers by default, at least. A front end wants as many as its VM has
/// vCPUs, however many CPUs the host has. A front end that finds fewer does not run. A queue that
/// is not used costs some hundred bytes.
pub const USUAL_QUEUES: u16 = 64;

/// The CPUs that the threads run on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CpuChoice {
    /// Wherever the scheduler likes, within the process's own affinity. The default: several vlane
    /// processes on a host would otherwise all pin themselves to the same first CPUs.
    #[default]
    Unpinned,
    /// Thread i on the i-th CPU that the process may use.
    Auto,
    /// Thread i on the i-th CPU of this list.
    List(Vec<usize>),
}

/// The number of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ThreadChoice {
    /// A thread for each queue, but no more than the host has CPUs.
    #[default]
    PerQueue,
    /// This number.
    Number(u32),
    /// As many as pay, measured while they work; no more than the process may use CPUs, or than are
    /// listed for them.
    Auto,
}

/// Queues, threads, CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// Queues that are offered; a front end may use fewer.
    pub queues: u16,
    /// Threads; queue i runs on thread i modulo this. With `adapts`: the most that are used.
    pub threads: u16,
    /// For each thread its CPU; empty: not pinned.
    pub cpus: Vec<usize>,
    /// Lanes run on as few of the threads as do for them, and move while they run.
    pub adapts: bool,
}

/// A mistake in a topology. Says what to change.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TopologyError {
    /// No queue, or too many.
    #[error("{0} queues: a volume has between 1 and {MAX_QUEUES}; change --queues")]
    Queues(u32),
    /// No thread, or more than there is work for.
    #[error(
        "--threads {threads} for --queues {queues}: give at least one thread and at most one per \
         queue; change --threads"
    )]
    Threads {
        /// As given.
        threads: u32,
        /// As given.
        queues: u16,
    },
    /// The text is not a list of CPUs.
    #[error("{text:?} in --cpus is not a CPU or a range of CPUs; write for example 0,2-5")]
    NotAList {
        /// The part that is not understood.
        text: String,
    },
    /// A CPU twice.
    #[error(
        "CPU {0} is in --cpus twice: two threads would wait for each other; name each CPU once"
    )]
    Duplicate(usize),
    /// Fewer CPUs than threads, or more.
    #[error(
        "--cpus names {cpus}, and --threads is {threads}; name one CPU for each thread, or change \
         --threads"
    )]
    Mismatch {
        /// CPUs named.
        cpus: usize,
        /// Threads.
        threads: u16,
    },
    /// No such CPU now.
    #[error("CPU {cpu} is not online; the online CPUs are {online}")]
    Offline {
        /// As given.
        cpu: usize,
        /// The list of those that are.
        online: String,
    },
    /// The process may not use it.
    #[error(
        "CPU {cpu} is outside this process's affinity ({allowed}); widen that (taskset, cpuset), \
         or choose another"
    )]
    NotAllowed {
        /// As given.
        cpu: usize,
        /// The CPUs that may be used.
        allowed: String,
    },
}

impl Topology {
    /// Checks and completes what was asked for. Without a number of queues there are as many as the
    /// host has CPUs, or [`USUAL_QUEUES`] if that is more.
    ///
    /// # Errors
    /// [`TopologyError`].
    pub fn new(
        queues: Option<u32>,
        threads: ThreadChoice,
        cpus: &CpuChoice,
    ) -> Result<Topology, TopologyError> {
        Topology::on(queues, threads, cpus, &online_cpus(), &allowed_cpus())
    }

    fn on(
        queues: Option<u32>,
        threads: ThreadChoice,
        cpus: &CpuChoice,
        online: &[usize],
        allowed: &[usize],
    ) -> Result<Topology, TopologyError> {
        let host = u32::try_from(online.len()).unwrap_or(1).clamp(1, u32::from(MAX_QUEUES));
        let asked = queues.unwrap_or(host.max(u32::from(USUAL_QUEUES)));
        let queues = u16::try_from(asked)
            .ok()
            .filter(|n| (1..=MAX_QUEUES).contains(n))
            .ok_or(TopologyError::Queues(asked))?;
        // More threads than CPUs only get in each other's way: by default, queues share.
        let choice = threads;
        let asked = match (choice, cpus) {
            (ThreadChoice::PerQueue, _) => u32::from(queues).min(host),
            (ThreadChoice::Number(threads), _) => threads,
            (ThreadChoice::Auto, CpuChoice::List(list)) => u32::from(queues).min(count(list)),
            (ThreadChoice::Auto, _) => u32::from(queues).min(count(allowed)),
        };
        let threads = u16::try_from(asked)
            .ok()
            .filter(|n| (1..=queues).contains(n))
            .ok_or(TopologyError::Threads { threads: asked, queues })?;
        let cpus = match cpus {
            CpuChoice::Unpinned => Vec::new(),
            CpuChoice::Auto => allowed.iter().copied().cycle().take(usize::from(threads)).collect(),
            CpuChoice::List(list) => {
                check_list(list, threads, online, allowed)?;
                list.clone()
            }
        };
        Ok(Topology { queues, threads, cpus, adapts: choice == ThreadChoice::Auto })
    }
}

fn count(cpus: &[usize]) -> u32 {
    u32::try_from(cpus.len()).unwrap_or(u32::MAX).max(1)
}

fn check_list(
    list: &[usize],
    threads: u16,
    online: &[usize],
    allowed: &[usize],
) -> Result<(), TopologyError> {
    for (i, cpu) in list.iter().enumerate() {
        if list[..i].contains(cpu) {
            return Err(TopologyError::Duplicate(*cpu));
        }
        if !online.contains(cpu) {
            return Err(TopologyError::Offline { cpu: *cpu, online: format_cpu_list(online) });
        }
        if !allowed.contains(cpu) {
            return Err(TopologyError::NotAllowed { cpu: *cpu, allowed: format_cpu_list(allowed) });
        }
    }
    if list.len() != usize::from(threads) {
        return Err(TopologyError::Mismatch { cpus: list.len(), threads });
    }
    Ok(())
}

/// Reads a list such as `0,2-5`.
///
/// # Errors
/// [`TopologyError::NotAList`].
pub fn parse_cpu_list(text: &str) -> Result<Vec<usize>, TopologyError> {
    let bad = |part: &str| TopologyError::NotAList { text: part.to_owned() };
    let number = |digits: &str, part: &str| {
        digits.trim().parse::<usize>().ok().filter(|n| *n < 65536).ok_or_else(|| bad(part))
    };
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        match part.split_once('-') {
            None => cpus.push(number(part, part)?),
            Some((first, last)) => {
                let (first, last) = (number(first, part)?, number(last, part)?);
                if first > last {
                    return Err(bad(part));
                }
                cpus.extend(first..=last);
            }
        }
    }
    Ok(cpus)
}

fn format_cpu_list(cpus: &[usize]) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut rest = cpus;
    while let Some(&first) = rest.first() {
        let run =
            rest.iter().zip(first..).take_while(|(cpu, expected)| *cpu == expected).count().max(1);
        parts.push(if run == 1 { first.to_string() } else { format!("{first}-{}", rest[run - 1]) });
        rest = &rest[run..];
    }
    parts.join(",")
}

/// The CPUs that are online now.
pub fn online_cpus() -> Vec<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    parse_cpu_list(&text).unwrap_or_else(|_| allowed_cpus())
}

fn allowed_cpus() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect(),
        Err(_) => vec![0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_four(
        queues: Option<u32>,
        threads: Option<u32>,
        cpus: &CpuChoice,
    ) -> Result<Topology, TopologyError> {
        let threads = threads.map_or(ThreadChoice::PerQueue, ThreadChoice::Number);
        Topology::on(queues, threads, cpus, &[0, 1, 2, 3], &[0, 1, 2])
    }

    /// There are queues for more vCPUs than that.
    #[test]
    fn default_is_a_thread_per_cpu() {
        let topology = on_four(None, None, &CpuChoice::Unpinned);
        assert_eq!(
            topology,
            Ok(Topology { queues: USUAL_QUEUES, threads: 4, cpus: vec![], adapts: false })
        );
        let many: Vec<usize> = (0..100).collect();
        let topology =
            Topology::on(None, ThreadChoice::PerQueue, &CpuChoice::Unpinned, &many, &many);
        assert_eq!(
            topology,
            Ok(Topology { queues: 100, threads: 100, cpus: vec![], adapts: false })
        );
    }

    #[test]
    fn baseline_mq_and_mt_are_two_numbers() {
        let of =
            |q, t| on_four(Some(q), Some(t), &CpuChoice::Unpinned).map(|t| (t.queues, t.threads));
        assert_eq!(of(1, 1), Ok((1, 1)));
        assert_eq!(of(8, 1), Ok((8, 1)));
        assert_eq!(of(8, 8), Ok((8, 8)));
        assert_eq!(on_four(Some(8), None, &CpuChoice::Unpinned).map(|t| t.threads), Ok(4));
    }

    #[test]
    fn adaptive_threads_stay_within_cpus_and_queues() {
        let on = |queues, cpus: CpuChoice| {
            Topology::on(Some(queues), ThreadChoice::Auto, &cpus, &[0, 1, 2, 3], &[0, 1, 2])
        };
        let of = |queues, cpus| on(queues, cpus).map(|t| (t.threads, t.cpus, t.adapts));
        assert_eq!(of(8, CpuChoice::Unpinned), Ok((3, vec![], true)));
        assert_eq!(of(2, CpuChoice::Unpinned), Ok((2, vec![], true)));
        assert_eq!(of(8, CpuChoice::Auto), Ok((3, vec![0, 1, 2], true)));
        assert_eq!(of(8, CpuChoice::List(vec![2, 0])), Ok((2, vec![2, 0], true)));
        assert_eq!(
            of(1, CpuChoice::List(vec![2, 0])),
            Err(TopologyError::Mismatch { cpus: 2, threads: 1 })
        );
    }

    #[test]
    fn mapping_mistakes_are_named() {
        let list = |cpus: &[usize]| CpuChoice::List(cpus.to_vec());
        let errors = [
            on_four(Some(0), None, &CpuChoice::Unpinned),
            on_four(Some(300), None, &CpuChoice::Unpinned),
            on_four(Some(2), Some(0), &CpuChoice::Unpinned),
            on_four(Some(2), Some(3), &CpuChoice::Unpinned),
            on_four(Some(2), Some(2), &list(&[1, 1])),
            on_four(Some(2), Some(2), &list(&[1, 9])),
            on_four(Some(2), Some(2), &list(&[1, 3])),
            on_four(Some(2), Some(2), &list(&[1])),
        ];
        let expected = [
            TopologyError::Queues(0),
            TopologyError::Queues(300),
            TopologyError::Threads { threads: 0, queues: 2 },
            TopologyError::Threads { threads: 3, queues: 2 },
            TopologyError::Duplicate(1),
            TopologyError::Offline { cpu: 9, online: "0-3".to_owned() },
            TopologyError::NotAllowed { cpu: 3, allowed: "0-2".to_owned() },
            TopologyError::Mismatch { cpus: 1, threads: 2 },
        ];
        for (error, expected) in errors.into_iter().zip(expected) {
            assert_eq!(error, Err(expected));
        }
    }

    #[test]
    fn cpu_lists_round_trip() {
        assert_eq!(parse_cpu_list("0,2-5\n"), Ok(vec![0, 2, 3, 4, 5]));
        assert_eq!(format_cpu_list(&[0, 2, 3, 4, 5, 9]), "0,2-5,9");
        for bad in ["", "a", "1,,2", "5-2", "1-", "99999999"] {
            assert!(parse_cpu_list(bad).is_err(), "{bad:?} was taken for a list");
        }
    }
}
