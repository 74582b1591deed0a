//! Checksums of 32 bits: those of record batches (CRC-32C) and those of keys (CRC-32).

const CASTAGNOLI: [u32; 256] = table(0x82f6_3b78);
const IEEE: [u32; 256] = table(0xedb8_8320);

/// CRC-32C (RFC 3720 appendix B.4).
pub(super) fn castagnoli(bytes: &[u8]) -> u32 {
    of(&CASTAGNOLI, bytes)
}

/// CRC-32 of Ethernet and zlib.
pub(super) fn ieee(bytes: &[u8]) -> u32 {
    of(&IEEE, bytes)
}

fn of(table: &[u32; 256], bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| table[((crc ^ u32::from(*byte)) & 0xff) as usize] ^ (crc >> 8))
}

/// The table of a polynomial, whose bits are reversed.
const fn table(polynomial: u32) -> [u32; 256] {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let mut crc = at as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ polynomial } else { crc >> 1 };
            bit += 1;
        }
        table[at] = crc;
        at += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check values of both.
    #[test]
    fn checksums_are_those_of_the_standards() {
        assert_eq!((castagnoli(b"123456789"), ieee(b"123456789")), (0xe306_9283, 0xcbf4_3926));
        assert_eq!(castagnoli(&[0; 32]), 0x8a91_36aa);
    }
}
