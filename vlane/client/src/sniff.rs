//! Identifies a file or a socket, for a user who gave the wrong one.
//!
//! A look at the first bytes of a file, or at the process that listens at a socket, shows its kind.
//! [`mistaken`] makes a sentence that names the kind and the right argument. Unknown kinds are left
//! to the reader of the file.

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Bytes at the beginning of a file that are looked at.
const HEAD: usize = 64 * 1024;

/// Name and version of the file's format. The number rises when a reader of the older one would
/// misunderstand the newer.
pub const SAVED: &str = "vlane-bench/1";

/// Name and version of a report's format. The number rises as that of [`SAVED`] does.
pub const REPORT: &str = "vlane-report/1";

/// Kind of file that a command needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// A trace in vlane's own format.
    Trace,
    /// A report: JSON or page.
    Report,
    /// A file of `vlane-lab bench --save`.
    SavedRun,
    /// The control socket of a volume.
    ControlSocket,
    /// The vhost-user socket of a back end.
    VhostUserSocket,
}

/// Kind of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// A trace in vlane's own format.
    Trace,
    /// fio's iolog.
    Iolog,
    /// A file of blktrace.
    Blktrace,
    /// A trace in a format that is not read.
    ForeignTrace(&'static str),
    /// A report: JSON or page.
    Report,
    /// A file of `vlane-lab bench --save`.
    SavedRun,
    /// A file of `vlane-lab bench --verify --state`.
    VerifyState,
    /// An image of a disk, of this format.
    Image(&'static str),
    /// A device of the system.
    Device,
    /// A directory.
    Directory,
    /// It is empty.
    Empty,
    /// The control socket of a volume; its vhost-user socket, if that is known.
    ControlSocket(Option<PathBuf>),
    /// The vhost-user socket of a volume; its control socket, if it has one.
    VhostUserSocket(Option<PathBuf>),
    /// A socket of an unknown process, or of none.
    OtherSocket,
    /// It is missing, cannot be read, or is of an unknown kind.
    Unknown,
}

impl Wanted {
    fn words(self) -> &'static str {
        match self {
            Self::Trace => "a trace",
            Self::Report => "a report",
            Self::SavedRun => "a saved run",
            Self::ControlSocket => "a control socket",
            Self::VhostUserSocket => "a vhost-user socket",
        }
    }
}

impl Found {
    fn is(&self, wanted: Wanted) -> bool {
        match wanted {
            Wanted::Trace => *self == Self::Trace,
            Wanted::Report => *self == Self::Report,
            Wanted::SavedRun => *self == Self::SavedRun,
            Wanted::ControlSocket => matches!(self, Self::ControlSocket(_) | Self::OtherSocket),
            Wanted::VhostUserSocket => matches!(self, Self::VhostUserSocket(_) | Self::OtherSocket),
        }
    }

    fn words(&self) -> String {
        match self {
            Self::Trace => "a trace".into(),
            Self::Iolog => "an iolog of fio".into(),
            Self::Blktrace => "a trace of blktrace".into(),
            Self::ForeignTrace(format) => (*format).into(),
            Self::Report => "a report".into(),
            Self::SavedRun => "a saved run of `vlane-lab bench --save`".into(),
            Self::VerifyState => "a state of `vlane-lab bench --verify`".into(),
            Self::Image(format) => format!("an image ({format})"),
            Self::Device => "a device".into(),
            Self::Directory => "a directory".into(),
            Self::Empty => "an empty file".into(),
            Self::ControlSocket(_) => "the control socket of a volume".into(),
            Self::VhostUserSocket(_) => "the vhost-user socket of a volume".into(),
            Self::OtherSocket => "a socket".into(),
            Self::Unknown => "an unknown format".into(),
        }
    }
}

