//! `cargo xtask tidy`: the house's rules that no compiler checks.

mod calls;
mod circles;
pub(crate) mod data_path;
mod links;
pub(crate) mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, bail};

pub(crate) use circles::arrows;
use source::{Lines, Source};

use crate::{citations, map, prose, structure};

/// Lines that a file may have, all together, and a function.
const FILE: usize = 800;
const FUNCTION: usize = 75;

/// Checks the repository below `root`, and prints how many lines each crate has.
///
/// # Errors
/// If a rule is broken; each place was named.
pub(crate) fn run(root: &Path) -> Result<()> {
    let files = source::files(root)?;
    let sources = source::sources(&files)?;
    print!("{}", table(&sources));
    let faults = faults(&files, &sources);
    for (place, line, why) in &faults {
        println!("{place}:{line}: {why}");
    }
    match faults.len() {
        0 => Ok(()),
        count => bail!("{count} places are not tidy"),
    }
}

fn faults(files: &BTreeMap<String, String>, sources: &[Source]) -> Vec<(String, usize, String)> {
    let mut faults = data_path::faults(files, sources);
    faults.extend(prose::faults(files));
    for source in sources {
        let lines = source.lines.all();
        if lines > FILE {
            faults.push((source.name.clone(), lines, format!("more than {FILE} lines")));
        }
        for function in &source.functions {
            if function.lines > FUNCTION {
                let why = format!(
                    "`{}` has {} lines, more than {FUNCTION}",
                    function.name, function.lines
                );
                faults.push((source.name.clone(), function.line, why));
            }
        }
    }
    for circle in circles::circles(sources.len(), &arrows(sources)) {
        let names: Vec<&str> = circle.iter().map(|at| sources[*at].name.as_str()).collect();
        faults.push((names[0].to_owned(), 1, format!("a circle of files: {}", names.join(", "))));
    }
    for (home, name) in structure::strays(files, sources) {
        let why = format!("{home} is of the product, and imports {name}, which is of the lab");
        faults.push((format!("{home}/Cargo.toml"), 1, why));
    }
    for home in structure::cut(files, sources) {
        let why = "the description is cut in the picture of the crates: make it shorter";
        faults.push((format!("{home}/Cargo.toml"), 1, why.to_owned()));
    }
    for dead in dead(sources) {
        faults.push((dead.to_owned(), 1, "no module declares it".to_owned()));
    }
    let pages = files.iter().filter(|(name, _)| name.ends_with(".md"));
    for (name, text) in pages.clone() {
        let broken = links::broken(files, name, text).into_iter();
        faults
            .extend(broken.map(|(line, link)| {
                (name.clone(), line, format!("the link {link} leads nowhere"))
            }));
    }
    if files.get(structure::PICTURE) != Some(&structure::draw(files, sources)) {
        let why = "not as the crates are now: cargo xtask structure draws it again";
        faults.push((structure::PICTURE.to_owned(), 1, why.to_owned()));
    }
    if files.get(map::PAGE) != map::page(files, sources).as_ref() {
        let why = "its list of files is not as the code is: cargo xtask structure makes it again";
        faults.push((map::PAGE.to_owned(), 1, why.to_owned()));
    }
    match citations::page(files) {
        Ok((page, wrong)) => {
            faults.extend(wrong);
            if files.get(citations::PAGE) != Some(&page) {
                let why = "not as the quotations are now: cargo xtask citations makes it again";
                faults.push((citations::PAGE.to_owned(), 1, why.to_owned()));
            }
        }
        Err(error) => faults.push(("specification".to_owned(), 1, format!("{error:#}"))),
    }
    let contents = files.get("docs/src/SUMMARY.md").map_or("", String::as_str);
    for (name, _) in pages {
        let page = name.strip_prefix("docs/src/").filter(|page| *page != "SUMMARY.md");
        if page.is_some_and(|page| !contents.contains(&format!("({page})"))) {
            faults.push((name.clone(), 1, "docs/src/SUMMARY.md does not name it".to_owned()));
        }
    }
    faults
}

