//! Arrows between files (a file names something that another file defines), and circles of them.
//!
//! A file and the files in its folder are one subject: an arrow to a module above is left out. All
//! other paths count: `use` trees, `pub use`, and paths in the code, also inside macros. A path may
//! begin with `crate`, `self`, `super`, a child module, an imported name or a name from a glob. An
//! arrow leads to the file that defines the name, through any number of re-exports.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::Item;

use super::source::Source;

type Path = Vec<String>;

/// The scope of a module, inline modules included.
#[derive(Debug, Default)]
struct Scope {
    /// Number of its file in the sources.
    file: usize,
    /// Imported names, each with the path that it stands for, as written.
    imported: BTreeMap<String, Path>,
    /// Paths that end with `*`, as written.
    globs: Vec<Path>,
    /// Names of the items that it defines.
    defined: BTreeSet<String>,
}

/// The modules of one crate.
type Modules = BTreeMap<Path, Scope>;

/// Re-exports that are followed for one name: more of them would be a circle of `pub use`.
const REEXPORTS: usize = 16;

/// Arrows between the files of all crates: from, and to, by their numbers in `sources`.
pub(crate) fn arrows(sources: &[Source]) -> BTreeSet<(usize, usize)> {
    let mut crates: BTreeMap<&str, Modules> = BTreeMap::new();
    for (number, source) in sources.iter().enumerate() {
        let modules = crates.entry(&source.home).or_default();
        // The library of a crate that also has a program: only its names can be imported.
        let is_beside_library =
            source.name.ends_with("src/main.rs") && modules.contains_key(&Path::new());
        if let Some(module) = source.module.as_ref().filter(|_| !is_beside_library)
            && let Ok(file) = syn::parse2::<syn::File>(source.tokens.clone())
        {
            scopes(module, number, &file.items, modules);
        }
    }
    let mut arrows = BTreeSet::new();
    for (home, modules) in &crates {
        for (from, source) in sources.iter().enumerate().filter(|(_, source)| source.home == *home)
        {
            let Some(module) = &source.module else { continue };
            let mut paths = BTreeSet::new();
            collect(source.tokens.clone(), module, &mut paths);
            for (module, path) in paths {
                let to = match &path[..] {
                    // Explicit imports and local names need no arrow of their own.
                    [name] => from_globs(modules, &module, name, &[], REEXPORTS)
                        .filter(|to| !to.is_module),
                    _ => resolve(modules, &module, &path, REEXPORTS),
                };
                let to = to.map(|to| modules[&to.module].file);
                arrows
                    .extend(to.filter(|to| !is_above(&sources[*to], source)).map(|to| (from, to)));
            }
        }
    }
    arrows
}

