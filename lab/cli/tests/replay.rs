//! A replay is the recorded sequence. Against vlane it is recorded again. qemu-storage-daemon
//! reports each read and write at the entrance of its block layer (`--trace`), and its driver
//! `blklogwrites` logs every finished change. Other programs read converted traces, too.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod served;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use served::{Place, going_on, stop};
use vlane_capture::replay::{SLACK_NS, Settings, prepare, replay};
use vlane_capture::{Request, Trace};
use vlane_client::record::{RecordOptions, record};
use vlane_driver::Session;
use vlane_driver::replay::{ReplayKind, ReplayOptions, ReplayPlan, ReplayRequest, Timing};
use vlane_guest::{Backend, Ready, Spec, find_program};
use vlane_report::Begun;
use vlane_testbed::{Control, Interrupt, Output};
use vlane_testing::skip;
use vlane_trace::RequestKind;

const SIZE: u64 = 16 << 20;
const LANES: u16 = 2;
/// Sectors of a lane's part of the volume: what a peer logs tells by its place which lane it came
/// from.
const PART: u64 = SIZE / 512 / LANES as u64;
const LIMIT: Duration = Duration::from_secs(60);

/// A guest's requests: sizes, places, priorities, flushes on the first lane.
fn workload() -> impl Strategy<Value = Vec<ReplayRequest>> {
    let one = (
        0..LANES,
        0..12_usize,
        0..PART - 64,
        1..64_u32,
        0..4_u16,
        0..8_u16,
        0..60_000_u64,
        any::<bool>(),
    );
    prop::collection::vec(one, 60..160).prop_map(|all| {
        let mut now = 0;
        let request = |(lane, kind, sector, sectors, class, level, pause, hot)| {
            use ReplayKind::{Discard, Flush, Read, Write, WriteZeroes};
            let kind = [
                Read,
                Read,
                Read,
                Write,
                Write,
                Write,
                Write,
                Write,
                Flush,
                Flush,
                Discard,
                WriteZeroes,
            ][kind];
            let kind = if kind == Flush && lane != 0 { Write } else { kind };
            // Some places are used again and again.
            let sector = u64::from(lane) * PART + if hot { sector % 128 } else { sector };
            let (sector, sectors) = if kind == Flush { (0, 0) } else { (sector, sectors) };
            now += pause;
            let ioprio = class << 13 | level;
            ReplayRequest {
                at_ns: now,
                done_ns: None,
                queue: lane,
                kind,
                sector,
                sectors,
                ioprio,
                data: None,
            }
        };
        all.into_iter().map(request).collect()
    })
}

/// A volume with a control socket.
struct Volume {
    place: Place,
    backend: Backend,
    control: Control,
}

impl Volume {
    fn serve() -> Volume {
        let place = Place::new(SIZE);
        let control = place.path("control");
        let backend = place.serve(&["--queues", "2", "--control", control.to_str().unwrap()]);
        Volume { place, backend, control: Control::new(control) }
    }

    /// Records during `work`, until so many requests have come.
    fn recorded<T>(&self, name: &str, count: u64, work: impl FnOnce(&Path) -> T) -> (Trace, T) {
        let output = self.place.path(name);
        let options = RecordOptions {
            output: Output::new(&output).force(true),
            time: Some(LIMIT),
            count: Some(count),
            hashes: true,
        };
        let interrupt = Interrupt::listen().unwrap();
        let result = std::thread::scope(|scope| {
            let recording = scope.spawn(|| {
                record(&self.control, &options, &interrupt, &mut |_| {}).unwrap().whole().unwrap()
            });
            let begin = Instant::now();
            while !self.control.volume().unwrap().recording {
                assert!(begin.elapsed() < LIMIT, "nothing is recorded");
                std::thread::sleep(Duration::from_millis(1));
            }
            let result = work(&self.place.socket);
            let recorded = recording.join().unwrap();
            assert_eq!((recorded.requests, recorded.lost), (count, 0));
            result
        });
        // The next recording can begin when this one has ended.
        while self.control.volume().unwrap().recording {
            std::thread::sleep(Duration::from_millis(1));
        }
        let trace = Trace::load(&output).unwrap();
        assert!(trace.is_complete && trace.damage.is_none());
        (trace, result)
    }
}

