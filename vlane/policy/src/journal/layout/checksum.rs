//! The three checksums that tables and superblocks have. All are reflected CRCs; none is inverted
//! here, neither before nor after.

const fn table(polynomial: u32) -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte: u32 = 0;
    while byte < 256 {
        let mut crc = byte;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { polynomial } else { 0 };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
}

static CRC32: [u32; 256] = table(0xedb8_8320);
static CRC32C: [u32; 256] = table(0x82f6_3b78);
static CRC16: [u32; 256] = table(0xa001);

fn update(table: &[u32; 256], crc: u32, bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(crc, |crc, byte| (crc >> 8) ^ table[((crc ^ u32::from(*byte)) & 0xff) as usize])
}

/// GPT's, whole.
pub(super) fn crc32(parts: &[&[u8]]) -> u32 {
    !parts.iter().fold(!0, |crc, part| update(&CRC32, crc, part))
}

/// ext4's and XFS's, from `seed` on.
pub(super) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    update(&CRC32C, seed, bytes)
}

/// That of ext4's group descriptors without metadata checksums, from `seed` on.
pub(super) fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    (update(&CRC16, seed.into(), bytes) & 0xffff) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_match_the_standards() {
        let digits = b"123456789";
        assert_eq!(crc32(&[&digits[..4], &digits[4..]]), 0xcbf4_3926);
        assert_eq!(!crc32c(!0, digits), 0xe306_9283);
        // CRC-16/MODBUS: begins with all ones, is not inverted.
        assert_eq!(crc16(!0, digits), 0x4b37);
    }
}
