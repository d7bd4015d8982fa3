//! The driver against another project's back end: qemu-storage-daemon, from Debian's packages.
//! Where it is not installed the tests are skipped with that reason.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use vlane_driver::replay::{ReplayKind, ReplayOptions, ReplayPlan, ReplayRequest, Timing, replay};
use vlane_driver::{
    Arrivals, Error, ErrorKind, Limit, OnProgress, Rate, Session, SessionOptions, VerifyState,
    Wait, Want, Workload, run, verify_check, verify_load,
};

/// Time that a busy machine may need for something quick.
const LIMIT: Duration = Duration::from_secs(60);

struct Daemon {
    child: Child,
    socket: PathBuf,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn going_on(_: vlane_driver::Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// The daemon on a file of 64 MiB, or `None` if there is no daemon.
fn daemon(dir: &Path) -> Option<Daemon> {
    let (image, socket) = (dir.join("image"), dir.join("socket"));
    if !image.exists() {
        std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    }
    let _ = std::fs::remove_file(&socket);
    let child = Command::new("qemu-storage-daemon")
        .args(["--object", "iothread,id=t", "--blockdev"])
        .arg(format!("driver=file,node-name=n,filename={}", image.display()))
        .arg("--export")
        .arg(format!(
            "type=vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path={},writable=on,\
             num-queues=2,iothread=t",
            socket.display()
        ))
        .stderr(Stdio::null())
        .spawn();
    match child {
        Ok(child) => Some(Daemon { child, socket }),
        Err(_) => {
            vlane_testing::skip(
                "qemu-storage-daemon is not installed (Debian: qemu-system-common)",
            );
            None
        }
    }
}

fn connect(daemon: &Daemon, options: &SessionOptions) -> Result<Session, Error> {
    let start = Instant::now();
    let options = SessionOptions { timeout: LIMIT, ..options.clone() };
    loop {
        match Session::connect(&daemon.socket, &options) {
            Err(e) if e.kind() == ErrorKind::Connect && start.elapsed() < LIMIT => {
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return result,
        }
    }
}

#[test]
fn broken_sockets_have_distinct_errors() {
    let dir = tempfile::tempdir().unwrap();
    let options = SessionOptions::default();
    let dead = dir.path().join("dead");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    // A daemon that another test starts has it open until the program is executed.
    let begin = Instant::now();
    while vlane_testing::listens(&dead) && begin.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(1));
    }
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let long = dir.path().join("x".repeat(120));
    for (path, says) in [
        (dir.path().join("none"), "no such socket"),
        (dead, "no process listens"),
        (file, "not a socket"),
        (long, "no such socket"),
    ] {
        let error = Session::connect(&path, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Connect);
        assert!(
            error.to_string().contains(says) || error.to_string().contains("socket path"),
            "{error}"
        );
    }
    // A back end that accepts and stays silent.
    let silent = dir.path().join("silent");
    let _listener = std::os::unix::net::UnixListener::bind(&silent).unwrap();
    let options = SessionOptions { timeout: Duration::from_millis(200), ..options };
    let error = Session::connect(&silent, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
}

#[test]
fn unoffered_features_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let Some(daemon) = daemon(dir.path()) else { return };
    let demand = |options: SessionOptions| connect(&daemon, &options).unwrap_err().kind();
    assert_eq!(
        demand(SessionOptions { packed: Want::Must, ..Default::default() }),
        ErrorKind::Unsupported
    );
    assert_eq!(demand(SessionOptions { queues: 3, ..Default::default() }), ErrorKind::Invalid);
    assert_eq!(demand(SessionOptions { segments: 1000, ..Default::default() }), ErrorKind::Invalid);

    let options =
        SessionOptions { queues: 2, depth: 8, data: 8192, segments: 2, ..Default::default() };
    for (event_idx, indirect, wait) in [
        (Want::Must, Want::Must, Wait::Interrupt),
        (Want::No, Want::No, Wait::Interrupt),
        (Want::Must, Want::No, Wait::Poll),
    ] {
        let options = SessionOptions { event_idx, indirect, ..options.clone() };
        let session = connect(&daemon, &options).unwrap();
        assert_eq!(session.config().capacity, 64 << 20);
        assert_eq!(session.pid(), Some(daemon.child.id().try_into().unwrap()));
        let workload = Workload {
            pattern: "randrw".parse().unwrap(),
            block: 8192,
            flush_every: Some(16),
            limit: Limit::Count(2000),
            wait,
            ..Workload::default()
        };
        let report = run(session, &workload, &mut going_on).unwrap();
        assert_eq!((report.ios, report.errors.total()), (4000, 0));
        assert!(report.reads.is_some() && report.writes.is_some() && report.flushes.is_some());
        assert!(report.backend.unwrap().threads > 0 && report.latency.max > report.latency.min);
    }
    // A run of a given time keeps to it, and may be ended before.
    let session = connect(&daemon, &options).unwrap();
    let workload = Workload {
        limit: Limit::Time(Duration::from_secs(60)),
        ramp: Duration::ZERO,
        ..Workload::default()
    };
    let stop: &mut OnProgress<'_> = &mut |progress| match progress.done {
        0 => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    };
    let report = run(session, &workload, stop).unwrap();
    assert!(report.seconds < 30.0 && report.ios > 0, "{} s", report.seconds);
}

