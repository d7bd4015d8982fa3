//! A real guest kernel, User-Mode Linux, on storage that has something about it: allocated as a
//! whole, deleted while it is served, set read-only.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{LIMIT, LoopDevice, UmlBed, Volume, one_at_a_time, sha256_of, stop};
use vlane_guest::{Backend, Initramfs, Ready, Spec, Uml, ext4};

const MIB: u64 = 1 << 20;

/// Runs a shell command that has to succeed, and returns its output.
fn sh(command: &str) -> Result<String, String> {
    let output =
        Command::new("sh").args(["-c", command]).output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(format!("{command}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

#[test]
fn guest_trim_keeps_preallocated_image() {
    let _turn = one_at_a_time();
    let Some(bed) = UmlBed::find() else { return };
    let size = 32 * MIB;
    for discard in ["keep", "off"] {
        let volume = Volume::new(size);
        if let Err(why) = sh(&format!("fallocate -l {size} {}", volume.image.display())) {
            return vlane_testing::skip(why);
        }
        let before = volume.allocated();
        assert!(before >= size);
        let backend = volume.serve(&["--discard", discard]);
        let report = bed.run(
            &volume.socket,
            r#"
set -e
mkfs.ext4 -q -F /dev/vda
mount /dev/vda /mnt
dd if=/dev/urandom of=/mnt/deleted bs=1M count=12 2>/dev/null
dd if=/dev/urandom of=/mnt/kept bs=1M count=4 2>/dev/null
sync
rm /mnt/deleted
sync
fstrim /mnt 2>/dev/null || true
echo "RESULT kept=$(sha256sum /mnt/kept | cut -d' ' -f1)"
echo "RESULT most=$(cat /sys/block/vda/queue/discard_max_bytes)"
umount /mnt
"#,
            &["mkfs.ext4", "fstrim"],
        );
        stop(backend);
        assert_eq!(
            report.result("most").unwrap() == "0",
            discard == "off",
            "what the guest is offered"
        );
        let after = volume.allocated();
        assert!(after >= before, "{discard}: {before} bytes, then {after}");
        ext4::check(&bed.host, &volume.image).unwrap();
        let kept = ext4::read_file(&bed.host, &volume.image, "/kept").unwrap();
        assert_eq!(sha256_of(&kept), report.result("kept").unwrap());
    }
}

#[test]
fn guest_data_are_rescued_from_deleted_image() {
    let _turn = one_at_a_time();
    let Some(bed) = UmlBed::find() else { return };
    let volume = Volume::new(32 * MIB);
    let backend = volume.serve(&[]);
    std::fs::remove_file(&volume.image).unwrap();
    let told = "the image was removed while it is served";
    assert!(backend.wait_log(told, common::LIMIT), "{}", backend.log());
    let mut guest = bed.start(
        &volume.socket,
        r#"
set -e
mkfs.ext4 -q -F /dev/vda
mount /dev/vda /mnt
dd if=/dev/urandom of=/mnt/witness bs=1000 count=3333 2>/dev/null
echo "RESULT witness=$(sha256sum /mnt/witness | cut -d' ' -f1)"
umount /mnt
echo "RESULT written=1"
read -r go
"#,
        &["mkfs.ext4"],
    );
    guest.wait_result("written", common::LIMIT).unwrap();
    let log = backend.log();
    let (_, advice) = log.rsplit_once("copy them first: `").unwrap();
    sh(advice.split_once('`').unwrap().0).unwrap();
    guest.send("go\n").unwrap();
    let report = common::finished(guest);
    let stopped = backend.stop(common::LIMIT).unwrap();
    assert_eq!(stopped.status.code(), Some(1), "{}", stopped.log);
    assert!(stopped.log.contains("the guest's data are lost with this process"), "{}", stopped.log);
    let saved = PathBuf::from(format!("{}.saved", volume.image.display()));
    ext4::check(&bed.host, &saved).unwrap();
    let witness = ext4::read_file(&bed.host, &saved, "/witness").unwrap();
    assert_eq!(sha256_of(&witness), report.result("witness").unwrap());
}

#[test]
fn guest_sees_read_only_device() {
    let _turn = one_at_a_time();
    let Some(bed) = UmlBed::find() else { return };
    let mut volume = Volume::new(64 * MIB);
    sh(&format!("mkfs.ext4 -q -F {}", volume.image.display())).unwrap();
    let Some(device) = LoopDevice::over(&volume.image, &["--read-only"]) else { return };
    volume.image = device.0.clone();
    is_refused(&volume, &volume.image, "the device is set read-only");
    let backend = volume.serve(&["--read-only"]);
    let report = bed.run(
        &volume.socket,
        r#"
set -e
echo "RESULT ro=$(cat /sys/block/vda/ro)"
mount -o ro,noload /dev/vda /mnt
ls /mnt > /dev/null
umount /mnt
"#,
        &[],
    );
    stop(backend);
    assert_eq!(report.result("ro").unwrap(), "1");
}

/// A partition of a loop device, in sectors, by a node of our own: none may be made in /dev
/// everywhere.
struct Partition<'a> {
    disk: &'a LoopDevice,
    number: u32,
    node: PathBuf,
}

impl<'a> Partition<'a> {
    fn new(
        volume: &Volume,
        disk: &'a LoopDevice,
        number: u32,
        start: u64,
        len: u64,
    ) -> Result<Partition<'a>, String> {
        let (at, node) = (disk.0.display(), volume.beside(&format!("partition{number}")));
        let name = format!("{}p{number}", disk.0.file_name().unwrap().display());
        // A loop device keeps partitions that were made like this when it is detached.
        let _ = sh(&format!("delpart {at} {number}"));
        sh(&format!("addpart {at} {number} {start} {len}"))?;
        let partition = Partition { disk, number, node };
        let numbers = disk.in_sys().join(name).join("dev");
        sh(&format!("mknod {} b $(tr : ' ' < {})", partition.node.display(), numbers.display()))?;
        Ok(partition)
    }
}

impl Drop for Partition<'_> {
    fn drop(&mut self) {
        let _ = sh(&format!("delpart {} {}", self.disk.0.display(), self.number));
    }
}

