use proptest::prelude::*;
use roxmltree::{Document, Node, ParsingOptions};

use super::*;
use crate::example;

fn parse(page: &str) -> Document<'_> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    Document::parse_with_options(page, options).unwrap_or_else(|e| panic!("{e}\n{page}"))
}

/// Markup that would make a page load or run something.
fn dangers(document: &Document<'_>) -> Vec<String> {
    let bad = |node: &Node<'_, '_>| {
        let name = node.tag_name().name();
        let runs = name == "script" && node.attribute("type") != Some("application/json");
        let loads =
            matches!(name, "img" | "link" | "iframe" | "object" | "embed" | "base" | "form");
        let attribute = node.attributes().any(|a| {
            a.name().starts_with("on")
                || a.name() == "src"
                || a.name() == "href" && !a.value().starts_with('#')
        });
        let css = name == "style"
            && node.text().is_some_and(|t| t.contains("url(") || t.contains("@import"));
        runs || loads || attribute || css
    };
    document.descendants().filter(|n| n.is_element() && bad(n)).map(|n| format!("{n:?}")).collect()
}

#[test]
fn page_is_well_formed_and_self_contained() {
    let page = page(&example::report()).unwrap();
    let document = parse(&page);
    assert_eq!(dangers(&document), Vec::<String>::new());
    assert!(!page.contains("http"), "a reference to the network");
    let mut ids: Vec<_> = document.descendants().filter_map(|n| n.attribute("id")).collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all, "two things have one name");
    let links = document.descendants().filter_map(|n| n.attribute("href"));
    for link in links {
        assert!(ids.contains(&&link[1..]), "{link} leads nowhere");
    }
}

#[test]
fn page_has_the_whole_report() {
    let report = example::report();
    let page = page(&report).unwrap();
    let document = parse(&page);
    let body = document.descendants().find(|n| n.has_tag_name("main")).unwrap();
    let text: String =
        body.descendants().filter_map(|n| if n.is_text() { n.text() } else { None }).collect();
    for part in [
        &report.title,
        &report.summary[0],
        &report.notes[1].text,
        &report.command,
        "AMD EPYC",
        "7.2.22",
        "6m 52s",
    ] {
        assert!(text.contains(part), "{part}");
    }
    // A section without a command of its own shows the report's.
    assert_eq!(text.matches(&report.command).count(), 2);
    for section in &report.sections {
        assert!(text.contains(&section.title));
    }
    assert!(text.find("Warning: Guest CPU").unwrap() < text.find("Direct I/O everywhere").unwrap());
    let charts = document.descendants().filter(|n| n.has_tag_name("svg"));
    assert!(charts.clone().all(|n| n.attribute("aria-label").is_some_and(|l| !l.is_empty())));
    let blocks = || report.sections.iter().flat_map(|s| &s.blocks);
    assert_eq!(charts.count(), blocks().filter(|b| matches!(b, Block::Chart(_))).count());
}

#[test]
fn wide_content_scrolls_in_its_box() {
    let page = page(&example::report()).unwrap();
    let document = parse(&page);
    for table in document.descendants().filter(|n| ["table", "svg"].contains(&n.tag_name().name()))
    {
        assert_eq!(table.parent().and_then(|p| p.attribute("class")), Some("scroll"));
    }
    let heads = document.descendants().filter(|n| n.has_tag_name("th")).count();
    assert!(
        heads > 10
            && document
                .descendants()
                .filter(|n| n.has_tag_name("th"))
                .all(|n| n.attribute("scope").is_some())
    );
}

/// Writes the example for looking at it:
/// `VLANE_EXAMPLE_DIR=/tmp/x cargo test -p vlane-report example_for_eyes`.
#[test]
fn example_page_for_review() {
    let Some(dir) = std::env::var_os("VLANE_EXAMPLE_DIR") else { return };
    let report = example::report();
    for name in ["example.html", "example.json", "example.txt"] {
        let path = std::path::Path::new(&dir).join(name);
        std::fs::write(&path, report.in_form_of(&path).unwrap()).unwrap();
    }
    std::fs::write(
        std::path::Path::new(&dir).join("chart.svg"),
        svg::svg_file(&example::scaling()),
    )
    .unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_report_makes_a_safe_page(report in example::any_report()) {
        let page = page(&report).unwrap();
        prop_assert_eq!(dangers(&parse(&page)), Vec::<String>::new());
    }
}
