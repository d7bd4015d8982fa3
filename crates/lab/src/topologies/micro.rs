//! What this machine's CPUs charge for meeting: a cache line, a wake-up, a mutex handed over.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use super::lock::{FifoLock, LockUse};
use vlane_host::error::{Context, ErrorKind, Result};

/// Threads at the mutex, for which handing it over is measured.
const AT_THE_MUTEX: [u32; 5] = [2, 3, 5, 9, 17];

/// The prices. All in ns.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Prices {
    /// A cache line that one CPU wrote is read by another; absent with one CPU.
    pub line: Option<f64>,
    /// From writing an eventfd until the thread that sleeps on it, on the same CPU, runs.
    pub wake_here: f64,
    /// The same on another, idle CPU; absent with one CPU.
    pub wake_there: Option<f64>,
    /// What writing an eventfd costs the writer when a thread on another CPU sleeps on it.
    pub waking_there: Option<f64>,
    /// From one acquisition of the mutex to the next, with so many threads at it.
    pub handover: Vec<(u32, f64)>,
}

/// Measures them, for about `time` each (there are about twenty).
///
/// # Errors
/// [`ErrorKind::Io`] without descriptors or threads.
pub fn measure(cpus: &[usize], time: Duration) -> Result<Prices> {
    let (first, other) = (cpus.first().copied().unwrap_or(0), cpus.get(1).copied());
    let wake_here = wake(first, first, time)?.there();
    let there = other.map(|other| wake(first, other, time)).transpose()?;
    let mut handover = Vec::new();
    for threads in AT_THE_MUTEX {
        // The middle one of three: one look may meet another program.
        let times: Vec<_> = (0..3).map(|_| hand_over(cpus, threads, time).each()).collect();
        handover.push((threads, vlane_report::stats::median(&times)));
    }
    Ok(Prices {
        line: other.map(|other| line(first, other, time).ways.each()),
        wake_here,
        wake_there: there.map(|wakes| wakes.there()),
        waking_there: there.map(|wakes| wakes.writing()),
        handover,
    })
}

/// How often something was done in a time.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Done {
    times: u64,
    time: Duration,
}

impl Done {
    /// What once took, in ns; all of the time, if it never was.
    fn each(self) -> f64 {
        self.time.as_nanos() as f64 / self.times.max(1) as f64
    }
}

/// A line that went to and fro.
#[derive(Debug)]
struct Ways {
    /// Ways there and ways back.
    ways: Done,
    /// Ways back, as the thread counts them that makes them.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests compare the counts of both sides"))]
    answers: u64,
}

/// A thread that was woken, and woke.
#[derive(Debug, Clone, Copy)]
struct Wakes {
    /// There and back.
    both: Done,
    /// Ways back, as the thread counts them that makes them.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests compare the counts of both sides"))]
    answers: u64,
    /// Of the time, what was spent writing the eventfd.
    writing: Duration,
}

impl Wakes {
    /// The way there.
    fn there(self) -> f64 {
        Done { times: self.both.times * 2, ..self.both }.each()
    }

    fn writing(self) -> f64 {
        Done { time: self.writing, ..self.both }.each()
    }
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// Two threads answer each other through one cache line.
fn line(a: usize, b: usize, time: Duration) -> Ways {
    let (line, stop) = (Line::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| {
            // Where it may not run there, the figure is that of the CPUs it got.
            let _ = vlane_driver::pin(&[b]);
            let (mut next, mut answers) = (1, 0);
            while !stop.load(Ordering::Relaxed) {
                if line.0.load(Ordering::Acquire) == next {
                    line.0.store(next + 1, Ordering::Release);
                    next += 2;
                    answers += 1;
                } else {
                    std::hint::spin_loop();
                }
            }
            answers
        });
        let asking = scope.spawn(|| {
            let _ = vlane_driver::pin(&[a]);
            let (begin, mut next) = (Instant::now(), 0);
            let mut ways = Done { times: 0, time: Duration::ZERO };
            while begin.elapsed() < time {
                line.0.store(next + 1, Ordering::Release);
                // The other may not run: on a busy machine it is waited for, but not beyond the time.
                while line.0.load(Ordering::Acquire) != next + 2 {
                    if begin.elapsed() >= time * 2 {
                        return ways;
                    }
                    std::hint::spin_loop();
                }
                next += 2;
                ways = Done { times: next, time: begin.elapsed() };
            }
            ways
        });
        let ways = asking.join();
        stop.store(true, Ordering::Relaxed);
        let (Ok(ways), Ok(answers)) = (ways, answering.join()) else {
            return Ways { ways: Done { times: 0, time: Duration::ZERO }, answers: 0 };
        };
        Ways { ways, answers }
    })
}

