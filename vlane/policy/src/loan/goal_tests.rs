//! Properties of the terms that `adaptive` finds, however frequent events are and however large a
//! share is.

#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;

use super::super::{Book, Claim, Decision, Denial, Doing, Policy, VcpuId};
use super::*;
use crate::loan::units::{PPM, US};

const SECOND: u64 = 1000 * MS;

/// A host on which each vCPU uses its last allotment, by weight; the first one more than that by
/// `excess` permille.
struct Host {
    book: Book,
    ids: Vec<VcpuId>,
    now: u64,
}

impl Host {
    fn new(weights: &[u32]) -> Self {
        let mut book = Book::new(Params::sound(Policy::Adaptive), Goal::default());
        let claim = |(vm, &weight): (u32, &u32)| Claim { vm, weight, cap_permille: 0 };
        let ids = (0..).zip(weights).map(|each| book.open(claim(each))).collect();
        let mut host = Self { book, ids, now: 0 };
        host.period(0);
        host
    }

    fn first(&self) -> &Account {
        self.book.account(self.ids[0]).unwrap()
    }

    fn period(&mut self, excess: u64) {
        let period = self.book.params().period_ns;
        self.now += period;
        let allotted = self.book.allotments().to_vec();
        for (n, id) in self.ids.iter().enumerate() {
            let got = allotted.get(id.into_index()).copied().unwrap_or(0);
            let more = if n == 0 { got * excess / PERMILLE } else { 0 };
            self.book.ran(*id, self.now, got + more);
        }
        self.book.account_all(self.now, period);
    }
}

/// The cause of a late answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Denied,
    Short,
    ItsOwn,
}

/// Answers evenly apart, so many per second, of which so many of a thousand are late, evenly apart
/// too.
struct Answers {
    per_second: u64,
    late_permille: u64,
    /// Where the late ones begin.
    phase: u64,
    given: u64,
    cause: Cause,
}

impl Answers {
    const fn new(per_second: u64, late_permille: u64, phase: u64) -> Self {
        Self { per_second, late_permille, phase, given: 0, cause: Cause::Denied }
    }

    const fn for_cause(mut self, cause: Cause) -> Self {
        self.cause = cause;
        self
    }

    fn until(&mut self, host: &mut Host) {
        let late = |n: u64| (n + self.phase) * self.late_permille / PERMILLE;
        for n in self.given..host.now * self.per_second / SECOND {
            let is_late = late(n + 1) > late(n);
            let watch = host.book.watch_mut(host.ids[0]).unwrap();
            match self.cause {
                Cause::Denied if is_late => watch.denied(),
                Cause::Short if is_late => watch.too_short(),
                _ => {}
            }
            host.book.served(host.ids[0], if is_late { 5 * MS } else { MS / 2 });
            self.given = n + 1;
        }
    }
}

/// The line and the share that redeems.
fn terms(host: &Host) -> (u64, u64) {
    (host.first().base_line_ns, host.first().redemption_permille)
}

/// Those of one vCPU of twelve, after so long with such answers.
fn terms_after(seconds: u64, mut answers: Answers) -> (u64, u64) {
    let mut host = Host::new(&[256; 12]);
    while host.now < seconds * SECOND {
        host.period(0);
        answers.until(&mut host);
    }
    terms(&host)
}

/// Those that all begin with.
fn begun() -> (u64, u64) {
    let params = Params::sound(Policy::Adaptive);
    (params.line_ns, params.redemption_permille)
}

fn per_second() -> impl Strategy<Value = u64> {
    prop_oneof![1u64..20, 20u64..100, 100u64..5000]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn reached_goal_raises_no_terms(
        per_second in per_second(), late in 0u64..=7, phase in 0u64..1000,
    ) {
        let (line, redemption) = terms_after(60 + 1000 / per_second, Answers::new(per_second, late, phase));
        prop_assert!(line <= begun().0 && redemption <= begun().1, "{} ns, {}", line, redemption);
    }

    #[test]
    fn missed_goal_raises_terms_to_limits(
        per_second in per_second(), late in 25u64..=1000,
    ) {
        let (line, redemption) = terms_after(60 + 1000 / per_second, Answers::new(per_second, late, 0));
        // But for some steps down since the last late one.
        let top = (Params::sound(Policy::Adaptive).line_max_ns, PERMILLE);
        prop_assert!(line >= top.0 * 85 / 100 && redemption >= top.1 * 85 / 100, "{} ns, {}", line, redemption);
    }

    /// Late answers do not change that.
    #[test]
    fn vcpu_over_its_share_is_lent_less(
        others in 1usize..=10, weight in 128u32..=256, excess in 30u64..300, late in 0u64..=1000,
    ) {
        let mut weights = vec![256; others + 1];
        weights[0] = weight;
        let mut host = Host::new(&weights);
        let mut answers = Answers::new(50, late, 0);
        // A twentieth of a CPU at the least: a turn of 30 ms is 2 % of what that is in half a
        // minute.
        while host.now < 120 * SECOND {
            host.period(excess);
            answers.until(&mut host);
        }
        let now = terms(&host);
        prop_assert!(now.0 < begun().0 && now.1 < begun().1, "{:?} of {:?}", now, begun());
    }

    #[test]
    fn vcpu_within_its_share_is_lent_enough(
        others in 1usize..20, excess in 0u64..=18, late in 25u64..=1000,
    ) {
        let mut host = Host::new(&vec![256; others + 1]);
        let mut answers = Answers::new(50, late, 0);
        while host.now < 120 * SECOND {
            host.period(excess);
            answers.until(&mut host);
        }
        prop_assert!(host.first().redemption_permille >= PERMILLE * 85 / 100, "{:?}", terms(&host));
    }
}