/// Serves something beside a volume's own image.
fn serve(image: &Path, socket: &Path) -> Backend {
    let words = ["serve".as_ref(), image.as_os_str(), "--socket".as_ref(), socket.as_os_str()];
    let spec = Spec::new(common::vlane(), words);
    Backend::start_within(LIMIT, &spec, socket, Ready::Line("listening on"), None)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// An image is not served, for a reason.
fn is_refused(volume: &Volume, image: &Path, why: &str) {
    let socket = volume.beside("refused.sock");
    let mut command = Command::new("timeout");
    let output = command
        .args(["60", common::vlane(), "serve"])
        .arg(image)
        .arg("--socket")
        .arg(socket)
        .output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{}: {said}", image.display());
    assert!(said.contains(why) && said.contains("--read-only"), "{}: {said}", image.display());
}

#[test]
fn guest_uses_partitions_as_two_disks() {
    let _turn = one_at_a_time();
    let Some(bed) = UmlBed::find() else { return };
    let volume = Volume::new(40 * MIB);
    let Some(disk) = LoopDevice::over(&volume.image, &[]) else { return };
    let places = [(MIB, 16 * MIB), (17 * MIB, 16 * MIB)];
    let made = |number: u32| {
        let (start, len) = places[number as usize - 1];
        Partition::new(&volume, &disk, number, start / 512, len / 512)
    };
    let [first, second] = match made(1).and_then(|first| Ok([first, made(2)?])) {
        Ok(partitions) => partitions,
        Err(why) => return vlane_testing::skip(why),
    };
    let sockets = [volume.beside("first.sock"), volume.beside("second.sock")];
    let backends = [serve(&first.node, &sockets[0]), serve(&second.node, &sockets[1])];
    // The whole disk, its file and another device on that have the bytes of both.
    let Some(again) = LoopDevice::over(&volume.image, &[]) else { return };
    let Some(part) = LoopDevice::over(&volume.image, &["--offset=18M", "--sizelimit=1M"]) else {
        return;
    };
    for other in [&disk.0, &volume.image, &again.0, &part.0] {
        is_refused(&volume, other, "two writers would ruin it");
    }
    let script = r#"
set -e
for disk in a b; do
    mkfs.ext4 -q -F /dev/vd$disk
    mkdir /mnt/$disk
    mount /dev/vd$disk /mnt/$disk
done
for disk in a b; do dd if=/dev/urandom of=/mnt/$disk/witness bs=1000 count=3333 2>/dev/null & done
wait
for disk in a b; do
    echo "RESULT $disk=$(sha256sum /mnt/$disk/witness | cut -d' ' -f1)"
    umount /mnt/$disk
done
"#;
    let machine = Uml::new(bed.program.clone(), sockets);
    let guest = Initramfs::new(script).programs(["mkfs.ext4"]);
    let report = common::finished(machine.start_with(&bed.host, &guest, LIMIT, None).unwrap());
    backends.into_iter().for_each(|backend| drop(stop(backend)));
    let bytes = std::fs::read(&volume.image).unwrap();
    for ((start, len), key) in places.into_iter().zip(["a", "b"]) {
        let copy = volume.beside(key);
        let range = usize::try_from(start).unwrap()..usize::try_from(start + len).unwrap();
        std::fs::write(&copy, &bytes[range]).unwrap();
        ext4::check(&bed.host, &copy).unwrap();
        let witness = ext4::read_file(&bed.host, &copy, "/witness").unwrap();
        assert_eq!(sha256_of(&witness), report.result(key).unwrap(), "{key}");
    }
    // This host mounts the guest's file system by another device: only the other partition is free.
    let Some(mounted) = LoopDevice::over(&volume.image, &["--offset=1M", "--sizelimit=16M"]) else {
        return;
    };
    let place = volume.beside("mounted");
    std::fs::create_dir(&place).unwrap();
    sh(&format!("mount {} {}", mounted.0.display(), place.display())).unwrap();
    let tried = std::panic::catch_unwind(|| {
        for other in [&first.node, &disk.0, &again.0, &volume.image] {
            is_refused(&volume, other, &format!("mounted at {}", place.display()));
        }
        stop(serve(&second.node, &volume.socket));
    });
    sh(&format!("umount {}", place.display())).unwrap();
    tried.unwrap_or_else(|why| std::panic::resume_unwind(why));
}

/// A mount that ends when it is dropped, once processes that still have it open are gone.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = sh(&format!(
            "for n in $(seq 50); do umount {0} && exit; sleep 0.1; done; umount --lazy {0}",
            self.0.display()
        ));
    }
}

