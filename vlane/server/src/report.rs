//! The end of the line that ends a session.

use vlane_error::counted;
use vlane_lane::Snapshot;

/// The queues' work, in words.
pub(crate) struct Report(pub(crate) Vec<Snapshot>);

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut sum = Snapshot::default();
        let used: Vec<_> =
            self.0.iter().enumerate().filter(|(_, queue)| queue.requests() > 0).collect();
        if !used.is_empty() {
            write!(
                f,
                "; {} of {} had requests",
                used.len(),
                counted(self.0.len(), "offered queue")
            )?;
        }
        for (index, queue) in used {
            write!(f, "; queue {index}: {}", counted(queue.requests(), "request"))?;
            sum.add(queue);
        }
        if sum.failed > 0 || sum.refused > 0 {
            write!(
                f,
                "; {} failed ({} for want of space), {} refused",
                sum.failed, sum.no_space, sum.refused
            )?;
        }
        Ok(())
    }
}
