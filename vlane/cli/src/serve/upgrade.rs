//! Upgrade in place (SIGUSR2): the program is replaced while it serves, and its front end sees only
//! a moment's wait.
//!
//! 1. This program asks the new one, as a process of its own, for its ability to take over
//!    ([`Program::ask`]). Service continues meanwhile.
//! 2. The thread that serves, between two messages of the front end, lets the requests in flight be
//!    answered and takes no more ([`Upgrade::become_next`]).
//! 3. It executes the new program in the place of this one, with its state ([`super::handed`]).
//!    From there on there is no way back.
//!
//! Until then every obstacle leads back: this program continues as if no upgrade had been
//! requested.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::EventfdFlags;
use serde::{Deserialize, Serialize};
use vlane_engine::file::FileEngine;
use vlane_server::{Descriptors, HandedServer, Successor, Volume};

use super::handed::{FORMAT, Handed, HandedImage, VARIABLE, VERSION};
use crate::{logging, notify};

/// How long the new program may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// How long the thread that serves may take to come to it: it may be in the middle of a message.
const MOMENT: Duration = Duration::from_secs(5);
/// Bytes of an answer that are looked at.
const LONGEST: usize = 4096;

/// The program that is to take over, and its command line: this one's.
#[derive(Debug)]
struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

/// A program's answer to the question.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    format: u32,
    version: String,
}

/// For a program that asks: answers it on standard output.
pub(super) fn answer() -> Result<()> {
    let answer = Answer { format: FORMAT, version: VERSION.to_owned() };
    println!("{}", serde_json::to_string(&answer)?);
    Ok(())
}

impl Program {
    /// The one that runs now, by its path: what is found there later is the new one.
    fn own() -> Result<Program> {
        let running = std::env::current_exe().context("cannot find out the program's own path")?;
        let arguments: Vec<OsString> = std::env::args_os().collect();
        let named =
            arguments.first().map(PathBuf::from).filter(|path| path.components().count() > 1);
        let identity =
            |path: &PathBuf| std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
        // By the name that it was started with, if it was by a path: that may be a link, which is
        // made to point elsewhere.
        let named = named.and_then(|path| std::path::absolute(path).ok());
        let path =
            named.filter(|path| identity(path).is_some() && identity(path) == identity(&running));
        Ok(Program { path: path.unwrap_or(running), arguments })
    }

