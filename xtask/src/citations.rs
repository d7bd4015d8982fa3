//! `cargo xtask citations`: demands of the specifications, and the places in the code that fulfil
//! them.
//!
//! `specification/*.toml` has the sentences. The code quotes them, in the form of s2n-quic's duvet:
//!
//! ```text
//! //= virtio 2.7.8.2
//! //# The device MUST set len prior to updating the used idx.
//! ```
//!
//! and, above a test, `//= virtio 2.7.8.2, test`. A quotation may continue in further lines. The
//! page `docs/src/specification.md` is made from both. `cargo xtask tidy` fails when it is out of
//! date, when a quoted sentence is not in the files, and when one of theirs is quoted nowhere.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// The page that is made.
pub(crate) const PAGE: &str = "docs/src/specification.md";

/// A fault: the file, the line, why.
type Fault = (String, usize, String);

/// A file of `specification/`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Specification {
    name: String,
    title: String,
    url: String,
    section: Vec<Section>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    number: String,
    #[serde(default)]
    title: String,
    must: Vec<String>,
    #[serde(default)]
    different: Vec<Different>,
}

/// A sentence that is not followed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Different {
    text: String,
    why: String,
}

/// A sentence that is quoted somewhere.
#[derive(Debug, PartialEq, Eq)]
struct Citation {
    /// The specification and the section.
    of: String,
    is_test: bool,
    text: String,
    file: String,
    line: usize,
}

/// The quotations of a file.
fn citations(file: &str, text: &str) -> Vec<Citation> {
    let mut all: Vec<Citation> = Vec::new();
    let mut open = false;
    for (at, line) in text.lines().map(str::trim).enumerate() {
        if let Some(head) = line.strip_prefix("//= ") {
            let (of, is_test) = head.strip_suffix(", test").map_or((head, false), |of| (of, true));
            let (of, file) = (of.to_owned(), file.to_owned());
            all.push(Citation { of, is_test, text: String::new(), file, line: at + 1 });
            open = true;
        } else if let (Some(words), Some(last), true) =
            (line.strip_prefix("//# "), all.last_mut(), open)
        {
            let gap = if last.text.is_empty() { "" } else { " " };
            let _ = write!(last.text, "{gap}{words}");
        } else {
            open = false;
        }
    }
    all
}

/// True if a test's attribute stands beside a quotation: among the comments and attributes before
/// it and behind it.
fn is_above_a_test(text: &str, line: usize) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let (before, after) = lines.split_at(line.min(lines.len()));
    let belongs = |line: &&&str| line.starts_with("//") || line.starts_with("#[");
    before
        .iter()
        .rev()
        .take_while(belongs)
        .chain(after.iter().take_while(belongs))
        .any(|line| *line == "#[test]")
}

/// The page, and what is wrong.
///
/// # Errors
/// If a file of `specification/` has another form.
pub(crate) fn page(files: &BTreeMap<String, String>) -> Result<(String, Vec<Fault>)> {
    let mut quoted: BTreeMap<(String, String), Vec<Citation>> = BTreeMap::new();
    let mut faults = Vec::new();
    for (name, text) in
        files.iter().filter(|(name, _)| name.ends_with(".rs") && !name.starts_with("xtask/"))
    {
        for citation in citations(name, text) {
            if citation.is_test && !is_above_a_test(text, citation.line) {
                faults.push((
                    name.clone(),
                    citation.line,
                    "no test stands under this quotation".to_owned(),
                ));
            }
            quoted.entry((citation.of.clone(), citation.text.clone())).or_default().push(citation);
        }
    }
    let (mut tables, mut counts) = (String::new(), [0; 4]);
    for (file, text) in files
        .iter()
        .filter(|(name, _)| name.starts_with("specification/") && name.ends_with(".toml"))
    {
        let specification: Specification = toml::from_str(text).with_context(|| file.clone())?;
        let _ = write!(tables, "\n## [{}]({})\n", specification.title, specification.url);
        for section in &specification.section {
            let heading = format!("{} {}", section.number, section.title);
            let _ = write!(
                tables,
                "\n### {}\n\n| sentence | where | tests |\n|---|---|---|\n",
                heading.trim()
            );
            for sentence in &section.must {
                let key = (format!("{} {}", specification.name, section.number), sentence.clone());
                let places = quoted.remove(&key).unwrap_or_default();
                let [code, tests] = [false, true].map(|is_test| list(&places, is_test, files));
                counts[0] += 1;
                counts[1] += usize::from(!code.is_empty());
                counts[2] += usize::from(!tests.is_empty());
                if code.is_empty() {
                    faults.push((
                        file.clone(),
                        1,
                        format!("quoted nowhere: {}: {sentence}", section.number),
                    ));
                }
                let _ = writeln!(tables, "| {sentence} | {code} | {tests} |");
            }
            for Different { text, why } in &section.different {
                counts[3] += 1;
                let _ = writeln!(tables, "| {text} | **different:** {why} | |");
            }
        }
    }
    for citation in quoted.into_values().flatten() {
        let why =
            format!("`{}` of specification/ has no such sentence: {}", citation.of, citation.text);
        faults.push((citation.file, citation.line, why));
    }
    let [all, code, tests, different] = counts;
    let page = format!(
        "# The specification, sentence by sentence\n\n\
         Guests and front ends of vlane rely on two texts: the virtio standard and the vhost-user\n\
         protocol. This page has the sentences that a back end of a disk must follow. They are of \
         the virtio\nchapters on both kinds of virtqueues and on the block device, and of the \
         protocol. Each has the\nplace in the code that does so, and the tests that show it.\n\n\
         Of {all} sentences {code} are quoted in the code, and {tests} above a test. {different} \
         more are not followed, each\nfor the reason that stands there. The page is made by \
         `cargo xtask citations` from `specification/`\nand from the comments in the code \
         (`//= virtio 2.7.8.2`, `//# the sentence`).\n{tables}"
    );
    Ok((page, faults))
}

