//! Every option of every command, from the definition of the command line itself. An impossible
//! value is a usage error (exit status 2) that names the option. The message is plain words, not
//! those of a parser of numbers.

#![allow(clippy::unwrap_used, reason = "tests may")]

use std::process::{Command, Stdio};

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Options that take any text: names, paths, words for other programs. (command, option)
const FREE: [(&str, &str); 8] = [
    ("boot", "append"),
    ("bench", "profile"),
    ("trace convert", "file"),
    ("trace convert", "device"),
    ("sched run", "domain"),
    ("sched run", "name"),
    ("sched-ext-job", "turns"),
    ("serve", "sched"),
];

/// Options for which 0 is a value like others.
const ZERO: [(&str, &str); 53] = [
    ("compare caches", "delays"),
    ("compare caches", "ramp"),
    ("caches-job", "ramp"),
    ("prove express native", "ramp"),
    ("prove express native", "think"),
    ("prove express guests", "ramp"),
    ("prove express launch", "ramp"),
    ("prove express fsync", "ramp"),
    ("prove express fsync", "every"),
    ("express-read", "every"),
    ("express-read", "seed"),
    ("express-read", "mark"),
    ("prove bypass", "ramp"),
    ("prove bypass", "read-iops"),
    ("prove lanes", "ramp"),
    ("prove together", "ramp"),
    ("together-job", "ramp"),
    ("together-job", "mark"),
    ("serve", "delay-flush"),
    ("serve", "poll-max"),
    ("serve", "stop-timeout"),
    ("serve", "lock-timeout"),
    ("serve", "cpus"),
    ("serve", "socket-mode"),
    ("serve", "socket-group"),
    ("serve", "control-mode"),
    ("serve", "control-group"),
    ("serve", "control-read-only-mode"),
    ("serve", "control-read-only-group"),
    ("serve", "serial"),
    ("bench", "batch"),
    ("bench", "ramp"),
    ("bench", "offset"),
    ("bench", "seed"),
    ("bench", "cpus"),
    ("trace replay", "seed"),
    ("compare peers", "ramp"),
    ("compare host", "loads"),
    ("compare topologies", "batch"),
    ("sched run", "cap"),
    ("sched run", "listen-mode"),
    ("sched run", "listen-group"),
    ("prove loans", "work"),
    ("prove sched-ext", "kills"),
    ("prove sched-ext", "strangers"),
    ("sched-ext-job", "kills"),
    ("sched-ext-job", "hogs"),
    ("sched-ext-job", "strangers"),
    ("simulate", "seed"),
    // Root.
    ("sched run", "adopt"),
    ("sched run", "storage-threads"),
    ("prove power-cut", "broken-states"),
    ("prove power-cut", "seed"),
];

/// Parsers' words that no user must have to read.
const PARSERS_WORDS: [&str; 5] =
    ["invalid digit", "invalid float", "cannot parse integer", "number too", "out of range"];

/// The program under test.
fn vlane() -> String {
    std::env::var("VLANE_PROGRAM").unwrap_or_else(|_| env!("CARGO_BIN_EXE_vlane-lab").to_owned())
}

/// An option that takes a value.
struct Valued {
    command: Vec<String>,
    option: String,
    is_file: bool,
}

/// All of them, hidden commands included.
fn all(command: &clap::Command, path: &[String], found: &mut Vec<Valued>) {
    for arg in command.get_arguments().filter(|arg| arg.get_action().takes_values()) {
        let Some(option) = arg.get_long() else { continue };
        let kind = arg.get_value_parser().type_id();
        let is_file = kind == std::any::TypeId::of::<std::path::PathBuf>();
        found.push(Valued { command: path.to_vec(), option: option.to_owned(), is_file });
    }
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        all(below, &[path, &[below.get_name().to_owned()]].concat(), found);
    }
}

/// True if the definition refuses a value for itself. The command is never run: an accepted value
/// might start something.
fn is_refused(valued: &Valued, value: &str) -> bool {
    let words = ["vlane".to_owned()].into_iter().chain(valued.command.clone());
    let words = words.chain([format!("--{}={value}", valued.option)]);
    let Err(error) = vlane_lab::command().try_get_matches_from(words) else { return false };
    let about = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(name)) => name.contains(&format!("--{}", valued.option)),
        _ => false,
    };
    about && matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue)
}

/// The program's own answer, which must be a usage error that names the option.
fn refusal(valued: &Valued, value: &str) -> String {
    let mut command = Command::new(vlane());
    command.args(&valued.command).arg(format!("--{}={value}", valued.option));
    let output = command.stdin(Stdio::null()).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{command:?}: {words}");
    assert!(
        words.contains(&format!("--{}", valued.option)),
        "{command:?} does not name it: {words}"
    );
    assert!(
        !PARSERS_WORDS.iter().any(|bad| words.contains(bad)),
        "{command:?}: a parser's words: {words}"
    );
    words
}

