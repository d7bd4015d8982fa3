//! KVM or emulation? Answered by trying.
//!
//! `/dev/kvm` being there says little: inside some virtual machines it exists, and a guest then
//! crawls or stops with an emulation failure. So a tiny guest is booted under KVM, with a time
//! limit, and the answer is kept until the host boots again.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::cache::boot_id;
use crate::console::Console;
use crate::error::Result;
use crate::host::Host;
use crate::initramfs::sign_of_life;
use crate::kernel::Kernel;
use crate::process::{Spec, kill_group};
use crate::qemu_program::QemuProgram;

/// A kernel and a one-line init take about half a second under a KVM that works, one to three
/// seconds emulated.
const LIMIT: Duration = Duration::from_secs(10);
/// Slower than this, emulation is the better choice: KVM that traps on everything is slower than
/// none.
const USEFUL: Duration = Duration::from_secs(4);
const DEVICE: &str = "/dev/kvm";
/// QEMU's arguments for the tiny guest, before those for its kernel.
const PROBE: &str = "-nodefaults -no-user-config -machine q35 -accel kvm -cpu host -m 256 \
                     -display none -monitor none -serial stdio -no-reboot";

/// How QEMU executes the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accel {
    /// On the host's CPU.
    Kvm,
    /// Translated by QEMU: works everywhere, several times slower.
    Tcg,
}

/// An accelerator and, in words, why it was chosen.
#[derive(Debug, Clone)]
pub struct Choice {
    /// Which.
    pub accel: Accel,
    /// Why, as a part of a sentence: "/dev/kvm is not there".
    pub why: String,
}

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.accel {
            Accel::Kvm => write!(f, "KVM ({})", self.why),
            Accel::Tcg => write!(f, "emulation, TCG ({})", self.why),
        }
    }
}

impl Choice {
    /// KVM if a guest boots under it in useful time, emulation otherwise. Kept per boot of the
    /// host.
    pub fn probe(host: &Host, qemu: &QemuProgram, kernel: &Kernel) -> Result<Self> {
        let tcg = |why: String| Self { accel: Accel::Tcg, why };
        if !Path::new(DEVICE).exists() {
            return Ok(tcg(format!("{DEVICE} is not there")));
        }
        if let Err(e) = OpenOptions::new().read(true).write(true).open(DEVICE) {
            return Ok(tcg(format!(
                "{DEVICE} cannot be opened: {e}; being in the group kvm usually helps"
            )));
        }
        if let Some(kept) = Self::kept(host) {
            return Ok(kept);
        }
        host.say("trying KVM with a tiny guest (once per boot of this machine) ...");
        let choice = match time_boot(host, qemu, kernel)? {
            Ok(took) if took <= USEFUL => Self {
                accel: Accel::Kvm,
                why: format!("a test guest booted in {:.1} s", took.as_secs_f64()),
            },
            Ok(took) => tcg(format!(
                "{DEVICE} is there, but a test guest took {:.1} s to boot",
                took.as_secs_f64()
            )),
            Err(why) => tcg(format!("{DEVICE} is there, but a test guest {why}")),
        };
        host.cache().write_note(&note(), &choice.to_note())?;
        Ok(choice)
    }

    /// Result of a probe since this machine was started, if there was one.
    pub fn kept(host: &Host) -> Option<Self> {
        host.cache().read_note(&note()).as_deref().and_then(Self::from_note)
    }

    /// Emulation, when no probe is possible: a KVM that does not work ends the guest, emulation
    /// only slows it down.
    pub fn untried() -> Self {
        let why = match OpenOptions::new().read(true).write(true).open(DEVICE) {
            Ok(_) => format!(
                "{DEVICE} is there, but there is no kernel to try it with: --install gets one, \
                 --accel kvm takes KVM untried"
            ),
            Err(e) => format!("{DEVICE}: {e}"),
        };
        Self { accel: Accel::Tcg, why }
    }

    fn to_note(&self) -> String {
        format!("{}\n{}\n", if self.accel == Accel::Kvm { "kvm" } else { "tcg" }, self.why)
    }

    fn from_note(text: &str) -> Option<Self> {
        let (accel, why) = text.trim_end().split_once('\n')?;
        let accel = match accel {
            "kvm" => Accel::Kvm,
            "tcg" => Accel::Tcg,
            _ => return None,
        };
        Some(Self { accel, why: why.to_string() })
    }
}

fn note() -> String {
    format!("kvm-{}", boot_id())
}

/// Boots the tiny guest under KVM: how long it took to speak, or what happened instead.
fn time_boot(
    host: &Host,
    qemu: &QemuProgram,
    kernel: &Kernel,
) -> Result<std::result::Result<Duration, String>> {
    let initramfs = sign_of_life(host)?;
    let mut spec = Spec::new(&qemu.path, PROBE.split(' '));
    spec.args.extend(["-append", "console=ttyS0 quiet panic=-1"].map(OsString::from));
    spec.args.extend(["-kernel".into(), kernel.image.as_os_str().to_owned()]);
    spec.args.extend(["-initrd".into(), initramfs.as_os_str().to_owned()]);
    let mut child = spec.spawn_apart("KILL")?;
    let started = Instant::now();
    let console = Console::of(&mut child, None);
    // QEMU stays there, stopped, after an error inside KVM: no need to wait for the whole time.
    let seen = console.wait_for(LIMIT, |text, results| {
        if results.contains_key("alive") {
            Some(Ok(started.elapsed()))
        } else {
            text.lines()
                .find(|l| {
                    l.contains("KVM internal error") || l.contains("failed to initialize kvm")
                })
                .map(|line| Err(format!("stopped with \"{}\"", line.trim())))
        }
    });
    kill_group(&mut child);
    Ok(seen.unwrap_or_else(|| {
        if started.elapsed() >= LIMIT {
            return Err(format!("did not boot within {} s", LIMIT.as_secs()));
        }
        let text = console.text();
        let last = text.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("nothing");
        Err(format!("ended early, with \"{}\"", last.trim()))
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn untried_kvm_is_never_chosen() {
        let choice = Choice { accel: Accel::Tcg, why: "a test guest stopped".into() };
        let back = Choice::from_note(&choice.to_note()).unwrap();
        assert_eq!((back.accel, back.why.as_str()), (Accel::Tcg, "a test guest stopped"));
        assert_eq!(Choice::untried().accel, Accel::Tcg);
        assert!(Choice::from_note("").is_none() && Choice::from_note("xen\nyes\n").is_none());
    }
}