/// The length of a boost after a minute with such answers.
fn length_after(answers: Answers) -> u64 {
    let (mut host, mut answers) = (Host::new(&[256; 12]), answers);
    while host.now < 60 * SECOND {
        host.period(0);
        answers.until(&mut host);
    }
    host.first().boost_max_ns
}

/// Boosts that are not blamed keep their length.
#[test]
fn short_boosts_grow_to_the_goal() {
    let (params, goal) = (Params::sound(Policy::Adaptive), Goal::default());
    assert_eq!(length_after(Answers::new(50, 500, 0).for_cause(Cause::Short)), goal.response_ns);
    for (late, cause) in [(7, Cause::Short), (500, Cause::Denied), (500, Cause::ItsOwn)] {
        assert_eq!(
            length_after(Answers::new(50, late, 0).for_cause(cause)),
            params.boost_max_ns,
            "{cause:?}"
        );
    }
}

#[test]
fn unblamed_late_answers_raise_no_terms() {
    let (line, redemption) = terms_after(60, Answers::new(50, 1000, 0).for_cause(Cause::ItsOwn));
    assert_eq!((line, redemption), begun());
    let (line, redemption) = terms_after(60, Answers::new(50, 1000, 0).for_cause(Cause::Short));
    assert_eq!((line, redemption), begun());
}

/// One of `vcpus` on one CPU answers events with boosts, of so much CPU time each, and computes
/// with the rest of its share. It begins with `params`; how many of the events of the last half a
/// minute of two were denied, parts per million.
fn denied_at_the_end(params: &Params, vcpus: u32, per_second: u64, work_ns: u64) -> u64 {
    let mut book = Book::new(params.clone(), Goal::default());
    let ids: Vec<VcpuId> = (0..vcpus).map(|vm| book.open(Claim::of(vm))).collect();
    let (mut now, mut events, mut denied) = (0, 0, 0);
    let share = params.period_ns / u64::from(vcpus);
    let mut due = 0;
    book.account_all(now, params.period_ns);
    while now < 120 * SECOND {
        let (end, mut left) = (now + params.period_ns, share);
        while due < end {
            let decision = book.event(ids[0], due, Doing::Waiting).unwrap();
            if let Decision::Boost { ns } = decision {
                book.ran(ids[0], due, work_ns.min(ns));
                left = left.saturating_sub(work_ns);
            }
            let is_denied = decision == Decision::Denied(Denial::Redeeming);
            book.served(ids[0], if is_denied { 20 * MS } else { work_ns + 50 * US });
            if due >= 90 * SECOND {
                events += 1;
                denied += u64::from(is_denied);
            }
            due += SECOND / per_second;
        }
        now = end;
        book.ran(ids[0], now, left);
        for &id in &ids[1..] {
            book.ran(id, now, share);
        }
        book.account_all(now, params.period_ns);
    }
    denied * PPM / events
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The property holds for any terms at the beginning.
    /// A light vCPU asks for less than its share.
    #[test]
    fn light_vcpu_is_denied_within_goal(
        vcpus in 2u32..=12, per_second in prop_oneof![5u64..50, 50u64..1000], percent in 5u64..=60,
        redemption in 50u64..=1000, line in 500 * US..=6 * MS,
    ) {
        // So many percent of its share are for events, each of less than the goal.
        let work = (SECOND / u64::from(vcpus) * percent / 100 / per_second).clamp(20 * US, MS);
        let params = Params { redemption_permille: redemption, line_ns: line, ..Params::sound(Policy::Adaptive) };
        let denied = denied_at_the_end(&params, vcpus, per_second, work);
        prop_assert!(denied <= 20_000, "{} ppm denied with {} ns of work", denied, work);
    }
}

#[test]
fn vcpu_without_answers_keeps_its_terms() {
    assert_eq!(terms_after(60, Answers::new(0, 0, 0)), begun());
}

#[test]
fn unneeded_terms_are_lowered_slowly() {
    for per_second in [1, 200, 5000] {
        let (line, redemption) = terms_after(10, Answers::new(per_second, 0, 0));
        assert!(line < begun().0 && redemption < begun().1, "{line} ns, {redemption}");
        // 2 % of each second at the most.
        assert!(
            line >= begun().0 * 80 / 100 && redemption >= begun().1 * 80 / 100,
            "{line} ns, {redemption}"
        );
    }
}
