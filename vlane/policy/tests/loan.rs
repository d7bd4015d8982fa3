//! Properties of loans in any course of events.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use vlane_policy::loan::units::{MS, PERMILLE, US};
use vlane_policy::loan::{
    Account, Book, Claim, Decision, Doing, Goal, Params, Payment, Policy, Priority, VcpuId,
};

#[derive(Debug, Clone, Copy)]
enum Step {
    Event(Doing),
    Ran(u64),
    RanBoosted(u64),
    Served,
    /// The credits due, and the part of them that is given.
    Allot(u64, u64),
}

fn doing() -> impl Strategy<Value = Doing> {
    prop_oneof![Just(Doing::Blocked), Just(Doing::Waiting), Just(Doing::Running)]
}

fn step() -> impl Strategy<Value = (u64, Step)> {
    let what = prop_oneof![
        doing().prop_map(Step::Event),
        // Also runaways: a boost without an end for seconds.
        prop_oneof![0..3 * MS, 0..3000 * MS].prop_map(Step::Ran),
        prop_oneof![0..3 * MS, 0..3000 * MS].prop_map(Step::RanBoosted),
        Just(Step::Served),
        (0..40 * MS, 0..40 * MS).prop_map(|(due, gets)| Step::Allot(due, gets)),
    ];
    (0..50 * MS, what)
}

fn params() -> impl Strategy<Value = Params> {
    let sound = prop::sample::select(&Policy::ALL[..]).prop_map(Params::sound);
    prop_oneof![sound, Just(Params::paper())]
}

