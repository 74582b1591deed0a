//! Sizes, times and addresses as nginx writes them.

use std::net::IpAddr;

/// `30`, `30s`, `1m30s`, `500ms` in seconds.
pub(super) fn seconds(text: &str) -> Option<f64> {
    if text.is_empty() {
        return None;
    }
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number: f64 = rest[..end].parse().ok()?;
        let tail = &rest[end..];
        let units = [
            ("ms", 0.001),
            ("s", 1.0),
            ("m", 60.0),
            ("h", 3600.0),
            ("d", 86_400.0),
            ("w", 604_800.0),
            ("M", 2_592_000.0),
            ("y", 31_536_000.0),
        ];
        let (unit, factor) = units.into_iter().find(|(unit, _)| tail.starts_with(unit)).unwrap_or(("", 1.0));
        if unit.is_empty() && !tail.is_empty() {
            return None;
        }
        total += number * factor;
        rest = tail[unit.len()..].trim_start();
    }
    (total <= 1e12).then_some(total)
}

/// `8k`, `10m`, `1g` in bytes.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 10),
        b'm' | b'M' => (&text[..text.len() - 1], 20),
        b'g' | b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// An address, or a network in the form that our resources take.
pub(super) fn network(text: &str) -> Option<String> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length.parse::<u8>().ok()?)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    match length {
        None => Some(address.to_string()),
        Some(length) if length <= longest => Some(format!("{address}/{length}")),
        Some(_) => None,
    }
}

/// A text for an id: letters, digits, `-`, `_`, `.`; at most 48 of them.
pub(super) fn id_part(text: &str) -> String {
    let mut id = String::new();
    for c in text.chars() {
        let c = if c.is_ascii_alphanumeric() || matches!(c, '_' | '.') { c } else { '-' };
        if c == '-' && (id.is_empty() || id.ends_with('-')) {
            continue;
        }
        id.push(c);
        if id.len() == 48 {
            break;
        }
    }
    id.trim_end_matches('-').to_owned()
}