#[test]
fn guest_data_on_btrfs_use_page_cache() {
    let _turn = one_at_a_time();
    let Some(bed) = UmlBed::find() else { return };
    let mut volume = Volume::new(256 * MIB);
    let place = volume.beside("mounted");
    std::fs::create_dir(&place).unwrap();
    let (disk, at) = (volume.image.display(), place.display());
    let made = format!("mkfs.btrfs -q -f -m single {disk} && mount -o loop {disk} {at}");
    if let Err(why) = sh(&made) {
        return vlane_testing::skip(why);
    }
    let _mounted = Mounted(place.clone());
    volume.image = place.join("disk.raw");
    std::fs::File::create(&volume.image).unwrap().set_len(64 * MIB).unwrap();
    let warning = "with --cache none a guest that changes data while they are written";
    let log = stop(volume.serve(&["--cache", "none"])).log;
    assert!(log.lines().any(|line| line.contains("WARN") && line.contains(warning)), "{log}");
    let backend = volume.serve(&[]);
    assert!(backend.wait_log("using --cache writeback", common::LIMIT), "{}", backend.log());
    assert!(!backend.log().contains(warning), "{}", backend.log());
    // A page is written from the guest's page cache while a program keeps changing it.
    let script = r#"
set -e
mkfs.ext4 -q -F /dev/vda
mount /dev/vda /mnt
fio --name=changed --filename=/mnt/file --size=4m --bs=4k --rw=randwrite --ioengine=mmap --time_based --runtime=2 \
    --sync_file_range=write:8 > /tmp/fio 2>&1 || { cat /tmp/fio; exit 1; }
umount /mnt
"#;
    bed.run(&volume.socket, script, &["fio", "mkfs.ext4"]);
    stop(backend);
    // Each block is read, and has its checksum.
    assert_eq!(std::fs::read(&volume.image).unwrap().len() as u64, 64 * MIB);
    ext4::check(&bed.host, &volume.image).unwrap();
}
