//! Images that are not raw are refused before anything else is said of them, and images that a loop
//! device writes to as well.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests may")]

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;

use common::places::{Loop, alone, command, image, on_disk};
use vlane_engine::file::{FileEngine, FileOptions, user_of};
use vlane_engine::{EngineError, ErrorKind};
use vlane_testing::skip;

fn open(path: &Path, options: FileOptions) -> Result<FileEngine, EngineError> {
    FileEngine::open(path, options)
}

/// Opens an unused image: a program that another test starts has this one's descriptors for a
/// moment, and so a claim that is over.
fn open_unused(path: &Path, options: FileOptions) -> Result<FileEngine, EngineError> {
    let begin = std::time::Instant::now();
    loop {
        match open(path, options) {
            Err(error) if error.kind() == ErrorKind::Locked && begin.elapsed().as_secs() < 20 => {}
            opened => return opened,
        }
    }
}

fn put(path: &Path, at: u64, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

/// A size that no raw image has, and one that a raw image may have.
const SIZES: [u64; 2] = [197_000, 1 << 20];

/// It is refused at any size, and served when its user says that it is raw.
#[test]
fn image_of_another_format_is_refused() {
    let _alone = alone();
    let dir = on_disk();
    let marks: [(&str, i64, &[u8]); 12] = [
        ("qcow2", 0, b"QFI\xfb\0\0\0\x03"),
        ("qed", 0, b"QED\0"),
        ("vmdk", 0, b"KDMV"),
        ("vmdk", 0, b"COWD"),
        ("vmdk", 0, b"# Disk DescriptorFile\nversion=1"),
        ("vdi", 0x40, b"\x7f\x10\xda\xbe"),
        ("vhdx", 0, b"vhdxfile"),
        ("vpc", 0, b"conectix"),
        ("vpc", -512, b"conectix"),
        ("vpc", -511, b"conectix"),
        ("parallels", 0, b"WithoutFreeSpace"),
        ("parallels", 0, b"WithouFreSpacExt"),
    ];
    for (format, at, mark) in marks {
        for size in SIZES {
            let path = image(dir.path(), size);
            put(
                &path,
                size.checked_add_signed(at).filter(|_| at < 0).unwrap_or(at.unsigned_abs()),
                mark,
            );
            for read_only in [false, true] {
                let error = open_unused(&path, FileOptions { read_only, ..FileOptions::default() })
                    .expect_err(format);
                assert_eq!(error.kind(), ErrorKind::Format, "{error}");
                let text = error.to_string();
                assert!(
                    text.contains(format)
                        && text.contains("--format raw")
                        && !text.contains("truncate"),
                    "{text}"
                );
            }
            let raw = open_unused(&path, FileOptions { raw: true, ..FileOptions::default() });
            match size.is_multiple_of(512) {
                true => drop(raw.expect("served as raw")),
                false => assert_eq!(raw.expect_err("of no legal size").kind(), ErrorKind::OddSize),
            }
        }
    }
}

#[test]
fn formats_of_qemu_img_are_recognized() {
    let _alone = alone();
    let dir = on_disk();
    for (format, options) in [
        ("qcow2", ""),
        ("qcow", ""),
        ("vmdk", ""),
        ("vmdk", "subformat=monolithicFlat"),
        ("vdi", ""),
        ("vhdx", ""),
        ("vpc", "subformat=dynamic"),
        ("vpc", "subformat=fixed"),
        ("qed", ""),
        ("parallels", ""),
    ] {
        let path = dir.path().join(format!("image.{format}"));
        let name = path.to_str().unwrap();
        let mut words = vec!["create", "-q", "-f", format];
        if !options.is_empty() {
            words.extend(["-o", options]);
        }
        words.extend([name, "4M"]);
        if let Err(why) = command("qemu-img", &words) {
            // One that was built without this format is no reason to leave out the others.
            assert!(why.contains("Unknown file format") || why.contains("No such file"), "{why}");
            if why.contains("No such file") {
                return skip("there is no qemu-img");
            }
            continue;
        }
        let error = open_unused(&path, FileOptions::default()).expect_err(format);
        assert_eq!(error.kind(), ErrorKind::Format, "{format} {options}: {error}");
    }
}

/// Formats that distributions ship, and the program that packs each: `{}` is the file.
const PACKERS: [(&str, &str, &str); 7] = [
    ("xz", "xz -k -0 {}", "xz"),
    ("gzip", "gzip -k {}", "gz"),
    ("zstd", "zstd -q -k {}", "zst"),
    ("bzip2", "bzip2 -k {}", "bz2"),
    ("lz4", "lz4 -q -k {} {}.lz4", "lz4"),
    ("zip", "zip -q {}.zip {}", "zip"),
    ("tar", "tar -cPf {}.tar {}", "tar"),
];

#[test]
fn packed_image_is_refused_and_unchanged() {
    let _alone = alone();
    let dir = on_disk();
    for (name, packer, suffix) in PACKERS {
        let path = image(dir.path(), 1 << 20);
        put(&path, 0, &[0xeb, 0x63, 0x90, 7, 7, 7]);
        let line = packer.replace("{}", path.to_str().unwrap());
        let mut words = line.split(' ');
        let program = words.next().unwrap();
        if let Err(why) = command(program, &words.collect::<Vec<_>>()) {
            skip(why);
            continue;
        }
        let packed = dir.path().join(format!("image.raw.{suffix}"));
        // One of a length that a raw image may have, and one that none has.
        let length = std::fs::metadata(&packed).unwrap().len();
        for length in [length.next_multiple_of(512), length.next_multiple_of(512) + 1] {
            let file = std::fs::OpenOptions::new().write(true).open(&packed).unwrap();
            file.set_len(length).unwrap();
            let before = std::fs::read(&packed).unwrap();
            for read_only in [false, true] {
                let error =
                    open_unused(&packed, FileOptions { read_only, ..FileOptions::default() })
                        .expect_err(name);
                assert_eq!(error.kind(), ErrorKind::Format, "{error}");
                let text = error.to_string();
                let parts = [name, "unpack it first", packed.to_str().unwrap(), "--format raw"];
                assert!(
                    parts.iter().all(|part| text.contains(part)) && !text.contains("truncate"),
                    "{text}"
                );
            }
            let raw = open_unused(&packed, FileOptions { raw: true, ..FileOptions::default() });
            assert_eq!(raw.is_ok(), length.is_multiple_of(512), "{name}: {raw:?}");
            assert!(std::fs::read(&packed).unwrap() == before, "{name}: it was written to");
        }
        std::fs::remove_file(&packed).unwrap();
    }
}

#[test]
fn disk_beginning_like_archive_is_served() {
    let _alone = alone();
    let dir = on_disk();
    let magics: [&[u8]; 8] = [
        b"\xfd7zXZ\0",
        b"\x1f\x8b\x08",
        b"\x28\xb5\x2f\xfd",
        b"BZh9",
        b"PK\x03\x04",
        b"\x04\x22\x4d\x18",
        b"LZIP",
        b"7z\xbc\xaf\x27\x1c",
    ];
    for magic in magics {
        let path = image(dir.path(), 1 << 20);
        put(&path, 0, &[0xf6; 512]);
        put(&path, 0, magic);
        drop(
            open_unused(&path, FileOptions::default())
                .unwrap_or_else(|error| panic!("{magic:?}: {error}")),
        );
    }
}

#[test]
fn guest_s_encryption_and_partitions_are_raw() {
    let _alone = alone();
    let dir = on_disk();
    for mark in [&b"LUKS\xba\xbe\0\x02"[..], b"EFI PART", b"\xeb\x63\x90", b"\0\0\0\0"] {
        let path = image(dir.path(), 1 << 20);
        put(&path, 0, mark);
        drop(open(&path, FileOptions::default()).expect("served"));
    }
}

/// A file system that is mounted from a loop device; gone when it is dropped.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn new(device: &str) -> Result<Mounted, String> {
        let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
        command("mount", &[device, &dir.path().to_string_lossy()])?;
        Ok(Mounted(dir))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = command("umount", &[&self.0.path().to_string_lossy()]);
    }
}

