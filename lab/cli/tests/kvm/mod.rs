//! A bed for guests that run under KVM: this machine's own, or that of an emulated machine in which
//! this test program runs.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempPath;
use vlane_guest::{
    Accel, Boot, DISK_MODULES, Disk, Guest, Host, Initramfs, Kernel, Qemu, QemuProgram, Report,
};

use crate::common::{self, QemuBed};

pub mod counts;
pub mod load;

/// The limit of a guest's step, its start included. Emulated twice, a step takes three seconds. On
/// a host that does much else it takes a hundred times as long.
pub const LIMIT: Duration = Duration::from_secs(300);
/// Where an emulated machine has what its guest is made of.
const KERNEL: &str = "/guest/vmlinux";
const INITRAMFS: &str = "/guest/initramfs";
/// A guest that has what `Bed::kernel_words` say needs no more.
const MEMORY_MIB: u32 = 256;

/// The guest's job: `/steps/NAME`, by the word `steps=NAME` of its kernel's command line.
const SCRIPT: &str = r#". "/steps/$(sed 's/.*steps=\([a-z]*\).*/\1/' /proc/cmdline)""#;

/// True if this process runs in the emulated machine, where `VLANE_PROGRAM` names the program.
pub fn is_inside() -> bool {
    std::env::var_os("VLANE_PROGRAM").is_some()
}

/// vCPUs of a guest: one, unless `VLANE_KVM_VCPUS` says something else.
pub fn vcpus() -> u16 {
    let number = std::env::var("VLANE_KVM_VCPUS").ok().and_then(|text| text.parse().ok());
    number.filter(|vcpus| *vcpus > 0).unwrap_or(1)
}

/// Finds out by a timed boot if guests run under this machine's own KVM. Without any guests at all
/// the bed is `None`, and a message says so.
pub fn works_here() -> Option<(QemuBed, bool)> {
    let bed = QemuBed::find()?;
    let works = bed.accel.accel == Accel::Kvm;
    println!("guests of this machine run with {}", bed.accel);
    Some((bed, works))
}

/// QEMU, a kernel and an initramfs on a machine whose KVM works.
pub struct Bed {
    program: QemuProgram,
    kernel: PathBuf,
    initramfs: PathBuf,
    _built: Option<TempPath>,
}

impl Bed {
    /// The bed of this machine. None where its KVM does not work: then the tests run in the
    /// emulated machine of `kvm_tests_pass_in_emulated_machine`, which says so when there is none.
    pub fn find() -> Option<Self> {
        if is_inside() {
            let program = QemuProgram::find(&common::host()).unwrap();
            return Some(Self {
                program,
                kernel: KERNEL.into(),
                initramfs: INITRAMFS.into(),
                _built: None,
            });
        }
        let (bed, true) = works_here()? else { return None };
        let built = initramfs(&bed.host, &bed.kernel);
        let (program, kernel) = (bed.program, bed.kernel.image);
        Some(Self { program, kernel, initramfs: built.to_path_buf(), _built: Some(built) })
    }

    /// Starts a guest on the volume at `socket` that does `/steps/NAME`.
    pub fn start(&self, socket: &Path, steps: &str, packed: bool) -> Guest {
        // As for an emulated CPU: a guest's timers are not to be calibrated against those of a
        // machine that is emulated itself.
        let append = format!("mitigations=off tsc=reliable no_timer_check nokaslr steps={steps}");
        let initramfs = Some(self.initramfs.clone());
        let boot = Boot::Kernel { kernel: self.kernel.clone(), initramfs, append };
        let mut machine = Qemu::new(self.program.clone(), Accel::Kvm, boot, Disk::at(socket));
        machine.vcpus = vcpus();
        machine.memory_mib = MEMORY_MIB;
        machine.disks[0].reconnect = true;
        machine.disks[0].packed = packed;
        machine.start(2 * LIMIT, Some(show)).unwrap()
    }
}

/// Contents of every guest here.
fn initramfs(host: &Host, kernel: &Kernel) -> TempPath {
    let this = common::stripped(host, &std::env::current_exe().unwrap());
    let guest = Initramfs::new(SCRIPT)
        .programs(["mkfs.ext4"])
        .program_at("load", this.path())
        .file("steps/write", 0o644, WRITE)
        .file("steps/load", 0o644, LOAD)
        .file("steps/count", 0o644, counts::STEPS);
    guest.build(host, &kernel.modules, &DISK_MODULES).unwrap()
}

