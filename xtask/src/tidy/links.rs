//! Links of the documentation that lead nowhere.

use std::collections::BTreeMap;

/// Faults of a page's links: its line, and the link.
pub(crate) fn broken(
    files: &BTreeMap<String, String>,
    page: &str,
    text: &str,
) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut is_code = false;
    for (number, line) in (1..).zip(text.lines()) {
        is_code ^= line.trim_start().starts_with("```");
        if is_code {
            continue;
        }
        for link in links(line) {
            if !leads(files, page, link) {
                found.push((number, link.to_owned()));
            }
        }
    }
    found
}

/// The targets of `[text](target)` in a line, outside of code.
fn links(line: &str) -> Vec<&str> {
    let prose: Vec<&str> = line.split('`').step_by(2).collect();
    let targets = prose.iter().flat_map(|part| part.split("](").skip(1));
    targets.filter_map(|rest| rest.split([')', ' ']).next()).collect()
}

fn leads(files: &BTreeMap<String, String>, page: &str, link: &str) -> bool {
    if link.contains("://") || link.starts_with("mailto:") {
        return true;
    }
    let (path, anchor) =
        link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let target = match path {
        "" => page.to_owned(),
        _ => joined(page, path),
    };
    if let Some(text) = files.get(&target) {
        return anchor.is_none_or(|anchor| headings(text).any(|heading| heading == anchor));
    }
    // A folder, or a picture, which is no text.
    let folder = format!("{}/", target.trim_end_matches('/'));
    anchor.is_none()
        && (files.keys().any(|name| name.starts_with(&folder)) || target.ends_with(".png"))
}

/// A path as seen from a page.
fn joined(page: &str, path: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            ".." => {
                parts.pop();
            }
            "." => {}
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchors that headings have, as mdBook and GitHub make them.
fn headings(text: &str) -> impl Iterator<Item = String> {
    text.lines().filter(|line| line.starts_with('#')).map(|line| {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_links_are_found() {
        let files: BTreeMap<String, String> = [
            ("docs/src/a.md", "# What it is: `--x`\n"),
            ("docs/src/b/c.md", ""),
            ("README.md", ""),
        ]
        .map(|(name, text)| (name.to_owned(), text.to_owned()))
        .into();
        for (text, count) in [
            (
                "[a](a.md) and [b](b/c.md), [up](../../README.md) [web](https://x.y) \
                 [here](#what-it-is---x)",
                0,
            ),
            ("[a](a.md#what-it-is---x) [folder](b) [docs](../src/)", 0),
            ("[gone](gone.md)", 1),
            ("[a](a.md#gone) [b](../a.md)", 2),
            ("`[code](gone.md)`\n```\n[code](gone.md)\n```", 0),
        ] {
            let mut files = files.clone();
            files.entry("docs/src/a.md".into()).and_modify(|page| *page += text);
            assert_eq!(broken(&files, "docs/src/a.md", text).len(), count, "{text}");
        }
    }
}
