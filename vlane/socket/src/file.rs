//! A unix socket and its file: made only at a free path, removed only by its maker.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::error::{ListenError, MAX_PATH};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// The users that may connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// As the process's umask says.
    Umask,
    /// Exactly this file mode, and the file in this group; without one, in the process's own.
    Exactly {
        /// The file's permissions.
        mode: u32,
        /// A group's number.
        group: Option<u32>,
    },
}

impl Access {
    /// The owner only.
    pub const OWNER: Access = Access::Exactly { mode: 0o600, group: None };
}

/// The kind of socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketKind {
    /// Bytes.
    Stream,
    /// Packets, in order.
    Packets,
}

/// Where to listen, and how.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    path: &'a Path,
    option: &'static str,
    what: &'static str,
    kind: SocketKind,
    access: Access,
    directory: bool,
}

impl<'a> Place<'a> {
    /// At `path`, which came from the command line's `option`: a socket of bytes, with the umask's
    /// permissions. The parameter `what` names the kind of server at such sockets, for messages:
    /// "server".
    pub fn new(path: &'a Path, option: &'static str, what: &'static str) -> Self {
        Self {
            path,
            option,
            what,
            kind: SocketKind::Stream,
            access: Access::Umask,
            directory: false,
        }
    }

    /// Of this kind.
    pub const fn kind(self, kind: SocketKind) -> Self {
        Self { kind, ..self }
    }

    /// Sets the users that may connect.
    pub const fn access(self, access: Access) -> Self {
        Self { access, ..self }
    }

    /// In a directory that is made if it is not there.
    pub const fn making_directory(self) -> Self {
        Self { directory: true, ..self }
    }
}

/// The file of a socket that is listened on. Removed when this is dropped.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Only our own is removed at the end.
    identity: Option<(u64, u64)>,
}

impl SocketFile {
    /// Makes the socket, which does not wait in `accept`; one that a dead process left behind is
    /// replaced.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen(place: &Place<'_>) -> Result<(OwnedFd, SocketFile), ListenError> {
        let Place { path, .. } = *place;
        let len = path.as_os_str().len();
        if len > MAX_PATH {
            return Err(ListenError::TooLong { path: path.to_owned(), len });
        }
        if place.directory
            && let Some(directory) = path.parent()
        {
            // The umask does not decide: a user who may write there may put another socket in this
            // one's place.
            let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(directory);
            made.map_err(|error| bind_error(place, error))?;
        }
        clear_path(place)?;
        let (socket, file) = bind(place).map_err(|error| bind_error(place, error.into()))?;
        // No client can connect before it listens.
        file.open_to(place)?;
        rustix::net::listen(&socket, BACKLOG).map_err(|error| bind_error(place, error.into()))?;
        Ok((socket, file))
    }

    /// The same, of bytes, as the standard library knows it.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen_stream(place: &Place<'_>) -> Result<(UnixListener, SocketFile), ListenError> {
        let (socket, file) = Self::listen(&place.kind(SocketKind::Stream))?;
        Ok((UnixListener::from(socket), file))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Device and inode of the file, for [`SocketFile::adopt`]; none if it could not be looked at.
    pub fn identity(&self) -> Option<(u64, u64)> {
        self.identity
    }

    /// The file of a socket that another process made and does not remove: from now on it is this
    /// one's, to be removed at its end.
    pub fn adopt(path: &Path, identity: Option<(u64, u64)>) -> SocketFile {
        SocketFile { path: path.to_owned(), identity }
    }

    /// Removes the file, if it is still the one that was made here.
    pub fn remove(&self) {
        let now = identity(&self.path);
        if now.is_some() && now == self.identity {
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Gives the file its group and the permissions that the umask took away.
    fn open_to(&self, place: &Place<'_>) -> Result<(), ListenError> {
        let Access::Exactly { mode, group } = place.access else { return Ok(()) };
        let failed = |error: Errno| bind_error(place, error.into());
        // By a descriptor of the file, so that it is the one that was made here even if its name
        // changes.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&self.path, flags, Mode::empty()).map_err(failed)?;
        let stat = rustix::fs::fstat(&file).map_err(failed)?;
        let is_ours = self.identity == Some((stat.st_dev, stat.st_ino))
            && FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
        if !is_ours {
            return Err(failed(Errno::STALE));
        }
        // A directory with the set-group-ID bit gives its files a group of its own.
        let group = group.unwrap_or_else(|| rustix::process::getegid().as_raw());
        if group != stat.st_gid {
            let owner = rustix::fs::Gid::from_raw(group);
            rustix::fs::chownat(&file, "", None, Some(owner), AtFlags::EMPTY_PATH).map_err(
                |error| ListenError::Group { path: self.path.clone(), group, source: error.into() },
            )?;
        }
        if stat.st_mode & 0o777 != mode {
            // A descriptor opened only as a path has no other way.
            let by_descriptor = format!("/proc/self/fd/{}", raw(&file));
            rustix::fs::chmod(by_descriptor, Mode::from_raw_mode(mode)).map_err(failed)?;
        }
        Ok(())
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

fn raw(fd: &impl AsFd) -> i32 {
    use std::os::fd::AsRawFd;
    fd.as_fd().as_raw_fd()
}

const fn socket_type(kind: SocketKind) -> SocketType {
    match kind {
        SocketKind::Stream => SocketType::STREAM,
        SocketKind::Packets => SocketType::SEQPACKET,
    }
}

/// Binds. The file has no more than its mode from its first moment: Linux takes it from the
/// socket's own, less the umask.
fn bind(place: &Place<'_>) -> rustix::io::Result<(OwnedFd, SocketFile)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, socket_type(place.kind), flags, None)?;
    if let Access::Exactly { mode, .. } = place.access {
        // The group's permissions are for the group that it is to be.
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode & 0o707))?;
    }
    rustix::net::bind(&socket, &SocketAddrUnix::new(place.path)?)?;
    let file = SocketFile { path: place.path.to_owned(), identity: identity(place.path) };
    Ok((socket, file))
}

/// Device and inode of a socket file. No other file can get that number as long as the socket is
/// open.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Removes a dead process's file; refuses a path that is in use.
fn clear_path(place: &Place<'_>) -> Result<(), ListenError> {
    let Place { path, option, what, .. } = *place;
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(ListenError::NotASocket { path: path.to_owned(), option });
    }
    match probe(place) {
        Err(Errno::CONNREFUSED) => {}
        Err(Errno::ACCESS | Errno::PERM) => {
            return Err(ListenError::Permission { path: path.to_owned() });
        }
        Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)) => {
            return Err(ListenError::Io { path: path.to_owned(), source: error.into() });
        }
        // Connected, or its queue is full, or it is of another type: a server is there.
        _ => return Err(ListenError::InUse { path: path.to_owned(), option, what }),
    }
    // Another process may have found it dead, too, and be there by now.
    if identity(path) != Some((metadata.dev(), metadata.ino())) {
        return Err(ListenError::InUse { path: path.to_owned(), option, what });
    }
    fs::remove_file(path).map_err(|error| bind_error(place, error))?;
    tracing::info!("{}: removed the socket that a dead {what} left", path.display());
    Ok(())
}

