use proptest::prelude::*;

use super::*;
use crate::example;

#[test]
fn text_has_the_important_parts() {
    let text = render(&example::report(), 110);
    for part in [
        "WARNING: Guest CPU emulated",
        "93 % of the host",
        "vlane-lab compare host 2G",
        "AMD EPYC, 2 CPUs",
        "vlane (IOPS)",
        "1090.0k (1057.3k-1116.2k)",
        "Again: vlane-lab compare topologies",
        "MT (predicted)",
    ] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    assert!(!text.contains('\u{1b}') && !text.contains('\u{2007}'));
}

/// A table alone.
fn of_table(table: &Table, width: usize) -> String {
    let mut out = String::new();
    put_table(&mut out, table, width);
    printable(&out)
}

#[test]
fn figures_are_aligned_in_columns() {
    let report = example::report();
    let Some(Block::Table(table)) = report.sections[0].blocks.get(1) else { panic!("a table") };
    let text = of_table(table, 110);
    let points: Vec<_> = text.lines().skip(2).filter_map(|line| line.find("k (")).collect();
    assert!(points.len() == 3 && points.windows(2).all(|pair| pair[0] == pair[1]), "{text}");
}

#[test]
fn table_fits_narrow_terminals() {
    let report = example::report();
    let Some(Block::Table(table)) = report.sections[0].blocks.get(1) else { panic!("a table") };
    for width in [60, 80, 100, 200] {
        let text = of_table(table, width);
        assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
        assert!(text.contains("0.192"), "{width}:\n{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_report_can_be_shown(report in example::any_report(), width in 0..250_usize) {
        let text = render(&report, width);
        prop_assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
    }
}
