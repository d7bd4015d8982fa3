use std::os::unix::fs::symlink;

use proptest::prelude::*;

use super::*;

const FILES: u64 = 3;

fn file(ino: u64) -> Thing {
    Thing::File { dev: 1, ino }
}

/// Loop devices and partitions, each on a file or on an earlier one: where on it, and how long.
fn ranges() -> impl Strategy<Value = Vec<(u64, u64, u64)>> {
    proptest::collection::vec((0..12u64, 0..40u64, 1..40u64), 1..10)
}

/// The stack of these, and for each device the bytes of files that are its own, by a walk from byte
/// to byte.
fn built(ranges: &[(u64, u64, u64)]) -> (Stack, Vec<Vec<(u64, u64)>>) {
    let mut stack = Stack::default();
    let mut bytes: Vec<Vec<(u64, u64)>> = Vec::new();
    for (at, (on, start, len)) in ranges.iter().enumerate() {
        let on = on % (FILES + at as u64);
        let (of, own) = match on.checked_sub(FILES) {
            None => (file(on), (*start..start + len).map(|byte| (on, byte)).collect::<Vec<_>>()),
            Some(lower) => {
                let lower = usize::try_from(lower).expect("small");
                let below = bytes[lower].iter().skip(usize::try_from(*start).expect("small"));
                let own = below.take(usize::try_from(*len).expect("small")).copied().collect();
                (Thing::Device(lower as u64), own)
            }
        };
        // The end of a lower device is the end of an upper one.
        let range = match of {
            Thing::Device(lower) => {
                let end = stack.devices[&lower].size;
                (*start).min(end)..(start + len).min(end)
            }
            Thing::File { .. } => *start..start + len,
        };
        let size = range.end - range.start;
        let lower = vec![Extent { of, range, is_exact: true, is_claimed: false }];
        stack.devices.insert(at as u64, Device { size, lower, ..Device::default() });
        bytes.push(own);
    }
    (stack, bytes)
}

proptest! {
    #[test]
    fn devices_conflict_when_they_share_bytes(ranges in ranges()) {
        let (stack, bytes) = built(&ranges);
        for (a, ours) in bytes.iter().enumerate() {
            for (b, theirs) in bytes.iter().enumerate().filter(|(b, _)| *b != a) {
                let found = stack.shared(Thing::Device(a as u64), Thing::Device(b as u64));
                let expected = ours.iter().any(|byte| theirs.contains(byte)).then_some(Shared::Surely);
                prop_assert_eq!(found, expected, "{} and {} of {:?}", a, b, stack);
            }
            for n in 0..FILES {
                let expected = ours.iter().any(|(of, _)| *of == n).then_some(Shared::Surely);
                prop_assert_eq!(stack.shared(Thing::Device(a as u64), file(n)), expected);
                prop_assert_eq!(stack.shared(file(n), Thing::Device(a as u64)), expected);
            }
        }
    }
}

#[test]
fn circle_of_devices_ends_the_walk() {
    let on = |other: u64| Device {
        size: 100,
        lower: vec![Extent {
            of: Thing::Device(other),
            range: 10..110,
            is_exact: true,
            is_claimed: false,
        }],
        ..Device::default()
    };
    let stack = Stack { devices: [(1, on(2)), (2, on(1))].into() };
    assert!(stack.layers(Thing::Device(1)).len() <= 2 * DEEPEST);
}

/// A tree as `/sys` has it.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Tree {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(dir.path().join("dev/block")).expect("a directory");
        Tree(dir)
    }

    /// A device, or a partition of `disk`, with these files.
    fn add(&self, path: &str, number: &str, files: &[(&str, &str)]) {
        let directory = self.0.path().join("block").join(path);
        std::fs::create_dir_all(directory.join("slaves")).expect("a directory");
        let all = [("dev", number)];
        for (name, text) in files.iter().chain(&all) {
            let file = directory.join(name);
            std::fs::create_dir_all(file.parent().expect("a parent")).expect("a directory");
            std::fs::write(file, format!("{text}\n")).expect("a file");
        }
        symlink(&directory, self.0.path().join("dev/block").join(number)).expect("a link");
    }

    fn lies_on(&self, upper: &str, lower: &str) {
        let at = |path: &str| self.0.path().join("block").join(path);
        let name = Path::new(lower).file_name().expect("a name");
        symlink(at(lower), at(upper).join("slaves").join(name)).expect("a link");
        let holders = at(lower).join("holders");
        std::fs::create_dir_all(&holders).expect("a directory");
        symlink(at(upper), holders.join(upper)).expect("a link");
    }

    fn read(&self) -> Stack {
        // No node of this system's.
        Stack::read(Roots { sys: self.0.path(), dev: Path::new("/nowhere") })
    }
}

