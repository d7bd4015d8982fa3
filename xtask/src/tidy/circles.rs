//! Which file takes names from which, and files that do so in a circle.
//!
//! A file and those in its folder are one subject: what a file takes from those above it is no arrow. All other paths are: `use`, and paths in
//! the code, also inside macros. A name that a file passes on (`pub use`) is taken from where it is made.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::source::Source;

type Path = Vec<String>;

/// Of one crate: by the path of a module, what each name in it stands for.
type Names = BTreeMap<Path, BTreeMap<String, Path>>;

/// Arrows between the files of all crates: from, and to, by their numbers in `sources`.
pub(crate) fn arrows(sources: &[Source]) -> BTreeSet<(usize, usize)> {
    let mut crates: BTreeMap<&str, BTreeMap<Path, usize>> = BTreeMap::new();
    for (number, source) in sources.iter().enumerate() {
        if let Some(module) = &source.module {
            crates.entry(&source.home).or_default().insert(module.clone(), number);
        }
    }
    let mut arrows = BTreeSet::new();
    for modules in crates.values() {
        let names = names(sources, modules);
        for (module, number) in modules {
            let mut paths = Vec::new();
            collect(sources[*number].tokens.clone(), &mut paths);
            for path in paths {
                let Some(to) = absolute(module, &path).and_then(|path| file_of(modules, &names, path)) else {
                    continue;
                };
                let is_above = to.len() <= module.len() && module.starts_with(&to);
                if !is_above {
                    arrows.insert((*number, modules[&to]));
                }
            }
        }
    }
    arrows
}

/// Groups of files, each of which leads to all others of its group.
pub(crate) fn circles(count: usize, arrows: &BTreeSet<(usize, usize)>) -> Vec<Vec<usize>> {
    let reached: Vec<BTreeSet<usize>> = (0..count).map(|from| reachable(from, arrows)).collect();
    let mut found: Vec<Vec<usize>> = Vec::new();
    for (from, all) in reached.iter().enumerate() {
        if all.contains(&from) && !found.iter().any(|circle| circle.contains(&from)) {
            found.push(all.iter().copied().filter(|to| reached[*to].contains(&from)).collect());
        }
    }
    found
}

fn reachable(from: usize, arrows: &BTreeSet<(usize, usize)>) -> BTreeSet<usize> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(at) = next.pop() {
        for (_, to) in arrows.range((at, 0)..=(at, usize::MAX)) {
            if seen.insert(*to) {
                next.push(*to);
            }
        }
    }
    seen
}

/// What the names that each module has by `use` stand for.
fn names(sources: &[Source], modules: &BTreeMap<Path, usize>) -> Names {
    let mut names = Names::new();
    for (module, number) in modules {
        let known = names.entry(module.clone()).or_default();
        let Ok(file) = syn::parse2::<syn::File>(sources[*number].tokens.clone()) else { continue };
        for item in file.items {
            let syn::Item::Use(item) = item else { continue };
            let mut leaves = Vec::new();
            use_leaves(&item.tree, &mut Vec::new(), &mut leaves);
            for (name, path) in leaves {
                // A path that begins with a module of this one needs no `self`.
                let is_own = modules.contains_key(&[&module[..], &path[..1]].concat());
                let path =
                    if is_own { Some([&module[..], &path[..]].concat()) } else { absolute(module, &path) };
                if let Some(path) = path {
                    known.insert(name, path);
                }
            }
        }
    }
    names
}

fn use_leaves(tree: &syn::UseTree, before: &mut Path, leaves: &mut Vec<(String, Path)>) {
    let whole = |last: &syn::Ident| [&before[..], &[last.to_string()]].concat();
    match tree {
        syn::UseTree::Path(path) => {
            before.push(path.ident.to_string());
            use_leaves(&path.tree, before, leaves);
            before.pop();
        }
        syn::UseTree::Name(name) => leaves.push((name.ident.to_string(), whole(&name.ident))),
        syn::UseTree::Rename(name) => leaves.push((name.rename.to_string(), whole(&name.ident))),
        syn::UseTree::Group(group) => group.items.iter().for_each(|tree| use_leaves(tree, before, leaves)),
        syn::UseTree::Glob(_) => {}
    }
}

/// A path from the crate's root; none if it leads out of the crate.
fn absolute(module: &[String], path: &[String]) -> Option<Path> {
    let mut base = match path.first()?.as_str() {
        "crate" => Vec::new(),
        "self" => module.to_vec(),
        "super" => module[..module.len().checked_sub(1)?].to_vec(),
        _ => return None,
    };
    let mut rest = &path[1..];
    while rest.first().is_some_and(|part| part == "super") {
        base.pop()?;
        rest = &rest[1..];
    }
    base.extend_from_slice(rest);
    Some(base)
}