/// A sentence if the file at `path` is known to be of another kind than `wanted`. It names the kind
/// and the action to take.
pub fn mistaken(path: &Path, wanted: Wanted) -> Option<String> {
    let found = look(path);
    if found == Found::Unknown || found.is(wanted) {
        return None;
    }
    let name = path.display();
    let advice = match (&found, wanted) {
        (Found::VhostUserSocket(Some(control)), Wanted::ControlSocket) => {
            format!("give the control socket, {}", control.display())
        }
        (Found::VhostUserSocket(None), Wanted::ControlSocket) => {
            "give the control socket; the volume has one if it is served with --control PATH".into()
        }
        (Found::ControlSocket(Some(socket)), Wanted::VhostUserSocket) => {
            format!("give the vhost-user socket, {}", socket.display())
        }
        (Found::ControlSocket(None), Wanted::VhostUserSocket) => {
            "give the vhost-user socket".into()
        }
        (Found::Iolog | Found::Blktrace, Wanted::Trace) => {
            format!("make one of it: vlane-lab trace convert {name} NEW.trc")
        }
        (Found::ForeignTrace(_), Wanted::Trace) => "vlane reads its own traces, and converts \
                                                    fio's iolog (versions 2 and 3), blktrace's \
                                                    binary files and MSR Cambridge's CSV"
            .into(),
        (Found::Image(_) | Found::Device, Wanted::ControlSocket) => {
            format!(
                "serve it first (vlane serve {name} --socket PATH --control CONTROL), and give \
                 CONTROL"
            )
        }
        (Found::Image(_) | Found::Device, Wanted::VhostUserSocket) => {
            format!("serve it first (vlane serve {name} --socket PATH), and give PATH")
        }
        (Found::Trace, Wanted::Report) => {
            format!("make one of it: vlane-lab trace analyze {name} --html NEW.html")
        }
        (Found::Trace, Wanted::VhostUserSocket | Wanted::ControlSocket) => {
            format!("vlane-lab trace analyze {name} shows its content")
        }
        (Found::SavedRun, _) => {
            format!("vlane-lab bench --compare {name} compares a new run with it")
        }
        (Found::Report, _) => format!("vlane-lab report {name} shows it"),
        (Found::VerifyState, _) => format!("vlane-lab bench --verify-only --state {name} uses it"),
        (_, Wanted::Trace) => "vlane volume CONTROL_SOCKET record writes one".into(),
        (_, Wanted::Report) => "commands that measure write one, with --json or --html".into(),
        (_, Wanted::SavedRun) => "vlane-lab bench --save writes one".into(),
        (_, Wanted::ControlSocket) => "a volume has one if it is served with --control PATH".into(),
        (_, Wanted::VhostUserSocket) => {
            "a back end listens there: vlane serve IMAGE --socket PATH".into()
        }
    };
    Some(format!("{name}: this is {}, not {}; {advice}", found.words(), wanted.words()))
}

/// Looks at what is there.
pub fn look(path: &Path) -> Found {
    let Ok(meta) = std::fs::metadata(path) else { return Found::Unknown };
    let kind = meta.file_type();
    if kind.is_dir() {
        Found::Directory
    } else if kind.is_socket() {
        socket(path)
    } else if kind.is_block_device() || kind.is_char_device() {
        Found::Device
    } else if kind.is_file() {
        // A pipe is not looked at: what was read of it would be missing.
        file(path, meta.len())
    } else {
        Found::Unknown
    }
}

fn file(path: &Path, bytes: u64) -> Found {
    let Ok(file) = File::open(path) else { return Found::Unknown };
    let mut head = Vec::with_capacity(HEAD);
    if (&file).take(HEAD as u64).read_to_end(&mut head).is_err() {
        return Found::Unknown;
    }
    let text = || String::from_utf8_lossy(&head);
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    match &head[..] {
        [] => Found::Empty,
        head if head.starts_with(&vlane_trace::MAGIC) => Found::Trace,
        head if is_iolog(head) => Found::Iolog,
        head if blktrace(head).is_some() => Found::Blktrace,
        head if head.starts_with(b"vlverify") => Found::VerifyState,
        _ => match image(&head, &file, bytes) {
            Some(format) => Found::Image(format),
            None if text().contains(REPORT) => Found::Report,
            None if text().contains(SAVED) => Found::SavedRun,
            None => match foreign_trace(&head) {
                Some(format) => Found::ForeignTrace(format),
                None if ["raw", "img"].contains(&extension.as_str()) => Found::Image("raw"),
                None => Found::Unknown,
            },
        },
    }
}

