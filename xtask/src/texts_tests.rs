#![allow(clippy::unwrap_used, reason = "tests")]

use vlane_report::build::Begun;
use vlane_report::{Block, Cell, Column, Section, Spread, Table};

use super::*;
use crate::experiment::Description;

/// A report with one table.
pub(crate) fn report() -> Report {
    let spread = |values: &[f64]| Cell::Figure(Spread::of(values).unwrap());
    let row = |name: &str, values: &[f64], verdict: &str| {
        vec![name.into(), spread(values), verdict.into()]
    };
    let table = Table {
        caption: "Waits".into(),
        columns: ["arm", "p99", "verdict"].map(|title| Column::new(title, "")).into(),
        rows: vec![
            row("off", &[80.0, 100.0, 120.0], "met"),
            row("on", &[20.0, 25.5, 30.0], "met"),
            row("all", &[-3.0, 1.5, 4.0], "not"),
        ],
    };
    let section = Section::new("waits", "", Vec::new(), vec![Block::Table(table)]);
    Report { sections: vec![section], ..Begun::now("").report("kind", "", &[]) }
}

/// A description with goals, a published figure and values.
pub(crate) fn about(more: &str) -> Description {
    let place = |arm: &str| format!("{{ section = 'waits', row = ['{arm}'], column = 'p99' }}");
    let rows =
        |take: &str| format!("rows = {{ take = {take}, section = 'waits', column = 'p99' }}");
    let [off, on, all, other] = ["off", "on", "all", "other"].map(place);
    let text = [
        format!("{more}\n[value]\non.of = {on}\nexact = {{ of = {on}, digits = 3 }}"),
        format!("ratio = {{ of = {on}, over = {off} }}\ngone.of = {other}\nall.of = {all}"),
        format!("met.{}", rows("'count', only = { verdict = 'met' }")),
        format!("high.{}", rows("'count', above = 30")),
        format!("most.{}\nleast.{}", rows("'most'"), rows("'least'")),
        format!("sum.{}", rows("'sum'")),
        format!("[[goal]]\nsays = ''\nat_most = 1\nof = {on}"),
        format!("[[figure]]\nsays = ''\npublished = 1\nof = {on}"),
        "[[figure]]\nsays = ''\npublished = 1\nmissing = 'no drive'".into(),
    ];
    let head = "title = ''\nsource = ''\nquestion = ''\nmethod = ''\n";
    toml::from_str(&(head.to_owned() + &text.join("\n"))).unwrap()
}

#[test]
fn placeholders_become_figures_with_intervals() {
    for (text, filled) in [
        ("no figure", "no figure"),
        ("{goal 1} ms, and {figure 1}", "25.5 (20.0-30.0) ms, and 25.5 (20.0-30.0)"),
        ("{value ratio}", "0.26 (0.17-0.38, unpaired)"),
        ("{value exact}", "25.500 (20.000-30.000)"),
        ("{value all}", "1.50 (-3.00 to 4.00)"),
        ("{value met} of 3, {value high} high", "2 of 3, 1 high"),
        ("{value least} to {value most}", "1.50 (-3.00 to 4.00) to 100 (80-120)"),
        ("{value sum}", "127"),
    ] {
        assert_eq!(about("").named(&report()).fill(text).unwrap(), filled);
    }
}

#[test]
fn unknown_placeholders_name_fault_and_action() {
    for (text, words) in [
        ("{value gone}", "`{value gone}` is not in the result; correct its place, or measure it"),
        ("{value other}", "`{value other}` is unknown; add [value.other], or name one of: all, "),
        ("{goal 2}", "`{goal 2}` is not there; the experiment has goal 1 to 1"),
        ("{goal 0}", "`{goal 0}` is not there"),
        ("{figure 2}", "`{figure 2}` is not in the result"),
        ("{size 1}", "`{size 1}` is unknown; write {goal N}, {figure N} or {value NAME}"),
        ("{goal}", "`{goal}` is no placeholder; write"),
        ("{goal 1 of", "`{` before `goal` has no `}`; add it"),
    ] {
        let error = format!("{:#}", about("").named(&report()).fill(text).unwrap_err());
        assert!(error.starts_with(words), "{error}");
    }
}

#[test]
fn value_is_one_place_or_rows() {
    let fault = |text: &str| toml::from_str::<Value>(text).unwrap().fault();
    let place = "{ section = \"a\", column = \"b\" }";
    let rows = "rows = { take = \"sum\", section = \"a\", column = \"b\" }";
    assert_eq!(fault(&format!("of = {place}\nover = {place}")), None);
    assert_eq!(fault(rows), None);
    assert!(fault("").unwrap().contains("`rows`"));
    assert!(fault(&format!("of = {place}\n{rows}")).unwrap().contains("either"));
    assert!(fault(&format!("over = {place}\n{rows}")).unwrap().contains("`of`"));
}
