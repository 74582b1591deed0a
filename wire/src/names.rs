//! Field names as small numbers, so that hot code compares numbers instead of text.

macro_rules! names {
    ($($variant:ident = $text:literal,)*) => {
        /// A field name this project treats by name somewhere; `Other` is every other name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        #[repr(u8)]
        pub enum Name { #[default] Other, $($variant,)* }

        impl Name {
            /// All known names with their usual spelling.
            pub const KNOWN: &'static [(Name, &'static str)] = &[$((Name::$variant, $text),)*];

            /// The usual spelling; empty for `Other`.
            pub fn as_str(self) -> &'static str {
                match self { Name::Other => "", $(Name::$variant => $text,)* }
            }
        }
    };
}

names! {
    Accept = "Accept",
    AcceptEncoding = "Accept-Encoding",
    AcceptLanguage = "Accept-Language",
    AcceptRanges = "Accept-Ranges",
    AccessControlAllowCredentials = "Access-Control-Allow-Credentials",
    AccessControlAllowHeaders = "Access-Control-Allow-Headers",
    AccessControlAllowMethods = "Access-Control-Allow-Methods",
    AccessControlAllowOrigin = "Access-Control-Allow-Origin",
    AccessControlExposeHeaders = "Access-Control-Expose-Headers",
    AccessControlMaxAge = "Access-Control-Max-Age",
    AccessControlRequestHeaders = "Access-Control-Request-Headers",
    AccessControlRequestMethod = "Access-Control-Request-Method",
    Age = "Age",
    AltSvc = "Alt-Svc",
    Apikey = "apikey",
    ApisixCacheStatus = "Apisix-Cache-Status",
    Authorization = "Authorization",
    CacheControl = "Cache-Control",
    Connection = "Connection",
    ContentEncoding = "Content-Encoding",
    ContentLength = "Content-Length",
    ContentRange = "Content-Range",
    ContentType = "Content-Type",
    Cookie = "Cookie",
    Date = "Date",
    Etag = "ETag",
    Expect = "Expect",
    Expires = "Expires",
    Forwarded = "Forwarded",
    Host = "Host",
    Http2Settings = "HTTP2-Settings",
    IfMatch = "If-Match",
    IfModifiedSince = "If-Modified-Since",
    IfNoneMatch = "If-None-Match",
    IfRange = "If-Range",
    IfUnmodifiedSince = "If-Unmodified-Since",
    KeepAlive = "Keep-Alive",
    LastModified = "Last-Modified",
    Location = "Location",
    Origin = "Origin",
    Pragma = "Pragma",
    Priority = "Priority",
    Proxy = "Proxy",
    ProxyAuthenticate = "Proxy-Authenticate",
    ProxyAuthorization = "Proxy-Authorization",
    ProxyConnection = "Proxy-Connection",
    Range = "Range",
    Referer = "Referer",
    RetryAfter = "Retry-After",
    SecWebsocketKey = "Sec-WebSocket-Key",
    Server = "Server",
    SetCookie = "Set-Cookie",
    SluiceHops = "Sluice-Hops",
    Te = "TE",
    Trailer = "Trailer",
    TransferEncoding = "Transfer-Encoding",
    Upgrade = "Upgrade",
    UserAgent = "User-Agent",
    Vary = "Vary",
    Via = "Via",
    WwwAuthenticate = "WWW-Authenticate",
    XAccelBuffering = "X-Accel-Buffering",
    XAccelCharset = "X-Accel-Charset",
    XAccelExpires = "X-Accel-Expires",
    XAccelLimitRate = "X-Accel-Limit-Rate",
    XAccelRedirect = "X-Accel-Redirect",
    XConsumerCustomId = "X-Consumer-Custom-ID",
    XConsumerUsername = "X-Consumer-Username",
    XCredentialIdentifier = "X-Credential-Identifier",
    XForwardedFor = "X-Forwarded-For",
    XForwardedHost = "X-Forwarded-Host",
    XForwardedPort = "X-Forwarded-Port",
    XForwardedProto = "X-Forwarded-Proto",
    XPad = "X-Pad",
    XRateLimitLimit = "X-RateLimit-Limit",
    XRateLimitRemaining = "X-RateLimit-Remaining",
    XRateLimitReset = "X-RateLimit-Reset",
    XRealIp = "X-Real-IP",
    XRequestId = "X-Request-Id",
}

