//! The Rust files of the workspace, parsed: which module of which crate each one is, and which
//! lines are what.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{Attribute, Item};

/// Kind of a line.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lines {
    pub(crate) code: usize,
    pub(crate) tests: usize,
    /// Comments and documentation, of code and of tests.
    pub(crate) comments: usize,
    pub(crate) blank: usize,
}

impl Lines {
    pub(crate) fn all(self) -> usize {
        self.code + self.tests + self.comments + self.blank
    }

    pub(crate) fn add(&mut self, other: Lines) {
        self.code += other.code;
        self.tests += other.tests;
        self.comments += other.comments;
        self.blank += other.blank;
    }
}

/// A function that is not a test.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) line: usize,
    /// From its head to its last brace, without what it quotes of a specification.
    pub(crate) lines: usize,
    pub(crate) body: TokenStream,
    /// The type or trait of its block; none for a free function.
    pub(crate) owner: Option<String>,
    /// The trait that it implements.
    pub(crate) of_trait: Option<String>,
    /// Its parameters, each with the names in its type; `self` has none.
    pub(crate) parameters: Vec<(String, Vec<String>)>,
    /// It has `#[cold]`: a call of it is out of the ordinary.
    pub(crate) is_cold: bool,
}

impl Function {
    pub(crate) fn is_method(&self) -> bool {
        self.parameters.first().is_some_and(|(name, _)| name == "self")
    }

    /// Its name, with its type's.
    pub(crate) fn full_name(&self) -> String {
        self.owner.iter().map(|owner| format!("{owner}::")).collect::<String>() + &self.name
    }
}

/// A file of Rust.
#[derive(Debug)]
pub(crate) struct Source {
    /// From the repository's root.
    pub(crate) name: String,
    /// The folder of its crate.
    pub(crate) home: String,
    /// Its module's path in its crate, empty for the crate's root; none for what is no part of a
    /// library or program (tests, benches).
    pub(crate) module: Option<Vec<String>>,
    pub(crate) text: String,
    pub(crate) lines: Lines,
    pub(crate) functions: Vec<Function>,
    /// All that is not a test.
    pub(crate) tokens: TokenStream,
    /// Modules that it declares: their names, and the files that a `#[path]` gives them.
    pub(crate) declares: Vec<(String, Option<String>)>,
    is_test: bool,
}

/// The repository's own files, with their text; binary ones are left out.
pub(crate) fn files(root: &Path) -> Result<BTreeMap<String, String>> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("git ls-files")?;
    ensure!(listed.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listed.stderr));
    let names = String::from_utf8(listed.stdout)?;
    let read = |name: &str| Some((name.to_owned(), std::fs::read_to_string(root.join(name)).ok()?));
    Ok(names.split_terminator('\0').filter_map(read).collect())
}

/// All Rust files of the workspace's crates.
pub(crate) fn sources(files: &BTreeMap<String, String>) -> Result<Vec<Source>> {
    let mut all = Vec::new();
    for (name, text) in files.iter().filter(|(name, _)| name.ends_with(".rs")) {
        let Some((home, rest)) = home_of(files, name) else { continue };
        all.push(parse(name, home, rest, text).with_context(|| name.clone())?);
    }
    // The files of test modules are tests, under any name.
    let tests: BTreeSet<String> = all.iter().flat_map(test_files).collect();
    for source in &mut all {
        if tests.contains(&source.name) && !source.is_test {
            source.is_test = true;
            source.module = None;
            source.functions.clear();
            source.lines.tests += std::mem::take(&mut source.lines.code);
        }
    }
    Ok(all)
}

/// The folder of the crate that a file is of, and its name in it.
fn home_of<'a>(files: &BTreeMap<String, String>, name: &'a str) -> Option<(&'a str, &'a str)> {
    let mut at = name.rfind('/')?;
    loop {
        if files.contains_key(&format!("{}/Cargo.toml", &name[..at])) {
            return Some((&name[..at], &name[at + 1..]));
        }
        at = name[..at].rfind('/')?;
    }
}

