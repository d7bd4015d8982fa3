//! Every `unsafe` of the workspace: where it may be, that it has its reason beside it, and that
//! docs/src/unsafe.md names it.
//!
//! `VLANE_UPDATE=1 cargo test -p vlane-testing --test unsafe_inventory` writes the numbers of that
//! page anew; the words are for a person.

#![allow(clippy::unwrap_used, reason = "tests")]

#[allow(dead_code, reason = "another test's part of it")]
mod common;

use std::collections::BTreeMap;

use common::{files, root};

/// The inventory.
const PAGE: &str = "docs/src/unsafe.md";
/// Where `unsafe` may be, beside tests.
const ALLOWED: [&str; 9] = [
    "checks/dst/io/src/system.rs",
    "vlane/memory/src/",
    "vlane/ring/src/",
    "lab/driver/src/ring/",
    "vlane/engine/src/",
    "vlane/io/src/",
    "vlane/fg/src/sys.rs",
    "vlane/sched/src/sys.rs",
    "vlane/sched/src/ext/sys.rs",
];
/// The roots of the crates that have such files; the others forbid it.
const ROOTS: [&str; 7] = [
    "vlane/memory/src/lib.rs",
    "vlane/ring/src/lib.rs",
    "lab/driver/src/lib.rs",
    "vlane/engine/src/lib.rs",
    "vlane/io/src/lib.rs",
    "vlane/fg/src/main.rs",
    "vlane/sched/src/lib.rs",
];

/// Kind of an `unsafe`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Block,
    Function,
    Impl,
    /// A trait, a block of foreign functions, an attribute: there are none.
    Other,
}

/// A line, without what its strings say.
#[derive(Debug, Default, Clone)]
struct Line {
    code: String,
    comment: String,
}

/// Lines of a Rust file, code and comments apart.
fn lines(text: &str) -> Vec<Line> {
    let chars: Vec<char> = text.chars().collect();
    let at = |index: usize| chars.get(index).copied().unwrap_or('\n');
    let mut lines = vec![Line::default()];
    let mut index = 0;
    // Puts characters up to `end` where they belong. In a string only the lines count.
    let skip = |lines: &mut Vec<Line>, from: usize, end: usize, is_comment: bool| {
        for &c in &chars[from..end.min(chars.len())] {
            match c {
                '\n' => lines.push(Line::default()),
                c if is_comment => lines.last_mut().unwrap().comment.push(c),
                _ => {}
            }
        }
        end
    };
    while index < chars.len() {
        let c = chars[index];
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let starts_word = index == 0 || !is_word(chars[index - 1]);
        if c == '/' && at(index + 1) == '/' {
            let end = (index..chars.len()).find(|i| chars[*i] == '\n').unwrap_or(chars.len());
            index = skip(&mut lines, index, end, true);
            continue;
        }
        if c == '/' && at(index + 1) == '*' {
            let (mut depth, mut end) = (1, index + 2);
            while depth > 0 && end < chars.len() {
                match (at(end), at(end + 1)) {
                    ('/', '*') => (depth, end) = (depth + 1, end + 2),
                    ('*', '/') => (depth, end) = (depth - 1, end + 2),
                    _ => end += 1,
                }
            }
            index = skip(&mut lines, index, end, true);
            continue;
        }
        // r"", r#""#, and the same after b and c.
        let prefix = usize::from(matches!(c, 'b' | 'c') && at(index + 1) == 'r');
        if starts_word && at(index + prefix) == 'r' {
            let hashes = (index + prefix + 1..).take_while(|i| at(*i) == '#').count();
            let open = index + prefix + 1 + hashes;
            if at(open) == '"' {
                let closes = |i: &usize| chars[*i] == '"' && (1..=hashes).all(|n| at(i + n) == '#');
                let end =
                    (open + 1..chars.len()).find(closes).map_or(chars.len(), |i| i + 1 + hashes);
                lines.last_mut().unwrap().code.push_str("\"\"");
                index = skip(&mut lines, index, end, false);
                continue;
            }
        }
        // A quote ends a character, or begins a lifetime.
        let is_char = c == '\'' && (at(index + 1) == '\\' || at(index + 2) == '\'');
        if c == '"' || is_char {
            let mut end = index + 1;
            while end < chars.len() && chars[end] != c {
                end += if chars[end] == '\\' { 2 } else { 1 };
            }
            lines.last_mut().unwrap().code.push_str("\"\"");
            index = skip(&mut lines, index, end + 1, false);
            continue;
        }
        match c {
            '\n' => lines.push(Line::default()),
            c => lines.last_mut().unwrap().code.push(c),
        }
        index += 1;
    }
    lines
}

