//! Reading `/proc`: the kernel's facts on a process and its threads.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use crate::sys;
use crate::values::{IoPriority, Values};

/// A line of `/proc/PID/stat` (proc_pid_stat(5)), the fields that matter here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// The process, or the thread.
    pub pid: i32,
    /// The program's name, or the thread's.
    pub name: String,
    /// `R`, `S`, `Z`, ...
    pub state: char,
    /// Its parent.
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    /// Its session: the pid of the leader.
    pub session: i32,
    /// The device number of its terminal, 0 for none.
    pub terminal: i32,
    /// The process group in the foreground of that terminal, -1 for none.
    pub foreground: i32,
    /// The nice value.
    pub nice: i32,
    /// Number of the process's threads.
    pub threads: u32,
    /// Its start time, in ticks since the machine was booted.
    pub start: u64,
    /// The address of its stack: another value after each `execve`, 0 where this may not be read.
    pub stack: u64,
}

impl Stat {
    /// Reads such a line. A name can hold spaces and brackets.
    pub fn parse(line: &str) -> Option<Self> {
        let (pid, rest) = line.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().take(26).collect();
        let number = |index: usize| fields.get(index)?.parse::<i32>().ok();
        let long = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Self {
            pid: pid.parse().ok()?,
            name: name.to_owned(),
            state: fields.first()?.chars().next()?,
            parent: number(1)?,
            group: number(2)?,
            session: number(3)?,
            terminal: number(4)?,
            foreground: number(5)?,
            nice: number(16)?,
            threads: u32::try_from(number(17)?).ok()?,
            start: long(19)?,
            stack: long(25)?,
        })
    }

    /// Belongs to what its terminal has in the foreground.
    pub fn is_foreground(&self) -> bool {
        self.terminal != 0 && self.foreground > 0 && self.group == self.foreground
    }

    /// Has ended. A process whose main thread alone has ended is alive.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X') && self.threads <= 1
    }

    /// A thread of the kernel's.
    pub fn is_kernels(&self) -> bool {
        self.parent == 2 || self.pid == 2
    }

    /// A mark that changes when it must be looked at again.
    pub fn mark(&self) -> (i32, i32, i32, i32, u32, u64) {
        (self.group, self.session, self.foreground, self.nice, self.threads, self.stack)
    }
}

/// Returns the value that was read, or `None` if its process has ended. Other errors, as "too many
/// open files", do not describe the process.
fn if_there<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
        // The file was empty.
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads the state of a process that may have ended.
pub fn stat_of(pid: i32) -> io::Result<Option<Stat>> {
    if_there(stat(pid))
}

/// Reads the state of a process. These are its main thread's: the file of the whole process adds up
/// all threads' times.
pub fn stat(pid: i32) -> io::Result<Stat> {
    read_stat(&format!("/proc/{pid}/task/{pid}/stat"))
}

fn read_stat(path: &str) -> io::Result<Stat> {
    let mut file = File::open(path)?;
    let mut line = [0; 1024];
    let length = file.read(&mut line)?;
    parse(&line[..length])
}

fn parse(line: &[u8]) -> io::Result<Stat> {
    Stat::parse(&String::from_utf8_lossy(line))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no line of /proc/PID/stat"))
}

/// A stat file that is kept open: reading it again is one system call. It fails when its process is
/// gone.
#[derive(Debug)]
pub struct OpenStat(File);

impl OpenStat {
    /// Opens the file of a process.
    pub fn open(pid: i32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/task/{pid}/stat")).map(Self)
    }

    /// Reads the present state.
    pub fn read(&self) -> io::Result<Stat> {
        let mut line = [0; 1024];
        let length = self.0.read_at(&mut line, 0)?;
        parse(&line[..length])
    }
}

/// A thread that lives, and its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// Its id.
    pub tid: i32,
    /// Its start time, in ticks.
    pub start: u64,
    /// Its present values.
    pub values: Values,
}

/// The number of readings of a process that becomes another program meanwhile.
const READINGS: usize = 4;

/// A process with all threads that live. `None` if it ended meanwhile. Each thread is read, and
/// then the process once more. So no thread of another process with the same number is among them,
/// and the values are those of the program that it runs. The threads `known` from before are found
/// even where the listing passes over them.
pub fn process(pid: i32, known: &[i32]) -> io::Result<Option<(Stat, Vec<Thread>)>> {
    let Some(mut before) = stat_of(pid)?.filter(|stat| !stat.is_dead()) else { return Ok(None) };
    for reading in 1..=READINGS {
        let Some(threads) = threads(pid, known)? else { return Ok(None) };
        let Some(after) = stat_of(pid)?.filter(|after| after.start == before.start) else {
            return Ok(None);
        };
        if reading == READINGS || (after.mark(), &after.name) == (before.mark(), &before.name) {
            return Ok(Some((after, threads)));
        }
        before = after;
    }
    Ok(None)
}

fn threads(pid: i32, known: &[i32]) -> io::Result<Option<Vec<Thread>>> {
    let Some(entries) = if_there(fs::read_dir(format!("/proc/{pid}/task")))? else {
        return Ok(None);
    };
    let listed: Vec<i32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
        .collect();
    let mut threads = Vec::new();
    for tid in all_of(&listed, known) {
        threads.extend(thread(pid, tid)?);
    }
    Ok(Some(threads))
}

