//! `vlane boot`: a QEMU guest on a served volume, with every argument made for you.
//!
//! It starts this same program as `vlane serve`, runs QEMU on its socket, and cleans up. The end of
//! any of the three ends the others in order.

use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use vlane_error::counted;
use vlane_guest::demo::{self, Demo, Scratch};
use vlane_guest::{
    Accel, Backend, Boot, Choice, Disk, ErrorKind, Guest, Host, Install, Kernel, Qemu, QemuProgram,
    Ready, Spec,
};

use crate::values;

/// How long a back end may take to drain and flush.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// How often signals and children are looked at.
const TICK: Duration = Duration::from_millis(100);

/// Run a QEMU guest on a volume, or a demonstration
#[derive(Debug, Args)]
pub struct BootArgs {
    /// Volume: a bootable image, or any image with --kernel [default: a demonstration]
    image: Option<PathBuf>,

    /// Run the demonstration
    ///
    /// A guest makes a file system on a new volume and works on it. The host checks the result.
    #[arg(long, conflicts_with_all = ["image", "kernel", "initramfs", "append", "read_only"])]
    demo: bool,

    /// Boot this kernel (vmlinux or vmlinuz) instead of the volume's
    #[arg(long, value_name = "FILE", requires = "image")]
    kernel: Option<PathBuf>,

    /// Initramfs of the kernel
    #[arg(long, value_name = "FILE", requires = "kernel")]
    initramfs: Option<PathBuf>,

    /// Kernel command line, such as root=/dev/vda1
    #[arg(long, value_name = "ARGUMENTS", requires = "kernel", allow_hyphen_values = true)]
    append: Option<String>,

    /// Guest memory; a bare number is in MiB
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = values::mebibytes(64..=1 << 22))]
    memory: u32,

    /// vCPUs of the guest
    #[arg(long = "vcpus", alias = "cpus", value_name = "N", default_value_t = 2, value_parser = values::whole::<u16>(1..=255))]
    cpus: u16,

    /// Virtqueues of the disk [default: one for each vCPU]
    #[arg(long, value_name = "N", value_parser = values::whole::<u16>(1..=255))]
    queues: Option<u16>,

    /// Let the guest use the packed virtqueue layout
    #[arg(long)]
    packed: bool,

    /// Serve the volume read-only
    #[arg(long)]
    read_only: bool,

    /// Take the image as raw, whatever it looks like, as in vlane serve
    #[arg(long, value_enum, value_name = "FORMAT", requires = "image")]
    format: Option<crate::serve::FormatArg>,

    /// Cache mode of the volume, as in vlane serve
    #[arg(long, value_enum, value_name = "MODE")]
    cache: Option<crate::serve::CacheArg>,

    /// Effect of the guest's trim on the image, as in vlane serve
    #[arg(long, value_enum, value_name = "on|off|keep")]
    discard: Option<crate::serve::DiscardArg>,

    /// CPU of the guest
    #[arg(long, value_enum, default_value_t = AccelArg::Auto)]
    accel: AccelArg,

    /// Install QEMU and busybox by apt-get (as root), and a kernel into the cache directory
    #[arg(long)]
    install: bool,

    /// Print the command lines and run no guest
    #[arg(long)]
    dry_run: bool,
}

/// The CPU of a QEMU guest: `--accel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AccelArg {
    /// KVM if a guest boots quickly under it (tried once per boot of the host), else emulation
    Auto,
    /// The host's CPU
    Kvm,
    /// QEMU's translator: works everywhere, several times slower
    Tcg,
}

impl AccelArg {
    /// The accelerator that was asked for; none if the program chooses it.
    pub fn forced(self) -> Option<Accel> {
        match self {
            Self::Auto => None,
            Self::Kvm => Some(Accel::Kvm),
            Self::Tcg => Some(Accel::Tcg),
        }
    }
}

/// Result of the command.
#[derive(Debug)]
pub enum Outcome {
    /// A guest ran.
    Booted,
    /// There is no QEMU, or no kernel for the demonstration's guest; the reason was printed.
    NoGuest,
}