/// The words and signs of code, each with its line.
fn tokens(lines: &[Line]) -> Vec<(usize, String)> {
    let mut tokens: Vec<(usize, String)> = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let mut in_word = false;
        for c in line.code.chars() {
            let is_word = c.is_alphanumeric() || c == '_';
            match tokens.last_mut() {
                Some((_, word)) if is_word && in_word => word.push(c),
                _ if c.is_whitespace() => {}
                _ => tokens.push((at, c.to_string())),
            }
            in_word = is_word;
        }
    }
    tokens
}

/// Each `unsafe` of a file, with its line.
fn find(lines: &[Line]) -> Vec<(usize, Form)> {
    let tokens = tokens(lines);
    let word = |at: usize| tokens.get(at).map_or("", |(_, word)| word);
    let mut found = Vec::new();
    for (at, (line, token)) in tokens.iter().enumerate() {
        if token != "unsafe" {
            continue;
        }
        // The name of a calling convention is two quotes here.
        let next = if word(at + 1) == "extern" && word(at + 2) == "\"" { at + 4 } else { at + 1 };
        let form = match word(next) {
            "{" if next == at + 1 => Form::Block,
            // The type of a pointer to one.
            "fn" if word(next + 1) == "(" => continue,
            "fn" => Form::Function,
            "impl" => Form::Impl,
            _ => Form::Other,
        };
        found.push((*line, form));
    }
    found
}

/// True if the reason stands beside the `unsafe` of line `at`: before its statement, or in it.
fn has_reason(lines: &[Line], at: usize, form: Form) -> bool {
    let says = |line: &Line| {
        line.comment.contains("SAFETY:")
            || (form == Form::Function && line.comment.contains("# Safety"))
    };
    let is_attribute = |line: &Line| line.code.trim_start().starts_with("#[");
    // Where the statement begins.
    let mut first = at;
    while first > 0 {
        let before = lines[first - 1].code.trim();
        let ends = before.is_empty()
            || is_attribute(&lines[first - 1])
            || before.ends_with([';', '{', '}', ',']);
        if ends {
            break;
        }
        first -= 1;
    }
    let above = lines[..first].iter().rev().take_while(|line| {
        is_attribute(line) || (line.code.trim().is_empty() && !line.comment.is_empty())
    });
    lines[first..=at].iter().chain(above).any(says)
}

fn is_test(name: &str) -> bool {
    name.contains("/tests/") || name.ends_with("/tests.rs")
}

/// Numbers of a file: blocks, functions, impls.
type Count = [usize; 3];

/// The `unsafe` code of the workspace, and its faults.
fn take(files: &[(String, String)]) -> (BTreeMap<String, Count>, Vec<String>) {
    let (mut counts, mut faults) = (BTreeMap::new(), Vec::new());
    for (name, text) in files.iter().filter(|(name, _)| name.ends_with(".rs")) {
        let is_root = ["/src/lib.rs", "/src/main.rs"].iter().any(|root| name.ends_with(root));
        let lines = lines(text);
        let forbids = lines.iter().any(|line| line.code.trim() == "#![forbid(unsafe_code)]");
        if is_root && !forbids && !ROOTS.contains(&name.as_str()) && !name.starts_with("fuzz/") {
            faults.push(format!(
                "{name}: does not forbid unsafe_code, as all crates but {ROOTS:?} do"
            ));
        }
        for (at, form) in find(&lines) {
            let place = format!("{name}:{}", at + 1);
            if !is_test(name) && !ALLOWED.iter().any(|allowed| name.starts_with(allowed)) {
                faults.push(format!("{place}: unsafe outside of {ALLOWED:?}"));
            }
            if !has_reason(&lines, at, form) {
                faults.push(format!(
                    "{place}: no SAFETY comment (or, for a function, \"# Safety\") says why it \
                     holds"
                ));
            }
            let count: &mut Count = counts.entry(name.clone()).or_default();
            match form {
                Form::Block => count[0] += 1,
                Form::Function => count[1] += 1,
                Form::Impl => count[2] += 1,
                Form::Other => {
                    faults.push(format!("{place}: a form of unsafe that {PAGE} has no column for"))
                }
            }
        }
    }
    (counts, faults)
}

