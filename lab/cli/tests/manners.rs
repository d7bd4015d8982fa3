//! How commands behave towards their callers: a shell, a service manager, a person who presses
//! Ctrl-C or gives the wrong file.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod served;

use std::io::{Read, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use served::{LIMIT, Place, going_on, stop};
use vlane_capture::Trace;
use vlane_driver::{Limit, SessionOptions, Workload};
use vlane_testbed::Control;
use vlane_trace::{Header, Priority, Record, RequestKind, Status};

const MIB: u64 = 1 << 20;

fn vlane() -> Command {
    let program = std::env::var("VLANE_PROGRAM").unwrap_or_else(|_| served::vlane().to_owned());
    let mut command = Command::new(program);
    command
        .env_remove("VLANE_LOG")
        .env_remove("VLANE_LOG_FORMAT")
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null());
    command
}

fn run(words: &[&str]) -> Output {
    vlane().args(words).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(), signal).unwrap();
}

/// Waits until something holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for the end of a program, and reads what it prints meanwhile: a pipe holds only a part of
/// a long report.
fn ended(child: Child) -> Output {
    let pid = Pid::from_child(&child);
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    receiver.recv_timeout(LIMIT).map(Result::unwrap).unwrap_or_else(|_| {
        let _ = kill_process(pid, Signal::KILL);
        panic!("the end: not within {LIMIT:?}")
    })
}

fn header() -> Header {
    Header { sectors: 2048, block_size: 512, lanes: 1, ..Header::default() }
}

/// A trace of some requests.
fn trace(path: &Path, requests: u32) {
    let record = |n: u32| Record {
        kind: RequestKind::Read,
        status: Status::Ok,
        lane: 0,
        priority: Priority(0),
        submit: u64::from(n) * 1000,
        service: 500,
        sector: u64::from(n) * 8,
        sectors: 8,
        seq: 0,
        after: 0,
        more: false,
        unmap: false,
        hash: 0,
    };
    Trace::from_records(header(), (0..requests).map(record).collect())
        .save(&vlane_testbed::Output::new(path))
        .unwrap();
}

#[test]
fn unknown_log_level_lists_valid_levels() {
    for (name, value, parts) in [
        ("VLANE_LOG", "nonsense", ["VLANE_LOG=nonsense", "info,vlane_server=debug"]),
        ("VLANE_LOG", "vlane_server=loud", ["vlane_server=loud", "debug"]),
        ("VLANE_LOG_FORMAT", "xml", ["VLANE_LOG_FORMAT=xml", "json"]),
    ] {
        let output =
            vlane().args(["compare", "peers", "--list"]).env(name, value).output().unwrap();
        assert_eq!(code(&output), 2, "{}", said(&output));
        assert!(parts.iter().all(|part| said(&output).contains(part)), "{}", said(&output));
        assert!(output.stdout.is_empty(), "it went on");
    }
    for value in ["", "debug", "warn,vlane_lane=trace"] {
        let output =
            vlane().args(["compare", "peers", "--list"]).env("VLANE_LOG", value).output().unwrap();
        assert_eq!(code(&output), 0, "{}", said(&output));
    }
}

