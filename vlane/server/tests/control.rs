//! The control socket: the OpenAPI document describes the real answers; counters continue across
//! sessions; a trace has every request.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests may")]

mod common;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use rustix::event::{PollFd, PollFlags};
use serde_json::Value;
use vlane_policy::express::Mode;
use vlane_server::{Access, Control, ControlError, ListenError, Rights, Schedulers};
use vlane_trace::{Entry, Reader, RequestKind};

/// A volume with a control socket. The socket goes before the volume does.
struct Controlled {
    control: Control,
    path: PathBuf,
    server: Server,
}

fn controlled() -> Controlled {
    let server = Server::new(null(None), 2, 2);
    let path = server.path().with_file_name("control");
    let control = Control::start(&path, Arc::clone(&server.volume)).unwrap();
    Controlled { control, path, server }
}

fn ask(path: &Path, method: &str, resource: &str) -> UnixStream {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    // HTTP/1.0: no chunks, and a hang-up at the end.
    stream
        .write_all(format!("{method} {resource} HTTP/1.0\r\nHost: x\r\n\r\n").as_bytes())
        .unwrap();
    stream
}

/// Status, content type, body.
fn answer(mut stream: impl Read) -> (u16, String, Vec<u8>) {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let status = head.split_whitespace().nth(1).unwrap().parse().unwrap();
    let kind =
        head.lines().find_map(|line| line.strip_prefix("content-type: ")).unwrap_or_default();
    (status, kind.to_owned(), bytes.split_off(end))
}

fn json(path: &Path, resource: &str) -> Value {
    let (status, kind, body) = answer(ask(path, "GET", resource));
    assert_eq!((status, kind.as_str()), (200, "application/json"), "{resource}");
    serde_json::from_slice(&body).unwrap()
}

/// Requests by a separate guest: so many reads.
fn reads(server: &Server, count: u16) {
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    for n in 0..count {
        ring.submit(0, IN, u64::from(n) * 8, 512);
        ring.wait(1);
    }
    // Drained: what was counted is published.
    assert_eq!(wire.get_base(0), Some(count.into()));
}

/// Returns true if a value fits a schema: all its required members, no others, each of its type.
fn fits(value: &Value, schema: &Value, document: &Value, at: &str) {
    if let Some(reference) = schema["$ref"].as_str() {
        let schema = document.pointer(reference.strip_prefix('#').unwrap()).unwrap();
        return fits(value, schema, document, at);
    }
    if let Some(choices) = schema["oneOf"].as_array().or_else(|| schema["anyOf"].as_array()) {
        let choice = choices.iter().find(|choice| (choice["type"] == "null") == value.is_null());
        return fits(
            value,
            choice.unwrap_or_else(|| panic!("{at}: {value} is none of {choices:?}")),
            document,
            at,
        );
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let allowed = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().any(|k| k == kind),
        one => one == kind,
    };
    assert!(allowed, "{at}: {value} is not of {}", schema["type"]);
    if let Value::Array(items) = value {
        items.iter().for_each(|item| fits(item, &schema["items"], document, at));
    }
    let Value::Object(members) = value else { return };
    let none = serde_json::Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&none);
    for (name, member) in members {
        let at = format!("{at}.{name}");
        let schema = properties.get(name).unwrap_or(&schema["additionalProperties"]);
        assert!(schema.is_object(), "{at} is not in the document");
        fits(member, schema, document, &at);
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        assert!(
            members.contains_key(name.as_str().unwrap()),
            "{at} has no {name}, which the document demands"
        );
    }
}

