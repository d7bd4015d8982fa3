//! A real guest kernel, User-Mode Linux, with ext4 on a file volume that vlane serves.

#![allow(clippy::unwrap_used)]

mod common;

use common::{UmlBed, Volume, one_at_a_time, sha256_of, stop};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vlane_guest::ext4;

const MIB: u64 = 1 << 20;

#[test]
fn guest_files_match_on_the_host() {
    let _turn = one_at_a_time();
    let Some(bed) = UmlBed::find() else { return };
    let volume = Volume::new(512 * MIB);
    let backend = volume.serve(&[]);
    // No direct writes below ext4's block of 4 KiB. The kernel pads those from its zero page, which
    // User-Mode Linux does not share.
    let report = bed.run(
        &volume.socket,
        r#"
set -e
mkfs.ext4 -q -F /dev/vda
mount /dev/vda /mnt
mkdir -p /mnt/deep/er
fio --name=mixed --directory=/mnt --size=48m --bsrange=4k-256k --rw=randwrite --direct=1 --ioengine=libaio \
    --iodepth=16 --fsync=64 --verify=crc32c --verify_fatal=1 > /tmp/fio 2>&1 || { cat /tmp/fio; exit 1; }
fio --name=buffered --directory=/mnt/deep --size=24m --bs=4k --rw=write --ioengine=psync --end_fsync=1 \
    --verify=crc32c --verify_fatal=1 > /tmp/fio 2>&1 || { cat /tmp/fio; exit 1; }
dd if=/dev/urandom of=/mnt/deep/er/witness bs=1000 count=3333 2>/dev/null
sync
sum=$(sha256sum /mnt/mixed.0.0 | cut -d' ' -f1)
umount /mnt
echo 3 > /proc/sys/vm/drop_caches
mount -o ro /dev/vda /mnt
[ "$sum" = "$(sha256sum /mnt/mixed.0.0 | cut -d' ' -f1)" ]
echo "RESULT mixed=$sum"
echo "RESULT witness=$(sha256sum /mnt/deep/er/witness | cut -d' ' -f1)"
umount /mnt
e2fsck -fn /dev/vda > /tmp/fsck 2>&1 || { cat /tmp/fsck; exit 1; }
"#,
        &["fio", "mkfs.ext4", "e2fsck"],
    );
    stop(backend);
    ext4::check(&bed.host, &volume.image).unwrap();
    for (key, path) in [("mixed", "/mixed.0.0"), ("witness", "/deep/er/witness")] {
        let content = ext4::read_file(&bed.host, &volume.image, path).unwrap();
        assert!(content.len() > 3_000_000, "{path} has only {} bytes", content.len());
        assert_eq!(sha256_of(&content), report.result(key).unwrap(), "{path}");
    }
}

#[test]
fn database_passes_integrity_check_after_remount() {
    let _turn = one_at_a_time();
    let Some(bed) = UmlBed::find() else { return };
    let volume = Volume::new(256 * MIB);
    let backend = volume.serve(&[]);
    let report = bed.run(
        &volume.socket,
        r#"
set -e
mkfs.ext4 -q -F /dev/vda
mount /dev/vda /mnt
cat > /tmp/fill.sql <<'SQL'
PRAGMA synchronous=FULL;
CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT, body BLOB);
CREATE INDEX by_name ON t(name);
SQL
n=0
while [ $n -lt 40 ]; do
    echo "BEGIN; WITH RECURSIVE c(i) AS (VALUES($((n * 250))) UNION ALL SELECT i+1 FROM c WHERE i < $((n * 250 + 249)))
          INSERT INTO t SELECT i, printf('name-%08x', i * 2654435761 % 4294967296), randomblob(300 + i % 700) FROM c; COMMIT;
          UPDATE t SET body = randomblob(900) WHERE id % 17 = $((n % 17));" >> /tmp/fill.sql
    n=$((n + 1))
done
echo "DELETE FROM t WHERE id % 5 = 3;" >> /tmp/fill.sql
sqlite3 /mnt/base.db < /tmp/fill.sql
before=$(sqlite3 /mnt/base.db "SELECT count(*) || '/' || sum(length(body)) || '/' || max(name) FROM t")
umount /mnt
echo 3 > /proc/sys/vm/drop_caches
mount /dev/vda /mnt
after=$(sqlite3 /mnt/base.db "SELECT count(*) || '/' || sum(length(body)) || '/' || max(name) FROM t")
[ "$before" = "$after" ]
echo "RESULT rows=$(sqlite3 /mnt/base.db 'SELECT count(*) FROM t')"
echo "RESULT integrity=$(sqlite3 /mnt/base.db 'PRAGMA integrity_check')"
umount /mnt
"#,
        &["mkfs.ext4", "sqlite3"],
    );
    stop(backend);
    assert_eq!(report.result("rows").unwrap(), "8000");
    assert_eq!(report.result("integrity").unwrap(), "ok");
    ext4::check(&bed.host, &volume.image).unwrap();
}

