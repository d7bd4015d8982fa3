//! fio with libblkio as the client: another program's driver beside our own.

use vlane_guest::{BlkioFio, Host};

use super::Options;
use vlane_bench::{Load, Run, blkio};
use vlane_cost::instructions::Instructions;
use vlane_cost::{Counted, Role, Sampler, ThreadFilter, Used};
use vlane_testbed::error::{Error, ErrorKind, Result};
use vlane_testbed::interrupt::Interrupt;
use vlane_testbed::server::Server;

/// The client.
pub(super) struct BlkioClient {
    fio: BlkioFio,
}

/// One measurement: the client's figures, and the back end's use, seen from outside in the middle
/// of the time.
pub(super) struct Seen {
    pub(super) run: Run,
    /// CPU time per request in us.
    pub(super) cpu_us: f64,
    /// Context switches per request.
    pub(super) switches: f64,
    /// Instructions per request, where they can be counted.
    pub(super) instructions: Option<f64>,
}

impl BlkioClient {
    /// Looks for it.
    pub(super) fn find(host: &Host) -> Result<Self> {
        Ok(Self { fio: BlkioFio::find(host)? })
    }

    pub(super) fn version(&self) -> Option<String> {
        self.fio.version()
    }

    /// One measurement of a back end that runs; `more` are further options of fio's. The client is
    /// on a CPU of its own.
    pub(super) fn measure(
        &self,
        server: &Server,
        load: &Load,
        more: &[String],
        options: &Options,
        cpu: usize,
        interrupt: &Interrupt,
    ) -> Result<Seen> {
        let times = (options.time, options.ramp);
        let mut words = blkio::options(load, server.socket(), times.0, times.1);
        words.extend_from_slice(more);
        let roles = vec![Role::new("back end", server.pid().cast_signed(), ThreadFilter::All)];
        let mut instructions = match Instructions::open(&roles) {
            Counted::Is(counters) => Some(counters),
            Counted::Not(_) => None,
        };
        let mut sampler = Sampler::new(roles);
        let mut looks = Vec::new();
        let mut look =
            || looks.push((sampler.take(), instructions.as_mut().map(Instructions::read)));
        let run = blkio::measure(&self.fio, words, times, &[cpu], &mut look, interrupt)?;
        let [(before, counted), (after, counted_after)] = &looks[..] else {
            return Err(Error::new(ErrorKind::Process, "fio ended before its time"));
        };
        let used = after.since(before);
        if used.roles.iter().any(|role| role.lost) {
            return Err(Error::new(
                ErrorKind::Process,
                "the back end's process cannot be looked at",
            ));
        }
        let (cpu_us, switches) = per_request(&used, 0, run.iops);
        let requests = run.iops * used.wall.as_secs_f64();
        let instructions = counted
            .zip(*counted_after)
            .map(|(before, after)| after.saturating_sub(before) as f64 / requests.max(1e-9));
        Ok(Seen { run, cpu_us, switches, instructions })
    }
}

/// A role's use per request, at a rate: CPU time in us, context switches.
pub(super) fn per_request(used: &Used, role: usize, iops: f64) -> (f64, f64) {
    let requests = (iops * used.wall.as_secs_f64()).max(1e-9);
    let of = |role: &vlane_cost::RoleUse| (role.cpu.as_secs_f64() * 1e6, role.switches() as f64);
    let (cpu, switches) = used.roles.get(role).map_or((f64::NAN, f64::NAN), of);
    (cpu / requests, switches / requests)
}
