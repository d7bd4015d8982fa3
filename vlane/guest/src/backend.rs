//! A vhost-user-blk back end as a child process: started, waited for, stopped or killed.

use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use crate::console::{Console, Echo};
use crate::error::{Error, ErrorKind, Result};
use crate::process::{Spec, kill_group, pid_of, tail, wait_until};

/// Time for the last words of a process that has ended. They are in the pipe by then: only a child
/// of its own that still holds the pipe takes so long.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// How one sees that a back end accepts connections.
#[derive(Debug, Clone, Copy)]
pub enum Ready {
    /// It prints a line that starts so.
    Line(&'static str),
    /// Its socket listens.
    Socket,
}

/// A running back end. Dropping it stops it, and removes the socket if it was left behind.
#[derive(Debug)]
pub struct Backend {
    name: String,
    child: Child,
    console: Console,
    socket: PathBuf,
}

/// How a back end ended.
#[derive(Debug)]
pub struct Stopped {
    /// Its exit status.
    pub status: ExitStatus,
    /// Everything that it printed.
    pub log: String,
    /// How long it took from the signal to the end.
    pub took: Duration,
}

impl Backend {
    /// Starts a back end and waits until it is ready, at most ten seconds.
    pub fn start(spec: &Spec, socket: &Path, ready: Ready, echo: Option<Echo>) -> Result<Self> {
        Self::start_within(Duration::from_secs(10), spec, socket, ready, echo)
    }

    /// Starts a back end and waits until it is ready, at most so long. On a shared emulated CPU ten
    /// seconds are short.
    pub fn start_within(
        limit: Duration,
        spec: &Spec,
        socket: &Path,
        ready: Ready,
        echo: Option<Echo>,
    ) -> Result<Self> {
        let mut child = spec.spawn_apart("TERM")?;
        let console = Console::of(&mut child, echo);
        let name = spec.program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut backend = Self { name, child, console, socket: socket.to_path_buf() };
        let deadline = Instant::now() + limit;
        while !backend.is_ready(ready) {
            if let Some(status) =
                wait_until(&mut backend.child, Instant::now() + Duration::from_millis(5))?
            {
                backend.console.wait_closed(LAST_WORDS);
                return Err(
                    backend.problem(ErrorKind::Process, &format!("ended at once ({status})"))
                );
            }
            if Instant::now() > deadline {
                return Err(backend.problem(
                    ErrorKind::Timeout,
                    &format!("was not ready after {} s", limit.as_secs()),
                ));
            }
        }
        Ok(backend)
    }

    fn is_ready(&self, ready: Ready) -> bool {
        match ready {
            Ready::Line(start) => self.console.text().lines().any(|line| line.starts_with(start)),
            Ready::Socket => self.socket.exists() && !is_only_bound(&self.socket),
        }
    }

    /// The back end's process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Where front ends connect.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its output so far.
    pub fn log(&self) -> String {
        self.console.text()
    }

    /// Waits until its output has `text`; false when it did not come in time.
    pub fn wait_log(&self, text: &str, limit: Duration) -> bool {
        self.console.wait_for(limit, |log, _| log.contains(text).then_some(())).is_some()
    }

    /// How it ended, if it did so by itself. Its last words are there then.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let ended = wait_until(&mut self.child, Instant::now())?;
        if ended.is_some() {
            self.console.wait_closed(LAST_WORDS);
        }
        Ok(ended)
    }

    /// Asks it to end (SIGTERM) and waits; an error if it is not gone after `limit`.
    pub fn stop(mut self, limit: Duration) -> Result<Stopped> {
        let asked = Instant::now();
        self.signal(Signal::TERM);
        let Some(status) = wait_until(&mut self.child, asked + limit)? else {
            return Err(self.problem(
                ErrorKind::Timeout,
                &format!("did not end within {} s of SIGTERM", limit.as_secs()),
            ));
        };
        self.console.wait_closed(LAST_WORDS);
        Ok(Stopped { status, log: self.console.text(), took: asked.elapsed() })
    }

