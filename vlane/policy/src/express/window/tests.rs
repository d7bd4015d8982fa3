//! Against a simulated device: the same random numbers each time, so the bounds are exact.

use proptest::prelude::*;

use super::simulation_tests::{Queues, Result, Service, Setup, run};
use super::*;

fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b as f64
}

/// With a window and without.
fn both(setup: &Setup) -> (Result, Result) {
    (run(setup.clone()), run(Setup { bounded: false, ..setup.clone() }))
}

/// The device stays busy, and express requests are at least so many times quicker.
fn pays(setup: &Setup, times: u64) {
    let (bounded, unbounded) = both(setup);
    let busy = ratio(bounded.all, unbounded.all);
    assert!(busy >= 0.97, "{busy:.3} of the device's rate: {setup:?}");
    let (p99, without) = (bounded.p99(), unbounded.p99());
    assert!(p99 * times <= without, "express {p99} ns, {without} without: {setup:?}");
}

#[test]
fn window_keeps_device_busy_without_express_waits() {
    for service in [Service::Fixed, Service::Exponential, Service::Mixed] {
        let setup = Setup { service, until: 8000 * MS, ..Setup::default() };
        // Where requests differ, the slow ones are the device's own.
        let times = match service {
            Service::Fixed => 50,
            Service::Exponential => 15,
            Service::Mixed => 7,
        };
        pays(&setup, times);
        pays(&Setup { channels: 16, takes: vec![(0, 2 * MS)], ..setup }, 4);
    }
    pays(&Setup { channels: 1, from: 3000 * MS, until: 8000 * MS, ..Setup::default() }, 30);
}

#[test]
fn old_probe_still_counts_after_months() {
    for periods in [3, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (3 << 20) + 5] {
        let ended = periods * PROBE_EVERY;
        let window = Window { known: 1, found: [1e6; PROBES], ended, ..Window::default() };
        let told = window.message(Turn { at_device: 0, begun: 0, is_wanted: false, probe_at: 0 });
        assert_eq!(Shared::of([told].into_iter(), ended + PROBE_EVERY).service, Some(1e6));
        assert_eq!(
            Shared::of([told].into_iter(), ended + 5 * PROBE_EVERY).service,
            None,
            "it is old"
        );
    }
}

/// On a device of four channels they have a few dozen requests there together.
#[test]
fn eight_lanes_share_a_bounded_window() {
    for queues in [Queues::One, Queues::PerLane] {
        for service in [Service::Fixed, Service::Exponential] {
            let setup = Setup {
                lanes: 8,
                depth: 64,
                queues,
                service,
                until: 8000 * MS,
                ..Setup::default()
            };
            pays(&setup, 8);
            let mean = run(setup).mean;
            assert!((8.0..32.0).contains(&mean), "{mean:.1} of 512: {queues:?} {service:?}");
        }
    }
}

/// Climbing by throughput, a lane took its own pauses for the device's.
#[test]
fn window_survives_lost_cpu_time() {
    let pauses = Some((1000 * MS, 25 * MS));
    let one = Setup { pauses, until: 10_000 * MS, ..Setup::default() };
    let (mean, p50) = (run(one.clone()).mean, run(one).p50());
    assert!(mean < 16.0 && p50 <= 3 * MS, "{mean:.1} at the device, express {p50} ns");
    let eight = Setup { lanes: 8, depth: 64, pauses, until: 10_000 * MS, ..Setup::default() };
    let (bounded, unbounded) = both(&eight);
    assert!(bounded.mean < 36.0, "{:.1} at the device", bounded.mean);
    assert!(ratio(bounded.all, unbounded.all) >= 0.97 && bounded.p99() * 8 <= unbounded.p99());
}

#[test]
fn changed_device_speed_is_found_in_seconds() {
    for takes in [(MS, 8 * MS), (8 * MS, MS)] {
        let takes = vec![(0, takes.0), (3500 * MS, takes.1)];
        let after =
            Setup { takes, depth: 128, from: 10_000 * MS, until: 14_000 * MS, ..Setup::default() };
        let (bounded, unbounded) = both(&after);
        let busy = ratio(bounded.all, unbounded.all);
        assert!(busy >= 0.95, "{busy:.3} of the device's rate: {after:?}");
        assert!(bounded.mean < 20.0, "{:.1} at the device: {after:?}", bounded.mean);
    }
}

