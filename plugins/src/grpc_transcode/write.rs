//! Values as the wire format of protobuf has them.

use sdk::protobuf::varint;

use super::types::{Field, Kind, Types, Wire};

/// A value of a request, before it has the type of its field.
#[derive(Debug, Clone, Copy)]
pub(super) enum Given<'a> {
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(&'a str),
}

pub(super) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

pub(super) fn bytes(bytes: &[u8], out: &mut Vec<u8>) {
    varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

pub(super) fn tag(number: u32, wire: Wire, out: &mut Vec<u8>) {
    varint(u64::from(number) << 3 | wire as u64, out);
}

/// Writes what `make` writes with its length before it. The bytes are moved once, by the bytes of the length.
pub(super) fn with_length<E>(
    out: &mut Vec<u8>,
    make: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let start = out.len();
    make(out)?;
    let length = out.len() - start;
    varint(length as u64, out);
    out[start..].rotate_right(out_length(length));
    Ok(())
}

/// How many bytes a length takes.
fn out_length(length: usize) -> usize {
    (usize::BITS - (length | 1).leading_zeros()).div_ceil(7) as usize
}

/// Writes a field with one value; its tag is left out for an element of a packed list.
///
/// # Errors
/// The values that the field takes instead.
pub(super) fn field(
    types: &Types,
    field: &Field,
    given: Given<'_>,
    packed: bool,
    out: &mut Vec<u8>,
) -> Result<(), &'static str> {
    if !packed {
        tag(field.number, field.kind.wire(), out);
    }
    scalar(types, field.kind, given, out)
}

/// Writes a value.
///
/// # Errors
/// The values that the kind takes instead.
pub(super) fn scalar(
    types: &Types,
    kind: Kind,
    given: Given<'_>,
    out: &mut Vec<u8>,
) -> Result<(), &'static str> {
    const INTEGER: &str = "an integer that its type can hold";
    let integer = given.integer();
    let within = |least: i128, most: i128| integer.filter(|n| (least..=most).contains(n)).ok_or(INTEGER);
    let int32 = || within(i32::MIN.into(), i32::MAX.into()).map(|n| n as i32);
    let int64 = || within(i64::MIN.into(), i64::MAX.into()).map(|n| n as i64);
    let uint32 = || within(0, u32::MAX.into()).map(|n| n as u32);
    let uint64 = || within(0, u64::MAX.into()).map(|n| n as u64);
    match kind {
        Kind::Int32 => varint(i64::from(int32()?).cast_unsigned(), out),
        Kind::Int64 => varint(int64()?.cast_unsigned(), out),
        Kind::Uint32 => varint(uint32()?.into(), out),
        Kind::Uint64 => varint(uint64()?, out),
        Kind::Sint32 => varint(zigzag(int32()?.into()), out),
        Kind::Sint64 => varint(zigzag(int64()?), out),
        Kind::Fixed32 => out.extend_from_slice(&uint32()?.to_le_bytes()),
        Kind::Fixed64 => out.extend_from_slice(&uint64()?.to_le_bytes()),
        Kind::Sfixed32 => out.extend_from_slice(&int32()?.to_le_bytes()),
        Kind::Sfixed64 => out.extend_from_slice(&int64()?.to_le_bytes()),
        Kind::Float => out.extend_from_slice(&(given.float().ok_or("a number")? as f32).to_le_bytes()),
        Kind::Double => out.extend_from_slice(&given.float().ok_or("a number")?.to_le_bytes()),
        Kind::Bool => varint(given.truth().ok_or("true or false")?.into(), out),
        Kind::String | Kind::Bytes => match given {
            Given::Text(text) => bytes(text.as_bytes(), out),
            _ => return Err("a text"),
        },
        Kind::Enum(index) => {
            let named = match given {
                Given::Text(name) => types.enums[index].number(name),
                _ => None,
            };
            let number = match named {
                Some(number) => number,
                None => int32().map_err(|_| "a name or a number of its enum")?,
            };
            varint(i64::from(number).cast_unsigned(), out);
        }
        Kind::Message(_) => return Err("an object"),
    }
    Ok(())
}

