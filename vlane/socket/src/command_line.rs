//! The command line of a process that connects, which that process can change.

use std::fs::File;
use std::io::{self, Read};

/// Bytes of it that are looked at. A QEMU of libvirt's has some ten thousand.
const LONGEST: u64 = 256 << 10;

/// The beginning of a process's command line, with a zero byte after each word.
///
/// A process chooses the part of its memory that stands for it (prctl(2), PR_SET_MM_MAP), of any
/// size. The rest is not read, so that no process makes another one run out of memory.
///
/// # Errors
/// The system's.
pub fn command_line(pid: u32) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    File::open(format!("/proc/{pid}/cmdline"))?.take(LONGEST).read_to_end(&mut line)?;
    Ok(line)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn long_command_line_is_cut() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo; read end", "sh"]).args(vec!["x".repeat(100_000); 10]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // It has begun, so the line is its own.
        process.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let line = command_line(process.id()).unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
        assert!(line.starts_with(b"sh\0-c\0echo; read end\0sh\0xxx"));
        assert_eq!(line.len() as u64, LONGEST);
    }

    #[test]
    fn ended_process_has_no_command_line() {
        assert_eq!(command_line(u32::MAX).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
