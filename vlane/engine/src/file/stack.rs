//! Block devices that lie on each other: which bytes of which lower device or file are those of a
//! device. The system takes no lock across them, so it is looked up in `/sys`.
//!
//! A loop device is a range of a file or device, a partition is a range of its disk. A device of
//! device-mapper or MD has a part of each lower device, and which one is not looked up. Parts of
//! that kind are kept apart by their maker: the logical volumes of a group, for example.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::device;

/// Levels of devices that are followed, more than anybody builds.
const DEEPEST: usize = 16;
const SECTOR: u64 = 512;

/// A thing that has bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Thing {
    /// A block device, by its number.
    Device(u64),
    /// A regular file.
    File { dev: u64, ino: u64 },
}

/// Bytes of a lower thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) of: Thing,
    /// Bytes.
    pub(super) range: Range<u64>,
    /// They are exactly these bytes; otherwise some of them.
    pub(super) is_exact: bool,
    /// The kernel gives no other process exclusive use meanwhile.
    pub(super) is_claimed: bool,
}

/// A block device.
#[derive(Debug, Clone, Default)]
pub(super) struct Device {
    /// Below `/dev`.
    pub(super) name: String,
    /// Bytes.
    pub(super) size: u64,
    /// The devices or files that it lies on.
    pub(super) lower: Vec<Extent>,
    /// A device of device-mapper or MD lies on it.
    pub(super) is_held: bool,
    /// Its disk, if it is a partition.
    pub(super) disk: Option<u64>,
    /// Its file, if it is a loop device, as the system names it.
    pub(super) backing: Option<PathBuf>,
}

/// How surely two things have bytes in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shared {
    Perhaps,
    Surely,
}

/// All block devices.
#[derive(Debug, Clone, Default)]
pub(super) struct Stack {
    pub(super) devices: BTreeMap<u64, Device>,
}

/// The system's list of devices, and the place of their nodes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Roots<'a> {
    pub(super) sys: &'a Path,
    pub(super) dev: &'a Path,
}

impl Thing {
    /// The thing that is open.
    pub(super) fn of(file: &File) -> Option<Thing> {
        file.metadata().ok().map(|metadata| Thing::by(&metadata))
    }

    fn by(metadata: &std::fs::Metadata) -> Thing {
        match metadata.file_type().is_block_device() {
            true => Thing::Device(metadata.rdev()),
            false => Thing::File { dev: metadata.dev(), ino: metadata.ino() },
        }
    }
}

impl Roots<'static> {
    /// The running system's.
    pub(super) fn system() -> Roots<'static> {
        Roots { sys: Path::new("/sys"), dev: Path::new("/dev") }
    }
}

impl Stack {
    /// Looks at all block devices. Facts that the system does not report are left out.
    pub(super) fn read(roots: Roots<'_>) -> Stack {
        let mut devices = BTreeMap::new();
        for entry in std::fs::read_dir(roots.sys.join("dev/block")).into_iter().flatten().flatten()
        {
            let number = entry.file_name().to_str().and_then(number);
            let directory = std::fs::canonicalize(entry.path());
            let (Some(number), Ok(directory)) = (number, directory) else { continue };
            devices.insert(number, read_device(roots, &directory));
        }
        Stack { devices }
    }

    /// A thing's bytes, and those of everything that it lies on.
    pub(super) fn layers(&self, thing: Thing) -> Vec<Extent> {
        let size = match thing {
            // It may grow.
            Thing::File { .. } => u64::MAX,
            Thing::Device(number) => {
                self.devices.get(&number).map_or(u64::MAX, |device| device.size)
            }
        };
        let mut layers =
            vec![Extent { of: thing, range: 0..size, is_exact: true, is_claimed: false }];
        let mut fresh = 0;
        for _ in 0..DEEPEST {
            let next: Vec<Extent> =
                layers[fresh..].iter().flat_map(|upper| self.below(upper)).collect();
            fresh = layers.len();
            // A device may be reached on several ways.
            for extent in next {
                if !layers.contains(&extent) {
                    layers.push(extent);
                }
            }
        }
        layers
    }

    /// The bytes on which an extent lies.
    fn below(&self, upper: &Extent) -> Vec<Extent> {
        let Thing::Device(number) = upper.of else { return Vec::new() };
        let lowers = self.devices.get(&number).into_iter().flat_map(|device| &device.lower);
        let mapped = lowers.map(|lower| {
            let is_exact = upper.is_exact && lower.is_exact;
            let at = |offset: u64| lower.range.start.saturating_add(offset).min(lower.range.end);
            let range = if is_exact {
                at(upper.range.start)..at(upper.range.end)
            } else {
                lower.range.clone()
            };
            Extent { range, is_exact, ..lower.clone() }
        });
        mapped.filter(|extent| !extent.range.is_empty()).collect()
    }

