//! A session's facts on one of its virtqueues.

use std::fs::File;
use std::os::fd::OwnedFd;

use vlane_ring::{QueueConfig, RingFormat};

/// Ring addresses as the front end gave them, in its own address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub desc: u64,
    pub driver: u64,
    pub device: u64,
}

/// The state of one virtqueue between messages.
#[derive(Debug, Default)]
pub(crate) struct Vring {
    pub size: u16,
    pub addresses: Option<Addresses>,
    /// Guest physical address for logging used-ring writes.
    pub log_addr: Option<u64>,
    pub base: u32,
    /// The front end said KICK: the ring is started. The descriptor may be missing, then it wants
    /// to be polled.
    pub started: bool,
    pub kick: Option<OwnedFd>,
    pub call: Option<OwnedFd>,
    pub err: Option<File>,
    pub enabled: bool,
    /// A lane serves it.
    pub running: bool,
    /// A lane has served it in this session.
    pub has_run: bool,
}

impl Vring {
    pub(crate) fn queue_config(&self, layout: RingFormat, event_idx: bool) -> Option<QueueConfig> {
        let Addresses { desc, driver, device } = self.addresses?;
        (self.size > 0).then_some(QueueConfig {
            layout,
            size: self.size,
            event_idx,
            desc,
            driver,
            device,
            base: self.base,
            log_addr: self.log_addr,
        })
    }
}