/// Connects to see if a server listens there. Does not wait for a server that is too busy to
/// answer.
fn probe(place: &Place<'_>) -> rustix::io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, socket_type(place.kind), flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(place.path)?)
}

fn bind_error(place: &Place<'_>, source: io::Error) -> ListenError {
    let path = place.path.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound => ListenError::NoDirectory { path },
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            ListenError::Permission { path }
        }
        io::ErrorKind::AddrInUse => {
            ListenError::InUse { path, option: place.option, what: place.what }
        }
        _ => ListenError::Io { path, source },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn file_has_the_requested_mode_and_group() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/s");
        let listen = |access| {
            SocketFile::listen(&Place::new(&path, "--x", "x").access(access).making_directory())
        };
        for mode in [0o600, 0o660, 0o666] {
            let _made = listen(Access::Exactly { mode, group: None }).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
        }
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o022, 0);
        if !rustix::process::geteuid().is_root() {
            return vlane_testing::skip("only root may give a file to any group");
        }
        let _made = listen(Access::Exactly { mode: 0o660, group: Some(4242) }).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!((metadata.gid(), metadata.permissions().mode() & 0o777), (4242, 0o660));
    }

    /// It is not the directory's.
    #[test]
    fn file_group_defaults_to_the_process() {
        let dir = tempfile::tempdir().unwrap();
        if std::os::unix::fs::chown(dir.path(), None, Some(4242)).is_err() {
            return vlane_testing::skip("only root may give a directory to any group");
        }
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o2770)).unwrap();
        let path = dir.path().join("s");
        let access = Access::Exactly { mode: 0o660, group: None };
        let _made = SocketFile::listen(&Place::new(&path, "--x", "x").access(access)).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        let own = rustix::process::getegid().as_raw();
        assert_eq!((metadata.gid(), metadata.permissions().mode() & 0o777), (own, 0o660));
    }

    /// It is removed only if it is still the same file.
    #[test]
    fn adopted_file_is_removed_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (_socket, file) = SocketFile::listen(&Place::new(&path, "--x", "x")).unwrap();
        let identity = file.identity();
        std::mem::forget(file);
        drop(SocketFile::adopt(&path, identity));
        assert!(!path.exists());
        let (_other, _file) = SocketFile::listen(&Place::new(&path, "--x", "x")).unwrap();
        drop(SocketFile::adopt(&path, identity));
        assert!(path.exists(), "it is another socket's");
    }

    /// The path is too long, or has no directory.
    #[test]
    fn unusable_path_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join("x".repeat(120));
        let error = SocketFile::listen(&Place::new(&long, "--x", "x")).unwrap_err();
        assert!(matches!(error, ListenError::TooLong { .. }), "{error}");
        let nowhere = dir.path().join("no/s");
        let error = SocketFile::listen(&Place::new(&nowhere, "--x", "x")).unwrap_err();
        assert!(matches!(error, ListenError::NoDirectory { .. }), "{error}");
    }
}
