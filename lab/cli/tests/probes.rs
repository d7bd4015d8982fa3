//! The static probes: they are in the program as the book has them, and fire as often as requests
//! are made.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod served;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use object::{Object, ObjectSection, SectionKind};
use rustix::process::{Pid, Signal, kill_process};
use served::{Place, vlane};
use vlane_testing::skip;

/// One place of a probe.
struct Note {
    name: String,
    address: u64,
    arguments: Vec<String>,
}

/// Reads `.note.stapsdt`: owner, type 3, then three addresses and three strings.
fn notes(section: &[u8]) -> Vec<Note> {
    let word = |at: usize| u32::from_le_bytes(section[at..at + 4].try_into().unwrap()) as usize;
    let mut found = Vec::new();
    let mut at = 0;
    while at < section.len() {
        let (owner_len, len, kind) = (word(at), word(at + 4), word(at + 8));
        assert_eq!((kind, &section[at + 12..at + 12 + owner_len]), (3, &b"stapsdt\0"[..]));
        let begin = at + 12 + owner_len.next_multiple_of(4);
        let contents = &section[begin..begin + len];
        let address = u64::from_le_bytes(contents[..8].try_into().unwrap());
        let semaphore = u64::from_le_bytes(contents[16..24].try_into().unwrap());
        assert_eq!(semaphore, 0);
        let mut strings =
            contents[24..].split(|byte| *byte == 0).map(|s| String::from_utf8(s.to_vec()).unwrap());
        let (provider, name, arguments) =
            (strings.next().unwrap(), strings.next().unwrap(), strings.next().unwrap());
        // Other libraries may have probes of their own.
        if provider == "vlane" {
            let arguments = split(&arguments);
            found.push(Note { name, address, arguments });
        }
        at = begin + len.next_multiple_of(4);
    }
    found
}

/// Arguments are separated by blanks, but arm64's operands have some inside brackets.
fn split(arguments: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for word in arguments.split(' ').filter(|word| !word.is_empty()) {
        match all.last_mut() {
            Some(last) if last.contains('[') && !last.contains(']') => {
                last.push(' ');
                last.push_str(word);
            }
            _ => all.push(word.to_owned()),
        }
    }
    all
}

/// The probes that the book's table names, with their number of arguments.
fn documented() -> BTreeMap<String, usize> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/probes.md");
    let text = std::fs::read_to_string(page).unwrap();
    let table = text.split("| probe | arguments | fires |").nth(1).unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        (cells[1].trim_matches('`').to_owned(), cells[2].split(',').count())
    })
    .collect()
}

#[test]
fn documented_probes_exist_as_nops() {
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        return skip("probes: there are none on this architecture");
    }
    let bytes = std::fs::read(vlane()).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let section = file.section_by_name(".note.stapsdt").expect("notes of probes");
    let notes = notes(section.data().unwrap());
    let documented = documented();
    let code_of = |address: u64| {
        let holds = |s: &object::Section<'_, '_>| {
            s.kind() == SectionKind::Text
                && (s.address()..s.address() + s.size()).contains(&address)
        };
        let section = file.sections().find(holds)?;
        section.data_range(address, 4).unwrap()
    };
    // The note of a function that the linker has thrown away stays, with an address near zero.
    let discarded = |note: &Note| note.address < 4096;
    let live: Vec<_> = notes.iter().filter(|note| !discarded(note)).collect();
    let names: BTreeSet<&str> = live.iter().map(|note| note.name.as_str()).collect();
    assert_eq!(names, documented.keys().map(String::as_str).collect::<BTreeSet<_>>());
    for note in live {
        let code = code_of(note.address);
        let code =
            code.unwrap_or_else(|| panic!("{} at {:#x}: not in code", note.name, note.address));
        assert_eq!(
            note.arguments.len(),
            documented[&note.name],
            "{}: {:?}",
            note.name,
            note.arguments
        );
        match cfg!(target_arch = "x86_64") {
            true => assert_eq!(code[0], 0x90, "{} is not a nop", note.name),
            false => assert_eq!(code, 0xd503_201f_u32.to_le_bytes(), "{} is not a nop", note.name),
        }
        // Arguments without cost: fields behind the request's address, and at most the status in a
        // register.
        if note.name.starts_with("request__") {
            let registers = note.arguments.iter().filter(|a| !a.contains(['(', '['])).count();
            let allowed = usize::from(note.name == "request__answered");
            assert_eq!(registers, allowed, "{}: {:?}", note.name, note.arguments);
        }
    }
}

