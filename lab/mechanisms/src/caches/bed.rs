//! The ground of all measurements: images, limits, and back ends and threads on their CPUs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use vlane_guest::{Host, UmlProgram};

use super::limit::MemoryLimit;
use super::replay::Replay;
use super::{Arm, Options};
use vlane_testbed::{ErrorKind, Fail, Image, Interrupt, Result, Server};

/// Everything that measurements stand on.
#[derive(Debug)]
pub struct Bed<'a> {
    /// The options.
    pub options: &'a Options,
    /// vlane's own file.
    pub vlane: &'a Path,
    /// The ways to serve the volume.
    pub arms: Vec<Arm>,
    /// For the programs of guests.
    pub host: &'a Host,
    /// For sockets.
    pub dir: &'a Path,
    /// The cache's limit, if there is one.
    pub limit: Option<&'a MemoryLimit>,
    /// The neighbour's image.
    pub hot: &'a Image,
    /// Guests, if any are wanted.
    pub guests: Option<&'a UmlProgram>,
    /// CPUs of the neighbour, its back end and who asks it for reads; empty: any.
    pub neighbour_cpus: &'a [usize],
    /// CPUs of the volume's back end and of who writes; empty: any.
    pub writer_cpus: &'a [usize],
    /// Recorded requests of guests, by the bytes of their journals.
    pub recorded: BTreeMap<u64, Replay>,
    /// The user's wish to end.
    pub interrupt: &'a Interrupt,
}

impl Bed<'_> {
    /// A back end on an image, in the cgroup.
    ///
    /// # Errors
    /// Those of [`Server::serve`]; [`ErrorKind::Io`] if the cgroup refuses it.
    pub fn serve(&self, image: &Path, arguments: &[String], cpus: &[usize]) -> Result<Server> {
        let mut words: Vec<OsString> = vec![image.into()];
        words.extend(["--format", "raw", "--queues", "1"].map(OsString::from));
        words.extend(arguments.iter().map(OsString::from));
        let server = Server::serve(self.vlane, self.dir, cpus, words)?;
        if let Some(limit) = self.limit {
            limit.add(server.pid())?;
        }
        Ok(server)
    }
}

/// Binds the calling thread, and what it starts, to CPUs; to none: it stays where it is.
pub fn bind(cpus: &[usize]) -> Result<()> {
    if cpus.is_empty() { Ok(()) } else { Ok(vlane_driver::pin(cpus)?) }
}

/// The result of a thread.
pub fn joined<T>(ended: std::thread::Result<Result<T>>) -> Result<T> {
    ended.unwrap_or_else(|_| ErrorKind::Process.fail("a thread of the measurement panicked"))
}