/// The requests of a lane.
type Asked = (RequestKind, u64, u32, u32);

/// The requests of each lane, in order; with the places of the requests in the trace.
fn sequences(trace: &Trace) -> BTreeMap<u16, Vec<(Asked, usize)>> {
    let mut lanes: BTreeMap<u16, Vec<_>> = BTreeMap::new();
    for at in trace.by_submission() {
        let r = &trace.requests[at].record;
        lanes.entry(r.lane).or_default().push(((r.kind, r.sector, r.sectors, r.priority.0), at));
    }
    lanes
}

fn asked(trace: &Trace) -> BTreeMap<u16, Vec<Asked>> {
    let lanes = sequences(trace).into_iter();
    lanes
        .map(|(lane, requests)| (lane, requests.into_iter().map(|(what, _)| what).collect()))
        .collect()
}

fn wanted(requests: &[ReplayRequest]) -> BTreeMap<u16, Vec<Asked>> {
    let mut lanes: BTreeMap<u16, Vec<Asked>> = BTreeMap::new();
    for r in requests {
        let kind = match r.kind {
            ReplayKind::Read => RequestKind::Read,
            ReplayKind::Write => RequestKind::Write,
            ReplayKind::Flush => RequestKind::Flush,
            ReplayKind::Discard => RequestKind::Discard,
            ReplayKind::WriteZeroes => RequestKind::WriteZeroes,
        };
        lanes.entry(r.queue).or_default().push((kind, r.sector, r.sectors, r.ioprio.into()));
    }
    lanes
}

/// A request by its lane and its number there: the same in a recording and in a recording of its
/// replay.
type Name = (u16, usize);

/// Pairs of requests of which the first was answered before the second was sent. One of them is a
/// flush, and the first changes data or is the flush. A positive `slack` counts possible pairs; a
/// negative one only certain pairs, between lanes.
fn order(trace: &Trace, slack: i64) -> BTreeSet<(Name, Name)> {
    let lanes = sequences(trace);
    let named: Vec<(Name, &Request)> = lanes
        .iter()
        .flat_map(|(lane, all)| {
            all.iter().enumerate().map(|(n, (_, at))| ((*lane, n), &trace.requests[*at]))
        })
        .collect();
    let mut pairs = BTreeSet::new();
    for (earlier, before) in &named {
        for (later, after) in &named {
            let (b, a) = (&before.record, &after.record);
            let matters = (a.kind == RequestKind::Flush && b.kind.changes_data())
                || b.kind == RequestKind::Flush;
            let is_before = match b.lane == a.lane {
                true => before.completion < a.after,
                false => i128::from(b.completed()) <= i128::from(a.submit) + i128::from(slack),
            };
            if matters && is_before && earlier != later {
                pairs.insert((*earlier, *later));
            }
        }
    }
    pairs
}

