//! The BPF program in the kernel: loading it, attaching it, and running what is to be run.

use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::btf::{Btf, types};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object};
use vlane_policy::loan::VcpuId;

use super::bytes::{Reader, of_u32s, of_u64s};
use super::notices::Notices;
use super::seen::Seen;
use super::{Options, failed, sys};
use crate::bpf::refused;
use crate::{Error, ErrorKind, Result};

/// Compiled from `bpf/loan.bpf.c` by `cargo xtask bpf`.
const OBJECT: &[u8] = include_bytes!("bpf/loan.bpf.o");
/// First in errors.
const WHOSE: &str = "sched_ext";
/// `MAX_VCPUS` there.
pub(crate) const MAX_VCPUS: u32 = 4096;
/// `MAX_CPUS` there.
const MAX_CPUS: usize = 1024;

/// The place of the flags of `struct sched_ext_ops` in `bpf/kernel.h`: after 15 operations.
const FLAGS_AT: usize = 15 * 8;

/// The flag with which the kernel asks the scheduler also about threads that may not change their
/// CPU for the moment: Linux 6.14 and later put them back on it otherwise. Earlier ones always ask,
/// and know no such flag: 0.
fn enqueues_bound_threads() -> u64 {
    const NAME: &str = "SCX_OPS_ENQ_MIGRATION_DISABLED";
    let Ok(btf) = Btf::from_vmlinux() else { return 0 };
    if let Some(flags) = btf.type_by_name::<types::Enum64<'_>>("scx_ops_flags") {
        let flag = flags.iter().find(|flag| flag.name.is_some_and(|name| name == NAME));
        return flag.map_or(0, |flag| u64::try_from(flag.value).unwrap_or(0));
    }
    let Some(flags) = btf.type_by_name::<types::Enum<'_>>("scx_ops_flags") else { return 0 };
    let flag = flags.iter().find(|flag| flag.name.is_some_and(|name| name == NAME));
    flag.map_or(0, |flag| u64::try_from(flag.value).unwrap_or(0))
}

/// The loaded program.
pub(crate) struct Program {
    // The order matters when it is dropped: the link first, which unloads the scheduler.
    link: Option<Link>,
    // Programs that are run by BPF_PROG_RUN.
    boost: OwnedFd,
    end_boost: OwnedFd,
    account: OwnedFd,
    open_account: OwnedFd,
    vcpus: MapHandle,
    bases: MapHandle,
    vcpu_of_tid: MapHandle,
    told: MapHandle,
    _object: Object,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("attached", &self.link.is_some()).finish_non_exhaustive()
    }
}

impl Program {
    /// Loads the program and makes it the scheduler of the threads that it will be given.
    pub(crate) fn load(options: &Options) -> Result<Self> {
        let cpus = possible_cpus()?;
        let mut object = crate::bpf::load(WHOSE, OBJECT, |open| {
            for mut map in open.maps_mut() {
                // The constants; `.rodata` after the file's name.
                if map.name().to_string_lossy().ends_with(".rodata") {
                    let value = map.initial_value_mut().ok_or_else(wrong_object)?;
                    constants(options, cpus, value)?;
                }
                if map.name() == "loan" {
                    let value = map.initial_value_mut().ok_or_else(wrong_object)?;
                    let flags = value.get_mut(FLAGS_AT..FLAGS_AT + 8).ok_or_else(wrong_object)?;
                    let mut all = [0; 8];
                    all.copy_from_slice(flags);
                    let all = u64::from_ne_bytes(all) | enqueues_bound_threads();
                    flags.copy_from_slice(&all.to_ne_bytes());
                }
            }
            Ok(())
        })?;
        let runnable = |name: &str| {
            let found =
                object.progs().find(|program| program.name() == name).ok_or_else(wrong_object)?;
            let fd = found.as_fd().try_clone_to_owned();
            fd.map_err(|e| failed(ErrorKind::Io, "no file descriptor left", e))
        };
        let map = |name: &str| {
            let found = object.maps().find(|map| map.name() == name).ok_or_else(wrong_object)?;
            MapHandle::try_from(&found)
                .map_err(|e| failed(ErrorKind::Io, "no file descriptor left", e))
        };
        let (boost, end_boost) = (runnable("boost")?, runnable("end_boost")?);
        let (account, open_account) = (runnable("account")?, runnable("open_account")?);
        let (vcpus, bases) = (map("vcpus")?, map("bases")?);
        let (vcpu_of_tid, told) = (map("vcpu_of_tid")?, map("told")?);
        let mut ops =
            object.maps_mut().find(|map| map.name() == "loan").ok_or_else(wrong_object)?;
        let link = ops
            .attach_struct_ops()
            .map_err(|e| refused(WHOSE, "the kernel does not take the scheduler", e))?;
        Ok(Self {
            link: Some(link),
            boost,
            end_boost,
            account,
            open_account,
            vcpus,
            bases,
            vcpu_of_tid,
            told,
            _object: object,
        })
    }

