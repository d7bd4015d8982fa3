//! Things that a request must not meet on its way: locks, allocation, logging, clocks.
//!
//! The way is made from the calls in the code: all functions that a lane's turn reaches, in the
//! crate of lanes and the crates below it. Two marks in the code lead off it. A function with
//! `#[cold]` is for errors and for control. A comment `// off the data path: REASON` above a
//! function, or above a statement, names another exception; a mark that nothing needs is a fault.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};

use super::calls::Graph;
use super::source::{Function, Source};
use crate::structure;

/// The crate of lanes.
const CRATE: &str = "vlane-lane";

/// The beginnings of the way: a round of a lane's thread, and its look for work while it polls.
const ROOTS: &[&str] = &["Thread::work", "Lane::has_work", "Uring::has_work"];

/// Begins the comment that excepts the function or the statement below it.
const MARK: &str = "// off the data path: ";

/// Names that mean one of them.
const BANNED: &[(&str, &str)] = &[
    ("lock", "a lock"),
    ("Mutex", "a lock"),
    ("RwLock", "a lock"),
    ("Box", "allocation"),
    ("vec", "allocation"),
    ("format", "allocation"),
    ("to_owned", "allocation"),
    ("to_string", "allocation"),
    ("to_vec", "allocation"),
    ("collect", "allocation"),
    ("with_capacity", "allocation"),
    ("tracing", "logging"),
    ("println", "logging"),
    ("eprintln", "logging"),
    ("Instant", "a clock"),
    ("SystemTime", "a clock"),
    ("clock_gettime", "a clock"),
    ("sleep", "waiting"),
];

/// The sources of the crate of lanes and of the crates below it.
fn real<'a>(files: &BTreeMap<String, String>, sources: &'a [Source]) -> Vec<&'a Source> {
    let crates = structure::below(files, sources, CRATE);
    let is_real = |source: &&Source| {
        // Simulated threads and kernels replace real ones in tests only.
        let is_simulated = source.module.iter().flatten().any(|part| part == "simulated");
        crates.contains(&source.home) && !is_simulated
    };
    sources.iter().filter(is_real).collect()
}

/// The functions of the way, and those that lead off it.
fn reached<'a>(real: &[&'a Source]) -> Vec<(&'a Source, &'a Function)> {
    let is_root = |function: &Function| ROOTS.contains(&&function.full_name()[..]);
    Graph::new(real.iter().copied()).reached(is_root, is_off)
}

/// True for a function that leads off the way.
fn is_off(source: &Source, function: &Function) -> bool {
    function.is_cold || mark_above(&source.text, function.line).is_some()
}

/// The files that have functions of the way, with the number of these functions.
pub(crate) fn on_the_way<'a>(
    files: &BTreeMap<String, String>,
    sources: &'a [Source],
) -> BTreeMap<&'a str, usize> {
    let mut found = BTreeMap::new();
    let functions = reached(&real(files, sources));
    for (source, _) in functions.iter().filter(|(source, function)| !is_off(source, function)) {
        *found.entry(&source.name[..]).or_default() += 1;
    }
    found
}

/// All faults: the file, the line, and the text.
pub(crate) fn faults(
    files: &BTreeMap<String, String>,
    sources: &[Source],
) -> Vec<(String, usize, String)> {
    let real = real(files, sources);
    let reached = reached(&real);
    let mut found = Vec::new();
    for root in ROOTS {
        if !reached.iter().any(|(_, function)| function.full_name() == *root) {
            found.push((
                CRATE.to_owned(),
                1,
                format!("the data path begins at `{root}`, and it is not there"),
            ));
        }
    }
    let mut used = BTreeSet::new();
    for (source, function) in reached.iter().filter(|(_, function)| !function.is_cold) {
        if let Some(mark) = mark_above(&source.text, function.line) {
            used.insert((&source.name, mark));
            continue;
        }
        for (line, fault) in banned(function.body.clone()) {
            match mark_above(&source.text, line) {
                Some(mark) => {
                    used.insert((&source.name, mark));
                }
                None => {
                    let text = format!("{fault} in `{}`, on the data path", function.full_name());
                    found.push((source.name.clone(), line, text));
                }
            }
        }
    }
    for source in real {
        for (number, line) in (1..).zip(source.text.lines()) {
            if line.trim_start().starts_with(MARK) && !used.contains(&(&source.name, number)) {
                found.push((
                    source.name.clone(),
                    number,
                    "no function of the data path needs this mark".to_owned(),
                ));
            }
        }
    }
    found
}

