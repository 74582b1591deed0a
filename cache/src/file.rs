//! The file of one cached response.
//!
//! `SLCACHE1`, the length of the head (u32) and of the body (u64), CRC-32 of each, the head, the
//! body; numbers are little-endian. The head contains the whole key and the values of the fields
//! the response varies on, so that a file is verified against the key it is looked up by, and an
//! index can be built from the files alone. Lengths and checksums are checked before any content is
//! used.

use bytes::Bytes;
use wire::Fields;

use super::Content;

const MAGIC: &[u8; 8] = b"SLCACHE1";

/// Bytes before the head.
pub(super) const PRELUDE: usize = 8 + 4 + 8 + 4 + 4;

/// A longer head is damaged; response heads are limited to far less.
const MAX_HEAD: u32 = 4 << 20;

/// The head of a file.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) key: Box<[u8]>,
    pub(super) vary: Vec<Box<[u8]>>,
    pub(super) variant: Box<[u8]>,
    pub(super) stored_ms: u64,
    pub(super) expires_ms: u64,
    pub(super) age: u32,
    pub(super) status: u16,
    pub(super) fields: Fields,
}

/// Lengths and checksums of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Prelude {
    pub(super) head_len: u32,
    pub(super) body_len: u64,
    head_crc: u32,
    body_crc: u32,
}

impl Prelude {
    pub(super) fn read(bytes: &[u8; PRELUDE]) -> Option<Prelude> {
        let mut rest = &bytes[..];
        (take::<8>(&mut rest)? == *MAGIC).then_some(())?;
        let prelude = Prelude {
            head_len: u32::from_le_bytes(take(&mut rest)?),
            body_len: u64::from_le_bytes(take(&mut rest)?),
            head_crc: u32::from_le_bytes(take(&mut rest)?),
            body_crc: u32::from_le_bytes(take(&mut rest)?),
        };
        (prelude.head_len <= MAX_HEAD).then_some(prelude)
    }

    /// The length of a file with this prelude.
    pub(super) fn file_len(&self) -> u64 {
        (PRELUDE as u64 + u64::from(self.head_len)).saturating_add(self.body_len)
    }

    /// Reads the head; `None` if it is damaged.
    pub(super) fn head(&self, bytes: &[u8]) -> Option<Head> {
        if bytes.len() != self.head_len as usize || crc32fast::hash(bytes) != self.head_crc {
            return None;
        }
        decode(bytes)
    }
}

/// Encodes prelude and head of a file.
pub(super) fn encode(head: &Head, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0; PRELUDE];
    put(&head.key, &mut out);
    out.extend_from_slice(&(head.vary.len() as u32).to_le_bytes());
    head.vary.iter().for_each(|name| put(name, &mut out));
    put(&head.variant, &mut out);
    out.extend_from_slice(&head.stored_ms.to_le_bytes());
    out.extend_from_slice(&head.expires_ms.to_le_bytes());
    out.extend_from_slice(&head.age.to_le_bytes());
    out.extend_from_slice(&head.status.to_le_bytes());
    for (name, value, _) in head.fields.iter() {
        put(name, &mut out);
        put(value, &mut out);
    }
    let head_crc = crc32fast::hash(&out[PRELUDE..]);
    let mut prelude = Vec::with_capacity(PRELUDE);
    prelude.extend_from_slice(MAGIC);
    prelude.extend_from_slice(&((out.len() - PRELUDE) as u32).to_le_bytes());
    prelude.extend_from_slice(&(body.len() as u64).to_le_bytes());
    prelude.extend_from_slice(&head_crc.to_le_bytes());
    prelude.extend_from_slice(&crc32fast::hash(body).to_le_bytes());
    out[..PRELUDE].copy_from_slice(&prelude);
    out
}

/// Parses a complete file; `None` if any of it is damaged. The body is not copied.
pub(super) fn decode_whole(file: Bytes) -> Option<(Head, Content)> {
    let prelude = Prelude::read(file.first_chunk()?)?;
    if prelude.file_len() != file.len() as u64 {
        return None;
    }
    let body_at = PRELUDE + prelude.head_len as usize;
    let head = prelude.head(&file[PRELUDE..body_at])?;
    let body = file.slice(body_at..);
    if crc32fast::hash(&body) != prelude.body_crc {
        return None;
    }
    let content = Content { status: head.status, fields: head.fields.clone(), body };
    Some((head, content))
}

fn decode(bytes: &[u8]) -> Option<Head> {
    let mut rest = bytes;
    let key = text(&mut rest)?.into();
    let names = u32::from_le_bytes(take(&mut rest)?);
    let mut vary = Vec::new();
    for _ in 0..names {
        vary.push(text(&mut rest)?.into());
    }
    let mut head = Head {
        key,
        vary,
        variant: text(&mut rest)?.into(),
        stored_ms: u64::from_le_bytes(take(&mut rest)?),
        expires_ms: u64::from_le_bytes(take(&mut rest)?),
        age: u32::from_le_bytes(take(&mut rest)?),
        status: u16::from_le_bytes(take(&mut rest)?),
        fields: Fields::new(),
    };
    while !rest.is_empty() {
        let name = text(&mut rest)?;
        head.fields.append(name, text(&mut rest)?).ok()?;
    }
    Some(head)
}

fn put(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn text<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = u32::from_le_bytes(take(rest)?) as usize;
    let (text, after) = rest.split_at_checked(len)?;
    *rest = after;
    Some(text)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (bytes, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Vec<u8> {
        let mut fields = Fields::new();
        fields.append(b"Content-Type", b"text/plain").unwrap();
        fields.append(b"X-Empty", b"").unwrap();
        let head = Head {
            key: (*b"key").into(),
            vary: vec![(*b"accept").into()],
            variant: (*b"\0v").into(),
            stored_ms: 1,
            expires_ms: 2,
            age: 3,
            status: 200,
            fields,
        };
        let mut file = encode(&head, b"body");
        file.extend_from_slice(b"body");
        file
    }

    #[test]
    fn files_round_trip() {
        let (head, content) = decode_whole(file().into()).unwrap();
        assert_eq!((&*head.key, &*head.vary[0], &*head.variant), (&b"key"[..], &b"accept"[..], &b"\0v"[..]));
        assert_eq!((head.stored_ms, head.expires_ms, head.age, content.status), (1, 2, 3, 200));
        assert_eq!(content.body, "body");
        let fields: Vec<_> = content.fields.iter().map(|(name, value, _)| (name, value)).collect();
        assert_eq!(fields, [(&b"Content-Type"[..], &b"text/plain"[..]), (b"X-Empty", b"")]);
    }

    #[test]
    fn any_damaged_byte_or_truncation_is_detected() {
        let whole = file();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x20;
            assert!(decode_whole(damaged.into()).is_none(), "byte {at}");
            assert!(decode_whole(whole[..at].to_vec().into()).is_none(), "cut at {at}");
        }
        let mut longer = whole;
        longer.push(0);
        assert!(decode_whole(longer.into()).is_none());
    }
}
