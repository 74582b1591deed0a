//! A second, independent parser of RFC 9112: slow, plain, and written from the rules, not from the
//! codec. It first cuts the head into lines, then checks each part separately. If the codec is
//! stricter than the RFC, the rule is repeated here with its reason.
//!
//! Beside "read" it has two results: incomplete, and refused. It gives no reason for refusing.

mod chunked;
mod path;

pub use chunked::{ChunkedBody, chunked};
pub use path::normal_path;
use path::percent;

/// A request as the reference sees it.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    pub consumed: usize,
    pub method: String,
    pub http11: bool,
    pub target: Vec<u8>,
    pub path: Vec<u8>,
    pub encoded_path: Vec<u8>,
    pub query: Option<Vec<u8>>,
    pub host: String,
    pub authority: String,
    pub fields: Vec<(String, Vec<u8>)>,
    pub body: Body,
    pub keep_alive: bool,
    pub expect_continue: bool,
    pub upgrade: bool,
}

/// A response as the reference sees it.
#[derive(Debug, PartialEq, Eq)]
pub struct Response {
    pub consumed: usize,
    pub http11: bool,
    pub status: u16,
    pub reason: Vec<u8>,
    pub fields: Vec<(String, Vec<u8>)>,
    pub body: Body,
    pub keep_alive: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    None,
    Length(u64),
    Chunked,
    UntilClose,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Parsed<T> {
    Read(T),
    More,
    No,
}

type Fields = Vec<(String, Vec<u8>)>;

/// Reads a request head; `most` is the limit of fields.
pub fn request(input: &[u8], most: usize) -> Parsed<Request> {
    // "a server SHOULD ignore at least one empty line received prior to the request-line"
    let skipped = if input.starts_with(b"\r\n") { 2 } else { 0 };
    let Some(end) = find(&input[skipped..], b"\r\n\r\n") else {
        return Parsed::More;
    };
    let head = &input[skipped..skipped + end];
    match request_head(head, skipped + end + 4, most) {
        Some(request) => Parsed::Read(request),
        None => Parsed::No,
    }
}

/// Reads a response head to a request with `method`.
pub fn response(input: &[u8], method: &str, most: usize) -> Parsed<Response> {
    let Some(end) = find(input, b"\r\n\r\n") else {
        return Parsed::More;
    };
    match response_head(&input[..end], end + 4, method, most) {
        Some(response) => Parsed::Read(response),
        None => Parsed::No,
    }
}

fn request_head(head: &[u8], consumed: usize, most: usize) -> Option<Request> {
    let lines = lines(head)?;
    let (first, rest) = lines.split_first()?;
    // request-line = method SP request-target SP HTTP-version
    let parts: Vec<&[u8]> = first.split(|&b| b == b' ').collect();
    let [method, target, version] = parts[..] else { return None };
    let method = token(method).filter(|method| method.len() <= 64)?;
    let http11 = match version {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        _ => return None,
    };
    let mut fields = fields(rest, most)?;
    let body = body(&mut fields, http11)?;

    let hosts = values(&fields, "host");
    if hosts.len() > 1 || http11 && hosts.is_empty() {
        return None;
    }
    let named = match hosts.first() {
        Some(host) => Some(authority(host)?),
        None => None,
    };
    let target = take_target(target, &method)?;
    let addressed = match (&target.authority, &named) {
        (Some(text), _) => Some(authority(text)?),
        (None, named) => named.clone(),
    };
    if method == "CONNECT" && !addressed.as_ref()?.port {
        return None;
    }
    if let (Some(text), false) = (&target.authority, method == "CONNECT") {
        // "a proxy MUST ignore the received Host header field (if any) and instead replace it"
        match fields.iter_mut().find(|(name, _)| name.eq_ignore_ascii_case("host")) {
            Some(field) => field.1 = text.clone(),
            None => fields.push(("Host".into(), text.clone())),
        }
    }

    let options = options(&fields);
    let has = |option: &str| options.iter().any(|o| o == option);
    // "A server that receives a 100-continue expectation in an HTTP/1.0 request MUST ignore"
    let expectations: Vec<String> = values(&fields, "expect").iter().map(|value| lossy(value)).collect();
    let awaited = !matches!(body, None | Some(Body::Length(0)));
    let expect_continue = http11 && !expectations.is_empty() && awaited;
    if http11 && expectations.iter().any(|value| !value.eq_ignore_ascii_case("100-continue")) {
        return None;
    }
    if !http11 {
        fields.retain(|(name, _)| !name.eq_ignore_ascii_case("expect"));
    }
    let upgrade = http11 && has("upgrade") && !values(&fields, "upgrade").is_empty();
    Some(Request {
        consumed,
        http11,
        target: target.raw,
        path: target.path,
        encoded_path: target.encoded_path,
        query: target.query,
        host: addressed.as_ref().map(|a| a.host.clone()).unwrap_or_default(),
        authority: addressed.map(|a| a.text).unwrap_or_default(),
        body: body.unwrap_or(Body::None),
        keep_alive: !has("close") && (http11 || has("keep-alive")),
        expect_continue,
        upgrade,
        method,
        fields,
    })
}

fn response_head(head: &[u8], consumed: usize, method: &str, most: usize) -> Option<Response> {
    let lines = lines(head)?;
    let (first, rest) = lines.split_first()?;
    // status-line = HTTP-version SP status-code SP [ reason-phrase ]
    let mut parts = first.splitn(3, |&b| b == b' ');
    let http11 = match parts.next()? {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        _ => return None,
    };
    let code = parts.next()?;
    if code.len() != 3 || !code.iter().all(u8::is_ascii_digit) || code[0] == b'0' {
        return None;
    }
    let status: u16 = lossy(code).parse().ok()?;
    let reason = parts.next().unwrap_or_default().to_vec();
    let mut fields = fields(rest, most)?;
    let announced = body(&mut fields, http11)?;
    let ends_with_head = status < 200 || status == 204;
    if ends_with_head {
        fields.retain(|(name, _)| !name.eq_ignore_ascii_case("content-length"));
    }
    let none = ends_with_head
        || status == 304
        || method == "HEAD"
        || method == "CONNECT" && (200..300).contains(&status);
    // A server may send the body it announces, though the response ends with its head: the
    // connection is not reused.
    let may_send = match announced {
        None | Some(Body::Length(0)) => false,
        Some(Body::Chunked) => ends_with_head || status == 304,
        Some(_) => ends_with_head,
    };
    let body = if none { Body::None } else { announced.unwrap_or(Body::UntilClose) };
    let options = options(&fields);
    let has = |option: &str| options.iter().any(|o| o == option);
    let keep_alive = !has("close") && (http11 || has("keep-alive")) && body != Body::UntilClose && !may_send;
    Some(Response { consumed, http11, status, reason, fields, body, keep_alive })
}

/// Lines end with CRLF and contain no control character but the tab.
fn lines(head: &[u8]) -> Option<Vec<&[u8]>> {
    let mut lines = Vec::new();
    let mut rest = head;
    loop {
        match find(rest, b"\r\n") {
            Some(at) => {
                lines.push(&rest[..at]);
                rest = &rest[at + 2..];
            }
            None => {
                lines.push(rest);
                break;
            }
        }
    }
    let control = |b: &u8| *b < 32 && *b != 9 || *b == 127;
    if lines.iter().any(|line| line.iter().any(control)) { None } else { Some(lines) }
}

fn fields(lines: &[&[u8]], most: usize) -> Option<Fields> {
    let mut fields = Vec::new();
    for line in lines {
        let colon = line.iter().position(|&b| b == b':')?;
        let name = token(&line[..colon])?;
        // Origins that spell names with underscores would read these as framing.
        let disguised = name.to_ascii_lowercase().replace('_', "-");
        if name.contains('_') && (disguised == "content-length" || disguised == "transfer-encoding") {
            return None;
        }
        // Nor may a name pass for a field that a proxy removes or sets itself.
        if name.contains('_') && super::corpus::LOOK_ALIKES.contains(&disguised.as_str()) {
            continue;
        }
        let value: &[u8] = &line[colon + 1..];
        let first = value.iter().position(|b| !b" \t".contains(b)).unwrap_or(value.len());
        let last = value.iter().rposition(|b| !b" \t".contains(b)).map_or(first, |at| at + 1);
        fields.push((name, value[first..last].to_vec()));
    }
    // One limit for lines and for options of Connection.
    if lines.len() > most || options(&fields).len() > most { None } else { Some(fields) }
}

/// RFC 9112 section 6.3, refusing where it allows to. The inner `None`: no body is announced.
fn body(fields: &mut Fields, http11: bool) -> Option<Option<Body>> {
    let codings = values(fields, "transfer-encoding");
    let lengths = values(fields, "content-length");
    match (codings.len(), lengths.len()) {
        (0, 0) => Some(None),
        (1, 0) => {
            let chunked = lossy(&codings[0]).eq_ignore_ascii_case("chunked");
            if chunked && http11 { Some(Some(Body::Chunked)) } else { None }
        }
        (0, 1) => {
            let digits = lossy(&lengths[0]);
            if digits.is_empty() || digits.len() > 19 || digits.contains(|c: char| !c.is_ascii_digit()) {
                return None;
            }
            let length: u64 = digits.parse().ok()?;
            if length >= 1 << 63 {
                return None;
            }
            for field in fields.iter_mut().filter(|(name, _)| name.eq_ignore_ascii_case("content-length")) {
                field.1 = length.to_string().into_bytes();
            }
            Some(Some(Body::Length(length)))
        }
        _ => None,
    }
}

#[derive(Clone)]
struct Authority {
    host: String,
    text: String,
    port: bool,
}

/// A DNS name, IPv4 address or bracketed IPv6 address, and a port; narrower than RFC 3986.
fn authority(bytes: &[u8]) -> Option<Authority> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (inside, after) = rest.split_once(']')?;
            inside.parse::<std::net::Ipv6Addr>().ok()?;
            match after {
                "" => (format!("[{inside}]"), None),
                _ => (format!("[{inside}]"), Some(after.strip_prefix(':')?)),
            }
        }
        None => {
            let (host, port) = match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            };
            let host = host.strip_suffix('.').unwrap_or(host);
            let ok = |c: char| c.is_ascii_alphanumeric() || "-_~".contains(c);
            // One leading dot, as NGINX accepts it.
            let labels = host.strip_prefix('.').unwrap_or(host);
            if labels.split('.').any(|label| label.is_empty() || !label.chars().all(ok)) {
                return None;
            }
            (host.to_string(), port)
        }
    };
    if let Some(port) = port {
        if port.is_empty() || port.len() > 5 || port.contains(|c: char| !c.is_ascii_digit()) {
            return None;
        }
        port.parse::<u16>().ok()?;
    }
    Some(Authority { host: host.to_ascii_lowercase(), text: text.to_string(), port: port.is_some() })
}

