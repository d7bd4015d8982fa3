//! System calls of a boost, counted from outside. The product's own tests are free of the counter.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
#[path = "../../../vlane/cli/tests/scheduler/mod.rs"]
mod scheduler;

use std::path::Path;
use std::time::{Duration, Instant};

use scheduler::live::{Hog, PATIENCE};
use scheduler::may_schedule;
use vlane_cost::{Role, Sampler, ThreadFilter};
use vlane_policy::loan::{Claim, Decision, Policy};
use vlane_sched::Vehicle;
use vlane_sched::realtime::{RealTime, Settings, monotonic_ns};

fn vehicle(policy: Policy, dir: &Path, change: impl Fn(&mut Settings)) -> RealTime {
    scheduler::live::vehicle(common::vlane(), policy, dir, change)
}

/// The number of system calls that `work` makes; none if they cannot be counted here. Some more are
/// those of this function.
fn calls_of(work: impl FnOnce() + Send) -> Option<u64> {
    // The thread is found by its name, and there is to be one.
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let pid = i32::try_from(std::process::id()).unwrap();
    let (begin, begun) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let counted = std::thread::Builder::new().name("counted".into());
        let counted = counted
            .spawn_scoped(scope, move || {
                end.send(()).unwrap();
                begun.recv().unwrap();
                work();
                end.send(()).unwrap();
                begun.recv().unwrap();
            })
            .unwrap();
        ended.recv().unwrap();
        let role = Role::new("counted", pid, ThreadFilter::named(&["counted"]));
        let mut sampler = Sampler::new(vec![role]).count_calls();
        let before = sampler.take();
        begin.send(()).unwrap();
        ended.recv().unwrap();
        let used = sampler.take().since(&before);
        begin.send(()).unwrap();
        counted.join().unwrap();
        used.roles[0].calls.clone().map_err(vlane_testing::skip).ok()
    })
}

const EVENTS: u64 = 200;
/// Those of [`calls_of`], and of a lock or two.
const FEW: u64 = 20;

/// The thread's policy is set, and set back. Its clock and its state are not read. This thread may
/// stand still for so long that the vCPU's thread could have ended: then that is looked at.
#[test]
fn granted_boost_takes_two_system_calls() {
    if !may_schedule() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let hog = Hog::new();
    let mut vehicle = vehicle(Policy::Adaptive, dir.path(), |settings| {
        settings.rt_shares.machine = 100;
        settings.params.line_ns = 10_000_000_000;
        settings.params.line_max_ns = 10_000_000_000;
    });
    let until = Instant::now() + PATIENCE;
    loop {
        let id = vehicle.add(&hog.threads("hog"), Claim::of(1)).unwrap();
        let mut granted = 0;
        let calls = calls_of(|| {
            for _ in 0..EVENTS {
                let decision = vehicle.event(id, monotonic_ns()).unwrap();
                granted += u64::from(matches!(decision, Decision::Boost { .. }));
                vehicle.served(id, monotonic_ns(), 1000).unwrap();
            }
        });
        let Some(calls) = calls else { return };
        if granted > EVENTS / 2 && calls <= 2 * granted + FEW {
            return;
        }
        assert!(Instant::now() < until, "{calls} for {granted} of {EVENTS}");
        vehicle.remove(id).unwrap();
    }
}

#[test]
fn denied_boost_takes_no_system_call() {
    if !may_schedule() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let hog = Hog::new();
    let mut vehicle = vehicle(Policy::Adaptive, dir.path(), |_| {});
    let id = vehicle.add(&hog.threads("hog"), Claim::of(1)).unwrap();
    vehicle.tick(monotonic_ns()).unwrap();
    // No accounting comes, so its loan is spent by and by. Its boosts last for milliseconds.
    let until = Instant::now() + PATIENCE;
    while vehicle.denied_until(id).is_none() {
        assert!(Instant::now() < until, "its loan is never spent: {:?}", vehicle.account(id));
        vehicle.event(id, monotonic_ns()).unwrap();
        std::thread::sleep(Duration::from_millis(4));
        vehicle.served(id, monotonic_ns(), 1000).unwrap();
    }
    let calls = calls_of(|| {
        for _ in 0..EVENTS {
            let decision = vehicle.event(id, monotonic_ns()).unwrap();
            assert!(matches!(decision, Decision::Denied(_)), "{decision:?}");
        }
    });
    assert!(calls.is_none_or(|calls| calls <= FEW), "{calls:?} for {EVENTS}");
}
