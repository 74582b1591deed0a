//! hot path
//!
//! Fields between the `h2` crate's form and ours.

use std::sync::LazyLock;

use http::{HeaderMap, HeaderName, HeaderValue};
use wire::fields::BadField;
use wire::h1::chunked::may_be_trailer;
use wire::{Fields, Name};

/// Adds a field; one that cannot stand in a head is left out.
#[inline]
pub(crate) fn add(map: &mut HeaderMap, id: Name, name: &[u8], value: &[u8]) {
    let name = match KNOWN.get(usize::from(id as u8)) {
        Some(Some(known)) => Some(known.clone()),
        _ => HeaderName::from_bytes(name).ok(),
    };
    if let (Some(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
        // More than a map can hold is more than any head may have.
        let _ = map.try_append(name, value);
    }
}

/// The library's form of each known name, by its number: a name of its own kind costs a look at every byte.
static KNOWN: LazyLock<Vec<Option<HeaderName>>> = LazyLock::new(|| {
    let mut known = vec![None; 256];
    for &(id, text) in Name::KNOWN {
        known[usize::from(id as u8)] = HeaderName::from_bytes(text.as_bytes()).ok();
    }
    known
});

/// Fields that concern one connection, or that HTTP/2 says in another way (RFC 9113 section 8.2.2).
#[inline]
pub(crate) fn is_of_connection(id: Name) -> bool {
    id.is_of_connection() || matches!(id, Name::Te | Name::Host | Name::Http2Settings)
}

/// Trailers, as they go out.
pub(crate) fn to_trailers(fields: &Fields) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(fields.len());
    for (name, value, id) in fields.iter() {
        if may_be_trailer(name) {
            add(&mut map, id, name, value);
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

/// Returns the size of a list of fields, as the limit on a head counts it.
pub(crate) fn size(map: &HeaderMap) -> usize {
    map.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_name_has_the_library_s_form() {
        for &(id, text) in Name::KNOWN {
            let mut map = HeaderMap::new();
            add(&mut map, id, text.as_bytes(), b"x");
            assert_eq!(map.get(text).map(HeaderValue::as_bytes), Some(&b"x"[..]), "{text}");
        }
        let mut map = HeaderMap::new();
        add(&mut map, Name::Other, b"X-Unheard-Of", b"x");
        add(&mut map, Name::Other, b"not a name", b"x");
        add(&mut map, Name::Date, b"Date", b"a\nb");
        assert_eq!(map.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-unheard-of"]);
    }

    #[test]
    fn what_concerns_one_connection_is_known_and_a_list_counts_as_its_lines() {
        for (id, text) in Name::KNOWN {
            let of_connection = [
                "connection",
                "keep-alive",
                "proxy-connection",
                "transfer-encoding",
                "upgrade",
                "te",
                "host",
                "http2-settings",
            ];
            let ours = of_connection.contains(&text.to_ascii_lowercase().as_str());
            assert_eq!(is_of_connection(*id), ours, "{text}");
        }
        let mut map = HeaderMap::new();
        assert_eq!(size(&map), 0);
        add(&mut map, Name::Other, b"x-a", b"bcde");
        add(&mut map, Name::Other, b"x-long", b"");
        assert_eq!(size(&map), "x-a: bcde\r\nx-long: \r\n".len());
    }
}
