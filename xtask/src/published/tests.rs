#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use vlane_report::stats::{Better, unpaired};

impl Published {
    /// A ratio: 1 means no change.
    pub(crate) fn ratio(value: f64) -> Self {
        Self { said: Said::Number(value), no_change: Some(1.0) }
    }

    /// Per cent of something: 100 means no change.
    pub(crate) fn percent(value: f64) -> Self {
        Self { said: Said::Number(value), no_change: Some(100.0) }
    }

    /// A figure that has no direction.
    pub(crate) fn level(value: f64) -> Self {
        Self { said: Said::Number(value), no_change: None }
    }
}

fn interval(low: f64, middle: f64, high: f64) -> Interval {
    Interval { middle, low, high, confidence: 0.95, runs: 6, is_unpaired: false }
}

#[test]
fn right_direction_may_miss_published_size() {
    let compare = |published: f64, here| {
        let Comparison { direction, size } = Published::ratio(published).compare(&here);
        (direction.map(Direction::word), size.map(Size::words).unwrap())
    };
    assert_eq!(compare(2.55, interval(2.3, 2.5, 2.6)), (Some("same"), "0.980, within".into()));
    assert_eq!(compare(25.5, interval(2.3, 2.5, 2.6)), (Some("same"), "0.0980, not within".into()));
    assert_eq!(compare(0.5, interval(2.3, 2.5, 2.6)), (Some("opposite"), "5, not within".into()));
    assert_eq!(compare(2.55, interval(0.9, 2.5, 2.6)), (Some("unclear"), "0.980, within".into()));
    // No change was published: there is no direction to be the same.
    assert_eq!(compare(1.0, interval(2.3, 2.5, 2.6)), (None, "2.50, not within".into()));
}

#[test]
fn percentages_and_levels_define_no_change() {
    let here = interval(120.0, 150.0, 160.0);
    assert_eq!(Published::percent(90.0).compare(&here).direction, Some(Direction::Opposite));
    assert_eq!(Published::level(37.2).compare(&here).direction, None);
    let words = Published { said: Said::More, no_change: Some(100.0) }.compare(&here);
    assert_eq!((words.direction, words.size), (Some(Direction::Same), None));
    // Zero has no ratio to zero.
    assert_eq!(Published::level(0.0).compare(&here).size, None);
}

#[test]
fn confidence_follows_from_number_of_runs() {
    let runs = |n: usize| Spread { median: 2.0, min: 1.5, max: 2.5, runs: n };
    let of = |n| Interval::of(&runs(n));
    assert!(of(5).is_decisive() && !of(4).is_decisive());
    assert_eq!((of(1).confidence, of(0).confidence), (0.0, 0.0));
    let ratio = |m, n| Interval::unpaired(&runs(m), &runs(n)).unwrap();
    assert!(ratio(3, 3).is_decisive() && ratio(2, 5).is_decisive() && !ratio(2, 4).is_decisive());
    assert!(!ratio(1, 1).is_decisive() && ratio(1, 1).confidence.abs() < 1e-12);
    assert_eq!((of(1).words(), of(5).words()), ("one run".into(), "1.50 to 2.50, 5 runs".into()));
    assert_eq!(ratio(3, 3).words(), "0.600 to 1.67, 3 runs, unpaired");
    assert_eq!(ratio(1, 1).words(), "one run");
}

#[test]
fn zero_and_negative_have_no_ratio() {
    let spread = |min, max| Spread { median: f64::midpoint(min, max), min, max, runs: 5 };
    assert_eq!(Interval::unpaired(&spread(1.0, 2.0), &spread(0.0, 2.0)), None);
    assert_eq!(Interval::unpaired(&spread(-1.0, 2.0), &spread(1.0, 2.0)), None);
}

#[test]
fn unmeasured_row_gives_its_reason() {
    let rows = [
        Row {
            figure: "MT over Baseline".into(),
            published: Published::ratio(2.55),
            here: Ok(interval(1.2, 1.4, 1.5)),
        },
        Row {
            figure: "on an NVMe drive".into(),
            published: Published::ratio(0.26),
            here: Err("no NVMe drive".into()),
        },
    ];
    let text = vlane_report::markdown::table(&table("", &rows));
    let lines: Vec<&str> = text.lines().skip(2).collect();
    assert!(lines[0].ends_with("| same | 0.549, not within | 1.20 to 1.50, 6 runs |"), "{text}");
    assert!(lines[1].ends_with("| not measured |  |  | no NVMe drive |"), "{text}");
}

