//! The distributions against tables, the verdicts against simulated machines.

use proptest::prelude::*;

use super::*;

/// A small generator (`SplitMix64`), so that simulations are the same every time.
struct Noise(u64);

impl Noise {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Normal noise by Box and Muller.
    fn normal(&mut self) -> f64 {
        let (u, v) = (1.0 - self.uniform(), self.uniform());
        (-2.0 * u.ln()).sqrt() * (2.0 * std::f64::consts::PI * v).cos()
    }

    /// Runs of something that takes `level`, with `noise` of it as standard deviation.
    fn runs(&mut self, level: f64, noise: f64, n: usize) -> Vec<f64> {
        (0..n).map(|_| level * (noise * self.normal()).exp()).collect()
    }

    /// Runs on a bad machine: one in five is slower by half, and the rest scatter widely.
    fn bad_runs(&mut self, level: f64, n: usize) -> Vec<f64> {
        let slow = |u: f64| if u < 0.2 { 0.67 } else { 1.0 };
        (0..n).map(|_| level * slow(self.uniform()) * (0.1 * self.normal()).exp()).collect()
    }
}

type Compare = fn(&[f64], &[f64], Better, f64) -> Verdict;

fn share(outcomes: &[Outcome], of: &[Outcome]) -> f64 {
    outcomes.iter().filter(|o| of.contains(o)).count() as f64 / outcomes.len() as f64
}