struct Target {
    raw: Vec<u8>,
    path: Vec<u8>,
    encoded_path: Vec<u8>,
    query: Option<Vec<u8>>,
    authority: Option<Vec<u8>>,
}

fn take_target(target: &[u8], method: &str) -> Option<Target> {
    if target.is_empty() || target.iter().any(|&b| b <= 32 || b == 127 || b == b'#') {
        return None;
    }
    if method == "CONNECT" {
        let raw = target.to_vec();
        return Some(Target {
            authority: Some(raw.clone()),
            raw,
            path: vec![],
            encoded_path: vec![],
            query: None,
        });
    }
    let star = |authority| Target {
        raw: b"*".to_vec(),
        path: b"*".to_vec(),
        encoded_path: b"*".to_vec(),
        query: None,
        authority,
    };
    if target == b"*" {
        return if method == "OPTIONS" { Some(star(None)) } else { None };
    }
    let (authority, origin) = if target[0] == b'/' {
        (None, target.to_vec())
    } else {
        let lower = target.to_ascii_lowercase();
        let scheme = ["http://", "https://"].iter().find(|s| lower.starts_with(s.as_bytes()))?.len();
        let rest = &target[scheme..];
        let end = rest.iter().position(|b| b"/?".contains(b)).unwrap_or(rest.len());
        let authority = rest[..end].to_vec();
        if end == rest.len() && method == "OPTIONS" {
            return Some(star(Some(authority)));
        }
        let slash: &[u8] = if rest.get(end) == Some(&b'/') { b"" } else { b"/" };
        (Some(authority), [slash, &rest[end..]].concat())
    };
    let (path, query) = match origin.iter().position(|&b| b == b'?') {
        Some(at) => (&origin[..at], Some(&origin[at + 1..])),
        None => (&origin[..], None),
    };
    let (path, encoded_path) = normal_path(path)?;
    let query = query.map(|query| {
        let encode = |b: u8| b >= 128 || b"\"<>\\^`{|}".contains(&b);
        query.iter().flat_map(|&b| if encode(b) { percent(b) } else { vec![b] }).collect()
    });
    Some(Target { raw: origin.clone(), path, encoded_path, query, authority })
}

/// A token of RFC 9110 section 5.6.2.
fn token(bytes: &[u8]) -> Option<String> {
    let ok = |&b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if bytes.is_empty() || !bytes.iter().all(ok) { None } else { Some(lossy(bytes)) }
}

/// The options of all Connection fields, in lower case.
fn options(fields: &Fields) -> Vec<String> {
    let mut options = Vec::new();
    for value in values(fields, "connection") {
        for part in value.split(|&b| b == b',') {
            let part: Vec<u8> = part.iter().copied().skip_while(|b| b" \t".contains(b)).collect();
            let end = part.iter().rposition(|b| !b" \t".contains(b)).map_or(0, |at| at + 1);
            options.extend(token(&part[..end]).map(|option| option.to_ascii_lowercase()));
        }
    }
    options
}

fn values(fields: &Fields, name: &str) -> Vec<Vec<u8>> {
    fields.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone()).collect()
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
