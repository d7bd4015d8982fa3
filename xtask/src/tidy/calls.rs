//! The functions that a function calls, directly and through others.
//!
//! No compiler is asked, so the type of a receiver is a guess: from `self`, from the types of
//! fields and parameters, or from a local name that is a field's or a type's name. Where the
//! guess fails, all methods of that name count whose type was met already, and a method whose name
//! is the only one. So the graph has calls too many, and few too few.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;
use syn::Item;

use super::source::{self, Function, Source};

/// A call in a function's body.
#[derive(Debug, PartialEq, Eq)]
enum Call {
    /// `name()`.
    Free(String),
    /// `Owner::name()`, or the path alone.
    Path(String, String),
    /// `receiver.name()`: the names of the receiver's path, none if it is something else.
    Method(Vec<String>, String),
}

/// The functions of some crates.
#[derive(Debug)]
pub(crate) struct Graph<'a> {
    functions: Vec<(&'a Source, &'a Function)>,
    /// The calls of each function.
    calls: Vec<Vec<Call>>,
    by_name: BTreeMap<&'a str, Vec<usize>>,
    /// The names in the types of each field, by the names of the struct and of the field.
    fields: BTreeMap<(String, String), Vec<String>>,
    /// The names in the types of an enum's data.
    variants: BTreeMap<String, Vec<String>>,
    /// Types and traits that have functions.
    owners: BTreeSet<&'a str>,
    /// All names in the `use` items of a file.
    imports: BTreeMap<&'a String, BTreeSet<String>>,
}

impl<'a> Graph<'a> {
    pub(crate) fn new(sources: impl Iterator<Item = &'a Source>) -> Self {
        let mut graph = Graph {
            functions: Vec::new(),
            calls: Vec::new(),
            by_name: BTreeMap::new(),
            fields: BTreeMap::new(),
            owners: BTreeSet::new(),
            imports: BTreeMap::new(),
            variants: BTreeMap::new(),
        };
        for source in sources.filter(|source| source.module.is_some()) {
            for function in &source.functions {
                graph.by_name.entry(&function.name).or_default().push(graph.functions.len());
                graph.functions.push((source, function));
                graph.calls.push(calls(function.body.clone()));
                graph.owners.extend(function.owner.as_deref());
                graph.owners.extend(function.of_trait.as_deref());
            }
            graph.add_items(source);
        }
        graph
    }

    fn add_items(&mut self, source: &'a Source) {
        let imports = self.imports.entry(&source.name).or_default();
        let Ok(file) = syn::parse2::<syn::File>(source.tokens.clone()) else { return };
        for item in file.items {
            match item {
                Item::Use(item) => imports.extend(source::names(item.to_token_stream())),
                Item::Struct(item) => {
                    for field in &item.fields {
                        let Some(name) = &field.ident else { continue };
                        let types = source::names(field.ty.to_token_stream());
                        self.fields
                            .entry((item.ident.to_string(), name.to_string()))
                            .or_default()
                            .extend(types);
                    }
                }
                // The variants' data is met under the enum's name in a `match`.
                Item::Enum(item) => {
                    let data = item.variants.iter().map(|variant| variant.fields.to_token_stream());
                    self.variants
                        .entry(item.ident.to_string())
                        .or_default()
                        .extend(data.flat_map(source::names));
                }
                _ => {}
            }
        }
    }

    /// All functions that are reached from the functions that `is_root` names. Functions that
    /// `ends` names are among them, and their calls are not followed.
    pub(crate) fn reached(
        &self,
        is_root: impl Fn(&Function) -> bool,
        ends: impl Fn(&Source, &Function) -> bool,
    ) -> Vec<(&'a Source, &'a Function)> {
        let roots = (0..self.functions.len()).filter(|at| is_root(self.functions[*at].1));
        let mut seen: BTreeSet<usize> = roots.collect();
        // A type that is met later can be the receiver of an earlier call.
        loop {
            let before = seen.len();
            let followed: Vec<usize> = seen
                .iter()
                .copied()
                .filter(|at| !ends(self.functions[*at].0, self.functions[*at].1))
                .collect();
            let met: BTreeSet<&str> =
                followed.iter().filter_map(|at| self.functions[*at].1.owner.as_deref()).collect();
            for at in followed {
                for call in &self.calls[at] {
                    seen.extend(self.called(at, call, &met));
                }
            }
            if seen.len() == before {
                return seen.into_iter().map(|at| self.functions[at]).collect();
            }
        }
    }

    /// The functions that a call may mean: of the caller's file, or its crate, or all.
    fn called(&self, at: usize, call: &Call, met: &BTreeSet<&str>) -> Vec<usize> {
        let source = self.functions[at].0;
        let all = self.candidates(at, call, met);
        for is_near in
            [&(|to: &Source| to.name == source.name) as &dyn Fn(&Source) -> bool, &|to: &Source| {
                to.home == source.home
            }]
        {
            let near: Vec<usize> =
                all.iter().copied().filter(|at| is_near(self.functions[*at].0)).collect();
            if !near.is_empty() {
                return near;
            }
        }
        all
    }

