//! The BPF objects in the repository are of the present source.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ext/bpf")
}

#[test]
fn bpf_objects_match_the_source() {
    let watch = Path::new(env!("CARGO_MANIFEST_DIR")).join("../watch/src/bpf");
    let programs = [
        (folder(), "loan.bpf.o", &["kernel.h", "loan.bpf.c", "state.h"][..]),
        (watch, "watch.bpf.o", &["kernel.h", "watch.bpf.c"]),
    ];
    for (folder, object, sources) in programs {
        let mut source = Vec::new();
        for name in sources {
            source.extend(std::fs::read(folder.join(name)).unwrap());
        }
        let noted = std::fs::read_to_string(folder.join(format!("{object}.source"))).unwrap();
        let present = format!("{:016x}", twox_hash::XxHash3_64::oneshot(&source));
        assert_eq!(noted.trim(), present, "{object}: the source has changed: cargo xtask bpf");
    }
}
