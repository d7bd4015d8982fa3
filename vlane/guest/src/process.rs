//! Child processes: helpers that run to their end, and long-lived ones that never outlive us.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::error::{Error, ErrorKind, Result, io};

/// Where administrators' tools are when PATH does not say so (mkfs.ext4 for an ordinary user on
/// Debian).
const MORE_PATH: [&str; 4] = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin"];

/// Looks for a program in PATH and in the directories of administrators' tools.
pub fn find_program(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|p| is_executable(p));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(MORE_PATH.iter().map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|p| is_executable(p))
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Result of a helper program.
#[derive(Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// Standard output and standard error, in the order in which they came.
    pub text: String,
}

/// Runs a helper program to its end, with its input closed and its output caught.
///
/// It is killed with its whole process group after `limit`.
pub fn run(command: &mut Command, limit: Duration) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut file = tempfile::tempfile().map_err(io(|| "no temporary file can be made"))?;
    let out =
        |f: &std::fs::File| f.try_clone().map(Stdio::from).map_err(io(|| "no temporary file"));
    command.stdin(Stdio::null()).stdout(out(&file)?).stderr(out(&file)?).process_group(0);
    let mut child = command
        .spawn()
        .map_err(|e| Error::caused_by(ErrorKind::Tool, format!("{name} cannot be started"), e))?;
    let status = wait_until(&mut child, Instant::now() + limit)?;
    if status.is_none() {
        kill_group(&mut child);
    }
    let mut text = Vec::new();
    file.rewind()
        .and_then(|()| file.read_to_end(&mut text))
        .map_err(io(|| "a temporary file was lost"))?;
    let text = String::from_utf8_lossy(&text).into_owned();
    match status {
        Some(status) => Ok(Output { status, text }),
        None => Err(Error::new(
            ErrorKind::Timeout,
            format!("{name} was killed after {} seconds:\n{}", limit.as_secs(), tail(&text, 20)),
        )),
    }
}

/// Like [`run`], but ending with anything but success is an error that shows the end of the output.
pub fn run_ok(command: &mut Command, limit: Duration) -> Result<String> {
    let name = shell_line(command.get_program(), command.get_args());
    let output = run(command, limit)?;
    if output.status.success() {
        return Ok(output.text);
    }
    Err(Error::new(
        ErrorKind::Tool,
        format!("{name} failed ({}):\n{}", output.status, tail(&output.text, 20)),
    ))
}

/// A program that keeps running: its command, environment and directory. It ends with us, also when
/// we are killed.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Additions to our environment.
    pub envs: Vec<(OsString, OsString)>,
    /// Where it runs, if not where we do.
    pub cwd: Option<PathBuf>,
}

impl Spec {
    /// A program with arguments.
    pub fn new<A: Into<OsString>>(
        program: impl Into<PathBuf>,
        args: impl IntoIterator<Item = A>,
    ) -> Self {
        Self {
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
            envs: Vec::new(),
            cwd: None,
        }
    }

    /// The command line, quoted for a shell.
    pub fn shell_line(&self) -> String {
        shell_line(self.program.as_os_str(), self.args.iter().map(OsString::as_os_str))
    }

    fn command(&self, when_we_die: &str) -> Command {
        let mut command = match find_program("setpriv") {
            Some(setpriv) => {
                let mut c = Command::new(setpriv);
                c.args(["--pdeathsig", when_we_die, "--"]);
                // The environment is for the program: its LD_LIBRARY_PATH would break setpriv.
                c.arg("env")
                    .args(self.envs.iter().map(|(k, v)| [k.as_os_str(), v].join(OsStr::new("="))));
                c.arg(&self.program);
                c
            }
            None => {
                let mut c = Command::new(&self.program);
                c.envs(self.envs.iter().map(|(k, v)| (k, v)));
                c
            }
        };
        command.args(&self.args);
        if let Some(cwd) = &self.cwd {
            command.current_dir(cwd);
        }
        command
    }

    /// Starts it in its own process group, so that a Ctrl-C on our terminal reaches us and not it,
    /// with pipes on its three streams. If this process is killed, the kernel sends it
    /// `when_we_die` (`KILL`, `TERM`).
    pub fn spawn_apart(&self, when_we_die: &'static str) -> Result<Child> {
        let mut command = self.command(when_we_die);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        self.spawn(command)
    }