/// Runs steps on an account, `check` after each; the account and the time at the end.
fn run(params: &Params, steps: &[(u64, Step)], mut check: impl FnMut(&Account)) -> (Account, u64) {
    let mut account = Account::new(params);
    let mut now = 0;
    for &(later, step) in steps {
        now += later;
        match step {
            Step::Event(doing) => drop(account.event(now, doing, params)),
            Step::Ran(ns) => account.ran(now, ns, params),
            Step::RanBoosted(ns) => account.ran_boosted(now, ns, params),
            Step::Served => account.served(),
            Step::Allot(due, gets) => account.allot(now, due, gets, params),
        }
        check(&account);
    }
    (account, now)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn credits_are_never_created_and_never_lost(params in params(), steps in prop::collection::vec(step(), 1..300)) {
        run(&params, &steps, |account| {
            let t = &account.totals;
            let repaid = if params.payment == Payment::Loan { t.redeemed_ns } else { 0 };
            let credits = i128::from(t.allotted_ns) - i128::from(repaid) - i128::from(t.expired_ns)
                + i128::from(t.forgiven_ns) - i128::from(t.used_ns - t.uncharged_ns);
            assert_eq!(i128::from(account.credit_ns), credits);
            assert_eq!(t.lent_ns - t.redeemed_ns, account.loan.debt_ns(), "what is lent is redeemed or owed");
            assert!(t.uncharged_ns <= t.boosted_ns && t.boosted_ns <= t.used_ns);
        });
    }

    #[test]
    fn debt_stays_within_line_and_credit_limit(params in params(), steps in prop::collection::vec(step(), 1..300)) {
        run(&params, &steps, |account| {
            assert!(account.loan.debt_ns() <= params.line_max_ns + params.credit_min_ns);
            assert!((params.line_min_ns..=params.line_max_ns).contains(&account.loan.line_ns));
        });
    }

    #[test]
    fn redemption_always_ends(params in params(), steps in prop::collection::vec(step(), 1..300), allotment in MS..30 * MS) {
        let (mut account, now) = run(&params, &steps, |_| ());
        account.served();
        let redeems = allotment * account.redemption_permille / PERMILLE;
        let most = account.loan.debt_ns().div_ceil(redeems) + 1;
        let mut periods = 0;
        while account.loan.redeeming {
            periods += 1;
            account.allot(now + periods * params.period_ns, allotment, allotment, &params);
            prop_assert!(periods <= most, "{} periods for {} ns", periods, account.loan.debt_ns());
        }
    }

    #[test]
    fn boost_never_outlives_its_time_or_event(params in params(), steps in prop::collection::vec(step(), 1..300)) {
        let (mut account, _) = run(&params, &steps, |account| {
            assert!(account.boosted.is_none() || account.boost_used_ns < params.boost_max_ns);
        });
        account.served();
        prop_assert_eq!(account.boosted, None);
    }

    #[test]
    fn boost_ends_exactly_when_used_up(
        params in params(), steps in prop::collection::vec(step(), 1..200), doing in doing(),
    ) {
        let (mut account, now) = run(&params, &steps, |_| ());
        account.event(now, doing, &params);
        // A timer in the kernel that ends boosts gets this figure.
        let left = account.boost_left_ns();
        prop_assert_eq!(left > 0, account.boosted.is_some());
        if left > 0 {
            account.ran(now, left - 1, &params);
            prop_assert!(account.boosted.is_some(), "ended before {} ns", left);
            prop_assert_eq!(account.boost_left_ns(), 1);
            account.ran(now, 1, &params);
            prop_assert_eq!(account.boosted, None, "on after {} ns", left);
        }
    }

    /// A caller may leave the vCPU's state unread, and the last boosts uncharged.
    #[test]
    fn foreseen_decision_holds_in_any_state(
        params in params(), steps in prop::collection::vec(step(), 1..200), doing in doing(),
        unsettled in 0..5 * MS, charge in 0..5 * MS,
    ) {
        let (mut account, now) = run(&params, &steps, |_| ());
        let foreseen = account.foresees(unsettled, &params);
        account.ran_before(now, charge.min(unsettled), &params);
        let boosts = matches!(account.event(now, doing, &params), Decision::Boost { .. });
        if let Some(foreseen) = foreseen && doing != Doing::Running {
            prop_assert_eq!(foreseen, boosts);
        }
    }

    /// It spends less than it redeems.
    #[test]
    fn light_spender_is_never_denied(
        every in 1u64..20, cost in 5u64..200, allotment in 2u64..30,
    ) {
        let params = Params::sound(Policy::Loan);
        let (every, cost, allotment) = (every * MS, cost * US, allotment * MS);
        // Half of what it redeems, so that the size of the steps does not matter.
        prop_assume!(cost * params.period_ns / every < allotment * params.redemption_permille / PERMILLE / 2);
        let mut account = Account::new(&params);
        let mut accounting = 0;
        for n in 0..3000u64 {
            let now = n * every;
            while accounting <= now {
                account.allot(accounting, allotment, allotment, &params);
                // It computes all the rest of the time: always over its share by a little.
                let rest = u64::try_from(account.credit_ns.max(0)).unwrap() + MS;
                account.ran(accounting, rest, &params);
                accounting += params.period_ns;
            }
            let decision = account.event(now, Doing::Waiting, &params);
            prop_assert!(matches!(decision, Decision::Boost { .. }), "{:?} at {} of {:?}", decision, now, account);
            account.ran(now, cost, &params);
            account.served();
        }
    }
}

/// A host that runs the vCPU with the highest priority first, a millisecond at a time; all compute,
/// the first ones have events too. Returns the CPU time that each has used.
fn contended(
    params: Params,
    weights: &[u32],
    cpus: u64,
    (with_events, event_every_ms): (usize, u64),
    seconds: u64,
) -> (Vec<u64>, Book) {
    let period_ms = params.period_ns / MS;
    let mut book = Book::new(params, Goal::default());
    let vm = |(vm, &weight): (u32, &u32)| Claim { vm, weight, cap_permille: 0 };
    let ids: Vec<_> = (0..).zip(weights).map(|each| book.open(vm(each))).collect();
    let mut last_ran = vec![0u64; ids.len()];
    let mut used = vec![0u64; ids.len()];
    for ms in 1..=seconds * 1000 {
        let now = ms * MS;
        if ms % period_ms == 1 {
            book.account_all(now, cpus * period_ms * MS);
        }
        for (&id, ms) in ids[..with_events].iter().zip(ms..) {
            if ms % event_every_ms == 0 {
                book.event(id, now, Doing::Waiting);
            }
        }
        let mut order: Vec<usize> = (0..ids.len()).collect();
        order.sort_by_key(|&n| (book.account(ids[n]).unwrap().priority(), last_ran[n]));
        for &n in order.iter().take(usize::try_from(cpus).unwrap()) {
            book.ran(ids[n], now, MS);
            book.served(ids[n], 0);
            last_ran[n] = ms;
            used[n] += MS;
        }
    }
    (used, book)
}

