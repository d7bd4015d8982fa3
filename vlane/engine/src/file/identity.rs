//! Which image a file or device is, wherever it is reached from.
//!
//! It guards against mistakes: another image under a running guest. The identity is the same after
//! a rename, and through another path to the same image. On another host that reaches the same
//! storage it is the same if the storage has a name of its own. An identity that holds for this
//! host until it starts again is marked so.

use std::fs::{File, Metadata};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{AtFlags, StatxFlags};

use super::handle;

/// Which image it is. Two of them can be compared if they were found out in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    way: IdentitySource,
    /// Zero: it holds everywhere. Otherwise it stands for this host, until that starts again.
    host: u32,
    digest: [u64; 2],
}

/// How it was found out. The numbers are written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IdentitySource {
    /// A file, by its file system and the file handle: the inode and its generation.
    Handle = 1,
    /// A file, by its file system, its inode and the time of its birth.
    Birth = 2,
    /// A device, by the name that it was made with.
    Name = 3,
    /// A device, by the name that the device mapper or the RAID driver gave it.
    Mapped = 4,
    /// A device, by its number.
    Number = 5,
}

impl IdentitySource {
    const ALL: [IdentitySource; 5] = [
        IdentitySource::Handle,
        IdentitySource::Birth,
        IdentitySource::Name,
        IdentitySource::Mapped,
        IdentitySource::Number,
    ];

    /// A file, or a device that is no file in disguise; none if that is not known.
    fn is_file(self) -> Option<bool> {
        match self {
            IdentitySource::Handle | IdentitySource::Birth => Some(true),
            IdentitySource::Name | IdentitySource::Mapped => Some(false),
            IdentitySource::Number => None,
        }
    }
}

/// File systems whose own number comes from their stored data. On btrfs it names the subvolume,
/// too: a snapshot has the inodes of its origin.
const NUMBERED: [u64; 4] = [0xef53, 0x9123_683e, 0x2fc1_2fc1, 0x00c3_6400];
/// The handles of these name the server's file system.
const NFS: u64 = 0x6969;
/// Its handles are the kernel's, for as long as it remembers the file.
const FUSE: u64 = 0x6573_5546;

impl Identity {
    /// Of an open image; none if the system does not report it.
    pub(super) fn of(file: &File) -> Option<Identity> {
        let metadata = file.metadata().ok()?;
        match metadata.file_type().is_block_device() {
            true => Some(of_device(&metadata)),
            false => of_file(file, &metadata),
        }
    }

    /// True if both are known to be different images.
    pub fn is_other(&self, other: &Identity) -> bool {
        if self.way == other.way && self.host == other.host {
            return self.digest != other.digest;
        }
        matches!((self.way.is_file(), other.way.is_file()), (Some(one), Some(two)) if one != two)
    }

    /// As numbers, to be kept: the kind of evidence, and its digest.
    pub fn words(&self) -> (u64, [u64; 2]) {
        (self.way as u64 | u64::from(self.host) << 32, self.digest)
    }

    /// Takes the words of [`Identity::words`]; none if this version does not know them.
    pub fn from_words(kind: u64, digest: [u64; 2]) -> Option<Identity> {
        let way = IdentitySource::ALL
            .into_iter()
            .find(|way| *way as u64 == kind & u64::from(u32::MAX))?;
        Some(Identity { way, host: u32::try_from(kind >> 32).ok()?, digest })
    }
}

/// FNV-1a with two beginnings: the same in every version.
struct Digest([u64; 2]);

impl Digest {
    fn new() -> Digest {
        Digest([0xcbf2_9ce4_8422_2325, 0x9ae1_6a3b_2f90_404f])
    }

