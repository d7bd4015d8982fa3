//! Feature bits: what a volume offers, and what was agreed on (virtio 1.2, sections 5.2.3 and 6).

use vhost::vhost_user::VhostUserProtocolFeatures;
use vlane_engine::Geometry;

pub(crate) const BLK_SIZE_MAX: u64 = 1 << 1;
pub(crate) const BLK_SEG_MAX: u64 = 1 << 2;
pub(crate) const BLK_RO: u64 = 1 << 5;
pub(crate) const BLK_BLK_SIZE: u64 = 1 << 6;
pub(crate) const BLK_FLUSH: u64 = 1 << 9;
pub(crate) const BLK_TOPOLOGY: u64 = 1 << 10;
pub(crate) const BLK_CONFIG_WCE: u64 = 1 << 11;
pub(crate) const BLK_MQ: u64 = 1 << 12;
pub(crate) const BLK_DISCARD: u64 = 1 << 13;
pub(crate) const BLK_WRITE_ZEROES: u64 = 1 << 14;
pub(crate) const LOG_ALL: u64 = 1 << 26;
pub(crate) const RING_INDIRECT_DESC: u64 = 1 << 28;
pub(crate) const RING_EVENT_IDX: u64 = 1 << 29;
pub(crate) const PROTOCOL_FEATURES: u64 = 1 << 30;
pub(crate) const VERSION_1: u64 = 1 << 32;
pub(crate) const RING_PACKED: u64 = 1 << 34;

/// The names of all bits above, as the specification has them.
const NAMES: [(u64, &str); 15] = [
    (BLK_SIZE_MAX, "VIRTIO_BLK_F_SIZE_MAX"),
    (BLK_SEG_MAX, "VIRTIO_BLK_F_SEG_MAX"),
    (BLK_RO, "VIRTIO_BLK_F_RO"),
    (BLK_BLK_SIZE, "VIRTIO_BLK_F_BLK_SIZE"),
    (BLK_FLUSH, "VIRTIO_BLK_F_FLUSH"),
    (BLK_TOPOLOGY, "VIRTIO_BLK_F_TOPOLOGY"),
    (BLK_CONFIG_WCE, "VIRTIO_BLK_F_CONFIG_WCE"),
    (BLK_MQ, "VIRTIO_BLK_F_MQ"),
    (BLK_DISCARD, "VIRTIO_BLK_F_DISCARD"),
    (BLK_WRITE_ZEROES, "VIRTIO_BLK_F_WRITE_ZEROES"),
    (LOG_ALL, "VHOST_F_LOG_ALL"),
    (RING_INDIRECT_DESC, "VIRTIO_F_INDIRECT_DESC"),
    (RING_EVENT_IDX, "VIRTIO_F_EVENT_IDX"),
    (VERSION_1, "VIRTIO_F_VERSION_1"),
    (RING_PACKED, "VIRTIO_F_RING_PACKED"),
];

/// The names of the bits that are set.
pub(crate) fn names(features: u64) -> Vec<&'static str> {
    NAMES.iter().filter(|(bit, _)| features & bit != 0).map(|(_, name)| *name).collect()
}

/// The virtio features of a volume like this.
pub(crate) fn offered(geometry: &Geometry) -> u64 {
    //= virtio 5.2.5.2
    //# Devices SHOULD always offer VIRTIO_BLK_F_FLUSH, and MUST offer it if they offer
    //# VIRTIO_BLK_F_CONFIG_WCE.
    //= virtio 5.2.6.2
    //# The flag MUST NOT be offered if the device is backed by storage for which the lifetime
    //# metrics described in this document cannot be obtained or for which such metrics have no
    //# useful meaning.
    let mut features = BLK_SIZE_MAX
        | BLK_SEG_MAX
        | BLK_BLK_SIZE
        | BLK_FLUSH
        | BLK_TOPOLOGY
        | BLK_MQ
        | LOG_ALL
        | RING_INDIRECT_DESC
        | RING_EVENT_IDX
        | PROTOCOL_FEATURES
        | VERSION_1
        | RING_PACKED;
    if geometry.read_only {
        features |= BLK_RO;
    } else {
        features |= BLK_CONFIG_WCE;
    }
    if geometry.discard {
        features |= BLK_DISCARD;
    }
    if geometry.write_zeroes {
        features |= BLK_WRITE_ZEROES;
    }
    features
}