#[test]
fn light_guest_is_not_delayed() {
    // Two at a time, of a device that could do four.
    let setup = Setup { depth: 2, until: 6000 * MS, ..Setup::default() };
    let (bounded, unbounded) = both(&setup);
    assert!(ratio(bounded.all, unbounded.all) >= 0.96, "{} of {}", bounded.all, unbounded.all);
}

/// Of a lane that never answers, the others do not hear twice.
#[test]
fn probe_is_given_up_when_lane_hangs() {
    let mut window = Window::default();
    window.closes(1);
    let hangs = Shared::of([LaneMessage::unbounded(9)].into_iter(), 1);
    let size = window.size();
    for second in 1..=7 {
        window
            .turn(second * 1000 * MS, Turn { at_device: 1, begun: 1, ..Turn::default() }, || hangs);
    }
    assert_eq!((window.size(), window.service), (size, None));
}

#[test]
fn due_class_has_room_beside_express() {
    let mut window = Window::default();
    window.closes(1);
    let mut turns = Turns::default();
    let (size, express) = (window.size(), window.express());
    let waits = Each([true, false, false, true]);
    // Express requests fill their window and that of the others.
    assert_eq!(
        window.next(&turns, waits, [express, 0, 0]),
        if express < size { Some(Class::Background) } else { None }
    );
    for _ in 0..crate::express::SHARE - 1 {
        turns.begun(Class::Express, waits);
    }
    assert_eq!(window.next(&turns, waits, [express, 0, 0]), Some(Class::Background));
    assert_eq!(
        window.next(&turns, waits, [express - 1, 0, size]),
        Some(Class::Express),
        "no room of its own"
    );
}

#[test]
fn old_and_late_lane_messages_are_ignored() {
    let turn = Turn::default();
    let found = |took: f64, at: Nanos| {
        let window = Window { found: [took; PROBES], known: 1, ended: at, ..Window::default() };
        window.message(turn)
    };
    let now = 10 * PROBE_EVERY;
    let told = [
        found(90.0 * 1e6, now),
        found(1.0 * 1e6, now),
        found(1.1 * 1e6, now),
        found(80.0 * 1e6, now),
    ];
    assert_eq!(Shared::of(told.into_iter(), now).service, Some(1.1 * 1e6));
    let old = [found(5.0 * 1e6, PROBE_EVERY), LaneMessage::default(), LaneMessage::unbounded(0)];
    assert_eq!(Shared::of(old.into_iter(), now), Shared::default());
    assert!(Shared::of([LaneMessage::unbounded(9)].into_iter(), now).drains);
}

proptest! {
    /// Clocks that stand still or jump, answers that come from nowhere: there is always room for
    /// one, and never for more than there is.
    #[test]
    fn window_always_has_room_for_one(
        steps in prop::collection::vec((any::<[u16; 6]>(), any::<[bool; 5]>()), 1..300)
    ) {
        let mut window = Window::default();
        let turns = Turns::default();
        let mut now: Nanos = 1;
        for (numbers, [express, promoted, normal, background, is_wanted]) in steps {
            let [step, scale, begun, at_device, took, others] = numbers;
            now += u64::from(step) << (scale % 24);
            if scale == 0 {
                window.closes(now);
            }
            for n in 0..begun % 64 {
                window.answered(now.saturating_sub(u64::from(took) << (n % 20)), now);
            }
            let turn = Turn { at_device: at_device.into(), begun: begun.into(), is_wanted, probe_at: now / 2 };
            let other = LaneMessage(u64::from(took) << (scale % 64));
            let shared = Shared::of([other, window.message(turn)].into_iter(), now);
            let wants = window.turn(now, turn, || shared);
            prop_assert!(wants.is_none_or(|probe| probe <= now));
            prop_assert!((1..=MOST).contains(&window.size()) && window.express() >= 2);
            let waits = Each([express, promoted, normal, background]);
            let next = window.next(&turns, waits, [0; 3]);
            prop_assert_eq!(next.is_some(), express || promoted || normal || background);
            let [express, promoted, others] = [u32::from(at_device), begun.into(), others.into()];
            if let Some(class) = window.next(&turns, waits, [express, promoted, others]) {
                prop_assert!(waits.of(class));
                let has_room = match class {
                    Class::Express => express < window.express(),
                    Class::Promoted => promoted < window.promoted(),
                    _ => express + promoted + others < window.size(),
                };
                prop_assert!(has_room);
            }
        }
    }
}
