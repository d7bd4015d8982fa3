//! The units in `contrib/systemd`: systemd's own checks of their texts, and both of them under a
//! real systemd in a container.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long the container may take.
const LIMIT: Duration = Duration::from_secs(300);

/// Users and groups of the container.
const VLANE: u32 = 990;
const PASSWD: &str = "root:x:0:0::/root:/bin/sh\n\
    vlane:x:990:990::/nonexistent:/usr/sbin/nologin\n\
    vlane-sched:x:991:990::/nonexistent:/usr/sbin/nologin\n\
    qemu:x:993:993::/nonexistent:/usr/sbin/nologin\n";
const GROUP: &str = "root:x:0:\ndisk:x:6:\nvlane:x:990:\nkvm:x:992:\nqemu:x:993:\n";

fn units() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd")
}

fn read(name: &str) -> String {
    fs::read_to_string(units().join(name)).unwrap()
}

/// The program under test.
fn vlane() -> PathBuf {
    std::env::var("VLANE_PROGRAM")
        .unwrap_or_else(|_| env!("CARGO_BIN_EXE_vlane-lab").to_owned())
        .into()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// A directory with the units as an operator installs them, for a volume `disk` and one on a block
/// device `block`.
fn installed(into: &Path) {
    fs::create_dir_all(into).unwrap();
    for name in ["vlane@.service", "vlane-sched.service"] {
        fs::write(into.join(name), read(name)).unwrap();
    }
    let drop_in = into.join("vlane@block.service.d");
    fs::create_dir_all(&drop_in).unwrap();
    fs::write(drop_in.join("block-device.conf"), read("block-device.conf")).unwrap();
}

#[test]
fn units_pass_systemd_checks() {
    let directory = TempDir::with_prefix("vlane-units-").unwrap();
    installed(directory.path());
    // The check wants a program at the path.
    for name in ["vlane@.service", "vlane-sched.service", "vlane@block.service.d/block-device.conf"]
    {
        let path = directory.path().join(name);
        let text = fs::read_to_string(&path).unwrap();
        let here = text.replace("/usr/local/bin/vlane", vlane().to_str().unwrap());
        assert_ne!(text, here, "{name} starts /usr/local/bin/vlane");
        fs::write(path, here).unwrap();
    }
    // (unit, the most exposure of 100 that systemd's table may give it)
    for (unit, exposure) in
        [("vlane@disk.service", 15), ("vlane@block.service", 20), ("vlane-sched.service", 60)]
    {
        let run = |words: &[&str]| {
            let mut command = Command::new("systemd-analyze");
            command.args(words).arg(unit).current_dir(directory.path());
            // Where it looks for the units: here first.
            command.env("SYSTEMD_UNIT_PATH", format!("{}:", directory.path().display())).output()
        };
        let Ok(verified) = run(&["verify", "--man=no"]) else {
            return vlane_testing::skip("systemd-analyze is not there");
        };
        let about: Vec<_> = text(&verified)
            .lines()
            .filter(|line| line.contains("vlane"))
            .map(str::to_owned)
            .collect();
        assert!(about.is_empty(), "{unit}: {about:#?}");
        let threshold = format!("--threshold={exposure}");
        let rated = run(&["security", "--offline=yes", "--no-pager", &threshold]).unwrap();
        assert!(
            rated.status.success(),
            "{unit} is exposed by more than {exposure} of 100:\n{}",
            text(&rated)
        );
    }
}

#[test]
fn units_name_no_directory_twice() {
    let directories = |name: &str| -> Vec<String> {
        let text = read(name);
        let lines = text.lines().filter_map(|line| line.strip_prefix("RuntimeDirectory="));
        lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
    };
    let (volume, sched) = (directories("vlane@.service"), directories("vlane-sched.service"));
    assert_eq!((volume.len(), sched.len()), (1, 1));
    assert!(volume[0].contains("%i"), "two volumes have the same directory: {volume:?}");
    // A start changes the owner of a directory with all that is below it.
    let is_below = |one: &str, other: &str| format!("{one}/").starts_with(&format!("{other}/"));
    assert!(
        !is_below(&volume[0], &sched[0]) && !is_below(&sched[0], &volume[0]),
        "{volume:?} {sched:?}"
    );
}

#[test]
fn libvirt_recipe_matches_the_unit() {
    let page = fs::read_to_string(units().join("../../docs/src/guests.md")).unwrap();
    let recipe =
        page.split("### libvirt").nth(1).unwrap().split("\n### ").next().unwrap().to_owned();
    let unit = read("vlane@.service");
    let value = |key: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(&format!("{key}=")));
        line.unwrap_or_else(|| panic!("the unit has no {key}=")).to_owned()
    };
    let start = value("ExecStart").replace("%i", "disk");
    let option =
        |name: &str| start.split_whitespace().skip_while(|word| *word != name).nth(1).unwrap();
    assert_eq!(option("--socket-mode"), "660", "the group connects, and nobody else");
    let socket = option("--socket");
    let by_hand =
        format!("vlane serve disk.raw --socket {socket} --socket-group {}", value("Group"));
    for part in [
        by_hand.as_str(),
        format!("path='{socket}'").as_str(),
        "access mode='shared'",
        "queue_size='1024'",
        "reconnect enabled='yes'",
    ] {
        assert!(recipe.contains(part), "the recipe lacks {part}: {recipe}");
    }
}

