//! The BPF programs in the kernel: loading and attaching them, their input, and their reports.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, RingBuffer, RingBufferBuilder};

use vlane_error::describe;
use vlane_sched::Counter;
use vlane_sched::bpf;
use vlane_sched::live::backends::Silence;
use vlane_sched::{Error, ErrorKind, Result};

/// Compiled from `bpf/watch.bpf.c` by `cargo xtask bpf`.
const OBJECT: &[u8] = include_bytes!("bpf/watch.bpf.o");
/// First in errors.
const WHOSE: &str = "watching I/O";
/// `MAX_VCPUS` there.
pub(crate) const MAX_VCPUS: usize = 256;
/// `struct vcpu`, `struct machine` without its vCPUs, `struct mark`.
const VCPU: usize = 24;
const MACHINE: usize = 8;
const MARK: usize = 24;
/// The members of `struct counts`, in its order.
const COUNTS: [&str; 10] = [
    "watch_interrupts",
    "watch_told",
    "watch_coalesced",
    "watch_running",
    "watch_kicks",
    "watch_served",
    "watch_internal",
    "watch_silent",
    "watch_lost",
    "watch_unseen",
];
/// The program that only a kernel with KVM can take.
const WITH_KVM: &str = "raised";

/// The programs' reports on a vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VcpuReport {
    Event { token: u64 },
    Served { token: u64, response_ns: u64 },
}

/// A vCPU as the programs know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Vcpu {
    pub(crate) tid: u32,
    pub(crate) token: u64,
}

/// The loaded and attached programs.
pub(crate) struct Program {
    // The order matters when it is dropped: what is attached goes first.
    _links: Vec<Link>,
    ring: RingBuffer<'static>,
    taken: Arc<Mutex<Vec<VcpuReport>>>,
    marks: MapHandle,
    machines: MapHandle,
    threads: MapHandle,
    counts: MapHandle,
    object: Object,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").finish_non_exhaustive()
    }
}

fn failed(what: &str) -> impl FnOnce(libbpf_rs::Error) -> Error + '_ {
    move |cause| Error::caused_by(ErrorKind::Io, format!("{WHOSE}: {what}"), cause)
}

fn wrong_object() -> Error {
    let what =
        format!("{WHOSE}: the BPF object does not match this program; rebuild it: cargo xtask bpf");
    Error::new(ErrorKind::Protocol, what)
}

impl Program {
    pub(crate) fn load(boost_ns: u64) -> Result<Self> {
        // Loaded, or built in.
        if std::path::Path::new("/sys/module/kvm").exists() {
            match Self::load_with(boost_ns, true) {
                Ok(program) => return Ok(program),
                // Another KVM than is known here, or no types of modules for this user: all but
                // that source.
                Err(error) => tracing::debug!("{}", describe(&error)),
            }
        }
        Self::load_with(boost_ns, false)
    }