fn parse(name: &str, home: &str, rest: &str, text: &str) -> Result<Source> {
    let file = syn::parse_file(text)?;
    let is_test = !rest.starts_with("src/");
    let module = rest.strip_prefix("src/").map(|path| {
        let mut parts: Vec<String> =
            path.trim_end_matches(".rs").split('/').map(ToOwned::to_owned).collect();
        if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
            parts.pop();
        }
        parts
    });
    let mut source = Source {
        name: name.to_owned(),
        home: home.to_owned(),
        module,
        text: text.to_owned(),
        lines: Lines::default(),
        functions: Vec::new(),
        tokens: TokenStream::new(),
        declares: Vec::new(),
        is_test,
    };
    let mut tests = BTreeSet::new();
    for item in &file.items {
        if let Item::Mod(module) = item
            && module.content.is_none()
        {
            source.declares.push((module.ident.to_string(), path_of(&module.attrs)));
        }
        if is_test || attributes(item).iter().any(is_of_tests) {
            let span = item.span();
            tests.extend(span.start().line..=span.end().line);
        } else {
            item.to_tokens(&mut source.tokens);
            functions(item, &mut source.functions);
        }
    }
    source.lines = count(text, &file.to_token_stream(), &tests);
    for function in &mut source.functions {
        let lines = text.lines().skip(function.line - 1).take(function.lines).map(str::trim_start);
        let quoted =
            lines.filter(|line| line.starts_with("//= ") || line.starts_with("//# ")).count();
        function.lines -= quoted;
    }
    Ok(source)
}

/// The files of the modules that are compiled for tests only.
fn test_files(source: &Source) -> Vec<String> {
    let Ok(file) = syn::parse_file(&source.text) else { return Vec::new() };
    let modules = file.items.iter().filter_map(|item| match item {
        Item::Mod(module) if module.content.is_none() && module.attrs.iter().any(is_of_tests) => {
            Some(module)
        }
        _ => None,
    });
    modules
        .flat_map(|module| {
            module_files(&source.name, &module.ident.to_string(), path_of(&module.attrs))
        })
        .collect()
}

/// Where the file of a module that `name` declares can be.
pub(crate) fn module_files(name: &str, module: &str, path: Option<String>) -> Vec<String> {
    let (dir, file) = name.rsplit_once('/').unwrap_or(("", name));
    if let Some(path) = path {
        return vec![joined(dir, &path)];
    }
    let dir = match file {
        "mod.rs" | "lib.rs" | "main.rs" => dir.to_owned(),
        _ if dir.ends_with("tests") || dir.ends_with("benches") => dir.to_owned(),
        _ => format!("{dir}/{}", file.trim_end_matches(".rs")),
    };
    vec![format!("{dir}/{module}.rs"), format!("{dir}/{module}/mod.rs")]
}

