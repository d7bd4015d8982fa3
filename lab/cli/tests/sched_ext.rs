//! The sched_ext vehicle in a guest whose kernel has it: fair, charges the CPU time used, and
//! leaves no trace behind.

#![allow(clippy::unwrap_used)]

use std::process::Command;

mod common;

use std::time::Duration;

use common::finished;
use vlane_guest::{Accel, Boot, Disk, Host, Initramfs, Kernel, Qemu, QemuProgram};

const NOT_BUILT: &str =
    "built without the feature sched-ext (needs make, pkg-config, libelf-dev, zlib1g-dev)";

/// Parts of such a guest. `None`, with a loud message, where it cannot be had. The search happens
/// here, so that any other fault in a guest or a command is a failure.
fn machine() -> Option<(Host, QemuProgram, Kernel)> {
    if cfg!(not(feature = "sched-ext")) {
        vlane_testing::skip(NOT_BUILT);
        return None;
    }
    let host = common::host();
    let found = host.program("busybox").and_then(|_| {
        let program = QemuProgram::find(&host)?;
        Ok((program, Kernel::with_sched_ext(&host)?))
    });
    let (program, kernel) = common::or_skip("a guest with sched_ext", found)?;
    Some((host, program, kernel))
}

/// Report of `vlane-lab prove sched-ext`. `None`, with a loud message, where there is no guest
/// for it.
fn prove(arguments: &[&str]) -> Option<serde_json::Value> {
    machine()?;
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("report.json");
    let output = Command::new(env!("CARGO_BIN_EXE_vlane-lab"))
        .args(["prove", "sched-ext", "--install", "--limit", "400", "--json"])
        .arg(&json)
        .args(arguments)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}", String::from_utf8_lossy(&output.stdout));
    Some(serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap())
}

/// The rows of a section's table, by their first cell.
fn row<'a>(report: &'a serde_json::Value, section: &str, name: &str) -> &'a Vec<serde_json::Value> {
    let sections = report["sections"].as_array().unwrap();
    let section = sections.iter().find(|s| s["id"] == section).unwrap();
    let rows = section["blocks"][0]["rows"].as_array().unwrap();
    rows.iter().map(|row| row.as_array().unwrap()).find(|row| row[0] == name).unwrap()
}

/// A figure of a scheduler: its median, its least and its most over the rounds.
fn figure(report: &serde_json::Value, scheduler: &str, title: &str) -> [f64; 3] {
    let sections = report["sections"].as_array().unwrap();
    let section = sections.iter().find(|s| s["id"] == "responses").unwrap();
    let columns = section["blocks"][0]["columns"].as_array().unwrap();
    let place = columns.iter().position(|column| column["title"] == title).unwrap();
    let spread = &row(report, "responses", scheduler)[place];
    ["median", "min", "max"].map(|name| spread[name].as_f64().unwrap())
}

#[test]
fn boosts_are_charged_and_killed_loader_unloads() {
    let turns = ["--schedulers", "loan", "--repeat", "2", "--time", "10", "--kills", "5"];
    let Some(report) = prove(&turns) else { return };
    // How fast is for the experiment (loan-sched-ext) to say: the machine may be busy.
    let [_, _, granted] = figure(&report, "loan", "granted");
    assert!(granted >= 1.0, "no boosts: {report}");
    // The program counts, the daemon's accounts are charged, and the kernel knows better than both.
    let (used, charged) = (figure(&report, "loan", "used"), figure(&report, "loan", "charged"));
    let is_near = |(charged, used): (f64, &f64)| (charged / used - 1.0).abs() < 0.1;
    assert!(charged.into_iter().zip(&used).all(is_near), "{charged:?} charged, {used:?} ms used");
    // Of the better turn. CPU time that the host takes from an emulated CPU is charged to the
    // thread that ran there. An account forgets amounts beyond the most that it may have or owe.
    // That is a fixed amount of CPU time, so a longer turn reduces its part. Before shares held,
    // the farthest was 185 % off.
    let [_, farthest, _] = figure(&report, "loan", "farthest share");
    assert!(farthest < 15.0, "a thread's CPU time is {farthest} % off its share: {report}");
    let killed = row(&report, "kills", "kill -9");
    assert_eq!((killed[1].as_f64().unwrap(), killed[4].as_str().unwrap()), (5.0, "disabled"));
}

#[test]
fn weights_hold_under_sched_ext() {
    let turns = [
        "--schedulers",
        "loan",
        "--repeat",
        "2",
        "--time",
        "10",
        "--kills",
        "0",
        "--weights",
        "256,512,128",
    ];
    let Some(report) = prove(&turns) else { return };
    let [_, farthest, _] = figure(&report, "loan", "farthest share");
    assert!(farthest < 15.0, "a thread's CPU time is {farthest} % off its weight: {report}");
}

