//! hot path
//!
//! Fields between the `h2` crate's form and ours.

use http::{HeaderMap, HeaderName, HeaderValue};
use wire::fields::BadField;
use wire::h1::chunked::may_be_trailer;
use wire::{Fields, Name};

/// Adds a field; one that cannot stand in a head is left out.
#[inline]
pub(crate) fn add(map: &mut HeaderMap, name: &[u8], value: &[u8]) {
    if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
        // More than a map can hold is more than any head may have.
        let _ = map.try_append(name, value);
    }
}

/// Fields that concern one connection, or that HTTP/2 says in another way (RFC 9113 section 8.2.2).
#[inline]
pub(crate) fn is_of_connection(id: Name) -> bool {
    matches!(
        id,
        Name::Connection
            | Name::KeepAlive
            | Name::ProxyConnection
            | Name::TransferEncoding
            | Name::Upgrade
            | Name::Te
            | Name::Host
            | Name::Http2Settings
    )
}

/// Trailers, as they go out.
pub(crate) fn to_trailers(fields: &Fields) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(fields.len());
    for (name, value, _) in fields.iter() {
        if may_be_trailer(name) {
            add(&mut map, name, value);
        }
    }
    map
}

/// Takes trailers over, but for those that could be taken for framing, routing or authentication.
pub(crate) fn from_trailers(map: &HeaderMap, to: &mut Fields) -> Result<(), BadField> {
    for (name, value) in map {
        let name = name.as_str().as_bytes();
        if may_be_trailer(name) {
            to.append(name, value.as_bytes())?;
        }
    }
    Ok(())
}

/// What a list of fields counts for, as a limit on a head counts them.
pub(crate) fn size(map: &HeaderMap) -> usize {
    map.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}