/// Runs the command.
///
/// # Errors
/// The guest or its server failed; there is no QEMU, or no kernel for the demonstration's guest.
pub fn run(args: BootArgs) -> Result<()> {
    execute(args, None).map(drop)
}

/// Stand-in for the demonstration's guest: gets the socket of a back end that serves its volume.
pub type StandIn = fn(&Path) -> Result<()>;

/// Runs the command. A stand-in takes the place of a guest that the demonstration cannot have.
///
/// # Errors
/// As [`run`]; those of the stand-in.
pub fn execute(args: BootArgs, stand_in: Option<StandIn>) -> Result<Outcome> {
    let ended = signals()?;
    let install = if args.install && !args.dry_run { Install::Allowed } else { Install::Never };
    let host = Host::new(install)?;
    match &args.image {
        _ if args.dry_run => dry_run(&args, &host),
        Some(image) => interactive(&args, &host, image, &ended),
        None => demonstration(&args, &host, &ended, stand_in),
    }
}

/// Ctrl-C, a closed terminal and `kill` end what runs; none of them may leave something behind.
fn signals() -> Result<Arc<AtomicBool>> {
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended))
            .context("signals cannot be caught")?;
    }
    Ok(ended)
}

/// A guest on the caller's image, its console on our terminal.
fn interactive(args: &BootArgs, host: &Host, image: &Path, ended: &AtomicBool) -> Result<Outcome> {
    let program = QemuProgram::find(host)?;
    let accel = accelerator(args, host, &program)?;
    let scratch = Scratch::new()?;
    let socket = scratch.path("disk.sock");
    let backend = serve(args, image, &socket)?;
    let qemu = machine(args, program, accel.accel, &socket);
    eprintln!("QEMU runs by {accel}. Ctrl-A X ends it.");
    let child = qemu.start_here()?;
    let result = watch(child, backend, ended);
    drop(scratch);
    result.map(|()| Outcome::Booted)
}

/// Waits until QEMU ends, the back end ends, or a signal comes; then ends the others, QEMU first.
fn watch(mut child: Child, mut backend: Backend, ended: &AtomicBool) -> Result<()> {
    let mut trouble = None;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        trouble = premature(&mut backend, ended)?;
        if trouble.is_some() {
            break end(&mut child)?;
        }
        std::thread::sleep(TICK);
    };
    match trouble {
        Some(trouble) => {
            drop(backend);
            bail!(trouble)
        }
        None => stop(backend)?,
    }
    if !status.success() {
        bail!("QEMU ended with {status}; its output is above");
    }
    Ok(())
}

/// Reason to end the guest, if the back end has ended or a signal came.
fn premature(backend: &mut Backend, ended: &AtomicBool) -> Result<Option<String>> {
    if let Some(status) = backend.ended()? {
        let log = backend.log();
        return Ok(Some(format!(
            "vlane serve ended ({status}) under the running guest; it said:\n{log}"
        )));
    }
    Ok(ended.load(Ordering::Relaxed).then(|| "ended by a signal".to_owned()))
}

/// Ends QEMU so that it can put the terminal back in order, by force if it does not.
fn end(child: &mut Child) -> Result<ExitStatus> {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    let deadline = Instant::now() + Duration::from_secs(3);
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(TICK);
    }
    child.kill()?;
    Ok(child.wait()?)
}

