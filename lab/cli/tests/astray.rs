//! An image that is deleted, moved or replaced under a server with a guest causes a message. The
//! message comes at once with a rescue command that works, and again at the end.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod front;
mod served;

use std::process::Command;

use front::{Front, LEN, SECTORS};
use served::{LIMIT, Place, stop};
use vlane_guest::Backend;

const MIB: u64 = 1 << 20;
const OK: u8 = 0;

fn tells(server: &Backend, words: &str) {
    assert!(server.wait_log(words, LIMIT), "no {words:?}: {}", server.log());
}

/// Ends a server whose image is lost with it.
fn ends_with_a_loss(server: Backend) {
    let stopped = server.stop(LIMIT).unwrap();
    assert_eq!(stopped.status.code(), Some(1), "{}", stopped.log);
    assert!(stopped.log.contains("the guest's data are lost with this process"), "{}", stopped.log);
}

/// Runs the command that the message has.
fn follow_the_advice(log: &str) {
    let (_, command) = log.rsplit_once("copy them first: `").unwrap();
    let (command, _) = command.split_once('`').unwrap();
    let done = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn deleted_image_is_reported_with_rescue_command() {
    let places = [
        (Some(Place::new(MIB)), "none"),
        (Some(Place::new(MIB)), "writeback"),
        (Place::in_memory(MIB), "auto"),
    ];
    for (place, cache) in places {
        let Some(place) = place else { continue };
        let server = place.serve(&["--queues", "1", "--cache", cache]);
        let mut front = Front::connect(&place.socket);
        assert_eq!((front.write(0, 1), front.flush()), (OK, OK));
        std::fs::remove_file(&place.image).unwrap();
        tells(&server, "the image was removed while it is served");
        assert_eq!((front.write(SECTORS, 2), front.flush()), (OK, OK), "{cache}: it is served on");
        follow_the_advice(&server.log());
        let saved = std::fs::read(place.path("disk.raw.saved")).unwrap();
        let len = usize::try_from(LEN).unwrap();
        assert_eq!(saved.len() as u64, MIB);
        assert!(
            saved[..len].iter().all(|byte| *byte == 1)
                && saved[len..2 * len].iter().all(|byte| *byte == 2)
        );
        drop(front);
        ends_with_a_loss(server);
    }
}

#[test]
fn replaced_image_is_reported_and_ends_with_error() {
    let place = Place::new(MIB);
    let server = place.serve(&["--queues", "1"]);
    let other = place.path("other.raw");
    std::fs::write(&other, "another").unwrap();
    std::fs::rename(&other, &place.image).unwrap();
    tells(&server, "the image was replaced by another file while it is served");
    ends_with_a_loss(server);
    assert_eq!(std::fs::read(&place.image).unwrap(), b"another");
}

#[test]
fn moved_image_is_reported_and_keeps_data() {
    let place = Place::new(MIB);
    let server = place.serve(&["--queues", "1"]);
    let moved = place.path("moved.raw");
    std::fs::rename(&place.image, &moved).unwrap();
    tells(&server, &format!("the image was moved to {}", moved.display()));
    std::fs::rename(&moved, &place.image).unwrap();
    tells(&server, "the image is at its path again");
    std::fs::rename(&place.image, &moved).unwrap();
    let stopped = server.stop(LIMIT).unwrap();
    assert!(stopped.status.success(), "{}", stopped.log);
    let words = format!("the guest's data are in {}; move it back", moved.display());
    assert!(stopped.log.contains(&words), "{}", stopped.log);
}

#[test]
fn moved_directory_is_reported_at_the_end() {
    let place = Place::new(MIB);
    let inner = place.path("inner");
    std::fs::create_dir(&inner).unwrap();
    let image = inner.join("disk.raw");
    std::fs::rename(&place.image, &image).unwrap();
    let mut command = Command::new(served::vlane());
    command.arg("serve").arg(&image).arg("--socket").arg(&place.socket).args(["--queues", "1"]);
    let server = served::start(&command, &place.socket).unwrap();
    std::fs::rename(&inner, place.path("outer")).unwrap();
    let stopped = server.stop(LIMIT).unwrap();
    assert!(stopped.status.success(), "{}", stopped.log);
    assert!(stopped.log.contains("outer/disk.raw; move it back"), "{}", stopped.log);
}

/// A lazily unmounted file system, which lives on for processes that have a file of it open.
fn unmounted(place: &Place, mount: &[&str]) -> Option<Backend> {
    let run = |words: &[&str]| {
        let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
        output.status.success().then_some(()).ok_or(format!("{words:?}: {output:?}"))
    };
    let at = place.path("mounted");
    std::fs::create_dir(&at).unwrap();
    let words = [mount, &[at.to_str().unwrap()]].concat();
    if let Err(why) = run(&words) {
        vlane_testing::skip(why);
        return None;
    }
    let image = at.join("disk.raw");
    std::fs::File::create(&image).unwrap().set_len(MIB).unwrap();
    let mut command = Command::new(served::vlane());
    command.arg("serve").arg(&image).arg("--socket").arg(&place.socket).args(["--queues", "1"]);
    let server = served::start(&command, &place.socket);
    run(&["umount", "--lazy", at.to_str().unwrap()]).unwrap();
    Some(server.unwrap())
}

#[test]
fn unmounted_memory_image_is_lost_at_end() {
    let place = Place::new(MIB);
    let Some(server) = unmounted(&place, &["mount", "-t", "tmpfs", "none"]) else { return };
    // While it runs, the way back is there.
    let pid = rustix::process::Pid::from_raw(i32::try_from(server.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::USR2).unwrap();
    tells(&server, "the image was unmounted with its file system while it is served");
    let log = server.log();
    let (_, command) = log.rsplit_once("copy them first: `").unwrap();
    let (command, copy) = command.split_once('`').unwrap().0.rsplit_once(' ').unwrap();
    // The directory is there again, and is another one.
    assert_eq!(copy, "/var/tmp/disk.raw.saved");
    let copy = place.path("saved");
    let done =
        Command::new("sh").args(["-c", &format!("{command} {}", copy.display())]).status().unwrap();
    assert!(done.success() && std::fs::metadata(copy).unwrap().len() == MIB, "{command}");
    let stopped = server.stop(LIMIT).unwrap();
    assert_eq!(stopped.status.code(), Some(1), "{}", stopped.log);
    assert!(
        stopped
            .log
            .contains("the image was unmounted while it was served, and the guest's data are lost")
    );
}

#[test]
fn unmounted_disk_image_survives_next_mount() {
    let place = Place::new(MIB);
    let disk = place.path("fs.img");
    std::fs::File::create(&disk).unwrap().set_len(8 * MIB).unwrap();
    let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&disk).status();
    if !made.is_ok_and(|made| made.success()) {
        return vlane_testing::skip("no mkfs.ext4");
    }
    let mount = ["mount", "-o", "loop", disk.to_str().unwrap()];
    let Some(server) = unmounted(&place, &mount) else { return };
    let stopped = server.stop(LIMIT).unwrap();
    assert!(stopped.status.success(), "{}", stopped.log);
    assert!(stopped.log.contains("the guest's data are there; mount it again"), "{}", stopped.log);
}

#[test]
fn unmoved_image_causes_no_warning() {
    let place = Place::new(MIB);
    let server = place.serve(&["--queues", "1"]);
    let mut front = Front::connect(&place.socket);
    // Other names come and go, and so do times and modes.
    let link = place.path("link.raw");
    std::fs::hard_link(&place.image, &link).unwrap();
    std::fs::remove_file(&link).unwrap();
    std::fs::set_permissions(&place.image, std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .unwrap();
    assert_eq!((front.write(0, 1), front.flush()), (OK, OK));
    drop(front);
    assert!(!server.log().contains("the image "), "{}", server.log());
    stop(server);
}