/// Values of a figure, as runs have them.
fn runs() -> impl Strategy<Value = Vec<f64>> {
    vec(0.01..100.0_f64, 1..8)
}

/// Any interval, of any number of runs.
fn any_interval() -> impl Strategy<Value = Interval> {
    runs().prop_map(|values| Interval::of(&Spread::of(&values).unwrap()))
}

proptest! {
    #[test]
    fn few_runs_are_unclear(
        here in any_interval(), value in 0.01..100.0_f64, none in 0.01..100.0_f64
    ) {
        prop_assume!((value - none).abs() > 1e-6);
        let published = Published { said: Said::Number(value), no_change: Some(none) };
        let includes = here.low <= none && none <= here.high;
        let direction = published.compare(&here).direction.unwrap();
        prop_assert_eq!(direction == Direction::Unclear, includes || here.runs < 5);
        if direction != Direction::Unclear {
            prop_assert_eq!(direction == Direction::Same, (here.middle > none) == (value > none));
        }
    }

    #[test]
    fn wider_interval_never_decides_more(
        here in any_interval(), more in 1.0..10.0_f64, value in 0.01..100.0_f64
    ) {
        prop_assume!((value - 1.0).abs() > 1e-6);
        let wider = Interval { low: here.low / more, high: here.high * more, ..here };
        let compare = |here| Published::ratio(value).compare(here).direction.unwrap();
        let (narrow, wide) = (compare(&here), compare(&wider));
        prop_assert!(wide == narrow || wide == Direction::Unclear, "{narrow:?} became {wide:?}");
    }

    #[test]
    fn doubled_time_equals_halved_speed(values in runs(), value in 0.01..100.0_f64) {
        prop_assume!((value - 1.0).abs() > 1e-6 && values.iter().all(|v| (v - 1.0).abs() > 1e-6));
        // An odd number, so that the median of the inverses is the inverse of the median.
        let odd = &values[..values.len() - usize::from(values.len().is_multiple_of(2))];
        let inverse: Vec<f64> = odd.iter().map(|v| 1.0 / v).collect();
        let of = |values: &[f64]| Interval::of(&Spread::of(values).unwrap());
        let there = Published::ratio(value).compare(&of(odd));
        let back = Published::ratio(1.0 / value).compare(&of(&inverse));
        prop_assert_eq!(there.direction, back.direction);
        let (there, back) = (there.size.unwrap(), back.size.unwrap());
        prop_assert!((there.ratio * back.ratio - 1.0).abs() < 1e-9);
        let edges = [there.ratio * TOLERANCE, there.ratio / TOLERANCE];
        let is_at_an_edge = edges.iter().any(|edge| (edge - 1.0).abs() < 1e-9);
        prop_assert!(there.is_within() == back.is_within() || is_at_an_edge);
    }

    /// No end of it is cut off.
    #[test]
    fn ratio_interval_matches_statistics(
        a in vec(0.1..100.0_f64, 3), b in vec(0.1..100.0_f64, 3)
    ) {
        let [of, over] = [&a, &b].map(|values| Spread::of(values).unwrap());
        let ours = Interval::unpaired(&of, &over).unwrap();
        let theirs = unpaired(&a, &b, Better::Higher, 0.0);
        prop_assert!((ours.low / theirs.low - 1.0).abs() < 1e-9);
        prop_assert!((ours.high / theirs.high - 1.0).abs() < 1e-9);
        prop_assert!((ours.confidence - theirs.confidence).abs() < 1e-9);
    }

    #[test]
    fn equal_samples_rarely_differ(m in 1..5_usize, n in 1..5_usize) {
        // Every order of m and n values is equally likely. In two of them all of one come before
        // all of the other.
        let all = m + n;
        let masks = (0_u32..1 << all).filter(|mask| mask.count_ones() as usize == m);
        let (mut orders, mut apart) = (0.0, 0.0);
        for mask in masks {
            let spread = |which: bool| {
                let places = (0..all).filter(|i| (mask >> i & 1 == 1) == which);
                Spread::of(&places.map(|i| i as f64 + 1.0).collect::<Vec<_>>()).unwrap()
            };
            let ratio = Interval::unpaired(&spread(true), &spread(false)).unwrap();
            orders += 1.0;
            apart += if (ratio.low..=ratio.high).contains(&1.0) { 0.0 } else { 1.0 };
        }
        let spread = |runs| Spread { runs, ..Spread::exact(1.0) };
        let said = Interval::unpaired(&spread(m), &spread(n)).unwrap().confidence;
        prop_assert!((1.0 - apart / orders - said).abs() < 1e-9, "{apart} of {orders}, {said}");
    }
}
