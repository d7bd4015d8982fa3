//! Figures in the book are those of the constants.

#![allow(clippy::unwrap_used)]

use vlane_policy::loan::{Goal, Params, Policy};
use vlane_sched::realtime::Settings;

const MS: u64 = 1_000_000;

/// Milliseconds as people write them.
fn ms(ns: u64) -> String {
    (ns as f64 / MS as f64).to_string()
}

/// The text in one line: figures may stand at the end of any line of a page.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn book_states_the_constants() {
    let params = Params::sound(Policy::Adaptive);
    let fixed = Params::sound(Policy::Loan);
    let goal = Goal::default();
    let settings = Settings::new(params.clone(), goal);
    let boost = ms(params.boost_max_ns);
    let [tolerance, within] = [(goal.tolerance_permille / 10).to_string(), ms(goal.response_ns)];
    // The times of repeated events, in first pauses of twice a boost.
    let told: Vec<String> = [1, 2, 4, 6, 10, 14]
        .iter()
        .map(|pause| ms(pause * (2 * params.boost_max_ns).max(MS)))
        .collect();
    let told = format!("after {} and {} ms", told[..5].join(", "), told[5]);
    let says = [
        ("sched-watch.md", format!("(`boost_max_ns`, {boost} ms)")),
        ("express-loans.md", format!("the boost's time is over ({boost} ms)")),
        (
            "sched.md",
            format!("the boost's time is over ({boost} ms; `adaptive`: up to {within} ms"),
        ),
        (
            "sched.md",
            format!(
                "(`line_ns` {} ms,\n`redemption_permille` {} unless",
                ms(fixed.line_ns),
                fixed.redemption_permille
            ),
        ),
        ("loans.md", format!("({} ms, all of an allotment)", ms(params.line_ns))),
        ("sched.md", told.clone()),
        ("sched.md", format!("owes the overdraft ({} ms)", ms(params.overdraft_ns))),
        ("sched.md", format!("owes more than `owes_ms` ({} ms)", ms(settings.owes_ns))),
        ("sched.md", format!("owes no more than `paid_ms` ({} ms)", ms(settings.paid_ns))),
        ("sched.md", format!("(default {})", settings.rt_percent)),
        ("sched.md", format!("\nline_ns = {}\n", params.line_ns)),
        ("sched.md", format!("\nredemption_permille = {}\n", params.redemption_permille)),
        ("sched.md", format!("\nboost_max_ns = {}\n", params.boost_max_ns)),
        ("sched.md", format!("\nresponse_ns = {} ", goal.response_ns)),
        ("sched.md", format!("\ntolerance_permille = {}\n", goal.tolerance_permille)),
        ("loans.md", format!("(with boosts that begin at {boost} ms)")),
        ("loans.md", told),
        ("loans.md", format!("within {within} ms, shares within {tolerance} %")),
        ("loans.md", format!("reviewed after {} ms", ms(params.review_ns))),
        ("loans.md", format!("the overdraft ({} ms)", ms(params.overdraft_ns))),
    ];
    let book = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src");
    let wrong: Vec<_> = says
        .iter()
        .filter(|(page, words)| {
            let page = std::fs::read_to_string(book.join(page)).unwrap();
            !(page.contains(words)
                || !words.starts_with('\n') && flat(&page).contains(&flat(words)))
        })
        .collect();
    assert!(wrong.is_empty(), "these pages do not say so: {wrong:#?}");
}