#[test]
fn null_distributions_match_the_tables() {
    let five = signed_rank(5);
    assert!((five[0] - 1.0 / 32.0).abs() < 1e-12 && (five.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    // Hollander, Wolfe, Chicken, table A.4: P(T+ >= 49) = 0.0137 for n = 10 (so is P(T+ <= 6)).
    let ten = signed_rank(10);
    assert!((ten[..=6].iter().sum::<f64>() - 14.0 / 1024.0).abs() < 1e-12);
    let u = rank_sum(5, 5);
    assert!((u[..=2].iter().sum::<f64>() - 4.0 / 252.0).abs() < 1e-12 && u.len() == 26);
    let u = rank_sum(3, 4);
    assert!((u[0] - 1.0 / 35.0).abs() < 1e-12 && (u.iter().sum::<f64>() - 1.0).abs() < 1e-12);
}

#[test]
fn long_samples_are_thinned_to_most() {
    let long: Vec<f64> = (1..=10 * MOST).map(|i| i as f64).collect();
    assert_eq!(thinned(&long).len(), MOST);
    assert!(thinned(&long[..MOST + 1]).len() <= MOST);
    let verdict = paired(&long, &long, Better::Higher, THRESHOLD);
    assert_eq!((verdict.outcome, verdict.ratio), (Outcome::Same, 1.0));
}

#[test]
fn false_alarms_are_rare_as_promised() {
    let compare: [(Compare, usize, f64); 5] = [
        (paired, 5, 0.0625),
        (paired, 10, 0.05),
        (unpaired, 3, 0.10),
        (unpaired, 5, 0.05),
        (unpaired, 10, 0.05),
    ];
    for (compare, n, promised) in compare {
        let mut noise = Noise(7);
        let alarms = |outcomes: &[Outcome]| share(outcomes, &[Outcome::Better, Outcome::Worse]);
        let tries = 4000;
        // Three standard errors of the simulation itself.
        let slack = 3.0 * (promised * (1.0 - promised) / f64::from(tries)).sqrt();
        let good: Vec<_> = (0..tries)
            .map(|_| {
                compare(&noise.runs(1e5, 0.05, n), &noise.runs(1e5, 0.05, n), Better::Higher, 0.0)
                    .outcome
            })
            .collect();
        assert!(alarms(&good) <= promised + slack, "{n} runs: {}", alarms(&good));
        let bad: Vec<_> = (0..tries)
            .map(|_| {
                compare(&noise.bad_runs(1e5, n), &noise.bad_runs(1e5, n), Better::Higher, 0.05)
                    .outcome
            })
            .collect();
        assert!(alarms(&bad) <= promised + slack, "{n} bad runs: {}", alarms(&bad));
        // Noise of 2 % does not reach a threshold of 5 %.
        let quiet: Vec<_> = (0..tries)
            .map(|_| {
                compare(&noise.runs(1e5, 0.02, n), &noise.runs(1e5, 0.02, n), Better::Higher, 0.05)
                    .outcome
            })
            .collect();
        assert!(alarms(&quiet) < 0.005, "{n} quiet runs: {}", alarms(&quiet));
    }
}

/// A difference of 20 % is found in five runs with 5 % noise.
#[test]
fn five_noisy_runs_find_a_fifth_more() {
    for compare in [paired as Compare, unpaired] {
        let mut noise = Noise(11);
        let outcomes: Vec<_> = (0..2000)
            .map(|_| {
                compare(
                    &noise.runs(120.0, 0.05, 5),
                    &noise.runs(100.0, 0.05, 5),
                    Better::Higher,
                    0.05,
                )
                .outcome
            })
            .collect();
        let found = share(&outcomes, &[Outcome::Better]);
        assert!(found > 0.95, "found in {found}");
        assert!(share(&outcomes, &[Outcome::Worse, Outcome::Same]) < 0.001);
    }
}

#[test]
fn equal_samples_with_little_noise_are_equal() {
    let mut noise = Noise(3);
    let outcomes: Vec<_> = (0..500)
        .map(|_| {
            paired(&noise.runs(9.0, 0.01, 5), &noise.runs(9.0, 0.01, 5), Better::Lower, 0.05)
                .outcome
        })
        .collect();
    assert!(share(&outcomes, &[Outcome::Same]) > 0.95);
}

#[test]
fn pairing_removes_common_noise() {
    let weather = [1.0, 0.4, 1.7, 0.8, 2.0];
    let a: Vec<_> = weather.iter().map(|w| 1.1 * w).collect();
    let verdict = paired(&a, &weather, Better::Higher, 0.05);
    assert_eq!(verdict.outcome, Outcome::Better);
    assert!((verdict.ratio - 1.1).abs() < 1e-9 && (verdict.confidence - 0.9375).abs() < 1e-12);
    assert_eq!(unpaired(&a, &weather, Better::Higher, 0.05).outcome, Outcome::Noisy);
    assert_eq!(paired(&a, &weather, Better::Lower, 0.05).outcome, Outcome::Worse);
}

#[test]
fn too_few_figures_are_inconclusive() {
    let outcome = |a: &[f64], b: &[f64]| paired(a, b, Better::Higher, 0.05).outcome;
    assert_eq!(outcome(&[], &[]), Outcome::Few);
    assert_eq!(outcome(&[2.0; 4], &[1.0; 4]), Outcome::Few);
    assert_eq!(outcome(&[2.0; 5], &[1.0; 5]), Outcome::Better);
    assert_eq!(outcome(&[2.0; 5], &[1.0]), Outcome::Few);
    assert_eq!(outcome(&[f64::NAN; 5], &[1.0; 5]), Outcome::Unfit);
    assert_eq!(outcome(&[0.0; 5], &[1.0; 5]), Outcome::Unfit);
    assert_eq!(outcome(&[0.0; 5], &[0.0; 5]), Outcome::Same);
    assert_eq!(unpaired(&[1.0, 1.0], &[1.0, 1.0], Better::Higher, 0.05).outcome, Outcome::Few);
    assert_eq!(unpaired(&[1.0; 3], &[1.0; 3], Better::Higher, 0.05).outcome, Outcome::Same);
    let text = paired(&[2.0; 5], &[1.0; 5], Better::Higher, 0.05).to_string();
    assert_eq!(text, "better, 2.00x (2.00x-2.00x, 94 % sure)");
}

#[test]
fn interval_needs_five_pairs() {
    let of = |n: usize| paired(&vec![2.0; n], &vec![1.0; n], Better::Higher, THRESHOLD);
    assert_eq!((of(LEAST_PAIRS - 1).side(1.0), of(LEAST_PAIRS - 1).told()), (Side::Unknown, None));
    assert_eq!(of(LEAST_PAIRS).told().as_deref(), Some("2.00x (2.00x-2.00x)"));
}

#[test]
fn scattered_single_runs_are_inconclusive() {
    // A summary once said "0.68 times" of this: one short run. By hand it was 0.77, 0.99 and 1.03.
    let once = paired(&[0.68], &[1.0], Better::Higher, THRESHOLD);
    assert_eq!((once.side(1.0), once.told()), (Side::Unknown, None));
    let turns = paired(&[0.68, 0.77, 0.99, 1.03, 1.01], &[1.0; 5], Better::Higher, THRESHOLD);
    assert_eq!(turns.side(1.0), Side::Unclear);
    assert_eq!(turns.told().as_deref(), Some("no difference seen (0.68x-1.03x)"));
}

#[test]
fn false_differences_are_rare_as_promised() {
    let (tries, n) = (4000, LEAST_PAIRS);
    let mut noise = Noise(23);
    let told = (0..tries).filter(|_| {
        let verdict =
            paired(&noise.bad_runs(1e5, n), &noise.bad_runs(1e5, n), Better::Higher, THRESHOLD);
        verdict.side(1.0) != Side::Unclear
    });
    let share = told.count() as f64 / f64::from(tries);
    assert!(share < 0.0625 + 3.0 * (0.0625_f64 * 0.9375 / f64::from(tries)).sqrt(), "{share}");
}

fn figures() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(0.1..1e6_f64, 0..12)
}

proptest! {
    #[test]
    fn nothing_panics(a in prop::collection::vec(any::<f64>(), 0..70), b in prop::collection::vec(any::<f64>(), 0..70), t in any::<f64>()) {
        for compare in [paired as Compare, unpaired] {
            let _ = compare(&a, &b, Better::Higher, t).to_string();
        }
    }

    #[test]
    fn sentence_never_exceeds_the_interval(a in figures(), b in figures(), bound in 0.1..10.0_f64) {
        for compare in [paired as Compare, unpaired] {
            let verdict = compare(&a, &b, Better::Higher, THRESHOLD);
            match verdict.side(bound) {
                Side::Unknown => prop_assert!(matches!(verdict.outcome, Outcome::Few | Outcome::Unfit)),
                Side::Above => prop_assert!(verdict.low > bound && verdict.ratio > bound),
                Side::Below => prop_assert!(verdict.high < bound && verdict.ratio < bound),
                Side::Unclear => prop_assert!(verdict.low <= bound && bound <= verdict.high),
            }
            let told = verdict.told().unwrap_or_default();
            match verdict.outcome {
                // A better figure is more, and a figure without a seen difference is neither better
                // nor worse.
                Outcome::Better => prop_assert_eq!(verdict.side(1.0), Side::Above),
                Outcome::Worse => prop_assert_eq!(verdict.side(1.0), Side::Below),
                Outcome::Few | Outcome::Unfit => prop_assert!(told.is_empty()),
                Outcome::Same | Outcome::Noisy => {
                    prop_assert_eq!(told.starts_with("no difference seen"), verdict.low <= 1.0 && verdict.high >= 1.0);
                }
            }
        }
    }

    #[test]
    fn units_do_not_change_verdicts(a in figures(), b in figures(), scale in 1e-6..1e6_f64) {
        let scaled = |values: &[f64]| values.iter().map(|v| v * scale).collect::<Vec<_>>();
        for compare in [paired as Compare, unpaired] {
            let (one, other) = (compare(&a, &b, Better::Higher, 0.05), compare(&scaled(&a), &scaled(&b), Better::Higher, 0.05));
            if one.ratio.is_finite() {
                prop_assert!((one.ratio / other.ratio - 1.0).abs() < 1e-9);
                // A ratio that is the threshold to the last bit may fall on either side.
                let near = |x: f64| [1.0, 1.05, 1.0 / 1.05].iter().any(|edge| (x - edge).abs() < 1e-9);
                prop_assert!(one.outcome == other.outcome || [one.low, one.high, one.ratio].into_iter().any(near));
            }
        }
    }

    #[test]
    fn comparison_is_symmetric(a in figures(), b in figures()) {
        let n = a.len().min(b.len());
        for (compare, a, b) in [(paired as Compare, &a[..n], &b[..n]), (unpaired, &a[..], &b[..])] {
            let (there, back) = (compare(a, b, Better::Higher, 0.05), compare(b, a, Better::Lower, 0.05));
            if there.confidence > 0.0 {
                prop_assert!((there.low * back.high - 1.0).abs() < 1e-9, "{there:?} {back:?}");
                prop_assert!(there.low <= there.ratio + 1e-12 && there.ratio <= there.high + 1e-12);
            }
            let near = |x: f64| [1.0, 1.05, 1.0 / 1.05].iter().any(|edge| (x - edge).abs() < 1e-9);
            prop_assert!(there.outcome == back.outcome || [there.low, there.high, there.ratio].into_iter().any(near));
        }
    }
}

#[test]
fn medians() {
    assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
    assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    assert!(median(&[]).is_nan());
}