/// Two threads wake each other by eventfds.
fn wake(a: usize, b: usize, time: Duration) -> Result<Wakes> {
    let make = || eventfd(0, EventfdFlags::CLOEXEC).context(ErrorKind::Io, || "cannot make an eventfd");
    let (to, back) = (make()?, make()?);
    let stop = AtomicBool::new(false);
    let one = 1_u64.to_ne_bytes();
    Ok(std::thread::scope(|scope| {
        let answering = scope.spawn(|| {
            let _ = vlane_driver::pin(&[b]);
            let (mut bytes, mut answers) = ([0; 8], 0);
            while rustix::io::read(&to, &mut bytes).is_ok() && !stop.load(Ordering::SeqCst) {
                let _ = rustix::io::write(&back, &one);
                answers += 1;
            }
            answers
        });
        let asking = scope.spawn(|| {
            let _ = vlane_driver::pin(&[a]);
            let (begin, mut count, mut writing) = (Instant::now(), 0, Duration::ZERO);
            let mut bytes = [0; 8];
            while begin.elapsed() < time {
                let before = Instant::now();
                let _ = rustix::io::write(&to, &one);
                writing += before.elapsed();
                if rustix::io::read(&back, &mut bytes).is_err() {
                    break;
                }
                count += 1;
            }
            let both = Done { times: count, time: begin.elapsed() };
            stop.store(true, Ordering::SeqCst);
            let _ = rustix::io::write(&to, &one);
            (both, writing)
        });
        let (both, writing) =
            asking.join().unwrap_or((Done { times: 0, time: Duration::ZERO }, Duration::ZERO));
        Wakes { both, answers: answering.join().unwrap_or(0), writing }
    }))
}

/// So many threads do nothing but take the mutex.
fn hand_over(cpus: &[usize], threads: u32, time: Duration) -> Done {
    let (lock, stop) = (FifoLock::default(), AtomicBool::new(false));
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads as usize)
            .map(|i| {
                let (lock, stop) = (&lock, &stop);
                scope.spawn(move || {
                    if !cpus.is_empty() {
                        let _ = vlane_driver::pin(&[cpus[i % cpus.len()]]);
                    }
                    let mut usage = LockUse::default();
                    // At least once, however late it comes.
                    loop {
                        drop(lock.lock(&mut usage));
                        if stop.load(Ordering::Relaxed) {
                            return usage.taken;
                        }
                    }
                })
            })
            .collect();
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        // A busy machine wakes us late; what was taken meanwhile counts.
        let times = threads.into_iter().map(|t| t.join().unwrap_or(0)).sum();
        Done { times, time: begin.elapsed() }
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn two_cpus() -> Vec<usize> {
        let set = rustix::thread::sched_getaffinity(None).unwrap();
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).take(2).collect()
    }

    #[test]
    fn a_price_is_the_time_of_one() {
        let both = Done { times: 4, time: Duration::from_micros(2) };
        assert!((both.each() - 500.0).abs() < 1e-9);
        let wakes = Wakes { both, answers: 4, writing: Duration::from_nanos(100) };
        // There and back are two.
        assert!((wakes.there() - 250.0).abs() < 1e-9);
        assert!((wakes.writing() - 25.0).abs() < 1e-9);
        // What never was took all of the time: no division by zero, and no free lunch.
        assert!((Done { times: 0, ..both }.each() - 2000.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_counted_is_what_the_other_thread_answered() {
        let (cpus, time) = (two_cpus(), Duration::from_millis(10));
        let other = *cpus.last().unwrap();
        for cpu in [cpus[0], other] {
            let wakes = wake(cpus[0], cpu, time).unwrap();
            assert!(wakes.both.times > 0 && wakes.both.times == wakes.answers, "{wakes:?}");
            assert!(wakes.both.time >= time && wakes.writing <= wakes.both.time, "{wakes:?}");
        }
        // On one CPU both spin: the answer may not come in time. The last one may come after it.
        let went = line(cpus[0], other, time);
        let late = (went.answers * 2).checked_sub(went.ways.times).unwrap();
        assert!(late == 0 || late == 2, "{went:?}");
        for threads in AT_THE_MUTEX {
            let taken = hand_over(&cpus, threads, time);
            assert!(taken.times >= u64::from(threads) && taken.time >= time, "{threads}: {taken:?}");
        }
    }

    #[test]
    fn there_is_a_price_for_all_that_a_machine_has() {
        let cpus = two_cpus();
        for cpus in [&cpus[..1], &cpus[..]] {
            let prices = measure(cpus, Duration::from_millis(2)).unwrap();
            let two = cpus.len() > 1;
            assert_eq!(
                (prices.line.is_some(), prices.wake_there.is_some(), prices.waking_there.is_some()),
                (two, two, two)
            );
            let threads: Vec<u32> = prices.handover.iter().map(|(threads, _)| *threads).collect();
            assert_eq!(threads, AT_THE_MUTEX);
            // Writing is a part of the way there and back.
            assert!(
                prices.waking_there.is_none_or(|ns| ns <= prices.wake_there.unwrap() * 2.0),
                "{prices:?}"
            );
        }
    }
}
