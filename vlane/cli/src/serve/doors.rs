//! The sockets of `vlane serve`: the rights to connect, and the answers there.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use vlane_server::{Access, Arrived, Control, Descriptors, HandedServer, Rights, Volume};

use super::upgrade::GiveControl;
use crate::values;

/// Access rights of the sockets
///
/// An option of one socket has no effect on the others.
#[derive(Debug, Args)]
pub(super) struct DoorArgs {
    /// Octal mode of --socket [default: from the umask; 660 with --socket-group]
    #[arg(long, value_name = "MODE", value_parser = values::mode)]
    socket_mode: Option<u32>,

    /// Group of --socket, by name or number, such as kvm [default: the server's own]
    #[arg(long, value_name = "GROUP", value_parser = values::group)]
    socket_group: Option<u32>,

    /// Unix socket for questions and changes while the volume is served [default: none]
    ///
    /// It reports size and counters, records traces and sets limits.
    #[arg(long, value_name = "PATH")]
    pub(super) control: Option<PathBuf>,

    /// Octal mode of --control [default: 600; 660 with --control-group]
    #[arg(long, value_name = "MODE", requires = "control", value_parser = values::mode)]
    control_mode: Option<u32>,

    /// Group of --control, by name or number [default: the server's own]
    #[arg(long, value_name = "GROUP", requires = "control", value_parser = values::group)]
    control_group: Option<u32>,

    /// Unix socket for questions only: no changes, no traces [default: none]
    #[arg(long, value_name = "PATH")]
    pub(super) control_read_only: Option<PathBuf>,

    /// Octal mode of --control-read-only
    #[arg(long, value_name = "MODE", requires = "control_read_only", default_value = "660", value_parser = values::mode)]
    control_read_only_mode: u32,

    /// Group of --control-read-only, by name or number [default: the server's own]
    #[arg(long, value_name = "GROUP", requires = "control_read_only", value_parser = values::group)]
    control_read_only_group: Option<u32>,
}

/// Owner and group.
const SHARED: u32 = 0o660;

impl DoorArgs {
    /// The rights to connect to the front ends' socket.
    pub(super) fn socket(&self) -> Access {
        match (self.socket_mode, self.socket_group) {
            (None, None) => Access::Umask,
            (mode, group) => Access::Exactly { mode: mode.unwrap_or(SHARED), group },
        }
    }

    /// The control sockets that are wanted.
    fn controls(&self) -> impl Iterator<Item = (&Path, Rights, Access)> {
        let group = self.control_group;
        let mode = self.control_mode.unwrap_or(if group.is_some() { SHARED } else { 0o600 });
        let all = self
            .control
            .as_deref()
            .map(|path| (path, Rights::All, Access::Exactly { mode, group }));
        let access = Access::Exactly {
            mode: self.control_read_only_mode,
            group: self.control_read_only_group,
        };
        let questions =
            self.control_read_only.as_deref().map(|path| (path, Rights::Questions, access));
        [all, questions].into_iter().flatten()
    }

    /// Where they are.
    pub(super) fn control_paths(&self) -> impl Iterator<Item = &Path> {
        self.controls().map(|(path, ..)| path)
    }

    /// The control sockets: new ones, or those of the program that handed them over.
    pub(super) fn open(
        &self,
        handed: Option<(&mut HandedServer, &mut Arrived)>,
        volume: &Arc<Volume>,
    ) -> Result<Controls> {
        let mut handed = handed;
        let mut open = Vec::new();
        for (path, rights, access) in self.controls() {
            let from = handed
                .as_mut()
                .and_then(|(server, from)| Some((server.take_control(rights)?, from)));
            open.push(match from {
                Some((socket, from)) => {
                    Control::take_over(path, rights, &socket, from, Arc::clone(volume))?
                }
                None => Control::start_for(path, rights, access, Arc::clone(volume))?,
            });
        }
        Ok(Controls(open))
    }
}

/// The control sockets that are served.
pub(super) struct Controls(Vec<Control>);

impl Controls {
    /// Removes their files from another thread.
    pub(super) fn remover(&self) -> Box<dyn Fn() + Send> {
        let removers: Vec<_> = self.0.iter().map(Control::remover).collect();
        Box::new(move || removers.iter().for_each(|remove| remove()))
    }

    /// Has the next process listen at them.
    pub(super) fn giver(&self) -> GiveControl {
        let givers: Vec<_> = self.0.iter().map(Control::giver).collect();
        Box::new(move |handed: &mut HandedServer, to: &mut Descriptors| {
            givers.iter().try_for_each(|give| give(handed, to))
        })
    }
}