#[test]
fn log_level_and_format_can_be_chosen() {
    let lines = |words: &[&str], variables: &[(&str, &str)]| -> Vec<String> {
        let place = Place::new(MIB);
        let mut command = vlane();
        command.args(words).arg("serve").arg(&place.image).arg("--socket").arg(&place.socket);
        command.envs(variables.iter().copied()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        until("it listens", || vlane_testing::listens(&place.socket));
        let session = place.connect(&SessionOptions::default());
        // A read beyond the end of the image is worth a line for who looks closely.
        std::fs::write(&place.image, "").unwrap();
        let load = Workload { limit: Limit::Count(1), ..Workload::default() };
        vlane_driver::run(session, &load, going_on()).unwrap();
        signal(&child, Signal::TERM);
        let output = ended(child);
        assert_eq!(code(&output), 0, "{}", said(&output));
        said(&output).lines().map(str::to_owned).collect()
    };
    // By levels, not by numbers of lines: how many there are depends on the machine.
    let has = |lines: &[String], level: &str| lines.iter().any(|line| line.contains(level));
    let usual = lines(&[], &[]);
    assert!(has(&usual, "INFO") && !has(&usual, "DEBUG"), "{usual:?}");
    let quiet = lines(&["-q"], &[("VLANE_LOG", "trace")]);
    assert!(!["INFO", "DEBUG", "TRACE"].iter().any(|level| has(&quiet, level)), "{quiet:?}");
    let more = lines(&["-v"], &[]);
    assert!(has(&more, "INFO") && has(&more, "DEBUG"), "{more:?}");
    for json in [lines(&["--log-format", "json"], &[]), lines(&[], &[("VLANE_LOG_FORMAT", "json")])]
    {
        assert!(!json.is_empty());
        for line in json {
            let object: serde_json::Value =
                serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line}"));
            let has = |name: &str| object[name].as_str().is_some_and(|text| !text.is_empty());
            assert!(has("timestamp") && has("level") && has("message"), "{line}");
        }
    }
    // The last line of a command that fails is one of them.
    let output = run(&["--log-format", "json", "trace", "analyze", "/nowhere/at/all.trc"]);
    let object: serde_json::Value = serde_json::from_str(&said(&output)).unwrap();
    assert_eq!((code(&output), object["level"].as_str()), (1, Some("ERROR")));
}

/// The pipe that `head -1` leaves behind: one without a reader.
fn gone() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn no_command_panics_on_closed_output() {
    let place = Place::new(MIB);
    let (trc, report, pages) = (place.path("a.trc"), place.path("a.json"), place.path("pages"));
    trace(&trc, 100);
    std::fs::create_dir(&pages).unwrap();
    let name = |path: &Path| path.display().to_string();
    let (trc, pages, image) = (name(&trc), name(&pages), name(&place.image));
    let json = run(&["trace", "analyze", &trc, "--json", "-"]);
    std::fs::write(&report, &json.stdout).unwrap();
    let (report, iolog) = (name(&report), name(&place.path("a.iolog")));
    let commands: [&[&str]; 15] = [
        &["--help"],
        &["--version"],
        &["serve", "--help"],
        &["compare", "peers", "--list"],
        &["compare", "host", "--list"],
        &["bench", "--list-profiles"],
        &["bench", "--show-profile", "quick"],
        &["completions", "zsh"],
        &["man", &pages],
        &["boot", "--dry-run", &image],
        &["trace", "analyze", &trc],
        &["inspect", &image],
        &["report", &report],
        &["trace", "convert", &trc, &iolog, "--to", "iolog"],
        &["simulate", "classes", "--policy", "loan", "--time", "1"],
    ];
    for words in commands {
        let output = vlane().args(words).stdout(gone()).stderr(Stdio::piped()).output().unwrap();
        let _ = std::fs::remove_file(&iolog);
        assert!(!said(&output).contains("panicked"), "{words:?}: {}", said(&output));
        assert_eq!(code(&output), 0, "{words:?}: {}", said(&output));
        let status = vlane().args(words).stdout(gone()).stderr(gone()).status().unwrap();
        let _ = std::fs::remove_file(&iolog);
        assert_eq!(status.code(), Some(0), "{words:?}");
    }
    // That is not to hide a disk that is full.
    if let Ok(full) = std::fs::File::options().write(true).open("/dev/full") {
        let output = vlane()
            .args(["compare", "peers", "--list"])
            .stdout(full)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(code(&output), 1);
        assert!(said(&output).contains("standard output"), "{}", said(&output));
    }
}

#[test]
fn server_survives_closed_output() {
    let place = Place::new(MIB);
    let mut command = vlane();
    command.arg("serve").arg(&place.image).arg("--socket").arg(&place.socket);
    let mut child = command.stdout(gone()).stderr(gone()).spawn().unwrap();
    until("it listens", || vlane_testing::listens(&place.socket));
    for _ in 0..2 {
        let session = place.connect(&SessionOptions::default());
        let load = Workload { limit: Limit::Count(100), ..Workload::default() };
        assert_eq!(vlane_driver::run(session, &load, going_on()).unwrap().ios, 100);
    }
    assert!(child.try_wait().unwrap().is_none(), "it has ended");
    signal(&child, Signal::TERM);
    assert_eq!(code(&ended(child)), 0);
}

