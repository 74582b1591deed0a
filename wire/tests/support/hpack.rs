//! Invariants of HPACK: any bytes as blocks, and any fields through an encoder and a decoder.

use wire::field_list::Bad;
use wire::fields::{check_name, check_value};
use wire::h2::hpack::{DEFAULT_TABLE_SIZE, Decoder, Encoder, Pseudo};
use wire::{List, Name};

const MOST_BYTES: usize = 4096;
const MOST_FIELDS: usize = 50;

/// Decoded blocks are within the bounds, in any state of the table, and a decoder with other limits
/// fails at the same blocks.
pub fn blocks(bytes: &[u8]) -> Result<(), String> {
    let Some((&cut, rest)) = bytes.split_first() else { return Ok(()) };
    let (mut decoder, mut other) = (Decoder::new(512), Decoder::new(512));
    let (mut list, mut none) = (List::default(), List::default());
    for block in rest.chunks(usize::from(cut).max(1)) {
        let done = decoder.decode(block, &mut list, MOST_BYTES, MOST_FIELDS);
        let length: usize = list.iter().map(|(name, value, _)| name.len() + value.len()).sum();
        if length > MOST_BYTES || list.len() > MOST_FIELDS || done.is_err() && !list.is_empty() {
            return Err(format!("{done:?} with {} fields of {length} bytes", list.len()));
        }
        let without = other.decode(block, &mut none, 0, 0);
        if (done == Err(Bad::Coding)) != (without == Err(Bad::Coding)) || !none.is_empty() {
            return Err(format!("{done:?}, but {without:?} without fields"));
        }
        if done == Err(Bad::Coding) {
            break;
        }
        if list.is_clean() && !list.iter().all(|(name, value, _)| is_clean(name, value)) {
            return Err(format!("{list:?} is not clean"));
        }
        if let Some((name, ..)) = list.iter().find(|(name, _, id)| Name::from_bytes(name) != *id) {
            return Err(format!("another id than that of {name:?}"));
        }
    }
    Ok(())
}

fn is_clean(name: &[u8], value: &[u8]) -> bool {
    let token = name.strip_prefix(b":").unwrap_or(name);
    check_name(token).is_ok()
        && check_value(value).is_ok()
        && token.to_ascii_lowercase() == token
        && value.trim_ascii() == value
}

/// One block: settings received before it, and its fields.
pub type Block = (Vec<u32>, Vec<(Vec<u8>, Vec<u8>)>);

/// Encoded blocks decode to the same fields, while the settings change.
pub fn round_trip(sent: &[Block]) -> Result<(), String> {
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new(DEFAULT_TABLE_SIZE));
    let (mut list, mut out) = (List::default(), Vec::new());
    for (settings, fields) in sent {
        settings.iter().for_each(|setting| encoder.set_max_table_size(*setting));
        out.clear();
        encoder.begin(&mut out);
        for (name, value) in fields {
            put(&mut encoder, name, value, &mut out);
        }
        decoder.decode(&out, &mut list, 1 << 20, 1000).map_err(|bad| format!("{bad:?}: {out:x?}"))?;
        let received = list.iter().map(|(name, value, _)| (name.to_vec(), value.to_vec()));
        if !received.eq(fields.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone()))) {
            return Err(format!("{fields:?} became {list:?}"));
        }
    }
    Ok(())
}

fn put(encoder: &mut Encoder, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let pseudo = match name {
        b":authority" => Pseudo::Authority,
        b":method" => Pseudo::Method,
        b":path" => Pseudo::Path,
        b":protocol" => Pseudo::Protocol,
        b":scheme" => Pseudo::Scheme,
        _ => return encoder.put(Name::from_bytes(name), name, value, out),
    };
    encoder.put_pseudo(pseudo, value, out);
}
