//! Archives and compressed images, as distributions ship them (`.raw.xz`, `.img.gz`), by their
//! whole headers.

/// A program that packs, the command that unpacks, and whether a file begins with its header.
type Archive = (&'static str, &'static str, fn(&[u8]) -> bool);

const ARCHIVES: &[Archive] = &[
    ("xz", "xz -dk", xz),
    ("gzip", "gzip -dk", gzip),
    ("zstd", "zstd -d", zstd),
    ("bzip2", "bzip2 -dk", bzip2),
    ("zip", "unzip", zip),
    ("lz4", "lz4 -dk", lz4),
    ("lzip", "lzip -dk", lzip),
    ("lzma", "xz -dk", lzma),
    ("lzop", "lzop -d", |head| head.starts_with(b"\x89LZO\0\r\n\x1a\n")),
    ("7z", "7z x", seven_zip),
    ("rar", "unrar x", rar),
    ("tar", "tar -xf", tar),
    ("img2simg (an Android sparse image)", "simg2img", android_sparse),
    ("partclone", "partclone.restore -C -s", |head| head.starts_with(b"partclone-image")),
    ("wimlib", "wimextract", |head| head.starts_with(b"MSWIM\0\0\0\xd0\0\0\0")),
    ("EnCase (EWF)", "ewfexport", |head| head.starts_with(b"EVF\x09\x0d\x0a\xff\0")),
];

/// The program that packed a file with this beginning, and the command that unpacks it.
pub(super) fn packed_by(head: &[u8]) -> Option<(&'static str, &'static str)> {
    let archive = ARCHIVES.iter().find(|(.., begins)| begins(head));
    archive.map(|(name, unpack, _)| (*name, *unpack))
}

fn byte(head: &[u8], at: usize) -> u8 {
    head.get(at).copied().unwrap_or(0)
}

fn u16_at(head: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([byte(head, at), byte(head, at + 1)])
}

fn u32_at(head: &[u8], at: usize) -> u32 {
    u32::from(u16_at(head, at)) | u32::from(u16_at(head, at + 2)) << 16
}

/// The .xz file format, 2.1.1: magic, flags, and the flags' checksum.
fn xz(head: &[u8]) -> bool {
    head.starts_with(b"\xfd7zXZ\0")
        && head.len() >= 12
        && head[6] == 0
        && head[7] <= 0x0f
        && u32_at(head, 8) == crc32(&head[6..8])
}

/// RFC 1952, 2.3: deflate, no reserved flag, a level and a system that exist, and a kind of block
/// that exists.
fn gzip(head: &[u8]) -> bool {
    let kind_of_block = byte(head, 10) >> 1 & 3;
    head.starts_with(b"\x1f\x8b\x08")
        && head.len() >= 18
        && head[3] & 0xe0 == 0
        && matches!(head[8], 0 | 2 | 4)
        && (head[9] <= 13 || head[9] == 255)
        && (head[3] != 0 || kind_of_block != 3)
}

/// RFC 8878, 3.1.1: a frame without reserved bits whose first block has a kind that exists; before
/// it, a frame that is skipped (`pzstd`).
fn zstd(head: &[u8]) -> bool {
    let mut at = 0;
    if u32_at(head, 0) & 0xffff_fff0 == 0x184d_2a50 {
        at = usize::try_from(u32_at(head, 4)).unwrap_or(usize::MAX).saturating_add(8);
    }
    let Some(frame) = head.get(at..).filter(|frame| frame.starts_with(b"\x28\xb5\x2f\xfd")) else {
        return false;
    };
    let descriptor = byte(frame, 4);
    let is_single = descriptor & 0x20 != 0;
    let content = match (descriptor >> 6, is_single) {
        (0, single) => usize::from(single),
        (size, _) => 1 << size,
    };
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let block = 5 + usize::from(!is_single) + dictionary + content;
    frame.len() > block && descriptor & 0x08 == 0 && byte(frame, block) >> 1 & 3 != 3
}

/// Magic, level, and the magic of the first block, or of the end of an empty file.
fn bzip2(head: &[u8]) -> bool {
    let block = head.get(4..10).unwrap_or_default();
    head.starts_with(b"BZh")
        && (b'1'..=b'9').contains(&byte(head, 3))
        && (block == b"\x31\x41\x59\x26\x53\x59" || block == b"\x17\x72\x45\x38\x50\x90")
}

/// A local file header: a version and a method that exist, and a name.
fn zip(head: &[u8]) -> bool {
    let (version, method, name) = (u16_at(head, 4), u16_at(head, 8), usize::from(u16_at(head, 26)));
    head.starts_with(b"PK\x03\x04")
        && (10..=63).contains(&version)
        && matches!(method, 0..=9 | 10 | 12 | 14 | 18 | 19 | 93..=99)
        && head
            .get(30..30 + name.min(255))
            .is_some_and(|name| !name.is_empty() && !name.contains(&0))
}

/// A frame of version 1 without reserved bits and with a size of block that exists; or a frame of
/// before.
fn lz4(head: &[u8]) -> bool {
    let (flags, block) = (byte(head, 4), byte(head, 5));
    let is_frame = head.starts_with(b"\x04\x22\x4d\x18")
        && flags & 0xc2 == 0x40
        && block & 0x8f == 0
        && (4..=7).contains(&(block >> 4))
        && head.len() >= 7;
    // Its blocks are of 8 MiB, and hardly larger when they are packed.
    let is_old = head.starts_with(b"\x02\x21\x4c\x18")
        && (1..=(8 << 20) + (1 << 16)).contains(&u32_at(head, 4));
    is_frame || is_old
}