impl Given<'_> {
    fn integer(self) -> Option<i128> {
        match self {
            Given::Unsigned(n) => Some(n.into()),
            Given::Signed(n) => Some(n.into()),
            Given::Float(n) if n.fract() == 0.0 && n.abs() < 1e19 => Some(n as i128),
            Given::Text(text) => integer(text),
            Given::Float(_) | Given::Bool(_) => None,
        }
    }

    fn float(self) -> Option<f64> {
        match self {
            Given::Unsigned(n) => Some(n as f64),
            Given::Signed(n) => Some(n as f64),
            Given::Float(n) => Some(n),
            Given::Text(text) => text.parse().ok(),
            Given::Bool(_) => None,
        }
    }

    fn truth(self) -> Option<bool> {
        match self {
            Given::Bool(truth) => Some(truth),
            Given::Text("true" | "1") | Given::Unsigned(1) => Some(true),
            Given::Text("false" | "0") | Given::Unsigned(0) => Some(false),
            _ => None,
        }
    }
}

/// An integer in a text: decimal, or hexadecimal after `0x`, with signs and `#` before it, as APISIX writes large
/// ones.
fn integer(text: &str) -> Option<i128> {
    let digits = text.trim_start_matches(['#', '+', '-']);
    let signs = &text[..text.len() - digits.len()];
    let negative = signs.matches('-').count() % 2 == 1;
    let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let (digits, base) = hexadecimal.map_or((digits, 10), |digits| (digits, 16));
    if digits.is_empty() || digits.len() > 20 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let value = i128::from_str_radix(digits, base).ok()?;
    Some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_stands_before_what_it_counts() {
        for length in [0_usize, 1, 127, 128, 300, 16_383, 16_384, 70_000, 2_097_152] {
            let mut out = vec![9];
            with_length::<()>(&mut out, |out| {
                out.extend((0..length).map(|n| n as u8));
                Ok(())
            })
            .unwrap();
            let mut expected = vec![9];
            varint(length as u64, &mut expected);
            expected.extend((0..length).map(|n| n as u8));
            assert!(out == expected, "{length}");
        }
    }

    #[test]
    fn integers_in_texts_are_those_that_apisix_reads() {
        for (text, value) in [
            ("123", 123),
            ("#123", 123),
            ("-3", -3),
            ("0xabF", 0xabf),
            ("#-0x123abcdef", -0x1_23ab_cdef),
            ("-#0x10", -16),
            ("#9223372036854775807", i64::MAX.into()),
            ("-9223372036854775808", i64::MIN.into()),
            ("18446744073709551615", u64::MAX.into()),
        ] {
            assert_eq!(integer(text), Some(value), "{text}");
        }
        for text in
            ["", "#", "#a", "+aaa", "#-aa", "1.5", "1e3", "0x", " 1", "1 ", "0x-1", "123456789012345678901"]
        {
            assert_eq!(integer(text), None, "{text}");
        }
    }

    #[test]
    fn values_that_a_type_cannot_hold_are_refused() {
        let types = Types::default();
        let holds = |kind, given| scalar(&types, kind, given, &mut Vec::new()).is_ok();
        let (max, min) = (i64::from(i32::MAX), i64::from(i32::MIN));
        for kind in [Kind::Int32, Kind::Sint32, Kind::Sfixed32] {
            assert!(holds(kind, Given::Signed(max)) && holds(kind, Given::Signed(min)));
            assert!(!holds(kind, Given::Signed(max + 1)) && !holds(kind, Given::Signed(min - 1)));
        }
        for kind in [Kind::Uint32, Kind::Fixed32] {
            assert!(holds(kind, Given::Unsigned(u32::MAX.into())) && !holds(kind, Given::Unsigned(1 << 32)));
            assert!(!holds(kind, Given::Signed(-1)));
        }
        for kind in [Kind::Int64, Kind::Sint64, Kind::Sfixed64] {
            assert!(holds(kind, Given::Unsigned(1 << 62)) && !holds(kind, Given::Unsigned(1 << 63)));
        }
        assert!(holds(Kind::Uint64, Given::Unsigned(u64::MAX)) && !holds(Kind::Fixed64, Given::Float(1e20)));
        assert!(holds(Kind::Int32, Given::Float(2.0)) && !holds(Kind::Int32, Given::Float(2.5)));
        assert!(!holds(Kind::Int32, Given::Float(f64::NAN)) && !holds(Kind::Int32, Given::Bool(true)));
        assert!(holds(Kind::Double, Given::Text("-1e3")) && !holds(Kind::Float, Given::Text("x")));
        assert!(holds(Kind::Bool, Given::Text("false")) && !holds(Kind::Bool, Given::Text("no")));
        assert!(!holds(Kind::String, Given::Unsigned(1)) && !holds(Kind::Message(0), Given::Text("a")));
    }
}