/// The format of an image, or what is on a raw one.
fn image(head: &[u8], file: &File, bytes: u64) -> Option<&'static str> {
    let has = |at: usize, magic: &[u8]| head.get(at..at + magic.len()) == Some(magic);
    let formats: [(usize, &[u8], &str); 10] = [
        (0, b"QFI\xfb", "qcow2"),
        (0, b"KDMV", "vmdk"),
        (0, b"# Disk DescriptorFile", "vmdk"),
        (0, b"vhdxfile", "vhdx"),
        (0x40, b"\x7f\x10\xda\xbe", "vdi"),
        (512, b"EFI PART", "raw, with partitions"),
        (0x438, b"\x53\xef", "raw, with a file system"),
        (0, b"XFSB", "raw, with a file system"),
        (32769, b"CD001", "of a CD"),
        (510, b"\x55\xaa", "raw, bootable or with partitions"),
    ];
    if let Some((.., name)) = formats.iter().find(|(at, magic, _)| has(*at, magic)) {
        return Some(name);
    }
    let mut end = [0; 8];
    if bytes >= 512 && file.read_exact_at(&mut end, bytes - 512).is_ok() && end == *b"conectix" {
        return Some("vpc");
    }
    // A new image has only zeroes.
    (bytes.is_multiple_of(512) && head.iter().all(|byte| *byte == 0)).then_some("raw")
}

/// Looks at who listens at a socket.
fn socket(path: &Path) -> Found {
    let Ok(stream) = UnixStream::connect(path) else { return Found::OtherSocket };
    listener(&stream, path)
}

/// Kind of the program that listens at the other end, by its arguments, which name its sockets.
/// Another user's program cannot be identified.
pub fn listener(stream: &UnixStream, path: &Path) -> Found {
    let pid =
        rustix::net::sockopt::socket_peercred(stream).map(|peer| peer.pid.as_raw_nonzero().get());
    let Ok(pid) = pid else { return Found::OtherSocket };
    let Ok(words) = vlane_socket::command_line(pid.unsigned_abs()) else {
        return Found::OtherSocket;
    };
    let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
    if words.get(1) != Some(&&b"serve"[..]) && !words.contains(&&b"serve"[..]) {
        return Found::OtherSocket;
    }
    let value = |option: &[u8]| {
        let with = [option, b"="].concat();
        words.iter().enumerate().find_map(|(at, word)| match word.strip_prefix(&with[..]) {
            Some(value) => Some(value),
            None if *word == option => words.get(at + 1).copied(),
            None => None,
        })
    };
    // Their paths are relative to where they stand.
    let theirs = |value: &[u8]| {
        let given = Path::new(std::ffi::OsStr::from_bytes(value));
        Path::new("/proc").join(pid.to_string()).join("cwd").join(given)
    };
    let same = |value: &[u8]| match (theirs(value).canonicalize(), path.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    };
    let shown = |value: &[u8]| theirs(value).canonicalize().ok();
    let (vhost, control) = (value(b"--socket"), value(b"--control"));
    match (vhost, control) {
        (Some(vhost), control) if same(vhost) => Found::VhostUserSocket(control.and_then(shown)),
        (vhost, Some(control)) if same(control) => Found::ControlSocket(vhost.and_then(shown)),
        _ => Found::OtherSocket,
    }
}

/// `BLK_IO_TRACE_MAGIC` and version 7, the first word of a trace of blktrace.
pub const BLKTRACE: u32 = 0x6561_7407;

/// True if a file that begins so is an iolog of fio.
pub fn is_iolog(head: &[u8]) -> bool {
    head.starts_with(b"fio version ")
}

/// The order of the bytes of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteOrder {
    /// The lowest byte first.
    Little,
    /// The highest byte first.
    Big,
}

/// The byte order of a file of blktrace that begins so: its kernel's.
pub fn blktrace(head: &[u8]) -> Option<ByteOrder> {
    match head.get(..4)? {
        magic if magic == BLKTRACE.to_le_bytes() => Some(ByteOrder::Little),
        magic if magic == BLKTRACE.to_be_bytes() => Some(ByteOrder::Big),
        _ => None,
    }
}