/// The demonstration, or the reason why there is none.
fn demonstration(
    args: &BootArgs,
    host: &Host,
    ended: &AtomicBool,
    stand_in: Option<StandIn>,
) -> Result<Outcome> {
    let started = Instant::now();
    let parts = QemuProgram::find(host).and_then(|q| Kernel::find(host).map(|k| (q, k))).and_then(
        |parts| {
            host.program("busybox")?;
            Ok(parts)
        },
    );
    let scratch = Scratch::new()?;
    let image = scratch.volume()?;
    let socket = scratch.path("demo.sock");
    println!("volume  {} (sparse, deleted afterwards)", image.display());
    let (program, kernel) = match parts {
        Ok(parts) => parts,
        Err(e) if matches!(e.kind(), ErrorKind::Missing | ErrorKind::Install) => {
            println!("No guest can be booted here: {e}.");
            println!(
                "`vlane boot --demo --install` installs the missing programs, as root on Debian \
                 or Ubuntu."
            );
            let Some(stand_in) = stand_in else {
                bail!("no guest can be booted; `vlane-lab boot` replaces it with a built-in driver")
            };
            let backend = serve(args, &image, &socket)?;
            stand_in(backend.socket())?;
            stop(backend)?;
            return Ok(Outcome::NoGuest);
        }
        Err(e) => return Err(e.into()),
    };
    let accel = accelerator(args, host, &program)?;
    println!("QEMU    {}.{}, by {accel}", program.version.0, program.version.1);
    println!("kernel  {}", kernel.version);
    if let Some(why) = &kernel.compressed_because {
        println!("        booted compressed, which takes longer: {why}");
    }
    let backend = serve(args, &image, &socket)?;
    let qemu = demo_machine(args, program, accel.accel, &socket);
    let guest = demo::start(host, qemu, &kernel, Some(tell))?;
    let report = follow(guest, backend, ended)?;
    let shown = demo::judge(host, &report, &image)?;
    summary(&shown, args, &accel, started.elapsed());
    Ok(Outcome::Booted)
}

/// Waits for the demonstration's guest, and stops the back end after it.
fn follow(
    mut guest: Guest,
    mut backend: Backend,
    ended: &AtomicBool,
) -> Result<vlane_guest::Report> {
    while guest.poll(TICK)?.is_none() && !guest.is_overdue() {
        if let Some(trouble) = premature(&mut backend, ended)? {
            guest.kill();
            bail!(trouble);
        }
    }
    let report = guest.wait()?;
    stop(backend)?;
    Ok(report)
}

/// The guest's own words among what its kernel prints.
fn tell(line: &str) {
    if let Some(at) = line.find("  guest: ") {
        println!("{}", &line[at..]);
    }
}

fn summary(shown: &Demo, args: &BootArgs, accel: &Choice, took: Duration) {
    let how = match accel.accel {
        Accel::Kvm => "under KVM",
        Accel::Tcg => "emulated, so several times slower than under KVM",
    };
    println!(
        "\nA guest with {} ({how}) booted Linux {}, made an ext4 file system on the volume that \
         vlane served over {}, wrote {}, came back to them after unmounting, and read every one \
         back right, in {:.1} s. From the host, e2fsck finds the file system clean and the \
         content of a file is the guest's. Everything together took {:.1} s.\n",
        counted(args.cpus, "vCPU"),
        shown.kernel,
        counted(shown.queues, "queue"),
        counted(shown.files, "file"),
        shown.guest_took.as_secs_f64(),
        took.as_secs_f64(),
    );
    println!("Next:");
    println!(
        "  vlane boot DISK.raw                        a guest from your own bootable image, with \
         its console here"
    );
    println!(
        "  vlane serve DISK.raw --socket /run/d.sock  a volume for a QEMU, libvirt or Cloud \
         Hypervisor of your own"
    );
    println!("  vlane boot DISK.raw --dry-run              the command lines, to copy from");
    println!("The README continues under \"Use it\".");
}

/// Prints the command lines without running them.
fn dry_run(args: &BootArgs, host: &Host) -> Result<Outcome> {
    let program = QemuProgram::find(host)
        .unwrap_or(QemuProgram { path: "qemu-system-x86_64".into(), version: (7, 2) });
    let directory = std::env::temp_dir().join("vlane-boot");
    let kept = || Choice::kept(host).unwrap_or_else(Choice::untried).accel;
    let accel = args.accel.forced().unwrap_or_else(kept);
    let (image, socket, mut qemu);
    if let Some(given) = &args.image {
        image = given.clone();
        socket = directory.join("disk.sock");
        qemu = machine(args, program, accel, &socket);
    } else {
        image = directory.join("demo.raw");
        socket = directory.join("demo.sock");
        println!(
            "truncate -s {} {}",
            demo::VOLUME_BYTES,
            vlane_guest::quote(&image.to_string_lossy())
        );
        qemu = demo_machine(args, program, accel, &socket);
        qemu.boot = Boot::Kernel {
            kernel: Kernel::cached(host).map_or_else(|| "VMLINUX".into(), |k| k.image),
            initramfs: Some("INITRAMFS".into()),
            append: String::new(),
        };
    }
    println!("{}", serve_spec(args, &image, &socket)?.shell_line());
    println!("{}", qemu.spec().shell_line());
    Ok(Outcome::Booted)
}