/// The line of the mark in the comments and attributes above a line.
fn mark_above(text: &str, line: usize) -> Option<usize> {
    let lines: Vec<&str> = text.lines().take(line - 1).map(str::trim_start).collect();
    let above = (1..line).rev().take_while(|number| {
        let text = lines[number - 1];
        text.starts_with("//") || text.starts_with("#[")
    });
    above.into_iter().find(|number| lines[number - 1].starts_with(MARK))
}

/// Banned names in some code: the line, and the meaning.
fn banned(body: TokenStream) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for token in body {
        match token {
            TokenTree::Group(group) => found.extend(banned(group.stream())),
            TokenTree::Ident(ident) => {
                let name = ident.to_string();
                let entry = BANNED.iter().find(|(banned, _)| *banned == name);
                found.extend(
                    entry.map(|(name, what)| {
                        (ident.span().start().line, format!("{what} (`{name}`)"))
                    }),
                );
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::tidy::source;

    const ROOT: &str = "struct Thread { lane: Lane, uring: Uring } impl Thread { fn work(&mut \
                        self) { self.lane.serve(); self.uring.has_work() } } struct Lane; impl \
                        Lane { fn has_work(&self) {} fn serve(&mut self) { step(); } }struct \
                        Uring; impl Uring { fn has_work(&self) {} }\n";

    /// The faults of a lane whose turn calls `step`.
    fn found(step: &str) -> Vec<(usize, String)> {
        let files: BTreeMap<String, String> = [
            ("vlane/lane/Cargo.toml", "[package]\nname = \"vlane-lane\"\n"),
            ("vlane/lane/src/lib.rs", &format!("{ROOT}{step}")),
        ]
        .map(|(name, text)| (name.to_owned(), text.to_owned()))
        .into();
        let sources = source::sources(&files).unwrap();
        faults(&files, &sources).into_iter().map(|(_, line, text)| (line, text)).collect()
    }

    #[test]
    fn planted_locks_and_allocations_are_found() {
        for (step, count) in [
            ("fn step() { BOARD.lock(); }", 1),
            ("fn step() { if x { y(|| vec![1].iter().collect()) } }", 2),
            ("fn step() { deeper() } fn deeper() { Box::new(1); }", 1),
            (
                "fn step() { Other::new().go() } struct Other; impl Other { fn new() {} fn \
                 go(&self) { format!(x) } }",
                1,
            ),
            ("fn step() { let clock = self.clock; locked(boxed) }", 0),
            // Not reached, or out of the ordinary.
            ("fn step() {} fn other() { vec![1] }", 0),
            ("fn step() { rare() } #[cold] fn rare() { vec![1] }", 0),
            ("fn step() { rare() }\n// off the data path: rare.\nfn rare() { vec![1] }", 0),
            ("fn step() {\n// off the data path: rare.\nvec![1]; }", 0),
            ("fn step() {\n// off the data path: rare.\nf();\nvec![1]; }", 2),
            ("fn step() {}\n// off the data path: rare.\nfn other() { vec![1] }", 1),
        ] {
            let found = found(step);
            assert_eq!(found.len(), count, "{step}: {found:?}");
        }
    }

    #[test]
    fn functions_of_each_crate_are_reached() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = root.ancestors().find(|dir| dir.join("Cargo.lock").exists()).unwrap();
        let files = source::files(root).unwrap();
        let sources = source::sources(&files).unwrap();
        let crates = structure::below(&files, &sources, CRATE);
        let graph = Graph::new(sources.iter().filter(|source| crates.contains(&source.home)));
        let reached: BTreeSet<String> = graph
            .reached(
                |function| ROOTS.contains(&&function.full_name()[..]),
                |_, function| function.is_cold,
            )
            .iter()
            .map(|(_, function)| function.full_name())
            .collect();
        for name in
            ["Lane::serve", "Lane::show", "Queue::take", "Queue::admit", "Holder::begin_write"]
        {
            assert!(reached.contains(name), "{name} is not on the data path: {reached:?}");
        }
    }
}
