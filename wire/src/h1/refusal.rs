//! Reasons for refusing a peer's bytes.

/// The reason a message was refused. Afterwards nothing more is read from the connection as HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The request line is not `METHOD SP TARGET SP VERSION CRLF` (RFC 9112 section 3).
    RequestLine,
    /// The method is empty, not a token (RFC 9110 section 9.1) or too long.
    Method,
    /// `:protocol` is not `websocket`, or comes without CONNECT (RFC 8441 section 4).
    Protocol,
    /// The target contains a forbidden byte, or is in none of the four forms allowed for its method
    /// (RFC 9112 section 3.2).
    Target,
    /// The target is longer than the limit.
    TargetTooLong,
    /// A `%` in the path is not followed by two hexadecimal digits (RFC 3986 section 2.1).
    PercentEncoding,
    /// The path has `..` above its root.
    AboveRoot,
    /// The path contains, encoded or not, a byte that the path rules refuse (control characters,
    /// and `\`, `%2F` and `;` if configured), or a dot segment that only some servers recognise.
    BadPath,
    /// Not an HTTP version (RFC 9112 section 2.3).
    Version,
    /// A well-formed version, but neither HTTP/1.0 nor HTTP/1.1.
    UnsupportedVersion,
    /// The status line is not `VERSION SP 3DIGIT [SP REASON] CRLF` (RFC 9112 section 4).
    StatusLine,
    /// The status is below 100.
    Status,
    /// LF without CR before it (RFC 9112 section 2.2).
    BareLf,
    /// CR without LF after it (RFC 9112 section 2.2).
    BareCr,
    /// A NUL byte in a field value (RFC 9110 section 5.5).
    Nul,
    /// Another control character in a field value (RFC 9110 section 5.5).
    Control,
    /// White space where a field name should begin: obs-fold, or white space before the
    /// first field (RFC 9112 sections 2.2 and 5.2).
    LeadingSpace,
    /// White space between field name and colon (RFC 9112 section 5.1).
    SpaceBeforeColon,
    /// The field name is empty or not a token, or the line has no colon (RFC 9110 section 5.1).
    FieldName,
    /// A name that becomes a framing or hop-by-hop field if `_` is read as `-`.
    DisguisedName,
    /// A name with an underscore, where [`Underscores::Refuse`](super::Underscores) is set.
    Underscore,
    /// More fields than the limit.
    TooManyFields,
    /// The head is longer than the limit.
    HeadTooLarge,
    /// Content-Length is not one decimal number below 2^63 (RFC 9110 section 8.6).
    ContentLength,
    /// Several Content-Length fields.
    RepeatedContentLength,
    /// Content-Length and Transfer-Encoding together (RFC 9112 section 6.1).
    LengthAndCoding,
    /// Transfer-Encoding is not exactly `chunked` (RFC 9112 section 6.1).
    TransferEncoding,
    /// Transfer-Encoding in HTTP/1.0 (RFC 9112 section 6.1).
    CodingInHttp10,
    /// HTTP/1.1 without Host (RFC 9112 section 3.2).
    NoHost,
    /// Several Host fields (RFC 9112 section 3.2).
    RepeatedHost,
    /// Host, or the target's authority, is not a name, IPv4 address or [IPv6 address]
    /// with an optional port (RFC 9110 section 7.2).
    Host,
    /// Expect is not `100-continue` (RFC 9110 section 10.1.1).
    Expectation,
    /// Connection names more fields than a head may have.
    Connection,
    /// The chunk size is not hexadecimal digits, or is too large (RFC 9112 section 7.1).
    ChunkSize,
    /// The chunk size line is longer than the limit.
    ChunkLine,
    /// A chunk extension is malformed, or the body's extensions exceed the limit
    /// (RFC 9112 section 7.1.1).
    ChunkExtension,
    /// Chunk data is not followed by CRLF (RFC 9112 section 7.1).
    ChunkEnd,
    /// The trailer section is longer than the limit.
    TrailersTooLarge,
}

impl Refusal {
    /// The response status for a refused request. A refused response from an origin always becomes
    /// a 502.
    pub const fn status(self) -> u16 {
        match self {
            Refusal::TargetTooLong => 414,
            Refusal::Expectation => 417,
            Refusal::TooManyFields | Refusal::HeadTooLarge | Refusal::TrailersTooLarge => 431,
            Refusal::UnsupportedVersion => 505,
            _ => 400,
        }
    }

    /// A description of the error and the expected form, in one sentence without a full stop.
    pub const fn as_str(self) -> &'static str {
        match self {
            Refusal::RequestLine => {
                "the request line must be a method, a target and a version with one space between"
            }
            Refusal::Method => "the method must be a token of at most 64 bytes",
            Refusal::Protocol => "`:protocol` must be `websocket`, with the method CONNECT",
            Refusal::Target => "the request target holds a byte or has a form that is not allowed",
            Refusal::TargetTooLong => "the request target is too long",
            Refusal::PercentEncoding => "a % in the path must be followed by two hexadecimal digits",
            Refusal::AboveRoot => "the path leads above its root",
            Refusal::BadPath => {
                "the path contains a refused character, plain or percent-encoded, such as a backslash or a control \
                 character; see the plugin path-characters"
            }
            Refusal::Version => "the version must be HTTP/1.1 or HTTP/1.0",
            Refusal::UnsupportedVersion => "only HTTP/1.1 and HTTP/1.0 are supported",
            Refusal::StatusLine => "the status line must be a version, three digits and a reason",
            Refusal::Status => "the status must be 100 or more",
            Refusal::BareLf => "a line ends with LF alone, not CRLF",
            Refusal::BareCr => "CR without LF after it",
            Refusal::Nul => "a NUL byte in a field value",
            Refusal::Control => "a control character in a field value",
            Refusal::LeadingSpace => "a field line begins with white space",
            Refusal::SpaceBeforeColon => "white space between a field name and its colon",
            Refusal::FieldName => "a field name must be a token followed by a colon",
            Refusal::DisguisedName => "a framing field spelled with an underscore",
            Refusal::Underscore => "underscores in field names are refused here",
            Refusal::TooManyFields => "too many fields",
            Refusal::HeadTooLarge => "the head is too large",
            Refusal::ContentLength => "Content-Length must be one decimal number",
            Refusal::RepeatedContentLength => "several Content-Length fields",
            Refusal::LengthAndCoding => "Content-Length and Transfer-Encoding together",
            Refusal::TransferEncoding => "Transfer-Encoding must be exactly chunked",
            Refusal::CodingInHttp10 => "HTTP/1.0 has no Transfer-Encoding",
            Refusal::NoHost => "HTTP/1.1 needs a Host field",
            Refusal::RepeatedHost => "several Host fields",
            Refusal::Host => "the host must be a name or address with an optional port",
            Refusal::Expectation => "the only expectation understood is 100-continue",
            Refusal::Connection => "Connection names too many fields",
            Refusal::ChunkSize => "the chunk size must be a hexadecimal number",
            Refusal::ChunkLine => "the chunk size line is too long",
            Refusal::ChunkExtension => "the chunk extensions are malformed or too long",
            Refusal::ChunkEnd => "chunk data must be followed by CRLF",
            Refusal::TrailersTooLarge => "the trailer section is too large",
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::error::Error for Refusal {}