fn device(text: &str) -> Thing {
    Thing::Device(number(text).expect("a number"))
}

/// A disk of two partitions; the second is a physical volume with two logical ones, on one of which
/// a loop device lies.
fn group() -> Tree {
    let tree = Tree::new();
    tree.add("sda", "8:0", &[("size", "1000")]);
    tree.add("sda/sda1", "8:1", &[("size", "100"), ("start", "10"), ("partition", "1")]);
    tree.add("sda/sda2", "8:2", &[("size", "800"), ("start", "200"), ("partition", "2")]);
    tree.add("dm-0", "253:0", &[("size", "300")]);
    tree.add("dm-1", "253:1", &[("size", "300")]);
    tree.lies_on("dm-0", "sda/sda2");
    tree.lies_on("dm-1", "sda/sda2");
    tree
}

#[test]
fn volumes_of_a_group_do_not_conflict() {
    let stack = group().read();
    let [disk, first, second, one, other] = ["8:0", "8:1", "8:2", "253:0", "253:1"].map(device);
    assert_eq!(stack.shared(one, other), None, "logical volumes of a group");
    assert_eq!(stack.shared(first, second), None, "partitions of a disk");
    assert_eq!(stack.shared(first, one), None, "a logical volume in another partition");
    for (upper, lower) in
        [(one, second), (one, disk), (first, disk), (second, disk), (other, second)]
    {
        assert_eq!(stack.shared(upper, lower), Some(Shared::Surely), "{upper:?} {lower:?}");
        assert_eq!(stack.shared(lower, upper), Some(Shared::Surely), "{upper:?} {lower:?}");
    }
    assert!(
        stack
            .devices
            .values()
            .filter(|device| device.is_held)
            .map(|device| &device.name)
            .eq(["sda2"])
    );
    // The kernel keeps what is below a partition and a logical volume.
    assert!(stack.layers(one)[1..].iter().all(|extent| extent.is_claimed));
}

#[test]
fn loop_devices_are_ranges_of_their_file() {
    let tree = group();
    let image = tree.0.path().join("image!.raw");
    std::fs::write(&image, "").expect("a file");
    let name = image.display().to_string();
    let on = |path: &str, offset: &str| {
        vec![
            ("loop/backing_file".to_owned(), path.to_owned()),
            ("loop/offset".to_owned(), offset.to_owned()),
        ]
    };
    let add = |dir: &str, number: &str, size: &str, files: Vec<(String, String)>| {
        let mut all: Vec<(&str, &str)> =
            files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        all.push(("size", size));
        tree.add(dir, number, &all);
    };
    add("loop0", "7:0", "8", on(&name, "0"));
    add("loop1", "7:1", "8", on(&name, "4096"));
    add("loop2", "7:2", "8", on(&name, "2048"));
    add("loop3", "7:3", "8", on("/of/another/namespace (deleted)", "0"));
    let stack = tree.read();
    let metadata = std::fs::metadata(&image).expect("a file");
    let file = Thing::File { dev: metadata.dev(), ino: metadata.ino() };
    let [zero, one, two, three] = ["7:0", "7:1", "7:2", "7:3"].map(device);
    for device in [zero, one, two] {
        assert_eq!(stack.shared(device, file), Some(Shared::Surely));
    }
    assert_eq!(stack.shared(zero, one), None, "beside each other");
    assert_eq!(stack.shared(zero, two), Some(Shared::Surely));
    assert_eq!(stack.shared(two, one), Some(Shared::Surely));
    assert_eq!(stack.shared(three, file), None, "not known");
    assert!(
        stack.devices.values().any(|device| device.name == "loop3" && device.backing.is_some())
    );
}

#[test]
fn logical_volume_may_use_any_disk_part() {
    let tree = group();
    tree.add(
        "loop0",
        "7:0",
        &[("size", "100"), ("loop/backing_file", "/dev/sda2"), ("loop/offset", "0")],
    );
    let mut stack = tree.read();
    // Half of the physical volume, by a loop device.
    let lower =
        vec![Extent { of: device("8:2"), range: 0..51200, is_exact: true, is_claimed: false }];
    stack.devices.get_mut(&number("7:0").expect("a number")).expect("a device").lower = lower;
    assert_eq!(stack.shared(device("7:0"), device("253:0")), Some(Shared::Perhaps));
    assert_eq!(stack.shared(device("7:0"), device("8:1")), None);
}