/// A null device that is served with a control socket.
fn null(place: &Place, name: &str) -> (vlane_guest::Backend, String, Control) {
    let (socket, control) =
        (place.path(&format!("{name}.sock")), place.path(&format!("{name}.ctl")));
    let mut command = Command::new(served::vlane());
    command.args(["serve", "--null", "1G", "--queues", "1", "--socket"]).arg(&socket);
    command.arg("--control").arg(&control);
    let backend = served::start(&command, &socket).unwrap();
    (backend, socket.display().to_string(), Control::new(control))
}

#[test]
fn interrupted_bench_reports_partial_result() {
    let place = Place::new(MIB);
    let (backend, socket, control) = null(&place, "a");
    let busy = || control.counters().unwrap().sum["reads"];
    for (end, json) in [(Signal::INT, false), (Signal::TERM, true)] {
        let before = busy();
        let mut command = vlane();
        command.args(["bench", &socket, "--ramp", "0", "--time", "10m"]).args(if json {
            &["--json", "-"][..]
        } else {
            &[]
        });
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        until("requests", || busy() > before + 10_000);
        signal(&child, end);
        let output = ended(child);
        assert_eq!(code(&output), 3, "{}", said(&output));
        assert!(said(&output).contains("interrupted after"), "{}", said(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        if json {
            let result: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(result["partial"], true);
            assert!(
                result["ios"].as_u64().unwrap() > 0 && result["seconds"].as_f64().unwrap() < 60.0,
                "{text}"
            );
        } else {
            assert!(text.contains("INTERRUPTED") && text.contains("IOPS"), "{text}");
        }
    }
    // One that is left alone is marked in no way.
    let output = run(&["bench", &socket, "--ramp", "0", "--time", "100ms", "--json", "-"]);
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert!(!String::from_utf8_lossy(&output.stdout).contains("partial"));
    // An idle one listens, too.
    let (sessions, before) = (control.volume().unwrap().sessions, busy());
    let mut command = vlane();
    command.args(["bench", &socket, "--rw", "idle", "--time", "10m"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Its first requests come after it has begun to listen for signals. They are 1000; those that
    // the load before had in flight may be counted late.
    until("a session", || control.volume().unwrap().sessions > sessions);
    until("its first requests", || busy() > before + 100);
    signal(&child, Signal::INT);
    let output = ended(child);
    assert!([1, 3].contains(&code(&output)), "{}", said(&output));
    assert!(said(&output).contains("interrupted"), "{}", said(&output));
    stop(backend);
}

#[test]
fn interrupted_comparison_keeps_measurements() {
    let place = Place::new(MIB);
    let (a, a_socket, _) = null(&place, "a");
    let (b, b_socket, b_control) = null(&place, "b");
    let saved = place.path("saved.json");
    let mut command = vlane();
    command.args([
        "bench",
        &a_socket,
        "--against",
        &b_socket,
        "--repeat",
        "100",
        "--ramp",
        "0",
        "--time",
        "250ms",
    ]);
    command.args(["--json", "-", "--save"]).arg(&saved);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A first look, then A B B A: with the third session of B, one measurement of each has been
    // made.
    until("measurements", || b_control.volume().unwrap().sessions >= 3);
    signal(&child, Signal::INT);
    let output = ended(child);
    assert_eq!(code(&output), 3, "{}", said(&output));
    assert!(said(&output).contains("of 200 measurements"), "{}", said(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["summary"][0].as_str().unwrap().contains("INTERRUPTED"), "{report}");
    let file: serde_json::Value = serde_json::from_slice(&std::fs::read(&saved).unwrap()).unwrap();
    assert_eq!(file["partial"], true);
    assert!(
        file["machine"]["load"]["before"].is_number(),
        "what else the machine did: {}",
        file["machine"]
    );
    for target in file["loads"][0]["targets"].as_array().unwrap() {
        assert!(!target["runs"].as_array().unwrap().is_empty(), "measurements are lost");
    }
    stop(a);
    stop(b);
}

#[test]
fn damaged_trace_gives_partial_result() {
    let place = Place::new(MIB);
    let good = place.path("good.trc");
    trace(&good, 200);
    let bytes = std::fs::read(&good).unwrap();
    let (cut, torn, broken) =
        (place.path("cut.trc"), place.path("torn.trc"), place.path("broken.trc"));
    // Without its last entry, in the middle of an entry, and with an entry that cannot be.
    let (begin, entry) = (header().encode().len(), header().entry_len());
    std::fs::write(&cut, &bytes[..bytes.len() - entry]).unwrap();
    std::fs::write(&torn, &bytes[..bytes.len() / 2 + 3]).unwrap();
    let mut changed = bytes.clone();
    let middle = begin + entry * 100;
    changed[middle..middle + entry].fill(0xff);
    std::fs::write(&broken, changed).unwrap();
    let (backend, socket, _) = null(&place, "n");
    let out = place.path("out.iolog").display().to_string();
    for path in [&good, &cut, &torn, &broken] {
        let name = path.display().to_string();
        let wanted = if path == &good { 0 } else { 3 };
        let commands: [&[&str]; 3] = [
            &["trace", "analyze", &name],
            &["trace", "replay", &name, &socket, "--as-fast-as-possible"],
            &["trace", "convert", &name, &out, "--to", "iolog"],
        ];
        for words in commands {
            let output = run(words);
            let _ = std::fs::remove_file(&out);
            assert_eq!(code(&output), wanted, "{words:?}: {}", said(&output));
            assert!(!output.stdout.is_empty(), "{words:?}: no result");
            if wanted == 3 {
                assert!(
                    said(&output).contains(&name) && said(&output).contains("the trace "),
                    "{}",
                    said(&output)
                );
            }
        }
    }
    stop(backend);
}

#[test]
fn wrong_socket_or_file_is_identified() {
    let place = Place::new(MIB);
    let (backend, socket, control) = null(&place, "n");
    let control = control.path().display().to_string();
    let image = place.image.display().to_string();
    let (trc, out, iolog) = (place.path("a.trc"), place.path("o.trc"), place.path("a.iolog"));
    trace(&trc, 10);
    std::fs::write(&iolog, "fio version 3 iolog\n").unwrap();
    let name = |path: &Path| path.display().to_string();
    let (trc, out, iolog) = (name(&trc), name(&out), name(&iolog));
    let cases: [(&[&str], &[&str]); 10] = [
        (&["record", &socket, "-o", &out], &["the vhost-user socket of a volume", &control]),
        (&["record", &image, "-o", &out], &["an image", "not a control socket"]),
        (&["bench", &control], &["the control socket of a volume", &socket]),
        (&["bench", &control, "--repeat", "2"], &["the control socket of a volume", &socket]),
        (&["bench", &image], &["an image", "serve it first"]),
        (&["trace", "replay", &trc, &control], &["the control socket of a volume", &socket]),
        (&["trace", "analyze", &iolog], &["an iolog", "vlane-lab trace convert"]),
        (&["trace", "analyze", &image], &["an image", "not a trace"]),
        (&["report", &image], &["an image", "not a report"]),
        (&["bench", &socket, "--compare", &trc], &["a trace", "not a saved run"]),
    ];
    for (words, parts) in cases {
        let begin = Instant::now();
        let output = run(words);
        assert_eq!(code(&output), 1, "{words:?}: {}", said(&output));
        assert!(
            parts.iter().all(|part| said(&output).contains(part)),
            "{words:?}: {}",
            said(&output)
        );
        assert!(begin.elapsed() < LIMIT, "{words:?} took {:?}", begin.elapsed());
    }
    assert!(!Path::new(&out).exists(), "something was written");
    stop(backend);
}

#[test]
fn service_manager_is_notified_of_state_changes() {
    let place = Place::new(MIB);
    let path = place.path("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(LIMIT)).unwrap();
    let hears = || {
        let mut words = [0; 4096];
        let length = manager.recv(&mut words).unwrap();
        String::from_utf8(words[..length].to_vec()).unwrap()
    };
    let mut command = vlane();
    command
        .arg("serve")
        .arg(&place.image)
        .arg("--socket")
        .arg(&place.socket)
        .env("NOTIFY_SOCKET", &path);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let ready = hears();
    assert!(ready.lines().any(|line| line == "READY=1"), "{ready}");
    assert!(ready.contains("STATUS=serving"), "{ready}");
    // The server is ready when it says so: no client has to retry.
    drop(place.connect(&SessionOptions::default()));
    std::fs::File::options().write(true).open(&place.image).unwrap().set_len(2 * MIB).unwrap();
    signal(&child, Signal::HUP);
    let reloading = hears();
    assert!(
        reloading.contains("RELOADING=1") && reloading.contains("MONOTONIC_USEC="),
        "{reloading}"
    );
    assert!(hears().contains("READY=1"));
    signal(&child, Signal::TERM);
    assert!(hears().contains("STOPPING=1"));
    assert_eq!(code(&ended(child)), 0);
}

#[test]
fn completions_and_manual_cover_every_option() {
    let mut options = Vec::new();
    fn collect(
        command: &clap::Command,
        path: &[&str],
        pages: &mut Vec<String>,
        options: &mut Vec<(usize, String)>,
    ) {
        pages.push(format!("{}.1", path.join("-")));
        let depth = path.len() - 1;
        let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
        options.extend(
            shown.filter_map(|arg| arg.get_long()).map(|option| (depth, option.to_owned())),
        );
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            collect(below, &[path, &[below.get_name()]].concat(), pages, options);
        }
    }
    let mut pages = Vec::new();
    collect(&vlane_cli(), &["vlane-lab"], &mut pages, &mut options);
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        assert_eq!(code(&output), 0, "{}", said(&output));
        // clap's completions for fish end below the second word.
        let least = if shell == "fish" { 2 } else { usize::MAX };
        let known = options.iter().filter(|(depth, _)| *depth <= least);
        let missing: Vec<_> = known.filter(|(_, option)| !text.contains(option)).collect();
        assert!(missing.is_empty(), "{shell} does not know {missing:?}");
        // The shell itself understands it, where it is installed.
        if let Some(program) = vlane_guest::find_program(shell) {
            let mut child = Command::new(program)
                .arg("-n")
                .stdin(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
            let mut words = String::new();
            child.stderr.take().unwrap().read_to_string(&mut words).unwrap();
            assert!(child.wait().unwrap().success(), "{shell}: {words}");
        }
    }
    assert_eq!(code(&run(&["completions", "tcsh"])), 2);

    let place = Place::new(MIB);
    let dir = place.path("man1");
    std::fs::create_dir(&dir).unwrap();
    let name = dir.display().to_string();
    for _ in 0..2 {
        let output = run(&["man", &name]);
        assert_eq!(code(&output), 0, "{}", said(&output));
    }
    let mut written: Vec<_> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    written.sort();
    pages.sort();
    assert_eq!(written, pages);
    let text = std::fs::read_to_string(dir.join("vlane-lab-serve.1")).unwrap();
    assert!(text.contains(".TH vlane") && text.contains("\\-\\-poll\\-max"), "{text}");
    // A foreign file is not replaced, and then no file is written.
    std::fs::write(dir.join("vlane-lab-bench.1"), "mine").unwrap();
    std::fs::remove_file(dir.join("vlane-lab.1")).unwrap();
    let output = run(&["man", &name]);
    assert_eq!(code(&output), 1);
    assert!(
        said(&output).contains("vlane-lab-bench.1") && !dir.join("vlane-lab.1").exists(),
        "{}",
        said(&output)
    );
    assert_eq!(std::fs::read_to_string(dir.join("vlane-lab-bench.1")).unwrap(), "mine");
    assert_eq!(code(&run(&["man", "/no/such/directory"])), 1);
}

/// The definition of the command line.
fn vlane_cli() -> clap::Command {
    ::vlane_lab::command().disable_help_subcommand(true)
}

/// The first commands of the manual, as they stand there, but for the directory.
#[test]
fn first_commands_of_manual_work() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/serve.md");
    let page = std::fs::read_to_string(page).unwrap();
    let block = page
        .lines()
        .skip_while(|line| !line.starts_with("    "))
        .take_while(|line| line.starts_with("    "));
    let place = Place::new(MIB);
    let here = place.path("here");
    std::fs::create_dir(&here).unwrap();
    let program = Path::new(served::vlane()).parent().unwrap().display().to_string();
    let script: Vec<_> = block.map(|line| line.trim().replace("/tmp/", "./")).collect();
    let script = format!(
        "set -e\nPATH={program}:$PATH\n{}",
        script.join("\n").replace("\nvlane serve", "\nexec vlane serve")
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]).current_dir(&here).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let sockets = || {
        let entries = std::fs::read_dir(&here).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|end| end == "sock")).count()
    };
    let mut over = false;
    until("a socket, or the end", || {
        over = child.try_wait().unwrap().is_some();
        over || sockets() == 1
    });
    if !over {
        signal(&child, Signal::TERM);
    }
    let output = ended(child);
    assert_eq!(code(&output), 0, "{script}: {}", said(&output));
    assert!(!over, "it ended by itself");
}

#[test]
fn limits_change_while_serving_and_hold() {
    let place = Place::new(MIB);
    let (backend, socket, control) = null(&place, "l");
    let path = control.path().display().to_string();
    let told = |words: &[&str]| {
        let output = run(&[&["limit", &path], words].concat());
        assert_eq!(code(&output), 0, "{}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(told(&[]).trim(), "no limits");
    let begin = Instant::now();
    let shown = told(&["--iops", "2000", "--burst", "10ms"]);
    assert!(shown.contains("2000 requests per second") && shown.contains("10ms"), "{shown}");
    let before = control.counters().unwrap().sum["reads"];
    let output = run(&["bench", &socket, "--ramp", "0", "--time", "300ms"]);
    assert_eq!(code(&output), 0, "{}", said(&output));
    let done = control.counters().unwrap().sum["reads"] - before;
    let most = (begin.elapsed() + Duration::from_millis(10)).as_secs_f64() * 2000.0;
    // A session's end does not wait for requests in flight: the number out may be left.
    assert!(done as f64 <= most + 32.0, "{done} of {most}");
    // Limits that are not named stay.
    let shown = told(&["--bandwidth", "1M"]);
    assert!(shown.contains("2000 requests per second and 1 MiB per second"), "{shown}");
    assert_eq!(told(&["--iops", "none", "--bandwidth", "none"]).trim(), "no limits");
    // It has no classes.
    let output = run(&["limit", &path, "--express", "exempt"]);
    assert!(code(&output) == 1 && said(&output).contains("--classes"), "{}", said(&output));
    stop(backend);
}

#[test]
fn server_without_descriptors_warns_once_and_recovers() {
    use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
    let place = Place::new(MIB);
    let control = place.path("control.sock");
    let backend = place.serve(&["--control", &control.display().to_string()]);
    let pid = Pid::from_raw(i32::try_from(backend.id()).unwrap());
    let limit = |current| {
        let maximum = getrlimit(Resource::Nofile).maximum;
        prlimit(pid, Resource::Nofile, Rlimit { current, maximum }).unwrap();
    };
    // It has all that it serves with by then.
    drop(place.connect(&SessionOptions::default()));
    assert!(backend.wait_log("session 1 ended", LIMIT), "{}", backend.log());
    // Fewer than it has already.
    limit(Some(3));
    let knocks: Vec<_> = [&place.socket, &control]
        .into_iter()
        .cycle()
        .take(20)
        .map(|path| std::os::unix::net::UnixStream::connect(path).unwrap())
        .collect();
    let lines = |log: &str, what: &str| log.lines().filter(|line| line.contains(what)).count();
    const SHORT: &str = "no connection is accepted: Too many open files";
    let begin = Instant::now();
    while lines(&backend.log(), SHORT) < 2 {
        assert!(begin.elapsed() < LIMIT, "{}", backend.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    // Some pauses of a server that waits, and a million turns of one that does not.
    std::thread::sleep(Duration::from_millis(1000));
    limit(getrlimit(Resource::Nofile).current);
    drop(knocks);
    // Both sockets are served again.
    assert!(Control::new(&control).volume().is_ok());
    let session = place.connect(&SessionOptions::default());
    drop(session);
    let stopped = backend.stop(LIMIT).unwrap();
    assert!(stopped.status.success(), "{}: {}", stopped.status, stopped.log);
    assert_eq!(lines(&stopped.log, SHORT), 2, "{}", stopped.log);
    assert!(stopped.log.lines().count() < 40, "{}", stopped.log);
}