    /// The version of the program at the path, if it can take over with this command line.
    fn ask(&self) -> Result<String> {
        let path = self.path.display();
        let output = || -> Result<File> {
            Ok(rustix::fs::memfd_create("vlane-answer", rustix::fs::MemfdFlags::CLOEXEC)?.into())
        };
        // Files and no pipes: no process has to read while it writes, or to wait for others that
        // hold them.
        let (out, err) = (output()?, output()?);
        let mut command = Command::new(&self.path);
        for argument in self.arguments.iter().skip(1) {
            command.arg(argument);
            if argument == "serve"
                && command.get_args().filter(|given| *given == "serve").count() == 1
            {
                command.args(["--takes-over", &FORMAT.to_string()]);
            }
        }
        command.env_remove(VARIABLE).env_remove("NOTIFY_SOCKET");
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(err.try_clone()?);
        let spawned = {
            let _quiet = vlane_server::none_arrives(MOMENT).with_context(not_over)?;
            command.spawn()
        };
        let mut child = spawned
            .with_context(|| format!("{path} cannot be executed; put the new program there"))?;
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if begin.elapsed() > ANSWER {
                let _ = child.kill();
                let _ = child.wait();
                bail!(
                    "{path} does not answer within {ANSWER:?}; put a vlane there that can take over"
                );
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let (out, err) = (text(&out), text(&err));
        let Some(answer) =
            out.lines().next().and_then(|line| serde_json::from_str::<Answer>(line).ok())
        else {
            let said = err.lines().next().unwrap_or_default();
            bail!(
                "{path} cannot take over ({status}): {:?}; install a vlane there that can and \
                 that understands this command line, or restart the service",
                vlane_socket::printable(said).to_string()
            );
        };
        let Answer { format, version } = answer;
        ensure!(
            format == FORMAT,
            "{path} (version {}) takes over state of format {format}, and this one (version \
             {VERSION}) has format {FORMAT}; stop the service and start it again",
            vlane_socket::printable(&version)
        );
        Ok(version)
    }

    /// Executes it in the place of this one, which has `state` as its standard input; comes back if
    /// that fails.
    fn execute(&self, state: OwnedFd) -> Result<std::convert::Infallible> {
        let c_string = |text: OsString| CString::new(text.into_vec());
        let path = c_string(self.path.clone().into_os_string())?;
        let arguments =
            self.arguments.iter().cloned().map(c_string).collect::<Result<Vec<_>, _>>()?;
        let mut environment = vec![CString::new(format!("{VARIABLE}={}", std::process::id()))?];
        for (name, value) in std::env::vars_os().filter(|(name, _)| name != VARIABLE) {
            let mut pair = name;
            pair.push("=");
            pair.push(value);
            environment.push(c_string(pair)?);
        }
        let before = rustix::stdio::stdin().try_clone_to_owned()?;
        rustix::stdio::dup2_stdin(state)?;
        let failed = nix::unistd::execve(&path, &arguments, &environment);
        let _ = rustix::stdio::dup2_stdin(before);
        failed.with_context(|| format!("{} cannot be executed", self.path.display()))
    }
}

/// Why the thread that serves does not come to it.
fn not_over() -> String {
    format!(
        "the front end's last message is not over after {MOMENT:?}: it has not been sent to its \
         end, or waits for the storage; ask again"
    )
}

/// The beginning of a file.
fn text(file: &File) -> String {
    let mut bytes = vec![0; LONGEST];
    let len = file.read_at(&mut bytes, 0).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

/// Decides on the next step between signals and the thread that serves. The process stays while the
/// lock is held.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// The version that is to take over, until the thread that serves comes to it.
    wanted: Option<String>,
    /// The end was requested: no program takes over any more.
    pub(super) is_ending: bool,
    /// Looks at the image's size that were asked for and are not over.
    pub(super) looks: usize,
}

struct Looking<'a>(&'a Upgrade);

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        let mut turn = vlane_error::locked(&self.0.turn);
        turn.looks = turn.looks.saturating_sub(1);
    }
}

/// Gives the control sockets.
pub(super) type GiveControl =
    Box<dyn Fn(&mut HandedServer, &mut Descriptors) -> std::io::Result<()> + Send + Sync>;

/// Objects handed over beside the session.
pub(super) struct Belongings {
    pub(super) name: String,
    /// Of the service manager.
    pub(super) status: String,
    pub(super) volume: Arc<Volume>,
    pub(super) image: Option<Arc<FileEngine>>,
    pub(super) control: GiveControl,
    /// True if a recorder writes down the storage's requests.
    pub(super) is_recorded: bool,
}

/// One upgrade after the other.
pub(super) struct Upgrade {
    program: Program,
    belongings: Belongings,
    /// Held while a signal is read and handled: the signal is lost with the process otherwise.
    pub(super) turn: Mutex<Turn>,
    /// [`Turn::wanted`] was dealt with.
    over: Condvar,
    /// Readable while it is wanted.
    wanted: OwnedFd,
}

impl std::fmt::Debug for Upgrade {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upgrade")
            .field("program", &self.program)
            .field("turn", &self.turn)
            .finish_non_exhaustive()
    }
}

impl Upgrade {
    pub(super) fn new(belongings: Belongings) -> Result<Arc<Upgrade>> {
        let wanted = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (program, turn) = (Program::own()?, Mutex::default());
        Ok(Arc::new(Upgrade { program, belongings, turn, over: Condvar::new(), wanted }))
    }