/// A row of the page: the file, what is said of it, and whether that is all.
fn row(line: &str) -> Option<(&str, Vec<&str>)> {
    let cells: Vec<&str> =
        line.strip_prefix("| `")?.strip_suffix('|')?.split('|').map(str::trim).collect();
    let name = cells.first()?.strip_suffix('`').filter(|name| name.ends_with(".rs"))?;
    Some((name, cells[1..].to_vec()))
}

/// The page with the numbers as they are: rows in the order of their files, those of tests in the
/// second table.
fn updated(page: &str, counts: &BTreeMap<String, Count>) -> String {
    let mut words: BTreeMap<&str, String> = BTreeMap::new();
    for (name, cells) in page.lines().filter_map(row) {
        words.insert(name, cells.iter().skip(3).copied().collect::<Vec<_>>().join(" | "));
    }
    let mut text = String::new();
    let mut tables = [false, true].into_iter();
    for line in page.lines().filter(|line| row(line).is_none()) {
        text += line;
        text.push('\n');
        // The line under the head of a table of files.
        if line.starts_with("|---|--:|--:|--:|") {
            let tests = tables.next();
            for (name, [blocks, functions, impls]) in
                counts.iter().filter(|(name, _)| tests == Some(is_test(name)))
            {
                let words = words.get(name.as_str()).map_or("? | ?", String::as_str);
                text += &format!("| `{name}` | {blocks} | {functions} | {impls} | {words} |\n");
            }
        }
    }
    text
}