/// A path from a folder, each `..` of it followed.
fn joined(dir: &str, path: &str) -> String {
    let mut parts: Vec<&str> = dir.split('/').collect();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn path_of(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find(|attribute| attribute.path().is_ident("path")).and_then(|attribute| {
        match &attribute.meta.require_name_value().ok()?.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        }
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Mod(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        _ => &[],
    }
}

fn is_of_tests(attribute: &Attribute) -> bool {
    let text = attribute.to_token_stream().to_string();
    text == "# [test]"
        || (attribute.path().is_ident("cfg") && text.contains("test") && !text.contains("not"))
}

fn functions(item: &Item, found: &mut Vec<Function>) {
    match item {
        Item::Fn(item) => found.extend(function(&item.attrs, &item.sig, &item.block, None)),
        Item::Impl(block) => {
            let of_trait = block.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
            let of_trait = of_trait.map(|last| last.ident.to_string());
            for part in &block.items {
                if let syn::ImplItem::Fn(item) = part {
                    let function =
                        function(&item.attrs, &item.sig, &item.block, type_name(&block.self_ty));
                    found.extend(
                        function
                            .map(|function| Function { of_trait: of_trait.clone(), ..function }),
                    );
                }
            }
        }
        Item::Trait(block) => {
            for part in &block.items {
                if let syn::TraitItem::Fn(item) = part
                    && let Some(default) = &item.default
                {
                    let owner = Some(block.ident.to_string());
                    found.extend(function(&item.attrs, &item.sig, default, owner));
                }
            }
        }
        Item::Mod(syn::ItemMod { content: Some((_, items)), .. }) => {
            items.iter().for_each(|item| functions(item, found));
        }
        _ => {}
    }
}

fn function(
    attributes: &[Attribute],
    signature: &syn::Signature,
    block: &syn::Block,
    owner: Option<String>,
) -> Option<Function> {
    let (first, last) = (signature.span().start().line, block.span().end().line);
    let parameters = signature.inputs.iter().map(|input| match input {
        syn::FnArg::Typed(typed) => {
            (typed.pat.to_token_stream().to_string(), names(typed.ty.to_token_stream()))
        }
        syn::FnArg::Receiver(_) => ("self".to_owned(), Vec::new()),
    });
    (!attributes.iter().any(is_of_tests)).then(|| Function {
        name: signature.ident.to_string(),
        line: first,
        lines: last + 1 - first,
        body: block.to_token_stream(),
        owner,
        of_trait: None,
        parameters: parameters.collect(),
        is_cold: attributes.iter().any(|attribute| attribute.path().is_ident("cold")),
    })
}

/// All names in some code.
pub(crate) fn names(tokens: TokenStream) -> Vec<String> {
    tokens
        .into_iter()
        .flat_map(|token| match token {
            TokenTree::Group(group) => names(group.stream()),
            TokenTree::Ident(name) => vec![name.to_string()],
            _ => Vec::new(),
        })
        .collect()
}

fn type_name(of: &syn::Type) -> Option<String> {
    match of {
        syn::Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
        syn::Type::Reference(reference) => type_name(&reference.elem),
        _ => None,
    }
}

/// A line with anything but comments on it is code, or a test's.
fn count(text: &str, tokens: &TokenStream, tests: &BTreeSet<usize>) -> Lines {
    let mut taken = BTreeSet::new();
    mark(tokens.clone(), &mut taken);
    let mut lines = Lines::default();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        let is_comment = line.starts_with("//");
        if line.is_empty() {
            lines.blank += 1;
        } else if is_comment || !taken.contains(&number) {
            lines.comments += 1;
        } else if tests.contains(&number) {
            lines.tests += 1;
        } else {
            lines.code += 1;
        }
    }
    lines
}

/// The lines that have a token, documentation included.
fn mark(tokens: TokenStream, taken: &mut BTreeSet<usize>) {
    for token in tokens {
        let span = token.span();
        if let TokenTree::Group(group) = &token {
            taken.insert(group.span_open().start().line);
            taken.insert(group.span_close().start().line);
            mark(group.stream(), taken);
        } else {
            taken.extend(span.start().line..=span.end().line);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn lines_are_classified() {
        let text = "//! Docs.\n\nuse a::b; // here\n/* long\n   one */\nfn f() {\n    let text = \
                    \"\n\n    \";\n}\n\n#[cfg(test)]\nmod tests {\n    // why\n    fn g() {}\n}\n";
        let source = parse("vlane/x/src/y.rs", "vlane/x", "src/y.rs", text).unwrap();
        // An empty line in a string is blank, too.
        assert_eq!(source.lines, Lines { code: 5, tests: 4, comments: 4, blank: 3 });
        assert_eq!(source.module, Some(vec!["y".to_owned()]));
        let names: Vec<_> =
            source.functions.iter().map(|f| (f.name.as_str(), f.line, f.lines)).collect();
        assert_eq!(names, [("f", 6, 5)]);
    }

    #[test]
    fn module_path_leads_to_another_crate() {
        let files = module_files("vlane/x/src/lib.rs", "y", Some("../../../checks/y.rs".into()));
        assert_eq!(files, ["checks/y.rs"]);
    }

    #[test]
    fn test_module_file_is_a_test() {
        let files = [
            ("vlane/x/Cargo.toml", ""),
            ("vlane/x/src/lib.rs", "#[cfg(test)]\nmod model;\nmod real;"),
            ("vlane/x/src/model.rs", "fn f() {}\nfn g() {}"),
            ("vlane/x/src/real.rs", "fn f() {}"),
        ];
        let files = files.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
        let lines = |name: &str| {
            let all = sources(&files).unwrap();
            all.iter().find(|source| source.name.ends_with(name)).unwrap().lines
        };
        assert_eq!((lines("model.rs").tests, lines("model.rs").code), (2, 0));
        assert_eq!((lines("real.rs").tests, lines("real.rs").code), (0, 1));
    }
}