/// The name of a trace format that vlane does not read, by the first line of a file.
pub fn foreign_trace(head: &[u8]) -> Option<&'static str> {
    let magic = [0x6561_7408_u32.to_le_bytes(), 0x6561_7408_u32.to_be_bytes()];
    if head.get(..4).is_some_and(|bytes| magic.iter().any(|magic| bytes == magic)) {
        return Some("a trace of blktrace's version 8");
    }
    let line = std::str::from_utf8(head.split(|byte| *byte == b'\n').next()?).ok()?;
    let numbers = |fields: &[&str]| fields.iter().all(|field| field.trim().parse::<f64>().is_ok());
    let commas: Vec<&str> = line.trim_end().split(',').collect();
    let words: Vec<&str> = line.split_whitespace().collect();
    match (&commas[..], &words[..]) {
        // Unit, address in sectors, bytes, opcode, seconds.
        ([unit, address, bytes, "R" | "r" | "W" | "w", seconds, ..], _)
            if numbers(&[unit, address, bytes, seconds]) =>
        {
            Some("a trace of SPC (UMass)")
        }
        // Read or write, offset, length.
        ([direction, offset, length], _)
            if matches!(direction.trim(), "0" | "1" | "2") && numbers(&[offset, length]) =>
        {
            Some("an iolog of fio, version 1")
        }
        // Device, CPU, number, seconds, process, action.
        (_, [device, cpu, number, seconds, process, ..])
            if numbers(&[cpu, number, seconds, process])
                && device
                    .split_once(',')
                    .is_some_and(|(major, minor)| numbers(&[major, minor])) =>
        {
            Some("the text that blkparse prints")
        }
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn told(name: &str, content: &[u8], wanted: Wanted) -> Option<String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        mistaken(&path, wanted)
    }

    #[test]
    fn wrong_file_kind_names_remedy() {
        let mut qcow2 = vec![0; 4096];
        qcow2[..4].copy_from_slice(b"QFI\xfb");
        let report = format!("{{\"schema\": \"{}\"}}", REPORT);
        let saved = format!("{{\"schema\": \"{}\"}}", SAVED);
        let cases: [(&str, &[u8], Wanted, &[&str]); 9] = [
            ("a", &qcow2, Wanted::Report, &["an image (qcow2)", "not a report"]),
            (
                "disk.raw",
                &[0; 4096],
                Wanted::Trace,
                &["an image (raw)", "not a trace", "vlane volume"],
            ),
            ("disk.raw", &[1; 4096], Wanted::VhostUserSocket, &["an image", "serve it first"]),
            (
                "a",
                b"fio version 3 iolog\n",
                Wanted::Trace,
                &["an iolog", "vlane-lab trace convert"],
            ),
            ("a", report.as_bytes(), Wanted::SavedRun, &["a report", "vlane-lab report"]),
            ("a", saved.as_bytes(), Wanted::Report, &["a saved run", "--compare"]),
            ("a", b"VLANETRC....", Wanted::Report, &["a trace", "vlane-lab trace analyze"]),
            ("a", b"", Wanted::Trace, &["an empty file", "not a trace"]),
            ("a", &vlane_trace::MAGIC, Wanted::ControlSocket, &["a trace", "not a control socket"]),
        ];
        for (name, content, wanted, parts) in cases {
            let words = told(name, content, wanted).unwrap();
            assert!(parts.iter().all(|part| words.contains(part)), "{words}");
        }
        assert!(mistaken(Path::new("/"), Wanted::Trace).unwrap().contains("a directory"));
    }

    #[test]
    fn unknown_kinds_are_left_to_readers() {
        assert_eq!(told("a", b"VLANETRC....", Wanted::Trace), None);
        assert_eq!(told("a", b"some words", Wanted::Report), None);
        assert_eq!(mistaken(Path::new("/nowhere/at/all"), Wanted::Trace), None);
    }

    #[test]
    fn foreign_traces_list_readable_formats() {
        for (content, is) in [
            ("0,20941264,8192,W,0.551706\n0,20939840,8192,W,0.554041\n", "SPC"),
            (
                "202,16   7    50007   675.722691803   661  D   W 95839968 + 80 [kswapd0]\n",
                "blkparse",
            ),
            ("0, 4096, 8192\n1, 4096, 12288\n", "iolog of fio, version 1"),
            ("\u{8}tae and more", "version 8"),
        ] {
            let words = told("a", content.as_bytes(), Wanted::Trace).unwrap();
            assert!(words.contains(is) && words.contains("MSR Cambridge's CSV"), "{words}");
        }
        assert_eq!(told("a", b"1,2,3,4\n", Wanted::Trace), None);
    }

    #[test]
    fn any_file_is_checked_without_panic() {
        for bytes in [1, 7, 511, 512, 513, 32770, 70_000] {
            for byte in [0_u8, 0x55, 0xff] {
                let _ = told("x", &vec![byte; bytes], Wanted::Trace);
            }
        }
    }
}
