//! QEMU guests that vlane cannot serve as they are: the message names the lack and the remedy.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{QemuBed, Volume, one_at_a_time, stop};

const MIB: u64 = 1 << 20;
/// How long an emulated machine's firmware may take to find its disk.
const FIRMWARE: Duration = common::LIMIT;

/// A machine without an operating system, which is killed in the end.
struct Machine(Child);

impl Machine {
    /// Its firmware begins to use the disk.
    fn start(bed: &QemuBed, socket: &Path, arguments: &[&str]) -> Machine {
        let mut command = Command::new(&bed.program.path);
        let reconnect =
            if bed.program.version >= (9, 2) { "reconnect-ms=500" } else { "reconnect=1" };
        command
            .args([
                "-nodefaults",
                "-no-user-config",
                "-display",
                "none",
                "-accel",
                "tcg",
                "-chardev",
            ])
            .arg(format!("socket,id=disk,path={},{reconnect}", socket.display()))
            .args(["-device", "vhost-user-blk-pci,chardev=disk,bootindex=1"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Machine(command.spawn().unwrap())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn unshared_memory_is_reported_with_remedy() {
    let _turn = one_at_a_time();
    let Some(bed) = QemuBed::find() else { return };
    let object = |kind: &'static str| {
        vec!["-machine", "q35,memory-backend=mem", "-m", "128M", "-object", kind]
    };
    // The first two come without a file that could be shared: QEMU sends no memory at all.
    let never_came = "its memory never came";
    let cases = [
        (vec!["-machine", "q35", "-m", "128M"], never_came),
        (object("memory-backend-ram,id=mem,size=128M"), never_came),
        (object("memory-backend-memfd,id=mem,size=128M,share=off"), "all zero as it is seen here"),
    ];
    // All at once: most of it is waiting.
    let running: Vec<_> = cases
        .iter()
        .map(|(arguments, told)| {
            let volume = Volume::new(MIB);
            let backend = volume.serve(&[]);
            let machine = Machine::start(&bed, &volume.socket, arguments);
            (volume, backend, machine, arguments, told)
        })
        .collect();
    for (_volume, backend, machine, arguments, told) in running {
        assert!(backend.wait_log(told, FIRMWARE), "{arguments:?}: {}", backend.log());
        drop(machine);
        let log = stop(backend).log;
        let warnings: Vec<&str> = log.lines().filter(|line| line.contains(*told)).collect();
        // However often it tries again.
        assert!(warnings.len() == 1 && warnings[0].contains("WARN"), "{arguments:?}: {log}");
        assert!(
            warnings[0].contains("share=on") && !log.contains("--queues"),
            "{arguments:?}: {log}"
        );
    }
}

#[test]
fn too_few_queues_names_both_numbers() {
    let _turn = one_at_a_time();
    let Some(bed) = QemuBed::find() else { return };
    let volume = Volume::new(MIB);
    let backend = volume.serve(&["--queues", "2"]);
    let memory = "memory-backend-memfd,id=mem,size=128M,share=on";
    let arguments =
        ["-machine", "q35,memory-backend=mem", "-m", "128M", "-object", memory, "-smp", "3"];
    let machine = Machine::start(&bed, &volume.socket, &arguments);
    assert!(backend.wait_log("wants 3 queues, and vlane offers 2", FIRMWARE), "{}", backend.log());
    drop(machine);
    let log = stop(backend).log;
    assert_eq!(log.matches("and vlane offers").count(), 1, "{log}");
}

#[test]
fn guest_runs_more_vcpus_than_host() {
    let _turn = one_at_a_time();
    let Some(bed) = QemuBed::find() else { return };
    let volume = Volume::new(8 * MIB);
    let backend = volume.serve(&[]);
    let mut machine = bed.machine(&volume.socket);
    machine.vcpus = u16::try_from(vlane_lane::online_cpus().len()).unwrap() + 2;
    let vcpus = machine.vcpus.to_string();
    let script = r#"
set -e
echo "RESULT queues=$(ls /sys/block/vda/mq | wc -l)"
dd if=/dev/vda of=/dev/null bs=64k count=64 iflag=direct 2>/dev/null
read -r go
"#;
    let mut guest = bed.begin(machine, script, &[]);
    // The number of queues is told when none has come or gone for 0.3 s.
    let told = format!("{vcpus} of {} offered queues are used", vlane_lane::USUAL_QUEUES);
    assert!(backend.wait_log(&told, common::LIMIT), "{}", backend.log());
    guest.send("go\n").unwrap();
    let report = common::finished(guest);
    assert_eq!(report.result("queues").unwrap(), vcpus);
    stop(backend);
}

/// Memory that only the guest sees. The disk must survive any use of it in a request.
const USES_PLUGGED_MEMORY: &str = r#"
total() { awk '/MemTotal/ { print $2 }' /proc/meminfo; }
before=$(total)
echo "RESULT ready=1"
for n in $(seq 300); do
    [ $(total) -lt $((before + 100000)) ] || break
    sleep 0.2
done
[ $(total) -ge $((before + 100000)) ] || exit 1
# A program's memory is taken from what was plugged in, and a direct read goes there.
dd if=/dev/vda of=/dev/null bs=1M count=8 iflag=direct 2>/dev/null
echo "RESULT read=$?"
# The kernel's own memory is not in it.
echo "RESULT serial=$(cat /sys/block/vda/serial)"
"#;

#[test]
fn unshared_plugged_memory_fails_only_its_requests() {
    let _turn = one_at_a_time();
    let Some(bed) = QemuBed::find() else { return };
    let volume = Volume::new(64 * MIB);
    let backend = volume.serve(&["--serial", "goes-on"]);
    let mut machine = bed.machine(&volume.socket);
    let qmp = volume.beside("qmp.sock");
    machine.memory_mib = 256;
    machine.extra = ["-m", "size=256M,slots=2,maxmem=1G", "-qmp"].map(str::to_owned).to_vec();
    machine.extra.push(format!("unix:{},server=on,wait=off", qmp.display()));
    // Movable memory holds data alone.
    let append = "memhp_default_state=online_movable".to_owned();
    machine.boot =
        vlane_guest::Boot::Kernel { kernel: bed.kernel.image.clone(), initramfs: None, append };
    let guest = bed.start(machine, USES_PLUGGED_MEMORY, &[]);
    guest.wait_result("ready", common::LIMIT).unwrap();
    let mut monitor = std::os::unix::net::UnixStream::connect(&qmp).unwrap();
    let commands = concat!(
        r#"{"execute":"qmp_capabilities"}"#,
        r#"{"execute":"object-add","arguments":{"qom-type":"memory-backend-ram","id":"more","size":268435456}}"#,
        r#"{"execute":"device_add","arguments":{"driver":"pc-dimm","id":"dimm","memdev":"more"}}"#
    );
    std::io::Write::write_all(&mut monitor, commands.as_bytes()).unwrap();
    let report = common::finished(guest);
    let log = stop(backend).log;
    assert_ne!(report.result("read").unwrap(), "0", "all of it is shared: {log}");
    assert_eq!(report.result("serial").unwrap(), "goes-on", "{log}");
    assert!(log.contains("which is not in the memory that the front end shares (0x0-"), "{log}");
    assert!(
        log.contains("memory-backend-memfd with share=on") && !log.contains("is stopped"),
        "{log}"
    );
}