/// True if each has its share by weight, but for a fiftieth and for its possible lead.
fn keeps_shares(
    policy: Policy,
    weights: &[u32],
    cpus: u64,
    events: (usize, u64),
) -> Result<(), TestCaseError> {
    let params = Params::sound(policy);
    let ahead = params.overdraft_ns;
    let (used, book) = contended(params, weights, cpus, events, 40);
    let (all, total) =
        (used.iter().sum::<u64>(), weights.iter().copied().map(u64::from).sum::<u64>());
    for (n, (&used, &weight)) in used.iter().zip(weights).enumerate() {
        let due = all * u64::from(weight) / total;
        let off = used.abs_diff(due);
        prop_assert!(
            off <= due / 50 + ahead,
            "{policy}: vCPU {n} of weight {weight} has used {used} of {due}; {:?}",
            book.vcpus().map(|(_, v)| v.account.credit_ns / 1_000_000).collect::<Vec<_>>()
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn shares_converge_to_weights_without_starvation(
        weights in prop::collection::vec(64u32..=512, 3..10), cpus in 1u64..=2,
        with_events in 1usize..=4, every in 2u64..20,
        policy in prop::sample::select(vec![Policy::Credit, Policy::Loan, Policy::Adaptive]),
    ) {
        let total: u64 = weights.iter().map(|&w| u64::from(w)).sum();
        // Turns go round: a vCPU that is due much more than half of a CPU has fewer of them than it
        // needs as long as others have credits.
        prop_assume!(weights.iter().all(|&w| u64::from(w) * cpus * 2 <= total));
        keeps_shares(policy, &weights, cpus, (with_events.min(weights.len()), every))?;
    }
}

/// The boosted vCPU kept the computing one from its share, so that its credits expired.
#[test]
fn expired_credits_do_not_go_to_the_boosted_vcpu() {
    // One of much weight owns what those with events owe, and is at the limit where credits expire.
    for (weights, events) in [
        (&[70, 83, 155, 161, 207, 248, 464][..], (1, 14)),
        (&[70, 83, 155, 161, 207, 248, 464], (3, 14)),
        (&[64, 322, 379, 195, 278, 474], (1, 1)),
        (&[88, 151, 264, 368, 432, 457], (6, 3)),
    ] {
        for policy in [Policy::Loan, Policy::Adaptive] {
            keeps_shares(policy, weights, 2, events).unwrap();
        }
    }
}

#[test]
fn always_boosting_gives_the_cpu_away() {
    let (used, _) = contended(Params::sound(Policy::AlwaysBoost), &[256; 12], 2, (1, 2), 20);
    let due = used.iter().sum::<u64>() / 12;
    assert!(used[0] > 2 * due, "{} of {due}", used[0]);
}

#[test]
fn heavy_vcpu_gets_smaller_loans() {
    // The paper's cm_ref is a third of a CPU: its loads are heavier.
    for (params, times) in [(Params::sound(Policy::Loan), 1), (Params::paper(), 4)] {
        let line = |cost: u64, every: u64| {
            let cost = cost * times;
            let mut account = Account::new(&params);
            let mut now = 0;
            for n in 0..20_000u64 {
                now += every;
                if n % 4 == 0 {
                    account.allot(now, 5 * MS, 5 * MS, &params);
                }
                if let Decision::Boost { .. } = account.event(now, Doing::Waiting, &params) {
                    account.ran(now + cost, cost, &params);
                    account.served();
                }
            }
            (account.loan.next_line_ns, account.loan.cm_ppm)
        };
        // Figure 3: light and rare (C), then either (A, D), then both (B).
        let (light, both) = (line(50 * US, 7 * MS), line(450 * US, 2 * MS));
        let (computing, frequent) = (line(450 * US, 7 * MS), line(50 * US, 2 * MS));
        assert!(
            light.1 < computing.1.min(frequent.1) && both.1 > computing.1.max(frequent.1),
            "cm"
        );
        assert!(
            light.0 >= computing.0.max(frequent.0) && both.0 <= computing.0.min(frequent.0),
            "loans"
        );
        assert!(light.0 > both.0);
    }
}

/// Table 7 is the paper's.
#[test]
fn loans_match_table_7_within_a_tenth() {
    let params = Params::paper();
    for (cm_ppm, loan) in [(500_000u64, 600u64), (920_000, 375)] {
        let next =
            params.line_ns * params.cm_ref_ppm / cm_ppm / vlane_policy::loan::units::CREDIT_NS;
        assert!(next.abs_diff(loan) * 10 <= loan, "{next} credits, the paper has {loan}");
    }
}

#[test]
fn boost_overrun_is_charged_to_the_loan() {
    let params = Params::sound(Policy::Loan);
    let mut account = Account::new(&params);
    assert!(matches!(account.event(0, Doing::Waiting, &params), Decision::Boost { .. }));
    account.ran(MS, params.boost_max_ns, &params);
    assert_eq!(account.boosted, None);
    account.ran_boosted(9 * MS, 8 * MS, &params);
    let used = params.boost_max_ns + 8 * MS;
    assert_eq!(
        (account.totals.lent_ns, account.loan.debt_ns(), account.totals.boosted_ns),
        (used, used, used)
    );
    assert_eq!(account.credit_ns, -i64::try_from(used).unwrap());
    // It has spent its loan, and cm is that of all of it.
    assert!(account.loan.redeeming && account.totals.spent == 1, "{account:?}");
}

#[test]
fn spent_loan_opens_at_half_its_line() {
    for params in [Params::sound(Policy::Loan), Params::sound(Policy::Adaptive), Params::paper()] {
        let mut account = Account::new(&params);
        let line = account.loan.line_ns;
        while !account.loan.redeeming {
            account.event(0, Doing::Waiting, &params);
            account.ran(30_000 * MS, 100 * US, &params);
        }
        // A little at a time, so that no step passes half of the line by much.
        let due = 100 * US;
        let mut steps = 0;
        while account.loan.redeeming {
            account.allot(30_000 * MS, due, due, &params);
            steps += 1;
        }
        let redeemed = steps * due * params.redemption_permille / PERMILLE;
        let left = line.min(account.loan.line_ns) / 2;
        let expected = if params == Params::paper() { line } else { line - left };
        assert!(
            redeemed.abs_diff(expected) <= 2 * due,
            "{:?}: {redeemed} ns redeemed of {line}",
            params.redemption
        );
        assert!(account.loan.left_ns() > 0, "{account:?}");
    }
}

#[test]
fn impossible_parameters_are_named() {
    let error = Params { redemption_permille: 0, ..Params::default() }.checked().unwrap_err();
    assert_eq!(error.to_string(), "redemption_permille = 0: must be between 1 and 1000");
    assert!("fast".parse::<Policy>().unwrap_err().to_string().contains("always-boost"));
    assert!(Goal { tolerance_permille: 0, ..Goal::default() }.checked().is_err());
    for params in [Params::paper(), Params::sound(Policy::Loan)] {
        params.checked().unwrap();
    }
}

#[test]
fn reused_place_gets_a_new_account() {
    let mut book = Book::new(Params::default(), Goal::default());
    let first = book.open(Claim::of(1));
    book.account_all(0, 60 * MS);
    assert!(book.account(first).unwrap().credit_ns > 0);
    book.close(first).unwrap();
    assert_eq!(book.event(first, 0, Doing::Waiting), None);
    let second = book.open(Claim::of(2));
    assert_eq!((first, book.account(second).unwrap().credit_ns), (second, 0));
}

/// The number of their vCPUs does not matter.
#[test]
fn machines_share_by_weight_under_caps() {
    let mut book =
        Book::new(Params { credit_max_ns: 3000 * MS, ..Params::default() }, Goal::default());
    let wide: Vec<_> = (0..4).map(|_| book.open(Claim::of(1))).collect();
    let narrow = book.open(Claim::of(2));
    let capped = book.open(Claim { cap_permille: 100, ..Claim::of(3) });
    book.account_all(0, 33 * MS);
    let got = |id| i64::try_from(book.allotments()[VcpuId::into_index(id)]).unwrap();
    assert_eq!(got(capped), 3 * 1_000_000);
    assert_eq!(got(narrow), 15 * 1_000_000);
    assert_eq!(wide.iter().map(|&id| got(id)).sum::<i64>(), 15 * 1_000_000);
}

/// The others have the rest.
#[test]
fn vcpu_over_its_cap_is_denied() {
    let params = Params::sound(Policy::Loan);
    let mut book = Book::new(params.clone(), Goal::default());
    let capped = book.open(Claim { cap_permille: 100, ..Claim::of(0) });
    let others: Vec<_> = (1..4).map(|vm| book.open(Claim::of(vm))).collect();
    let mut denied = [0_u32; 2];
    // Four compute on two CPUs, and use the half of one that each would have without the cap.
    for period in 1..=200 {
        let now = period * params.period_ns;
        for id in [capped].iter().chain(&others) {
            let decided = book.event(*id, now, Doing::Waiting).unwrap();
            denied[usize::from(*id != capped)] += u32::from(matches!(decided, Decision::Denied(_)));
            book.end(*id);
            book.ran(*id, now, params.period_ns / 2);
        }
        book.account_all(now, 2 * params.period_ns);
    }
    let account = |id| book.account(id).unwrap();
    assert_eq!(account(capped).priority(), Priority::Over);
    assert!(denied[0] > 180, "{denied:?}");
    // A tenth of a CPU was given to it, at the most, and what it would have had besides to the
    // others.
    let given = |id| account(id).totals.allotted_ns;
    assert!(given(capped) <= 200 * params.period_ns / 10, "{}", given(capped));
    for &id in &others {
        assert!(given(id) > given(capped) * 4, "{}", given(id));
        assert!(account(id).credit_ns > account(capped).credit_ns);
    }
}

/// They neither gain from unused time nor pay for the savings of sleepers.
#[test]
fn levelling_keeps_contenders_even() {
    // Switches take 1 % of the CPU, which is given out all the same; and one vCPU in five sleeps
    // and saves.
    let contend = |params: &Params, given: u64| {
        let mut book = Book::new(params.clone(), Goal::default());
        let ids: Vec<_> = (0..10).map(|vm| book.open(Claim::of(vm))).collect();
        for period in 1..=1000 {
            for id in &ids[..8] {
                book.ran(*id, period * params.period_ns, 7 * MS + MS / 2);
            }
            book.account_all(period * params.period_ns, given);
        }
        ids[..8].iter().map(|id| book.account(*id).unwrap().credit_ns).sum::<i64>() / 8
    };
    let params = Params::sound(Policy::Loan);
    let unlevelled = Params { level_permille: 0, ..params.clone() };
    for given in [60 * MS, 60 * MS * 101 / 100] {
        // An accounting has just given what a period uses.
        let own = contend(&params, given) - 7_500_000;
        assert!((-31_000_000..1_000_000).contains(&own), "{own}");
    }
    // Two of ten save 60 ms each, at the cost of eight.
    let (saved, inflated) =
        (contend(&unlevelled, 60 * MS), contend(&unlevelled, 60 * MS * 101 / 100));
    assert!(saved < -12_000_000, "{saved}");
    assert!(inflated > 40_000_000, "{inflated}");
}

/// Borrows until it is denied.
fn spend(book: &mut Book, id: VcpuId, now: u64) {
    while let Some(Decision::Boost { .. }) = book.event(id, now, Doing::Waiting) {
        let left = book.account(id).unwrap().boost_left_ns();
        book.ran(id, now, left);
        book.end(id);
    }
}

#[test]
fn idle_vcpu_redeems_fastest() {
    for params in [Params::paper(), Params::sound(Policy::Loan)] {
        let mut book = Book::new(params.clone(), Goal::default());
        let ids: Vec<_> = (0..13).map(|vm| book.open(Claim::of(vm))).collect();
        let (idle, computes) = (ids[0], ids[1]);
        let mut now = 0;
        // The others use all of two CPUs.
        let mut period = |book: &mut Book| {
            now += params.period_ns;
            for &id in &ids[1..] {
                book.ran(id, now, 2 * params.period_ns / 12);
            }
            book.account_all(now, 2 * params.period_ns);
            now
        };
        let began = (0..100).map(|_| period(&mut book)).last().unwrap();
        let ceiling = i64::try_from(params.credit_max_ns).unwrap();
        assert_eq!(book.account(idle).unwrap().credit_ns, ceiling);
        for id in [idle, computes] {
            spend(&mut book, id, began);
        }
        let mut redeemed = [None; 2];
        for n in 1..=400 {
            period(&mut book);
            for (at, id) in [idle, computes].into_iter().enumerate() {
                if book.account(id).unwrap().loan.debt_ns() == 0 {
                    redeemed[at].get_or_insert(n);
                }
            }
        }
        let [Some(idle), Some(computes)] = redeemed else {
            panic!("{redeemed:?} periods: {params:?}")
        };
        assert!(idle <= computes, "{idle} periods, and {computes} for who computes");
    }
}

/// The more of a machine's vCPUs are inactive, the more often the others are boosted.
#[test]
fn inactive_vcpus_leave_boosts_to_others() {
    for params in [Params::paper(), Params::sound(Policy::Loan)] {
        // Four vCPUs, and five machines of one that compute, on two CPUs. An event every 20 ms
        // takes 1 ms: more than is lent.
        let boosts = |active: usize| {
            let mut book = Book::new(params.clone(), Goal::default());
            let own: Vec<_> = (0..4).map(|_| book.open(Claim::of(0))).collect();
            let others: Vec<_> = (1..6).map(|vm| book.open(Claim::of(vm))).collect();
            let whole = 2 * params.period_ns;
            // All have saved what they may.
            for period in 0..100 {
                book.account_all(period, whole);
            }
            let mut boosted = 0;
            for ms in 0..60_000 {
                let now = ms * MS;
                if now.is_multiple_of(params.period_ns) {
                    for &id in &others {
                        book.ran(id, now, whole / 6);
                    }
                    // The active vCPUs use all of their due time, with boosts.
                    for &id in &own[..active] {
                        let done = if id == own[0] { std::mem::take(&mut boosted) } else { 0 };
                        book.ran(id, now, whole / 6 / active as u64 - done);
                    }
                    book.account_all(now, whole);
                }
                if ms % 20 == 0
                    && let Some(Decision::Boost { .. }) = book.event(own[0], now, Doing::Waiting)
                {
                    let ns = book.account(own[0]).unwrap().boost_left_ns().min(MS);
                    book.ran(own[0], now, ns);
                    book.end(own[0]);
                    boosted += ns;
                }
            }
            book.account(own[0]).unwrap().totals.boosts
        };
        let by_active: Vec<u64> = [4, 3, 2, 1].into_iter().map(boosts).collect();
        assert!(
            by_active.is_sorted() && by_active[0] < by_active[3],
            "{by_active:?} with 0 to 3 of 4 inactive: {params:?}"
        );
    }
}