/// Cases of a property; VLANE_REPLAY_SEED makes others.
fn cases(n: u32) -> TestRunner {
    let seed =
        std::env::var("VLANE_REPLAY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let config =
        Config { cases: n, failure_persistence: None, max_shrink_iters: 40, ..Config::default() };
    TestRunner::new(Config { rng_seed: RngSeed::Fixed(seed), ..config })
}

/// The guest: the driver with the generated requests, four at a time on each lane, as fast as it
/// can.
fn drive(requests: &[ReplayRequest], socket: &Path) {
    let plan = ReplayPlan::new(requests.iter().copied()).unwrap();
    let options = ReplayOptions { timing: Timing::AsFast, ..ReplayOptions::default() };
    let mut session = plan.session_options(4).unwrap();
    session.queues = LANES;
    let session = Session::connect(socket, &session).unwrap();
    let report = vlane_driver::replay::replay(session, &plan, &options, going_on()).unwrap();
    assert_eq!((report.run.ios, report.run.errors.total()), (requests.len() as u64, 0));
}

fn replay_on(trace: &Trace, socket: &Path, timing: Timing) {
    let settings = Settings {
        speed: if let Timing::Original { speed } = timing { speed } else { 1.0 },
        as_fast_as_possible: timing == Timing::AsFast,
        depth: None,
        seed: 7,
        poll: false,
        yes_overwrite: true,
    };
    let (interrupt, begun) = (Interrupt::listen().unwrap(), Begun::now("test"));
    let report = replay(trace, socket, &settings, &begun, &interrupt, |_, _| {}).unwrap();
    let failed = report
        .notes
        .iter()
        .find(|note| note.text.contains("failed") || note.text.contains("Left out"));
    assert!(failed.is_none(), "{failed:?}");
}

#[test]
fn vlane_replay_matches_the_recording() {
    let volume = Volume::serve();
    let (checked, case) = (Cell::new(0), Cell::new(0));
    let timings =
        [Timing::AsFast, Timing::Original { speed: 1.0 }, Timing::Original { speed: 20.0 }];
    cases(9)
        .run(&workload(), |requests| {
            let count = requests.len() as u64;
            let (a, ()) = volume.recorded("a", count, |socket| drive(&requests, socket));
            prop_assert_eq!(asked(&a), wanted(&requests), "recorded is not what was sent");
            let timing = timings[case.replace(case.get() + 1) % timings.len()];
            let slack = i64::try_from(SLACK_NS).unwrap();
            let certain = order(&a, -slack);
            let mut broken: Vec<_> = certain.iter().copied().collect();
            // Between lanes the times decide. A lane that lost its CPU between a request and the
            // clock has times that are off by milliseconds. That hits other requests each time; a
            // broken order is missing every time.
            for _ in 0..3 {
                let (b, ()) = volume.recorded("b", count, |socket| replay_on(&a, socket, timing));
                prop_assert_eq!(asked(&b), asked(&a), "replayed is not what was recorded");
                let possible = order(&b, slack);
                broken.retain(|pair| !possible.contains(pair));
                if broken.is_empty() {
                    break;
                }
            }
            prop_assert!(broken.is_empty(), "not in this order any more: {broken:?}");
            checked.set(checked.get() + certain.len());
            Ok(())
        })
        .unwrap();
    let checked = checked.get();
    assert!(checked > 500, "only {checked} pairs had an order at all: the property says nothing");
    stop(volume.backend);
}

/// Without the numbers in the trace, by its times alone, orders would be lost: the property above
/// can fail.
#[test]
fn recording_ends_in_time_with_slow_requests() {
    let volume = Volume::serve();
    let options = RecordOptions {
        output: Output::new(volume.place.path("slow")).force(true),
        time: Some(Duration::from_millis(300)),
        count: None,
        hashes: false,
    };
    let interrupt = Interrupt::listen().unwrap();
    let read = ReplayRequest {
        at_ns: 0,
        done_ns: None,
        queue: 0,
        kind: ReplayKind::Read,
        sector: 0,
        sectors: 8,
        ioprio: 0,
        data: None,
    };
    std::thread::scope(|scope| {
        let recording = scope.spawn(|| {
            record(&volume.control, &options, &interrupt, &mut |_| {}).unwrap().recorded.requests
        });
        // Fewer than those after which the clock would be looked at anyhow (a thousand), and for
        // many times as long as it should take.
        let mut made = 0;
        while !recording.is_finished() && made < 900 {
            drive(&[read], &volume.place.socket);
            std::thread::sleep(Duration::from_millis(10));
            made += 1;
        }
        assert!(made < 900, "it goes on after {made} requests");
        recording.join().unwrap();
    });
    stop(volume.backend);
}

#[test]
fn broken_order_is_noticed() {
    let volume = Volume::serve();
    let write = |at_ns, sector| ReplayRequest {
        at_ns,
        done_ns: Some(at_ns + 5),
        queue: 0,
        kind: ReplayKind::Write,
        sector,
        sectors: 8,
        ioprio: 0,
        data: None,
    };
    let flush =
        |at_ns| ReplayRequest { kind: ReplayKind::Flush, sector: 0, sectors: 0, ..write(at_ns, 0) };
    let requests = [write(0, 0), flush(10), write(20, 64), flush(30)];
    let (a, ()) = volume.recorded("a", 4, |socket| drive(&requests, socket));
    // The same requests, without any order between them.
    let mut loose = requests;
    loose.iter_mut().for_each(|request| request.done_ns = None);
    let (b, ()) = volume.recorded("b", 4, |socket| drive(&loose, socket));
    assert_eq!(asked(&a), asked(&b));
    assert!(!order(&a, 0).is_subset(&order(&b, 0)), "{:?} {:?}", order(&a, 0), order(&b, 0));
    stop(volume.backend);
}

/// The requests to qemu-storage-daemon on each lane, from its log at the entrance of its block
/// layer. The last request, which ends the log, is left out.
fn arrivals(said: &str, requests: usize) -> BTreeMap<u16, Vec<Asked>> {
    let mut lanes: BTreeMap<u16, Vec<Asked>> = (0..LANES).map(|lane| (lane, Vec::new())).collect();
    for line in said.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [event, "blk", _, "bs", _, "offset", offset, "bytes", bytes, "flags", flags] =
            words[..]
        else {
            continue;
        };
        // BDRV_REQ_ZERO_WRITE
        let zeroes = u32::from_str_radix(flags.trim_start_matches("0x"), 16).unwrap() & 2 != 0;
        let kind = match event {
            "blk_co_preadv" => RequestKind::Read,
            "blk_co_pwritev" if zeroes => RequestKind::WriteZeroes,
            "blk_co_pwritev" => RequestKind::Write,
            _ => continue,
        };
        let sector = offset.parse::<u64>().unwrap() / 512;
        let sectors = bytes.parse::<u32>().unwrap() / 512;
        lanes.entry((sector / PART) as u16).or_default().push((kind, sector, sectors, 0));
    }
    assert!(lanes.values().flatten().count() <= requests);
    lanes
}

