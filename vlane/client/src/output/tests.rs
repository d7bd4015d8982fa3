use std::os::unix::fs::symlink;

use vlane_engine::file::{FileEngine, FileOptions};

use super::*;

fn own(content: &[u8]) -> bool {
    content.starts_with(b"own")
}

/// Both ways to write, each to an unused place.
fn both(path: &Path, force: bool) -> [Result<()>; 2] {
    let output = Output::new(path).replacing(own).force(force);
    let streamed = || {
        output
            .create()
            .and_then(|mut file| file.write_all(b"own new").context(ErrorKind::Io, String::new))
    };
    [output.check().and_then(|()| output.write(b"own new")), streamed()]
}

fn refused(path: &Path, force: bool, why: &str) {
    let before = std::fs::metadata(path).map(|meta| meta.len()).ok();
    for result in both(path, force) {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
    assert_eq!(std::fs::metadata(path).map(|meta| meta.len()).ok(), before);
}

#[test]
fn unwritable_place_is_refused_early() {
    let error = Output::new("/proc/vlane-result").check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.to_string().contains("/proc/vlane-result: cannot be written"), "{error}");
}

#[test]
fn only_same_kind_or_force_replaces() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("result");
    for content in [None, Some(&b""[..]), Some(b"own old, and longer than the new")] {
        for which in 0..2 {
            match content {
                Some(content) => std::fs::write(&path, content).unwrap(),
                None => drop(std::fs::remove_file(&path)),
            }
            let output = Output::new(&path).replacing(own);
            match which {
                0 => output.write(b"own new").unwrap(),
                _ => output.create().unwrap().write_all(b"own new").unwrap(),
            }
            assert_eq!(std::fs::read(&path).unwrap(), b"own new");
        }
    }
    std::fs::write(&path, "precious").unwrap();
    refused(&path, false, "--force");
    let before = File::open(&path).unwrap();
    for result in both(&path, true) {
        result.unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"own new");
    }
    assert_eq!(io::read_to_string(before).unwrap(), "precious", "whoever has it open keeps it");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn used_and_special_files_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk.raw");
    File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let link = dir.path().join("link");
    symlink(&image, &link).unwrap();
    for read_only in [false, true] {
        let served =
            FileEngine::open(&image, FileOptions { read_only, ..FileOptions::default() }).unwrap();
        for path in [&image, &link] {
            refused(path, false, "locked");
            refused(path, true, "locked");
        }
        drop(served);
    }
    refused(dir.path(), true, "a directory");
    let socket = dir.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    refused(&socket, true, "a socket");
    symlink("nowhere", dir.path().join("dangling")).unwrap();
    refused(&dir.path().join("dangling"), true, "a broken symbolic link");
    refused(&dir.path().join("no/such/place"), true, "no directory");
    if let Some(device) =
        (0..8).map(|n| PathBuf::from(format!("/dev/loop{n}"))).find(|path| path.exists())
    {
        refused(&device, true, "a block device");
    }
}

#[test]
fn links_and_shell_redirections_are_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link) = (dir.path().join("file"), dir.path().join("link"));
    std::fs::write(&file, "own old").unwrap();
    symlink(&file, &link).unwrap();
    for result in both(&link, false) {
        result.unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read(&file).unwrap(), b"own new");
    }
    Output::new("/dev/null").write(b"gone").unwrap();
    assert!(!Path::new("/dev/null").is_file());
    let opened = tempfile::tempfile().unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&opened));
    Output::new(&path).write(b"one, ").unwrap();
    Output::new(&path).create().unwrap().write_all(b"two").unwrap();
    let mut text = String::new();
    (&opened).read_to_string(&mut text).unwrap();
    assert_eq!(text, "one, two");
}

#[test]
fn unfinished_output_leaves_newer_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("result");
    let output = Output::new(&path);
    drop(output.begin().unwrap());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let writing = output.begin().unwrap();
    std::fs::write(&path, "came meanwhile").unwrap();
    assert!(writing.finish().unwrap_err().to_string().contains("--force"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "came meanwhile");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}
