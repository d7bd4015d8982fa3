//! Storage that fails in each possible way, under a server with a guest, with direct I/O and
//! through the page cache. The tests check the guest's view, the operator's messages, and the state
//! afterwards. `docs/src/faults.md` is the table.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod faulty;
mod front;
mod served;

use std::process::Command;

use faulty::{Fault, Faults, Faulty};
use front::{Front, LEN, SECTORS};
use served::{LIMIT, start, vlane};
use tempfile::TempDir;
use vlane_driver::ring::RequestKind;
use vlane_guest::Backend;
use vlane_testing::skip;

const BYTES: usize = 8 << 20;
/// Statuses of a virtio-blk request.
const OK: u8 = 0;
const IOERR: u8 = 1;
/// Log line for failing storage without further detail.
const FAILED: &str = "the storage failed";
const LOST: &str = "writes that were answered are lost";

/// A server on faulty storage, and its guest.
struct Bed {
    faulty: Faulty,
    sockets: TempDir,
    cache: &'static str,
    server: Backend,
    front: Front,
}

impl Bed {
    fn new(cache: &'static str, is_late: bool) -> Option<Bed> {
        let faulty = match Faulty::new(BYTES, is_late) {
            Ok(faulty) => faulty,
            Err(why) => {
                skip(why);
                return None;
            }
        };
        let sockets = TempDir::with_prefix("vlane-faults-").unwrap();
        let (server, front) = serve(&faulty, &sockets, cache, &[]);
        Some(Bed { faulty, sockets, cache, server, front })
    }

    fn set(&self, faults: Faults) {
        self.faulty.set(faults);
    }

    /// The log has the line, soon.
    fn tells(&self, words: &str) {
        assert!(
            self.server.wait_log(words, LIMIT),
            "{}: no {words:?}: {}",
            self.cache,
            self.server.log()
        );
    }

    /// The end of the server, which says in its status whether everything has reached the storage.
    fn ends(self, is_well: bool) -> String {
        drop(self.front);
        let stopped = self.server.stop(LIMIT).unwrap();
        assert_eq!(
            stopped.status.code(),
            Some(i32::from(!is_well)),
            "{}: {}",
            self.cache,
            stopped.log
        );
        assert!(!stopped.log.contains("panicked"), "{}", stopped.log);
        assert_eq!(stopped.log.contains(LOST), !is_well, "{}: {}", self.cache, stopped.log);
        stopped.log
    }
}

fn serve(faulty: &Faulty, sockets: &TempDir, cache: &str, more: &[&str]) -> (Backend, Front) {
    let socket = sockets.path().join("disk.sock");
    let mut command = Command::new(vlane());
    command.arg("serve").arg(faulty.image()).arg("--socket").arg(&socket);
    command.args(["--queues", "1", "--cache", cache]).args(more);
    let server = start(&command, &socket).unwrap_or_else(|error| panic!("{error}"));
    let front = Front::connect(&socket);
    (server, front)
}

/// On storage that fails at once, with direct I/O and through the page cache.
fn each(what: impl Fn(Bed)) {
    for cache in ["none", "writeback", "writethrough", "pdc"] {
        if let Some(bed) = Bed::new(cache, false) {
            what(bed);
        }
    }
}

#[test]
fn failed_read_fails_only_its_request() {
    each(|mut bed| {
        assert_eq!((bed.front.write(0, 1), bed.front.flush()), (OK, OK));
        bed.set(Faults { read: Fault::Error(libc::EIO), ..Faults::default() });
        assert_eq!(bed.front.read(1000 * SECTORS), Err(IOERR));
        assert_eq!(bed.front.write(SECTORS, 2), OK, "writes go on");
        bed.tells(FAILED);
        bed.faulty.answer();
        assert_eq!(bed.front.read_byte(1000 * SECTORS), 0);
        assert_eq!([bed.front.read_byte(0), bed.front.read_byte(SECTORS)], [1, 2]);
        assert_eq!(bed.front.flush(), OK);
        bed.ends(true);
    });
}

