//! The guest whose writes are recorded: a volume for each way to serve one, with a file system that
//! some programs write to at once.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use vlane_guest::{Host, Initramfs};

use super::file_system::Facts;
use super::{Arm, FileSystem, Load, Options, load};
use vlane_testbed::{Call, Context, ErrorKind, Fail, Maker, Result, Server, trouble, wait, word};

/// How long the guest may take. An emulated one needs some minutes for hundreds of steps.
const LIMIT: Duration = Duration::from_secs(900);
/// How long a back end may take to end.
const STOP: Duration = Duration::from_secs(30);

/// A volume's file of some kind.
pub(super) fn file(dir: &Path, arm: &Arm, load: Load, kind: &str) -> PathBuf {
    dir.join(format!("{}-{}.{kind}", arm.name(), word(load)))
}

/// Runs the guest; then there is a record for each arm, all from the image `base`.
pub(super) fn record(
    options: &Options,
    call: &Call<'_>,
    file_system: FileSystem,
    host: &Host,
    dir: &Path,
) -> Result<()> {
    let facts = file_system.facts();
    let maker = Maker::find(host, options.guest.unwrap_or(facts.machines))?;
    let sockets =
        tempfile::tempdir().context(ErrorKind::Io, || "no temporary directory for sockets")?;
    let volumes = options.volumes();
    let mut servers = Vec::new();
    for (arm, load) in &volumes {
        let image = file(dir, arm, *load, "raw");
        std::fs::copy(dir.join("base"), &image)
            .context(ErrorKind::Io, || format!("{}", image.display()))?;
        let record = file(dir, arm, *load, "record");
        let mut words: Vec<OsString> = vec![image.into()];
        words.extend(["--queues", "1", "--cache", &arm.cache].map(OsString::from));
        if arm.is_direct {
            words.extend(["--journal", "direct"].map(OsString::from));
        }
        words.extend(["--danger-record-storage".into(), record.into()]);
        servers.push(Server::serve(call.vlane, sockets.path(), &[], words)?);
    }
    let sqlite3 = options.load.contains(&Load::Sqlite).then_some("sqlite3");
    let initramfs = Initramfs::new(script(options, &facts, &volumes))
        .programs(std::iter::once("perl").chain(sqlite3))
        .modules(if file_system == FileSystem::Xfs { &["xfs"][..] } else { &[] }.iter().copied())
        .file("load.pl", 0o644, load::PROGRAM);
    let sockets = servers.iter().map(|server| server.socket().to_path_buf()).collect();
    let mut guest = maker.start(sockets, &initramfs, LIMIT)?;
    let status = wait(&mut guest, "script", LIMIT, call.interrupt)?;
    if status != "0" {
        return Err(trouble(&guest, &format!("the guest's script ended with status {status}")));
    }
    guest.wait()?.script_ok()?;
    for server in servers {
        let name = server.command().to_owned();
        let stopped = server.stop(STOP)?;
        if !stopped.status.success() {
            let context = format!("{name} ended with {}:\n{}", stopped.status, stopped.log);
            return ErrorKind::Process.fail(context);
        }
    }
    Ok(())
}

/// Mounts every volume and starts all programs at once; the guest is switched off with all of it
/// mounted. Now and then a file system is frozen for a moment. It then writes everything to its
/// place, and empties its journal, which would otherwise take a long run.
fn script(options: &Options, facts: &Facts, volumes: &[(Arm, Load)]) -> String {
    let (kind, mount) = (facts.kind, facts.mount_options);
    let mut script = String::from("set -e\n");
    let disks: Vec<String> = ('a'..='z').take(volumes.len()).map(String::from).collect();
    for disk in &disks {
        script +=
            &format!("mkdir /mnt/{disk}\nmount -t {kind} -o {mount} /dev/vd{disk} /mnt/{disk}\n");
    }
    script += "pids=\n";
    for worker in 1..=options.workers {
        for (disk, (_, load)) in disks.iter().zip(volumes) {
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