/// A set of names that may also have names that were not inserted: there are fewer bits than names. Unknown names are
/// one member, [`Name::Other`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct NameSet(u64);

impl NameSet {
    #[inline(always)]
    pub(crate) const fn insert(&mut self, name: Name) {
        self.0 |= 1 << (name as u8 & 63);
    }

    #[inline(always)]
    pub(crate) const fn insert_all(&mut self, other: NameSet) {
        self.0 |= other.0;
    }

    #[inline(always)]
    pub(crate) const fn may_have(self, name: Name) -> bool {
        self.0 >> (name as u8 & 63) & 1 == 1
    }

    /// Whether the sets may have a member in common.
    #[inline(always)]
    pub(crate) const fn may_meet(self, other: NameSet) -> bool {
        self.0 & other.0 != 0
    }
}

/// The look-up key of a name: its first and last eight bytes in lower case, and its length. Up to
/// sixteen bytes that is the whole name; below eight bytes, both words are the name padded with
/// zeros.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Fingerprint {
    first: u64,
    last: u64,
    len: usize,
}

impl Fingerprint {
    #[inline(always)]
    fn of(bytes: &[u8]) -> Fingerprint {
        let Fingerprint { first, last, len } = Fingerprint::as_spelled(bytes);
        Fingerprint { first: lower(first), last: lower(last), len }
    }

    /// The same in the case of the name.
    #[inline(always)]
    fn as_spelled(bytes: &[u8]) -> Fingerprint {
        let len = bytes.len();
        match (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
            (Some(first), Some(last)) => {
                Fingerprint { first: u64::from_le_bytes(*first), last: u64::from_le_bytes(*last), len }
            }
            _ => {
                let short = short(bytes);
                Fingerprint { first: short, last: short, len }
            }
        }
    }

    /// The slot of a name; its case does not matter.
    #[inline(always)]
    const fn slot(self, factor: u64) -> usize {
        let mixed = (self.first | CASE) ^ (self.last | CASE).rotate_left(29) ^ self.len as u64;
        (mixed.wrapping_mul(factor) >> (64 - SLOT_BITS)) as usize
    }
}

/// Fewer than eight bytes as a word padded with zeros.
#[inline(always)]
pub(crate) fn short(bytes: &[u8]) -> u64 {
    match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        (Some(first), Some(last)) => {
            let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
            u64::from(first) | u64::from(last) << (8 * (bytes.len() - 4))
        }
        _ => bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)),
    }
}

/// The word with its letters in lower case; other bytes are unchanged.
#[inline(always)]
pub(crate) const fn lower(word: u64) -> u64 {
    const ONES: u64 = u64::from_le_bytes([0x01; 8]);
    const HIGH: u64 = ONES * 0x80;
    // No sum of two such bytes carries into the next one.
    let low = word & !HIGH;
    let from_a = low + ONES * (0x80 - b'A' as u64);
    let after_z = low + ONES * (0x80 - b'Z' as u64 - 1);
    word | ((from_a & !after_z & !word & HIGH) >> 2)
}

/// The bit in each byte in which a letter's cases differ.
const CASE: u64 = u64::from_le_bytes([0x20; 8]);

const SLOT_BITS: u32 = 9;

/// The known names in a table without collisions, built at compile time.
struct Table {
    factor: u64,
    /// Index in `Name::KNOWN` plus one; 0 is an empty slot.
    slots: [u8; 1 << SLOT_BITS],
    keys: [Fingerprint; Name::KNOWN.len()],
    /// For each key, the bits that are not of its letters' case.
    exact: [(u64, u64); Name::KNOWN.len()],
}

