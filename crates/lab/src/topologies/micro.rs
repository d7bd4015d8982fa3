//! What this machine's CPUs charge for meeting: a cache line, a wake-up, a mutex handed over.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use serde::{Deserialize, Serialize};

use super::lock::{FifoLock, LockUse};
use crate::error::{Context, ErrorKind, Result};

/// Threads at the mutex, for which handing it over is measured.
const AT_THE_MUTEX: [u32; 5] = [2, 3, 5, 9, 17];

/// The prices. All in ns.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
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
    let (wake_here, _) = wake(first, first, time)?;
    let there = other.map(|other| wake(first, other, time)).transpose()?;
    let mut handover = Vec::new();
    for threads in AT_THE_MUTEX {
        // The middle one of three: one look may meet another program.
        let times = (0..3).map(|_| hand_over(cpus, threads, time)).collect::<Result<Vec<_>>>()?;
        handover.push((threads, vlane_driver::median(&times)));
    }
    Ok(Prices {
        line: other.map(|other| line(first, other, time)),
        wake_here,
        wake_there: there.map(|(latency, _)| latency),
        waking_there: there.map(|(_, sender)| sender),
        handover,
    })
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicU64);

#[expect(clippy::cast_precision_loss, reason = "53 bits are enough")]
fn nanos(time: Duration, count: u64) -> f64 {
    time.as_nanos() as f64 / count.max(1) as f64
}

/// Two threads answer each other through one cache line.
fn line(a: usize, b: usize, time: Duration) -> f64 {
    let (line, stop) = (Line::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Where it may not run there, the figure is that of the CPUs it got.
            let _ = vlane_driver::pin(&[b]);
            let mut next = 1;
            while !stop.load(Ordering::Relaxed) {
                if line.0.load(Ordering::Acquire) == next {
                    line.0.store(next + 1, Ordering::Release);
                    next += 2;
                } else {
                    std::hint::spin_loop();
                }
            }
        });
        let other = scope.spawn(|| {
            let _ = vlane_driver::pin(&[a]);
            let (begin, mut next) = (Instant::now(), 0);
            while begin.elapsed() < time {
                line.0.store(next + 1, Ordering::Release);
                // The other may not run: on a busy machine it is waited for, but not beyond the time.
                while line.0.load(Ordering::Acquire) != next + 2 && begin.elapsed() < time * 2 {
                    std::hint::spin_loop();
                }
                next += 2;
            }
            nanos(begin.elapsed(), next)
        });
        let ns = other.join().unwrap_or(f64::NAN);
        stop.store(true, Ordering::Relaxed);
        ns
    })
}

/// Two threads wake each other by eventfds; returns the way there, and what the writing costs.
fn wake(a: usize, b: usize, time: Duration) -> Result<(f64, f64)> {
    let make = || eventfd(0, EventfdFlags::CLOEXEC).context(ErrorKind::Io, || "cannot make an eventfd");
    let (to, back) = (make()?, make()?);
    let stop = AtomicBool::new(false);
    let one = 1_u64.to_ne_bytes();
    Ok(std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = vlane_driver::pin(&[b]);
            let mut bytes = [0; 8];
            while rustix::io::read(&to, &mut bytes).is_ok() && !stop.load(Ordering::SeqCst) {
                let _ = rustix::io::write(&back, &one);
            }
        });
        let other = scope.spawn(|| {
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
            let there = nanos(begin.elapsed(), count * 2);
            stop.store(true, Ordering::SeqCst);
            let _ = rustix::io::write(&to, &one);
            (there, nanos(writing, count))
        });
        other.join().unwrap_or((f64::NAN, f64::NAN))
    }))
}

/// So many threads do nothing but take the mutex.
fn hand_over(cpus: &[usize], threads: u32, time: Duration) -> Result<f64> {
    let (lock, stop) = (FifoLock::default(), AtomicBool::new(false));
    let taken: Result<Vec<u64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads as usize)
            .map(|i| {
                let (lock, stop) = (&lock, &stop);
                scope.spawn(move || {
                    if !cpus.is_empty() {
                        let _ = vlane_driver::pin(&[cpus[i % cpus.len()]]);
                    }
                    let mut usage = LockUse::new()?;
                    while !stop.load(Ordering::Relaxed) {
                        drop(lock.lock(&mut usage));
                    }
                    Ok(usage.taken)
                })
            })
            .collect();
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(|t| t.join().unwrap_or(Ok(0))).collect()
    });
    Ok(nanos(time, taken?.iter().sum()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn every_price_is_a_time() {
        let set = rustix::thread::sched_getaffinity(None).unwrap();
        let cpus: Vec<_> =
            (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).take(2).collect();
        let prices = measure(&cpus, Duration::from_millis(10)).unwrap();
        let all = [prices.line, Some(prices.wake_here), prices.wake_there, prices.waking_there];
        assert!(all.iter().flatten().all(|ns| *ns > 1.0 && *ns < 1e9), "{prices:?}");
        assert_eq!(prices.line.is_some(), cpus.len() > 1);
        assert_eq!(prices.handover.len(), AT_THE_MUTEX.len());
        assert!(prices.handover.iter().all(|(_, ns)| *ns > 1.0), "{prices:?}");
    }
}
