//! Guests for a vlane disk: QEMU and User-Mode Linux, found or installed, booted, watched, and
//! ended.
//!
//! The parts, from the bottom up: [`Host`] finds programs (and installs them, if that was allowed).
//! [`Kernel`] and [`UmlProgram`] find a guest's kernel. [`Initramfs`] makes a root out of busybox,
//! programs of the host and a script. [`Qemu`] and [`Uml`] make a command line. [`Guest`] is the
//! running machine and [`Report`] its result. [`Choice::probe`] finds out by a trial if KVM can be
//! used. [`ext4`] checks a volume from the host.
//!
//! ```no_run
//! use std::time::Duration;
//! use vlane_guest::{Boot, Choice, Disk, Host, Initramfs, Install, Kernel, Qemu, QemuProgram};
//!
//! # fn main() -> vlane_guest::Result<()> {
//! let host = Host::new(Install::Never)?;
//! let (program, kernel) = (QemuProgram::find(&host)?, Kernel::find(&host)?);
//! let accel = Choice::probe(&host, &program, &kernel)?;
//! let image = kernel.image.clone();
//! let boot = Boot::Kernel { kernel: image, initramfs: None, append: String::new() };
//! let machine = Qemu::new(program, accel.accel, boot, Disk::at("/run/vlane/disk.sock"));
//! let guest = Initramfs::new("echo RESULT sectors=$(cat /sys/block/vda/size)").programs(["fio"]);
//! let report = machine.start_with(&host, &kernel, &guest, Duration::from_secs(60), None)?.wait()?;
//! report.script_ok()?;
//! println!("the guest sees {} sectors", report.result("sectors")?);
//! # Ok(())
//! # }
//! ```
//!
//! A guest runs in its own process group, under a time limit, and dies with the process that
//! started it.

#![forbid(unsafe_code)]

mod accel;
mod backend;
mod cache;
mod compressed;
mod console;
mod cpio;
pub mod demo;
mod drive;
mod error;
pub mod ext4;
mod fio;
mod guest;
mod host;
mod initramfs;
mod kernel;
mod modules;
mod process;
mod qemu;
mod qemu_program;
mod uml;
mod vmlinux;

pub use accel::{Accel, Choice};
pub use backend::{Backend, Ready, Stopped};
pub use cache::Cache;
pub use console::Echo;
pub use drive::{Controller, Drive};
pub use error::{Error, ErrorKind, Result};
pub use fio::BlkioFio;
pub use guest::{Guest, Report};
pub use host::{Host, Install};
pub use initramfs::{Initramfs, libraries_in};
pub use kernel::Kernel;
pub use modules::Modules;
pub use process::{Output, Spec, find_program, quote, run};
pub use qemu::{Boot, DISK_MODULES, Disk, Qemu};
pub use qemu_program::QemuProgram;
pub use uml::{Uml, UmlProgram};
pub use vmlinux::extract as extract_vmlinux;