static TABLE: Table = build();

const fn build() -> Table {
    let mut keys = [Fingerprint { first: 0, last: 0, len: 0 }; Name::KNOWN.len()];
    let mut exact = [(0, 0); Name::KNOWN.len()];
    let mut at = 0;
    while at < keys.len() {
        let key = key_of_known(Name::KNOWN[at].1.as_bytes());
        keys[at] = key;
        exact[at] = (!letters(key.first), !letters(key.last));
        at += 1;
    }
    let mut factor = 0x9e37_79b9_7f4a_7c15u64;
    'search: loop {
        let mut slots = [0u8; 1 << SLOT_BITS];
        let mut at = 0;
        while at < keys.len() {
            let slot = keys[at].slot(factor);
            if slots[slot] != 0 {
                factor = factor.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(2);
                continue 'search;
            }
            slots[slot] = at as u8 + 1;
            at += 1;
        }
        return Table { factor, slots, keys, exact };
    }
}

const fn key_of_known(text: &[u8]) -> Fingerprint {
    let len = text.len();
    let (mut first, mut last) = (0u64, 0u64);
    let mut at = 0;
    while at < 8 && at < len {
        first |= (text[at].to_ascii_lowercase() as u64) << (8 * at);
        let from_end = if len < 8 { at } else { len - 8 + at };
        last |= (text[from_end].to_ascii_lowercase() as u64) << (8 * at);
        at += 1;
    }
    Fingerprint { first, last, len }
}

/// The case bit of each letter of a word in lower case.
const fn letters(word: u64) -> u64 {
    let (mut bytes, mut at) = (word.to_le_bytes(), 0);
    while at < bytes.len() {
        bytes[at] = if bytes[at].is_ascii_lowercase() { 0x20 } else { 0 };
        at += 1;
    }
    u64::from_le_bytes(bytes)
}

/// Whether two texts are equal, ignoring ASCII case.
#[inline]
pub(crate) fn same_in_any_case(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && Fingerprint::of(a) == Fingerprint::of(b) && (a.len() <= 16 || same_between(a, b))
}