/// A root directory whose programs are this machine's.
struct Container {
    directory: TempDir,
    /// A loop device, if there can be one.
    device: Option<String>,
}

impl Container {
    fn new() -> Container {
        let directory = TempDir::with_prefix("vlane-systemd-").unwrap();
        let this = |name: &str| directory.path().join("root").join(name);
        for name in
            ["etc", "usr", "run", "tmp", "proc", "sys", "dev", "root", "out", "var/lib/vlane"]
        {
            fs::create_dir_all(this(name)).unwrap();
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            symlink(format!("usr/{name}"), this(name)).unwrap();
        }
        fs::write(this("etc/passwd"), PASSWD).unwrap();
        fs::write(this("etc/group"), GROUP).unwrap();
        fs::write(this("etc/machine-id"), "").unwrap();
        chown(this("var/lib/vlane"), Some(VLANE), Some(VLANE)).unwrap();
        for name in ["disk", "other"] {
            let image = this("var/lib/vlane").join(format!("{name}.raw"));
            fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
            chown(&image, Some(VLANE), Some(VLANE)).unwrap();
        }
        let units = this("etc/systemd/system");
        installed(&units);
        for (drop_in, content) in [
            ("vlane@.service.d/log.conf", "[Service]\nStandardError=append:/out/%n.log\n"),
            ("vlane-sched.service.d/log.conf", "[Service]\nStandardError=append:/out/%n.log\n"),
            (
                "vlane@other.service.d/user.conf",
                "[Service]\nUser=qemu\nExecStartPre=+/bin/chown qemu /var/lib/vlane/other.raw\n",
            ),
        ] {
            fs::create_dir_all(units.join(drop_in).parent().unwrap()).unwrap();
            fs::write(units.join(drop_in), content).unwrap();
        }
        let device = units.join("vlane@block.service.d/block-device.conf");
        fs::write(
            &device,
            fs::read_to_string(&device).unwrap().replace("/dev/vg0/%i", "/dev/vlane-test"),
        )
        .unwrap();
        fs::write(
            this("inside.sh"),
            fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/systemd/inside.sh"))
                .unwrap(),
        )
        .unwrap();
        fs::write(
            units.join("inside.service"),
            "[Service]\nType=oneshot\nExecStart=/bin/bash \
             /inside.sh\nStandardError=append:/out/inside.log\n",
        )
        .unwrap();
        fs::write(units.join("inside.target"), "[Unit]\nRequires=inside.service\n").unwrap();
        fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let image = directory.path().join("block.raw");
        fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        let device = Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
        let device = device.ok().filter(|output| output.status.success());
        let device =
            device.map(|output| String::from_utf8(output.stdout).unwrap().trim().to_owned());
        if let Some(device) = &device {
            // A node of the container's own, as udev makes it.
            let number = fs::metadata(device).unwrap().rdev();
            let number = format!("{} {}", rustix::fs::major(number), rustix::fs::minor(number));
            fs::write(this("out/device"), number).unwrap();
        }
        Container { directory, device }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("root").join(name)
    }

