//! Tests of judgements and reports on made-up measurements.

#![allow(clippy::unwrap_used, clippy::float_cmp, reason = "tests")]

use proptest::prelude::*;
use vlane_bench::CLIENT_BOUND;
use vlane_report::stats::{LEAST_PAIRS, THRESHOLD};
use vlane_report::{Begun, Block, Cell, Met, Severity, Spread, Table};

use super::judge::{is_client_limit, judge, resolve};
use super::*;

fn options(fixed_load: bool) -> Options {
    Options {
        fixed_load,
        also: Vec::new(),
        rows: Vec::new(),
        pairs: 5,
        time: None,
        ramp: None,
        installs: Installs::default(),
        ram_dir: None,
        disk_dir: None,
    }
}

fn row(id: &str) -> Row {
    let mut all = rows(false, &[]);
    all.extend(rows(true, &[]));
    all.into_iter().find(|row| row.is_called(id)).unwrap()
}

/// Arms of a row with these rounds.
fn arms(row: &Row, rounds: impl IntoIterator<Item = Vec<Sample>>) -> Arms<Sample> {
    let mut arms = Arms::once(row.contenders.iter().map(|(name, _)| name.clone()));
    arms.0.iter_mut().zip(rounds).for_each(|(arm, rounds)| arm.rounds = rounds);
    arms
}

fn sample(iops: f64, cpu_us: f64) -> Sample {
    Sample { iops, cpu_us, ..Sample::default() }
}

/// The verdicts on a row with these rounds.
fn judged(row: &Row, rounds: impl IntoIterator<Item = Vec<Sample>>) -> Vec<Verdict> {
    RowResult::new(row, arms(row, rounds)).verdicts
}

#[test]
fn only_earlier_measurements_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("peers.json");
    let row = row("null-poll");
    let result = RowResult::new(&row, arms(&row, vec![vec![sample(1.0, 1.0)]; 2]));
    for _ in 0..2 {
        write_json(&json_output(&path, false), std::slice::from_ref(&result)).unwrap();
    }
    let written: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let first = &written["rows"][0];
    assert_eq!((&written["schema"], &first["row"]), (&SCHEMA.into(), &"null-poll".into()));
    assert_eq!(first["measured"]["rounds"][1][0]["cpu_us_per_io"], 1.0);
    std::fs::write(&path, "[1, 2]").unwrap();
    assert!(write_json(&json_output(&path, false), &[result]).is_err());
}

#[test]
fn missed_end_is_unclear() {
    let row = row("null");
    // The median is 6.5 times, which is the target; one pair of five was at 1.
    let vlane = [700.0, 650.0, 650.0, 660.0, 100.0].map(|iops| sample(iops, 1.0)).to_vec();
    let arms = arms(&row, [vlane, vec![sample(100.0, 8.0); 5]]);
    let mut result = RowResult::new(&row, arms);
    let v = &result.verdicts[0];
    assert_eq!((v.ratio, v.lowest, v.highest, v.met), (6.5, 1.0, 7.0, Met::Unclear));
    assert_eq!(result.verdicts[1].met, Met::Yes);
    result.client_limited = vec!["vlane".into()];
    let table = markdown(std::slice::from_ref(&result));
    assert_eq!(table.lines().count(), 4);
    assert!(table.lines().all(|line| line.matches('|').count() == 7), "{table}");
    assert!(!table.contains("target") && !table.to_lowercase().contains("met"), "{table}");
    assert!(
        table.contains("(1.00-7.00)") && table.contains("the client is the limit with vlane |"),
        "{table}"
    );
    assert!(lines(&result).contains("the client is the limit with vlane"));
}

#[test]
fn too_few_pairs_meet_no_target() {
    let (vlane, other) = (vec![sample(900.0, 1.0); 4], vec![sample(100.0, 9.0); 4]);
    let v = &judged(&row("null-poll"), [vlane, other])[1];
    assert_eq!((v.met, v.told_ratio().as_str()), (Met::Unclear, "9.00"));
}

