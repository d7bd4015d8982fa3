//! A user's daemon where /proc hides the processes of others (hidepid=1): it raises that user's
//! foreground all the same.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

/// Another user: the account `nobody`.
const OTHER: u32 = 65534;

/// In a separate mount namespace: as another user with the right to raise, in a terminal, until the
/// shell there is raised.
const SCRIPT: &str = r#"
mount -t proc -o hidepid=1 proc /proc || exit 9
exec setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set -all,+sys_nice \
    --inh-caps -all,+sys_nice --ambient-caps -all,+sys_nice script -qec '
cat /proc/1/stat
"$PLACE/vlane-fg" daemon --no-events --every 20ms --state-dir "$PLACE/state" &
for n in $(seq 300); do
    if [ "$(cut -d" " -f19 /proc/$$/stat)" = -10 ]; then echo "it is raised"; break; fi
    sleep 0.1
done
kill %1 && wait' /dev/null
"#;

#[test]
fn job_is_raised_beside_hidden_processes() {
    if !rustix::process::geteuid().is_root() {
        return vlane_testing::skip("only root can be other users");
    }
    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).unwrap();
    chown(place.path(), Some(OTHER), None).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_vlane-fg"), place.path().join("vlane-fg")).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "bash", "-c", SCRIPT]);
    let output = command.env("PLACE", place.path()).env("SHELL", "/bin/bash").output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    // Such a /proc, and the capability, cannot be had everywhere.
    if !said.contains("cat: /proc/1/stat: Operation not permitted") {
        return vlane_testing::skip(said);
    }
    assert!(said.contains("it is raised"), "{said}");
}