#[test]
fn failed_writes_report_their_errors() {
    for (errno, words) in
        [(libc::EIO, FAILED), (libc::ENOSPC, "no space was left"), (libc::EROFS, FAILED)]
    {
        for cache in ["none", "writeback", "pdc"] {
            let Some(mut bed) = Bed::new(cache, false) else { return };
            assert_eq!((bed.front.write(0, 1), bed.front.flush()), (OK, OK));
            bed.set(Faults { write: Fault::Error(errno), ..Faults::default() });
            assert_eq!(bed.front.write(0, 2), IOERR, "{cache}: {errno}");
            bed.tells(words);
            // Neither is anything of it there, nor is what was there gone.
            assert!(bed.faulty.bytes(0, LEN as usize).iter().all(|byte| *byte == 1));
            bed.faulty.answer();
            assert_eq!((bed.front.write(0, 3), bed.front.flush()), (OK, OK), "{cache}: {errno}");
            assert!(bed.faulty.bytes(0, LEN as usize).iter().all(|byte| *byte == 3));
            bed.ends(true);
        }
    }
}

#[test]
fn failed_flush_fails_every_later_flush() {
    each(|mut bed| {
        assert_eq!(bed.front.write(0, 1), OK);
        bed.set(Faults { sync: Fault::Error(libc::EIO), ..Faults::default() });
        match bed.cache {
            // Durable when it is answered.
            "writethrough" => assert_eq!(bed.front.write(0, 2), IOERR),
            _ => assert_eq!(bed.front.flush(), IOERR),
        }
        bed.tells(LOST);
        // The storage is well again; what was lost does not come back.
        bed.faulty.answer();
        assert_eq!(
            (bed.front.write(SECTORS, 2), bed.front.flush()),
            (IOERR, IOERR),
            "{}",
            bed.cache
        );
        assert!(bed.front.read(0).is_ok(), "reads go on");
        bed.ends(false);
    });
}

#[test]
fn failed_write_back_fails_every_later_flush() {
    for errno in [libc::EIO, libc::ENOSPC] {
        for cache in ["writeback", "pdc"] {
            let Some(mut bed) = Bed::new(cache, true) else { return };
            assert_eq!((bed.front.write(0, 1), bed.front.flush()), (OK, OK));
            bed.set(Faults { write: Fault::Error(errno), ..Faults::default() });
            assert_eq!(bed.front.write(0, 2), OK, "the page cache takes it");
            assert_eq!(bed.front.flush(), IOERR, "{cache}: {errno}");
            bed.tells(LOST);
            bed.faulty.answer();
            assert_eq!(
                (bed.front.flush(), bed.front.write(0, 3)),
                (IOERR, IOERR),
                "{cache}: {errno}"
            );
            bed.ends(false);
        }
    }
}

#[test]
fn partial_transfer_continues_until_complete() {
    each(|mut bed| {
        let far = 1500 * SECTORS;
        let large = front::LARGE as usize;
        bed.set(Faults { read: Fault::Half, write: Fault::Half, ..Faults::default() });
        let before = bed.faulty.met();
        if bed.cache == "none" {
            // FUSE makes an error of a direct write in part, but not of a read.
            assert_eq!(bed.front.write_large(far, 7), IOERR);
            bed.set(Faults { read: Fault::Half, ..Faults::default() });
            assert_eq!(bed.front.write_large(far, 7), OK);
            assert!(bed.front.read_large(far).unwrap().iter().all(|byte| *byte == 7));
        } else {
            assert_eq!(
                (bed.front.write_large(far, 7), bed.front.flush()),
                (OK, OK),
                "{}",
                bed.cache
            );
        }
        assert!(bed.faulty.met() > before + 2, "{}: nothing was done in part", bed.cache);
        assert!(bed.faulty.bytes(far, large).iter().all(|byte| *byte == 7), "{}", bed.cache);
        bed.faulty.answer();
        bed.ends(true);
    });
}

#[test]
fn empty_transfer_is_error_without_endless_loop() {
    let Some(mut bed) = Bed::new("none", false) else { return };
    bed.set(Faults { read: Fault::Nothing, write: Fault::Nothing, ..Faults::default() });
    assert_eq!(bed.front.read(0), Err(IOERR));
    bed.tells("the image is shorter than its volume");
    assert_eq!(bed.front.write(0, 1), IOERR);
    bed.faulty.answer();
    assert_eq!((bed.front.write(0, 2), bed.front.flush()), (OK, OK));
    assert_eq!(bed.front.read_byte(0), 2);
    bed.ends(true);
}

