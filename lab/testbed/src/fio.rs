//! fio's answer in its "terse" format, version 3: a line of fields per job, which a guest can print
//! on its console. Its fields are in fio's manual, "Terse Output".

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// fio's result of one job.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Requests.
    pub ios: f64,
    /// Requests per second.
    pub iops: f64,
    /// MB (10^6 bytes) per second.
    pub mb_per_second: f64,
    /// Time measured, in seconds.
    pub seconds: f64,
    /// Mean time from a request's submission to its completion, in us.
    pub mean_us: f64,
    /// Its median, in us.
    pub p50_us: f64,
    /// Its 99th percentile, in us.
    pub p99_us: f64,
    /// CPU time of fio's job, in us per request, as the kernel that it runs on counts it.
    pub cpu_us: f64,
    /// Context switches of fio's job per request.
    pub switches: f64,
}

/// Fields of one direction in a terse line; reads begin at field 5 (from 0).
const FIELDS: usize = 41;
/// Within them: KiB, bandwidth, IOPS, runtime in ms.
const TOTAL_KIB: usize = 0;
const RUNTIME_MS: usize = 3;
/// Within them: 20 percentiles, then min, max, mean, deviation of the total latency.
const PERCENTILES: usize = 12;
const MEAN_US: usize = 34;
/// Behind both directions: user and system time in percent, context switches.
const READ: usize = 5;
const WRITE: usize = READ + FIELDS;

