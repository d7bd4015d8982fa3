//! The guest whose writes are recorded: a volume for each way to serve one, with a file system that
//! some programs write to at once.

use std::path::{Path, PathBuf};
use std::time::Duration;

use vlane_guest::{Host, Initramfs, Ready, Spec};

use super::{Arm, FileSystem, Load, Options, load};
use vlane_testbed::error::{Context, Error, ErrorKind, Result};
use vlane_testbed::guests::{Maker, trouble, wait};
use vlane_testbed::interrupt::Interrupt;
use vlane_testbed::server::Server;

/// How long the guest may take. An emulated one needs some minutes for hundreds of steps.
const LIMIT: Duration = Duration::from_secs(900);
/// How long a back end may take to end.
const STOP: Duration = Duration::from_secs(30);

/// Where the record of a volume is.
pub(super) fn record_of(dir: &Path, arm: &Arm, load: Load) -> PathBuf {
    dir.join(format!("{}.record", name(arm, load)))
}

/// A volume's name for files.
fn name(arm: &Arm, load: Load) -> String {
    format!("{}-{}", arm.name(), load.name())
}

/// Runs the guest; then there is a record for each arm, all from the image `base`.
pub(super) fn record(
    options: &Options,
    file_system: FileSystem,
    host: &Host,
    interrupt: &Interrupt,
    dir: &Path,
    base: &Path,
) -> Result<()> {
    let maker = Maker::find(host, options.machines.unwrap_or(file_system.machines()))?;
    let sockets =
        tempfile::tempdir().context(ErrorKind::Io, || "no temporary directory for sockets")?;
    let mut servers = Vec::new();
    for (arm, load) in options.volumes() {
        let name = name(arm, load);
        let image = dir.join(format!("{name}.raw"));
        std::fs::copy(base, &image).context(ErrorKind::Io, || format!("{}", image.display()))?;
        let socket = sockets.path().join(format!("{name}.sock"));
        let words = ["serve".into(), image, "--queues".into(), "1".into()];
        let cache = arm.words().into_iter().map(PathBuf::from);
        let record = [
            "--danger-record-storage".into(),
            record_of(dir, arm, load),
            "--socket".into(),
            socket.clone(),
        ];
        let spec = Spec::new(
            &options.vlane,
            words.into_iter().chain(cache).chain(record).map(PathBuf::into_os_string),
        );
        servers.push(Server::start("vlane", spec, &[], &socket, Ready::Line("listening on"))?);
    }
    let mut programs: Vec<&str> =
        options.loads.iter().flat_map(|load| load.programs()).copied().collect();
    programs.sort_unstable();
    programs.dedup();
    let initramfs = Initramfs::new(script(options, file_system))
        .programs(programs)
        .modules(if file_system == FileSystem::Xfs { &["xfs"][..] } else { &[] }.iter().copied())
        .file("load.pl", 0o644, load::PROGRAM);
    let sockets = servers.iter().map(|server| server.socket().to_path_buf()).collect();
    let mut guest = maker.start(sockets, &initramfs, LIMIT)?;
    let status = wait(&mut guest, "script", LIMIT, interrupt)?;
    if status != "0" {
        return Err(trouble(&guest, &format!("the guest's script ended with status {status}")));
    }
    let report = guest.wait()?;
    report.script_ok()?;
    for server in servers {
        let name = server.command().to_owned();
        let stopped = server.stop(STOP)?;
        if !stopped.status.success() {
            let context = format!("{name} ended with {}:\n{}", stopped.status, stopped.log);
            return Err(Error::new(ErrorKind::Process, context));
        }
    }
    Ok(())
}

/// Mounts every volume and starts all programs at once; the guest is switched off with all of it
/// mounted. Now and then a file system is frozen for a moment. It then writes everything to its
/// place, and empties its journal, which would otherwise take a long run.
fn script(options: &Options, file_system: FileSystem) -> String {
    let (kind, mount) = (file_system.kind(), file_system.mount_options());
    let mut script = String::from("set -e\n");
    let disks: Vec<String> =
        ('a'..='z').take(options.volumes().count()).map(String::from).collect();
    for disk in &disks {
        script +=
            &format!("mkdir /mnt/{disk}\nmount -t {kind} -o {mount} /dev/vd{disk} /mnt/{disk}\n");
    }
    script += "pids=\n";
    for worker in 1..=options.workers {
        for (disk, (_, load)) in disks.iter().zip(options.volumes()) {
            let command = load.command(&format!("/mnt/{disk}/w{worker}"), worker, options.steps);
            script += &format!("({command}) &\npids=\"$pids $!\"\n");
        }
    }
    script += "for pid in $pids; do\n    while kill -0 $pid 2>/dev/null; do\n        sleep 0.2\n";
    let disks = disks.join(" ");
    script += &format!(
        "        for disk in {disks}; do fsfreeze --freeze /mnt/$disk; fsfreeze --unfreeze \
         /mnt/$disk; done\n"
    );
    script + "    done\n    wait $pid\ndone\n"
}