/// Contents of the log of qemu-storage-daemon's `blklogwrites` (the format of Linux's
/// dm-log-writes).
fn read_log(path: &Path) -> Vec<Asked> {
    let bytes = std::fs::read(path).unwrap();
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(long(0), 0x006a_7366_7773_6872, "no log of dm-log-writes");
    let (entries, sector_size) =
        (long(16), u32::from_le_bytes(bytes[24..28].try_into().unwrap()) as usize);
    let mut at = sector_size;
    let mut log = Vec::new();
    for _ in 0..entries {
        let (sector, sectors, flags) = (long(at), long(at + 8), long(at + 16));
        at += sector_size;
        let kind = match flags & 5 {
            1 => RequestKind::Flush,
            4 => RequestKind::Discard,
            _ => RequestKind::Write,
        };
        if kind == RequestKind::Write {
            at += sectors as usize * sector_size;
        }
        log.push((kind, if kind == RequestKind::Flush { 0 } else { sector }, sectors as u32, 0));
    }
    log
}

/// qemu-storage-daemon on an image that logs what comes to it.
fn logging_peer(
    program: &Path,
    place: &Place,
    name: &str,
) -> (Backend, std::path::PathBuf, std::path::PathBuf) {
    let [image, log, socket] =
        ["image", "log", "socket"].map(|part| place.path(&format!("{name}.{part}")));
    std::fs::File::create(&image).unwrap().set_len(SIZE).unwrap();
    std::fs::File::create(&log).unwrap();
    let file = |id: &str, path: &Path| {
        format!("driver=file,node-name={id},filename={},discard=unmap", path.display())
    };
    let export =
        "type=vhost-user-blk,id=e,node-name=n,writable=on,num-queues=2,addr.type=unix,addr.path=";
    let spec = Spec::new(
        program,
        [
            "--trace".to_owned(),
            "blk_co_preadv".to_owned(),
            "--trace".to_owned(),
            "blk_co_pwritev".to_owned(),
            "--blockdev".to_owned(),
            file("f", &image),
            "--blockdev".to_owned(),
            file("l", &log),
            "--blockdev".to_owned(),
            "driver=blklogwrites,node-name=n,file=f,log=l,log-append=off,discard=unmap".to_owned(),
            "--export".to_owned(),
            format!("{export}{}", socket.display()),
        ],
    );
    (Backend::start_within(LIMIT, &spec, &socket, Ready::Socket, None).unwrap(), image, log)
}