#[test]
fn unsafe_code_has_reasons_and_is_inventoried() {
    let files = match files() {
        Ok(files) => files,
        Err(why) => return vlane_testing::skip(why),
    };
    let (counts, mut faults) = take(&files);
    assert!(counts.len() > 20, "these are not all files: {}", counts.len());
    let path = root().join(PAGE);
    let mut page = std::fs::read_to_string(&path).unwrap();
    let right = updated(&page, &counts);
    if std::env::var_os("VLANE_UPDATE").is_some() && right != page {
        std::fs::write(&path, &right).unwrap();
        page = right.clone();
    }
    for (line, right) in
        page.lines().zip(right.lines()).filter(|(line, right)| line != right).take(3)
    {
        faults.push(format!("{PAGE} says\n  {line}\nand should say\n  {right}"));
    }
    if page != right {
        faults.push(format!("{PAGE}: VLANE_UPDATE=1 writes the numbers anew"));
    }
    for (name, cells) in page.lines().filter_map(row) {
        let said = cells.iter().skip(3).filter(|cell| cell.len() > 3).count();
        if said != 2 {
            faults.push(format!("{PAGE}: {name}: what is unsafe in it, and why that holds?"));
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn each_form_of_unsafe_is_found() {
    for (text, forms) in [
        ("let x = unsafe { y() };", &[Form::Block][..]),
        ("unsafe\n{ y() }", &[Form::Block]),
        ("pub(crate) unsafe fn f() {}", &[Form::Function]),
        ("unsafe extern \"C\" fn f() {}", &[Form::Function]),
        ("unsafe impl Send for X {}", &[Form::Impl]),
        ("unsafe impl<T> Sync for X<T> {} unsafe { y() }", &[Form::Impl, Form::Block]),
        ("unsafe extern \"C\" { fn f(); }", &[Form::Other]),
        ("unsafe trait X {}", &[Form::Other]),
        ("#[unsafe(no_mangle)]", &[Form::Other]),
        ("type F = unsafe fn(u8); type G = unsafe extern \"C\" fn(u8);", &[]),
        ("#![forbid(unsafe_code)] // unsafe { }", &[]),
        ("/* unsafe { /* unsafe { */ unsafe { */", &[]),
        (
            "let x = \"unsafe { \\\" unsafe {\"; let y = r#\"unsafe \" {\"#; let z = b\"unsafe \
             {\";",
            &[],
        ),
        // A quote as a character, and a lifetime.
        ("let x = '\"'; unsafe { y() }; let z = '\"';", &[Form::Block]),
        ("fn f<'a>(x: &'a str) { unsafe { y('\\'', x) } }", &[Form::Block]),
    ] {
        let found: Vec<Form> = find(&lines(text)).into_iter().map(|(_, form)| form).collect();
        assert_eq!(found, forms, "{text}");
    }
}

#[test]
fn reason_counts_only_beside_its_code() {
    let is_said = |text: &str| {
        let lines = lines(text);
        let (at, form) = find(&lines)[0];
        has_reason(&lines, at, form)
    };
    for text in [
        "// SAFETY: so.\nunsafe { y() };",
        "// SAFETY: so,\n// and so.\nlet x =\n    unsafe { y() };",
        "// SAFETY: so.\n#[cfg(miri)]\nlet x = unsafe { y() };",
        "unsafe { y() }; // SAFETY: so.",
        "match x {\n    // SAFETY: so.\n    None => unsafe { y() },\n}",
        "/// F.\n///\n/// # Safety\n/// The caller must.\n#[inline]\npub unsafe fn f() {}",
    ] {
        assert!(is_said(text), "{text}");
    }
    for text in [
        "unsafe { y() };",
        "// SAFETY: so.\n\nunsafe { y() };",
        "// SAFETY: so.\nlet x = 1;\nunsafe { y() };",
        "let s = \"SAFETY: no\"; unsafe { y() };",
        "/// # Safety\n/// That is for functions.\nunsafe impl Send for X {}",
        "/// F.\nunsafe fn f() {}",
    ] {
        assert!(!is_said(text), "{text}");
    }
}

#[test]
fn forbidden_unsafe_is_reported() {
    let faults = |name: &str, text: &str| take(&[(name.to_owned(), text.to_owned())]).1.len();
    let good = "// SAFETY: so.\nunsafe { y() };";
    assert_eq!(faults("vlane/ring/src/x.rs", good), 0);
    assert_eq!(faults("vlane/lane/tests/x.rs", good), 0);
    assert_eq!(faults("vlane/lane/src/x.rs", good), 1, "it is not allowed there");
    assert_eq!(faults("vlane/ring/src/x.rs", "unsafe { y() };"), 1, "it has no reason");
    assert_eq!(faults("vlane/x/src/lib.rs", "//! X."), 1, "it does not forbid it");
    assert_eq!(faults("vlane/x/src/lib.rs", "#![forbid(unsafe_code)]"), 0);
}

#[test]
fn page_gets_numbers_and_keeps_words() {
    let head =
        "| file | blocks | functions | impls | what | why it holds |\n|---|--:|--:|--:|---|---|\n";
    let page = format!(
        "# X\n\n{head}| `a/src/x.rs` | 1 | 0 | 0 | a \\`b | c |\n| `a/src/gone.rs` | 1 | 0 | 0 | \
         d | e |\n\nIn tests:\n\n{head}"
    );
    let counts = BTreeMap::from([
        ("a/src/x.rs".to_owned(), [2, 1, 0]),
        ("a/src/new.rs".to_owned(), [0, 0, 1]),
        ("a/tests/y.rs".to_owned(), [1, 0, 0]),
    ]);
    let right = format!(
        "# X\n\n{head}| `a/src/new.rs` | 0 | 0 | 1 | ? | ? |\n| `a/src/x.rs` | 2 | 1 | 0 | a \\`b \
         | c |\n\nIn tests:\n\n{head}| `a/tests/y.rs` | 1 | 0 | 0 | ? | ? |\n"
    );
    assert_eq!(updated(&page, &counts), right);
}
