//! A guest continues with the next back end, of the same image or none. Its write cache is as it
//! was, and its size is the image's present one.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::{LIMIT, LoopDevice, QemuBed, Volume, one_at_a_time, signal, stop};
use rustix::process::Signal;
use vlane_guest::{Backend, Guest, Report};

const MIB: u64 = 1 << 20;
/// Writes of one step.
const WRITES: u64 = 50;

/// Executes commands line by line: the first word of a line names its result.
const OBEYS: &str = r#"
echo "RESULT ready=1"
while read -r key command; do
    [ "$key" = end ] && break
    echo "RESULT $key=$(eval "$command" 2>&1 | tr '\n' ' ')"
done
"#;

/// Writes that do not wait in the guest's page cache.
const WRITE: &str = "dd if=/dev/zero of=/dev/vda bs=4k count=50 oflag=direct 2>/dev/null; echo $?";

struct Obedient(Guest);

impl Obedient {
    fn tell(&mut self, key: &str, command: &str) {
        self.0.send(&format!("{key} {command}\n")).unwrap();
    }

    fn ask(&mut self, key: &str, command: &str) -> String {
        self.tell(key, command);
        self.result(key)
    }

    fn result(&self, key: &str) -> String {
        self.0.wait_result(key, LIMIT).unwrap().trim().to_owned()
    }

    /// Writes once more.
    fn writes(&mut self, key: &str) {
        assert_eq!(self.ask(key, WRITE), "0", "{key}");
    }

    /// Waits until the guest sees a disk of that size.
    fn sees(&mut self, key: &str, bytes: u64) {
        let sectors = (bytes / 512).to_string();
        let wait = format!(
            "n=0; while [ $(cat /sys/block/vda/size) != {sectors} -a $n -lt 300 ]; do n=$((n+1)); \
             sleep 0.1; done; cat /sys/block/vda/size"
        );
        assert_eq!(self.ask(key, &wait), sectors, "{key}");
    }

    fn end(mut self) -> Report {
        self.tell("end", "");
        common::finished(self.0)
    }
}

fn grow(image: &Path, bytes: u64) {
    std::fs::OpenOptions::new().write(true).open(image).unwrap().set_len(bytes).unwrap();
}

/// QEMU's monitor.
struct Monitor(BufReader<UnixStream>);

impl Monitor {
    fn connect(path: &Path) -> Monitor {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut monitor = Monitor(BufReader::new(stream));
        monitor.line();
        monitor.execute(r#"{"execute":"qmp_capabilities"}"#);
        monitor
    }

    fn line(&mut self) -> serde_json::Value {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?}"))
    }

    fn execute(&mut self, command: &str) {
        self.0.get_mut().write_all(format!("{command}\n").as_bytes()).unwrap();
        loop {
            let answer = self.line();
            assert!(answer.get("error").is_none(), "{command}: {answer}");
            if answer.get("return").is_some() {
                return;
            }
        }
    }

    fn wait_event(&mut self, name: &str) {
        while self.line()["event"] != name {}
    }
}

struct Place {
    bed: QemuBed,
    volume: Volume,
    qmp: PathBuf,
}

impl Place {
    fn new(bytes: u64) -> Option<Place> {
        let bed = QemuBed::find()?;
        let volume = Volume::new(bytes);
        let qmp = volume.beside("qmp");
        Some(Place { bed, volume, qmp })
    }

    fn serve(&self) -> Backend {
        self.volume.serve(&["--queues", "1", "--cache", "writeback"])
    }

    /// A guest that obeys.
    fn guest(&self, extra: &[&str]) -> Obedient {
        let mut machine = self.bed.machine(&self.volume.socket);
        machine.disks[0].reconnect = true;
        machine.disks[0].queues = Some(1);
        machine.extra =
            ["-qmp".to_owned(), format!("unix:{},server=on,wait=off", self.qmp.display())].to_vec();
        machine.extra.extend(extra.iter().map(|word| (*word).to_owned()));
        let guest = Obedient(self.bed.start(machine, OBEYS, &["dd"]));
        guest.result("ready");
        guest
    }
}

/// The guest switches its write cache off once, and QEMU does not say so to the next back end.
#[test]
fn write_through_survives_restarts() {
    let _turn = one_at_a_time();
    let Some(mut place) = Place::new(16 * MIB) else { return };
    let Some(device) = LoopDevice::over(&place.volume.image, &[]) else { return };
    place.volume.image = device.0.clone();
    let mut server = place.serve();
    let mut guest = place.guest(&[]);
    let off = "echo 'write through' > /sys/block/vda/cache_type; cat /sys/block/vda/cache_type";
    assert_eq!(guest.ask("off", off), "write through");
    let check = |guest: &mut Obedient, key: &str| {
        let before = device.flushes();
        guest.writes(key);
        let made = device.flushes() - before;
        assert!(made >= WRITES, "{key}: {WRITES} writes made {made} syncs");
        println!("{key}: {made} syncs for {WRITES} writes");
    };
    check(&mut guest, "first");
    assert!(common::upgrade(&server).contains("upgraded in place"), "{}", server.log());
    check(&mut guest, "upgraded");
    server.kill();
    server = place.serve();
    check(&mut guest, "killed");
    stop(server);
    server = place.serve();
    check(&mut guest, "stopped");
    // And not for ever: the guest has the last word.
    let on = "echo 'write back' > /sys/block/vda/cache_type; cat /sys/block/vda/cache_type";
    assert_eq!(guest.ask("on", on), "write back");
    server.kill();
    server = place.serve();
    let before = device.flushes();
    guest.writes("back");
    let made = device.flushes() - before;
    assert!(made < WRITES / 2, "{made} syncs though the cache is on");
    guest.end();
    stop(server);
    drop(device);
}

