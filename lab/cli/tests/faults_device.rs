//! Storage that takes no writes: refused at the start, and reported when it becomes so later.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod front;
mod frozen;
mod served;

use std::path::Path;
use std::process::Command;

use front::Front;
use frozen::{Ext4, run};
use served::{LIMIT, Place, fails, start, stop, vlane};
use vlane_guest::Backend;
use vlane_testing::skip;

const MIB: u64 = 1 << 20;
const OK: u8 = 0;
const IOERR: u8 = 1;

/// A loop device on an image.
struct Loop {
    place: Place,
    device: String,
}

impl Loop {
    fn new(options: &[&str]) -> Result<Loop, String> {
        let place = Place::new(8 * MIB);
        let words = [&["--find", "--show"], options, &[place.image.to_str().unwrap()]].concat();
        let device = run("losetup", &words)?;
        Ok(Loop { place, device })
    }

    fn command(&self, options: &[&str]) -> Command {
        serve(Path::new(&self.device), &self.place, options)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = run("blockdev", &["--setrw", &self.device]);
        let _ = run("losetup", &["--detach", &self.device]);
    }
}

fn serve(image: &Path, place: &Place, options: &[&str]) -> Command {
    let mut command = Command::new(vlane());
    command.arg("serve").arg(image).arg("--socket").arg(&place.socket).args(options);
    command
}

fn tells(server: &Backend, words: &str) {
    assert!(server.wait_log(words, LIMIT), "no {words:?}: {}", server.log());
}

#[test]
fn read_only_device_is_refused_to_writers() {
    let made = Loop::new(&["--read-only"]).and_then(|one| {
        let other = Loop::new(&[])?;
        run("blockdev", &["--setro", &other.device])?;
        Ok([one, other])
    });
    let devices = match made {
        Ok(devices) => devices,
        Err(why) => return skip(why),
    };
    for device in &devices {
        fails(
            &mut device.command(&[]),
            &[&device.device, "set read-only", "--read-only", "blockdev --setrw"],
        );
        // Readers are served, and their front end learns it.
        let server =
            start(&device.command(&["--read-only", "--queues", "1"]), &device.place.socket)
                .unwrap();
        let mut front = Front::connect(&device.place.socket);
        assert_eq!(front.read_byte(0), 0);
        drop(front);
        stop(server);
    }
    let [_, other] = &devices;
    run("blockdev", &["--setrw", &other.device]).unwrap();
    stop(start(&other.command(&[]), &other.place.socket).unwrap());
}

#[test]
fn device_turning_read_only_is_reported() {
    for cache in ["none", "writeback"] {
        let device = match Loop::new(&[]) {
            Ok(device) => device,
            Err(why) => return skip(why),
        };
        let server =
            start(&device.command(&["--queues", "1", "--cache", cache]), &device.place.socket)
                .unwrap();
        let mut front = Front::connect(&device.place.socket);
        assert_eq!((front.write(0, 1), front.flush()), (OK, OK));
        run("blockdev", &["--setro", &device.device]).unwrap();
        assert_eq!(front.write(0, 2), IOERR, "{cache}");
        tells(
            &server,
            &format!(
                "the device has been set read-only, and the guest's writes fail; `blockdev \
                 --setrw {}`",
                device.device
            ),
        );
        assert_eq!(front.read_byte(0), 1, "{cache}: reads go on");
        run("blockdev", &["--setrw", &device.device]).unwrap();
        assert_eq!((front.write(0, 3), front.flush()), (OK, OK), "{cache}");
        drop(front);
        stop(server);
    }
}

#[test]
fn file_turning_immutable_is_reported() {
    let ext4 = match Ext4::new() {
        Ok(ext4) => ext4,
        Err(why) => return skip(why),
    };
    let image = ext4.dir.path().join("disk.raw");
    std::fs::File::create(&image).unwrap().set_len(MIB).unwrap();
    let place = Place::new(MIB);
    let name = image.to_str().unwrap();
    let server = start(&serve(&image, &place, &["--queues", "1"]), &place.socket).unwrap();
    let mut front = Front::connect(&place.socket);
    assert_eq!((front.write(0, 1), front.flush()), (OK, OK));
    if let Err(why) = run("chattr", &["+i", name]) {
        return skip(why);
    }
    assert_eq!(front.write(0, 2), IOERR);
    tells(
        &server,
        &format!(
            "the image has been made immutable, and the guest's writes fail; `chattr -i {name}`"
        ),
    );
    run("chattr", &["-i", name]).unwrap();
    assert_eq!((front.write(0, 3), front.flush()), (OK, OK));
    drop(front);
    stop(server);
}