#[test]
fn zero_switches_beat_some_without_pairs() {
    let switches = |switches_per_io| Sample { iops: 1.0, switches_per_io, ..Sample::default() };
    let rounds = [0.0, 0.1, 0.2].map(|of| vec![switches(of); 5]);
    assert_eq!(judged(&row("lanes-null"), rounds)[2].met, Met::Yes);
    let idle = |cpu_ms| judged(&row("idle"), [vec![Sample { cpu_ms, ..Sample::default() }]]);
    assert_eq!((idle(0.0)[0].met, idle(0.1)[0].met), (Met::Yes, Met::No));
}

#[test]
fn better_setting_is_compared() {
    let row = row("ram-read");
    for (by_ring, by_threads, name) in [(100.0, 120.0, "threads"), (120.0, 100.0, "io_uring")] {
        let rounds = [240.0, by_ring, by_threads, 300.0].map(|iops| vec![sample(iops, 1.0); 5]);
        let verdicts = judged(&row, rounds);
        assert_eq!(verdicts[0].over, Some(format!("qemu-storage-daemon, aio={name}")));
        assert!((verdicts[0].ratio - 2.0).abs() < 1e-9);
        // The host's own loop is alone.
        assert_eq!(verdicts[1].over.as_deref(), Some("plain loop"));
    }
}

#[test]
fn cheapest_sufficient_setting_is_compared() {
    let all = rows(true, &["--poll-max 0".parse().unwrap()]);
    let row = all.iter().find(|row| row.id == "disk-1k-d4").unwrap();
    assert_eq!(row.contenders.len(), 4);
    let of = |uring: (f64, f64), threads: (f64, f64)| {
        let rounds = [(1e3, 1.0), uring, threads, (1e3, 1.0)];
        resolve(row, &arms(row, rounds.map(|(iops, cpu)| vec![sample(iops, cpu); 5])), 1)
    };
    assert_eq!(of((1e3, 10.0), (1e3, 9.0)), 2);
    assert_eq!(of((1e3, 9.0), (1e3, 10.0)), 1);
    // Lower cost through less work is not better.
    assert_eq!(of((1e3, 10.0), (5e2, 9.0)), 1);
    assert_eq!(of((5e2, 9.0), (1e3, 10.0)), 2);
}

#[test]
fn sleepless_client_is_limit_unless_polling() {
    let is = |id: &str, cpus: &[f64]| {
        let at = |cpus: &f64| Sample { iops: 1e6, client_cpu_us: *cpus, ..Sample::default() };
        is_client_limit(&row(id), &cpus.iter().map(at).collect::<Vec<_>>())
    };
    assert!(is("null", &[0.99, 0.97, 0.2]) && !is("null", &[0.99, 0.8, 0.2]));
    assert!(!is("null-poll", &[1.0; 3]) && !is("idle", &[1.0; 3]) && !is("null", &[]));
    // Two jobs: two CPUs are the limit, not one.
    assert!(!is("lanes-null", &[1.0; 3]) && is("lanes-null", &[1.98; 3]));
    // The host's own loop has no client.
    assert!(!is("ram-read", &[0.0; 3]));
}

/// Rounds at a rate, of these CPU times.
fn rounds(iops: f64, cpu: &[f64], p50_us: f64) -> Vec<Sample> {
    cpu.iter().map(|cpu_us| Sample { iops, cpu_us: *cpu_us, p50_us, ..Sample::default() }).collect()
}

/// The outcomes for CPU time and latency.
fn costs(row: &Row, vlane: &[Sample], other: &[Sample]) -> [Met; 2] {
    let verdicts = judged(row, [vlane.to_vec(), other.to_vec()]);
    [verdicts[0].met, verdicts[1].met]
}