#[test]
fn qemu_storage_daemon_replay_matches_recording() {
    let Some(program) = find_program("qemu-storage-daemon") else {
        skip("qemu-storage-daemon is not installed (Debian: qemu-utils, qemu-system-common)");
        return;
    };
    let volume = Volume::serve();
    let (checked, case) = (Cell::new(0), Cell::new(0));
    cases(4)
        .run(&workload(), |mut requests| {
            // The log tells how many entries it has when it is flushed, so the last of all is a
            // flush.
            let last = requests.iter().map(|r| r.at_ns).max().unwrap() + 1;
            requests.push(ReplayRequest {
                at_ns: last,
                queue: 0,
                kind: ReplayKind::Flush,
                sector: 0,
                sectors: 0,
                ..requests[0]
            });
            let (a, ()) =
                volume.recorded("a", requests.len() as u64, |socket| drive(&requests, socket));
            case.set(case.get() + 1);
            let (peer, image, log) =
                logging_peer(&program, &volume.place, &format!("peer{}", case.get()));
            replay_on(&a, peer.socket(), Timing::AsFast);
            // One flush more, of a session of its own: everything is in the log then.
            drive(&requests[requests.len() - 1..], peer.socket());
            let said = peer.stop(LIMIT).unwrap().log;
            let arrived = arrivals(&said, requests.len());

            // Reads, writes and write-zeroes came in each lane's order, all of them and no others.
            let moves = |kind| {
                matches!(kind, RequestKind::Read | RequestKind::Write | RequestKind::WriteZeroes)
            };
            let mut expected = asked(&a);
            expected.values_mut().for_each(|lane| {
                lane.retain(|what| moves(what.0));
                lane.iter_mut().for_each(|what| what.3 = 0);
            });
            prop_assert_eq!(&arrived, &expected);

            // The log of finished requests has the same changes. No change sent after a flush
            // precedes a change that the flush covers. A write of zeroes is logged as a write.
            let logged = read_log(&log);
            let mut places: BTreeMap<Asked, VecDeque<usize>> = BTreeMap::new();
            for (place, entry) in
                logged.iter().enumerate().filter(|(_, entry)| entry.0 != RequestKind::Flush)
            {
                places.entry(*entry).or_default().push_back(place);
            }
            let (mut changes, mut names) = (0, BTreeMap::new());
            for (lane, all) in asked(&a) {
                for (number, (kind, sector, sectors, _)) in all.into_iter().enumerate() {
                    let kind =
                        if kind == RequestKind::WriteZeroes { RequestKind::Write } else { kind };
                    if kind.changes_data() {
                        // Equal ones are at one place, and so in order.
                        let place = places
                            .get_mut(&(kind, sector, sectors, 0))
                            .and_then(VecDeque::pop_front);
                        prop_assert!(
                            place.is_some(),
                            "{kind:?} of {sectors} sectors at {sector} is not in the log"
                        );
                        names.insert((lane, number), place.unwrap());
                        changes += 1;
                    }
                }
            }
            let in_log = logged.iter().filter(|entry| entry.0 != RequestKind::Flush).count();
            prop_assert_eq!(in_log, changes, "the peer made changes that are not in the trace");
            prop_assert!(logged.len() > changes, "there is no flush in the log");
            let pairs = order(&a, -i64::try_from(SLACK_NS).unwrap());
            let flushes: BTreeSet<Name> = pairs.iter().map(|(_, later)| *later).collect();
            for flush in flushes {
                // The changes that the flush covers, and those after it.
                let covered = pairs
                    .iter()
                    .filter(|(_, later)| *later == flush)
                    .filter_map(|(first, _)| names.get(first));
                let after = pairs
                    .iter()
                    .filter(|(first, _)| *first == flush)
                    .filter_map(|(_, later)| names.get(later));
                if let (Some(last), Some(first)) = (covered.max(), after.min()) {
                    prop_assert!(
                        last < first,
                        "log entry {first} came after the flush {flush:?}, and {last} before it"
                    );
                    checked.set(checked.get() + 1);
                }
            }

            // The same data are in the end where vlane has them, from the same replay.
            replay_on(&a, &volume.place.socket, Timing::AsFast);
            let (ours, theirs) =
                (std::fs::read(&volume.place.image).unwrap(), std::fs::read(&image).unwrap());
            let written = written(&a);
            let differs = written.iter().find(|sector| {
                let at = **sector as usize * 512;
                ours[at..at + 512] != theirs[at..at + 512]
            });
            prop_assert!(differs.is_none(), "sector {differs:?} has other data than on the peer");
            Ok(())
        })
        .unwrap();
    let checked = checked.get();
    assert!(
        checked > 20,
        "only {checked} flushes stood between changes: the property says nothing"
    );
    stop(volume.backend);
}