#[test]
fn flushed_data_survives_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut victim) = daemon(dir.path()) else { return };
    let options =
        SessionOptions { queues: 2, depth: 16, write_cache: Some(true), ..Default::default() };
    let load =
        Workload { size: Some(4 << 20), limit: Limit::Time(LIMIT * 2), ..Workload::verified() };
    let mut state = VerifyState::new(&connect(&victim, &options).unwrap(), &load).unwrap();
    for round in 0..3 {
        let wait = Duration::from_millis(130 * round);
        let session = connect(&victim, &options).unwrap();
        let (loaded, is_loaded) = channel();
        // Of so many requests some are writes.
        let tell: &mut OnProgress<'_> = &mut |progress| {
            if progress.done >= 64 {
                let _ = loaded.send(());
            }
            ControlFlow::Continue(())
        };
        let child = &mut victim.child;
        let report = std::thread::scope(|scope| {
            scope.spawn(move || {
                let _ = is_loaded.recv_timeout(LIMIT);
                std::thread::sleep(wait);
                child.kill().unwrap();
            });
            verify_load(session, &mut state, &load, tell).unwrap()
        });
        assert!(report.backend_gone && report.writes > 0 && report.is_clean(), "{report:?}");
        // Until it is gone it may hold the image's lock.
        victim.child.wait().unwrap();
        victim = daemon(dir.path()).unwrap();
        let file = dir.path().join("state");
        state.save(&file).unwrap();
        state = VerifyState::load(&file).unwrap();
        let session = connect(&victim, &options).unwrap();
        let report = verify_check(session, &mut state, &mut going_on).unwrap();
        assert!(report.is_clean() && !report.backend_gone && report.reads == 1024, "{report:?}");
    }
    // And a back end that does lose data is found out.
    drop(victim);
    let image =
        std::fs::File::options().read(true).write(true).open(dir.path().join("image")).unwrap();
    // A block that was never written has no data to lose: on a slow machine there are such.
    let mut content = vec![0; 4 << 20];
    image.read_exact_at(&mut content, 0).unwrap();
    let mut written =
        (0..content.len()).step_by(4096).filter(|at| content[*at..][..512] != [0; 512]);
    let [moved, lost, damaged] = std::array::from_fn(|_| written.next().unwrap());
    image.write_all_at(&content[moved + 512..][..512], moved as u64).unwrap();
    image.write_all_at(&[0; 512], lost as u64).unwrap();
    let flipped: Vec<u8> = content[damaged + 300..][..8].iter().map(|byte| !byte).collect();
    image.write_all_at(&flipped, damaged as u64 + 300).unwrap();
    let again = daemon(dir.path()).unwrap();
    let session = connect(&again, &options).unwrap();
    let report = verify_check(session, &mut state, &mut going_on).unwrap();
    assert_eq!(report.mismatches, 3, "{report:?}");
    let words: Vec<_> = report.first.iter().map(ToString::to_string).collect();
    let belongs = format!("the data of offset {}", moved + 512);
    for says in [belongs.as_str(), "writes were lost", "checksum"] {
        assert!(words.iter().any(|text| text.contains(says)), "{says}: {words:?}");
    }
}

#[test]
fn given_rate_accounts_for_every_arrival() {
    let dir = tempfile::tempdir().unwrap();
    let Some(daemon) = daemon(dir.path()) else { return };
    for (arrivals, wait) in [(Arrivals::Constant, Wait::Interrupt), (Arrivals::Poisson, Wait::Poll)]
    {
        let options = SessionOptions { queues: 2, depth: 4, ..Default::default() };
        let session = connect(&daemon, &options).unwrap();
        let workload = Workload {
            pattern: "randrw".parse().unwrap(),
            limit: Limit::Time(Duration::from_secs(1)),
            ramp: Duration::from_millis(200),
            rate: Some(Rate { per_second: 1000.0, arrivals }),
            wait,
            ..Workload::default()
        };
        let report = run(session, &workload, &mut going_on).unwrap();
        let open = report.open.unwrap();
        assert_eq!(report.errors.total(), 0);
        let expected = if arrivals == Arrivals::Constant { 1000..=1000 } else { 800..=1200 };
        assert!(expected.contains(&open.arrived), "{open:?}");
        assert_eq!(open.response_histogram.total(), open.arrived);
        assert_eq!(report.histogram.total() + open.unserved, open.arrived);
        // No response is shorter than its service, so no quantile is (histograms round by a
        // thousandth). Arrivals that were never served have a response alone, maybe a short one;
        // then only the longest ones can be compared.
        let mut pairs = vec![(open.response.max, report.latency.max)];
        if open.unserved == 0 {
            pairs.push((open.response.p50, report.latency.p50));
            pairs.push((open.response.p99, report.latency.p99));
        }
        for (response, service) in pairs {
            assert!(response * 1.002 >= service, "{response} {service}");
        }
    }
    // More than any back end does.
    let session = connect(&daemon, &SessionOptions::default()).unwrap();
    let workload = Workload {
        limit: Limit::Time(Duration::from_millis(500)),
        ramp: Duration::ZERO,
        rate: Some(Rate { per_second: 5e6, arrivals: Arrivals::Constant }),
        ..Workload::default()
    };
    let report = run(session, &workload, &mut going_on).unwrap();
    let open = report.open.unwrap();
    // A machine that stands still all the time serves too few for a median.
    let is_longer = open.response.p50 > report.latency.p50 || report.histogram.total() < 10;
    assert!(!open.kept_up && open.unserved > 0 && is_longer, "{open:?}");
}

