use proptest::prelude::*;
use roxmltree::{Document, Node};

use super::*;
use crate::{Block, example};

/// Every number that says where something is, with the larger of the picture's sides it must not
/// leave.
fn places(node: Node<'_, '_>) -> Vec<(f64, char)> {
    let mut all = Vec::new();
    for attribute in node.attributes() {
        let axis = match attribute.name() {
            "x" | "x1" | "x2" => 'x',
            "y" | "y1" | "y2" => 'y',
            "d" => {
                let mut numbers = Vec::new();
                let mut command = 'M';
                let spaced: String = attribute
                    .value()
                    .chars()
                    .flat_map(|c| if c.is_ascii_alphabetic() { vec![' ', c, ' '] } else { vec![c] })
                    .collect();
                for word in spaced.split_whitespace() {
                    match word.parse::<f64>() {
                        Ok(number) => numbers.push((command, number)),
                        Err(_) => {
                            flush(&mut all, &mut numbers);
                            command = word.chars().next().unwrap();
                        }
                    }
                }
                flush(&mut all, &mut numbers);
                continue;
            }
            _ => continue,
        };
        all.push((attribute.value().parse().unwrap(), axis));
    }
    all
}

fn flush(all: &mut Vec<(f64, char)>, numbers: &mut Vec<(char, f64)>) {
    match numbers.first().map(|(command, _)| *command) {
        // A marker around a point, which is checked itself.
        Some(command) if command.is_lowercase() => {}
        Some('H') => all.extend(numbers.iter().map(|(_, n)| (*n, 'x'))),
        Some('V') => all.extend(numbers.iter().map(|(_, n)| (*n, 'y'))),
        // rx ry rotation large sweep x y
        Some('A') => all.extend([(numbers[5].1, 'x'), (numbers[6].1, 'y')]),
        _ => all.extend(
            numbers.iter().enumerate().map(|(i, (_, n))| (*n, if i % 2 == 0 { 'x' } else { 'y' })),
        ),
    }
    numbers.clear();
}

/// Checks a picture: well-formed, within its frame, no reference to elsewhere.
fn check(svg: &str) -> Result<(), String> {
    let document = Document::parse(svg).map_err(|e| format!("{e}\n{svg}"))?;
    let root = document.root_element();
    let size: Vec<f64> = root
        .attribute("viewBox")
        .ok_or("no viewBox")?
        .split(' ')
        .map(|n| n.parse().unwrap())
        .collect();
    for node in root.descendants().filter(Node::is_element) {
        for (number, axis) in places(node) {
            let most = if axis == 'x' { size[2] } else { size[3] };
            if !(-0.05..=most + 0.05).contains(&number) {
                return Err(format!(
                    "{axis} = {number} leaves {size:?} in {:?}\n{svg}",
                    node.tag_name()
                ));
            }
        }
        for side in ["width", "height"] {
            if node
                .attribute(side)
                .is_some_and(|n| n.parse::<f64>().is_ok_and(|n| n.is_nan() || n < 0.0))
            {
                return Err(format!("a {side} below zero\n{svg}"));
            }
        }
    }
    let elsewhere = svg.replace("http://www.w3.org/2000/svg", "");
    // A label may hold anything; markup may not.
    let labels =
        document.descendants().flat_map(|n| [n.text(), n.attribute("aria-label")]).flatten();
    let plain = labels.into_iter().any(|text| text.contains("://"));
    if !plain && elsewhere.contains("://") {
        return Err("it refers to the network".into());
    }
    match svg.contains("NaN") || svg.contains("inf\"") {
        true => Err(format!("it has places that are not numbers\n{svg}")),
        false => Ok(()),
    }
}

fn count(svg: &str, class: &str) -> usize {
    let document = Document::parse(svg).unwrap();
    let has =
        |n: &Node<'_, '_>| n.attribute("class").is_some_and(|c| c.split(' ').any(|c| c == class));
    document.descendants().filter(has).count()
}

#[test]
fn chart_stays_in_its_frame() {
    let report = example::report();
    let blocks = report.sections.iter().flat_map(|s| &s.blocks);
    let charts: Vec<_> = blocks
        .filter_map(|b| if let Block::Chart(chart) = b { Some(chart) } else { None })
        .collect();
    assert!(charts.len() > 20);
    for chart in charts {
        check(&svg_file(chart)).unwrap_or_else(|e| panic!("{}: {e}", chart.caption));
        check(&element(chart)).unwrap_or_else(|e| panic!("{}: {e}", chart.caption));
    }
}

#[test]
fn figures_are_drawn_and_described() {
    let chart = example::throughput();
    let svg = svg_file(&chart);
    // 5 series in 4 places; the legend has one of each.
    assert_eq!(count(&svg, "bar"), 25);
    assert_eq!(count(&svg, "spread"), 20);
    assert!(svg.contains("vlane, 4K random read: 93.4 % of the host (89.7-96.4, 5 runs)"), "{svg}");
    let svg = svg_file(&example::scaling());
    // The legend has a line for each series, too.
    assert_eq!(count(&svg, "curve"), 8);
    assert_eq!(count(&svg, "spread"), 16);
}

#[test]
fn unmeasured_figures_look_different() {
    let svg = svg_file(&example::throughput());
    assert!(svg.contains("virtio (published)") && svg.contains("vlane, 4 lanes (predicted)"));
    assert_eq!(count(&svg, "published"), 5);
    assert_eq!(count(&svg, "predicted"), 5);
    let svg = svg_file(&example::scaling());
    assert!(svg.contains("MT (predicted)") && svg.contains("curve c2 predicted"));
}

#[test]
fn linear_axes_begin_at_zero() {
    let mut chart = example::chart(
        "c",
        ChartKind::Bars,
        example::axis("", "", false),
        example::axis("Rate", "IOPS", false),
        &["a", "b"],
        vec![example::by_index("x", &[100.0, 104.0])],
    );
    let lengths = |chart: &Chart| -> Vec<f64> {
        let svg = svg_file(chart);
        let document = Document::parse(&svg).unwrap();
        let bars = document
            .descendants()
            .filter(|n| n.attribute("class").is_some_and(|c| c.starts_with("bar ")));
        bars.map(|n| n.attribute("width").unwrap().parse().unwrap()).collect()
    };
    let linear = lengths(&chart);
    assert!((linear[1] / linear[0] - 1.04).abs() < 0.005, "{linear:?}");
    chart.y.log = true;
    assert!(lengths(&chart)[1] / lengths(&chart)[0] < 20.0);
}

#[test]
fn empty_chart_says_so() {
    for chart in example::awkward().into_iter().take(2) {
        assert!(svg_file(&chart).contains("nothing was measured"));
    }
    let partly =
        example::awkward().into_iter().find(|c| c.caption.starts_with("Logarithmic")).unwrap();
    assert!(svg_file(&partly).contains("1 of 3 figures are not drawn"));
}

#[test]
fn file_has_both_themes_and_description() {
    let svg = svg_file(&example::scaling());
    assert!(svg.contains("prefers-color-scheme:dark") && svg.contains("--s0"));
    let document = Document::parse(&svg).unwrap();
    let root = document.root_element();
    assert_eq!(root.attribute("role"), Some("img"));
    assert!(
        root.first_element_child().is_some_and(|n| n.has_tag_name("title") && n.text().is_some())
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn any_chart_fits_its_frame(chart in example::any_chart()) {
        check(&svg_file(&chart)).map_err(TestCaseError::fail)?;
        check(&element(&chart)).map_err(TestCaseError::fail)?;
    }
}