#[test]
fn invalid_value_names_the_option() {
    let mut found = Vec::new();
    all(&vlane_lab::command(), &[], &mut found);
    assert!(found.len() > 100, "only {} options were found", found.len());
    for (command, option) in FREE.iter().chain(&ZERO) {
        let there = found.iter().any(|v| v.command.join(" ") == *command && v.option == *option);
        assert!(there, "a list names `{command} --{option}`, which is not there any more");
    }
    let (mut tried, mut wrong) = (0, Vec::new());
    for valued in &found {
        let is = |list: &[(&str, &str)]| {
            list.iter().any(|(c, o)| *c == valued.command.join(" ") && *o == valued.option)
        };
        if valued.is_file || is(&FREE) {
            continue;
        }
        for value in ["gärbage?!", "-1", "", "99999999999999999999999", "0"] {
            // A serial number is a text; a load is chosen by a part of its name, which may be one.
            let text = matches!(
                (valued.option.as_str(), value),
                ("serial", "gärbage?!" | "-1" | "") | ("loads", "-1")
            );
            if text || (value == "0" && is(&ZERO)) {
                continue;
            }
            let name = format!("{} --{}={value}", valued.command.join(" "), valued.option);
            match is_refused(valued, value) {
                true => drop(refusal(valued, value)),
                false => wrong.push(name),
            }
            tried += 1;
        }
    }
    assert!(
        wrong.is_empty(),
        "values that are taken, or not refused for what they are:\n{}",
        wrong.join("\n")
    );
    assert!(tried > 300, "only {tried} values were tried");
}

#[test]
fn invalid_value_explains_the_valid_ones() {
    let cases: [(&str, &str, &str, &[&str]); 16] = [
        ("serve", "queues", "0", &["at least 1", "auto"]),
        ("serve", "queues", "257", &["at most 256"]),
        ("serve", "poll-max", "50 parsecs", &["not a unit of time"]),
        ("serve", "poll-max", "2s", &["at most 1000000", "us"]),
        ("bench", "bs", "0", &["multiple of 512"]),
        ("bench", "rw", "randraed", &["`randraed` is not a known pattern", "trim"]),
        ("bench", "jobs", "0", &["at least 1"]),
        ("bench", "depth", "-3", &["negative"]),
        ("bench", "depth", "32x", &["give a bare number, as 32"]),
        ("bench", "time", "0", &["is not a time"]),
        ("trace replay", "speed", "0", &["from 0.000001"]),
        ("compare topologies", "patterns", "reed", &["`reed` is not a known pattern", "randread"]),
        ("simulate", "policy", "cfs", &["always-boost"]),
        ("compare peers", "rows", "no-such", &["`no-such` is not a known row", "null-poll", "uml"]),
        (
            "compare peers",
            "also",
            "fast",
            &["`fast` is not an option of `vlane serve`", "--poll-max 0"],
        ),
        ("compare peers", "also", "--pole-us 0", &["no options of `vlane serve`", "--pole-us"]),
    ];
    for (command, option, value, parts) in cases {
        let command = command.split(' ').map(str::to_owned).collect();
        let valued = Valued { command, option: option.to_owned(), is_file: false };
        let words = refusal(&valued, value);
        assert!(parts.iter().all(|part| words.contains(part)), "--{option}={value}: {words}");
    }
    // With a unit, it is the same number.
    let taken = |value: &str| {
        let words = ["vlane", "serve", "disk", "--socket", "s", "--poll-max", value];
        *vlane_lab::command()
            .try_get_matches_from(words)
            .unwrap()
            .subcommand()
            .unwrap()
            .1
            .get_one::<u64>("poll_us")
            .unwrap()
    };
    assert_eq!((taken("50"), taken("50us"), taken("1ms")), (50, 50, 1000));
}

/// Commands with arguments that stand without an option: their words, and each argument with its
/// place.
fn positionals(
    command: &clap::Command,
    path: &[String],
    found: &mut Vec<(Vec<String>, String, usize)>,
) {
    let options: Vec<_> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
    for (at, arg) in command.get_positionals().enumerate() {
        let name = arg.get_id().as_str().replace('_', "-");
        if !options.contains(&name.as_str()) {
            found.push((path.to_vec(), name, at));
        }
    }
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        positionals(below, &[path, &[below.get_name().to_owned()]].concat(), found);
    }
}

#[test]
fn misplaced_option_is_told_its_place() {
    let mut found = Vec::new();
    positionals(&vlane_lab::command(), &[], &mut found);
    assert!(found.len() > 10, "{found:?}");
    for (path, name, at) in found {
        let mut command = Command::new(vlane());
        let output =
            command.args(&path).arg(format!("--{name}=x")).stdin(Stdio::null()).output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{command:?}: {words}");
        let place = format!("the {name} is the {} argument", ["first", "second", "third"][at]);
        assert!(words.contains(&place) && !words.contains("similar"), "{command:?}: {words}");
    }
    let replay =
        Command::new(vlane()).args(["trace", "replay", "T", "--socket", "S"]).output().unwrap();
    let words = String::from_utf8_lossy(&replay.stderr).into_owned();
    assert!(words.contains("--socket: the socket is the second argument"), "{words}");
    let limit = Command::new(vlane()).args(["limit", "--socket", "S"]).output().unwrap();
    let words = String::from_utf8_lossy(&limit.stderr).into_owned();
    assert!(words.contains("--socket: the socket is the first argument"), "{words}");
}

