//! Field names as small numbers, so that hot code compares bytes, not text.

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
    Te = "TE",
    Trailer = "Trailer",
    TransferEncoding = "Transfer-Encoding",
    Upgrade = "Upgrade",
    UserAgent = "User-Agent",
    Vary = "Vary",
    Via = "Via",
    WwwAuthenticate = "WWW-Authenticate",
    XConsumerCustomId = "X-Consumer-Custom-ID",
    XConsumerUsername = "X-Consumer-Username",
    XCredentialIdentifier = "X-Credential-Identifier",
    XForwardedFor = "X-Forwarded-For",
    XForwardedHost = "X-Forwarded-Host",
    XForwardedPort = "X-Forwarded-Port",
    XForwardedProto = "X-Forwarded-Proto",
    XRealIp = "X-Real-IP",
    XRequestId = "X-Request-Id",
}

/// Buckets of known names by length, built at compile time: a look-up tries only
/// the few names of the right length.
const MAX_LEN: usize = 33;

const fn bucket_starts() -> [u8; MAX_LEN + 1] {
    let mut starts = [0u8; MAX_LEN + 1];
    let mut len = 0;
    let mut total = 0u8;
    while len <= MAX_LEN {
        starts[len] = total;
        let mut i = 0;
        while i < Name::KNOWN.len() {
            if Name::KNOWN[i].1.len() == len {
                total += 1;
            }
            i += 1;
        }
        len += 1;
    }
    starts
}

const fn by_length() -> [u8; Name::KNOWN.len()] {
    let mut order = [0u8; Name::KNOWN.len()];
    let mut filled = 0;
    let mut len = 0;
    while len <= MAX_LEN {
        let mut i = 0;
        while i < Name::KNOWN.len() {
            if Name::KNOWN[i].1.len() == len {
                order[filled] = i as u8;
                filled += 1;
            }
            i += 1;
        }
        len += 1;
    }
    order
}

static STARTS: [u8; MAX_LEN + 1] = bucket_starts();
static ORDER: [u8; Name::KNOWN.len()] = by_length();

impl Name {
    /// The known name with this spelling in any case, else `Other`.
    #[inline]
    pub fn from_bytes(bytes: &[u8]) -> Name {
        let len = bytes.len();
        if len >= MAX_LEN {
            return Name::Other;
        }
        let bucket = STARTS[len] as usize..STARTS[len + 1] as usize;
        for &index in &ORDER[bucket] {
            let (name, text) = Name::KNOWN[index as usize];
            if text.as_bytes().eq_ignore_ascii_case(bytes) {
                return name;
            }
        }
        Name::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_in_any_case() {
        for &(name, text) in Name::KNOWN {
            assert!(text.len() < MAX_LEN);
            assert_eq!(Name::from_bytes(text.as_bytes()), name);
            assert_eq!(Name::from_bytes(text.to_ascii_uppercase().as_bytes()), name);
            assert_eq!(Name::from_bytes(text.to_ascii_lowercase().as_bytes()), name);
        }
        assert_eq!(Name::from_bytes(b""), Name::Other);
        assert_eq!(Name::from_bytes(b"X-Unheard-Of"), Name::Other);
        assert_eq!(Name::from_bytes(&[b'a'; 500]), Name::Other);
    }
}