/// Puts all that [`Bed::find`] wants into an emulated machine.
pub fn furnish(outer: Initramfs, host: &Host, program: &QemuProgram, kernel: &Kernel) -> Initramfs {
    let read =
        |path: &Path| std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let guest = initramfs(host, kernel);
    let mut outer = outer
        .modules(["kvm_amd"])
        .program_at("qemu-system-x86_64", &program.path)
        .file(KERNEL, 0o644, read(&kernel.image))
        .file(INITRAMFS, 0o644, read(&guest));
    for file in program.firmware().unwrap() {
        outer = outer.file(&file.to_string_lossy(), 0o644, read(&file));
    }
    outer
}

fn show(line: &str) {
    eprintln!("{line}");
}

/// Writes a pattern past the page cache and reads it back. Then it makes a file system, and reads
/// back the data written to its files.
const WRITE: &str = r#"
set -e
dd if=/dev/urandom of=/pattern bs=64k count=16 2>/dev/null
dd if=/pattern of=/dev/vda bs=64k seek=64 oflag=direct conv=fsync 2>/dev/null
dd if=/dev/vda of=/read bs=64k skip=64 count=16 iflag=direct 2>/dev/null
cmp /pattern /read
echo "RESULT pattern=same"
mkfs.ext4 -q -F /dev/vda
mount /dev/vda /mnt
for n in 1 2 3; do cp /pattern /mnt/$n; done
umount /mnt
echo 3 > /proc/sys/vm/drop_caches
mount /dev/vda /mnt
for n in 1 2 3; do cmp /pattern /mnt/$n; done
echo "RESULT file=$(sha256sum /mnt/2 | cut -d' ' -f1)"
umount /mnt
"#;

/// Works on a file between two commands; the first gives the depth.
const LOAD: &str = r#"
set -e
mkfs.ext4 -q -F /dev/vda
mount /dev/vda /mnt
dd if=/dev/urandom of=/mnt/before bs=64k count=16 conv=fsync 2>/dev/null
echo "RESULT before=$(sha256sum /mnt/before | cut -d' ' -f1)"
echo "RESULT ready=1"
read -r depth
VLANE_TEST_LOAD=$depth load --exact load_for_the_emulated_machine --nocapture &
load=$!
read -r stop
touch /tmp/stop
wait $load
umount /mnt
echo 3 > /proc/sys/vm/drop_caches
mount -o ro /dev/vda /mnt
echo "RESULT load=$(sha256sum /mnt/load | cut -d' ' -f1)"
umount /mnt
"#;

/// Waits until `found` finds something in a guest's results; a guest that cannot go on any more
/// fails at once.
pub fn wait_for<T>(guest: &Guest, what: &str, found: impl Fn(&Guest) -> Option<T>) -> T {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(found) = found(guest) {
            return found;
        }
        assert!(
            !guest.results().contains_key("script"),
            "the guest has ended, waiting for: {what}"
        );
        stands(guest, until, what);
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Fails when time is up, or the guest will not go on: QEMU stays there after an error inside KVM.
fn stands(guest: &Guest, until: Instant, what: &str) {
    let console = guest.console();
    let lost = ["KVM internal error", "Kernel panic", "panicked at"]
        .iter()
        .find(|words| console.contains(**words));
    assert!(lost.is_none(), "{lost:?}, waiting for: {what}\n{console}");
    assert!(Instant::now() < until, "not within {} s: {what}\n{console}", LIMIT.as_secs());
}

/// Waits until the guest reports `key`.
pub fn wait_result(guest: &Guest, key: &str) -> String {
    wait_for(guest, key, |guest| guest.results().get(key).cloned())
}

/// Waits for the end of a guest whose steps have to end well.
pub fn finished(mut guest: Guest) -> Report {
    let until = Instant::now() + LIMIT;
    while guest.poll(Duration::from_millis(100)).unwrap().is_none() {
        stands(&guest, until, "the guest's end");
    }
    common::finished(guest)
}
