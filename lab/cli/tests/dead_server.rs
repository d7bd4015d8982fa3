//! A server that was killed while the storage hangs has requests in flight that may still reach it.
//! The next server of the image waits for their end and says so. No write of the dead server lands
//! over a newer one.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod front;
mod frozen;
mod served;

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use front::{Front, SECTORS};
use frozen::{Ext4, run, until};
use rustix::process::{Pid, Signal, kill_process};
use served::{LIMIT, fails, vlane};
use tempfile::TempDir;
use vlane_driver::ring::RequestKind;
use vlane_testing::skip;

const MIB: u64 = 1 << 20;
/// The waiting server's first words, and those after 10 s more.
const WAITS: &str = "waiting for the previous server to release the image";
const STILL_WAITS: &str = "is locked, and no process that runs has it open";
/// Where the dead server's last write goes.
const PLACE: u64 = 100 * SECTORS;
/// Writes that were acknowledged before.
const ACKNOWLEDGED: u64 = 16;

/// A frozen file system with an image in it, or with a loop device on that.
struct Bed {
    ext4: Ext4,
    place: TempDir,
    image: PathBuf,
    device: Option<String>,
}

impl Bed {
    fn new(is_device: bool) -> Result<Bed, String> {
        let ext4 = Ext4::new()?;
        let place = TempDir::with_prefix("vlane-dead-").unwrap();
        let image = ext4.dir.path().join("disk.raw");
        std::fs::write(&image, vec![7; usize::try_from(8 * MIB).unwrap()]).unwrap();
        run("sync", &["-f", image.to_str().unwrap()])?;
        let mut bed = Bed { ext4, place, image: image.clone(), device: None };
        if is_device {
            let words = ["--find", "--show", "--direct-io=on", image.to_str().unwrap()];
            let device = run("losetup", &words)?;
            bed.image = PathBuf::from(&device);
            bed.device = Some(device);
        }
        Ok(bed)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn command(&self, name: &str, options: &[&str]) -> Command {
        let mut command = Command::new(vlane());
        command.arg("serve").arg(&self.image).arg("--socket").arg(self.at(&format!("{name}.sock")));
        command.args(["--queues", "1"]).args(options);
        command
    }

    fn start(&self, name: &str, options: &[&str]) -> Server {
        let (socket, log) = (self.at(&format!("{name}.sock")), self.at(&format!("{name}.log")));
        let mut command = self.command(name, options);
        command.stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap());
        command.env("NOTIFY_SOCKET", self.at("notify"));
        Server { child: command.spawn().unwrap(), socket, log }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.ext4.unfreeze();
        if let Some(device) = &self.device {
            let _ = run("losetup", &["--detach", device]);
        }
    }
}

struct Server {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
}

impl Server {
    fn serves(&mut self) {
        let Server { child, socket, log } = self;
        until("it serves", log, || {
            assert_eq!(
                child.try_wait().unwrap(),
                None,
                "{}",
                std::fs::read_to_string(&*log).unwrap()
            );
            vlane_testing::listens(socket)
        });
    }