/// Magic, version, and a size of dictionary that exists.
fn lzip(head: &[u8]) -> bool {
    head.starts_with(b"LZIP\x01") && (12..=29).contains(&(byte(head, 5) & 0x1f))
}

/// The header that every program writes: usual properties, a power of two for the dictionary, no
/// size.
fn lzma(head: &[u8]) -> bool {
    let dictionary = u32_at(head, 1);
    head.len() > 13
        && head[0] == 0x5d
        && dictionary.is_power_of_two()
        && dictionary >= 1 << 12
        && head[5..13] == [0xff; 8]
        // A range coder begins with it.
        && head[13] == 0
}

/// Signature, version 0, and the checksum of the fields that locate the rest.
fn seven_zip(head: &[u8]) -> bool {
    head.starts_with(b"7z\xbc\xaf\x27\x1c\0")
        && head.len() >= 32
        && u32_at(head, 8) == crc32(&head[12..32])
}

fn rar(head: &[u8]) -> bool {
    head.starts_with(b"Rar!\x1a\x07\0") || head.starts_with(b"Rar!\x1a\x07\x01\0")
}

/// POSIX's header and GNU's, with the right checksum. OVA files are such.
fn tar(head: &[u8]) -> bool {
    let Some(header) = head.first_chunk::<512>() else { return false };
    let told = header[148..156]
        .iter()
        .skip_while(|digit| **digit == b' ')
        .take_while(|digit| digit.is_ascii_digit());
    let told = told
        .fold(0, |sum: u32, digit| sum.saturating_mul(8).saturating_add(u32::from(digit - b'0')));
    let sum = |part: &[u8]| part.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    // Counted with spaces where it is itself.
    let counted = sum(&header[..148]) + sum(&header[156..]) + 8 * u32::from(b' ');
    header[257..].starts_with(b"ustar") && header[0] != 0 && told == counted
}

/// Magic, version 1, and the sizes of its headers.
fn android_sparse(head: &[u8]) -> bool {
    head.starts_with(b"\x3a\xff\x26\xed\x01\0") && u16_at(head, 8) == 28 && u16_at(head, 10) == 12
}

/// CRC-32 of IEEE 802.3.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ 0xedb8_8320 };
    !bytes.iter().fold(!0, |crc: u32, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_has_the_known_value() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    /// A header of each kind that has something beyond its magic to be right.
    fn headers() -> Vec<(&'static str, Vec<u8>)> {
        let flags = [0, 4];
        let xz = [&b"\xfd7zXZ\0"[..], &flags, &crc32(&flags).to_le_bytes()].concat();
        let zip = [b"PK\x03\x04\x14\0\0\0\x08\0", &[7; 16][..], b"\x08\0\0\0disk.raw"].concat();
        let start = [9; 20];
        let seven =
            [b"7z\xbc\xaf\x27\x1c\0\x04", &crc32(&start).to_le_bytes()[..], &start].concat();
        vec![
            ("xz", xz),
            ("gzip", b"\x1f\x8b\x08\x08\0\0\0\0\0\x03disk.raw\0".to_vec()),
            ("zstd", b"\x28\xb5\x2f\xfd\x04\x58\x01\0\0".to_vec()),
            ("zstd", b"\x50\x2a\x4d\x18\x04\0\0\0abcd\x28\xb5\x2f\xfd\x24\x10\x01\0\0".to_vec()),
            ("bzip2", b"BZh91AY&SY".to_vec()),
            ("zip", zip),
            ("lz4", b"\x04\x22\x4d\x18\x64\x40\xa7".to_vec()),
            ("lzip", b"LZIP\x01\x0c".to_vec()),
            ("lzma", b"\x5d\0\0\x80\0\xff\xff\xff\xff\xff\xff\xff\xff\0".to_vec()),
            ("7z", seven),
        ]
    }

    #[test]
    fn whole_header_is_needed_and_suffices() {
        for (name, header) in headers() {
            let mut head = header.clone();
            head.resize(512, 0x5a);
            assert_eq!(packed_by(&head).map(|(name, _)| name), Some(name));
            // Its first bytes by chance, and then a disk.
            for len in 0..header.len().min(4) {
                let mut head = header[..len].to_vec();
                head.resize(512, 0xf6);
                assert_eq!(packed_by(&head), None, "{name}: {len} bytes");
            }
            // Nor is anything beyond the end of a short file read.
            for len in 0..header.len() {
                let _ = packed_by(&header[..len]);
            }
        }
    }

    #[test]
    fn wrong_header_checksum_is_no_archive() {
        for (name, header) in headers().into_iter().filter(|(name, _)| ["xz", "7z"].contains(name))
        {
            for bit in 8 * 6..8 * header.len() {
                let mut head = header.clone();
                head[bit / 8] ^= 1 << (bit % 8);
                head.resize(512, 0);
                // The minor version of 7z's header is in none.
                let is_free = name == "7z" && bit / 8 == 7;
                assert_eq!(packed_by(&head).is_some(), is_free, "{name}: bit {bit}");
            }
        }
    }
}
