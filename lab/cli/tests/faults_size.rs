//! Storage that changes below a server with a guest: an image that is truncated and restored, a
//! device that shrinks and grows, a file system that turns read-only. Requests inside the storage
//! are served as before, those outside fail, and the operator learns which case it is.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod front;
mod frozen;
mod served;

use std::path::{Path, PathBuf};
use std::process::Command;

use front::{Front, SECTORS};
use frozen::{Ext4, run};
use rustix::process::{Pid, Signal, kill_process};
use served::{LIMIT, Place, start, vlane};
use tempfile::TempDir;
use vlane_driver::ring::RequestKind;
use vlane_guest::Backend;
use vlane_testing::skip;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 8 * MIB;
const OK: u8 = 0;
const IOERR: u8 = 1;
/// In the half that stays, and in the one that goes.
const HERE: u64 = 100 * SECTORS;
const THERE: u64 = 1500 * SECTORS;

fn resize(image: &Path, bytes: u64) {
    std::fs::File::options().write(true).open(image).unwrap().set_len(bytes).unwrap();
}

fn tells(server: &Backend, words: &str) {
    assert!(server.wait_log(words, LIMIT), "no {words:?}: {}", server.log());
}

fn looks_again(server: &Backend) {
    let pid = Pid::from_raw(i32::try_from(server.id()).unwrap()).unwrap();
    kill_process(pid, Signal::HUP).unwrap();
}

fn serve(image: &Path, sockets: &TempDir, options: &[&str]) -> (Backend, Front) {
    let socket = sockets.path().join("disk.sock");
    let mut command = Command::new(vlane());
    command
        .arg("serve")
        .arg(image)
        .arg("--socket")
        .arg(&socket)
        .args(["--queues", "1"])
        .args(options);
    let server = start(&command, &socket).unwrap_or_else(|error| panic!("{error}"));
    let front = Front::connect(&socket);
    (server, front)
}

/// Reads of both halves, as many as fit, while the image is cut short and grown again.
fn reads_meanwhile(front: &mut Front, image: &Path) {
    for round in 0..50 {
        for slot in 1..7 {
            let sector = if slot % 2 == 0 { HERE } else { THERE + u64::from(slot) * SECTORS };
            front.begin(slot, RequestKind::Read, sector, 0);
        }
        resize(image, if round % 2 == 0 { SIZE / 2 } else { SIZE });
        for slot in 1..7 {
            let status = front.status(slot);
            assert!(status == OK || (status == IOERR && slot % 2 == 1), "slot {slot}: {status}");
        }
    }
}

#[test]
fn truncated_image_fails_lost_part_until_restored() {
    let places = [Some(Place::new(SIZE)), Place::in_memory(SIZE)];
    for place in places.iter().flatten() {
        for options in [
            &["--cache", "auto"][..],
            &["--cache", "writeback"],
            &["--cache", "writethrough"],
            &["--cache", "pdc"],
            &["--cache", "pdc", "--journal", "direct"],
        ] {
            let server = place.serve(options);
            let mut front = Front::connect(&place.socket);
            assert_eq!((front.write(HERE, 1), front.write(THERE, 2), front.flush()), (OK, OK, OK));
            resize(&place.image, SIZE / 2);
            assert_eq!(front.read(THERE), Err(IOERR), "{options:?}");
            assert_eq!(front.read_byte(HERE), 1, "{options:?}");
            assert_eq!((front.write(HERE, 3), front.flush()), (OK, OK), "{options:?}");
            tells(&server, "the image is shorter than its volume");
            reads_meanwhile(&mut front, &place.image);
            resize(&place.image, SIZE);
            assert_eq!(front.read_byte(THERE), 0, "{options:?}: what was cut off is gone");
            assert_eq!((front.write(THERE, 4), front.flush()), (OK, OK), "{options:?}");
            assert_eq!([front.read_byte(HERE), front.read_byte(THERE)], [3, 4], "{options:?}");
            drop(front);
            served::stop(server);
        }
    }
}

/// A loop device on a file.
struct Loop {
    place: Place,
    device: String,
}

impl Loop {
    fn new() -> Result<Loop, String> {
        let place = Place::new(SIZE);
        let device = run("losetup", &["--find", "--show", place.image.to_str().unwrap()])?;
        Ok(Loop { place, device })
    }

    /// The file has this size from now on, and the device learns it.
    fn resize(&self, bytes: u64) {
        resize(&self.place.image, bytes);
        run("losetup", &["--set-capacity", &self.device]).unwrap();
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = run("losetup", &["--detach", &self.device]);
    }
}