#[test]
fn resources_answer_as_openapi_document_says() {
    let Controlled { control, path, server } = controlled();
    let document = json(&path, "/openapi.json");
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    // With and without a session: both forms of what may be missing.
    for with_session in [false, true] {
        let session = with_session.then(|| server.guest(USUAL));
        let mut seen = Vec::new();
        for (resource, item) in document["paths"].as_object().unwrap() {
            seen.push(resource.as_str());
            let content = item["get"]["responses"]["200"]["content"].as_object().unwrap();
            let (kind, media) = content.iter().next().unwrap();
            if kind != "application/json" {
                continue;
            }
            if resource != "/openapi.json" {
                fits(&json(&path, resource), &media["schema"], &document, resource);
            }
        }
        assert_eq!(
            seen,
            [
                "/openapi.json",
                "/v1/cache",
                "/v1/classes",
                "/v1/counters",
                "/v1/journal",
                "/v1/limits",
                "/v1/trace",
                "/v1/volume"
            ]
        );
        assert_eq!(json(&path, "/v1/volume")["session"].is_null(), !with_session);
        drop(session);
    }
    // Errors, too.
    let problem = &document["components"]["schemas"]["Problem"];
    for (method, resource, wanted) in [
        ("GET", "/v1/nothing", 404),
        ("POST", "/v1/volume", 405),
        ("GET", "/v1/trace?hash=2", 400),
        ("GET", "/v1/trace?hash=yes", 400),
        ("GET", "/v1/trace?hush=1", 400),
    ] {
        let (status, kind, body) = answer(ask(&path, method, resource));
        assert_eq!((status, kind.as_str()), (wanted, "application/json"), "{resource}");
        fits(&serde_json::from_slice(&body).unwrap(), problem, &document, resource);
    }
    drop(control);
    assert!(!path.exists(), "the socket was left behind");
}

#[test]
fn control_socket_has_one_owner_and_listener() {
    let Controlled { control, path, server } = controlled();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let refused = Control::start(&path, Arc::clone(&server.volume)).unwrap_err();
    assert!(matches!(refused, ControlError::Listen(ListenError::InUse { .. })), "{refused}");
    assert!(refused.to_string().contains("--control"), "{refused}");
    drop(control);
}