/// Sectors whose last change was a write: a discarded one may hold anything.
fn written(trace: &Trace) -> BTreeSet<u64> {
    let mut written = BTreeSet::new();
    for at in trace.by_submission() {
        let r = &trace.requests[at].record;
        for sector in r.sector..r.sector + u64::from(r.sectors) {
            match r.kind {
                RequestKind::Write | RequestKind::WriteZeroes => drop(written.insert(sector)),
                RequestKind::Discard => drop(written.remove(&sector)),
                _ => {}
            }
        }
    }
    written
}

/// Runs a program that must succeed within [`LIMIT`]; what it printed.
fn output(command: &mut Command) -> String {
    let child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A trace of a workload, converted.
fn converted(to: &str, name: &str) -> (Trace, Place, std::path::PathBuf) {
    let volume = Volume::serve();
    let requests = workload().new_tree(&mut cases(1)).unwrap().current();
    let (trace, ()) =
        volume.recorded("a", requests.len() as u64, |socket| drive(&requests, socket));
    stop(volume.backend);
    let (from, file, target) =
        (volume.place.path("a"), volume.place.path(name), volume.place.path("target"));
    std::fs::File::create(&target).unwrap().set_len(SIZE).unwrap();
    let mut command = Command::new(served::vlane());
    command
        .args(["trace", "convert", "--force"])
        .arg(&from)
        .arg(&file)
        .args(["--to", to, "--file"])
        .arg(&target);
    let said = output(&mut command);
    assert!(said.contains("requests"), "{said}");
    (trace, volume.place, file)
}

#[test]
fn fio_replays_a_converted_trace() {
    let Some(fio) = find_program("fio") else {
        skip("fio is not installed");
        return;
    };
    for format in ["iolog", "iolog2"] {
        let (trace, place, log) = converted(format, "a.log");
        // A limit of its own: a log that fio misunderstands may make it wait for ever.
        let mut command = Command::new(&fio);
        command.args(["--name=r", "--ioengine=psync", "--output-format=json", "--runtime=120"]);
        command.arg(format!("--read_iolog={}", log.display())).current_dir(place.path("."));
        let json = output(&mut command);
        let json: serde_json::Value =
            serde_json::from_str(&json[json.find('{').unwrap()..]).unwrap();
        let did = |what: &str| json["jobs"][0][what]["total_ios"].as_u64().unwrap();
        let bytes = |what: &str| json["jobs"][0][what]["io_bytes"].as_u64().unwrap();
        let moved = |kind| {
            trace
                .requests
                .iter()
                .filter(|r| r.record.kind == kind)
                .map(|r| r.record.bytes())
                .sum::<u64>()
        };
        assert_eq!(
            [did("read"), did("write"), did("sync")],
            [RequestKind::Read, RequestKind::Write, RequestKind::Flush].map(|k| trace.count(k)),
            "{format}"
        );
        assert_eq!(
            [bytes("read"), bytes("write")],
            [moved(RequestKind::Read), moved(RequestKind::Write)],
            "{format}"
        );
    }
}

#[test]
fn blkparse_reads_a_converted_trace() {
    let Some(blkparse) = find_program("blkparse") else {
        skip("blkparse is not installed (Debian: blktrace)");
        return;
    };
    let (trace, place, _) = converted("blktrace", "a.blktrace.0");
    let mut command = Command::new(blkparse);
    command.args(["-q", "-i", "a", "-f", "%a %d %S %n %C\n"]).current_dir(place.path("."));
    let printed = output(&mut command);
    let mut queued: Vec<(String, u64, u64)> = Vec::new();
    let mut completed = 0;
    for line in printed.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["Q", what, sector, sectors, process] => {
                assert!(process.starts_with("lane-"), "{line}");
                queued.push((what.to_owned(), sector.parse().unwrap(), sectors.parse().unwrap()));
            }
            ["C", ..] => completed += 1,
            _ => {}
        }
    }
    let mut expected: Vec<(u64, u64)> = Vec::new();
    let has_place = |kind| {
        matches!(
            kind,
            RequestKind::Read | RequestKind::Write | RequestKind::Flush | RequestKind::Discard
        )
    };
    for at in trace.by_submission() {
        let r = &trace.requests[at].record;
        if has_place(r.kind) {
            expected.push((r.sector, r.sectors.into()));
        }
    }
    assert_eq!(completed, expected.len());
    assert_eq!(
        queued.iter().map(|(_, sector, sectors)| (*sector, *sectors)).collect::<Vec<_>>(),
        expected
    );
    let of =
        |begins: &str| queued.iter().filter(|(what, ..)| what.starts_with(begins)).count() as u64;
    assert_eq!(
        [of("R"), of("D")],
        [RequestKind::Read, RequestKind::Discard].map(|kind| trace.count(kind))
    );
}

