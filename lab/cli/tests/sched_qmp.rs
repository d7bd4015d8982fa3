//! `vlane sched run --qmp`: a machine that does not name its threads is scheduled by what its QMP
//! socket says.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{LIMIT, Scheduler};
use vlane_sched::sys;

/// A process that ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn unnamed_qemu_is_scheduled_through_qmp() {
    let directory = tempfile::tempdir().unwrap();
    let qmp = directory.path().join("qmp.sock");
    // No kernel and no disk: the firmware looks for one, which is what vCPUs do.
    let started = Command::new("qemu-system-x86_64")
        .args([
            "-accel",
            "tcg,thread=multi",
            "-smp",
            "2",
            "-m",
            "64",
            "-nodefaults",
            "-display",
            "none",
        ])
        .args(["-name", "plain,debug-threads=off", "-qmp"])
        .arg(format!("unix:{},server=on,wait=off", qmp.display()))
        .stdin(Stdio::null())
        .spawn();
    let machine = match started {
        Ok(child) => Ended(child),
        Err(error) => return vlane_testing::skip(format!("qemu-system-x86_64: {error}")),
    };
    let until = Instant::now() + LIMIT;
    while !vlane_testing::listens(&qmp) {
        assert!(Instant::now() < until, "QEMU made no socket");
        std::thread::sleep(Duration::from_millis(20));
    }
    // A machine that is off the CPU for some seconds has not answered in time.
    let said = loop {
        match vlane_sched::discover::vcpus_by_qmp(machine.0.id(), &qmp) {
            Ok(said) => break said,
            Err(error) => assert!(Instant::now() < until, "{error:?}"),
        }
    };
    let attributes = || said.iter().map(|vcpu| sys::get(vcpu.tids[0]).unwrap()).collect::<Vec<_>>();
    let before = attributes();
    let Some(scheduler) =
        Scheduler::start(&["--qmp", qmp.to_str().unwrap(), "--weight=512", "--cap=150"])
    else {
        return;
    };
    let state = scheduler.wait("both vCPUs are scheduled", |state| state.vcpus.len() == 2);
    for (vcpu, said) in state.vcpus.iter().zip(&said) {
        assert_eq!((vcpu.pid, vcpu.index, &vcpu.tids), (machine.0.id(), said.index, &said.tids));
        assert_eq!(vcpu.weight, 512);
        assert_eq!(vcpu.name, format!("vCPU {} ({})", said.index, machine.0.id()));
    }
    scheduler.stop();
    assert_eq!(attributes(), before);
}