    fn load_with(boost_ns: u64, kvm: bool) -> Result<Self> {
        let object = bpf::load(WHOSE, OBJECT, |open| {
            for mut program in open.progs_mut().filter(|program| program.name() == WITH_KVM) {
                program.set_autoload(kvm);
            }
            for mut map in open.maps_mut() {
                if map.name().to_string_lossy().ends_with(".rodata") {
                    let value = map.initial_value_mut().ok_or_else(wrong_object)?;
                    *value.first_chunk_mut().ok_or_else(wrong_object)? = boost_ns.to_ne_bytes();
                }
            }
            Ok(())
        })
        .map_err(explained)?;
        let loaded = object.progs_mut().filter(|program| kvm || program.name() != WITH_KVM);
        let links: libbpf_rs::Result<Vec<Link>> = loaded.map(|program| program.attach()).collect();
        let links =
            links.map_err(|e| explained(bpf::refused(WHOSE, "a program cannot be attached", e)))?;
        let taken = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&taken);
        let marks = map(&object, "marks")?;
        let mut builder = RingBufferBuilder::new();
        let take = move |bytes: &[u8]| {
            vlane_error::locked(&into).extend(mark(bytes));
            0
        };
        builder.add(&marks, take).map_err(failed("no ring"))?;
        let ring = builder.build().map_err(failed("no ring"))?;
        let (machines, threads) = (map(&object, "machines")?, map(&object, "threads")?);
        let counts = map(&object, "counts")?;
        Ok(Self { _links: links, ring, taken, marks, machines, threads, counts, object })
    }

    /// Readable when there are reports to take.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.marks.as_fd()
    }

    /// Takes the reports since the last time.
    pub(crate) fn take(&self, told: &mut Vec<VcpuReport>) -> Result<()> {
        self.ring.consume().map_err(failed("the programs' reports cannot be read"))?;
        told.append(&mut vlane_error::locked(&self.taken));
        Ok(())
    }

    /// These are the vCPUs of the machine that is process `pid`; none forgets it.
    pub(crate) fn set_machine(&self, pid: u32, vcpus: &[Vcpu]) -> Result<()> {
        if vcpus.is_empty() {
            // It may not have been known.
            let _ = self.machines.delete(&pid.to_ne_bytes());
            return Ok(());
        }
        for (at, vcpu) in (0_u32..).zip(vcpus).take(MAX_VCPUS) {
            let value = [pid.to_ne_bytes(), at.to_ne_bytes()].concat();
            self.threads
                .update(&vcpu.tid.to_ne_bytes(), &value, MapFlags::ANY)
                .map_err(failed("a vCPU cannot be noted"))?;
        }
        self.machines
            .update(&pid.to_ne_bytes(), &machine(vcpus), MapFlags::ANY)
            .map_err(failed("a machine cannot be noted"))
    }

    /// This thread is no vCPU any more.
    pub(crate) fn forget_thread(&self, tid: u32) {
        let _ = self.threads.delete(&tid.to_ne_bytes());
    }

    /// The table of eventfds, for the scanner.
    pub(crate) fn eventfds(&self) -> Result<Eventfds> {
        Ok(Eventfds(map(&self.object, "eventfds")?))
    }

    /// The table of interrupts that machines raise without an eventfd.
    pub(crate) fn unseen(&self) -> Result<Unseen> {
        Ok(Unseen(map(&self.object, "unseen")?))
    }

    pub(crate) fn silencer(&self) -> Result<Silencer> {
        Ok(Silencer(map(&self.object, "silenced")?))
    }

    pub(crate) fn counters(&self) -> Vec<Counter> {
        let bytes = self
            .counts
            .lookup(&0_u32.to_ne_bytes(), MapFlags::ANY)
            .ok()
            .flatten()
            .unwrap_or_default();
        let (values, _) = bytes.as_chunks();
        COUNTS
            .iter()
            .zip(values)
            .map(|(name, bytes)| Counter { name, value: u64::from_ne_bytes(*bytes) })
            .collect()
    }
}

/// The kernel's refusal says little.
fn explained(error: Error) -> Error {
    if error.kind() != ErrorKind::Permission {
        return error;
    }
    let what = format!(
        "{WHOSE}: the kernel refuses to trace its functions (fentry), although this process has \
         the capabilities: a locked-down or hardened kernel does, and some seccomp filters of \
         containers do; without --watch-io everything else works; no setting was changed"
    );
    Error::caused_by(ErrorKind::Permission, what, error)
}

fn map(object: &Object, name: &str) -> Result<MapHandle> {
    let found = object.maps().find(|map| map.name() == name).ok_or_else(wrong_object)?;
    MapHandle::try_from(&found).map_err(failed("no file descriptor left"))
}

