//! fio with libblkio as the client of a fresh back end.

use std::num::NonZeroU16;

use vlane_boot::{BlkioFio, Host};

use super::{Contender, Figures, Row, per_request};
use crate::peers::Options;
use crate::peers::ground::Ground;
use vlane_bench::{Load, blkio};
use vlane_host::error::{Error, ErrorKind, Result};
use vlane_host::interrupt::Interrupt;
use vlane_work::instructions::Instructions;
use vlane_work::{Counted, Role, Sampler, ThreadFilter};

/// The client.
pub(super) struct Native {
    fio: BlkioFio,
}

impl Native {
    /// Looks for it.
    pub(super) fn find(host: &Host) -> Result<Self> {
        Ok(Self { fio: BlkioFio::find(host)? })
    }

    pub(super) fn version(&self) -> Option<String> {
        self.fio.version()
    }

    /// One measurement: back end and client on a CPU each. The back end is looked at from outside, in the middle of the time.
    pub(super) fn measure(
        &self,
        ground: &Ground<'_>,
        contender: &Contender,
        row: Row,
        options: &Options,
        interrupt: &Interrupt,
    ) -> Result<Figures> {
        let (medium, cpus) = (row.group.medium, [ground.server_cpu]);
        let server = match &contender.vlane {
            Some(words) => ground.vlane(medium, &cpus, words)?,
            None => ground.qsd(medium, &cpus, 1)?,
        };
        let load = Load {
            depth: NonZeroU16::new(row.depth).unwrap_or(NonZeroU16::MIN),
            batch: 1,
            ..Load::named("load")
        };
        let times = (options.time, options.ramp);
        let mut words = blkio::options(&load, server.socket(), times.0, times.1);
        words.push(format!("--rate_iops={}", row.rate));
        let roles = vec![Role::new("back end", server.pid().cast_signed(), ThreadFilter::All)];
        let mut instructions = match Instructions::open(&roles) {
            Counted::Is(counters) => Some(counters),
            Counted::Not(_) => None,
        };
        let mut sampler = Sampler::new(roles);
        let mut looks = Vec::new();
        let mut look = || looks.push((sampler.take(), instructions.as_mut().map(Instructions::read)));
        let run = blkio::measure(&self.fio, words, times, &[ground.driver_cpu], &mut look, interrupt)?;
        let [(before, counted), (after, counted_after)] = &looks[..] else {
            return Err(Error::new(ErrorKind::Process, "fio ended before its time"));
        };
        let used = after.since(before);
        if used.roles.iter().any(|role| role.lost) {
            return Err(Error::new(ErrorKind::Process, "the back end's process cannot be looked at"));
        }
        let (cpu, switches) = per_request(&used, 0, run.iops);
        let requests = run.iops * used.wall.as_secs_f64();
        let instructions = counted
            .zip(*counted_after)
            .map(|(before, after)| after.saturating_sub(before) as f64 / requests.max(1e-9));
        Ok(Figures {
            iops: run.iops,
            p50_us: run.p50_us,
            p99_us: run.p99_us,
            cpu_us: cpu,
            backend_cpu_us: cpu,
            guest_cpu_us: None,
            switches,
            instructions,
        })
    }
}
