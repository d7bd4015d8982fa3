//! The io_uring wrapper: watches, a completion queue that overflows, and the error on a system that
//! forbids io_uring.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::error::Error;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use common::places::{image, on_disk, open, skip};
use common::{Op, PLACES, Rig, bytes};
use rustix::event::{EventfdFlags, eventfd};
use vlane_engine::file::Cache;
use vlane_io::{ErrorKind, Event, Uring};

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).expect("eventfd")
}

fn signal(fd: &OwnedFd) {
    rustix::io::write(fd, &1u64.to_ne_bytes()).expect("write");
}

/// Returns the events of one moment.
fn events(uring: &mut Uring) -> Vec<Event> {
    let mut all = Vec::new();
    loop {
        uring.wait(Some(Duration::from_millis(20))).expect("wait");
        let before = all.len();
        all.extend(std::iter::from_fn(|| uring.next_event()));
        if all.len() == before {
            return all;
        }
    }
}

#[test]
fn watch_reports_every_signal_until_removed() {
    let mut uring = Uring::new(64).expect("io_uring");
    let (one, other) = (event(), event());
    uring.watch(one.as_fd(), 1);
    uring.watch(other.as_fd(), 2);
    assert_eq!(events(&mut uring), []);
    for _ in 0..3 {
        signal(&one);
        assert_eq!(
            events(&mut uring),
            [Event::Wake { token: 1, armed: true }],
            "without anybody reading it"
        );
    }
    uring.unwatch(1);
    assert_eq!(events(&mut uring), []);
    signal(&one);
    signal(&other);
    assert_eq!(events(&mut uring), [Event::Wake { token: 2, armed: true }]);
}

#[test]
fn unpollable_descriptor_ends_up_unwatched() {
    let mut uring = Uring::new(64).expect("io_uring");
    let mut file = tempfile::tempfile().expect("file");
    file.write_all(b"data").expect("write");
    let (reader, writer) = rustix::pipe::pipe().expect("pipe");
    drop(writer);
    let zero = std::fs::File::open("/dev/zero").expect("open");
    let fds = [file.as_fd(), reader.as_fd(), zero.as_fd()];
    let (mut wakes, mut gone) = (0, std::collections::BTreeSet::new());
    for (fd, token) in fds.iter().zip(0..) {
        uring.watch(*fd, token);
    }
    // As a lane does: what ended is set up again.
    loop {
        uring.wait(Some(Duration::from_millis(20))).expect("wait");
        let Some(event) = uring.next_event() else { break };
        match event {
            Event::Wake { armed: true, .. } => {}
            Event::Wake { token, armed: false } => uring.watch(fds[token as usize], token),
            Event::Unwatchable { token, .. } => assert!(gone.insert(token), "named twice"),
            other @ Event::Finished(_) => panic!("{other:?}"),
        }
        wakes += 1;
        assert!(wakes < 20, "it spins");
    }
    assert!(gone.contains(&0) && gone.contains(&2), "{gone:?}");
    // A good one is not affected.
    let good = event();
    uring.watch(good.as_fd(), 9);
    signal(&good);
    assert_eq!(events(&mut uring), [Event::Wake { token: 9, armed: true }]);
}

#[test]
fn watches_beyond_queue_size_are_kept() {
    let mut uring = Uring::new(64).expect("io_uring");
    let fds: Vec<OwnedFd> = (0..500).map(|_| event()).collect();
    for (fd, token) in fds.iter().zip(0..) {
        uring.watch(fd.as_fd(), token);
    }
    assert_eq!(events(&mut uring), []);
    // More completions at once than the completion queue has room for: none is lost.
    fds.iter().for_each(signal);
    let mut tokens: Vec<u32> = events(&mut uring)
        .into_iter()
        .map(|event| match event {
            Event::Wake { token, .. } => token,
            other => panic!("{other:?}"),
        })
        .collect();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens, (0..500).collect::<Vec<u32>>());
}

#[test]
fn overflowed_completions_are_found_without_sleeping() {
    let mut uring = Uring::new(64).expect("io_uring");
    let fds: Vec<OwnedFd> = (0..500).map(|_| event()).collect();
    for (fd, token) in fds.iter().zip(0..) {
        uring.watch(fd.as_fd(), token);
    }
    uring.submit().expect("submit");
    fds.iter().for_each(signal);
    let mut seen = std::collections::BTreeSet::new();
    // As a polling lane does: never waits, and stops when there is no work.
    while uring.has_work() {
        uring.submit().expect("submit");
        while let Some(Event::Wake { token, .. }) = uring.next_event() {
            seen.insert(token);
        }
    }
    assert_eq!(seen.len(), 500);
}

