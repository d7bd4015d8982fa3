//! fio with libblkio as the client of a fresh back end, at a given rate.

use std::num::NonZeroU16;

use super::{Contender, Figures, Row};
use crate::peers::Options;
use crate::peers::blkio::BlkioClient;
use crate::peers::ground::Ground;
use vlane_bench::Load;
use vlane_testbed::error::Result;
use vlane_testbed::interrupt::Interrupt;

/// One measurement: back end and client on a CPU each.
pub(super) fn measure(
    client: &BlkioClient,
    ground: &Ground<'_>,
    contender: &Contender,
    row: Row,
    options: &Options,
    interrupt: &Interrupt,
) -> Result<Figures> {
    let (medium, cpus) = (row.group.medium, [ground.server_cpu]);
    let server = contender.start(ground, medium, &cpus)?;
    let depth = NonZeroU16::new(row.depth).unwrap_or(NonZeroU16::MIN);
    let load = Load { depth, batch: 1, ..Load::named("load") };
    let rate = [format!("--rate_iops={}", row.rate)];
    let seen = client.measure(&server, &load, &rate, options, ground.driver_cpu, interrupt)?;
    Ok(Figures {
        iops: seen.run.iops,
        p50_us: seen.run.p50_us,
        p99_us: seen.run.p99_us,
        cpu_us: seen.cpu_us,
        backend_cpu_us: seen.cpu_us,
        guest_cpu_us: None,
        switches: seen.switches,
        instructions: seen.instructions,
    })
}