#[test]
fn missed_rate_is_not_compared() {
    let row = row("null-10k-d4");
    let (kept, late) = (rounds(9_990.0, &[10.0; 5], 20.0), rounds(9_700.0, &[1.0; 5], 1.0));
    for [vlane, other] in [[&late, &kept], [&kept, &late], [&Vec::new(), &Vec::new()]] {
        let verdicts = judged(&row, [vlane.clone(), other.clone()]);
        assert!(verdicts.iter().all(|v| v.met == Met::Unclear && v.difference.is_none()));
        assert!(verdicts.iter().all(|v| !v.late.is_empty()));
    }
    assert_eq!(costs(&row, &kept, &kept), [Met::Yes; 2]);
}

#[test]
fn higher_median_is_not_met() {
    let row = row("null-10k-d4");
    let qsd = rounds(1e4, &[10.0, 10.1, 10.2, 10.0, 10.1], 20.0);
    let held = |cpu: &[f64], p50: f64| costs(&row, &rounds(1e4, cpu, p50), &qsd);
    assert_eq!(held(&[11.0; 5], 20.0), [Met::No, Met::Yes]);
    assert_eq!(held(&[5.0; 5], 22.0), [Met::Yes, Met::No]);
    assert_eq!(held(&[5.0; 5], 20.3), [Met::Yes; 2], "1.5 % do not matter");
    // A guest's client tells whole us: 10 % of 5 us are none.
    let (few, more) = (rounds(1e3, &[5.0; 5], 5.0), rounds(1e3, &[5.0; 5], 5.5));
    assert_eq!(costs(&self::row("uml-1k-d4"), &more, &few), [Met::Yes; 2]);
    // The intervals hold 1. The medians are 1.08 times the other's, and 0.99 times.
    for (middle, met, word) in
        [(11.0, Met::No, "not met"), (10.1, Met::Unclear, "no difference seen")]
    {
        let scattered = rounds(1e4, &[middle, 11.0, middle, 9.0, 8.0], 20.0);
        let v = &judged(&row, [scattered, qsd.clone()])[0];
        assert_eq!((v.met, v.word(&row).as_str()), (met, word));
    }
    // Four rounds decide nothing, and what was not measured is not met.
    assert_eq!(costs(&row, &rounds(1e4, &[5.0; 4], 9.0), &qsd), [Met::Unclear; 2]);
    assert_eq!(held(&[f64::NAN; 5], 20.0)[0], Met::Unclear);
}

proptest! {
    #[test]
    fn median_alone_meets_nothing(
        of in prop::collection::vec(1.0..1e3_f64, 0..9),
        over in prop::collection::vec(1.0..1e3_f64, 0..9),
    ) {
        let (row, n) = (&rows(false, &[])[0], of.len().min(over.len()));
        let rounds = |iops: &[f64]| iops[..n].iter().map(|iops| sample(*iops, 1.0)).collect();
        let v = judge(row, &row.claims[0], &arms(row, [rounds(&of), rounds(&over)]));
        let Some(known) = v.difference else { return Err(TestCaseError::fail("two were compared")) };
        match v.met {
            Met::Yes => prop_assert!(n >= LEAST_PAIRS && known.low >= 6.0),
            Met::No => prop_assert!(v.ratio < 6.0),
            Met::Unclear => {
                prop_assert!(n == 0 || v.ratio >= 6.0 && (n < LEAST_PAIRS || known.low < 6.0));
            }
        }
    }

    /// For all measurements, the interval decides if a cost is met, and the median if it is not. A
    /// contender never costs more than itself.
    #[test]
    fn median_and_interval_judge_costs(
        a in prop::collection::vec((0.1..100.0_f64, 0.1..100.0_f64), 1..9),
        b in prop::collection::vec((0.1..100.0_f64, 0.1..100.0_f64), 1..9),
    ) {
        let samples = |all: &[(f64, f64)]| -> Vec<Sample> {
            let one = |(cpu_us, p50_us): &(f64, f64)| {
                Sample { iops: 1e3, cpu_us: *cpu_us, p50_us: *p50_us, ..Sample::default() }
            };
            all.iter().map(one).collect()
        };
        let (row, n) = (row("null-1k-d1"), a.len().min(b.len()));
        let (vlane, other) = (samples(&a[..n]), samples(&b[..n]));
        for v in judged(&row, [vlane.clone(), other]) {
            let Some(known) = v.difference else { return Err(TestCaseError::fail("none")) };
            match v.met {
                Met::Yes => prop_assert!(
                    n >= LEAST_PAIRS && known.low < 1.0 + 1e-9 || known.high <= 1.0 + THRESHOLD
                ),
                Met::No => prop_assert!(v.ratio > 1.0 + THRESHOLD),
                Met::Unclear => {
                    prop_assert!(v.ratio <= 1.05 && (n < LEAST_PAIRS || known.high >= 1.0));
                }
            }
        }
        prop_assert!(!costs(&row, &vlane, &vlane).contains(&Met::No));
    }
}