    fn candidates(&self, at: usize, call: &Call, met: &BTreeSet<&str>) -> Vec<usize> {
        let (source, from) = self.functions[at];
        let named = |name: &str, is_wanted: &dyn Fn(&Source, &Function) -> bool| -> Vec<usize> {
            let all = self.by_name.get(name).into_iter().flatten().copied();
            all.filter(|at| is_wanted(self.functions[*at].0, self.functions[*at].1)).collect()
        };
        let is_of = |function: &Function, owner: &str| {
            function.owner.as_deref() == Some(owner) || function.of_trait.as_deref() == Some(owner)
        };
        match call {
            Call::Free(name) => named(name, &|to, function| {
                function.owner.is_none()
                    && (to.name == source.name || self.imports[&source.name].contains(name))
            }),
            Call::Path(owner, name) if owner == "Self" => {
                named(name, &|_, function| function.owner == from.owner)
            }
            Call::Path(owner, name) if owner.starts_with(char::is_uppercase) => {
                named(name, &|_, function| is_of(function, owner))
            }
            Call::Path(module, name) => named(name, &|source, function| {
                function.owner.is_none()
                    && source
                        .module
                        .as_ref()
                        .and_then(|path| path.last())
                        .is_some_and(|last| last == module)
            }),
            Call::Method(receiver, name) => match self.types(from, receiver) {
                Some(types) => {
                    named(name, &|_, function| types.iter().any(|owner| is_of(function, owner)))
                }
                None => {
                    let all = named(name, &|_, function| function.is_method());
                    let is_met = |at: &usize| {
                        self.functions[*at]
                            .1
                            .owner
                            .as_deref()
                            .is_some_and(|owner| met.contains(owner))
                    };
                    if all.len() == 1 { all } else { all.into_iter().filter(is_met).collect() }
                }
            },
        }
    }

    /// The types that a receiver may have; none if nothing is known.
    fn types(&self, from: &Function, receiver: &[String]) -> Option<Vec<String>> {
        let (first, fields) = receiver.split_first()?;
        let own = from.owner.clone().unwrap_or_default();
        let parameter = from.parameters.iter().find(|(name, _)| name == first);
        let mut types = if first == "self" {
            vec![own]
        } else if let Some((_, types)) = parameter {
            types.clone()
        } else if let Some(types) = self.fields.get(&(own, first.clone())) {
            types.clone()
        } else {
            let camel: String = first.split('_').map(capital).collect();
            self.owners.contains(camel.as_str()).then(|| vec![camel])?
        };
        for field in fields {
            let of = |owner: &String| self.fields.get(&(owner.clone(), field.clone()));
            types = types.iter().filter_map(of).flatten().cloned().collect();
        }
        let data: Vec<String> =
            types.iter().filter_map(|of| self.variants.get(of)).flatten().cloned().collect();
        types.extend(data);
        Some(types)
    }
}

fn capital(word: &str) -> String {
    let (first, rest) = word.split_at(word.len().min(1));
    first.to_uppercase() + rest
}

/// The calls in a function's body, in closures too; a function's name without a call counts.
fn calls(body: TokenStream) -> Vec<Call> {
    let tokens: Vec<TokenTree> = body.into_iter().collect();
    let is = |at: usize, wanted: &str| {
        let mut tokens = tokens.get(at..).unwrap_or_default().iter();
        wanted
            .chars()
            .all(|wanted| matches!(tokens.next(), Some(TokenTree::Punct(punct)) if punct.as_char() == wanted))
    };
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let name = match token {
            TokenTree::Group(group) => {
                found.extend(calls(group.stream()));
                continue;
            }
            TokenTree::Ident(name) => name.to_string(),
            _ => continue,
        };
        let is_called = is(at + 1, "::<")
            || matches!(tokens.get(at + 1), Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis);
        if at > 1 && is(at - 2, "::") {
            if let Some(TokenTree::Ident(owner)) = at.checked_sub(3).and_then(|at| tokens.get(at))
                && !is(at + 1, "::")
            {
                found.push(Call::Path(owner.to_string(), name));
            }
        } else if is_called && at > 0 && is(at - 1, ".") {
            found.push(Call::Method(receiver(&tokens[..at - 1]).unwrap_or_default(), name));
        } else if is_called {
            found.push(Call::Free(name));
        }
    }
    found
}

/// The names of `a.b[i].c` at the end of some tokens.
fn receiver(tokens: &[TokenTree]) -> Option<Vec<String>> {
    let is_dot = |token: Option<&TokenTree>| matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == '.');
    let mut path = Vec::new();
    let mut end = tokens.len();
    loop {
        match tokens.get(end.checked_sub(1)?)? {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => end -= 1,
            TokenTree::Ident(name) => {
                path.insert(0, name.to_string());
                if !is_dot(end.checked_sub(2).and_then(|at| tokens.get(at))) {
                    return Some(path);
                }
                end -= 2;
            }
            _ => return None,
        }
    }
}