/// `struct machine`.
fn machine(vcpus: &[Vcpu]) -> Vec<u8> {
    let vcpus = &vcpus[..vcpus.len().min(MAX_VCPUS)];
    let mut bytes = Vec::with_capacity(MACHINE + VCPU * MAX_VCPUS);
    bytes.extend(u32::try_from(vcpus.len()).unwrap_or(0).to_ne_bytes());
    bytes.extend(0_u32.to_ne_bytes());
    for vcpu in vcpus {
        bytes.extend(vcpu.tid.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend(vcpu.token.to_ne_bytes());
        bytes.extend(0_u64.to_ne_bytes());
    }
    bytes.resize(MACHINE + VCPU * MAX_VCPUS, 0);
    bytes
}

/// Reads a `struct mark`; `None` for an unknown one.
fn mark(bytes: &[u8]) -> Option<VcpuReport> {
    let bytes: &[u8; MARK] = bytes.first_chunk()?;
    let (words, _) = bytes.as_chunks();
    let [token, response_ns, what] = words else { return None };
    let [token, response_ns] = [token, response_ns].map(|word| u64::from_ne_bytes(*word));
    match u32::from_ne_bytes([what[0], what[1], what[2], what[3]]) {
        1 => Some(VcpuReport::Event { token }),
        2 => Some(VcpuReport::Served { token, response_ns }),
        _ => None,
    }
}

/// The table of eventfds that are machines'.
#[derive(Debug)]
pub(crate) struct Eventfds(MapHandle);

impl Eventfds {
    /// Adds this eventfd to this machine; no effect if it is known.
    pub(crate) fn add(&self, id: u32, machine: u32) -> Result<()> {
        // `uses` and `looked_at` are the programs'.
        let value = [machine, 0, 0, 0].map(u32::to_ne_bytes).concat();
        match self.0.update(&id.to_ne_bytes(), &value, MapFlags::NO_EXIST) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::AlreadyExists => {
                Err(failed("an eventfd cannot be noted")(error))
            }
            _ => Ok(()),
        }
    }

    /// Removes it from its machine.
    pub(crate) fn remove(&self, id: u32) {
        let _ = self.0.delete(&id.to_ne_bytes());
    }
}

/// Interrupts that machines raise without an eventfd, so that they cannot be reported.
#[derive(Debug)]
pub(crate) struct Unseen(MapHandle);

impl Unseen {
    /// Counts them for this machine from now on.
    pub(crate) fn watch(&self, machine: u32) {
        if let Err(error) =
            self.0.update(&machine.to_ne_bytes(), &0_u64.to_ne_bytes(), MapFlags::ANY)
        {
            tracing::debug!("process {machine}: its unseen interrupts are not counted: {error}");
        }
    }

    pub(crate) fn forget(&self, machine: u32) {
        let _ = self.0.delete(&machine.to_ne_bytes());
    }

    /// The number of interrupts.
    pub(crate) fn count(&self, machine: u32) -> u64 {
        let bytes =
            self.0.lookup(&machine.to_ne_bytes(), MapFlags::ANY).ok().flatten().unwrap_or_default();
        bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }
}

/// Back ends that tell of their I/O themselves.
#[derive(Debug)]
pub(crate) struct Silencer(MapHandle);

impl Silence for Silencer {
    fn silence(&self, backend: u32, machine: u32, silent: bool) {
        let key = [backend, machine].map(u32::to_ne_bytes).concat();
        let done = match silent {
            true => self.0.update(&key, &1_u32.to_ne_bytes(), MapFlags::ANY),
            false => self.0.delete(&key),
        };
        // A machine with several disks of one back end is let go once for each.
        if let Err(error) = done
            && (silent || error.kind() != libbpf_rs::ErrorKind::NotFound)
        {
            tracing::warn!(
                "process {backend}, which reports its I/O, cannot be excluded from watching: \
                 {error}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_match_the_programs_sizes() {
        let vcpus: Vec<Vcpu> =
            (1..=300).map(|n| Vcpu { tid: n, token: u64::from(n) + 7 }).collect();
        let bytes = machine(&vcpus);
        assert_eq!(bytes.len(), 8 + 24 * 256);
        assert_eq!(bytes[..4], 256_u32.to_ne_bytes());
        assert_eq!(bytes[8 + 24..8 + 28], 2_u32.to_ne_bytes());
        assert_eq!(bytes[8 + 32..8 + 40], 9_u64.to_ne_bytes());
    }

    #[test]
    fn malformed_marks_are_skipped() {
        let of = |token: u64, ns: u64, what: u64| [token, ns, what].map(u64::to_le_bytes).concat();
        if cfg!(target_endian = "little") {
            assert_eq!(mark(&of(5, 0, 1)), Some(VcpuReport::Event { token: 5 }));
            assert_eq!(mark(&of(5, 9, 2)), Some(VcpuReport::Served { token: 5, response_ns: 9 }));
            assert_eq!(mark(&of(5, 9, 3)), None);
        }
        assert_eq!(mark(&[1; 23]), None);
    }
}