fn tables(blocks: &[Block]) -> Vec<&Table> {
    let tables = blocks.iter().filter_map(|block| match block {
        Block::Table(table) => Some(table),
        Block::Chart(_) => None,
    });
    tables.collect()
}

#[test]
fn report_has_all_rows_and_claims() {
    let plan = rows(false, &[]);
    let one = |i: u32| Sample {
        iops: 1000.0 + f64::from(i),
        p50_us: 3.0,
        cpu_us: 1.0,
        ..Sample::default()
    };
    let result = |row: &Row| {
        let rounds = row.contenders.iter().map(|_| (0..5).map(one).collect());
        let mut result = RowResult::new(row, arms(row, rounds));
        if row.id == "null" {
            result.client_limited = vec!["vlane".into()];
        }
        result
    };
    let outcome = Outcome {
        rows: plan.iter().map(result).collect(),
        missing: vec!["fio with libblkio as a second client: made up".to_owned()],
        ..Outcome::default()
    };
    let report = report(&outcome, &options(false), &Begun::now("vlane-lab compare peers"));
    assert!(report.notes.iter().any(|note| note.text.contains("second client: made up")));
    let limit = format!(
        "The client was the limit (more than {:.0} % of its CPU used)",
        CLIENT_BOUND * 100.0
    );
    assert!(
        report.summary[1].starts_with(&limit) && report.summary[1].contains("null: vlane"),
        "{:?}",
        report.summary
    );
    let claims: usize = plan.iter().map(|row| row.claims.len()).sum();
    let verdicts = tables(&report.sections[0].blocks);
    assert_eq!(verdicts.iter().map(|table| table.rows.len()).sum::<usize>(), claims);
    for table in verdicts {
        assert!(table.rows.iter().all(|row| row.len() == table.columns.len()));
    }
    let compared =
        plan.iter().flat_map(|row| &row.claims).filter(|claim| claim.over.is_some()).count();
    assert!(
        report.summary[0].contains(&format!("Of {compared} comparisons")),
        "{:?}",
        report.summary
    );
    assert!(report.notes.iter().all(|n| n.severity == Severity::Info), "five pairs are enough");
    // Comparisons; three pictures, and the figures of every row's contenders.
    assert_eq!(report.sections.len(), 2);
    let all = tables(&report.sections[1].blocks);
    assert_eq!(
        all.iter().map(|table| table.rows.len()).sum::<usize>(),
        plan.iter().map(|row| row.contenders.len()).sum::<usize>()
    );
    // The pictures are made of the samples.
    let samples = &report.samples[0];
    let iops = samples.columns.iter().position(|column| column.title == "iops").unwrap();
    let Some(Block::Chart(chart)) = report.sections[1].blocks.first() else { panic!("a picture") };
    let vlane = &chart.series[0];
    assert!(chart.categories.len() > 10 && vlane.points.len() == chart.categories.len());
    for (point, title) in vlane.points.iter().zip(&chart.categories) {
        let row = plan.iter().find(|row| row.title == *title).unwrap();
        let is = |cells: &&Vec<Cell>| {
            cells[0] == row.id.clone().into() && cells[1] == row.contenders[0].0.clone().into()
        };
        let iops: Vec<f64> = samples
            .rows
            .iter()
            .filter(is)
            .map(|cells| if let Cell::Number(iops) = cells[iops] { iops } else { 0.0 })
            .collect();
        assert_eq!(Spread::of(&iops), Some(point.y), "{title}");
    }
}

