//! Invariants of the parsers of first messages, for any bytes.

use wire::{client_hello, proxy_protocol};

/// The verdict comes with the same byte in any segmentation, and never changes with more bytes.
fn is_steady<T: PartialEq + std::fmt::Debug>(
    bytes: &[u8],
    parse: impl Fn(&[u8]) -> Option<T>,
) -> Result<(), String> {
    let whole = parse(bytes);
    let mut decided = None;
    for end in 0..=bytes.len() {
        let part = parse(&bytes[..end]);
        match (&decided, part) {
            (None, part) => decided = part,
            (Some(before), Some(part)) if *before == part => {}
            (Some(before), part) => return Err(format!("{before:?} became {part:?} after {end} bytes")),
        }
    }
    if decided == whole { Ok(()) } else { Err(format!("{decided:?} is not {whole:?}")) }
}

pub fn proxy_protocol(bytes: &[u8]) -> Result<(), String> {
    let bytes = &bytes[..bytes.len().min(600)];
    is_steady(bytes, |bytes| proxy_protocol::parse(bytes).transpose())?;
    let Ok(Some(header)) = proxy_protocol::parse(bytes) else { return Ok(()) };
    if header.len > bytes.len() || header.len > proxy_protocol::MOST {
        return Err(format!("{header:?} of {} bytes", bytes.len()));
    }
    // A parsed header can be written again, in either version.
    for write in [proxy_protocol::write_v1, proxy_protocol::write_v2] {
        let mut out = Vec::new();
        write(header.ends.as_ref(), &mut out);
        let again = proxy_protocol::parse(&out).map_err(|refusal| refusal.to_string())?;
        let ips = |header: proxy_protocol::Header| {
            header
                .ends
                .map(|ends| [ends.source, ends.destination].map(|end| (end.ip().to_canonical(), end.port())))
        };
        if again.map(ips) != Some(ips(header)) || again.map(|again| again.len) != Some(out.len()) {
            return Err(format!("{header:?} became {again:?}"));
        }
    }
    Ok(())
}

pub fn client_hello(bytes: &[u8]) -> Result<(), String> {
    let bytes = &bytes[..bytes.len().min(2000)];
    is_steady(bytes, |bytes| client_hello::parse(bytes).transpose())?;
    if let Ok(Some(client_hello::Hello::Server(Some(name)))) = client_hello::parse(bytes)
        && (name.is_empty() || name.len() > 255 || name.bytes().any(|byte| byte.is_ascii_uppercase()))
    {
        return Err(format!("{name:?} is no name"));
    }
    Ok(())
}
