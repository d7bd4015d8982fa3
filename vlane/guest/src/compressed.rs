//! Compression of kernels and their modules: gzip, xz, zstd, and lz4 in the legacy framing.

use std::io::Read;

/// No kernel and no module is larger than this; a damaged or hostile header must not take all
/// memory.
const LIMIT: u64 = 1 << 30;
/// The legacy lz4 framing cuts its input into blocks of at most this size.
const LZ4_LEGACY_BLOCK: usize = 8 << 20;

const GZIP: &[u8] = &[0x1f, 0x8b];
const XZ: &[u8] = &[0xfd, b'7', b'z', b'X', b'Z', 0];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
const LZ4_LEGACY: &[u8] = &[0x02, 0x21, 0x4c, 0x18];
const ELF: &[u8] = b"\x7fELF";

/// Unpacks `data`, whose format its first bytes tell; ELF files come back as they are.
///
/// Bytes after the packed data are ignored: kernels carry their unpacked size there.
pub(crate) fn unpack(data: &[u8]) -> Result<Vec<u8>, String> {
    let is = |magic: &[u8]| data.starts_with(magic);
    if is(ELF) {
        Ok(data.to_vec())
    } else if is(GZIP) {
        read_limited(flate2::read::GzDecoder::new(data)).map_err(|e| format!("gzip: {e}"))
    } else if is(XZ) {
        let mut out = Vec::new();
        lzma_rs::xz_decompress(&mut &data[..], &mut out).map_err(|e| format!("xz: {e:?}"))?;
        Ok(out)
    } else if is(ZSTD) {
        // Kernels are packed with a window of 128 MiB, more than decoders allow by default.
        ruzstd::decoding::StreamingDecoder::new_with_max_window_size(data, LIMIT)
            .map_err(|e| format!("zstd: {e}"))
            .and_then(|decoder| read_limited(decoder).map_err(|e| format!("zstd: {e}")))
    } else if is(LZ4_LEGACY) {
        lz4_legacy(&data[LZ4_LEGACY.len()..])
    } else {
        Err(format!("unknown packing, first bytes {:02x?}", &data[..data.len().min(6)]))
    }
}

fn read_limited(reader: impl Read) -> std::io::Result<Vec<u8>> {
    let mut out = Vec::new();
    if reader.take(LIMIT).read_to_end(&mut out)? as u64 == LIMIT {
        return Err(std::io::Error::other("more than a gibibyte unpacked"));
    }
    Ok(out)
}

/// The legacy framing: a 32-bit length and a block, repeatedly, with no end mark. A rest too short
/// for a block is the unpacked size that the kernel's build appends.
fn lz4_legacy(mut data: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let mut block = vec![0; LZ4_LEGACY_BLOCK];
    while let Some((length, rest)) = data.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        if length > rest.len() {
            break;
        }
        let size = lz4_flex::block::decompress_into(&rest[..length], &mut block)
            .map_err(|e| format!("lz4, after {} bytes: {e}", out.len()))?;
        out.extend_from_slice(&block[..size]);
        if out.len() as u64 > LIMIT {
            return Err("lz4: more than a gibibyte unpacked".into());
        }
        data = &rest[length..];
    }
    if out.is_empty() { Err("lz4: no block in it".into()) } else { Ok(out) }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;

    /// ELF magic and bytes that do not repeat too soon.
    pub(crate) fn sample(size: usize) -> Vec<u8> {
        let mut x = 1u32;
        let noise = std::iter::repeat_with(|| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if x & 0x8000 == 0 { (x >> 24) as u8 } else { 0 }
        });
        ELF.iter().copied().chain(noise).take(size).collect()
    }

    pub(crate) fn pack_lz4_legacy(data: &[u8]) -> Vec<u8> {
        let mut packed = LZ4_LEGACY.to_vec();
        for block in data.chunks(LZ4_LEGACY_BLOCK) {
            let block = lz4_flex::block::compress(block);
            packed.extend(u32::try_from(block.len()).unwrap().to_le_bytes());
            packed.extend(block);
        }
        packed
    }

    #[test]
    fn legacy_lz4_unpacks_with_either_ending() {
        let data = sample(LZ4_LEGACY_BLOCK + 12_345);
        let mut packed = pack_lz4_legacy(&data);
        assert!(unpack(&packed).unwrap() == data);
        packed.extend(u32::try_from(data.len()).unwrap().to_le_bytes());
        assert!(unpack(&packed).unwrap() == data);
    }

    #[test]
    fn gzip_xz_zstd_and_plain_elf_unpack() {
        let data = sample(100_000);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&data).unwrap();
        let mut xz = Vec::new();
        lzma_rs::xz_compress(&mut &data[..], &mut xz).unwrap();
        let zstd = ruzstd::encoding::compress_to_vec(
            &data[..],
            ruzstd::encoding::CompressionLevel::Fastest,
        );
        for packed in [gzip.finish().unwrap(), xz, zstd, data.clone()] {
            assert!(unpack(&packed).unwrap() == data);
        }
    }

    #[test]
    fn damaged_data_is_an_error() {
        let good = pack_lz4_legacy(&sample(50_000));
        for cut in [5, 9, 100, good.len() / 2] {
            assert!(unpack(&good[..cut]).is_err(), "cut at {cut}");
        }
        assert!(unpack(&[]).is_err());
        assert!(unpack(b"MZ something").is_err());
    }
}
