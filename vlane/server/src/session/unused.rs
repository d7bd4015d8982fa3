//! The reason why a front end left without using its volume: it cannot say so itself, and its guest
//! waits for a disk in silence.

use vlane_error::locked;

use super::{Session, State};
use crate::session_report;
use crate::unused::Unused;

impl State {
    /// The reason why no ring ran, as far as the messages show it.
    pub(super) fn unused(&self) -> Option<Unused> {
        // QEMU asks for the in-flight memory when it starts the device, just before it gives the
        // guest's memory. A front end that looks at the configuration, or whose guest has no driver
        // for the disk, does not come so far.
        if self.is_negotiated && self.tracking.is_some() && !self.had_memory {
            return Some(Unused::NoMemory);
        }
        // The number of queues was the last thing that it wanted to know.
        (self.was_asked_for_queues && !self.had_memory).then_some(Unused::TooFewQueues)
    }

    /// The front end sends a message that it would not send after finding too few queues.
    pub(super) fn goes_on(&mut self) {
        self.was_asked_for_queues = false;
    }
}

impl Session {
    /// Tells why the front end left without using the volume: as a warning to each process once,
    /// since front ends try again for ever.
    pub(super) fn tell_unused(&self, number: u64, peer: Option<i32>) {
        let Some(unused) = locked(&self.state).unused() else { return };
        let (name, offered) = (&self.volume.config.name, self.volume.queues());
        let who = session_report::process(peer);
        let what = match unused {
            Unused::NoMemory => format!(
                "front end {who} began to start the disk, and its memory never came: the VM's \
                 memory is not shared, and its guest waits for this disk forever. {}",
                session_report::SHARE
            ),
            Unused::TooFewQueues => {
                match session_report::wanted_queues(peer).filter(|wanted| *wanted > offered.into())
                {
                    Some(wanted) => format!(
                        "front end {who} wants {wanted} queues, and vlane offers {offered}: it \
                         retries forever. Offer more (--queues {wanted}), or configure fewer \
                         (QEMU: num-queues={offered})"
                    ),
                    None => format!(
                        "front end {who} asked for the number of queues and left: it may want \
                         more than the {offered} that vlane offers. Offer as many as the VM has \
                         vCPUs (--queues), or configure fewer (QEMU: num-queues={offered})"
                    ),
                }
            }
        };
        let mut told = locked(&self.volume.told_unused);
        if peer.is_none() || *told != Some((peer, unused)) {
            *told = Some((peer, unused));
            tracing::warn!("{name}: session {number}: {what}");
        }
    }
}
