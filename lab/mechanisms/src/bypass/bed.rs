//! The ground of all measurements: a program's data, the guest on a copy of them, and looks at its
//! back end.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempPath;
use vlane_cost::{Role, Sampler};
use vlane_guest::{Guest, Host, Initramfs, Uml, UmlProgram};
use vlane_testbed::{
    At, Context, Control, Error, ErrorKind, Fail, Interrupt, Place, Result, Server, pause, wait,
    word,
};

use super::program::Program;
use super::{Cell, Options, Sample};
use crate::caches::limit::{DirtyLimit, MemoryLimit};
use crate::caches::{
    Arm, DIRTY, STOP, TOUCH_MEMORY, Volume, bind, cached_pages, forget, joined, share, transferred,
    written_to_disk,
};

/// A guest may take so long to make a program's data.
const PREPARE: Duration = Duration::from_secs(1800);
/// A guest may take so long to boot, to write its journal twice and to read its data.
const READY: Duration = Duration::from_secs(300);
/// A program may exceed its time by this: its last wait for the storage, and a database's end.
const LATE: Duration = Duration::from_secs(120);
/// Memory of a guest that makes data, in MiB: more makes it faster.
const ROOMY_MIB: u32 = 1024;
/// Bytes of the page cache that a read brings in at least.
const PAGE: f64 = 4096.0;
/// Bytes of the file that takes the journal round, in MiB.
const ROUND_MIB: u64 = 8;

/// Puts this machine's file system, read-only, at `/host`, with the volume at `/run/disk` in it.
const HOST: &str = r#"
mkdir -p /host
mount -t hostfs -o ro none /host
mount -t proc proc /host/proc
mount --bind /sys /host/sys
mount --bind /dev /host/dev
mount -t tmpfs run /host/run
touch /host/run/vlane
mount --bind "/host$PROGRAM" /host/run/vlane
cp /job.sh /host/run/job.sh
mkdir /host/run/disk
"#;

/// Writes through the journal until it has gone round twice: a file whose data are journalled,
/// again and again. Then the program's data are read once.
const ROUND: &str = r"
file=/host/run/disk/round
touch $file
chroot /host /usr/bin/env PATH=$HOST_PATH chattr +j /run/disk/round
i=0
while [ $i -lt @TIMES@ ]; do
    dd if=/dev/zero of=$file bs=1M count=@MIB@ conv=notrunc,fsync 2>/dev/null
    i=$((i + 1))
done
rm $file
sync
find /host/run/disk -type f -exec cat {} + > /dev/null
";

/// Programs whose data are made, with the journals of their volumes: each once.
pub(super) fn templates(cells: &[Cell]) -> Vec<(Program, u64)> {
    let all = cells.iter().map(|cell| (cell.program, cell.journal)).collect();
    vlane_testbed::distinct(all)
}

/// Everything that measurements stand on.
pub(super) struct Bed<'a> {
    pub(super) options: &'a Options,
    /// vlane's own file.
    pub(super) vlane: &'a Path,
    pub(super) host: &'a Host,
    pub(super) uml: &'a UmlProgram,
    /// For sockets.
    pub(super) dir: &'a Path,
    pub(super) place: &'a Place,
    /// The programs' data.
    pub(super) templates: Vec<(Program, Volume)>,
    /// CPUs of the guest; empty: any.
    pub(super) guest_cpus: Vec<usize>,
    /// CPUs of its back end; empty: any.
    pub(super) back_end_cpus: Vec<usize>,
    pub(super) interrupt: &'a Interrupt,
}

/// Counters at a moment of the window.
#[derive(Debug, Clone, Copy)]
struct Look {
    at: Instant,
    /// The guest's reads, and their bytes.
    reads: (f64, f64),
    /// Bytes that they had the storage read.
    stored: u64,
    /// Bytes written to the disk.
    on_disk: Option<u64>,
}

impl Look {
    fn misses(&self, later: &Self) -> f64 {
        let stored = later.stored.saturating_sub(self.stored) as f64;
        share(stored, later.reads.1 - self.reads.1)
    }
}