fn is_above(to: &Source, from: &Source) -> bool {
    match (&to.module, &from.module) {
        (Some(to), Some(from)) => from.starts_with(to),
        _ => false,
    }
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

/// Adds the scope of a module and of the inline modules in it.
fn scopes(module: &[String], file: usize, items: &[Item], modules: &mut Modules) {
    let mut scope = Scope { file, ..Scope::default() };
    for item in items {
        match item {
            Item::Use(item) => use_leaves(&item.tree, &mut Path::new(), &mut scope),
            Item::Mod(inner) => {
                let path = [module, &[inner.ident.to_string()]].concat();
                if let Some((_, items)) = &inner.content {
                    scopes(&path, file, items, modules);
                }
            }
            item => scope.defined.extend(defined(item)),
        }
    }
    modules.insert(module.to_vec(), scope);
}

fn defined(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

fn use_leaves(tree: &syn::UseTree, before: &mut Path, scope: &mut Scope) {
    let mut leaf = |name: &syn::Ident, last: &syn::Ident| {
        // `a::{self}` is `a` itself.
        let path = match last == "self" && !before.is_empty() {
            true => before.clone(),
            false => [&before[..], &[last.to_string()]].concat(),
        };
        let name = if name == "self" { path.last().cloned() } else { Some(name.to_string()) };
        // A rename to `_` makes no name.
        scope.imported.extend(name.filter(|name| name != "_").map(|name| (name, path)));
    };
    match tree {
        syn::UseTree::Path(path) => {
            before.push(path.ident.to_string());
            use_leaves(&path.tree, before, scope);
            before.pop();
        }
        syn::UseTree::Name(name) => leaf(&name.ident, &name.ident),
        syn::UseTree::Rename(name) => leaf(&name.rename, &name.ident),
        syn::UseTree::Group(group) => {
            group.items.iter().for_each(|tree| use_leaves(tree, before, scope))
        }
        syn::UseTree::Glob(_) => scope.globs.push(before.clone()),
    }
}

/// The module that a path leads to, or the module that defines its name.
#[derive(Debug)]
struct Place {
    module: Path,
    is_module: bool,
}

/// Follows a path that stands in `module`; none if the path leads out of the crate.
fn resolve(modules: &Modules, module: &[String], path: &[String], left: usize) -> Option<Place> {
    let left = left.checked_sub(1)?;
    let first = path.first()?;
    let absolute = match first.as_str() {
        "crate" => path[1..].to_vec(),
        "self" => [module, &path[1..]].concat(),
        "super" => {
            let above = &module[..module.len().checked_sub(1)?];
            match path.get(1) {
                Some(next) if next == "super" => return resolve(modules, above, &path[1..], left),
                _ => [above, &path[1..]].concat(),
            }
        }
        _ => [module, path].concat(),
    };
    let len = (0..=absolute.len()).rev().find(|len| modules.contains_key(&absolute[..*len]))?;
    let (to, rest) = absolute.split_at(len);
    let Some(name) = rest.first() else {
        return Some(Place { module: to.to_vec(), is_module: true });
    };
    let found = named(modules, to, name, &rest[1..], left);
    // A name that a macro makes belongs to the module that the path names.
    let leads_here = to != module || ["crate", "self", "super"].contains(&first.as_str());
    found.or_else(|| leads_here.then(|| Place { module: to.to_vec(), is_module: false }))
}

/// Follows a name in the scope of a module, and the rest of the path behind it.
fn named(
    modules: &Modules,
    module: &[String],
    name: &str,
    rest: &[String],
    left: usize,
) -> Option<Place> {
    let scope = modules.get(module)?;
    if let Some(path) = scope.imported.get(name) {
        return resolve(modules, module, &[path, rest].concat(), left);
    }
    let child = [module, &[name.to_owned()]].concat();
    if modules.contains_key(&child) {
        return resolve(modules, &[], &[&["crate".to_owned()], &child[..], rest].concat(), left);
    }
    match scope.defined.contains(name) {
        true => Some(Place { module: module.to_vec(), is_module: false }),
        false => from_globs(modules, module, name, rest, left),
    }
}

/// Follows a name that a module has by `use ...::*`.
fn from_globs(
    modules: &Modules,
    module: &[String],
    name: &str,
    rest: &[String],
    left: usize,
) -> Option<Place> {
    let left = left.checked_sub(1)?;
    modules.get(module)?.globs.iter().find_map(|glob| {
        let to = resolve(modules, module, glob, left).filter(|to| to.is_module)?;
        named(modules, &to.module, name, rest, left)
    })
}

/// All paths, and single names, each with the module that it stands in.
fn collect(tokens: TokenStream, module: &[String], paths: &mut BTreeSet<(Path, Path)>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match (&tokens[at], tokens.get(at + 1), tokens.get(at + 2)) {
            (
                TokenTree::Ident(word),
                Some(TokenTree::Ident(name)),
                Some(TokenTree::Group(inner)),
            ) if word == "mod" && inner.delimiter() == Delimiter::Brace => {
                collect(inner.stream(), &[module, &[name.to_string()]].concat(), paths);
                at += 3;
            }
            // A field or a method.
            (TokenTree::Punct(dot), Some(TokenTree::Ident(_)), _)
                if dot.as_char() == '.'
                    && !is_punct(at.checked_sub(1).and_then(|at| tokens.get(at)), '.') =>
            {
                at += 2;
            }
            (TokenTree::Ident(_), ..) => {
                let mut found = Vec::new();
                at = follow(&tokens, at, &mut Path::new(), &mut found);
                paths.extend(found.into_iter().map(|path| (module.to_vec(), path)));
            }
            (TokenTree::Group(group), ..) => {
                collect(group.stream(), module, paths);
                at += 1;
            }
            _ => at += 1,
        }
    }
}

/// Follows a path, into the braces of a `use`; gives the position after it.
fn follow(tokens: &[TokenTree], mut at: usize, path: &mut Path, paths: &mut Vec<Path>) -> usize {
    loop {
        match tokens.get(at) {
            Some(TokenTree::Ident(ident)) => {
                path.push(ident.to_string());
                at += 1;
            }
            Some(TokenTree::Group(group))
                if group.delimiter() == Delimiter::Brace && !path.is_empty() =>
            {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                for part in
                    inner.split(|token| is_punct(Some(token), ',')).filter(|part| !part.is_empty())
                {
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
    // `a::{self}` is `a` itself.
    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    if !path.is_empty() {
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
        let mut all: BTreeMap<String, String> = files
            .iter()
            .map(|(name, text)| (format!("vlane/x/src/{name}"), (*text).to_owned()))
            .collect();
        all.insert("vlane/x/Cargo.toml".into(), String::new());
        let sources = source::sources(&all).unwrap();
        let arrows = arrows(&sources);
        (sources, arrows)
    }

    fn arrows_of(from: &str, files: &[(&str, &str)]) -> Vec<String> {
        let (sources, arrows) = found(files);
        let name = |at: usize| sources[at].name.trim_start_matches("vlane/x/src/").to_owned();
        arrows.iter().filter(|(at, _)| name(*at) == from).map(|(_, to)| name(*to)).collect()
    }

    #[test]
    fn paths_lead_to_the_defining_file() {
        let lib = ("lib.rs", "mod a; mod b; pub use a::One; pub use b::Two as Other;");
        let b = ("b.rs", "pub struct Two;");
        for (a, is_arrow) in [
            ("use crate::b::Two;", true),
            ("use crate::{One, b::{Two}};", true),
            ("fn f() { x!(crate::b::f(1)) }", true),
            ("fn f(_: super::b::Two) {}", true),
            ("use crate::Other;", true),
            ("use super::b; fn f(_: b::Two) {}", true),
            ("use super::b::{self}; fn f() {}", true),
            ("use super::*; fn f(_: Other) {}", true),
            ("use crate::*; fn f(_: b::Two) {}", true),
            ("mod inner { use super::super::b::Two; }", true),
            ("fn f() { use crate::Other as It; }", true),
            // Its own, and the crate's root.
            ("use crate::One;", false),
            ("use crate::f;", false),
            ("use std::b::Two; fn f(&self) { self.b }", false),
            ("use super::*; fn f(other: b) { x.Other(); b() }", false),
            ("mod b { pub struct Two; } fn f(_: b::Two) {}", false),
            ("#[cfg(test)] mod tests { use crate::b::Two; }", false),
        ] {
            let found = arrows_of("a.rs", &[lib, ("a.rs", a), b]);
            assert_eq!(found, Vec::from_iter(is_arrow.then(|| "b.rs".to_owned())), "{a}");
        }
    }

    #[test]
    fn each_kind_of_circle_is_found() {
        for (a, above) in [
            ("use crate::report::b::in_b;", ""),
            ("use super::b::in_b;", ""),
            ("use super::{b}; fn f() { b::in_b() }", ""),
            // The name of a sibling that the module above imports or passes on.
            ("use super::in_b;", "pub use b::in_b;"),
            ("use super::sibling; fn f() { sibling::in_b() }", "use self::b as sibling;"),
            ("use super::*; fn f() { in_b() }", "use b::in_b;"),
            ("use super::*; fn f() { in_b() }", "pub use b::*;"),
            ("use super::again::in_b;", "mod again { pub use super::b::*; }"),
            // A child's name, relative and without `use`.
            ("mod part; fn f() { part::in_part() }", "mod part_of_a;"),
        ] {
            let inner = if above.contains("part_of_a") { "use super::super::b::in_b;" } else { "" };
            let files = [
                ("lib.rs", "mod report;"),
                ("report/mod.rs", &format!("mod a; mod b; {above}")[..]),
                ("report/a.rs", a),
                ("report/a/part.rs", &format!("pub fn in_part() {{}} {inner}")[..]),
                ("report/b.rs", "use super::a::in_a; pub fn in_b() {}"),
            ];
            let (sources, arrows) = found(&files);
            assert_eq!(circles(sources.len(), &arrows).len(), 1, "{a} {above}");
        }
    }

    #[test]
    fn file_and_its_folder_are_no_circle() {
        let (sources, arrows) = found(&[
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "mod part; use crate::c::in_c; use self::part::y;"),
            ("a/part.rs", "use super::z;"),
            ("b.rs", "use crate::a::in_a;"),
            ("c.rs", "use crate::b::in_b;"),
        ]);
        let circles = circles(sources.len(), &arrows);
        let names: Vec<&str> =
            circles[0].iter().map(|at| &sources[*at].name["vlane/x/src/".len()..]).collect();
        assert_eq!((circles.len(), names), (1, vec!["a.rs", "b.rs", "c.rs"]));
    }
}