    fn says(&self, words: &str) -> usize {
        std::fs::read_to_string(&self.log)
            .unwrap()
            .lines()
            .filter(|line| line.contains(words))
            .count()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn ends(&mut self) -> Option<i32> {
        let Server { child, log, .. } = self;
        let mut status = None;
        until("it ends", log, || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        status.and_then(|status| status.code())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

/// A server is killed with a write in flight, on storage that hangs. The write is known only to the
/// kernel now.
fn killed_in_the_middle(bed: &mut Bed, options: &[&str]) -> Server {
    let mut dead = bed.start("dead", options);
    dead.serves();
    let mut front = Front::connect(&dead.socket);
    for n in 0..ACKNOWLEDGED {
        assert_eq!(front.write(n * SECTORS, 100 + u8::try_from(n).unwrap()), 0);
    }
    assert_eq!(front.write(PLACE, 0), 0);
    assert_eq!(front.flush(), 0);
    bed.ext4.freeze().unwrap();
    front.begin(1, RequestKind::Write, PLACE, 1);
    // By then the kernel has it: on a busy machine that can take seconds.
    until("it hangs", &dead.log, || dead.says("the storage does not answer") == 1);
    assert_eq!(front.answer(1), None, "{options:?}: it does not hang");
    dead.signal(Signal::KILL);
    std::fs::remove_file(&dead.socket).unwrap();
    dead
}

/// A dead server's write of version 1 is in flight; the next one's guest writes version 2 to the
/// same sectors.
fn waits(mut bed: Bed, options: &[&str], told_twice: bool) {
    let manager = UnixDatagram::bind(bed.at("notify")).unwrap();
    manager.set_read_timeout(Some(LIMIT)).unwrap();
    let mut dead = killed_in_the_middle(&mut bed, options);
    while manager.set_nonblocking(true).is_ok() && manager.recv(&mut [0; 4096]).is_ok() {}
    manager.set_nonblocking(false).unwrap();

    let mut next = bed.start("next", options);
    until("it says what it waits for", &next.log, || next.says(WAITS) == 1);
    assert_eq!(next.says(&bed.image.display().to_string()), 1);
    let mut words = [0; 4096];
    let length = manager.recv(&mut words).unwrap();
    let words = String::from_utf8_lossy(&words[..length]).into_owned();
    assert!(
        words.contains("STATUS=waiting: ") && words.contains("EXTEND_TIMEOUT_USEC=20000000"),
        "{words}"
    );
    match told_twice {
        true => until("it says so again", &next.log, || next.says(STILL_WAITS) == 1),
        // Longer than clients wait.
        false => std::thread::sleep(Duration::from_millis(2500)),
    }
    assert!(!next.socket.exists() && next.child.try_wait().unwrap().is_none());
    // A third server can be given a limit for the wait. A signal ends a wait in order, at once.
    let limited = [options, &["--lock-timeout", "300ms"][..]].concat();
    fails(&mut bed.command("third", &limited), &["locked", "no process that runs", "try again"]);
    let mut fourth = bed.start("fourth", options);
    until("the fourth waits", &fourth.log, || fourth.says(WAITS) == 1);
    let begin = Instant::now();
    fourth.signal(Signal::TERM);
    assert_eq!(fourth.ends(), Some(0), "{}", std::fs::read_to_string(&fourth.log).unwrap());
    assert!(begin.elapsed() < Duration::from_secs(20) && !fourth.socket.exists());

    bed.ext4.unfreeze();
    next.serves();
    let mut front = Front::connect(&next.socket);
    for n in 0..ACKNOWLEDGED {
        assert_eq!(
            front.read_byte(n * SECTORS),
            100 + u8::try_from(n).unwrap(),
            "it was acknowledged"
        );
    }
    let before = front.read_byte(PLACE);
    assert!(before <= 1, "neither the old content nor the new one: {before}");
    assert_eq!((front.write(PLACE, 2), front.flush()), (0, 0));
    assert_eq!(dead.ends(), None, "by a signal");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(
        front.read_byte(PLACE),
        2,
        "{options:?}: a dead server's write came over a newer one"
    );
    drop(front);
    next.signal(Signal::TERM);
    assert_eq!(next.ends(), Some(0), "{}", std::fs::read_to_string(&next.log).unwrap());
    let image = std::fs::read(&bed.image).unwrap();
    let at = usize::try_from(PLACE * 512).unwrap();
    assert!(image[at..at + 4096].iter().all(|byte| *byte == 2));
}

fn on(is_device: bool, options: &[&str]) {
    match Bed::new(is_device) {
        Ok(bed) => waits(bed, options, is_device),
        Err(why) => skip(why),
    }
}

#[test]
fn dead_direct_write_never_replaces_newer_data() {
    on(false, &["--cache", "none"]);
}

#[test]
fn dead_buffered_write_never_replaces_newer_data() {
    on(false, &["--cache", "writeback"]);
}

#[test]
fn dead_durable_write_never_replaces_newer_data() {
    on(false, &["--cache", "writethrough"]);
}

#[test]
fn dead_write_never_replaces_dropped_journal_blocks() {
    on(false, &["--cache", "pdc"]);
}

#[test]
fn dead_write_never_replaces_direct_journal_blocks() {
    on(false, &["--cache", "pdc", "--journal", "direct"]);
}

#[test]
fn dead_write_never_replaces_newer_device_data() {
    on(true, &["--cache", "none"]);
}
