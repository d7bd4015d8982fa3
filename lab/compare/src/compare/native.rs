//! The back ends alone: driven natively, without any guest, beside fio on the host.
//!
//! The driver plays the guest's side of the virtqueues at the CPU's full speed. So the ratio to the
//! host is the back end's own, also where guests can only be emulated. Each back end is started
//! anew for this, on the image of its guest's disk (the guest is gone by then). The host's fio has
//! its own file of the same size.

use std::time::Duration;

use vlane_driver::{Limit, Pattern as DriverPattern, SessionOptions, Workload};
use vlane_error::counted;
use vlane_testbed::fio::Outcome;
use vlane_testbed::{Error, ErrorKind, Fail, Result};

use super::columns::Column;
use super::loads::{Load, Pattern, fio_table};
use super::{Setup, host};

/// Time before each measurement that does not count.
const RAMP: Duration = Duration::from_millis(100);

/// The rows.
pub fn loads() -> Vec<Load> {
    let mut all = vec![Load::iozone(Pattern::RandomRead, 4)];
    all.extend(fio_table());
    all.extend(fio_table().into_iter().take(2).map(|load| Load { jobs: 2, ..load }));
    all
}

/// The rows that conclusions are about: 4K random reads, many in parallel.
pub fn deciding() -> [Load; 2] {
    let load = Load::fio(Pattern::RandomRead, 4);
    [load, Load { jobs: 2, ..load }]
}

/// Measures a load on the host, or on a column's back end, which is started for it.
///
/// # Errors
/// Those of starting back ends and of driving them; [`ErrorKind::Interrupted`].
pub fn measure(setup: &Setup<'_>, load: &Load, column: Column) -> Result<Outcome> {
    let Some(mut server) = setup.server(column, load.jobs, false)? else {
        return host::measure(setup, load);
    };
    let block = load.record_kib << 10;
    let session = server.connect(&SessionOptions {
        queues: load.jobs,
        depth: load.depth,
        data: block,
        write_cache: Some(true),
        ..SessionOptions::default()
    })?;
    let pattern: std::result::Result<DriverPattern, String> = load.pattern.fio().parse();
    let workload = Workload {
        pattern: pattern.map_err(|why| Error::new(ErrorKind::Invalid, why))?,
        block,
        size: Some(setup.settings.sizes.old),
        limit: Limit::Time(setup.settings.runtime),
        ramp: RAMP,
        ..Workload::default()
    };
    let report = vlane_driver::run(session, &workload, &mut |_| setup.call.interrupt.going_on())?;
    setup.call.interrupt.check()?;
    let (name, failed) = (server.name(), report.errors.total());
    if failed > 0 {
        let context = format!("{name}: {failed} of {} failed", counted(report.ios, "request"));
        return ErrorKind::Process.fail(context);
    }
    let used = report.backend.as_ref();
    Ok(Outcome {
        ios: report.ios as f64,
        iops: report.iops,
        mb_per_second: report.mb_per_second,
        seconds: report.seconds,
        mean_us: report.latency.mean,
        p50_us: report.latency.p50,
        p99_us: report.latency.p99,
        cpu_us: used.map_or(f64::NAN, |used| used.cpu_us_per_io),
        switches: used.map_or(f64::NAN, |used| used.switches_per_io),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn rows_are_unique_with_driver_patterns() {
        let all = loads();
        for (i, row) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|other| other.long_name() != row.long_name()), "{row:?}");
            assert!(row.pattern.fio().parse::<DriverPattern>().is_ok());
            // Rows that need a file system, and a flush at the end, cannot be compared with a bare
            // disk.
            assert!(row.pattern != Pattern::Write);
            assert!(row.is_fio() || !row.pattern.writes());
        }
        assert!(all.iter().any(|row| row.jobs == 2));
        assert!(deciding().iter().all(|row| all.contains(row)));
    }
}
