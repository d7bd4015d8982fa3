//! QEMU's own word on its vCPU threads: `query-cpus-fast`, through its QMP socket.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::vehicle::VcpuThreads;
use crate::{Error, ErrorKind, Result};

/// QEMU answers from its main loop, at once; it serves one client at a time, and lets others wait.
const LIMIT: Duration = Duration::from_secs(5);
/// Lines that are read for an answer (events come in between), and bytes of all of them.
const MAX_LINES: usize = 1000;
const MAX_BYTES: u64 = 4 << 20;

/// The vCPU threads of the QEMU that is process `pid` and has its QMP socket at `path` (`-qmp unix:PATH,server=on,wait=off`).
///
/// # Errors
/// [`ErrorKind::Io`]: nobody answers there. [`ErrorKind::Protocol`]: the answer makes no sense, or its threads are not the process's.
pub fn vcpus_by_qmp(pid: u32, path: &Path) -> Result<Vec<VcpuThreads>> {
    let failed = |error: std::io::Error| {
        let what = format!(
            "{}: no answer from QEMU; it serves one QMP client at a time, give it a socket of its own for this",
            path.display()
        );
        Error::caused_by(ErrorKind::Io, what, error)
    };
    let stream = UnixStream::connect(path).map_err(failed)?;
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
                return Err(std::io::Error::other(format!("{command}: {error}")));
            }
        }
        Err(std::io::ErrorKind::UnexpectedEof.into())
    };
    ask("qmp_capabilities").map_err(failed)?;
    let cpus = ask("query-cpus-fast").map_err(failed)?;
    parse(pid, &cpus)
        .filter(|vcpus| vcpus.iter().flat_map(|vcpu| &vcpu.tids).all(|tid| is_thread(pid, *tid)))
        .ok_or_else(|| {
            let what = format!("{}: the answer does not name threads of process {pid}", path.display());
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
    let vcpus: Vec<_> = cpus.as_array()?.iter().map(vcpu).collect::<Option<_>>()?;
    (!vcpus.is_empty()).then_some(vcpus)
}