    /// Kills it (SIGKILL), as a crash would. Its socket stays where it is.
    pub fn kill(mut self) {
        kill_group(&mut self.child);
        // The socket is what a crash leaves behind, and the next back end has to cope with it.
        self.socket = PathBuf::new();
    }

    fn signal(&mut self, signal: Signal) {
        if let (Ok(None), Some(pid)) = (self.child.try_wait(), pid_of(&self.child)) {
            let _ = kill_process(pid, signal);
        }
    }

    fn problem(&self, kind: ErrorKind, what: &str) -> Error {
        Error::new(
            kind,
            format!("{} {what}; it said:\n{}", self.name, tail(&self.console.text(), 12)),
        )
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
        let _ = wait_until(&mut self.child, Instant::now() + Duration::from_secs(3));
        kill_group(&mut self.child);
        if !self.socket.as_os_str().is_empty() {
            let _ = std::fs::remove_file(&self.socket);
        }
    }
}

/// Returns true for a socket that has its name and refuses connections: `bind` and `listen` are two
/// calls. Sockets of other network namespaces are not in the kernel's table, and count as
/// listening.
fn is_only_bound(socket: &Path) -> bool {
    /// `__SO_ACCEPTCON` of Linux' include/uapi/linux/net.h.
    const LISTENS: u64 = 1 << 16;
    let table = std::fs::read("/proc/net/unix").unwrap_or_default();
    let table = String::from_utf8_lossy(&table);
    let name = socket.to_string_lossy();
    // Num RefCount Protocol Flags Type St Inode Path
    let flags = table.lines().filter_map(|line| {
        let (fields, path) = line.split_at_checked(line.find('/')?)?;
        let flags = fields.split_whitespace().nth(3).filter(|_| path == name)?;
        u64::from_str_radix(flags, 16).ok()
    });
    let flags: Vec<u64> = flags.collect();
    !flags.is_empty() && flags.iter().all(|flags| flags & LISTENS == 0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// For a process that does not start before others have had their turns.
    const LIMIT: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Spec {
        Spec::new("/bin/sh", ["-c", script])
    }

    fn start(spec: &Spec, line: &'static str) -> Result<Backend> {
        Backend::start_within(LIMIT, spec, Path::new("/nowhere"), Ready::Line(line), None)
    }

    #[test]
    fn early_end_of_back_end_quotes_it() {
        let spec = shell("echo no such image >&2; exit 1");
        let error = start(&spec, "listening").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Process);
        assert!(error.to_string().contains("no such image"), "{error}");
    }

    #[test]
    fn back_end_reports_ready_and_ends() {
        let spec = shell(
            "trap 'echo bye; exit 7' TERM; echo listening on x; while :; do sleep 0.05; done",
        );
        let stopped = start(&spec, "listening on").unwrap().stop(LIMIT).unwrap();
        assert_eq!(stopped.status.code(), Some(7));
        assert!(stopped.log.contains("bye"));
    }

    #[test]
    fn dropped_back_end_is_gone() {
        let spec = shell("trap '' TERM; echo listening on x; sleep 60");
        let backend = start(&spec, "listening on").unwrap();
        let pid = backend.id();
        drop(backend);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn bound_socket_is_ready_once_it_listens() {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
        let directory = tempfile::tempdir().unwrap();
        for kind in [SocketType::STREAM, SocketType::SEQPACKET] {
            let path = directory.path().join(format!("{}.sock", kind.as_raw()));
            let flags = SocketFlags::CLOEXEC;
            let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
            rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
            assert!(path.exists() && is_only_bound(&path));
            rustix::net::listen(&socket, 1).unwrap();
            assert!(!is_only_bound(&path));
        }
        assert!(!is_only_bound(&directory.path().join("none")));
    }
}
