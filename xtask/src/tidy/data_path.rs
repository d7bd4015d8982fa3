//! Things that a request must not meet on its way: locks, allocation, logging, clocks.
//!
//! The way is a list of functions, those that an ordinary read or write of a guest goes through.
//! Rare cases in functions of their own (`#[cold]`) are not on it.

use proc_macro2::{TokenStream, TokenTree};

use super::source::Source;

/// Files, and their functions on the way.
const WAY: &[(&str, &[&str])] = &[
    (
        "crates/ring/src/queue.rs",
        &["pop", "try_pop", "has_available", "request", "complete", "release", "publish"],
    ),
    ("crates/ring/src/split.rs", &["available", "take", "put_used", "publish"]),
    ("crates/ring/src/packed.rs", &["is_available", "take", "put_used", "publish"]),
    ("crates/ring/src/chain.rs", &["read_words", "push", "push_pieces"]),
    ("crates/ring/src/blk.rs", &["fits", "give_back", "set_status", "parse", "gather_header"]),
    (
        "crates/io/src/io_queue.rs",
        &["begin_whole", "whole", "begin", "push", "lend", "finish", "complete", "pop", "publish", "entry"],
    ),
    (
        "crates/io/src/uring.rs",
        &["of", "read", "push", "push_entry", "submit", "enter", "has_work", "next_event"],
    ),
    ("crates/engine/src/null/mod.rs", &["submit", "go_on"]),
    ("crates/engine/src/file/channel.rs", &["submit", "completed", "begin"]),
    (
        "crates/lane/src/lane.rs",
        &[
            "serve",
            "serve_turn",
            "next",
            "take",
            "begin",
            "proceed",
            "finished",
            "end",
            "complete",
            "has_work",
            "add",
            "remove",
        ],
    ),
    ("crates/lane/src/thread.rs", &["handle"]),
    ("crates/lane/src/observers.rs", &["turn_begins", "taken", "submitted", "answered", "end_batch"]),
    ("crates/hint/src/lane.rs", &["completed", "submitted"]),
];

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

/// Faults on the way: file, line of the function, and the fault.
pub(crate) fn faults(sources: &[Source]) -> Vec<(String, usize, String)> {
    let mut found = Vec::new();
    for (file, functions) in WAY {
        let Some(source) = sources.iter().find(|source| source.name == *file) else {
            found.push((
                (*file).to_owned(),
                1,
                "the list of the data path names it, and it is not there".to_owned(),
            ));
            continue;
        };
        for wanted in *functions {
            let mut any = false;
            for function in source.functions.iter().filter(|function| function.name == *wanted) {
                any = true;
                for what in banned(function.body.clone()) {
                    found.push((
                        source.name.clone(),
                        function.line,
                        format!("{what} in `{wanted}`, on the data path"),
                    ));
                }
            }
            if !any {
                found.push((
                    source.name.clone(),
                    1,
                    format!("the list of the data path names `{wanted}`, and it is not there"),
                ));
            }
        }
    }
    found
}

fn banned(body: TokenStream) -> Vec<String> {
    let mut found = Vec::new();
    for token in body {
        match token {
            TokenTree::Group(group) => found.extend(banned(group.stream())),
            TokenTree::Ident(ident) => {
                let name = ident.to_string();
                let entry = BANNED.iter().find(|(banned, _)| *banned == name);
                found.extend(entry.map(|(name, what)| format!("{what} (`{name}`)")));
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

    #[test]
    fn each_banned_name_is_found() {
        for (text, count) in [
            ("let a = self.board.lock().unwrap();", 1),
            ("if x { y(|| vec![1].iter().collect()) }", 2),
            ("let clock = self.clock; locked(boxed)", 0),
        ] {
            assert_eq!(banned(text.parse().unwrap()).len(), count, "{text}");
        }
    }
}