/// A result of every row: rates up to 10k are reached, vlane costs less at depth 4 and more at
/// depth 1.
fn at_rates() -> Outcome {
    let result = |row: &Row| {
        let rate = row.load.rate.unwrap();
        let iops = if rate == 0 { 60_000.0 } else { f64::from(rate.min(10_000)) };
        let vlane = if row.load.depth == 4 { 5.0 } else { 15.0 };
        let side = |place| if place == 0 { vlane } else { 10.0 };
        let all = (0..row.contenders.len()).map(|place| rounds(iops, &[side(place); 5], 20.0));
        RowResult::new(row, arms(row, all))
    };
    Outcome {
        rows: rows(true, &[]).iter().map(result).collect(),
        missing: vec!["instructions: not counted".into()],
        emulated: true,
        ..Outcome::default()
    }
}

#[test]
fn table_has_all_rows_picture_reached_ones() {
    let outcome = at_rates();
    let all = outcome.rows.len();
    let report = report(&outcome, &options(true), &Begun::now("vlane-lab compare peers"));
    let verdicts = tables(&report.sections[0].blocks);
    for table in verdicts {
        assert_eq!(table.rows.len(), 2 * all);
        assert!(table.rows.iter().all(|row| row.len() == table.columns.len()));
    }
    assert_eq!(report.sections.len(), 1 + 9);
    for section in &report.sections[1..] {
        let Block::Chart(chart) = &section.blocks[0] else { panic!("{}", section.id) };
        let late = |place: f64| {
            let title = chart.categories.iter().zip(0_u32..).find(|(_, x)| f64::from(*x) == place);
            title.is_some_and(|(title, _)| title.contains(" 50k") || title.contains(" 100k"))
        };
        assert!(chart.series.iter().flat_map(|s| &s.points).all(|point| !late(point.x)));
        assert!(chart.series.iter().any(|s| s.name == "qemu-storage-daemon"));
    }
    // 10 native rows at 50k or 100k... of five media and two depths are not reached.
    let reached = all - 5 * 2 * 2;
    assert!(
        report.summary[0].starts_with(&format!("Of {all} loads both back ends reach {reached}."))
    );
    let not_met = report.summary.iter().filter(|text| text.starts_with("Not met: ")).count();
    assert_eq!(not_met, 5 * 2 + 3 + 2 + 1, "{:?}", report.summary);
    let late: Vec<_> =
        report.summary.iter().filter(|text| text.starts_with("Not reached: ")).collect();
    assert_eq!(late.len(), all - reached);
    assert!(late.iter().all(|text| text.contains(": vlane 10.0k IOPS, ")), "{late:?}");
    assert!(report.notes.iter().any(|note| note.text.contains("instructions: not counted")));
}

#[test]
fn missed_row_states_achieved_rate() {
    let outcome = at_rates();
    let find = |name: &str| outcome.rows.iter().find(|result| result.row.id == name);
    let late = find("null-50k-d4").map(lines).unwrap_or_default();
    assert!(
        late.contains("not reached: vlane 10.0k IOPS, qemu-storage-daemon 10.0k IOPS"),
        "{late}"
    );
    let bad = find("null-1k-d1").map(lines).unwrap_or_default();
    assert!(bad.contains("1.50 (1.50-1.50), not met"), "{bad}");
    assert!(bad.contains("1.00 (1.00-1.00), met"), "{bad}");
    let text = markdown(&outcome.rows);
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with('|')).collect();
    assert_eq!(lines.len(), 2 + 2 * outcome.rows.len());
    assert!(lines.iter().all(|line| line.matches('|').count() == 7), "{text}");
}
