//! The back ends as child processes: started on a CPU, reached, and ended whatever happens.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use vlane_driver::{ErrorKind, Session, SessionOptions};

use super::plan::Medium;

/// How long a back end may take to listen.
const START: Duration = Duration::from_secs(10);
/// How long it may take to end.
const END: Duration = Duration::from_secs(5);

/// A back end that runs; killed when dropped.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
    name: String,
}

/// Makes a program die with us (should we be killed) and stay on a CPU (`None`: any).
///
/// Both by util-linux' commands, which replace themselves by the program: what the standard library offers for work between fork
/// and exec is unsafe.
pub(super) fn command(program: &Path, cpu: Option<usize>) -> Command {
    let mut words: Vec<std::ffi::OsString> = Vec::new();
    if let Some(cpu) = cpu {
        words.extend(["taskset".into(), "-c".into(), cpu.to_string().into()]);
    }
    if super::find("setpriv").is_some() {
        words.extend(["setpriv".into(), "--pdeathsig".into(), "KILL".into()]);
    }
    words.push(program.into());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    command
}

impl Server {
    /// `vlane serve`, this very program.
    pub(super) fn vlane(
        dir: &Path,
        medium: Medium,
        image: &Path,
        cpu: Option<usize>,
        arguments: &[&str],
    ) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let socket = dir.join("vlane.sock");
        let mut command = command(&program, cpu);
        command.arg("serve");
        match medium {
            Medium::Null => command.args(["--null", "16G"]),
            Medium::Ram => command.arg(image).args(["--cache", "writeback"]),
            Medium::Disk => command.arg(image).args(["--cache", "none"]),
        };
        command.arg("--socket").arg(&socket).args(arguments);
        Self::start("vlane", command, socket, dir)
    }

    /// qemu-storage-daemon with an I/O thread of its own, io_uring, and a null device that touches no data either.
    pub(super) fn qsd(
        program: &Path,
        dir: &Path,
        medium: Medium,
        image: &Path,
        cpu: Option<usize>,
        queues: u16,
    ) -> anyhow::Result<Self> {
        let socket = dir.join("qsd.sock");
        let file = |direct: &str| {
            let image = image.display().to_string().replace(',', ",,");
            format!("driver=file,node-name=n,filename={image},aio=io_uring,cache.direct={direct}")
        };
        let device = match medium {
            Medium::Null => "driver=null-co,node-name=n,size=17179869184,read-zeroes=off".into(),
            Medium::Ram => file("off"),
            Medium::Disk => file("on"),
        };
        let path = socket.display().to_string().replace(',', ",,");
        let mut command = command(program, cpu);
        command.args(["--object", "iothread,id=t", "--blockdev", &device, "--export"]).arg(format!(
            "type=vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path={path},writable=on,num-queues={queues},iothread=t"
        ));
        Self::start("qemu-storage-daemon", command, socket, dir)
    }

    fn start(name: &str, mut command: Command, socket: PathBuf, dir: &Path) -> anyhow::Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let output = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let errors = output.try_clone().context("cannot duplicate a file descriptor")?;
        // One that was killed leaves its socket.
        let _ = std::fs::remove_file(&socket);
        let child =
            command.stdout(output).stderr(errors).spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self { child, socket, log, name: name.into() })
    }

    /// Connects as soon as the back end listens.
    pub(super) fn connect(&mut self, options: &SessionOptions) -> anyhow::Result<Session> {
        let start = Instant::now();
        loop {
            let error = match Session::connect(&self.socket, options) {
                Ok(session) => return Ok(session),
                Err(error) if error.kind() == ErrorKind::Connect => error,
                Err(error) => return Err(error.into()),
            };
            if let Some(status) = self.child.try_wait().context("cannot ask for a child's end")? {
                bail!("{} ended at its start ({status}): {}", self.name, self.said());
            }
            if start.elapsed() > START {
                bail!(
                    "{} does not listen after {} s: {error}; it said: {}",
                    self.name,
                    START.as_secs(),
                    self.said()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The end of what the back end wrote.
    fn said(&self) -> String {
        let mut text = String::new();
        let read = File::open(&self.log).and_then(|mut log| log.read_to_string(&mut text));
        match read {
            Ok(_) => text
                .lines()
                .rev()
                .take(5)
                .collect::<Vec<_>>()
                .into_iter()
                .rev()
                .collect::<Vec<_>>()
                .join("; "),
            Err(_) => "(nothing readable)".into(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.child.id())
            && let Some(pid) = Pid::from_raw(pid)
        {
            // Not reaped yet, so the pid is still its own.
            let _ = kill_process(pid, Signal::TERM);
        }
        let start = Instant::now();
        while start.elapsed() < END {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