#[test]
fn image_with_mounted_loop_is_read_only() {
    let _alone = alone();
    let dir = on_disk();
    let path = image(dir.path(), 32 << 20);
    let device = match Loop::new(&path, 512) {
        Ok(device) => device,
        Err(why) => return skip(why),
    };
    let node = device.device.to_str().unwrap();
    // Attached, and not used: that is said, and the image is served.
    drop(open(&path, FileOptions::default()).expect("only attached"));
    assert!(user_of(&path).unwrap().is_some_and(|user| user.contains(node)));
    if let Err(why) = command("mkfs.ext4", &["-q", node]) {
        return skip(why);
    }
    let mounted = Mounted::new(node).unwrap();
    let error = open(&path, FileOptions::default()).expect_err("mounted");
    assert_eq!(error.kind(), ErrorKind::Locked);
    let text = error.to_string();
    let place = mounted.0.path().to_str().unwrap();
    assert!(text.contains(node) && text.contains(place) && text.contains("--read-only"), "{text}");
    // And the device itself.
    assert_eq!(
        open(&device.device, FileOptions::default()).expect_err("mounted").kind(),
        ErrorKind::Locked
    );
    drop(
        open(&path, FileOptions { read_only: true, ..FileOptions::default() })
            .expect("for readers"),
    );
    drop(mounted);
    drop(open(&path, FileOptions::default()).expect("free again"));
    drop(device);
    assert_eq!(user_of(&path).unwrap(), None);
}