#[test]
fn probes_fire_once_per_request() {
    if !rustix::process::geteuid().is_root() {
        return skip("probes with bpftrace: needs root, because BPF does");
    }
    let Some(bpftrace) = vlane_guest::find_program("bpftrace") else {
        return skip("probes with bpftrace: not installed (Debian: apt-get install bpftrace)");
    };
    let place = Place::new(64 << 20);
    let server = place.serve(&["--queues", "2"]);
    // The load repeats that it is ready: bpftrace 0.17 may sleep through its end without an event.
    let program = format!(
        "usdt:{0}:vlane:request__taken {{ @start[arg2] = count(); @bytes = sum(arg4); @out[arg0, \
         arg1] = 1; @ioprio[arg5] = count(); }}
         usdt:{0}:vlane:request__begun {{ @submit = count(); }}
         usdt:{0}:vlane:request__answered {{ @done[arg5] = count(); @lanes[arg0] = count(); \
         delete(@out[arg0, arg1]); }}
         usdt:{0}:vlane:batch__taken {{ @batches = count(); @taken = sum(arg1); }}
         usdt:{0}:vlane:kick {{ @kick = count(); }}
         usdt:{0}:vlane:signal {{ @signal = count(); }}
         usdt:{0}:vlane:sleep {{ @sleep = count(); }}
         usdt:{0}:vlane:wake {{ @wake = count(); }}
         usdt:{0}:vlane:session__connect {{ @connect[arg1] = count(); }}
         usdt:{0}:vlane:session__disconnect {{ @disconnect = count(); }}
         interval:ms:100 {{ printf(\"ready\\n\"); }}",
        vlane()
    );
    let mut tracer = Command::new(bpftrace)
        .args(["-f", "json", "-p", &server.id().to_string(), "-e", &program])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(tracer.stdout.take().unwrap()).lines();
    if !lines.by_ref().map_while(Result::ok).any(|line| line.contains("ready")) {
        let said = std::io::read_to_string(tracer.stderr.take().unwrap()).unwrap();
        tracer.wait().unwrap();
        return skip(format!("probes with bpftrace: it cannot attach here: {}", said.trim()));
    }
    // Reads with a priority of their own, from two queues.
    let bench = Command::new(vlane())
        .args([
            "bench",
            place.socket.to_str().unwrap(),
            "--rw",
            "randread",
            "--bs",
            "8k",
            "--ios",
            "3000",
        ])
        .args(["--jobs", "2", "--depth", "8", "--ioprio", "be/3", "--json", "-"])
        .output()
        .unwrap();
    assert!(bench.status.success(), "{}", String::from_utf8_lossy(&bench.stderr));
    let report: serde_json::Value = serde_json::from_slice(&bench.stdout).unwrap();
    let made = report["ios"].as_u64().unwrap();
    // The session's end may come some time after the client's. Its line comes after its probe.
    assert!(server.wait_log("session 1 ended", served::LIMIT), "{}", server.log());
    kill_process(Pid::from_raw(i32::try_from(tracer.id()).unwrap()).unwrap(), Signal::INT).unwrap();
    let mut maps = BTreeMap::new();
    for line in lines.map_while(Result::ok) {
        let value: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        for (map, entries) in value["data"].as_object().into_iter().flatten() {
            maps.insert(map.clone(), entries.clone());
        }
    }
    tracer.wait().unwrap();
    served::stop(server);
    let number = |map: &str| maps.get(map).and_then(serde_json::Value::as_u64).unwrap_or(0);
    let keyed = |map: &str, key: &str| maps.get(map).and_then(|m| m[key].as_u64()).unwrap_or(0);
    assert!(made >= 6000, "{made}");
    assert_eq!(keyed("@start", "0"), made, "{maps:?}");
    assert_eq!(keyed("@done", "0"), made, "{maps:?}");
    assert_eq!(keyed("@ioprio", "16387"), made, "{maps:?}");
    assert_eq!(
        (number("@submit"), number("@taken"), number("@bytes")),
        (made, made, made * 8192),
        "{maps:?}"
    );
    assert_eq!(keyed("@lanes", "0") + keyed("@lanes", "1"), made, "{maps:?}");
    assert!(keyed("@lanes", "0") >= 3000 && keyed("@lanes", "1") >= 3000, "{maps:?}");
    // Every start has its done: no request is left out.
    assert!(
        maps.get("@out").is_none_or(|out| out.as_object().is_none_or(serde_json::Map::is_empty)),
        "{maps:?}"
    );
    for fires in ["@batches", "@kick", "@signal", "@sleep", "@wake"] {
        assert!((1..=made * 2).contains(&number(fires)), "{fires}: {maps:?}");
    }
    assert!(number("@sleep").abs_diff(number("@wake")) <= 2, "{maps:?}");
    let connected: u64 =
        maps["@connect"].as_object().unwrap().values().filter_map(serde_json::Value::as_u64).sum();
    assert_eq!((connected, number("@disconnect")), (1, 1), "{maps:?}");
}