/// Files that no other one makes a module.
fn dead(sources: &[Source]) -> Vec<&str> {
    let mut declared = BTreeSet::new();
    for source in sources {
        for (module, path) in &source.declares {
            declared.extend(source::module_files(&source.name, module, path.clone()));
        }
    }
    let is_root = |name: &str| {
        let dir = name.rsplit('/').nth(1).unwrap_or_default();
        name.ends_with("/lib.rs")
            || name.ends_with("/main.rs")
            || name.ends_with("build.rs")
            || dir != "src" && is_entry(name)
    };
    sources
        .iter()
        .map(|source| source.name.as_str())
        .filter(|name| !is_root(name) && !declared.contains(*name))
        .collect()
}

/// Targets that cargo finds by itself, beside `src/`.
fn is_entry(name: &str) -> bool {
    let dir = name.rsplit('/').nth(1).unwrap_or_default();
    ["tests", "benches", "examples", "bin", "fuzz_targets"].contains(&dir)
        && !name.contains("/src/")
}

/// Lines by crate, and by house.
fn table(sources: &[Source]) -> String {
    let mut crates: BTreeMap<&str, Lines> = BTreeMap::new();
    let mut houses: BTreeMap<&str, Lines> = BTreeMap::new();
    let mut all = Lines::default();
    for source in sources {
        crates.entry(&source.home).or_default().add(source.lines);
        if let Some((house, _)) = source.home.split_once('/') {
            houses.entry(house).or_default().add(source.lines);
        }
        all.add(source.lines);
    }
    let row = |name: &str, lines: Lines| {
        let Lines { code, tests, comments, blank } = lines;
        format!("{name:<18} {code:>7} {tests:>7} {comments:>8} {blank:>7} {:>7}\n", lines.all())
    };
    let mut text = format!(
        "{:<18} {:>7} {:>7} {:>8} {:>7} {:>7}\n",
        "lines", "code", "tests", "comments", "blank", "all"
    );
    for (name, lines) in crates {
        text += &row(name, lines);
    }
    for (name, lines) in houses {
        text += &row(&format!("{name}/"), lines);
    }
    text + &row("all", all)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let files = source::files(root).unwrap();
        let sources = source::sources(&files).unwrap();
        assert!(sources.len() > 300, "these are not all files: {}", sources.len());
        let all: String = faults(&files, &sources)
            .iter()
            .map(|(place, line, why)| format!("\n{place}:{line}: {why}"))
            .collect();
        assert!(all.is_empty(), "{all}");
    }

    #[test]
    fn each_fault_is_found() {
        let long = format!("fn f() {{\n{}}}\n", "    g();\n".repeat(80));
        let files: BTreeMap<String, String> = [
            ("vlane/x/Cargo.toml", format!("description = \"{}\"\n", "word ".repeat(30))),
            ("vlane/x/src/lib.rs", "mod a;\nmod b;\nmod long;\nuse vlane_y::Y;\n".to_owned()),
            ("lab/y/Cargo.toml", "name = \"vlane-y\"\n".to_owned()),
            ("lab/y/src/lib.rs", "pub struct Y;\n".to_owned()),
            ("vlane/x/src/a.rs", "use crate::b::in_b;\n".to_owned()),
            ("vlane/x/src/b.rs", "use crate::a::in_a;\n".to_owned()),
            ("vlane/x/src/dead.rs", String::new()),
            ("vlane/x/src/long.rs", long),
            ("docs/src/SUMMARY.md", "[a](a.md)\n".to_owned()),
            ("docs/src/a.md", "[gone](gone.md)\n".to_owned()),
            ("docs/src/lost.md", String::new()),
            (map::PAGE, "No list.\n".to_owned()),
        ]
        .map(|(name, text)| (name.to_owned(), text))
        .into();
        let sources = source::sources(&files).unwrap();
        let found = faults(&files, &sources);
        for (place, why) in [
            ("vlane/x/src/a.rs", "circle"),
            ("vlane/x/src/dead.rs", "no module"),
            ("vlane/x/src/long.rs", "82 lines"),
            ("docs/src/a.md", "leads nowhere"),
            ("docs/src/lost.md", "does not name it"),
            ("vlane/x/Cargo.toml", "is of the lab"),
            ("vlane/x/Cargo.toml", "is cut"),
            ("docs/src/structure.svg", "draws it again"),
            (map::PAGE, "makes it again"),
            ("docs/src/specification.md", "makes it again"),
            ("vlane-lane", "is not there"),
        ] {
            let is_found = found.iter().any(|(at, _, what)| at == place && what.contains(why));
            assert!(is_found, "{place}: {why}: {found:?}");
        }
    }
}