    /// With its length, so that two parts are not taken for two others.
    fn with(mut self, part: &[u8]) -> Digest {
        let len = (part.len() as u64).to_le_bytes();
        for sum in &mut self.0 {
            for byte in len.iter().chain(part) {
                *sum = (*sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        self
    }
}

/// Stands for this host until it starts again; never zero.
fn this_host() -> u32 {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let Digest([sum, _]) = Digest::new().with(&boot);
    u32::try_from(sum >> 32).unwrap_or(0) | 1
}

fn of_file(file: &File, metadata: &Metadata) -> Option<Identity> {
    let kind = u64::try_from(rustix::fs::fstatfs(file).ok()?.f_type).unwrap_or(0);
    let number = rustix::fs::fstatvfs(file).ok()?.f_fsid.to_le_bytes();
    // The mark that the file system is known by, and whether it holds everywhere.
    let (known_by, is_everywhere) = match handle::uuid(file) {
        _ if NUMBERED.contains(&kind) && number != [0; 8] => (number.to_vec(), true),
        _ if kind == NFS => (Vec::new(), true),
        Some(uuid) => (uuid.to_vec(), true),
        None if kind != FUSE && number != [0; 8] => (number.to_vec(), false),
        None => (Vec::new(), false),
    };
    let digest = Digest::new().with(&kind.to_le_bytes()).with(&known_by);
    let host = if is_everywhere { 0 } else { this_host() };
    let handle = if kind == FUSE { None } else { handle::handle(file) };
    if let Some((kind, handle)) = handle {
        let Digest(digest) = digest.with(&kind.to_le_bytes()).with(&handle);
        return Some(Identity { way: IdentitySource::Handle, host, digest });
    }
    let digest = digest.with(&metadata.ino().to_le_bytes());
    let digest = match birth(file) {
        Some((seconds, nanos)) => digest.with(&seconds.to_le_bytes()).with(&nanos.to_le_bytes()),
        None => digest,
    };
    Some(Identity { way: IdentitySource::Birth, host, digest: digest.0 })
}

/// When the file was made, if its file system says.
fn birth(file: &File) -> Option<(i64, u32)> {
    let stat = rustix::fs::statx(file.as_fd(), c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok()?;
    (stat.stx_mask & StatxFlags::BTIME.bits() != 0)
        .then_some((stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec))
}

fn of_device(metadata: &Metadata) -> Identity {
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    let own = format!("/sys/dev/block/{major}:{minor}");
    let read = |name: &str| {
        let text = std::fs::read_to_string(Path::new(&own).join(name)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let is_partition = read("partition").is_some();
    let of_disk =
        |name: &str| read(&if is_partition { format!("../{name}") } else { name.to_owned() });
    // Where a partition lies on its disk.
    let start = if is_partition { read("start") } else { None }.unwrap_or_default();
    let with = |digest: Digest, way, host| {
        let Digest(digest) = match start.is_empty() {
            true => digest,
            false => digest.with(start.as_bytes()),
        };
        Identity { way, host, digest }
    };
    if let Some(backing) = of_disk("loop/backing_file")
        && let Some(image) = File::open(backing).ok().and_then(|image| Identity::of(&image))
    {
        // It is the file, unless it is a part of it.
        let offset = of_disk("loop/offset").filter(|offset| offset != "0").unwrap_or_default();
        let Identity { way, host, digest } = image;
        if offset.is_empty() && start.is_empty() {
            return image;
        }
        let whole = digest.map(u64::to_le_bytes).concat();
        return with(Digest::new().with(&whole).with(offset.as_bytes()), way, host);
    }
    for name in ["dm/uuid", "md/uuid"] {
        if let Some(name) = of_disk(name) {
            return with(Digest::new().with(name.as_bytes()), IdentitySource::Mapped, 0);
        }
    }
    if let Some(image) = of_disk("device/image_id") {
        let of_ceph = |name| of_disk(name).unwrap_or_default();
        let pool = [of_ceph("device/cluster_fsid"), of_ceph("device/pool_id")].join(" ");
        return with(
            Digest::new().with(pool.as_bytes()).with(image.as_bytes()),
            IdentitySource::Name,
            0,
        );
    }
    for name in ["wwid", "device/wwid", "device/cid", "serial"] {
        if let Some(name) = of_disk(name) {
            return with(Digest::new().with(name.as_bytes()), IdentitySource::Name, 0);
        }
    }
    let number = metadata.rdev().to_le_bytes();
    let Digest(digest) = Digest::new().with(&number);
    Identity { way: IdentitySource::Number, host: this_host(), digest }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may")]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn at(path: &Path) -> Identity {
        Identity::of(&File::open(path).unwrap()).unwrap()
    }

    fn made(path: PathBuf) -> PathBuf {
        std::fs::write(&path, [0; 512]).unwrap();
        path
    }

    /// On the disk and in memory.
    fn places() -> Vec<tempfile::TempDir> {
        let memory = tempfile::tempdir_in("/dev/shm").ok();
        std::iter::once(tempfile::tempdir().unwrap()).chain(memory).collect()
    }

    #[test]
    fn hard_link_keeps_the_identity() {
        for place in places() {
            let path = made(place.path().join("p.raw"));
            let before = at(&path);
            let renamed = place.path().join("renamed.raw");
            std::fs::rename(&path, &renamed).unwrap();
            std::fs::hard_link(&renamed, &path).unwrap();
            let link = place.path().join("link");
            std::os::unix::fs::symlink(&renamed, &link).unwrap();
            std::fs::write(&renamed, [7; 1024]).unwrap();
            for same in [&path, &renamed, &link] {
                assert!(!before.is_other(&at(same)), "{}", same.display());
            }
        }
    }

    #[test]
    fn copy_has_another_identity() {
        for place in places() {
            let path = made(place.path().join("p.raw"));
            let copy = place.path().join("q.raw");
            std::fs::copy(&path, &copy).unwrap();
            assert!(at(&path).is_other(&at(&copy)), "{:?}", at(&path));
        }
    }

    /// The next file often gets the number of the one that was removed.
    #[test]
    fn replacing_file_has_another_identity() {
        for place in places() {
            let path = made(place.path().join("p.raw"));
            let before = at(&path);
            std::fs::remove_file(&path).unwrap();
            made(path.clone());
            assert!(before.is_other(&at(&path)), "{before:?}");
        }
    }

    #[test]
    fn known_identity_words_are_read_back() {
        let place = tempfile::tempdir().unwrap();
        let identity = at(&made(place.path().join("p.raw")));
        let (kind, digest) = identity.words();
        assert_eq!(Identity::from_words(kind, digest), Some(identity));
        for unknown in [0, 6, u64::from(u32::MAX)] {
            assert_eq!(Identity::from_words(unknown, digest), None);
        }
    }

    /// An identity that holds for another host alone is not compared here.
    #[test]
    fn identity_of_another_host_is_not_compared() {
        let here = Identity { way: IdentitySource::Handle, host: this_host(), digest: [1, 2] };
        assert!(!here.is_other(&Identity { host: here.host ^ 2, digest: [3, 4], ..here }));
        assert!(!here.is_other(&Identity { host: 0, digest: [3, 4], ..here }));
        assert!(here.is_other(&Identity { digest: [3, 4], ..here }));
        let disk = Identity { way: IdentitySource::Name, host: 0, digest: [1, 2] };
        assert!(here.is_other(&disk), "a file is no disk");
        let unknown = Identity { way: IdentitySource::Number, host: here.host, digest: [1, 2] };
        assert!(!here.is_other(&unknown) && !disk.is_other(&unknown));
    }

    #[test]
    fn loop_device_has_its_file_s_identity() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("p.raw");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let loop_device = |arguments: &[&str]| {
            let made = std::process::Command::new("losetup")
                .args(["-f", "--show"])
                .args(arguments)
                .arg(&path)
                .output();
            let made = made.ok().filter(|made| made.status.success())?;
            Some(String::from_utf8(made.stdout).ok()?.trim().to_owned())
        };
        let Some(whole) = loop_device(&[]) else {
            return vlane_testing::skip("no loop device can be made here");
        };
        let part = loop_device(&["-o", "65536"]);
        let found =
            [Some(whole), part].map(|device| device.map(|device| (at(Path::new(&device)), device)));
        for (_, device) in found.iter().flatten() {
            std::process::Command::new("losetup").args(["-d", device]).status().unwrap();
        }
        let [whole, part] = found;
        assert!(!at(&path).is_other(&whole.unwrap().0));
        assert!(at(&path).is_other(&part.unwrap().0), "it begins elsewhere");
    }
}