/// A program that another thread starts has all open files for a moment, and with them the locks.
#[test]
fn user_that_ends_is_no_user() {
    let _alone = alone();
    let dir = on_disk();
    let path = image(dir.path(), 1 << 20);
    // On a busy machine the moment can be too long: one of these is enough.
    let is_unused = || {
        let served = open(&path, FileOptions::default()).expect("served");
        let ends = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            drop(served);
        });
        let user = user_of(&path).unwrap();
        ends.join().unwrap();
        user.is_none()
    };
    assert!((0..20).any(|_| is_unused()));
}

/// At most one of the two has a writer.
#[test]
fn loop_device_and_its_image_exclude_writers() {
    let _alone = alone();
    let dir = on_disk();
    let path = image(dir.path(), 32 << 20);
    let device = match Loop::new(&path, 512) {
        Ok(device) => device,
        Err(why) => return skip(why),
    };
    let below = open(&path, FileOptions::default()).expect("the image");
    assert!(user_of(&path).unwrap().is_some_and(|user| user.contains("locked")));
    let error =
        open(&device.device, FileOptions::default()).expect_err("the image below is served");
    assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
    drop(below);
    let above = open(&device.device, FileOptions::default()).expect("the device");
    let error = open(&path, FileOptions::default()).expect_err("the device above is served");
    assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
    drop(above);
    drop(open(&path, FileOptions::default()).expect("free again"));
}

#[test]
fn loop_partition_counts_as_its_device() {
    let _alone = alone();
    let dir = on_disk();
    let path = image(dir.path(), 32 << 20);
    let device = match Loop::new(&path, 512) {
        Ok(device) => device,
        Err(why) => return skip(why),
    };
    let node = device.device.to_str().unwrap();
    // A loop device keeps partitions that were made like this when it is detached, for its next
    // user.
    struct Partition<'a>(&'a str);
    impl Drop for Partition<'_> {
        fn drop(&mut self) {
            let _ = command("delpart", &[self.0, "1"]);
        }
    }
    drop(Partition(node));
    let _partition = Partition(node);
    // Not by a partition table: kernels without a reader for it have loop devices, too.
    if let Err(why) = command("addpart", &[node, "1", "2048", "63488"]) {
        return skip(why);
    }
    // The test uses its own node: it may make none in /dev here.
    let name = node.trim_start_matches("/dev/");
    let number =
        std::fs::read_to_string(format!("/sys/block/{name}/{name}p1/dev")).expect("a partition");
    let (major, minor) = number.trim().split_once(':').unwrap();
    let partition = dir.path().join("partition").to_str().unwrap().to_owned();
    if let Err(why) = command("mknod", &[&partition, "b", major, minor]) {
        return skip(why);
    }
    if let Err(why) = command("mkfs.ext4", &["-q", &partition]) {
        return skip(why);
    }
    let mounted = Mounted::new(&partition).unwrap();
    for path in [&path, &device.device] {
        let error = open(path, FileOptions::default()).expect_err("its partition is mounted");
        assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
    }
    drop(mounted);
    drop(open(&path, FileOptions::default()).expect("free again"));
}