#[test]
fn fstrim_frees_blocks_on_the_host() {
    let _turn = one_at_a_time();
    let Some(bed) = UmlBed::find() else { return };
    let volume = Volume::new(512 * MIB);
    let backend = volume.serve(&[]);
    let mut guest = bed.start(
        &volume.socket,
        r#"
set -e
mkfs.ext4 -q -F /dev/vda
mount /dev/vda /mnt
dd if=/dev/urandom of=/mnt/kept bs=1M count=16 2>/dev/null
dd if=/dev/urandom of=/mnt/deleted bs=1M count=160 2>/dev/null
sync
echo "RESULT kept=$(sha256sum /mnt/kept | cut -d' ' -f1)"
echo "RESULT full=1"
read -r go
rm /mnt/deleted
sync
fstrim -v /mnt
sync
echo 3 > /proc/sys/vm/drop_caches
echo "RESULT kept_after=$(sha256sum /mnt/kept | cut -d' ' -f1)"
umount /mnt
"#,
        &["mkfs.ext4", "fstrim"],
    );
    guest.wait_result("full", common::LIMIT).unwrap();
    let full = volume.allocated();
    guest.send("go\n").unwrap();
    let report = common::finished(guest);
    stop(backend);
    let trimmed = volume.allocated();
    assert!(full >= 176 * MIB, "the guest's files take only {full} bytes of the image");
    assert!(
        trimmed + 150 * MIB < full,
        "the image took {full} bytes before fstrim and {trimmed} after it"
    );
    assert_eq!(report.result("kept").unwrap(), report.result("kept_after").unwrap());
    ext4::check(&bed.host, &volume.image).unwrap();
    let kept = ext4::read_file(&bed.host, &volume.image, "/kept").unwrap();
    assert_eq!(sha256_of(&kept), report.result("kept").unwrap());
}

#[test]
fn guest_journal_stays_out_of_page_cache() {
    let _turn = one_at_a_time();
    let Some(bed) = UmlBed::find() else { return };
    let volume = Volume::new(1024 * MIB);
    let control = volume.beside("control");
    let backend = volume.serve(&["--cache", "pdc", "--control", control.to_str().unwrap()]);
    let mut guest = bed.start(&volume.socket, &common::mail(3000, 32), common::MAIL_PROGRAMS);
    guest.wait_result("mailed", common::LIMIT).unwrap();
    common::check_journal_bypass(&volume, &control, 32);
    guest.send("go\n").unwrap();
    common::finished(guest);
    let stopped = stop(backend);
    assert!(stopped.log.contains("an ext4 journal"), "{}", stopped.log);
    ext4::check(&bed.host, &volume.image).unwrap();
}