#[test]
fn starved_vcpus_compete_with_ordinary_threads() {
    let turns = [
        "--schedulers",
        "loan",
        "--repeat",
        "1",
        "--time",
        "6",
        "--kills",
        "0",
        "--strangers",
        "4",
    ];
    let Some(report) = prove(&turns) else { return };
    let [farthest, used] =
        ["farthest share", "used"].map(|title| figure(&report, "loan", title)[0]);
    // Either they were ordinary threads for a while, or the ordinary ones left a CPU. No thread
    // starves in either case.
    assert!(farthest < 90.0, "a vCPU is {farthest} % off its share: {report}");
    // 13 of 17 threads on two CPUs would get 12 s of the 16; none at all without help.
    assert!(used > 1300.0, "the vCPUs got {used} ms of CPU time in 8 s");
}

/// `vlane sched run` as a user runs it: it takes sched_ext by itself, keeps weights, and gives
/// every thread back.
#[test]
fn scheduler_chooses_sched_ext_and_restores_threads() {
    let Some((host, program, kernel)) = machine() else { return };
    let script = r#"
mkdir -p /run /tmp
for n in 1 2 3 4 5 6; do
    sh -c 'while :; do :; done' &
    all="$all $!"
    options="$options --tid $!"
done
mine() { for tid in $all; do grep '^policy' /proc/$tid/sched; done | grep -c ' 7$'; }
start() { vlane sched run --json - --weight 512,512,512,256 $options >/tmp/state.json 2>/tmp/said & daemon=$!; }
wait_for() { for n in $(seq 1200); do [ "$(cat /sys/kernel/sched_ext/state)" = $1 ] && return; sleep 0.05; done; cat /tmp/said; exit 1; }

start
wait_for enabled
sleep 6
# A busy host may leave them no CPU for a while: then they are ordinary threads for some seconds.
for n in $(seq 60); do [ $(mine) = 6 ] && break; sleep 1; done
echo "RESULT scheduled=$(mine)"
echo "RESULT ops=$(cat /sys/kernel/sched_ext/root/ops)"
kill -TERM $daemon
wait $daemon
echo "RESULT ended=$?"
echo "RESULT state_after=$(cat /sys/kernel/sched_ext/state)"
echo "RESULT after=$(mine)"
echo "RESULT told=$(tail -n 1 /tmp/state.json)"

start
wait_for enabled
kill -KILL $daemon
wait $daemon
wait_for disabled
echo "RESULT state_killed=$(cat /sys/kernel/sched_ext/state)"
ticks() { cut -d ' ' -f 14 /proc/${all##* }/stat; }
before=$(ticks)
for n in $(seq 60); do sleep 1; [ $(ticks) -gt $before ] && break; done
echo "RESULT runs_on=$(($(ticks) - before))"
kill $all
"#;
    let boot =
        Boot::Kernel { kernel: kernel.image.clone(), initramfs: None, append: String::new() };
    let mut machine = Qemu::new(program, Accel::Tcg, boot, Disk::at("/nowhere"));
    machine.disks.clear();
    machine.memory_mib = 1024;
    // A scheduler that comes and goes has the kernel change its own code, which emulation by
    // several threads does not survive.
    machine.in_turns = true;
    let vlane = common::stripped(&host, common::vlane().as_ref());
    let guest = Initramfs::new(script).program_at("vlane", vlane.path());
    let guest = machine.start_with(&host, &kernel, &guest, Duration::from_secs(400), None).unwrap();
    let report = finished(guest);
    let result = |key: &str| report.result(key).unwrap().to_string();
    assert_eq!(
        (result("scheduled"), result("ops")),
        ("6".into(), "vlane_loan".into()),
        "{}",
        report.console
    );
    assert_eq!(
        (result("ended"), result("state_after"), result("after")),
        ("0".into(), "disabled".into(), "0".into())
    );
    let told: serde_json::Value = serde_json::from_str(&result("told")).unwrap();
    assert_eq!(told["vehicle"], "sched_ext");
    for vcpu in told["vcpus"].as_array().unwrap() {
        let (share, entitled) =
            (vcpu["share_percent"].as_f64().unwrap(), vcpu["entitled_percent"].as_f64().unwrap());
        // All alike, the one of half the weight would be 80 % ahead.
        assert!(
            (share / entitled - 1.0).abs() < 0.3,
            "{share} % of the CPU time, entitled to {entitled} %: {told}"
        );
    }
    assert_eq!(result("state_killed"), "disabled");
    assert!(
        result("runs_on").parse::<u64>().unwrap() > 0,
        "a thread stands still after its scheduler was killed"
    );
}