impl Bed<'_> {
    /// Makes a program's data on a volume of their own.
    ///
    /// # Errors
    /// Those of the volume, the back end and the guest.
    pub(super) fn prepare(&mut self, program: Program, journal: u64) -> Result<()> {
        let bytes = self.options.volume(program, journal);
        let volume = Volume::new(self.place, self.host, bytes, journal, self.interrupt)?;
        let server = self.serve(volume.image.path(), &Arm::mode("writeback"))?;
        let mount = "mount -t ext4 -o noinit_itable /dev/vda /host/run/disk\n";
        let job = program.prepare(self.options.size);
        let script = format!("{mount}{}umount /host/run/disk\necho RESULT made=1\n", in_host());
        let mut guest = self.boot(&script, &job, ROOMY_MIB, server.socket(), PREPARE)?;
        wait(&mut guest, "made", PREPARE, self.interrupt)?;
        drop(guest);
        server.stop(STOP)?;
        self.templates.push((program, volume));
        Ok(())
    }

    /// A back end on an image, with a control socket.
    fn serve(&self, image: &Path, arm: &Arm) -> Result<Server> {
        let control = self.dir.join("control");
        let mut words: Vec<OsString> = vec![image.into(), "--control".into(), control.into()];
        words.extend(["--format", "raw", "--queues", "1", "--sched=off"].map(OsString::from));
        words.extend(arm.arguments.iter().map(OsString::from));
        Server::serve(self.vlane, self.dir, &self.back_end_cpus, words)
    }

    /// Boots a guest that does the script, which can call a job in the host's file system.
    fn boot(
        &self,
        script: &str,
        job: &str,
        memory_mib: u32,
        socket: &Path,
        limit: Duration,
    ) -> Result<Guest> {
        let program = std::path::absolute(self.vlane).at(self.vlane, "cannot be found")?;
        let path = std::env::var("PATH").unwrap_or_default();
        let names = format!("PROGRAM={}\nHOST_PATH={path}\n", program.display());
        let files = Initramfs::new(format!("{TOUCH_MEMORY}{names}{HOST}{script}")).file(
            "job.sh",
            0o755,
            format!("set -e\nVLANE=/run/vlane\n{job}"),
        );
        let mut machine = Uml::new(self.uml.clone(), [socket.to_path_buf()]);
        machine.memory_mib = memory_mib;
        // It inherits the CPUs of the thread that starts it.
        let start = || {
            bind(&self.guest_cpus)?;
            Ok(machine.start_with(self.host, &files, limit, None)?)
        };
        std::thread::scope(|scope| joined(scope.spawn(start).join()))
    }

    /// Measures an arm on a copy of a program's data, after so much ramp.
    ///
    /// # Errors
    /// [`ErrorKind::Interrupted`], and those of cgroups, back end and guest.
    pub(super) fn measure(
        &self,
        ramp: Duration,
        cell: &Cell,
        arm: &Arm,
        say: &mut dyn FnMut(&str),
    ) -> Result<Sample> {
        let is_it = |(program, volume): &&(Program, Volume)| {
            (*program, volume.journal) == (cell.program, cell.journal)
        };
        let Some((_, template)) = self.templates.iter().find(is_it) else {
            return ErrorKind::Missing.fail("the program's data were not made");
        };
        say("the data are copied");
        let copy = self.copy(template.image.path())?;
        let dirty = DirtyLimit::new(Path::new("/proc/sys/vm"), cell.cache / DIRTY);
        let _dirty =
            dirty.context(ErrorKind::Invalid, || "vm.dirty_bytes cannot be set; run it as root")?;
        let mut limit = MemoryLimit::new(cell.cache)?;
        if self.options.read_iops > 0 {
            limit.cap_reads(&copy, self.options.read_iops).map_err(|error| {
                let text = "reads cannot be capped; --read-iops 0 measures without a cap";
                Error::caused_by(error.kind(), text, error)
            })?;
        }
        let server = self.serve(&copy, arm)?;
        limit.add(server.pid())?;
        let sample = self.observe(ramp, cell, (&server, &copy), say);
        let sample = sample.map_err(|error| {
            let log = server.log();
            let text = format!("{}, {}; the back end said: {}", cell.id(), arm.name, log.trim());
            Error::caused_by(error.kind(), text, error)
        })?;
        let journal_pages = cached_pages(&copy, &template.ranges);
        server.stop(STOP)?;
        drop(limit);
        Ok(Sample { journal_pages, ramp: ramp.as_secs_f64(), ..sample })
    }

    /// A copy of a volume, of which nothing is in the page cache.
    fn copy(&self, template: &Path) -> Result<TempPath> {
        let failed = || format!("{}: cannot be copied", template.display());
        let dir = std::path::absolute(self.place.dir()).context(ErrorKind::Io, failed)?;
        let file = tempfile::Builder::new().prefix("vlane-").suffix(".img").tempfile_in(dir);
        let path = file.context(ErrorKind::Io, failed)?.into_temp_path();
        std::fs::copy(template, &path).context(ErrorKind::Io, failed)?;
        forget(template)?;
        forget(&path)?;
        self.interrupt.check()?;
        Ok(path)
    }

    /// Runs the program in a guest, and looks at its back end meanwhile.
    fn observe(
        &self,
        ramp: Duration,
        cell: &Cell,
        (server, image): (&Server, &Path),
        say: &mut dyn FnMut(&str),
    ) -> Result<Sample> {
        let (options, time) = (self.options, self.options.time);
        say("the guest boots, and its journal goes round");
        let mode = word(cell.data);
        let times = (cell.journal >> 19).div_ceil(ROUND_MIB) + 1;
        let round = ROUND.replace("@TIMES@", &times.to_string());
        let round = round.replace("@MIB@", &ROUND_MIB.to_string());
        let script = format!(
            "mount -t ext4 -o noinit_itable,data={mode} /dev/vda /host/run/disk\n{round}echo \
             RESULT ready=1\n{}echo RESULT done=1\n",
            in_host()
        );
        let job = cell.program.run(options.size, (ramp, time));
        let memory = u32::try_from(options.memory >> 20).unwrap_or(u32::MAX);
        let life = READY + ramp + time + LATE;
        let mut guest = self.boot(&script, &job, memory, server.socket(), life)?;
        wait(&mut guest, "ready", READY, self.interrupt)?;
        say("");
        wait(&mut guest, "begun", ramp + LATE, self.interrupt)?;
        let (from, said) = (Instant::now(), guest.console().len());
        let control = Control::new(self.dir.join("control"));
        let pid = server.pid();
        let look = |at: Instant| {
            pause(at, self.interrupt)?;
            let sum = control.counters()?.sum;
            let of = |name: &str| sum.get(name).copied().unwrap_or(0) as f64;
            Ok::<_, Error>(Look {
                at: Instant::now(),
                reads: (of("reads"), of("read_bytes")),
                stored: transferred(pid)?.0,
                on_disk: written_to_disk(image),
            })
        };
        let mut sampler = Sampler::new(Role::program("volume", pid.cast_signed()));
        let (before, snapshot) = (look(from)?, sampler.take());
        let halfway = look(from + time / 2)?;
        let after = look(from + time)?;
        let used = sampler.take().since(&snapshot);
        wait(&mut guest, "done", LATE, self.interrupt)?;
        let console = guest.console();
        let done = cell.program.parse(console.get(said..).unwrap_or(&console))?;
        let seconds = (after.at - before.at).as_secs_f64().max(1e-9);
        let written = before.on_disk.zip(after.on_disk);
        let cpu = used.role("volume").map_or(Duration::ZERO, |role| role.cpu);
        Ok(Sample {
            operations: done.per_second,
            p99_us: done.p99_us,
            // Of a page each: readahead makes larger ones.
            reads: (after.reads.1 - before.reads.1) / PAGE / seconds,
            misses: before.misses(&after),
            moved: halfway.misses(&after) - before.misses(&halfway),
            device_written: written.map(|(then, now)| now.saturating_sub(then) as f64 / seconds),
            cpu_us: cpu.as_secs_f64() * 1e6 / (done.per_second * seconds).max(1.0),
            ..Sample::default()
        })
    }
}

/// Calls the job in the host's file system.
fn in_host() -> &'static str {
    "chroot /host /usr/bin/env -i PATH=$HOST_PATH HOME=/run TMPDIR=/run LC_ALL=C /bin/sh \
     /run/job.sh\n"
}
