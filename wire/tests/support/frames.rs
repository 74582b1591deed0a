//! Invariants of the parsers of HTTP/3 fields, HTTP/3 integers and WebSocket frames, for any bytes.

use wire::h3::{self, qpack};
use wire::{List, websocket};

const MOST_BYTES: usize = 4096;
const MOST_FIELDS: usize = 50;

/// A decoded section is within its bounds, and decodes to the same fields after encoding it again.
pub fn fields(coded: &[u8]) -> Result<(), String> {
    let mut list = List::default();
    if qpack::decode(coded, &mut list, MOST_BYTES, MOST_FIELDS).is_err() {
        return Ok(());
    }
    let bytes: usize = list.iter().map(|(name, value, _)| name.len() + value.len()).sum();
    let count = list.iter().count();
    if bytes > MOST_BYTES || count > MOST_FIELDS {
        return Err(format!("{count} fields of {bytes} bytes"));
    }
    let mut again = Vec::new();
    qpack::begin(&mut again);
    list.iter().for_each(|(name, value, id)| qpack::put(id, name, value, &mut again));
    let mut second = List::default();
    qpack::decode(&again, &mut second, MOST_BYTES, MOST_FIELDS)
        .map_err(|bad| format!("{bad:?} when written again"))?;
    // Names are always encoded in lower case.
    let lower = list.iter().map(|(name, value, id)| (name.to_ascii_lowercase(), value, id));
    if lower.eq(second.iter().map(|(name, value, id)| (name.to_vec(), value, id))) {
        Ok(())
    } else {
        Err(format!("{list:?} became {second:?}"))
    }
}

/// An integer reports its length, and encoding it again does not make it longer.
pub fn numbers(bytes: &[u8]) -> Result<(), String> {
    let Some((value, length)) = h3::number(bytes) else { return Ok(()) };
    let mut again = Vec::new();
    h3::put_number(value, &mut again);
    if length > bytes.len() || again.len() > length || h3::number(&again) != Some((value, again.len())) {
        return Err(format!("{value} of {length} bytes became {again:?}"));
    }
    match h3::frame_head(bytes) {
        Some((kind, _, head)) if kind != value || head > bytes.len().min(h3::LONGEST_HEAD) => {
            Err(format!("a frame {kind} with a head of {head} bytes"))
        }
        _ => Ok(()),
    }
}

/// Frames end at the same bytes in any segmentation.
pub fn websocket(bytes: &[u8], cut: usize) -> Result<(), String> {
    let state = |frames: &websocket::Frames| (frames.is_between(), frames.is_closed());
    let mut whole = websocket::Frames::default();
    whole.pass(bytes);
    let mut parts = websocket::Frames::default();
    bytes.chunks(cut.max(1)).for_each(|part| parts.pass(part));
    if state(&whole) != state(&parts) {
        return Err(format!("{:?} in one piece, {:?} in pieces of {cut}", state(&whole), state(&parts)));
    }
    // Processing frame by frame covers all of them.
    let (mut single, mut at) = (websocket::Frames::default(), 0);
    while at < bytes.len() {
        single.pass(&bytes[at..at + 1]);
        at += 1;
        at += single.pass_one(&bytes[at..]);
    }
    if state(&single) == state(&whole) { Ok(()) } else { Err(format!("{:?} frame by frame", state(&single))) }
}
