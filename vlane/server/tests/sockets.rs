//! The files of the four unix sockets: a server's, its control's, the scheduler's for back ends and
//! its state's. Only a dead socket is ever removed to make room, and only the own one at the end.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod common;

use std::any::Any;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use common::*;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use vlane_sched::link::Link;
use vlane_sched::live::socket::Socket;
use vlane_server::{Control, Listener};

/// The listener, or the reason why there is none.
type Made = Result<Box<dyn Any>, String>;

/// One of the four: its name, what makes it, and its type.
type Maker<'a> = (&'static str, Box<dyn Fn(&Path) -> Made + 'a>, SocketType);

fn made<T: 'static, E: std::error::Error>(result: Result<T, E>) -> Made {
    result.map(|value| Box::new(value) as Box<dyn Any>).map_err(|error| {
        let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
        format!("{error}{source}")
    })
}

fn makers(server: &Server) -> [Maker<'_>; 4] {
    let control = |path: &Path| made(Control::start(path, Arc::clone(&server.volume)));
    [
        ("vhost-user", Box::new(|path: &Path| made(Listener::bind(path))), SocketType::STREAM),
        ("control", Box::new(control), SocketType::STREAM),
        (
            "registration",
            Box::new(|path: &Path| made(Link::bind(path, 0o600))),
            SocketType::SEQPACKET,
        ),
        ("state", Box::new(|path: &Path| made(Socket::bind(path))), SocketType::STREAM),
    ]
}

/// A socket of a dead process.
fn dead(path: &Path, kind: SocketType) {
    let socket = rustix::net::socket(AddressFamily::UNIX, kind, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&socket, 1).unwrap();
}

fn inode(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

#[test]
fn only_dead_sockets_are_removed() {
    let server = Server::new(null(None), 1, 1);
    for (name, make, kind) in makers(&server) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let refused = |what: &str| {
            let before = inode(&path);
            let error =
                make(&path).err().unwrap_or_else(|| panic!("{name}: listens in place of {what}"));
            assert!(error.contains(path.to_str().unwrap()), "{name}, {what}: {error}");
            assert_eq!(inode(&path), before, "{name}: {what} was replaced");
            error
        };
        fs::write(&path, "years of work").unwrap();
        assert!(refused("a file").contains("not a socket"), "{name}");
        assert_eq!(fs::read(&path).unwrap(), b"years of work", "{name}");
        fs::remove_file(&path).unwrap();

        fs::create_dir(&path).unwrap();
        refused("a directory");
        fs::remove_dir(&path).unwrap();

        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .unwrap();
        refused("a pipe");
        fs::remove_file(&path).unwrap();

        // Also a link to a dead socket.
        let there = dir.path().join("there");
        dead(&there, kind);
        for target in [Path::new("nowhere"), &there] {
            symlink(target, &path).unwrap();
            refused("a symbolic link");
            fs::remove_file(&path).unwrap();
        }
        assert!(there.exists(), "{name}");

        let _alive = UnixListener::bind(&path).unwrap();
        refused("a live socket");
    }
}

/// No other file is removed at the end.
#[test]
fn dead_socket_is_replaced_own_removed() {
    let server = Server::new(null(None), 1, 1);
    for (name, make, kind) in makers(&server) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        dead(&path, kind);
        let listens = make(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(fs::symlink_metadata(&path).unwrap().file_type().is_socket(), "{name}");
        assert!(make(&path).is_err(), "{name}: two at once");
        drop(listens);
        assert!(!path.exists(), "{name}: its socket is left");

        // Another program has put its own file there meanwhile.
        let listens = make(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another's").unwrap();
        drop(listens);
        assert_eq!(fs::read(&path).unwrap(), b"another's", "{name}");
        fs::remove_file(&path).unwrap();
        let listens = make(&path).unwrap();
        fs::remove_file(&path).unwrap();
        dead(&path, kind);
        drop(listens);
        assert!(path.exists(), "{name}: another's socket was removed");
    }
}

#[test]
fn owner_sockets_ignore_the_umask() {
    let server = Server::new(null(None), 1, 1);
    for (name, make, _) in makers(&server).into_iter().skip(1) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _listens = make(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{name}: {mode:o}");
    }
}