    /// Runs words as its process 1, and returns their output.
    fn run(&self, words: &[&str]) -> Result<String, String> {
        let program = vlane();
        let mut command = Command::new("unshare");
        // The container has a cgroup of its own, and this one's `/run` stays as it is.
        let script = "mount -t tmpfs none /run || exit\nfor to in /sys/fs/cgroup/systemd \
                      /sys/fs/cgroup/unified /sys/fs/cgroup; do\n[ -w $to/cgroup.procs ] && mkdir \
                      -p $to/vlane-test-$$ && echo $$ >$to/vlane-test-$$/cgroup.procs\ndone\nexec \
                      \"$@\"";
        command.args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            script,
            "sh",
            "systemd-nspawn",
            "--quiet",
        ]);
        command.args([
            "--register=no",
            "--keep-unit",
            "--private-network",
            "--resolv-conf=off",
            "--timezone=off",
        ]);
        command.args(["--console=read-only", "--bind-ro=/usr", "--directory"]).arg(self.path(""));
        command.arg(format!("--bind-ro={}:/usr/local/bin", program.parent().unwrap().display()));
        let said = fs::File::create(self.directory.path().join("said")).unwrap();
        command.args(words).stdin(Stdio::null()).stdout(said.try_clone().unwrap()).stderr(said);
        let mut child = command.spawn().map_err(|error| format!("unshare: {error}"))?;
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break Some(status);
            }
            if begin.elapsed() > LIMIT {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        self.remove_cgroups(child.id());
        let said = fs::read(self.directory.path().join("said")).unwrap();
        let said = String::from_utf8_lossy(&said).into_owned();
        match status {
            Some(status) if status.success() => Ok(said),
            Some(status) => Err(format!("{status}: {said}")),
            None => Err(format!("it was not over after {LIMIT:?}: {said}")),
        }
    }

    fn remove_cgroups(&self, pid: u32) {
        for hierarchy in ["systemd", "unified", "."] {
            let own = Path::new("/sys/fs/cgroup").join(hierarchy).join(format!("vlane-test-{pid}"));
            let _ = Command::new("find")
                .arg(own)
                .args(["-depth", "-type", "d", "-exec", "rmdir", "{}", "+"])
                .output();
        }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if let Some(device) = &self.device {
            let _ = Command::new("losetup").args(["--detach", device]).output();
        }
    }
}

#[test]
fn units_keep_sockets_of_other_units() {
    if !rustix::process::geteuid().is_root() {
        return vlane_testing::skip("only root can start a container");
    }
    if !Path::new("/usr/lib/systemd/systemd").exists() {
        return vlane_testing::skip("systemd is not there");
    }
    let container = Container::new();
    if let Err(why) = container.run(&["/bin/true"]) {
        return vlane_testing::skip(format!(
            "no container can be started (systemd-nspawn, of systemd-container): {why}"
        ));
    }
    let ran = container.run(&["/usr/lib/systemd/systemd", "--system", "--unit=inside.target"]);
    let out = |name: &str| fs::read_to_string(container.path("out").join(name)).unwrap_or_default();
    let logs = [
        "bench",
        "inside.log",
        "vlane@disk.service.log",
        "vlane@block.service.log",
        "vlane-sched.service.log",
    ];
    let told = || logs.map(|name| format!("--- {name}\n{}", out(name))).concat();
    assert_eq!(out("done"), "done\n", "{ran:?}\n{}", told());
    assert_eq!(out("wrong"), "", "{}", told());
}
