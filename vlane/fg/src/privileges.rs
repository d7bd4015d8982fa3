//! The rights of this program here, found out by trying them on itself, and the missing ones.

use anyhow::{Result, bail};
use rustix::process::{Resource, getrlimit};

use crate::sys;
use crate::values::{Raise, clamp};

/// The possible part of the options, and the impossible part in words.
#[derive(Debug)]
pub struct Possible {
    /// The values that can be set.
    pub raise: Raise,
    /// The missing requirements of the rest.
    pub lacks: Vec<String>,
}

/// Tries it. This program has the nice value afterwards that it gives to others: it must not wait
/// behind them.
pub fn try_out(asked: Raise) -> Result<Possible> {
    let (mut raise, mut lacks) = (asked, Vec::new());
    if let Some(io) = asked.io {
        let before = sys::io_priority(0)?;
        if let Err(error) = sys::set_io_priority(0, io) {
            bail!(
                "I/O priority {io} cannot be set ({error}): {}",
                if io.is_real_time() {
                    "rt needs CAP_SYS_NICE; be/0 needs no privilege"
                } else {
                    "take be/0"
                }
            );
        }
        sys::set_io_priority(0, before)?;
    }
    let own = sys::nice(0)?;
    let wanted = clamp(own + asked.nice);
    if let Err(error) = sys::set_nice(0, wanted) {
        // 20 - RLIMIT_NICE is as far as this goes without the privilege.
        let limit = getrlimit(Resource::Nice).current.unwrap_or(40).min(40);
        let floor = 20 - i32::try_from(limit).unwrap_or(40);
        raise.nice = if floor < own { (floor - own).max(asked.nice) } else { 0 };
        let rest = if raise.nice < 0 && sys::set_nice(0, clamp(own + raise.nice)).is_ok() {
            format!("only by {}, as RLIMIT_NICE allows", raise.nice)
        } else {
            raise.nice = 0;
            "not at all".to_owned()
        };
        lacks.push(format!(
            "nice values are raised {rest}: {:+} takes CAP_SYS_NICE (root), or RLIMIT_NICE of {} \
             (it is {limit}; limits.conf(5)): {error}",
            asked.nice,
            20 - wanted
        ));
    }
    if !rustix::process::geteuid().is_root() {
        lacks.push(
            "only this user's processes are raised: other users' take CAP_SYS_NICE".to_owned(),
        );
    }
    Ok(Possible { raise, lacks })
}

/// The effect of `SCHED_AUTOGROUP` on nice values, if it is on.
pub fn autogroup() -> Option<String> {
    let on = std::fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled").ok()?;
    (on.trim() == "1").then(|| {
        "SCHED_AUTOGROUP is on: a nice value counts among the processes of one session only, not \
         against other sessions' (sysctl kernel.sched_autogroup_enabled=0 switches it off); I/O \
         priorities count everywhere"
            .to_owned()
    })
}

/// The warning about real-time I/O priorities.
pub fn warning(raise: Raise) -> Option<String> {
    raise.io.filter(|io| io.is_real_time()).map(|io| {
        format!(
            "{io} goes before everything else of the machine, and can starve it: a foreground job \
             that reads without end"
        )
    })
}
