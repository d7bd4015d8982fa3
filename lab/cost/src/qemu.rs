//! How often QEMU calls the functions of its own virtio-blk device, from its trace log: the count
//! behind the published ratio of 4K to 512K.
//!
//! A QEMU that is started with [`arguments`] writes a line for each of its trace events
//! `virtio_blk_*`, by its `log` back end, which distributions build in. The events are a read or
//! write from the guest's queue (`virtio_blk_handle_read`), a merged batch of them
//! (`virtio_blk_submit_multireq`), the storage's answer (`virtio_blk_rw_complete`), and the guest's
//! (`virtio_blk_req_complete`).

use std::ffi::OsString;
use std::path::Path;

use super::Tally;

/// Arguments that make QEMU write its virtio-blk events to `log`.
pub fn arguments(log: &Path) -> Vec<OsString> {
    ["-trace".into(), "virtio_blk_*".into(), "-D".into(), log.as_os_str().to_owned()].to_vec()
}

/// Counts the events in a log whose names begin with `prefix` (`virtio_blk_`). Lines are
/// `EVENT arguments`, or `PID@SECONDS:EVENT arguments` in a QEMU that writes times; others are
/// passed over.
pub fn events(log: &str, prefix: &str) -> Tally {
    let mut found = Tally::default();
    for line in log.lines() {
        let word = line.split_whitespace().next().unwrap_or("");
        let event = match word.split_once('@') {
            Some((pid, rest)) if pid.bytes().all(|b| b.is_ascii_digit()) => {
                rest.split_once(':').map_or("", |(_, event)| event)
            }
            _ => word,
        };
        let is_name = event.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if is_name && event.starts_with(prefix) {
            found.add(event, 1);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_with_and_without_times() {
        let log = "\
virtio_blk_handle_read vdev 0x55d0 req 0x7f0 sector 0 nsectors 8
virtio_blk_submit_multireq vdev 0x55d0 mrb 0x7ff start 0 num_reqs 1 offset 0 size 4096 is_write 0
4711@1700000000.123456:virtio_blk_rw_complete vdev 0x55d0 req 0x7f0 ret 0
qemu-system-x86_64: warning: virtio_blk_handle_read is not what this line is
virtio_blk_handle_read vdev 0x55d0 req 0x7f8 sector 8 nsectors 8
virtio_notify_irqfd vdev 0x55d0 vq 0x1
";
        let counts = events(log, "virtio_blk_");
        assert_eq!((counts.total(), counts.of("virtio_blk_handle_read")), (4, 2));
        assert_eq!(counts.of("virtio_blk_rw_complete"), 1);
        let first = events(log.lines().next().unwrap_or(""), "virtio_blk_");
        assert_eq!((counts.since(&first).total(), first.since(&counts).total()), (3, 0));
    }
}
