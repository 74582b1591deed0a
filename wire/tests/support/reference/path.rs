//! Normal forms of paths.

/// One byte of a path and whether it came percent-encoded.
type Piece = (u8, bool);

/// Decoded and encoded normal form under the default rules.
pub fn normal_path(raw: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut rest = raw;
    while let Some(&byte) = rest.first() {
        if byte == b'%' {
            let digits = std::str::from_utf8(rest.get(1..3)?).ok()?;
            if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
                return None;
            }
            pieces.push((u8::from_str_radix(digits, 16).ok()?, true));
            rest = &rest[3..];
        } else {
            if byte <= 32 || byte == 127 || b"#?".contains(&byte) {
                return None;
            }
            pieces.push((byte, false));
            rest = &rest[1..];
        }
    }
    if pieces.first() != Some(&(b'/', false)) {
        return None;
    }
    if pieces.iter().any(|&(b, _)| b < 32 || b == 127 || b == b'\\') {
        return None;
    }
    let mut segments: Vec<&[Piece]> = pieces[1..].split(|&piece| piece == (b'/', false)).collect();
    // The last segment decides whether the path ends with a slash.
    let last = segments.pop()?;
    let mut stack: Vec<&[Piece]> = Vec::new();
    let mut place = |segment| -> Option<bool> {
        match plain(segment).as_slice() {
            b"" | b"." => Some(false),
            b".." => stack.pop().map(|_| false),
            _ if is_doubtful(segment) => None,
            _ => {
                stack.push(segment);
                Some(true)
            }
        }
    };
    for segment in segments {
        place(segment)?;
    }
    let named = place(last)?;
    let (mut decoded, mut encoded) = (Vec::new(), Vec::new());
    for segment in &stack {
        decoded.push(b'/');
        encoded.push(b'/');
        for &(byte, coded) in *segment {
            let unreserved = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
            let reserved = b"!$&'()*+,;=:@[]".contains(&byte);
            match coded && b"/%".contains(&byte) {
                true => decoded.extend(percent(byte)),
                false => decoded.push(byte),
            }
            match unreserved || reserved && !coded {
                true => encoded.push(byte),
                false => encoded.extend(percent(byte)),
            }
        }
    }
    if !named {
        decoded.push(b'/');
        encoded.push(b'/');
    }
    Some((decoded, encoded))
}

/// The segment's bytes; encoded slashes stay encoded.
fn plain(segment: &[Piece]) -> Vec<u8> {
    segment
        .iter()
        .flat_map(|&(b, coded)| if coded && b == b'/' { b"%2F".to_vec() } else { vec![b] })
        .collect()
}

/// Whether another server, one that cuts parameters or decodes slashes first, would see dots here.
fn is_doubtful(segment: &[Piece]) -> bool {
    let bytes: Vec<u8> = segment.iter().map(|&(b, _)| b).collect();
    bytes.split(|&b| b == b'/').any(|part| {
        let name = part.split(|&b| b == b';').next().unwrap_or_default();
        name == b"." || name == b".."
    })
}

pub(super) fn percent(byte: u8) -> Vec<u8> {
    format!("%{byte:02X}").into_bytes()
}