#[test]
fn guest_journal_bypasses_page_cache() {
    let _turn = one_at_a_time();
    let Some(bed) = UmlBed::find() else { return };
    let volume = Volume::new(1024 * MIB);
    let control = volume.beside("control");
    let backend = volume.serve(&[
        "--cache",
        "pdc",
        "--journal",
        "direct",
        "--control",
        control.to_str().unwrap(),
    ]);
    let mut guest = bed.start(&volume.socket, &common::mail(2000, 64), common::MAIL_PROGRAMS);
    guest.wait_result("mailed", common::LIMIT).unwrap();
    common::check_journal_direct(&volume, &control);
    guest.send("go\n").unwrap();
    common::finished(guest);
    stop(backend);
    ext4::check(&bed.host, &volume.image).unwrap();
}

/// `vlane volume CTL record` of a volume, which has begun.
fn recorder(control: &Path, trace: &Path) -> Child {
    let mut command = Command::new(common::vlane());
    command.arg("record").arg(control).arg("-o").arg(trace).stdin(Stdio::null());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    while !trace.exists() {
        assert!(begin.elapsed() < common::LIMIT, "it records nothing");
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

/// A recorder says that its server was killed. Its trace can be read up to there.
fn is_partial(recorder: Child, trace: &Path) {
    let output = recorder.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(said.contains("PARTIAL: the server broke off"), "{said}");
    let analyzed = Command::new(common::vlane())
        .args(["trace", "analyze", "--json", "-"])
        .arg(trace)
        .output()
        .unwrap();
    assert_eq!(analyzed.status.code(), Some(3), "{analyzed:?}");
    let report: serde_json::Value = serde_json::from_slice(&analyzed.stdout).unwrap();
    let summary = report["summary"][0].as_str().unwrap();
    assert!(summary.contains("requests in") && !summary.contains(" 0.0 % writes"), "{summary}");
}

/// The back end is killed under a guest that writes files and syncs them. The guest's file system
/// is as after a power failure, and has each file that was synced. A recorder of that back end
/// reports a partial recording. `VLANE_GUEST_KILLS=50` kills that often in each cache mode.
#[test]
fn synced_data_survive_killed_back_end() {
    let _turn = one_at_a_time();
    let Some(bed) = UmlBed::find() else { return };
    let given: Option<u32> =
        std::env::var("VLANE_GUEST_KILLS").ok().map(|given| given.parse().unwrap());
    let all: [&[&str]; 5] = [
        &["--cache", "pdc", "--journal", "direct"],
        &["--cache", "pdc"],
        &["--cache", "none"],
        &["--cache", "writeback"],
        &["--cache", "writethrough"],
    ];
    // Those that a kill finds with most to do: the journal goes around the page cache, or is
    // dropped from it.
    let (modes, kills) = given.map_or((&all[..2], 1), |kills| (&all[..], kills));
    for (mode, round) in modes.iter().flat_map(|mode| (0..kills).map(move |round| (*mode, round))) {
        let volume = Volume::new(1024 * MIB);
        let (control, trace) = (volume.beside("control"), volume.beside("guest.trc"));
        let backend = volume.serve(&[mode, &["--control", control.to_str().unwrap()][..]].concat());
        let recorder = recorder(&control, &trace);
        let mut guest = bed.start(
            &volume.socket,
            r#"
set -e
mkfs.ext4 -q -F -b 4096 -J size=8 /dev/vda
mount /dev/vda /mnt
n=0
while :; do
    yes $n | head -c 20000 > /tmp/content
    dd if=/tmp/content of=/mnt/file$n bs=20000 conv=fsync 2>/dev/null
    echo "RESULT synced=$n"
    if [ $n -ge 20 ]; then rm /mnt/file$((n - 20)); echo "RESULT working=1"; fi
    n=$((n + 1))
done
"#,
            &["mkfs.ext4"],
        );
        guest.wait_result("working", common::LIMIT).unwrap();
        std::thread::sleep(Duration::from_millis(100 + u64::from(round) * 137 % 1500));
        backend.kill();
        std::thread::sleep(Duration::from_millis(100));
        guest.kill();
        // Ends with the console: the last word counts, however late it is read.
        assert!(guest.wait_result("nothing", Duration::from_secs(60)).is_err());
        let synced: u64 = guest.results()["synced"].parse().unwrap();
        is_partial(recorder, &trace);
        // Replays the journal.
        let replay = Command::new("e2fsck").arg("-fp").arg(&volume.image).output().unwrap();
        assert!(
            replay.status.code().is_some_and(|code| code <= 1),
            "{mode:?}, {round}: {replay:?}"
        );
        ext4::check(&bed.host, &volume.image).unwrap();
        for n in synced.saturating_sub(18)..=synced {
            let content = ext4::read_file(&bed.host, &volume.image, &format!("/file{n}")).unwrap();
            let expected: Vec<u8> =
                format!("{n}\n").into_bytes().into_iter().cycle().take(20_000).collect();
            assert!(content == expected, "{mode:?}, {round}: file {n} of {synced}");
        }
    }
}

/// The other tests are worth something only if damage would be seen.
#[test]
fn guest_detects_damage_on_the_image() {
    let _turn = one_at_a_time();
    let Some(bed) = UmlBed::find() else { return };
    let volume = Volume::new(64 * MIB);
    let backend = volume.serve(&[]);
    let report = bed.run(
        &volume.socket,
        r#"
fio --name=raw --filename=/dev/vda --size=8m --bs=64k --rw=write --direct=1 --ioengine=psync \
    --verify=crc32c --do_verify=0 > /dev/null 2>&1 && echo "RESULT written=1"
"#,
        &["fio"],
    );
    assert_eq!(report.result("written").unwrap(), "1");
    stop(backend);
    let verify = r#"
fio --name=raw --filename=/dev/vda --size=8m --bs=64k --rw=write --direct=1 --ioengine=psync \
    --verify=crc32c --verify_only=1 > /dev/null 2>&1
echo "RESULT verify=$?"
"#;
    let look = || {
        let backend = volume.serve(&[]);
        let report = bed.run(&volume.socket, verify, &["fio"]);
        stop(backend);
        report.result("verify").unwrap().to_string()
    };
    assert_eq!(look(), "0", "what was written verifies");
    use std::os::unix::fs::FileExt;
    let image = std::fs::OpenOptions::new().write(true).open(&volume.image).unwrap();
    image.write_all_at(&[0x55], 5 * MIB + 4321).unwrap();
    assert_ne!(look(), "0", "one wrong byte is seen");
}

#[test]
fn synced_data_survive_killed_guest() {
    let _turn = one_at_a_time();
    let Some(bed) = UmlBed::find() else { return };
    let volume = Volume::new(256 * MIB);
    let backend = volume.serve(&[]);
    let mut guest = bed.start(
        &volume.socket,
        r#"
set -e
mkfs.ext4 -q -F /dev/vda
mount /dev/vda /mnt
dd if=/dev/urandom of=/mnt/synced bs=64k count=64 conv=fsync 2>/dev/null
sync
echo "RESULT synced=$(sha256sum /mnt/synced | cut -d' ' -f1)"
while :; do dd if=/dev/urandom of=/mnt/unsynced bs=64k count=512 2>/dev/null; done
"#,
        &["mkfs.ext4"],
    );
    let synced = guest.wait_result("synced", common::LIMIT).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    guest.kill();
    // The next guest replays the journal of the one that was killed.
    let report = bed.run(
        &volume.socket,
        r#"
set -e
mount /dev/vda /mnt
echo "RESULT found=$(sha256sum /mnt/synced | cut -d' ' -f1)"
umount /mnt
"#,
        &[],
    );
    stop(backend);
    assert_eq!(report.result("found").unwrap(), synced);
    ext4::check(&bed.host, &volume.image).unwrap();
}
