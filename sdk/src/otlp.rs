//! Messages of OTLP 1.x (`opentelemetry/proto/trace/v1/trace.proto`), written field by field: a span is encoded
//! once, where its values are, and put into a request as it is.

/// Numbers of fields of the messages used here.
pub mod field {
    pub const REQUEST_RESOURCE_SPANS: u32 = 1;
    pub const RESOURCE_SPANS_RESOURCE: u32 = 1;
    pub const RESOURCE_SPANS_SCOPE_SPANS: u32 = 2;
    pub const RESOURCE_ATTRIBUTES: u32 = 1;
    pub const SCOPE_SPANS_SCOPE: u32 = 1;
    pub const SCOPE_SPANS_SPANS: u32 = 2;
    pub const SCOPE_NAME: u32 = 1;
    pub const SCOPE_VERSION: u32 = 2;
    pub const SPAN_TRACE_ID: u32 = 1;
    pub const SPAN_ID: u32 = 2;
    pub const SPAN_TRACE_STATE: u32 = 3;
    pub const SPAN_PARENT: u32 = 4;
    pub const SPAN_NAME: u32 = 5;
    pub const SPAN_KIND: u32 = 6;
    pub const SPAN_START: u32 = 7;
    pub const SPAN_END: u32 = 8;
    pub const SPAN_ATTRIBUTES: u32 = 9;
    pub const SPAN_STATUS: u32 = 15;
    pub const STATUS_MESSAGE: u32 = 2;
    pub const STATUS_CODE: u32 = 3;
}

/// `SPAN_KIND_SERVER`.
pub const KIND_SERVER: u64 = 2;

/// `STATUS_CODE_ERROR`.
pub const STATUS_ERROR: u64 = 2;

/// The value of an attribute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Any<'a> {
    /// Invalid UTF-8 becomes U+FFFD.
    Text(&'a [u8]),
    Bool(bool),
    Int(i64),
    Double(f64),
}

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

/// Appends an attribute: a `KeyValue` in this field.
pub fn attribute(field: u32, key: &[u8], value: Any<'_>, out: &mut Vec<u8>) {
    message(field, out, |out| {
        text(1, key, out);
        message(2, out, |out| match value {
            Any::Text(value) => text(1, value, out),
            Any::Bool(value) => number(2, value.into(), out),
            // Negative numbers are those of two's complement.
            Any::Int(value) => number(3, value.cast_unsigned(), out),
            Any::Double(value) => fixed64(4, value.to_bits(), out),
        });
    });
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_protocol() {
        let mut out = Vec::new();
        number(field::SPAN_KIND, KIND_SERVER, &mut out);
        fixed64(field::SPAN_START, 1, &mut out);
        assert_eq!(out, [0x30, 2, 0x39, 1, 0, 0, 0, 0, 0, 0, 0]);
        out.clear();
        attribute(field::SPAN_ATTRIBUTES, b"k", Any::Text(b"v\xff"), &mut out);
        assert_eq!(out, [0x4a, 11, 0x0a, 1, b'k', 0x12, 6, 0x0a, 4, b'v', 0xef, 0xbf, 0xbd]);
        out.clear();
        attribute(1, b"i", Any::Int(-1), &mut out);
        assert_eq!(out[..7], [0x0a, 16, 0x0a, 1, b'i', 0x12, 11]);
        assert_eq!(out[7..], [0x18, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]);
        out.clear();
        attribute(1, b"b", Any::Bool(true), &mut out);
        assert_eq!(out, [0x0a, 7, 0x0a, 1, b'b', 0x12, 2, 0x10, 1]);
        out.clear();
        message(field::SPAN_STATUS, &mut out, |out| out.extend_from_slice(&[7; 200]));
        assert_eq!((&out[..3], out.len()), (&[0x7a, 0xc8, 1][..], 203));
    }
}
