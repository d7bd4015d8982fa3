//! The server is killed at random moments under a verified load, and started again: what was
//! acknowledged is there.
//!
//! SIGKILL does not lose the kernel's page cache. So this shows two things: each acknowledged write
//! was handed to the kernel, and no flushed data stay in the server alone. A test below shows that
//! a flush also reaches the device: it asks the kernel how many pages of the file are still dirty.
//!
//! The moments are drawn from a seed, which is printed; `VLANE_CRASH_SEED` repeats it.
//! `VLANE_CRASH_KILLS=50` kills each as often.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests may")]

mod served;

use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use served::{Place, draw, going_on, seed, stop};
use vlane_driver::ring::{Request, RequestKind};
use vlane_driver::{
    Limit, Session, SessionOptions, VerifyState, Want, Workload, verify_check, verify_load,
};
use vlane_guest::Backend;
use vlane_testing::skip;

const MIB: u64 = 1 << 20;

fn kill_after(backend: Backend, time: Duration) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        std::thread::sleep(time);
        backend.kill();
    })
}

/// Kills the server `times` times under load. Two lanes, flushes among the writes, split and packed
/// rings in turn.
///
/// A write that was in flight may be there, or not, or in whole blocks of it; never half a block.
fn survives(place: &Place, serve: &[&str], session: &SessionOptions, times: u64) {
    survives_at(place, 0, serve, session, times);
}

/// The same, with the load from a byte of the volume on.
fn survives_at(place: &Place, offset: u64, serve: &[&str], session: &SessionOptions, times: u64) {
    let given = std::env::var("VLANE_CRASH_KILLS").ok();
    let times = given.map_or(times, |given| given.parse().unwrap());
    let mut state_of_chance = seed();
    let mut known: Option<VerifyState> = None;
    let (mut writes, mut flushes) = (0, 0);
    // A slow disk may end few requests before a kill: further rounds bring the load that the test
    // means.
    let is_enough = |writes, flushes| writes > 50 && flushes > 0;
    let begin = Instant::now();
    for round in 0.. {
        if round >= times && (is_enough(writes, flushes) || begin.elapsed() > served::LIMIT) {
            break;
        }
        let packed = if round % 2 == 0 { Want::No } else { Want::Must };
        let options = SessionOptions { queues: 2, depth: 16, packed, ..session.clone() };
        let load = Workload {
            offset,
            size: Some(8 * MIB),
            limit: Limit::Time(Duration::from_secs(30)),
            flush_every: Some(
                [4, 32, 256][usize::try_from(draw(&mut state_of_chance) % 3).unwrap()],
            ),
            seed: draw(&mut state_of_chance),
            ..Workload::verified()
        };
        let server = place.serve(serve);
        let front_end = place.connect(&options);
        let state = known.get_or_insert_with(|| VerifyState::new(&front_end, &load).unwrap());
        let killer =
            kill_after(server, Duration::from_millis(20 + draw(&mut state_of_chance) % 500));
        let loaded = verify_load(front_end, state, &load, going_on());
        killer.join().unwrap();
        match loaded {
            Ok(report) => {
                assert!(report.backend_gone && report.is_clean(), "round {round}: {report:?}");
                (writes, flushes) = (writes + report.writes, flushes + report.flushes);
            }
            // On a machine with much to do, the kill can come before the first request.
            Err(error) => assert!(error.is_gone(), "round {round}: {error}"),
        }

        let server = place.serve(serve);
        let front_end = place.connect(&options);
        let report = verify_check(front_end, state, going_on()).unwrap();
        assert!(report.is_clean(), "round {round}: what was flushed is not there: {report:?}");
        // More than a disk promises: the kernel had it, flushed or not.
        assert_eq!(
            report.unflushed_lost, 0,
            "round {round}: acknowledged and never written: {report:?}"
        );
        if round % 3 == 0 {
            stop(server);
        } else {
            server.kill();
        }
    }
    assert!(is_enough(writes, flushes), "hardly any load: {writes} writes, {flushes} flushes");
}

#[test]
fn direct_io_survives_kills_under_load() {
    survives(
        &Place::new(16 * MIB),
        &["--queues", "2", "--cache", "none"],
        &SessionOptions::default(),
        8,
    );
}

#[test]
fn buffered_io_survives_kills_under_load() {
    survives(
        &Place::new(16 * MIB),
        &["--queues", "2", "--cache", "writeback"],
        &SessionOptions::default(),
        8,
    );
}

#[test]
fn durable_writes_survive_kills_under_load() {
    let serve = ["--queues", "2", "--cache", "writethrough"];
    survives(&Place::new(16 * MIB), &serve, &SessionOptions::default(), 3);
}

#[test]
fn journal_detection_survives_kills_under_load() {
    survives(
        &Place::new(16 * MIB),
        &["--queues", "2", "--cache", "pdc"],
        &SessionOptions::default(),
        3,
    );
}