/// The places, as links; what encloses a quotation in a test is its name.
fn list(places: &[Citation], is_test: bool, files: &BTreeMap<String, String>) -> String {
    let link = |citation: &Citation| {
        let short = citation.file.split_once('/').map_or(&citation.file[..], |(_, file)| file);
        let name = files.get(&citation.file).and_then(|text| {
            let after =
                text.lines().skip(citation.line).find_map(|line| line.trim().split_once("fn "))?;
            after.1.split(['(', '<']).next()
        });
        let shown = if is_test { name.unwrap_or(short) } else { short };
        format!("[`{shown}`](../../{})", citation.file)
    };
    let mut links: Vec<String> =
        places.iter().filter(|place| place.is_test == is_test).map(link).collect();
    links.dedup();
    links.join(", ")
}

/// Writes the page.
///
/// # Errors
/// If a quotation is wrong or missing; each was named.
pub(crate) fn run(root: &Path) -> Result<()> {
    let (page, faults) = page(&crate::tidy::source::files(root)?)?;
    std::fs::write(root.join(PAGE), page).context(PAGE)?;
    println!("{PAGE}");
    for (file, line, why) in &faults {
        println!("{file}:{line}: {why}");
    }
    match faults.len() {
        0 => Ok(()),
        count => bail!("{count} quotations are wrong or missing"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const SPECIFICATION: &str = "name = 'v'\ntitle = 'V'\nurl = 'u'\n[[section]]\nnumber = \
                                 '1.2'\ntitle = 'T'\nmust = ['It MUST.', 'It MUST \
                                 NOT.']\n[[section.different]]\ntext = 'It must fly.'\nwhy = 'No \
                                 wings.'\n";

    fn files(code: &str) -> BTreeMap<String, String> {
        [("specification/v.toml", SPECIFICATION), ("vlane/x/src/lib.rs", code)]
            .map(|(name, text)| (name.to_owned(), text.to_owned()))
            .into()
    }

    #[test]
    fn quoted_and_unquoted_sentences_are_found() {
        let code = "    //= v 1.2\n    //# It MUST\n    //# NOT.\n    x();\n//= v 1.2, test\n//# \
                    It MUST NOT.\n#[test]\nfn never() {}\n";
        let (page, faults) = page(&files(code)).unwrap();
        assert!(
            page.contains(
                "| It MUST NOT. | [`x/src/lib.rs`](../../vlane/x/src/lib.rs) | \
                 [`never`](../../vlane/x/src/lib.rs) |"
            ),
            "{page}"
        );
        assert!(
            page.contains("Of 2 sentences 1 are quoted in the code, and 1 above a test. 1 more"),
            "{page}"
        );
        assert!(page.contains("| It must fly. | **different:** No wings. | |"));
        assert_eq!(faults.len(), 1);
        assert!(faults[0].2.contains("It MUST."), "{faults:?}");
    }

    #[test]
    fn test_quotation_without_test_is_fault() {
        let quotation = "//= v 1.2, test\n//# It MUST.\n";
        for (under, is_one) in [
            ("#[test]\nfn it_does() {}\n", true),
            ("#[test]\n// Why.\n#[ignore]\nfn it() {}\n", true),
            ("fn helper() {}\n#[test]\nfn other() {}\n", false),
            ("", false),
        ] {
            let (_, faults) = page(&files(&format!("{quotation}{under}"))).unwrap();
            assert_eq!(faults.iter().all(|fault| !fault.2.contains("no test")), is_one, "{under}");
        }
    }

    #[test]
    fn unknown_sentence_is_no_quotation() {
        for code in
            ["//= v 1.2\n//# It MAY.\n", "//= v 1.3\n//# It MUST.\n", "//= w 1.2\n//# It MUST.\n"]
        {
            let (_, faults) = page(&files(code)).unwrap();
            assert!(
                faults.iter().any(|(file, line, _)| file == "vlane/x/src/lib.rs" && *line == 1),
                "{code}: {faults:?}"
            );
        }
    }
}