    /// Starts it on our own terminal and in our process group: for consoles that people type at.
    pub fn spawn_here(&self) -> Result<Child> {
        self.spawn(self.command("KILL"))
    }

    fn spawn(&self, mut command: Command) -> Result<Child> {
        on_the_spawner(move || command.spawn()).map_err(|e| {
            let context = format!("{} cannot be started", self.program.display());
            Error::caused_by(ErrorKind::Process, context, e)
        })
    }
}

/// Runs `f` on a thread that lives as long as the process.
///
/// The kernel's "signal me when my parent dies" means the parent *thread*. A guest started by a
/// short-lived thread would be killed when that thread ends.
fn on_the_spawner<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    type Job = Box<dyn FnOnce() + Send>;
    static SPAWNER: OnceLock<mpsc::Sender<Job>> = OnceLock::new();
    let jobs = SPAWNER.get_or_init(|| {
        let (send, receive) = mpsc::channel::<Job>();
        std::thread::spawn(move || receive.into_iter().for_each(|job| job()));
        send
    });
    let (reply, answer) = mpsc::channel();
    jobs.send(Box::new(move || drop(reply.send(f())))).expect("the spawner thread never ends");
    answer.recv().expect("the spawner thread answers every job")
}

/// Waits for a child until `deadline`; `None` when it still runs then.
pub(crate) fn wait_until(child: &mut Child, deadline: Instant) -> Result<Option<ExitStatus>> {
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait().map_err(io(|| "a child process was lost"))? {
            return Ok(Some(status));
        }
        let now = Instant::now();
        if now >= deadline {
            return Ok(None);
        }
        std::thread::sleep(pause.min(deadline - now));
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Kills a child that was started in its own process group, with everything that it started, and
/// reaps it.
pub(crate) fn kill_group(child: &mut Child) {
    // After the child was reaped its group's number may have been reused.
    if let (Ok(None), Some(group)) = (child.try_wait(), pid_of(child)) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// Kills what a reaped child left in its process group. Only for a group that is known to have
/// members.
pub(crate) fn kill_rest_of_group(child: &Child) {
    if let Some(group) = pid_of(child) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// A child's process id.
pub(crate) fn pid_of(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// A command line as one would type it.
pub fn shell_line<'a>(program: &OsStr, args: impl Iterator<Item = &'a OsStr>) -> String {
    let mut line = quote(&program.to_string_lossy());
    for arg in args {
        line.push(' ');
        line.push_str(&quote(&arg.to_string_lossy()));
    }
    line
}

/// Quotes one word for a POSIX shell, when it needs quotes.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./,:@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_string();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The last lines of an output.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// For a process that does not start before others have had their turns.
    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn shell_reads_quoted_text_back() {
        for word in
            ["plain", "", "two words", "it's", "$HOME", "a\"b", "-append=console=ttyS0 quiet", "\\"]
        {
            let line = format!("printf %s {}", quote(word));
            let back = Command::new("sh").args(["-c", &line]).output().unwrap();
            assert_eq!(String::from_utf8(back.stdout).unwrap(), word);
        }
    }

    #[test]
    fn overdue_helper_is_killed_with_children() {
        // A busy machine may need longer until the child is there.
        let limits = [300, 3000, 30_000].map(Duration::from_millis);
        let mut texts = limits.into_iter().map(|limit| {
            let started = Instant::now();
            let mut command = Command::new("sh");
            command.args(["-c", "echo begun; sleep 1000 & echo child $!; wait"]);
            let error = run(&mut command, limit).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout);
            assert!(started.elapsed() < Duration::from_secs(500));
            error.to_string()
        });
        let text = texts.find(|text| text.contains("child ")).unwrap();
        let pid: i32 = text.split("child ").nth(1).unwrap().trim().parse().unwrap();
        let gone = || !Path::new(&format!("/proc/{pid}/exe")).exists();
        assert!((0..3000).any(|_| gone() || {
            std::thread::sleep(Duration::from_millis(20));
            false
        }));
    }

    #[test]
    fn failing_helper_shows_its_output() {
        let error = run_ok(Command::new("sh").args(["-c", "echo why >&2; exit 3"]), LIMIT);
        let text = error.unwrap_err().to_string();
        assert!(text.contains("why") && text.contains('3'), "{text}");
    }
}