#[test]
fn command_line_definition_is_sound() {
    vlane_lab::command().debug_assert();
}

/// The code of a page: texts between backticks, indented lines and fenced ones, continued lines
/// joined.
fn code(page: &str) -> Vec<String> {
    let page = page.replace("\\\n", " ");
    let (mut found, mut prose) = (Vec::new(), String::new());
    let mut is_fenced = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if is_fenced || line.starts_with("    ") {
            found.push(line.trim().to_owned());
        } else {
            prose += &format!("{line}\n");
        }
    }
    // A span may cross the end of a line.
    let spans = prose.split("\n\n").flat_map(|part| part.split('`').skip(1).step_by(2));
    found.extend(spans.map(|span| span.split_whitespace().collect::<Vec<_>>().join(" ")));
    found
}

/// The options behind a program's name that none of its commands has.
fn unknown(code: &str) -> Vec<String> {
    let code = code.replace("cargo run --release -p vlane-lab --", "vlane-lab");
    let code = code.replace("cargo run --release --", "vlane");
    let mut wrong = Vec::new();
    for part in code.split(['|', ';', '&', '#', '(', ')', '"', '\'']) {
        let words: Vec<&str> = part.split_whitespace().collect();
        // Behind another program's name it is an argument.
        let before = |word: &&&str| ["sudo", "time"].contains(*word) || word.contains('=');
        let at = words.iter().take_while(before).count();
        let name = words.get(at).map_or("", |word| word.rsplit('/').next().unwrap_or_default());
        if name != "vlane" && name != "vlane-lab" {
            continue;
        }
        let root = match words[at].ends_with("vlane-lab") {
            true => vlane_lab::command(),
            false => vlane::command(),
        };
        let mut chain = vec![root];
        for word in &words[at + 1..] {
            let last = chain.last().unwrap();
            if let Some(option) = word.strip_prefix("--").filter(|option| !option.is_empty()) {
                let name = option.split(['=', '[', ',', '.', ':']).next().unwrap_or_default();
                let has = |command: &clap::Command| {
                    command.get_arguments().any(|arg| {
                        let all = arg.get_long_and_visible_aliases().unwrap_or_default();
                        all.contains(&name)
                            || arg.get_all_aliases().unwrap_or_default().contains(&name)
                    })
                };
                if !["help", "version"].contains(&name) && !chain.iter().any(has) {
                    wrong.push(format!("`{part}`: no --{name}"));
                }
            } else if let Some(below) = last.find_subcommand(word) {
                chain.push(below.clone());
            }
        }
    }
    wrong
}

/// The options in the first cells of a page's table that begins with this head.
fn options_of_table(page: &str, head: &str) -> Vec<String> {
    let table = page.split_once(head).unwrap().1;
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells = rows.map(|row| row.split('|').nth(1).unwrap_or_default().to_owned());
    let words =
        cells.flat_map(|cell| cell.split(['`', ' ', ',']).map(str::to_owned).collect::<Vec<_>>());
    words.filter_map(|word| word.strip_prefix("--").map(str::to_owned)).collect()
}

/// The options of a command that its help shows, without those of all commands.
fn options_of(command: &clap::Command, name: &str) -> Vec<String> {
    let command = command.find_subcommand(name).unwrap();
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    shown.filter_map(|arg| arg.get_long().map(str::to_owned)).collect()
}

#[test]
fn book_uses_existing_options() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let mut pages = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    let inside = |dir: &std::path::Path| {
        std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().path()).collect::<Vec<_>>()
    };
    let mut files = [inside(&root.join("docs/src")), inside(&root.join("experiments"))].concat();
    files.extend(files.clone().iter().filter(|file| file.is_dir()).flat_map(|dir| inside(dir)));
    pages.extend(files.into_iter().filter(|file| file.extension().is_some_and(|end| end == "md")));
    let (mut wrong, mut tried) = (Vec::new(), 0);
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for code in code(&text) {
            tried += usize::from(code.contains("vlane"));
            wrong.extend(unknown(&code).into_iter().map(|why| format!("{page:?}: {why}")));
        }
    }
    assert!(tried > 200, "only {tried} pieces of code name the programs");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(unknown("vlane serve a --socket b --latency 1ms | vlane volume c").len(), 1);
}

#[test]
fn page_of_serve_lists_every_option() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let page = std::fs::read_to_string(root.join("docs/src/serve.md")).unwrap();
    let sorted = |mut options: Vec<String>| {
        options.sort();
        options
    };
    let product = sorted(options_of(&vlane::command(), "serve"));
    assert_eq!(sorted(options_of_table(&page, "\n| option | default | meaning |")), product);
    let lab = options_of(&vlane_lab::command(), "serve");
    let lab = lab.into_iter().filter(|option| !product.contains(option)).collect();
    assert_eq!(
        sorted(options_of_table(&page, "\n| experiment | default | meaning |")),
        sorted(lab)
    );
}