/// The features of `wanted` that keep a volume like this from serving the guest.
///
/// Storage changes between two back ends, and below one that runs. A guest keeps the features that
/// it agreed on, and a front end repeats them to each back end. So a guest stays that knew discard,
/// write-zeroes or a read-only disk, although they are not offered any more. A discard that the
/// storage cannot do is answered OK, zeroes are written, and such a guest does not write.
pub(crate) fn in_the_way(wanted: u64, geometry: &Geometry) -> u64 {
    let bygone = if geometry.read_only { BLK_RO } else { BLK_RO | BLK_DISCARD | BLK_WRITE_ZEROES };
    wanted & !(offered(geometry) | bygone)
}

/// The reason why a guest with these features, which are [`in_the_way`], is not served. `front_end`
/// is its process.
pub(crate) fn refusal(features: u64, geometry: &Geometry, front_end: &str) -> String {
    let named = names(features).join(", ");
    let named = if named.is_empty() {
        format!("{features:#x}")
    } else {
        format!("{named} ({features:#x})")
    };
    let writes = BLK_CONFIG_WCE | BLK_DISCARD | BLK_WRITE_ZEROES;
    let why = match geometry.read_only && features & writes != 0 && features & !writes == 0 {
        true => format!(
            "its front end ({front_end}) started this disk writable, and it is now served \
             --read-only: serve it without --read-only, or start the guest again"
        ),
        false => "this vlane does not offer them: start the guest again, or serve it with the \
                  vlane that it was started with"
            .to_owned(),
    };
    format!("the guest uses {named}, and its disk does not run: {why}")
}

/// VHOST_USER_PROTOCOL_F_GET_VRING_BASE_SKIP_DRAIN, which the `vhost` crate does not know.
const SKIP_DRAIN: u64 = 1 << 23;

/// Returns true if GET_VRING_BASE leaves requests in flight for a front end that agreed on these
/// protocol features. A separate message says so where that was agreed on ([`crate::skip_drain`]).
pub(crate) fn base_suspends(protocol: u64) -> bool {
    protocol & VhostUserProtocolFeatures::GET_VRING_BASE_INFLIGHT.bits() != 0
        && protocol & SKIP_DRAIN == 0
}

/// Returns true if each of these protocol features comes with those that it needs.
pub(crate) fn is_whole(protocol: u64) -> bool {
    let inflight = VhostUserProtocolFeatures::INFLIGHT_SHMFD.bits();
    let base = VhostUserProtocolFeatures::GET_VRING_BASE_INFLIGHT.bits();
    let needs = |feature: u64, others: u64| protocol & feature == 0 || protocol & others == others;
    needs(base, inflight) && needs(SKIP_DRAIN, base | inflight)
}

/// The vhost-user protocol features. UML 6.1 refuses a back end without BACKEND_REQ.
pub(crate) fn protocol() -> VhostUserProtocolFeatures {
    VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::LOG_SHMFD
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::BACKEND_REQ
        | VhostUserProtocolFeatures::CONFIG
        | VhostUserProtocolFeatures::INFLIGHT_SHMFD
        | VhostUserProtocolFeatures::RESET_DEVICE
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
        | VhostUserProtocolFeatures::GET_VRING_BASE_INFLIGHT
        | VhostUserProtocolFeatures::from_bits_retain(SKIP_DRAIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_names_the_writable_start() {
        let geometry = |read_only| Geometry {
            sectors: 8,
            block_size: 512,
            physical_exponent: 0,
            optimal_blocks: 0,
            read_only,
            discard: !read_only,
            write_zeroes: !read_only,
            write_cache: true,
        };
        let wanted = offered(&geometry(false));
        let in_the_way = in_the_way(wanted, &geometry(true));
        assert_eq!(in_the_way, BLK_CONFIG_WCE | BLK_DISCARD | BLK_WRITE_ZEROES);
        let words = refusal(in_the_way, &geometry(true), "pid 7 (qemu)");
        let parts = [
            "VIRTIO_BLK_F_DISCARD",
            "pid 7 (qemu)",
            "started this disk writable",
            "served --read-only",
        ];
        assert!(parts.iter().all(|part| words.contains(part)), "{words}");
        let words = refusal(1 << 40, &geometry(true), "pid 7 (qemu)");
        assert!(words.contains("0x10000000000") && !words.contains("writable"), "{words}");
    }
}