    /// For a look at the image's size, which is over when the result is dropped.
    pub(super) fn looking(&self) -> impl Drop + '_ {
        Looking(self)
    }

    /// A thread that upgrades on request. A request during an upgrade counts for the next one.
    pub(super) fn thread(self: &Arc<Upgrade>) -> std::io::Result<SyncSender<()>> {
        let (sender, receiver): (_, Receiver<()>) = sync_channel(1);
        let upgrade = Arc::clone(self);
        let body = move || {
            while receiver.recv().is_ok() {
                notify::reloading();
                if let Err(why) = upgrade.attempt() {
                    upgrade.complain(&why);
                }
                if !vlane_error::locked(&upgrade.turn).is_ending {
                    notify::ready(&upgrade.belongings.status);
                }
            }
        };
        std::thread::Builder::new().name("upgrade".to_owned()).spawn(body)?;
        Ok(sender)
    }

    fn complain(&self, why: &anyhow::Error) {
        tracing::warn!(
            "{}: not upgraded, version {VERSION} continues: {why:#}",
            self.belongings.name
        );
    }

    /// Asks the new program, and then the thread that serves; returns when no program took over.
    fn attempt(&self) -> Result<()> {
        ensure!(
            !self.belongings.is_recorded,
            "an upgrade would cut off the record of the storage's writes \
             (--danger-record-storage); stop the service and start it again"
        );
        // Without enough of them no step below succeeds either, for a reason that says less.
        self.check_limit(0)?;
        let version = self.program.ask()?;
        let mut turn = vlane_error::locked(&self.turn);
        if turn.is_ending {
            return Ok(());
        }
        turn.wanted = Some(version);
        let _ = rustix::io::write(&self.wanted, &1u64.to_ne_bytes());
        let waited = self
            .over
            .wait_timeout_while(turn, MOMENT, |turn| turn.wanted.is_some() && !turn.is_ending);
        let (mut turn, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match turn.wanted.take() {
            Some(_) if !turn.is_ending => bail!(not_over()),
            _ => Ok(()),
        }
    }

    /// Refuses if the next program had too few descriptors, with so many that it is handed.
    fn check_limit(&self, handed: usize) -> Result<()> {
        let (needed, limit) = (
            self.belongings.volume.descriptors_with(handed),
            vlane_error::raise_descriptor_limit(),
        );
        ensure!(
            limit.is_none_or(|limit| limit >= needed),
            "the next program needs {needed} file descriptors, and the limit is {}; raise it \
             (prlimit --nofile, or LimitNOFILE= of the service) and ask again",
            limit.unwrap_or(0)
        );
        Ok(())
    }

    /// Becomes the new program, with what `give` gives.
    fn become_next(
        &self,
        give: &mut dyn FnMut(&mut Descriptors) -> Result<HandedServer, String>,
    ) -> Result<std::convert::Infallible> {
        let Belongings { volume, image, control, .. } = &self.belongings;
        let (begun, mut descriptors) = (vlane_sched::now(), Descriptors::default());
        let mut server = give(&mut descriptors).map_err(anyhow::Error::msg)?;
        // No request is in flight: writes intact by now stay intact until the next program looks.
        ensure!(
            volume.lost_write().is_none(),
            "writes that were answered are lost, and the next program would not know; let the \
             guest check its file systems, and start the service again"
        );
        let files = image.as_ref().map(|image| image.hand_over()).transpose()?;
        let image = files.map(|files| HandedImage::give(files, &mut descriptors)).transpose()?;
        control(&mut server, &mut descriptors)?;
        let handed = Handed::new(begun, image, volume.limits().0, server, &mut descriptors)?;
        self.check_limit(descriptors.len())?;
        let state =
            handed.send(descriptors).context("the state cannot be written for the handover")?;
        logging::tell_left_out();
        self.program.execute(state)
    }
}

impl Successor for Upgrade {
    fn wanted(&self) -> BorrowedFd<'_> {
        self.wanted.as_fd()
    }

    fn take_over(&self, give: &mut dyn FnMut(&mut Descriptors) -> Result<HandedServer, String>) {
        let _ = rustix::io::read(&self.wanted, &mut [0; 8]);
        // The reader of signals waits: a signal that comes now stays pending, for the program that
        // reads next.
        let mut turn = vlane_error::locked(&self.turn);
        let Some(version) = turn.wanted.take() else { return };
        self.over.notify_all();
        if turn.is_ending {
            return;
        }
        if turn.looks > 0 {
            return self.complain(&anyhow::anyhow!(
                "the image's size is being looked at (SIGHUP); ask again"
            ));
        }
        tracing::debug!("{}: version {version} takes over", self.belongings.name);
        let Err(why) = self.become_next(give);
        self.complain(&why);
    }
}