/// QEMU asks for the size once, and heeds no message while its machine is stopped.
#[test]
fn guest_sees_size_changed_around_restart() {
    let _turn = one_at_a_time();
    let Some(place) = Place::new(8 * MIB) else { return };
    let image = &place.volume.image;
    let mut server = place.serve();
    let mut guest = place.guest(&[]);
    let mut monitor = Monitor::connect(&place.qmp);
    guest.sees("first", 8 * MIB);

    // While there is no back end.
    server.kill();
    grow(image, 16 * MIB);
    server = place.serve();
    guest.sees("between", 16 * MIB);

    // QEMU gets the message, and its back end is killed before QEMU acts on it.
    signal(guest.0.id(), Signal::STOP);
    grow(image, 24 * MIB);
    signal(server.id(), Signal::HUP);
    assert!(server.wait_log("the guest is notified", LIMIT), "{}", server.log());
    server.kill();
    signal(guest.0.id(), Signal::CONT);
    server = place.serve();
    guest.sees("before", 24 * MIB);

    // The machine is stopped.
    monitor.execute(r#"{"execute":"stop"}"#);
    grow(image, 32 * MIB);
    signal(server.id(), Signal::HUP);
    assert!(server.wait_log("the guest is notified", LIMIT), "{}", server.log());
    // QEMU has read the message by the time it answers twice.
    (0..2).for_each(|_| monitor.execute(r#"{"execute":"query-status"}"#));
    monitor.execute(r#"{"execute":"cont"}"#);
    guest.sees("stopped", 32 * MIB);
    guest.end();
    stop(server);
}

/// Another image at the same socket is the commonest mistake of all.
#[test]
fn guest_stops_when_image_was_exchanged() {
    let _turn = one_at_a_time();
    let Some(place) = Place::new(8 * MIB) else { return };
    let (right, aside) = (&place.volume.image, place.volume.beside("right.raw"));
    let server = place.serve();
    let mut guest = place.guest(&[]);
    guest.writes("first");
    server.kill();
    std::fs::rename(right, &aside).unwrap();
    std::fs::write(right, vec![0xa5; usize::try_from(8 * MIB).unwrap()]).unwrap();
    let server = place.serve();
    guest.tell("later", WRITE);
    assert!(server.wait_log("--danger-other-image", LIMIT), "{}", server.log());
    let told: Vec<String> =
        server.log().lines().filter(|line| line.contains("ERROR")).map(str::to_owned).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("disk.raw"), "{told:?}");
    std::thread::sleep(Duration::from_millis(1500));
    assert!(!guest.0.results().contains_key("later"), "the guest wrote somewhere");
    // Nor does it after an upgrade.
    assert!(common::upgrade(&server).contains("not upgraded"), "{}", server.log());
    stop(server);
    assert!(
        std::fs::read(right).unwrap().iter().all(|byte| *byte == 0xa5),
        "the other image was written to"
    );
    // The right one, which has been renamed and came back.
    std::fs::remove_file(right).unwrap();
    std::fs::rename(&aside, right).unwrap();
    let server = place.serve();
    assert_eq!(guest.result("later"), "0");
    guest.end();
    stop(server);
}

/// The same connection serves a device that goes and one that comes: QEMU brings its memory again,
/// and took none of it away. When the device goes, everything that was answered is on the storage.
#[test]
fn device_returns_on_the_same_connection() {
    let _turn = one_at_a_time();
    let Some(place) = Place::new(8 * MIB) else { return };
    let server = place.serve();
    let mut second = Volume::new(16 * MIB);
    // Another host would find the data in the file, behind the device's page cache.
    let Some(device) = LoopDevice::over(&second.image, &[]) else { return };
    let file = std::mem::replace(&mut second.image, device.0.clone());
    let plugged = second.serve(&["--queues", "1", "--cache", "writeback"]);
    // No `reconnect`.
    let chardev = format!("socket,id=plugged,path={}", second.socket.display());
    let mut guest =
        place.guest(&["-chardev", &chardev, "-device", "pcie-root-port,id=plug,chassis=1,slot=1"]);
    let mut monitor = Monitor::connect(&place.qmp);
    let add = r#"{"execute":"device_add","arguments":{"driver":"vhost-user-blk-pci","chardev":"plugged","id":"new","bus":"plug","num-queues":1}}"#;
    let wait = "n=0; while [ ! -e /sys/block/vdb -a $n -lt 300 ]; do n=$((n+1)); sleep 0.1; done";
    let write = "tr '\\0' x < /dev/zero | dd of=/dev/vdb bs=4k count=8 iflag=fullblock \
                 oflag=direct 2>/dev/null; echo $?";
    for round in ["one", "two"] {
        monitor.execute(add);
        assert_eq!(guest.ask(round, &format!("{wait}; {write}")), "0", "{}", plugged.log());
        if round == "one" {
            monitor.execute(r#"{"execute":"device_del","arguments":{"id":"new"}}"#);
            let begin = Instant::now();
            monitor.wait_event("DEVICE_DELETED");
            println!("unplugged after {:?}", begin.elapsed());
            let written =
                std::fs::read(&file).unwrap()[..8 * 4096].iter().all(|byte| *byte == b'x');
            assert!(written, "what was answered is in the page cache only");
        }
    }
    assert_eq!(plugged.log().matches(": front end pid").count(), 1, "{}", plugged.log());
    assert!(!plugged.log().contains("refused"), "{}", plugged.log());
    guest.end();
    stop(plugged);
    stop(server);
    drop(device);
}