/// The kernel finds its place in the listing by counting: where others end meanwhile, it passes
/// over some that live.
fn all_of(listed: &[i32], known: &[i32]) -> Vec<i32> {
    let missing = known.iter().filter(|tid| !listed.contains(tid));
    listed.iter().chain(missing).copied().collect()
}

/// A thread's start and values, if it lives.
pub fn thread(pid: i32, tid: i32) -> io::Result<Option<Thread>> {
    let stat = if_there(read_stat(&format!("/proc/{pid}/task/{tid}/stat")))?;
    let Some(stat) = stat.filter(|stat| !matches!(stat.state, 'Z' | 'X')) else { return Ok(None) };
    let io: Option<IoPriority> = if_there(sys::io_priority(tid))?;
    Ok(io.map(|io| Thread { tid, start: stat.start, values: Values { nice: stat.nice, io } }))
}

/// A process's user and control group: two that agree in both can be of one origin.
pub fn owner(pid: i32) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let uid = status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))?
        .split_ascii_whitespace()
        .next()?
        .to_owned();
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    // The group of the second version, or the first of the first.
    let group = groups
        .lines()
        .find(|line| line.starts_with("0::"))
        .or(groups.lines().next())
        .unwrap_or_default();
    Some(format!("{uid} {group}"))
}

/// Every process.
pub fn processes() -> io::Result<Vec<i32>> {
    Ok(fs::read_dir("/proc")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
        .collect())
}

/// The last id that was given to a process or a thread, from a file that is kept open.
#[derive(Debug)]
pub struct LastId(File);

impl LastId {
    /// Opens it.
    pub fn open() -> io::Result<Self> {
        File::open("/proc/loadavg").map(Self)
    }

    /// Reads the present value.
    pub fn read(&self) -> Option<i32> {
        let mut line = [0; 128];
        let length = self.0.read_at(&mut line, 0).ok()?;
        std::str::from_utf8(&line[..length]).ok()?.split_ascii_whitespace().nth(4)?.parse().ok()
    }
}

/// A terminal's name by its device number.
pub fn terminal_name(number: i32) -> String {
    let number = number.cast_unsigned();
    let (major, minor) = ((number >> 8) & 0xfff, (number & 0xff) | ((number >> 12) & 0xf_ff00));
    match (major, minor) {
        (136..=143, _) => format!("pts/{}", (major - 136) * 256 + minor),
        (4, 0..=63) => format!("tty{minor}"),
        (4, _) => format!("ttyS{}", minor - 64),
        (5, 1) => "console".to_owned(),
        (229, _) => format!("hvc{minor}"),
        _ => format!("terminal {major}:{minor}"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const LINE: &str = "77 (a) S (b) c) T 1 70 60 34817 70 4194304 1 2 3 4 5 6 7 8 20 -10 3 0 900 \
                        1 2 3 4 5 140 6 7";

    #[test]
    fn name_with_brackets_and_spaces_is_read() {
        let stat = Stat::parse(LINE).unwrap();
        assert_eq!(
            (stat.pid, stat.name.as_str(), stat.state, stat.parent),
            (77, "a) S (b) c", 'T', 1)
        );
        assert_eq!((stat.group, stat.session, stat.foreground, stat.nice), (70, 60, 70, -10));
        assert_eq!((stat.threads, stat.start, stat.stack), (3, 900, 140));
        assert!(stat.is_foreground());
        assert_eq!(terminal_name(stat.terminal), "pts/1");
    }

    #[test]
    fn process_without_main_thread_is_alive() {
        let ended = |threads: &str| {
            Stat::parse(&LINE.replace(" T ", " Z ").replace(" 3 0 900", threads)).unwrap()
        };
        assert!(!ended(" 2 0 900").is_dead());
        assert!(ended(" 1 0 900").is_dead());
    }

    #[test]
    fn descriptor_shortage_does_not_end_processes() {
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EACCES] {
            assert!(if_there::<()>(Err(io::Error::from_raw_os_error(errno))).is_err(), "{errno}");
        }
        for errno in [libc::ENOENT, libc::ESRCH] {
            assert_eq!(if_there::<()>(Err(io::Error::from_raw_os_error(errno))).unwrap(), None);
        }
    }

    #[test]
    fn malformed_lines_are_refused() {
        for end in 0..LINE.len() - 6 {
            assert!(Stat::parse(&LINE[..end]).is_none(), "{}", &LINE[..end]);
        }
    }

    #[test]
    fn own_process_is_found_with_threads() {
        let me = std::process::id().cast_signed();
        let (stat, threads) = process(me, &[]).unwrap().unwrap();
        assert!(threads.iter().any(|thread| thread.tid == me) && stat.pid == me);
        assert!(threads.len() > 1, "the test harness has its own: {threads:?}");
        assert!(stat.start <= sys::ticks());
        assert!(processes().unwrap().contains(&me));
        assert!(LastId::open().unwrap().read().is_some());
        assert!(owner(me).is_some());
    }

    /// An ended one is not found.
    #[test]
    fn known_thread_is_read_without_listing() {
        assert_eq!(all_of(&[3, 5], &[4, 5, 6]), [3, 5, 4, 6]);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id().cast_signed();
        while stat(pid).unwrap().state != 'Z' {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(thread(pid, pid).unwrap(), None);
        child.wait().unwrap();
    }
}