/// The accelerator that was asked for, or the one that works.
fn accelerator(args: &BootArgs, host: &Host, program: &QemuProgram) -> Result<Choice> {
    let forced = |accel, why: &str| Ok(Choice { accel, why: why.into() });
    match args.accel {
        AccelArg::Kvm => forced(Accel::Kvm, "as --accel kvm says"),
        AccelArg::Tcg => forced(Accel::Tcg, "as --accel tcg says"),
        AccelArg::Auto => match Kernel::find(host) {
            Ok(kernel) => Ok(Choice::probe(host, program, &kernel)?),
            // The probe needs a kernel; a bootable image does not. KVM is never taken untried.
            Err(e) if e.kind() == ErrorKind::Missing => {
                Ok(Choice::kept(host).unwrap_or_else(Choice::untried))
            }
            Err(e) => Err(e.into()),
        },
    }
}

/// The machine for a volume of the caller's.
fn machine(args: &BootArgs, program: QemuProgram, accel: Accel, socket: &Path) -> Qemu {
    let mut qemu = demo_machine(args, program, accel, socket);
    if let Some(kernel) = &args.kernel {
        qemu.boot = Boot::Kernel {
            kernel: kernel.clone(),
            initramfs: args.initramfs.clone(),
            append: args.append.clone().unwrap_or_default(),
        };
    }
    qemu.interactive = true;
    qemu.may_reboot = true;
    qemu
}

/// The demonstration's machine: its kernel and its initramfs come when it is started.
fn demo_machine(args: &BootArgs, program: QemuProgram, accel: Accel, socket: &Path) -> Qemu {
    let disk = Disk { queues: args.queues, packed: args.packed, ..Disk::at(socket) };
    let mut qemu = Qemu::new(program, accel, Boot::Disk, disk);
    qemu.vcpus = args.cpus;
    qemu.memory_mib = args.memory;
    qemu
}

/// Starts `vlane serve` and waits until it listens.
fn serve(args: &BootArgs, image: &Path, socket: &Path) -> Result<Backend> {
    let spec = serve_spec(args, image, socket)?;
    Backend::start(&spec, socket, Ready::Line("listening on"), None)
        .with_context(|| format!("{} cannot be served", image.display()))
}

fn serve_spec(args: &BootArgs, image: &Path, socket: &Path) -> Result<Spec> {
    let this = std::env::current_exe().context("the path of this program is not known")?;
    let queues = args.queues.unwrap_or(args.cpus);
    let mut words: Vec<std::ffi::OsString> = vec![
        "serve".into(),
        image.into(),
        "--socket".into(),
        socket.into(),
        "--queues".into(),
        queues.to_string().into(),
    ];
    if args.read_only {
        words.push("--read-only".into());
    }
    if let Some(name) = args.format.as_ref().and_then(ValueEnum::to_possible_value) {
        words.extend(["--format".into(), name.get_name().into()]);
    }
    if let Some(name) = args.cache.as_ref().and_then(ValueEnum::to_possible_value) {
        words.extend(["--cache".into(), name.get_name().into()]);
    }
    if let Some(name) = args.discard.as_ref().and_then(ValueEnum::to_possible_value) {
        words.extend(["--discard".into(), name.get_name().into()]);
    }
    Ok(Spec::new(this, words))
}

/// Stops the back end, which drains and flushes; anything but success is reported with its words.
fn stop(backend: Backend) -> Result<()> {
    let stopped = backend.stop(STOP_LIMIT)?;
    if !stopped.status.success() {
        bail!("vlane serve ended with {}; it said:\n{}", stopped.status, stopped.log);
    }
    Ok(())
}