/// A trace of all kinds of requests on two queues, with places that are written again and again.
fn trace() -> Vec<ReplayRequest> {
    let mut state = 7_u64;
    let mut next = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    (0..4000_u64)
        .map(|i| {
            let kind = match next(10) {
                0 => ReplayKind::Flush,
                1..4 => ReplayKind::Read,
                4 => ReplayKind::WriteZeroes,
                _ => ReplayKind::Write,
            };
            let at_ns = i * 50_000;
            ReplayRequest {
                at_ns,
                done_ns: Some(at_ns + 20_000 + next(400_000)),
                queue: u16::try_from(next(2)).unwrap(),
                kind,
                sector: next(1000),
                sectors: u32::try_from(1 + next(32)).unwrap(),
                ioprio: 0,
                data: Some(i),
            }
        })
        .collect()
}

#[test]
fn replay_contents_ignore_timing_and_depth() {
    let plan = ReplayPlan::new(trace()).unwrap();
    let mut images: Vec<Vec<u8>> = Vec::new();
    for (timing, depth, wait) in [
        (Timing::AsFast, 1, Wait::Interrupt),
        (Timing::AsFast, 64, Wait::Interrupt),
        (Timing::AsFast, 64, Wait::Poll),
        (Timing::Original { speed: 2.0 }, 32, Wait::Interrupt),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let Some(daemon) = daemon(dir.path()) else { return };
        let session = connect(&daemon, &plan.session_options(depth).unwrap()).unwrap();
        let options = ReplayOptions { timing, wait, cpu: None };
        let report = replay(session, &plan, &options, &mut going_on).unwrap();
        assert_eq!(
            (report.run.ios, report.in_trace, report.run.errors.total()),
            (4000, 4000, 0),
            "{report:?}"
        );
        match timing {
            // Not faster than asked for: the last request is due after half the trace's time.
            Timing::Original { .. } => {
                assert!(
                    report.run.seconds >= plan.length_ns() as f64 / 2e9 && report.late.is_some()
                )
            }
            Timing::AsFast => assert!(report.late.is_none()),
        }
        assert!(
            report.held_by_order > 0,
            "the trace has flushes and writes to one place: {report:?}"
        );
        drop(daemon);
        let image = std::fs::read(dir.path().join("image")).unwrap();
        assert!(image[..1_000_000.min(image.len())].iter().any(|byte| *byte != 0));
        images.push(image);
    }
    assert!(images.windows(2).all(|pair| pair[0] == pair[1]), "the contents depend on the timing");
}

#[test]
fn unfitting_trace_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let Some(daemon) = daemon(dir.path()) else { return };
    let one = trace()[0];
    let refused = |request: ReplayRequest, options: SessionOptions, timing| {
        let plan = ReplayPlan::new([request]).unwrap();
        let session = connect(&daemon, &options).unwrap();
        let options = ReplayOptions { timing, ..ReplayOptions::default() };
        replay(session, &plan, &options, &mut going_on).unwrap_err().to_string()
    };
    let read = ReplayRequest { kind: ReplayKind::Read, queue: 0, sector: 0, sectors: 8, ..one };
    let small = SessionOptions::default;
    for (request, timing, says) in [
        (ReplayRequest { queue: 1, ..read }, Timing::AsFast, "2 queues"),
        (ReplayRequest { sectors: 16, ..read }, Timing::AsFast, "8192 bytes"),
        (ReplayRequest { sector: 1 << 40, ..read }, Timing::AsFast, "device ends"),
        (read, Timing::Original { speed: 0.0 }, "speed"),
    ] {
        let error = refused(request, small(), timing);
        assert!(error.contains(says), "{error}");
    }
}
