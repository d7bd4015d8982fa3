#![allow(clippy::unwrap_used, reason = "tests")]

use vlane_report::{Axis, Block, Chart};

use super::*;
use crate::texts::tests::{about, report};

fn drawn(picture: &str) -> Result<(String, String, String)> {
    let mut report = report();
    let [x, y] = ["x", "y"].map(|title| Axis::new(title, ""));
    let chart = Chart::lines("Waits by load", x, y, Vec::new());
    report.sections[0].blocks.push(Block::Chart(chart));
    let about = about(picture);
    about.picture.as_ref().unwrap().drawn(&about.named(&report))
}

#[test]
fn picture_is_chart_of_result() {
    let (name, caption, svg) = drawn("picture = 'waits-1'").unwrap();
    assert_eq!((name.as_str(), caption.as_str()), ("waits-1", "Waits by load"));
    assert!(svg.starts_with("<svg"));
    let error = drawn("picture = 'waits-2'").unwrap_err().to_string();
    assert_eq!(error, "chart `waits-2` is not in the result; name one of: waits-1");
}

#[test]
fn bars_have_figures_of_texts() {
    let bars = "picture = { caption = 'p99 & median', mark = { at = 40, says = 'goal' }, bars = [\
                { says = 'on', figure = 'value on' }, { says = 'all', figure = 'value all' }] }";
    let (name, _, svg) = drawn(bars).unwrap();
    assert_eq!(name, "answer");
    for part in ["p99 &amp; median", ">25.5 (20.0-30.0)<", ">1.50 (-3.00 to 4.00)<", ">goal<"] {
        assert!(svg.contains(part), "{part} in {svg}");
    }
    // From -3 to 40 there are 336 pixels: 0 is at 35.4, 25.5 is 199.3 away.
    assert!(svg.contains("x=\"35.4\" y=\"45\" width=\"199.3\""), "{svg}");
}

#[test]
fn unknown_and_long_bars_are_refused() {
    let bars = |says: &str, figure: &str| {
        let bar = format!("{{ says = '{says}', figure = '{figure}' }}");
        drawn(&format!("picture = {{ caption = '', bars = [{bar}] }}")).unwrap_err().to_string()
    };
    assert!(bars("a", "value other").starts_with("`{value other}` is unknown; add [value.other]"));
    let long = "a name that has a great many more words than fit";
    let error = bars(long, "goal 1");
    assert_eq!(error, format!("bar `{long}` does not fit beside 25.5 (20.0-30.0); shorten it"));
}