#[test]
fn hung_requests_are_reported_and_finish_later() {
    // All at once: a stall takes some seconds to be one.
    std::thread::scope(|scope| {
        for cache in ["none", "writeback", "writethrough", "pdc"] {
            scope.spawn(move || {
                let Some(mut bed) = Bed::new(cache, false) else { return };
                assert_eq!((bed.front.write(0, 1), bed.front.flush()), (OK, OK));
                bed.set(Faults {
                    read: Fault::Hang,
                    write: Fault::Hang,
                    sync: Fault::Hang,
                    ..Faults::default()
                });
                bed.front.begin(1, RequestKind::Read, 1000 * SECTORS, 0);
                bed.front.begin(2, RequestKind::Write, 1200 * SECTORS, 2);
                bed.tells("the storage does not answer");
                assert_eq!([bed.front.answer(1), bed.front.answer(2)], [None, None], "{cache}");
                bed.faulty.answer();
                assert_eq!([bed.front.status(1), bed.front.status(2)], [OK, OK], "{cache}");
                bed.tells("answers again");
                assert_eq!(bed.front.flush(), OK);
                assert!(
                    bed.faulty.bytes(1200 * SECTORS, LEN as usize).iter().all(|byte| *byte == 2)
                );
                bed.ends(true);
            });
        }
    });
}

/// As a network file system whose server is away: neither requests nor questions are answered.
#[test]
fn stop_ends_in_time_with_hung_storage() {
    let faulty = match Faulty::new(BYTES, false) {
        Ok(faulty) => faulty,
        Err(why) => return skip(why),
    };
    let sockets = TempDir::with_prefix("vlane-faults-").unwrap();
    let (server, mut front) = serve(&faulty, &sockets, "none", &["--stop-timeout", "1s"]);
    faulty.set(Faults { read: Fault::Hang, look: Fault::Hang, ..Faults::default() });
    let before = faulty.met();
    front.begin(1, RequestKind::Read, 1000 * SECTORS, 0);
    while faulty.met() == before {
        std::thread::yield_now();
    }
    let pid = rustix::process::Pid::from_raw(server.id().try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let is_told = server.wait_log("ends now; threads that are inside a system call", LIMIT);
    faulty.answer();
    assert!(is_told, "{}", server.log());
    drop(front);
    assert_eq!(server.stop(LIMIT).unwrap().status.code(), Some(1));
}

#[test]
fn vanished_storage_fails_requests_and_keeps_flushed_data() {
    for cache in ["none", "writeback", "writethrough", "pdc"] {
        let Some(mut bed) = Bed::new(cache, false) else { return };
        for n in 0..8 {
            assert_eq!(bed.front.write(n * SECTORS, 10 + u8::try_from(n).unwrap()), OK);
        }
        assert_eq!(bed.front.flush(), OK);
        bed.set(Faults { read: Fault::Hang, ..Faults::default() });
        let before = bed.faulty.met();
        bed.front.begin(1, RequestKind::Read, 1000 * SECTORS, 0);
        while bed.faulty.met() == before {
            std::thread::yield_now();
        }
        bed.faulty.vanish();
        assert_eq!(bed.front.status(1), IOERR, "{cache}: in flight");
        assert_eq!(bed.front.write(0, 99), IOERR, "{cache}");
        assert_eq!(bed.front.read(1100 * SECTORS), Err(IOERR), "{cache}");
        bed.tells(FAILED);
        // For this server it stays gone: what it has open is of the mount that is no more.
        bed.faulty.come_back();
        assert_eq!(bed.front.read(1100 * SECTORS), Err(IOERR), "{cache}");
        let Bed { faulty, sockets, server, front, .. } = bed;
        drop(front);
        let stopped = server.stop(LIMIT).unwrap();
        assert_eq!(
            stopped.status.code(),
            Some(1),
            "{cache}: it cannot know what was written: {}",
            stopped.log
        );
        let (server, mut front) = serve(&faulty, &sockets, cache, &[]);
        for n in 0..8 {
            assert_eq!(front.read_byte(n * SECTORS), 10 + u8::try_from(n).unwrap(), "{cache}");
        }
        assert_eq!((front.write(0, 99), front.flush()), (OK, OK), "{cache}");
        drop(front);
        assert!(server.stop(LIMIT).unwrap().status.success());
    }
}