#[test]
fn shrunk_device_fails_lost_part_until_regrown() {
    for cache in ["none", "writeback", "writethrough", "pdc"] {
        let device = match Loop::new() {
            Ok(device) => device,
            Err(why) => return skip(why),
        };
        let sockets = TempDir::with_prefix("vlane-size-").unwrap();
        let (server, mut front) =
            serve(&PathBuf::from(&device.device), &sockets, &["--cache", cache]);
        assert_eq!((front.write(HERE, 1), front.write(THERE, 2), front.flush()), (OK, OK, OK));
        device.resize(SIZE / 2);
        // The server has not learned it. The device answers like a full one.
        assert_eq!(front.write(THERE, 9), IOERR, "{cache}");
        tells(&server, "the image is shorter than its volume (4194304 of 8388608 bytes are there)");
        assert!(!server.log().contains("no space"), "{cache}: {}", server.log());
        assert_eq!((front.write(THERE, 9), front.read(THERE)), (IOERR, Err(IOERR)), "{cache}");
        assert_eq!(front.read_byte(HERE), 1, "{cache}");
        assert_eq!((front.write(HERE, 3), front.flush()), (OK, OK), "{cache}");
        looks_again(&server);
        tells(&server, "shrank from 8388608 to 4194304 bytes");
        assert_eq!((front.write(THERE, 9), front.read(THERE)), (IOERR, Err(IOERR)), "{cache}");
        device.resize(SIZE);
        looks_again(&server);
        tells(&server, "grew from 4194304 to 8388608 bytes");
        // The lanes learn it right after that.
        let begin = std::time::Instant::now();
        while front.read(THERE).is_err() {
            assert!(begin.elapsed() < LIMIT, "{cache}: {}", server.log());
        }
        // The truncated part is gone, but for pages that the page cache has kept.
        let found = front.read_byte(THERE);
        assert!(found == 0 || (found == 2 && cache != "none"), "{cache}: {found}");
        assert_eq!((front.write(THERE, 4), front.flush()), (OK, OK), "{cache}");
        assert_eq!([front.read_byte(HERE), front.read_byte(THERE)], [3, 4], "{cache}");
        drop(front);
        served::stop(server);
    }
}

#[test]
fn read_only_file_system_fails_writes_not_reads() {
    for cache in ["none", "writeback", "writethrough", "pdc"] {
        let ext4 = match Ext4::new() {
            Ok(ext4) => ext4,
            Err(why) => return skip(why),
        };
        let image = ext4.dir.path().join("disk.raw");
        std::fs::write(&image, vec![7; usize::try_from(SIZE).unwrap()]).unwrap();
        run("sync", &["-f", image.to_str().unwrap()]).unwrap();
        run("mount", &["-o", "remount,errors=remount-ro", ext4.at()]).unwrap();
        let sockets = TempDir::with_prefix("vlane-size-").unwrap();
        let (server, mut front) = serve(&image, &sockets, &["--cache", cache]);
        assert_eq!((front.write(HERE, 1), front.flush()), (OK, OK));
        let trigger = Path::new("/sys/fs/ext4")
            .join(ext4.device.trim_start_matches("/dev/"))
            .join("trigger_fs_error");
        if let Err(error) = std::fs::write(&trigger, "a test") {
            return skip(format!("{}: {error}", trigger.display()));
        }
        assert_eq!(front.write(HERE, 2), IOERR, "{cache}");
        tells(&server, "the storage failed");
        assert_eq!(front.read_byte(HERE), 1, "{cache}");
        // The image no longer claims to be complete.
        assert_eq!(front.flush(), IOERR, "{cache}");
        drop(front);
        let stopped = server.stop(LIMIT).unwrap();
        assert_eq!(stopped.status.code(), Some(1), "{cache}: {}", stopped.log);
        assert!(!stopped.log.contains("panicked"));
    }
}

#[test]
fn image_above_file_size_limit_is_refused() {
    let place = Place::new(SIZE);
    let mut command = Command::new("sh");
    let script = "ulimit -f 1000; exec \"$@\"";
    command
        .args(["-c", script, "sh", vlane(), "serve"])
        .arg(&place.image)
        .arg("--socket")
        .arg(&place.socket);
    served::fails(&mut command, &["8388608 bytes", "512000", "ulimit -f", "--read-only"]);
}