/// Whether two texts with the same [`Fingerprint`] are equal: compares the bytes between the first
/// and the last eight, in words. The library's comparison takes a hundred times as long for such
/// short texts.
#[inline]
fn same_between(a: &[u8], b: &[u8]) -> bool {
    let (Some(a), Some(b)) = (a.get(8..), b.get(8..)) else { return true };
    let ((a, _), (b, _)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    a.iter().zip(b).all(|(a, b)| lower(u64::from_le_bytes(*a)) == lower(u64::from_le_bytes(*b)))
}

impl Name {
    /// Whether the field is connection-specific, which only HTTP/1 has (RFC 9113 section 8.2.2).
    #[inline]
    pub fn is_of_connection(self) -> bool {
        matches!(
            self,
            Name::Connection
                | Name::KeepAlive
                | Name::ProxyConnection
                | Name::TransferEncoding
                | Name::Upgrade
        )
    }

    /// The known name with this spelling in any case, else `Other`.
    #[inline]
    pub fn from_bytes(bytes: &[u8]) -> Name {
        let spelled = Fingerprint::as_spelled(bytes);
        let place = usize::from(TABLE.slots[spelled.slot(TABLE.factor)]);
        if place == 0 {
            return Name::Other;
        }
        let (key, exact) = (TABLE.keys[place - 1], TABLE.exact[place - 1]);
        let differs = (spelled.first ^ key.first) & exact.0 | (spelled.last ^ key.last) & exact.1;
        if differs != 0 || spelled.len != key.len {
            return Name::Other;
        }
        let (name, text) = Name::KNOWN[place - 1];
        // Up to sixteen bytes the fingerprint is the whole name.
        if key.len <= 16 || same_between(text.as_bytes(), bytes) { name } else { Name::Other }
    }

    /// As [`Name::from_bytes`], for a name in lower case at compile time.
    pub(crate) const fn of_lower(bytes: &[u8]) -> Name {
        let mut place = 0;
        while place < Name::KNOWN.len() {
            let (name, text) = Name::KNOWN[place];
            let text = text.as_bytes();
            let mut at = 0;
            while at < bytes.len() && at < text.len() && text[at].to_ascii_lowercase() == bytes[at] {
                at += 1;
            }
            if at == bytes.len() && at == text.len() {
                return name;
            }
            place += 1;
        }
        Name::Other
    }

    /// As [`Name::from_bytes`], reading `_` as `-`, like a CGI-like origin.
    pub fn from_lookalike(bytes: &[u8]) -> Name {
        let mut spelled = [0; LONGEST];
        let Some(spelled) = spelled.get_mut(..bytes.len()) else {
            return Name::Other;
        };
        for (to, &byte) in spelled.iter_mut().zip(bytes) {
            *to = if byte == b'_' { b'-' } else { byte };
        }
        Name::from_bytes(spelled)
    }
}

/// Length of the longest known name in bytes.
pub(crate) const LONGEST: usize = longest();

const fn longest() -> usize {
    let (mut longest, mut at) = (0, 0);
    while at < Name::KNOWN.len() {
        let length = Name::KNOWN[at].1.len();
        if length > longest {
            longest = length;
        }
        at += 1;
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_in_any_case() {
        for &(name, text) in Name::KNOWN {
            assert_eq!(Name::from_bytes(text.as_bytes()), name);
            assert_eq!(Name::from_bytes(text.to_ascii_uppercase().as_bytes()), name);
            assert_eq!(Name::from_bytes(text.to_ascii_lowercase().as_bytes()), name);
        }
        assert_eq!(Name::from_bytes(b""), Name::Other);
        assert_eq!(Name::from_bytes(b"X-Unheard-Of"), Name::Other);
        assert_eq!(Name::from_bytes(&[b'a'; 500]), Name::Other);
    }

    #[test]
    fn texts_are_compared_in_any_case() {
        for len in 0..40 {
            let text: Vec<u8> = (0..len).map(|at| b'A' + at % 26).collect();
            assert!(same_in_any_case(&text, &text.to_ascii_lowercase()), "{len}");
            assert!(!same_in_any_case(&text, &[&text[..], b"x"].concat()), "{len}");
            for at in 0..text.len() {
                for byte in [b'[', b'@', 0, 0xff, b'0'] {
                    let mut other = text.clone();
                    other[at] = byte;
                    assert!(!same_in_any_case(&text, &other), "{len} {at} {byte}");
                }
            }
        }
    }

    #[test]
    fn variants_match_their_spelling() {
        for &(name, text) in Name::KNOWN {
            assert!(
                format!("{name:?}").eq_ignore_ascii_case(&text.replace('-', "")),
                "{name:?} is not {text}"
            );
        }
    }

    #[test]
    fn an_underscore_is_read_as_a_hyphen() {
        for &(name, text) in Name::KNOWN {
            assert_eq!(Name::from_lookalike(text.replace('-', "_").as_bytes()), name);
            assert_eq!(Name::from_lookalike(text.as_bytes()), name);
        }
        assert_eq!(Name::from_lookalike(b"x-forwarded_FOR"), Name::XForwardedFor);
        assert_eq!(Name::from_lookalike(&[b'_'; 500]), Name::Other);
    }

    #[test]
    fn a_changed_byte_gives_another_name() {
        for &(name, text) in Name::KNOWN {
            for at in 0..text.len() {
                for byte in 0..=255u8 {
                    let mut changed = text.as_bytes().to_vec();
                    changed[at] = byte;
                    let same = changed.eq_ignore_ascii_case(text.as_bytes());
                    assert_eq!(Name::from_bytes(&changed) == name, same, "{text} with {byte:#x} at {at}");
                }
            }
            assert_ne!(Name::from_bytes(&text.as_bytes()[1..]), name);
            assert_ne!(Name::from_bytes(format!("{text}\0").as_bytes()), name);
        }
    }
}