    /// Puts a vCPU before the others until it has used `ns` of CPU time, which is taken off its
    /// credits or not.
    pub(crate) fn boost(&self, id: VcpuId, ns: u64, is_charged: bool) -> Result<()> {
        let mut context = of_u32s(&[id.0, u32::from(is_charged)]);
        context.extend(of_u64s(&[ns, 0]));
        run(&self.boost, &mut context, "boost")?;
        let mut from = Reader::new(&context, "boost", 24)?;
        let [_, _] = [from.u64(), from.u64()];
        if from.u32() == 0 {
            let text = format!("sched_ext: vCPU {}: the BPF program has no such account", id.0);
            return Err(Error::new(ErrorKind::Gone, text));
        }
        Ok(())
    }

    /// Ends a vCPU's boost, if one is on.
    pub(crate) fn end_boost(&self, id: VcpuId) -> Result<()> {
        run(&self.end_boost, &mut of_u32s(&[id.0, 0]), "end_boost")
    }

    /// Opens or closes an account.
    pub(crate) fn open_account(&self, id: VcpuId, open: bool) -> Result<()> {
        let mut context = of_u32s(&[id.0, u32::from(open), 0, 0]);
        run(&self.open_account, &mut context, "open_account")?;
        let mut from = Reader::new(&context, "opening", 16)?;
        let [_, _] = [from.u32(), from.u32()];
        if from.i32() != 0 {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "sched_ext: vCPU {}: no account can be opened: there are {MAX_VCPUS} places",
                    id.0
                ),
            ));
        }
        Ok(())
    }

    /// Says whose a thread will be when it becomes SCHED_EXT; `None` forgets it.
    pub(crate) fn assign(&self, tid: u32, to: Option<VcpuId>) -> Result<()> {
        let key = tid.to_ne_bytes();
        match to {
            Some(id) => self
                .vcpu_of_tid
                .update(&key, &id.0.to_ne_bytes(), MapFlags::ANY)
                .map_err(|e| failed(ErrorKind::Io, format!("thread {tid} cannot be noted"), e)),
            // It may have been forgotten before.
            None => {
                let _ = self.vcpu_of_tid.delete(&key);
                Ok(())
            }
        }
    }

    /// Counts what runs now (of the first `places` vCPUs), so that [`Program::seen`] is up to date.
    pub(crate) fn count(&self, places: u32) -> Result<()> {
        self.accounting(places, true, 0)
    }

    /// Tells the first vCPUs' credits: what they have now and what was charged to them so far,
    /// together. `usual_ns`: what most of those that contend have got.
    pub(crate) fn credit(&self, bases: &[i64], usual_ns: u64) -> Result<()> {
        for (place, base) in (0u32..).zip(bases) {
            self.bases
                .update(&place.to_ne_bytes(), &base.to_ne_bytes(), MapFlags::ANY)
                .map_err(|e| failed(ErrorKind::Io, "credits cannot be handed in", e))?;
        }
        let places = u32::try_from(bases.len()).unwrap_or(MAX_VCPUS);
        self.accounting(places, false, usual_ns)
    }

    fn accounting(&self, places: u32, only_counts: bool, usual_ns: u64) -> Result<()> {
        let mut accounting = of_u32s(&[places, u32::from(only_counts)]);
        accounting.extend(of_u64s(&[usual_ns]));
        run(&self.account, &mut accounting, "account")
    }

    /// A vCPU as the program has it.
    pub(crate) fn seen(&self, id: VcpuId) -> Result<Seen> {
        // Locked: all of it is of one moment.
        let bytes = self
            .vcpus
            .lookup(&id.0.to_ne_bytes(), MapFlags::LOCK)
            .map_err(|e| failed(ErrorKind::Io, format!("vCPU {} cannot be read", id.0), e))?;
        Seen::read(&bytes.unwrap_or_default())
    }

    /// Reads the scheduler's report.
    pub(crate) fn told(&self) -> Result<Notices> {
        let bytes = self
            .told
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(|e| failed(ErrorKind::Io, "the scheduler's notices cannot be read", e))?;
        Notices::read(&bytes.unwrap_or_default())
    }

    /// Unloads the scheduler; the threads are ordinary ones again.
    pub(crate) fn unload(&mut self) {
        self.link = None;
    }
}

fn run(program: &OwnedFd, context: &mut [u8], name: &str) -> Result<()> {
    sys::run(program.as_fd(), context)
        .map_err(|e| failed(ErrorKind::Io, format!("the BPF program's `{name}` cannot be run"), e))
}

/// `struct settings`.
fn constants(options: &Options, cpus: u32, into: &mut [u8]) -> Result<()> {
    let mut bytes = of_u64s(&[options.slice_ns]);
    bytes.extend(of_u32s(&[cpus, 0]));
    if into.len() != bytes.len() {
        return Err(wrong_object());
    }
    into.copy_from_slice(&bytes);
    Ok(())
}

fn wrong_object() -> Error {
    Error::new(
        ErrorKind::Protocol,
        "sched_ext: the BPF object does not match this program; rebuild it: cargo xtask bpf",
    )
}

/// CPU numbers that can be, from 0.
fn possible_cpus() -> Result<u32> {
    let cpus = libbpf_rs::num_possible_cpus()
        .map_err(|e| failed(ErrorKind::Io, "the number of CPUs cannot be read", e))?;
    if cpus > MAX_CPUS {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "sched_ext: this machine can have {cpus} CPUs; the BPF program knows {MAX_CPUS}"
            ),
        ));
    }
    Ok(u32::try_from(cpus).unwrap_or(u32::MAX))
}
