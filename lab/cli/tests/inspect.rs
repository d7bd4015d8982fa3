//! `vlane inspect`: its description of an image, for people and for programs.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod served;

use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use served::{Place, stop, vlane};
use vlane_driver::SessionOptions;
use vlane_testing::skip;

const MIB: u64 = 1 << 20;

fn inspect(words: &[&str]) -> Output {
    Command::new(vlane()).arg("inspect").args(words).env_remove("VLANE_LOG").output().unwrap()
}

/// Its output, after success.
fn said(words: &[&str]) -> String {
    let output = inspect(words);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{words:?}: {errors}");
    assert!(errors.is_empty(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Makes an ext4 in an image, `offset` bytes from its beginning. None, said loudly, if there is no
/// mkfs.ext4.
fn mkfs(image: &Path, offset: u64, mib: u64) -> Option<()> {
    let name = vlane_guest::find_program("mkfs.ext4").or_else(|| {
        skip("mkfs.ext4 (e2fsprogs) is missing");
        None
    })?;
    let options =
        format!("-q -F -b 4096 -J size=8 -E lazy_journal_init=1,nodiscard,offset={offset}");
    let mut command = Command::new(name);
    let status =
        command.args(options.split(' ')).arg(image).arg(format!("{mib}m")).output().unwrap().status;
    assert!(status.success());
    Some(())
}

#[test]
fn findings_appear_as_text_and_json() {
    let place = Place::new(128 * MIB);
    let name = place.image.display().to_string();
    if mkfs(&place.image, 0, 128).is_none() {
        return;
    }
    let before = std::fs::read(&place.image).unwrap();
    let text = said(&[&name]);
    for part in ["128 MiB, no partition table", "the whole image: ext4", "journal: 8 MiB in "] {
        assert!(text.contains(part), "{text}");
    }
    let file = place.path("found.json");
    let json = file.display().to_string();
    let server = place.serve(&[]);
    let session = place.connect(&SessionOptions::default());
    assert_eq!(said(&[&name, "--json", &json]), text);
    drop(session);
    stop(server);
    let found: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let ranges = found["journals"][0]["ranges"].clone();
    let lengths = ranges.as_array().unwrap().iter().map(|range| range[1].as_u64().unwrap());
    assert_eq!(lengths.sum::<u64>(), 8 * MIB, "{found}");
    let journal =
        json!({"filesystem": "ext4", "kind": "journal", "way": "layout", "ranges": ranges});
    assert_eq!(found["journals"], json!([journal]));
    assert_eq!((&found["size"], &found["partition_table"]), (&json!(128 * MIB), &Value::Null));
    let whole =
        json!({"partition": null, "range": [0, 128 * MIB], "content": "ext4", "no_journal": null});
    assert_eq!(found["places"], json!([whole]));
    // It has only read.
    assert!(std::fs::read(&place.image).unwrap() == before, "the image was written to");

    // A newer result replaces an older one, and no other file.
    said(&[&name, "--json", &json]);
    std::fs::write(&file, "mine").unwrap();
    let output = inspect(&[&name, "--json", &json]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--force"));
    said(&[&name, "--json", &json, "--force"]);
    assert_eq!(inspect(&[&name, "--json", &name]).status.code(), Some(1));
}

#[test]
fn missing_journal_is_explained() {
    let place = Place::new(64 * MIB);
    let name = place.image.display().to_string();
    let text = said(&[&name]);
    assert!(
        text.contains("no known partition table or file system")
            && text.contains("no journal found"),
        "{text}"
    );
    if mkfs(&place.image, MIB, 60).is_none() {
        return;
    }
    // A partition for it, one for LVM, and one of an unknown type.
    let image = std::fs::File::options().write(true).open(&place.image).unwrap();
    let mut sector = [0; 512];
    for (n, (start, sectors)) in
        [(2048_u32, 61 * 2048_u32), (62 * 2048, 1000), (63 * 2048, 1000)].iter().enumerate()
    {
        let at = 446 + 16 * n;
        sector[at + 4] = 0x83;
        sector[at + 8..at + 12].copy_from_slice(&start.to_le_bytes());
        sector[at + 12..at + 16].copy_from_slice(&sectors.to_le_bytes());
    }
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    image.write_all_at(&sector, 0).unwrap();
    image.write_all_at(b"LABELONE", 62 * MIB + 512).unwrap();
    let text = said(&[&name]);
    for part in [
        "MBR in sectors of 512",
        "partition 1, 61 MiB from byte 1048576",
        "journal: 8 MiB",
        "LVM",
        "no known partition table or file system",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // A superblock that lies about its size.
    image.write_all_at(&[0xff], MIB + 1024 + 6).unwrap();
    let text = said(&[&name]);
    assert!(text.contains("no journal found: ") && text.ends_with("no journal found\n"), "{text}");
}

#[test]
fn other_formats_are_refused_like_serve() {
    let place = Place::new(MIB);
    let file = |name: &str, bytes| {
        std::fs::File::create(place.path(name)).unwrap().set_len(bytes).unwrap();
        place.path(name)
    };
    std::fs::create_dir(place.path("folder")).unwrap();
    let _listener = UnixListener::bind(place.path("listens")).unwrap();
    let qcow2 = file("disk.qcow2", MIB);
    std::fs::File::options().write(true).open(&qcow2).unwrap().write_all_at(b"QFI\xfb", 0).unwrap();
    let cases: [(PathBuf, &str); 7] = [
        (place.path("nowhere.raw"), "no such image"),
        (file("empty.raw", 0), "is empty"),
        (file("odd.raw", 513), "not a multiple of the sector size"),
        (place.path("folder"), "is a directory"),
        ("/dev/null".into(), "neither a regular file nor a block device"),
        (place.path("listens"), "neither a regular file nor a block device"),
        (qcow2.clone(), "looks like a qcow2 image"),
    ];
    for (image, part) in cases {
        let name = image.display().to_string();
        let output = inspect(&[&name]);
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{words}");
        assert!(words.contains(part) && words.contains(&name), "{words}");
        let mut serve = Command::new(vlane());
        serve
            .args(["serve", &name, "--read-only", "--socket"])
            .arg(&place.socket)
            .env_remove("VLANE_LOG");
        let same = String::from_utf8_lossy(&serve.output().unwrap().stderr).into_owned();
        assert_eq!(same.lines().last(), words.lines().last());
    }
    assert!(said(&[&qcow2.display().to_string(), "--format", "raw"]).contains("no journal found"));
}

#[test]
fn known_file_systems_are_named() {
    let size = 256 * MIB;
    let makers: [(&str, &[&str], &str); 6] = [
        ("mkfs.btrfs", &["-q", "-f"], "btrfs"),
        ("mkfs.f2fs", &["-q", "-f"], "f2fs"),
        ("mkswap", &["-q"], "swap space"),
        ("mkfs.vfat", &["-F", "32"], "FAT32"),
        ("mkfs.vfat", &["-F", "16"], "FAT16"),
        ("mkfs.ntfs", &["-q", "-F", "-f"], "NTFS"),
    ];
    for (maker, words, name) in makers {
        let place = Place::new(size);
        // Not all of them are packages that the tests install: the marks themselves are below.
        let Some(program) = vlane_guest::find_program(maker) else { continue };
        let made = Command::new(program).args(words).arg(&place.image).output().unwrap();
        if !made.status.success() {
            skip(format!("{maker}: {}", String::from_utf8_lossy(&made.stderr)));
            continue;
        }
        let text = said(&[&place.image.display().to_string()]);
        assert!(text.contains(&format!("the whole image: {name}")), "{maker}: {text}");
    }
    let marks: [(u64, &[u8], &str); 12] = [
        (65600, b"_BHRfS_M", "btrfs"),
        (1024, b"\x10\x20\xf5\xf2", "f2fs"),
        (4086, b"SWAPSPACE2", "swap space"),
        (82, b"FAT32   ", "FAT32"),
        (54, b"FAT16   ", "FAT16"),
        (3, b"NTFS    ", "NTFS"),
        (3, b"EXFAT   ", "exFAT"),
        (32769, b"CD001\x01", "ISO 9660"),
        (0, b"\xfe\xed\xba\xbe\0\0\0\x01\0\0\0\x02", "the log of an XFS on another device"),
        (0, b"hsqs", "squashfs"),
        (131_072, b"\x0c\xb1\xba\0\0\0\0\0", "ZFS"),
        (4096, b"\xfc\x4e\x2b\xa9\x01\0\0\0", "a member of an MD RAID"),
    ];
    for (at, bytes, name) in marks {
        // On the whole image, and in a partition of one.
        for start in [0, MIB] {
            let place = Place::new(size);
            let image = std::fs::File::options().write(true).open(&place.image).unwrap();
            if start > 0 {
                let mut sector = [0; 512];
                sector[446 + 4] = 0x83;
                sector[446 + 8..446 + 12].copy_from_slice(&2048_u32.to_le_bytes());
                sector[446 + 12..446 + 16].copy_from_slice(&262_144_u32.to_le_bytes());
                sector[510..].copy_from_slice(&[0x55, 0xaa]);
                image.write_all_at(&sector, 0).unwrap();
            }
            image.write_all_at(bytes, start + at).unwrap();
            let text = said(&[&place.image.display().to_string()]);
            assert!(
                text.contains(&format!(": {name}, which is not looked into")),
                "{start}: {text}"
            );
        }
    }
}

#[test]
fn xfs_with_external_log_is_named() {
    let place = Place::new(512 * MIB);
    let log = place.path("log.raw");
    std::fs::File::create(&log).unwrap().set_len(128 * MIB).unwrap();
    let Some(maker) = vlane_guest::find_program("mkfs.xfs") else {
        return skip("there is no mkfs.xfs");
    };
    let (image, log) = (place.image.display().to_string(), log.display().to_string());
    let data = format!("file,name={image},size=512m");
    let words =
        ["-q", "-f", "-d", &data, "-l", &format!("logdev={log},size=100m")].map(str::to_owned);
    let made = Command::new(maker).args(words).output().unwrap();
    if !made.status.success() {
        return skip(format!("mkfs.xfs: {}", String::from_utf8_lossy(&made.stderr)));
    }
    let text = said(&[&image]);
    assert!(
        text.contains("the whole image: xfs") && text.contains("it lies on another device"),
        "{text}"
    );
    assert!(said(&[&log]).contains("the log of an XFS on another device"));
}
