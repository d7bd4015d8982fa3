//! QEMU's own list of its vCPU threads: `query-cpus-fast`, through its QMP socket.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use vlane_hint::ProcessId;
use vlane_socket::printable;

use super::{names, proc};
use crate::vehicle::VcpuThreads;
use crate::{Error, ErrorKind, Result};

/// QEMU answers from its main loop, at once; it serves one client at a time, and lets others wait.
const LIMIT: Duration = Duration::from_secs(5);
/// Lines that are read for an answer (events come in between), and bytes of all of them.
const MAX_LINES: usize = 1000;
const MAX_BYTES: u64 = 4 << 20;

/// The vCPU threads of the QEMU that is process `pid` and has its QMP socket at `path`
/// (`-qmp unix:PATH,server=on,wait=off`).
///
/// # Errors
/// [`ErrorKind::Io`]: no process answers there. [`ErrorKind::Protocol`]: the answer makes no sense,
/// or its threads are not the process's.
pub fn vcpus_by_qmp(pid: u32, path: &Path) -> Result<Vec<VcpuThreads>> {
    let stream = UnixStream::connect(path).map_err(|error| failed(path, error))?;
    vcpus_of(pid, path, stream)
}

/// The process that listens at `path`, by the kernel's word, and its vCPU threads, by its own.
///
/// # Errors
/// As [`vcpus_by_qmp`], and [`ErrorKind::Gone`]: the process has ended.
pub(super) fn machine_at(path: &Path) -> Result<(ProcessId, Vec<VcpuThreads>)> {
    let stream = UnixStream::connect(path).map_err(|error| failed(path, error))?;
    let peer = rustix::net::sockopt::socket_peercred(&stream)
        .map_err(|error| failed(path, error.into()))?;
    // The answer is not asked whose threads these are: a machine could have another's threads
    // scheduled as its own.
    let process = proc::process(peer.pid.as_raw_nonzero().get().unsigned_abs())?;
    let vcpus = vcpus_of(process.pid, path, stream)?;
    proc::check(process)?;
    Ok((process, vcpus))
}

fn failed(path: &Path, error: std::io::Error) -> Error {
    let path = path.display();
    let what = match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
            format!(
                "{path}: no QEMU listens there; start it with -qmp unix:{path},server=on,wait=off"
            )
        }
        std::io::ErrorKind::PermissionDenied => {
            format!(
                "{path}: this user may not connect there; run vlane as the socket's owner, or as \
                 root"
            )
        }
        // EAGAIN at the end of the time limit adds no information.
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
            let what = format!(
                "{path}: QEMU has not answered for {} s: is it stopped? It serves one QMP client \
                 at a time; give this scheduler a separate socket",
                LIMIT.as_secs()
            );
            return Error::new(ErrorKind::Io, what);
        }
        _ => format!(
            "{path}: no answer from QEMU; it serves one QMP client at a time; give this scheduler \
             a separate socket"
        ),
    };
    Error::caused_by(ErrorKind::Io, what, error)
}

fn vcpus_of(pid: u32, path: &Path, stream: UnixStream) -> Result<Vec<VcpuThreads>> {
    let failed = |error| failed(path, error);
    stream.set_read_timeout(Some(LIMIT)).map_err(failed)?;
    stream.set_write_timeout(Some(LIMIT)).map_err(failed)?;
    let mut writer = stream.try_clone().map_err(failed)?;
    let mut lines = BufReader::new(stream.take(MAX_BYTES)).lines();
    let mut ask = |command: &str| -> std::result::Result<Value, std::io::Error> {
        writeln!(writer, "{{\"execute\":\"{command}\"}}")?;
        for line in lines.by_ref().take(MAX_LINES) {
            let answer: Value = serde_json::from_str(&line?)?;
            if let Some(result) = answer.get("return") {
                return Ok(result.clone());
            }
            if let Some(error) = answer.get("error") {
                return Err(std::io::Error::other(format!(
                    "{command}: {}",
                    printable(&error.to_string())
                )));
            }
        }
        Err(std::io::ErrorKind::UnexpectedEof.into())
    };
    ask("qmp_capabilities").map_err(failed)?;
    let cpus = ask("query-cpus-fast").map_err(failed)?;
    parse(pid, &cpus)
        .filter(|vcpus| vcpus.iter().flat_map(|vcpu| &vcpu.tids).all(|tid| is_thread(pid, *tid)))
        .ok_or_else(|| {
            let what =
                format!("{}: the answer does not name threads of process {pid}", path.display());
            Error::new(ErrorKind::Protocol, what)
        })
}

fn is_thread(pid: u32, tid: u32) -> bool {
    std::fs::exists(format!("/proc/{pid}/task/{tid}")).unwrap_or(false)
}

fn parse(pid: u32, cpus: &Value) -> Option<Vec<VcpuThreads>> {
    let vcpu = |cpu: &Value| {
        let index = u32::try_from(cpu.get("cpu-index")?.as_u64()?).ok()?;
        let tid = u32::try_from(cpu.get("thread-id")?.as_u64()?).ok()?;
        Some(VcpuThreads { pid, index, tids: vec![tid], name: format!("vCPU {index} ({pid})") })
    };
    let mut vcpus: Vec<_> = cpus.as_array()?.iter().map(vcpu).collect::<Option<_>>()?;
    vcpus.sort_by_key(|vcpu| vcpu.index);
    vcpus.dedup_by_key(|vcpu| vcpu.index);
    vcpus.truncate(super::MAX_VCPUS);
    // Emulation in one thread (-accel tcg,thread=single): it is all of them.
    if let [first, second, ..] = &vcpus[..]
        && vcpus.iter().all(|vcpu| vcpu.tids == first.tids)
        && first.index != second.index
    {
        vcpus.truncate(1);
        vcpus[0].index = names::ALL;
        vcpus[0].name = format!("all vCPUs ({pid})");
    }
    (!vcpus.is_empty()).then_some(vcpus)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn told(text: &str) -> Option<Vec<(u32, Vec<u32>)>> {
        let vcpus = parse(7, &serde_json::from_str(text).unwrap())?;
        Some(vcpus.into_iter().map(|vcpu| (vcpu.index, vcpu.tids)).collect())
    }

    /// One thread that runs all vCPUs is listed once for each of them.
    #[test]
    fn shared_thread_of_vcpus_counts_once() {
        let two = r#"[{"cpu-index":1,"thread-id":12},{"cpu-index":0,"thread-id":11}]"#;
        assert_eq!(told(two).unwrap(), [(0, vec![11]), (1, vec![12])]);
        let single = r#"[{"cpu-index":0,"thread-id":11},{"cpu-index":1,"thread-id":11}]"#;
        assert_eq!(told(single).unwrap(), [(names::ALL, vec![11])]);
        assert_eq!(told(r#"[{"cpu-index":0,"thread-id":11}]"#).unwrap(), [(0, vec![11])]);
        for wrong in ["[]", "{}", r#"[{"cpu-index":0}]"#, r#"[{"cpu-index":-1,"thread-id":11}]"#] {
            assert_eq!(told(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn dead_socket_error_names_path_and_remedy() {
        let error = machine_at(Path::new("/nonexistent/qmp.sock")).unwrap_err();
        assert!(
            error.kind() == ErrorKind::Io && error.to_string().contains("-qmp unix:"),
            "{error}"
        );
    }
}