/// Reads a terse line of a job with requests of `record` bytes: the job's name and its outcome.
///
/// # Errors
/// [`ErrorKind::Format`] if it is no such line, or tells of an error or of no request at all.
pub fn parse(line: &str, record: u64) -> Result<(String, Outcome)> {
    let bad = |why: &str| {
        Error::new(ErrorKind::Format, format!("fio's answer is not understood: {why}: {line}"))
    };
    let fields: Vec<&str> = line.trim().split(';').collect();
    if fields.first() != Some(&"3") || fields.len() < WRITE + FIELDS + 3 {
        return Err(bad("not terse version 3"));
    }
    let number = |at: usize| -> Result<f64> {
        let text = fields[at].trim_end_matches('%');
        text.parse::<f64>()
            .ok()
            .filter(|n| n.is_finite())
            .ok_or_else(|| bad(&format!("field {at}")))
    };
    if number(4)? > 0.0 {
        return Err(bad("the job failed"));
    }
    let from = if number(READ + TOTAL_KIB)? > 0.0 { READ } else { WRITE };
    let (kib, ms) = (number(from + TOTAL_KIB)?, number(from + RUNTIME_MS)?);
    if kib <= 0.0 || ms <= 0.0 {
        return Err(bad("it finished no request"));
    }
    let percentile = |wanted: f64| -> Result<f64> {
        let all = &fields[from + PERCENTILES..from + PERCENTILES + 20];
        let found = all.iter().find_map(|field| {
            let (percent, value) = field.split_once("%=")?;
            let percent: f64 = percent.parse().ok()?;
            if (percent - wanted).abs() < 1e-6 { value.parse::<f64>().ok() } else { None }
        });
        found.ok_or_else(|| bad("no percentiles"))
    };
    let ios = kib * 1024.0 / record as f64;
    let seconds = ms / 1e3;
    // Trims are not in version 3: CPU times follow the writes.
    let busy = number(WRITE + FIELDS)? + number(WRITE + FIELDS + 1)?;
    let outcome = Outcome {
        ios,
        iops: ios / seconds,
        mb_per_second: kib * 1024.0 / seconds / 1e6,
        seconds,
        mean_us: number(from + MEAN_US)?,
        p50_us: percentile(50.0)?,
        p99_us: percentile(99.0)?,
        cpu_us: busy / 100.0 * seconds * 1e6 / ios,
        switches: number(WRITE + FIELDS + 2)? / ios,
    };
    Ok((fields[2].to_string(), outcome))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const READS: &str = "3;fio-3.33;vlane;0;0;25848;85873;21468;301;1;1931;11.651273;25.870687;0;11002;34.321349;\
         145.394926;1.000000%=3;5.000000%=0;10.000000%=0;20.000000%=0;30.000000%=0;40.000000%=0;\
         50.000000%=41;60.000000%=56;70.000000%=61;80.000000%=64;90.000000%=71;95.000000%=77;99.\
         000000%=108;99.500000%=134;99.900000%=280;99.950000%=659;99.990000%=10944;0%=0;0%=0;0%=0;\
         2;11022;45.972622;149.916630;0;0;0.000000%;0.000000;0.000000;0;0;0;0;0;0;0.000000;0.\
         000000;0;0;0.000000;0.000000;1.000000%=0;5.000000%=0;10.000000%=0;20.000000%=0;30.000000%\
         =0;40.000000%=0;50.000000%=0;60.000000%=0;70.000000%=0;80.000000%=0;90.000000%=0;95.\
         000000%=0;99.000000%=0;99.500000%=0;99.900000%=0;99.950000%=0;99.990000%=0;0%=0;0%=0;0%\
         =0;0;0;0.000000;0.000000;0;0;0.000000%;0.000000;0.000000;3.666667%;32.333333%;3099;0;11;\
         100.0%;0.0%";
    const WRITES: &str = "3;fio-3.33;x;0;0;0;0;0;0;0;0;0.000000;0.000000;0;0;0.000000;0.000000;1.000000%=0;5.\
         000000%=0;10.000000%=0;20.000000%=0;30.000000%=0;40.000000%=0;50.000000%=0;60.000000%=0;\
         70.000000%=0;80.000000%=0;90.000000%=0;95.000000%=0;99.000000%=0;99.500000%=0;99.900000%\
         =0;99.950000%=0;99.990000%=0;0%=0;0%=0;0%=0;0;0;0.000000;0.000000;0;0;0.000000%;0.000000;\
         0.000000;16384;44643;11160;367;0;0;0.000000;0.000000;56;4147;88.847363;109.729677;1.\
         000000%=62;5.000000%=66;10.000000%=69;20.000000%=73;30.000000%=76;40.000000%=79;50.\
         000000%=81;60.000000%=84;70.000000%=87;80.000000%=90;90.000000%=95;95.000000%=107;99.\
         000000%=156;99.500000%=264;99.900000%=1941;99.950000%=2834;99.990000%=4145;0%=0;0%=0;0%\
         =0;56;4148;88.919955;109.733756;0;0;0.000000%;0.000000;0.000000;1.366120%;39.071038%;\
         4094;0;11;100.0%;0.0%";

    #[test]
    fn reads_and_writes_use_own_fields() {
        let (name, read) = parse(READS, 4096).unwrap();
        assert_eq!(name, "vlane");
        assert!((read.ios - 6462.0).abs() < 1e-9 && (read.iops - 6462.0 / 0.301).abs() < 1e-6);
        assert!((read.mb_per_second - 25848.0 * 1024.0 / 0.301 / 1e6).abs() < 1e-9);
        assert!((read.p50_us - 41.0).abs() < 1e-9 && (read.p99_us - 108.0).abs() < 1e-9);
        assert!((read.mean_us - 45.972_622).abs() < 1e-9);
        assert!((read.cpu_us - 0.36 * 301_000.0 / 6462.0).abs() < 0.01, "{read:?}");
        assert!((read.switches - 3099.0 / 6462.0).abs() < 1e-9);
        let (_, write) = parse(WRITES, 4096).unwrap();
        assert!((write.ios - 4096.0).abs() < 1e-9 && (write.p99_us - 156.0).abs() < 1e-9);
        assert!((write.seconds - 0.367).abs() < 1e-9 && (write.mean_us - 88.919_955).abs() < 1e-9);
    }

    #[test]
    fn missing_result_is_error_not_zero() {
        for line in ["", "3;fio-3.33;x;0;0", "fio: a note", &READS.replacen("3;fio", "4;fio", 1)] {
            assert_eq!(parse(line, 4096).unwrap_err().kind(), ErrorKind::Format, "{line}");
        }
        let failed = READS.replacen(";0;0;25848", ";0;5;25848", 1);
        assert!(parse(&failed, 4096).unwrap_err().to_string().contains("failed"));
        let idle = READS.replacen(";25848;", ";0;", 1);
        assert!(parse(&idle, 4096).unwrap_err().to_string().contains("no request"));
    }
}
