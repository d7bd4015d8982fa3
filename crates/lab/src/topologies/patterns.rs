//! The paper's four patterns, and what it published for them.

use std::time::Duration;

use vlane_driver::Workload;

use vlane_host::error::{Error, ErrorKind, Result};

/// Hardware threads of the paper's machine, all of them busy at its best figures.
const PAPER_THREADS: f64 = 8.0;
/// Requests per second of the paper's host itself, without a virtual machine, with 8 processes (4K random read).
const PAPER_HOST_IOPS: f64 = 1.2e6;
/// What a request costs in this process' device and driver by themselves, sleeping and waking included, in us. Measured; it need not be
/// exact, as it is a tenth of the whole.
const OWN_US: f64 = 1.5;

/// A pattern.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pattern {
    /// Its name on the command line, and as the driver calls it.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// Bytes per request.
    pub block: u32,
    /// What the paper found.
    pub published: Published,
}

/// The paper's figures for a pattern (Kim, Kang, Eom, KIISE 2016, section 3.5 and figure 5).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Published {
    /// MT's requests per second at its best, from IOPS or from GB/s (2^30) at 32K.
    pub mt_iops: f64,
    /// MT over Baseline, at most.
    pub over_baseline: f64,
    /// MT over MQ, where it is told.
    pub over_mq: Option<f64>,
}

/// All four, in the paper's order.
pub fn patterns() -> [Pattern; 4] {
    let gb = |gb: f64| gb * 1_073_741_824.0 / 32768.0;
    [
        Pattern {
            name: "randread",
            title: "4K random read",
            block: 4096,
            published: Published { mt_iops: 413e3, over_baseline: 2.55, over_mq: Some(1.32) },
        },
        Pattern {
            name: "randwrite",
            title: "4K random write",
            block: 4096,
            published: Published { mt_iops: 358e3, over_baseline: 2.28, over_mq: None },
        },
        Pattern {
            name: "read",
            title: "32K sequential read",
            block: 32768,
            published: Published { mt_iops: gb(10.5), over_baseline: 3.10, over_mq: None },
        },
        Pattern {
            name: "write",
            title: "32K sequential write",
            block: 32768,
            published: Published { mt_iops: gb(10.1), over_baseline: 1.73, over_mq: None },
        },
    ]
}

impl Pattern {
    /// The patterns with these names; all without any.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for a name that there is not.
    pub fn named(names: &[String]) -> Result<Vec<Self>> {
        let all = patterns();
        if names.is_empty() {
            return Ok(all.to_vec());
        }
        let find = |name: &String| {
            all.iter().copied().find(|pattern| pattern.name == name).ok_or_else(|| {
                let known = all.map(|p| p.name).join(", ");
                Error::new(ErrorKind::Usage, format!("`{name}` is no pattern; {known} are"))
            })
        };
        names.iter().map(find).collect()
    }

    /// What its jobs do, `batch` requests made visible at a time.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the driver does not know it.
    pub fn workload(&self, batch: u16) -> Result<Workload> {
        let pattern = self.name.parse().map_err(|text: String| Error::new(ErrorKind::Invalid, text))?;
        Ok(Workload { pattern, block: self.block, batch, ..Workload::default() })
    }

    /// The CPU time that a request costs the guest, and the host, in the paper: its program, kernel and exits on the one side, its
    /// storage stack on the other.
    ///
    /// From the paper's own figures. With all hardware threads busy, a request of MT costs threads / IOPS; the host's path alone
    /// costs threads / host's IOPS, of which a part is the program's and not the I/O thread's (three quarters are taken for the
    /// thread's). What this device and driver cost by themselves is taken off.
    pub fn paper_work(&self) -> (Duration, Duration) {
        let whole = PAPER_THREADS / self.published.mt_iops * 1e6;
        let host = PAPER_THREADS / PAPER_HOST_IOPS * 1e6 * 0.75;
        let guest = (whole - host - OWN_US).max(0.0);
        (Duration::from_secs_f64(guest / 1e6), Duration::from_secs_f64(host / 1e6))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn the_papers_work_is_what_its_figures_say() {
        // By hand: 8 threads / IOPS, less three quarters of 8 threads / 1.2 M for the host's path, and 1.5 us of our own. 10.5 GB/s are
        // 344,064 requests of 32 KiB per second, 10.1 GB/s are 330,957.
        let by_hand = [("randread", 12_870), ("randwrite", 15_846), ("read", 16_751), ("write", 17_672)];
        for (pattern, (name, guest_ns)) in patterns().iter().zip(by_hand) {
            assert_eq!(pattern.name, name);
            let (guest, host) = pattern.paper_work();
            assert_eq!((guest.as_nanos(), host.as_nanos()), (guest_ns, 5000), "{name}");
        }
    }

    #[test]
    fn patterns_are_found_by_name() {
        assert_eq!(Pattern::named(&[]).unwrap().len(), 4);
        assert_eq!(Pattern::named(&["read".into()]).unwrap()[0].block, 32768);
        assert_eq!(Pattern::named(&["reed".into()]).unwrap_err().kind(), ErrorKind::Usage);
        assert!(patterns().iter().all(|p| p.workload(1).is_ok()));
    }
}