/// The module whose file makes what a path leads to.
fn file_of(modules: &BTreeMap<Path, usize>, names: &Names, mut path: Path) -> Option<Path> {
    // A name that stands for another one; not for ever.
    for _ in 0..8 {
        let len = (0..=path.len()).rev().find(|len| modules.contains_key(&path[..*len]))?;
        let module = path[..len].to_vec();
        let stands_for = path.get(len).and_then(|name| names[&module].get(name));
        match stands_for {
            Some(other) => path = [&other[..], &path[len + 1..]].concat(),
            None => return Some(module),
        }
    }
    None
}

/// All paths that begin with `crate`, `self` or `super`.
fn collect(tokens: TokenStream, paths: &mut Vec<Path>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Ident(ident) if ["crate", "self", "super"].contains(&ident.to_string().as_str()) => {
                at = follow(&tokens, at, &mut Vec::new(), paths);
            }
            TokenTree::Group(group) => {
                collect(group.stream(), paths);
                at += 1;
            }
            _ => at += 1,
        }
    }
}

/// Follows a path, into the braces of a `use`; gives what comes after it.
fn follow(tokens: &[TokenTree], mut at: usize, path: &mut Path, paths: &mut Vec<Path>) -> usize {
    loop {
        match tokens.get(at) {
            Some(TokenTree::Ident(ident)) => {
                path.push(ident.to_string());
                at += 1;
            }
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace && !path.is_empty() => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                for part in inner.split(|token| is_punct(Some(token), ',')).filter(|part| !part.is_empty()) {
                    follow(part, 0, &mut path.clone(), paths);
                }
                return at + 1;
            }
            _ => break,
        }
        if !(is_punct(tokens.get(at), ':') && is_punct(tokens.get(at + 1), ':')) {
            break;
        }
        at += 2;
    }
    if path.len() > 1 {
        paths.push(path.clone());
    }
    at.max(1)
}

fn is_punct(token: Option<&TokenTree>, wanted: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::source;
    use super::*;

    fn found(files: &[(&str, &str)]) -> (Vec<Source>, BTreeSet<(usize, usize)>) {
        let mut all: BTreeMap<String, String> =
            files.iter().map(|(name, text)| (format!("crates/x/src/{name}"), (*text).to_owned())).collect();
        all.insert("crates/x/Cargo.toml".into(), String::new());
        let sources = source::sources(&all).unwrap();
        let arrows = arrows(&sources);
        (sources, arrows)
    }

    fn named(files: &[(&str, &str)]) -> Vec<String> {
        let (sources, arrows) = found(files);
        let name = |at: usize| sources[at].name.trim_start_matches("crates/x/src/").to_owned();
        arrows.iter().map(|(from, to)| format!("{} {}", name(*from), name(*to))).collect()
    }

    #[test]
    fn arrows_lead_to_where_a_name_is_made() {
        let lib = ("lib.rs", "mod a; mod b; pub use a::One; pub use b::Two as Other;");
        let b = ("b.rs", "pub struct Two;");
        for (a, arrow) in [
            ("use crate::b::Two;", Some("a.rs b.rs")),
            ("use crate::{One, b::{Two}};", Some("a.rs b.rs")),
            ("fn f() { x!(crate::b::f(1)) }", Some("a.rs b.rs")),
            ("fn f(_: super::b::Two) {}", Some("a.rs b.rs")),
            ("use crate::Other;", Some("a.rs b.rs")),
            // Its own, and the crate's root.
            ("use crate::One;", None),
            ("use crate::f;", None),
            ("use std::b::Two; fn f(&self) { self.b }", None),
            ("#[cfg(test)] mod tests { use crate::b::Two; }", None),
        ] {
            let found: Vec<String> =
                named(&[lib, ("a.rs", a), b]).into_iter().filter(|arrow| arrow.starts_with("a.rs")).collect();
            assert_eq!(found, Vec::from_iter(arrow.map(ToOwned::to_owned)), "{a}");
        }
    }

    #[test]
    fn two_files_that_need_each_other_are_a_circle_and_a_file_and_its_folder_are_none() {
        let lib = ("lib.rs", "mod a; mod b; mod c;");
        let (sources, arrows) = found(&[
            lib,
            ("a.rs", "mod part; use crate::c::in_c; use self::part::y;"),
            ("a/part.rs", "use super::z;"),
            ("b.rs", "use crate::a::in_a;"),
            ("c.rs", "use crate::b::in_b;"),
        ]);
        let circles = circles(sources.len(), &arrows);
        let names: Vec<&str> =
            circles[0].iter().map(|at| &sources[*at].name["crates/x/src/".len()..]).collect();
        assert_eq!((circles.len(), names), (1, vec!["a.rs", "b.rs", "c.rs"]));
    }
}