/// A client with the right to ask gets the same answers, and changes no state: neither limits, nor
/// the wait for a trace to end. A local user with that right keeps connections open. The guest
/// needs descriptors, too.
#[test]
fn idle_connections_are_bounded() {
    let Controlled { control: _control, path, server } = controlled();
    let many: Vec<UnixStream> = (0..300).map(|_| UnixStream::connect(&path).unwrap()).collect();
    let is_refused = |stream: &&UnixStream| {
        let mut fds = [PollFd::new(*stream, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&timespec(Duration::ZERO))).unwrap() > 0
    };
    let held = || many.len() - many.iter().filter(is_refused).count();
    let begin = Instant::now();
    while held() > 64 {
        assert!(begin.elapsed() < LIMIT, "{} of {} are held", held(), many.len());
        std::thread::sleep(Duration::from_millis(10));
    }
    reads(&server, 1);
    drop(many);
    // A hang-up is seen a moment later.
    let begin = Instant::now();
    loop {
        let (mut stream, mut bytes) = (UnixStream::connect(&path).unwrap(), Vec::new());
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        // It may be hung up on before.
        let _ = stream.write_all(b"GET /v1/counters HTTP/1.0\r\nHost: x\r\n\r\n");
        if stream.read_to_end(&mut bytes).is_ok() && bytes.starts_with(b"HTTP/1.0 200") {
            break;
        }
        assert!(begin.elapsed() < LIMIT, "nobody is answered");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn question_socket_refuses_changes() {
    let Controlled { control, path, server } = controlled();
    let asked = server.path().with_file_name("asked");
    let access = Access::Exactly { mode: 0o644, group: None };
    let questions =
        Control::start_for(&asked, Rights::Questions, access, Arc::clone(&server.volume)).unwrap();
    assert_eq!(std::fs::metadata(&asked).unwrap().permissions().mode() & 0o777, 0o644);
    let document = json(&asked, "/openapi.json");
    for (resource, methods) in document["paths"].as_object().unwrap() {
        assert_eq!(methods.as_object().unwrap().keys().collect::<Vec<_>>(), ["get"], "{resource}");
        let (status, ..) = answer(ask(&asked, "GET", resource));
        assert_eq!(status, answer(ask(&path, "GET", resource)).0, "{resource}");
    }
    for (method, resource) in [("GET", "/v1/trace"), ("PUT", "/v1/limits"), ("POST", "/v1/volume")]
    {
        let (status, _, body) = answer(ask(&asked, method, resource));
        let why: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(status, 403, "{method} {resource}: {why}");
        assert!(why["advice"].as_str().unwrap().contains("--control"), "{why}");
    }
    assert_eq!(answer(ask(&asked, "GET", "/v1/nothing")).0, 404);
    drop(questions);
    assert!(!asked.exists() && path.exists());
    drop(control);
}

/// A guest that gives its requests priorities, as the driver writes them, and any other number.
#[test]
fn requests_are_counted_by_class() {
    let server = Server::classifying(null(None), Mode::Order, Schedulers::None);
    let path = server.path().with_file_name("control");
    let control = Control::start(&path, Arc::clone(&server.volume)).unwrap();
    let best_effort = |level: u32| 2 << 13 | level;
    for sessions in 1..=2u64 {
        let (wire, memory) = server.guest(USUAL);
        let mut ring = Ring::new(&memory, 0);
        assert!(wire.start(0, &ring));
        let mut sent = 0;
        for (count, ioprio) in [
            (4, best_effort(0)),
            (3, best_effort(3)),
            (2, best_effort(4)),
            (5, best_effort(7)),
            (1, u32::MAX),
        ] {
            for _ in 0..count {
                ring.build_with(0, IN, ioprio, 0, 512);
                ring.offer(0);
                ring.publish();
                ring.kick();
                ring.wait(1);
                sent += 1;
            }
        }
        assert_eq!(wire.get_base(0), Some(sent));
        let told = json(&path, "/v1/classes");
        assert_eq!(
            (&told["mode"], &told["is_mixed"]),
            (&Value::from("order"), &Value::from(true)),
            "{told}"
        );
        let counts: Vec<u64> = told["classes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|class| class["requests"].as_u64().unwrap())
            .collect();
        assert_eq!(counts, [4 * sessions, 0, 3 * sessions, 5 * sessions], "{told}");
        let journal = &told["journal"];
        assert_eq!(
            (&journal["class"], &journal["requests"]),
            (&"normal".into(), &(3 * sessions).into()),
            "{told}"
        );
        // All that came after the second class are timed, and each is in one bucket.
        let queued = &told["classes"][3]["queued"];
        let in_buckets: u64 = queued["buckets"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pair| pair[1].as_u64().unwrap())
            .sum();
        assert_eq!(
            (queued["timed"].as_u64(), in_buckets),
            (Some(5 * sessions), 5 * sessions),
            "{told}"
        );
    }
    drop(control);
    let off = controlled();
    assert_eq!(json(&off.path, "/v1/classes")["mode"], "off");
}

#[test]
fn counters_continue_across_sessions() {
    let Controlled { control, path, server } = controlled();
    for session in 1..=3 {
        reads(&server, 10);
        let counters = json(&path, "/v1/counters");
        assert_eq!(counters["sum"]["reads"], 10 * session);
        assert_eq!(counters["lanes"][0]["reads"], 10 * session);
        assert_eq!(counters["lanes"][1]["reads"], 0);
        assert_eq!(counters["sum"]["read_bytes"], 5120 * session);
        assert!(counters["sum"]["kicks"].as_u64().unwrap() >= 1);
        // Each alone may be zero: the system divides its exact sum by ticks.
        let cpu = |name: &str| counters["process"][name].as_u64().unwrap();
        assert!(cpu("user_ns") + cpu("system_ns") > 0);
    }
    drop(control);
}

/// Returns the answer with a trace of two sessions, of 7 reads and of 5. The end waits two seconds
/// for the trace. A thread without a CPU for so long cuts it off, and the result is `None`.
fn trace_of_two_sessions() -> Option<(u16, String, Vec<u8>)> {
    let Controlled { control, path, server } = controlled();
    let stream = ask(&path, "GET", "/v1/trace");
    let begin = std::time::Instant::now();
    while json(&path, "/v1/volume")["recording"] != true {
        assert!(begin.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(1));
    }
    let (status, ..) = answer(ask(&path, "GET", "/v1/trace"));
    assert_eq!(status, 409, "two recordings at a time");
    reads(&server, 7);
    reads(&server, 5);
    let whole = std::thread::spawn(move || answer(stream));
    let begin = Instant::now();
    drop(control);
    let is_in_time = begin.elapsed() < Duration::from_secs(2);
    let whole = whole.join();
    is_in_time.then(|| whole.unwrap())
}

/// Two sessions, one trace: every request is in it, with a start for each, and its end when the
/// volume ends.
#[test]
fn trace_has_all_sessions_until_volume_end() {
    let traced = (0..10).find_map(|_| trace_of_two_sessions()).expect("never ends in time");
    let (status, kind, body) = traced;
    assert_eq!((status, kind.as_str()), (200, "application/vnd.vlane.trace"));
    let mut reader = Reader::new(&body[..]).unwrap();
    assert_eq!(
        (reader.header().lanes, reader.header().sectors, reader.header().name.as_str()),
        (2, 2 << 20, "test")
    );
    let (mut starts, mut seqs) = (0, Vec::new());
    for entry in &mut reader {
        match entry.unwrap() {
            Entry::Start { lane: 0, in_flight: 0, .. } => starts += 1,
            Entry::Record(record) => {
                assert_eq!((record.kind, record.sectors), (RequestKind::Read, 1));
                assert_eq!(record.sector, u64::from(record.seq) * 8);
                // One at a time: each was sent when all before it had been answered.
                assert_eq!(record.after, record.seq);
                seqs.push(record.seq);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(reader.is_complete());
    assert_eq!(starts, 2);
    assert_eq!(seqs, (0..7).chain(0..5).collect::<Vec<_>>());
}

/// A reader that hangs up ends the recording, and the next one can begin.
#[test]
fn reader_hang_up_ends_recording() {
    let Controlled { control, path, server } = controlled();
    for _ in 0..3 {
        let mut stream = ask(&path, "GET", "/v1/trace?hash=1");
        let mut first = [0; 64];
        stream.read_exact(&mut first).unwrap();
        assert!(
            first.starts_with(b"HTTP/1.0 200") || first.starts_with(b"HTTP/1.1 200"),
            "{first:?}"
        );
        drop(stream);
        let begin = std::time::Instant::now();
        while json(&path, "/v1/volume")["recording"] != false {
            assert!(begin.elapsed() < LIMIT, "the recording goes on without a reader");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    reads(&server, 1);
    drop(control);
}

/// A client that records one trace after the other never hears that a trace is being recorded
/// already.
#[test]
fn recording_follows_ended_one() {
    let Controlled { control, path, server } = controlled();
    for turn in 0..10 {
        let stream = loop {
            let begin = Instant::now();
            let mut stream = ask(&path, "GET", "/v1/trace");
            let mut first = [0; 12];
            stream.read_exact(&mut first).unwrap();
            if first[8..] == *b" 200" {
                break stream;
            }
            // The server waits three seconds for the last one's end: a thread has had no CPU.
            assert!(begin.elapsed() >= Duration::from_secs(3), "turn {turn}: refused");
        };
        if turn % 2 == 1 {
            reads(&server, 3);
        }
        // No wait: the recorder's thread has yet to see that its reader is gone.
        drop(stream);
    }
    drop(control);
}

#[test]
fn adaptive_thread_count_is_reported_live() {
    let server = Server::adapting(null(None), 2, 2);
    let path = server.path().with_file_name("control");
    let _control = Control::start(&path, Arc::clone(&server.volume)).unwrap();
    let (wire, memory) = server.guest(USUAL);
    let rings = [Ring::new(&memory, 0), Ring::new(&memory, 0x2_0000)];
    assert!((0..).zip(&rings).all(|(index, ring)| wire.start(index, ring)));
    let volume = json(&path, "/v1/volume");
    let topology = &volume["topology"];
    assert_eq!(
        (&topology["adapts"], &topology["threads"]),
        (&Value::from(true), &Value::from(2)),
        "{volume}"
    );
    // They have served no request yet.
    assert_eq!(topology["threads_used"], 1, "{volume}");
    assert_eq!(volume["session"]["lanes"], Value::from(vec![0, 1]), "{volume}");
    assert_eq!(volume["session"]["threads"], Value::from(vec![0, 0]), "{volume}");
}

#[test]
fn actual_polling_is_reported() {
    for (most, told) in
        [(Duration::ZERO, ("off", 0)), (Duration::from_micros(30), ("balanced", 30))]
    {
        let server = Server::polling(null(None), 1, 1, most);
        let path = server.path().with_file_name("control");
        let _control = Control::start(&path, Arc::clone(&server.volume)).unwrap();
        let volume = json(&path, "/v1/volume");
        assert_eq!(
            (&volume["poll"], &volume["poll_us"]),
            (&Value::from(told.0), &Value::from(told.1))
        );
    }
}

/// Sets the limits; status and answer.
fn limit(path: &Path, body: &str) -> (u16, Value) {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let head = format!(
        "PUT /v1/limits HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}",
        body.len()
    );
    stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
    let (status, _, body) = answer(stream);
    (status, serde_json::from_slice(&body).unwrap())
}

/// Refused limits leave the old ones in force.
#[test]
fn set_limits_are_reported_impossible_ones_refused() {
    let Controlled { control, path, server } = controlled();
    let rates = |told: &Value| (told["iops"].as_u64(), told["bandwidth"].as_u64());
    assert_eq!(rates(&json(&path, "/v1/limits")), (None, None));
    let (status, told) = limit(&path, r#"{"iops": 1000, "bandwidth": 1048576, "burst_us": 5000}"#);
    assert_eq!((status, rates(&told)), (200, (Some(1000), Some(1 << 20))));
    for wrong in [
        r#"{"iops": 0}"#,
        r#"{"iops": 1000000001}"#,
        r#"{"bandwidth": 511}"#,
        r#"{"bandwidth": "1M"}"#,
        r#"{"burst_us": 999}"#,
        r#"{"iop": 5}"#,
        r#"{"express": "sometimes"}"#,
        // Without classes no request is express.
        r#"{"express": "exempt"}"#,
        "none",
    ] {
        let (status, problem) = limit(&path, wrong);
        assert_eq!(status, 400, "{wrong}");
        assert!(problem["why"].is_string() && problem["advice"].is_string(), "{wrong}: {problem}");
        assert_eq!(json(&path, "/v1/limits"), told, "{wrong}");
    }
    // An omitted limit does not apply.
    let (_, told) = limit(&path, "{}");
    assert_eq!((rates(&told), told["burst_us"].as_u64()), ((None, None), Some(100_000)));
    drop((control, server));
}

/// A sector costs a second, and ten pass at once.
#[test]
fn limits_are_shared_and_changes_wake_waiters() {
    let Controlled { control, path, server } = controlled();
    assert_eq!(limit(&path, r#"{"bandwidth": 512, "burst_us": 10000000}"#).0, 200);
    let (wire, memory) = server.guest(USUAL);
    let mut rings = [Ring::new(&memory, 0), Ring::new(&memory, 0x2_0000)];
    assert!((0..).zip(&rings).all(|(index, ring)| wire.start(index, ring)));
    let mut answered = 0;
    for n in 0..32 {
        let ring = &mut rings[n % 2];
        // Those that wait are larger: within the limit of this test they cannot all pass.
        ring.submit(u16::try_from(n / 2).unwrap(), IN, 0, if n < 10 { 512 } else { 4096 });
        if n < 10 {
            ring.wait(1);
            answered += 1;
        }
    }
    std::thread::sleep(Duration::from_millis(50));
    let after: usize = rings.iter_mut().map(|ring| ring.used().len()).sum();
    // One each eight seconds.
    assert!(answered + after < 28, "{answered} and {after} of 32 passed");
    assert_eq!(limit(&path, "{}").0, 200);
    let mut left = 32 - answered - after;
    let begin = std::time::Instant::now();
    while left > 0 {
        left -= rings.iter_mut().map(|ring| ring.used().len()).sum::<usize>();
        assert!(begin.elapsed() < LIMIT, "{left} still wait for limits that are no more");
        std::thread::sleep(Duration::from_millis(1));
    }
    // And the end does not wait for them.
    assert_eq!(limit(&path, r#"{"bandwidth": 512, "burst_us": 1000}"#).0, 200);
    for slot in 0..16 {
        rings[0].submit(slot, IN, 0, 4096);
    }
    assert!(server.stop_within(LIMIT).is_some(), "a session waits for its limits");
    drop(control);
}