    /// Returns the bytes that two things share, in any layer below both.
    pub(super) fn shared(&self, one: Thing, other: Thing) -> Option<Shared> {
        let (ours, theirs) = (self.layers(one), self.layers(other));
        let pairs = ours.iter().flat_map(|our| theirs.iter().map(move |their| (our, their)));
        pairs.filter_map(|(our, their)| in_common(our, their)).max()
    }

    /// The partitions of a disk.
    pub(super) fn partitions(&self, disk: u64) -> impl Iterator<Item = (u64, &Device)> {
        let is_one = move |device: &Device| device.disk == Some(disk);
        self.devices
            .iter()
            .filter(move |(_, device)| is_one(device))
            .map(|(number, device)| (*number, device))
    }
}

/// Says whether two extents have bytes in common.
fn in_common(one: &Extent, other: &Extent) -> Option<Shared> {
    let (a, b) = (&one.range, &other.range);
    if one.of != other.of || a.start >= b.end || b.start >= a.end {
        return None;
    }
    let covers = |outer: &Range<u64>, inner: &Range<u64>| {
        outer.start <= inner.start && inner.end <= outer.end
    };
    match (one.is_exact, other.is_exact) {
        (true, true) => Some(Shared::Surely),
        (true, false) if covers(a, b) => Some(Shared::Surely),
        (false, true) if covers(b, a) => Some(Shared::Surely),
        // The maker of both keeps them apart.
        (false, false) => None,
        _ => Some(Shared::Perhaps),
    }
}

/// The number of a device that `/sys` writes as `major:minor`.
pub(super) fn number(text: &str) -> Option<u64> {
    let (major, minor) = text.trim().split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn read_device(roots: Roots<'_>, directory: &Path) -> Device {
    let text = |name: &str| std::fs::read_to_string(directory.join(name)).ok();
    let count =
        |name: &str| text(name).and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0);
    let name = directory.file_name().unwrap_or_default().to_string_lossy().replace('!', "/");
    let mut found =
        Device { name, size: count("size").saturating_mul(SECTOR), ..Device::default() };
    let is_exact = |of: Thing, start: u64, is_claimed: bool| {
        let range = start..start.saturating_add(found.size);
        Extent { of, range, is_exact: true, is_claimed }
    };
    let (mut lower, mut disk, mut backing) = (Vec::new(), None, None);
    if text("partition").is_some() {
        // A partition's directory lies in its disk's.
        disk = std::fs::read_to_string(directory.join("../dev")).ok().as_deref().and_then(number);
        lower.extend(disk.map(|disk| {
            is_exact(Thing::Device(disk), count("start").saturating_mul(SECTOR), true)
        }));
    } else if let Some(path) = text("loop/backing_file") {
        let path = PathBuf::from(path.trim_end_matches('\n'));
        let thing = loop_backing(&roots.dev.join(&found.name)).or_else(|| {
            // By its name, where the device may not be asked: a name of another mount namespace has
            // no meaning here.
            std::fs::metadata(&path).ok().map(|metadata| Thing::by(&metadata))
        });
        lower.extend(thing.map(|thing| is_exact(thing, count("loop/offset"), false)));
        backing = Some(path);
    } else {
        for slave in std::fs::read_dir(directory.join("slaves")).into_iter().flatten().flatten() {
            let text =
                |name: &str| std::fs::read_to_string(slave.path().join(name)).unwrap_or_default();
            let size = text("size").trim().parse::<u64>().unwrap_or(0).saturating_mul(SECTOR);
            let Some(number) = number(&text("dev")) else { continue };
            let of = Thing::Device(number);
            lower.push(Extent { of, range: 0..size, is_exact: false, is_claimed: true });
        }
    }
    let mut holders = std::fs::read_dir(directory.join("holders")).into_iter().flatten().flatten();
    found.is_held = holders.next().is_some();
    Device { lower, disk, backing, ..found }
}

/// Asks a loop device for its file.
fn loop_backing(node: &Path) -> Option<Thing> {
    let flags = libc::O_NONBLOCK;
    let device = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(node).ok()?;
    let device::Backing { dev, ino, rdev } = device::backing(&device)?;
    Some(if rdev == 0 { Thing::File { dev, ino } } else { Thing::Device(rdev) })
}

#[cfg(test)]
mod tests;