/// A journal's own device. All of it but its beginning is read and written around the page cache,
/// from a moment after the server's start. The first MiB of the load lies outside.
#[test]
fn direct_regions_survive_kills_under_load() {
    const REGION: Range<u64> = 2 * MIB..16 * MIB;
    let place = Place::new(REGION.end);
    if cachestat(&place.image, &REGION).is_none() {
        return skip(
            "this kernel does not report the page cache's content (cachestat needs Linux 6.5): \
             there are no regions",
        );
    }
    let made = Command::new("mke2fs")
        .args(["-q", "-F", "-b", "4096", "-O", "journal_dev"])
        .arg(&place.image)
        .output();
    assert!(made.as_ref().is_ok_and(|made| made.status.success()), "{made:?}");
    let serve = ["--queues", "2", "--cache", "pdc", "--journal", "direct"];
    let cached = || cachestat(&place.image, &REGION).unwrap()[0];
    for (serve, is_direct) in [(&serve[..], true), (&serve[..4], false)] {
        survives_at(&place, MIB, serve, &SessionOptions::default(), if is_direct { 3 } else { 1 });
        // No page of a region stays in the page cache once the change to it is over.
        let server = place.serve(serve);
        let mut session = place.connect(&SessionOptions::default());
        let (mut queues, _waker) = session.start().unwrap();
        let begin = Instant::now();
        loop {
            request(&mut queues[0], RequestKind::Write, 3 * MIB / 512, 4096);
            if cached() == 0 || !is_direct || begin.elapsed() > served::LIMIT {
                break;
            }
        }
        assert_eq!(cached() == 0, is_direct, "{serve:?}: {} pages", cached());
        drop((queues, session));
        stop(server);
    }
}

#[test]
fn memory_image_survives_kills_under_load() {
    match Place::in_memory(16 * MIB) {
        Some(place) => {
            survives(&place, &["--queues", "2", "--threads", "1"], &SessionOptions::default(), 5)
        }
        None => skip("there is no /dev/shm"),
    }
}

#[test]
fn write_through_guest_survives_kills_under_load() {
    let session = SessionOptions { write_cache: Some(false), ..SessionOptions::default() };
    survives(&Place::new(16 * MIB), &["--queues", "2", "--cache", "writeback"], &session, 3);
}

/// Pages of a part of a file: cached, dirty, under writeback, evicted, recently evicted. `None` if
/// the kernel cannot say (before 6.5).
fn cachestat(path: &Path, range: &Range<u64>) -> Option<[u64; 5]> {
    const SYS_CACHESTAT: libc::c_long = 451;
    let file = std::fs::File::open(path).unwrap();
    let range = [range.start, range.end - range.start];
    let mut counts = [0u64; 5];
    // SAFETY: the call reads two and writes five words; both arrays are that long.
    let done = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut counts, 0)
    };
    (done == 0).then_some(counts)
}

/// Pages of a file that the kernel has not written to the device yet. `None` if the kernel cannot
/// say.
fn unwritten_pages(path: &Path) -> Option<u64> {
    let [_, dirty, writeback, ..] = cachestat(path, &(0..std::fs::metadata(path).unwrap().len()))?;
    Some(dirty + writeback)
}

/// One request on a started queue.
fn request(queue: &mut vlane_driver::GuestQueue, kind: RequestKind, sector: u64, len: u32) {
    queue.blk.submit(0, Request { kind, sector, len, ioprio: 0 }).unwrap();
    if queue.blk.publish() {
        queue.kick().unwrap();
    }
    let (begin, mut done) = (Instant::now(), Vec::new());
    while done.is_empty() {
        assert!(begin.elapsed() < served::LIMIT);
        queue.blk.reap(&mut done).unwrap();
        std::thread::yield_now();
    }
    assert_eq!(done[0].status, 0, "{kind:?}");
}

#[test]
fn flush_and_write_through_leave_no_dirty_pages() {
    let place = Place::new(16 * MIB);
    if unwritten_pages(&place.image).is_none() {
        return skip("this kernel does not tell how many pages are dirty (cachestat, Linux 6.5)");
    }
    let server = place.serve(&["--queues", "1", "--cache", "writeback"]);
    let dirty = || unwritten_pages(&place.image).unwrap();
    let mut dirty_before_flush = 0;
    {
        let mut session = place.connect(&SessionOptions::default());
        let (mut queues, _waker) = session.start().unwrap();
        for round in 0..20 {
            (0..8).for_each(|i| {
                request(&mut queues[0], RequestKind::Write, (round * 8 + i) * 8, 4096)
            });
            dirty_before_flush += dirty();
            request(&mut queues[0], RequestKind::Flush, 0, 0);
            assert_eq!(dirty(), 0, "round {round}: flushed, and not on the device");
        }
    }
    if dirty_before_flush == 0 {
        skip("this file system has no dirty pages to show");
    }
    let options = SessionOptions { write_cache: Some(false), ..SessionOptions::default() };
    let mut session: Session = place.connect(&options);
    let (mut queues, _waker) = session.start().unwrap();
    for i in 0..50 {
        request(&mut queues[0], RequestKind::Write, i * 8, 4096);
        assert_eq!(dirty(), 0, "write {i} was answered before it was on the device");
    }
    drop(session);
    stop(server);
}