/// `vlane-lab trace convert` with these arguments: its status, and both of its outputs.
fn convert(input: &[u8], arguments: &[&str]) -> (Option<i32>, String, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("in"), input).unwrap();
    let mut command = Command::new(served::vlane());
    command.args(["trace", "convert", "in", "out.trc"]).args(arguments).current_dir(dir.path());
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned(), dir)
}

#[test]
fn trace_of_several_disks_needs_choice() {
    let trace = b"128166372003061629,hm,0,Read,383496192,32768,15132\n\
                  128166372016382155,hm,0,Write,2822144,4000,1249\n\
                  128166372026382245,hm,1,Read,383496192,32768,5613\n";
    let (status, said, _) = convert(trace, &[]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("--device") && said.contains("hm.1 (1 request)"), "{said}");
    let (status, said, dir) = convert(trace, &["--device", "hm.0"]);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("2 requests") && said.contains("1 request widened"), "{said}");
    let trace = Trace::load(&dir.path().join("out.trc")).unwrap();
    assert_eq!([RequestKind::Read, RequestKind::Write].map(|kind| trace.count(kind)), [1, 1]);
}

#[test]
fn truncated_blktrace_gives_partial_result() {
    let (_, _place, file) = converted("blktrace", "a.blktrace.0");
    let whole = std::fs::read(file).unwrap();
    let (status, said, dir) = convert(&whole[..whole.len() - 1], &[]);
    assert_eq!(status, Some(3), "{said}");
    assert!(said.contains("middle of an event"), "{said}");
    assert!(!Trace::load(&dir.path().join("out.trc")).unwrap().requests.is_empty());
}

/// Preparing a trace for its replay never looks at a clock or at chance.
#[test]
fn equal_trace_and_seed_replay_equally() {
    let volume = Volume::serve();
    let requests = workload().new_tree(&mut cases(1)).unwrap().current();
    let (trace, ()) =
        volume.recorded("a", requests.len() as u64, |socket| drive(&requests, socket));
    let [one, same, other] = [7, 7, 8].map(|seed| prepare(&trace, seed).unwrap().requests);
    assert_eq!(one, same);
    assert_ne!(one, other);
    stop(volume.backend);
}
