//! A real guest kernel, User-Mode Linux, on storage that has something about it: allocated as a
//! whole, deleted while it is served, set read-only.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod common;

use std::path::PathBuf;
use std::process::Command;

use common::{LoopDevice, UmlBed, Volume, one_at_a_time, sha256_of, stop};
use vlane_boot::ext4;

const MIB: u64 = 1 << 20;

/// Runs a shell command that has to succeed, and returns its output.
fn sh(command: &str) -> Result<String, String> {
    let output = Command::new("sh").args(["-c", command]).output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(format!("{command}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

#[test]
fn guests_trim_keeps_a_preallocated_image() {
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
        assert_eq!(report.result("most").unwrap() == "0", discard == "off", "what the guest is offered");
        let after = volume.allocated();
        assert!(after >= before, "{discard}: {before} bytes, then {after}");
        ext4::check(&bed.host, &volume.image).unwrap();
        let kept = ext4::read_file(&bed.host, &volume.image, "/kept").unwrap();
        assert_eq!(sha256_of(&kept), report.result("kept").unwrap());
    }
}

#[test]
fn guests_data_are_saved_from_a_deleted_image() {
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
fn guest_sees_a_read_only_device_as_such() {
    let _turn = one_at_a_time();
    let Some(bed) = UmlBed::find() else { return };
    let mut volume = Volume::new(64 * MIB);
    sh(&format!("mkfs.ext4 -q -F {}", volume.image.display())).unwrap();
    let Some(device) = LoopDevice::over(&volume.image, &["--read-only"]) else { return };
    volume.image = device.0.clone();
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
