//! Fields in the wire format of Protocol Buffers, appended to a message.

/// Appends a field of a number.
pub fn number(field: u32, value: u64, out: &mut Vec<u8>) {
    varint(u64::from(field << 3), out);
    varint(value, out);
}

/// Appends a field of eight bytes: times, and numbers with fractions.
pub fn fixed64(field: u32, value: u64, out: &mut Vec<u8>) {
    varint(u64::from(field << 3 | 1), out);
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a field of four bytes: flags.
pub fn fixed32(field: u32, value: u32, out: &mut Vec<u8>) {
    varint(u64::from(field << 3 | 5), out);
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a field of bytes, or an encoded message.
pub fn bytes(field: u32, value: &[u8], out: &mut Vec<u8>) {
    varint(u64::from(field << 3 | 2), out);
    varint(value.len() as u64, out);
    out.extend_from_slice(value);
}

/// Appends a field of text. Invalid UTF-8 becomes U+FFFD.
pub fn text(field: u32, value: &[u8], out: &mut Vec<u8>) {
    match std::str::from_utf8(value) {
        Ok(_) => bytes(field, value, out),
        Err(_) => bytes(field, String::from_utf8_lossy(value).as_bytes(), out),
    }
}

/// Appends a message that `write` writes.
pub fn message(field: u32, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    varint(u64::from(field << 3 | 2), out);
    let start = out.len();
    write(out);
    let mut length = Vec::with_capacity(10);
    varint((out.len() - start) as u64, &mut length);
    out.splice(start..start, length);
}

/// Appends a number of one to ten bytes.
pub fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
