//! A stopped machine leaves its part to the others.

#![allow(clippy::unwrap_used)]

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use vlane_policy::loan::{Account, Book, Claim, Decision, Goal, Params, VcpuId};
use vlane_sched::live::Daemon;
use vlane_sched::{Result, VcpuThreads, Vehicle};

/// Accounts alone: no thread is changed.
struct Accounts(Book);

impl Vehicle for Accounts {
    fn name(&self) -> &'static str {
        "accounts"
    }
    fn add(&mut self, _: &VcpuThreads, claim: Claim) -> Result<VcpuId> {
        Ok(self.0.open(claim))
    }
    fn remove(&mut self, id: VcpuId) -> Result<()> {
        self.0.close(id);
        Ok(())
    }
    fn event(&mut self, _: VcpuId, _: u64) -> Result<Decision> {
        Ok(Decision::Running)
    }
    fn served(&mut self, _: VcpuId, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
    fn tick(&mut self, now: u64) -> Result<u64> {
        Ok(now)
    }
    fn account(&self, id: VcpuId) -> Option<Account> {
        self.0.account(id).cloned()
    }
}

/// A process that stands for a machine, and is not left behind.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// It gets its part back when it is continued.
#[test]
fn stopped_machine_has_no_entitlement() {
    let sleep = || Machine(Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap());
    let machines = [sleep(), sleep()];
    let accounts = Accounts(Book::new(Params::default(), Goal::default()));
    let mut daemon = Daemon::new(Box::new(accounts), "loan");
    for machine in &machines {
        let pid = machine.0.id();
        let vcpu = VcpuThreads { pid, index: 0, tids: vec![pid], name: format!("machine {pid}") };
        daemon.add(vcpu, Claim::of(pid)).unwrap();
    }
    let entitled = |daemon: &Daemon| -> Vec<f64> {
        daemon.state(0).vcpus.iter().map(|vcpu| vcpu.entitled_percent).collect()
    };
    assert_eq!(entitled(&daemon), [50.0, 50.0]);

    let pid = Pid::from_child(&machines[0].0);
    kill_process(pid, Signal::STOP).unwrap();
    waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
    assert_eq!(entitled(&daemon), [0.0, 100.0]);

    kill_process(pid, Signal::CONT).unwrap();
    waitpid(Some(pid), WaitOptions::CONTINUED).unwrap();
    assert_eq!(entitled(&daemon), [50.0, 50.0]);
}
