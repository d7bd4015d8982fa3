//! Takes the uncompressed kernel out of a `vmlinuz`.
//!
//! An emulated CPU needs seconds to unpack a kernel; QEMU boots an ELF `vmlinux` directly (PVH).
//! The layout of a bzImage is in the kernel's `Documentation/arch/x86/boot.rst`.

use std::path::Path;

use crate::compressed;
use crate::error::{Error, ErrorKind, Result, io};

/// Boot protocol 2.08 brought `payload_offset` and `payload_length`.
const FIRST_WITH_PAYLOAD: u16 = 0x0208;

/// The ELF image inside the bzImage at `path`.
pub fn extract(path: &Path) -> Result<Vec<u8>> {
    let image = std::fs::read(path)
        .map_err(io(|| format!("{}: the kernel cannot be read", path.display())))?;
    extract_bytes(&image).map_err(|why| {
        Error::new(
            ErrorKind::Format,
            format!("{}: no uncompressed kernel can be taken out of it: {why}", path.display()),
        )
    })
}

fn extract_bytes(image: &[u8]) -> std::result::Result<Vec<u8>, String> {
    if image.starts_with(b"\x7fELF") {
        return Ok(image.to_vec());
    }
    let field =
        |at: usize, len: usize| image.get(at..at + len).ok_or("the file is too short for a kernel");
    if field(0x202, 4)? != b"HdrS" {
        return Err("it has no Linux boot header".into());
    }
    let version = u16::from_le_bytes([field(0x206, 1)?[0], field(0x207, 1)?[0]]);
    if version < FIRST_WITH_PAYLOAD {
        return Err(format!("boot protocol {version:#x} does not say where the payload is"));
    }
    let word = |at: usize| -> std::result::Result<usize, String> {
        let bytes: [u8; 4] = field(at, 4)?.try_into().map_err(|_| "too short")?;
        Ok(u32::from_le_bytes(bytes) as usize)
    };
    // "For backwards compatibility, if setup_sects contains 0, the real value is 4."
    let setup_sectors = match field(0x1f1, 1)?[0] {
        0 => 4,
        n => usize::from(n),
    };
    let start = (setup_sectors + 1) * 512 + word(0x248)?;
    let payload = field(start, word(0x24c)?)?;
    let elf = compressed::unpack(payload)?;
    if elf.starts_with(b"\x7fELF") { Ok(elf) } else { Err("its content is not an ELF file".into()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::compressed::tests::{pack_lz4_legacy, sample};

    fn bzimage(payload: &[u8], setup_sectors: u8) -> Vec<u8> {
        let sectors = if setup_sectors == 0 { 4 } else { usize::from(setup_sectors) };
        let mut image = vec![0; (sectors + 1) * 512 + 64];
        image[0x1f1] = setup_sectors;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&0x020fu16.to_le_bytes());
        image[0x248..0x24c].copy_from_slice(&64u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
        image.extend_from_slice(payload);
        image.extend_from_slice(b"signature and padding");
        image
    }

    #[test]
    fn kernel_unpacks_unchanged() {
        let elf = sample(3_000_000);
        for setup_sectors in [0, 1, 39] {
            let mut payload = pack_lz4_legacy(&elf);
            payload.extend(u32::try_from(elf.len()).unwrap().to_le_bytes());
            assert!(extract_bytes(&bzimage(&payload, setup_sectors)).unwrap() == elf);
        }
        assert!(extract_bytes(&elf).unwrap() == elf, "an uncompressed kernel is taken as it is");
    }

    #[test]
    fn other_files_are_refused_with_reason() {
        assert!(extract_bytes(b"").unwrap_err().contains("short"));
        assert!(extract_bytes(&[0; 4096]).unwrap_err().contains("header"));
        let mut far = bzimage(b"x", 1);
        far[0x248..0x24c].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(extract_bytes(&far).unwrap_err().contains("short"));
        assert!(extract_bytes(&bzimage(b"\x1f\x8bnonsense", 1)).unwrap_err().contains("gzip"));
    }
}