#[test]
fn dropped_uring_waits_for_its_operations() {
    let dir = on_disk();
    let mut rig = Rig::new(open(&image(dir.path(), 16 << 20), Cache::Auto));
    for place in 0..PLACES as u64 {
        rig.start(Op::write(place * 4096, bytes(place, common::DATA)));
    }
    rig.begin();
    let path = dir.path().join("image.raw");
    // Its buffers go right after it.
    drop(rig);
    let found = std::fs::read(path).expect("read");
    for place in 0..PLACES {
        let part = &found[place * common::DATA..(place + 1) * common::DATA];
        assert!(part == bytes(place as u64, common::DATA), "write {place}");
    }
}

#[test]
fn many_buffers_make_one_request() {
    let dir = on_disk();
    let path = image(dir.path(), 16 << 20);
    for cache in [Cache::Auto, Cache::Writeback] {
        let mut rig = Rig::new(open(&path, cache));
        // As many as a request can have, aligned and not.
        for (seed, gap) in [(1, 512), (2, 3)] {
            let data = bytes(seed, 1024 * 512);
            let pieces = vec![(gap, 512); 1024];
            rig.ok(Op::Write { sector: 8, pieces: pieces.clone(), data: data.clone() });
            assert!(rig.ok(Op::Read { sector: 8, pieces }) == data, "{cache:?}");
        }
        assert_eq!(rig.stats().device_errors, 0);
    }
}

/// Runs `check` in a thread that a seccomp filter lets everything but io_uring_setup, which gets
/// `errno`.
fn where_io_uring_gives(errno: i32, check: impl FnOnce() + Send + 'static) -> bool {
    where_call_gives(libc::SYS_io_uring_setup, errno, || (), |()| check())
}

/// Runs `check` on the value of `make`, in a thread whose seccomp filter fails `call` with `errno`;
/// `make` comes before.
fn where_call_gives<T>(
    call: libc::c_long,
    errno: i32,
    make: impl FnOnce() -> T + Send + 'static,
    check: impl FnOnce(T) + Send + 'static,
) -> bool {
    let thread = std::thread::spawn(move || {
        let made = make();
        const LOAD_NUMBER: u16 = 0x20;
        const JUMP_IF_EQUAL: u16 = 0x15;
        const RETURN: u16 = 0x06;
        let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let number = u32::try_from(call).expect("small");
        let answer = libc::SECCOMP_RET_ERRNO | errno.unsigned_abs();
        let mut filter = [
            step(LOAD_NUMBER, 0, 0, 0),
            step(JUMP_IF_EQUAL, 0, 1, number),
            step(RETURN, 0, 0, answer),
            step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
        // SAFETY: the documented arguments; the filter lives until the call ends, and is for this
        // thread only.
        let installed = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
                    == 0
        };
        if installed {
            check(made);
        }
        installed
    });
    thread.join().expect("the check")
}

#[test]
fn forbidden_io_uring_error_names_the_setting() {
    for (errno, kind, words) in [
        (libc::EPERM, ErrorKind::NoIoUring, "sandbox"),
        (libc::ENOSYS, ErrorKind::NoIoUring, "CONFIG_IO_URING"),
        (libc::EINVAL, ErrorKind::NoIoUring, "Linux 6.1 or later"),
        (libc::ENOMEM, ErrorKind::Limit, "ulimit -l"),
        (libc::EMFILE, ErrorKind::Limit, "ulimit -n"),
        (libc::EIO, ErrorKind::Io, "cannot set up an io_uring"),
    ] {
        let ran = where_io_uring_gives(errno, move || {
            let error = Uring::new(64).expect_err("forbidden");
            assert_eq!(error.kind(), kind);
            let text = error.to_string();
            let switched_off = text.contains("kernel.io_uring_disabled");
            assert!(text.contains(words) || (errno == libc::EPERM && switched_off), "{text}");
            let source = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
            let source = source.and_then(std::io::Error::raw_os_error);
            assert_eq!(source, Some(errno));
        });
        if !ran {
            return skip("no seccomp filters here");
        }
    }
}

/// The kernel has no memory for a submission and says so at once, without waiting. A thread that
/// asks again at once needs a whole CPU, and keeps others from giving memory back.
#[test]
fn short_kernel_is_retried_at_bounded_rate() {
    for errno in [libc::EAGAIN, libc::EBUSY, libc::ENOMEM] {
        let make = || (event(), Uring::new(64).expect("io_uring"));
        let ran =
            where_call_gives(libc::SYS_io_uring_enter, errno, make, move |(event, mut uring)| {
                uring.watch(event.as_fd(), 1);
                let (begin, mut asked) = (Instant::now(), 0);
                let mut shortest = Duration::MAX;
                // A thread without a CPU may ask once in that time.
                while asked < 5 || begin.elapsed() < Duration::from_millis(200) {
                    let at = Instant::now();
                    uring.submit().expect("a shortage passes");
                    shortest = shortest.min(at.elapsed());
                    asked += 1;
                }
                // A pause is 50 us at first and 2 ms at last: about 105 of them fit.
                assert!(asked < 200, "asked {asked} times in 200 ms");
                assert!(shortest < Duration::from_millis(100), "a pause of {shortest:?}");
            });
        if !ran {
            return skip("no seccomp filters here");
        }
    }
}
