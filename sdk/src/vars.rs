//! hot path
//!
//! Variables: named values of an exchange.
//!
//! A name is looked up once, when a configuration is built ([`Var::parse`]); reading the value is
//! then a jump and, if the value is part of the exchange, needs no copy. Names and values are those
//! of APISIX 3.x (`apisix/core/ctx.lua`): nginx's and a few more; an unknown variable is absent
//! unless a script has set it ([`set`]).

mod body;
mod charset;
mod graphql;
mod json;
mod logged;
mod lookups;
pub mod multipart;
mod parsed;
mod plain;
pub(crate) mod read;
mod set;
mod ssl;
mod strftime;
mod time;
mod value;

use std::borrow::Cow;
use std::sync::LazyLock;

use crate::escape::json_text;
use crate::exchange::{Exchange, Source};
use crate::verdict::ReadError;
pub use graphql::operations as graphql_operations;
use lookups::Lookups;
use parsed::Parsed;
use plain::{HOSTNAME, NAMES, Plain, method, write};
use read::{Arg, Header};
use set::SetVars;
pub use set::set;
pub use strftime::TimeFormat;
pub use time::{Stamp, rfc3339 as write_rfc3339};
pub use value::Value;

/// A variable, ready to be read.
#[derive(Debug, Clone, PartialEq)]
pub struct Var {
    name: Box<str>,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Plain(Plain),
    Arg(Box<[u8]>),
    Header(Header),
    /// A header that defaults to a fact about the client's connection.
    Forwarded(Header, Forwarded),
    ResponseHeader(Header),
    UpstreamHeader(Header),
    Cookie(Box<[u8]>),
    UriParam(Box<str>),
    /// Of the host, all before this number of labels at its end.
    HostBefore(usize),
    PostArg(Box<[u8]>),
    PostPath(body::Path),
    Graphql(graphql::Part),
    Unknown,
}

/// A fact about the client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Forwarded {
    Proto,
    Host,
    Port,
}

/// The result of reading a variable.
enum ReadResult<'a> {
    Absent,
    Borrowed(&'a [u8]),
    /// The text was appended to the buffer.
    Written,
    /// As `Written`, and the text needs no escaping in a log: letters, digits and the like.
    Plain,
    Value(Value<'a>),
}

impl Var {
    /// Looks up the variable of this name, without `$`. An unknown variable is absent unless a
    /// script has set it.
    pub fn parse(name: &str) -> Var {
        let kind = Kind::parse(name);
        if kind == Kind::Plain(Plain::Hostname) {
            // A worker must not read files, so read it now.
            LazyLock::force(&HOSTNAME);
        }
        Var { name: name.into(), kind }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the variable is known.
    pub fn is_known(&self) -> bool {
        self.kind != Kind::Unknown
    }

    /// Whether the request's body must be buffered before it is read.
    pub fn needs_body(&self) -> bool {
        match self.kind {
            Kind::PostArg(_) | Kind::PostPath(_) | Kind::Graphql(_) => true,
            Kind::Plain(plain) => plain == Plain::RequestBody,
            _ => false,
        }
    }

    /// The value as text; `None` if it is absent.
    #[inline]
    pub fn of<'a>(&'a self, x: &'a Exchange<'_>) -> Option<Cow<'a, [u8]>> {
        let mut written = Vec::new();
        match self.read(x, &mut written) {
            ReadResult::Absent => None,
            ReadResult::Borrowed(text) => Some(Cow::Borrowed(text)),
            ReadResult::Written | ReadResult::Plain => Some(Cow::Owned(written)),
            ReadResult::Value(value) => Some(value.into_text()),
        }
    }

    /// The value with its type.
    #[inline]
    pub fn value<'a>(&'a self, x: &'a Exchange<'_>) -> Option<Value<'a>> {
        let mut written = Vec::new();
        match self.read(x, &mut written) {
            ReadResult::Absent => None,
            ReadResult::Borrowed(text) => Some(Value::Text(Cow::Borrowed(text))),
            ReadResult::Written | ReadResult::Plain => Some(Value::Text(Cow::Owned(written))),
            ReadResult::Value(value) => Some(value),
        }
    }

    /// The value for a condition, where an unreadable value must not count as absent.
    #[inline]
    pub fn judge<'a>(&'a self, x: &'a Exchange<'_>) -> Result<Option<Value<'a>>, ReadError> {
        match &self.kind {
            Kind::PostArg(name) => body::post_arg(x, name).map(|arg| {
                arg.map(|arg| match arg {
                    Arg::Bare => Value::Bool(true),
                    Arg::Text(text) => Value::Text(text),
                })
            }),
            Kind::PostPath(path) => parsed::at(x, path),
            Kind::Graphql(part) => parsed::part(x, *part),
            Kind::Plain(Plain::RequestBody) => {
                body::held(x).map(|body| body.map(|body| Value::Text(Cow::Borrowed(body))))
            }
            _ => Ok(self.value(x)),
        }
    }

    /// Appends the value as text; returns whether it is present.
    #[inline]
    pub fn write(&self, x: &Exchange<'_>, out: &mut Vec<u8>) -> bool {
        match self.read(x, out) {
            ReadResult::Absent => return false,
            ReadResult::Written | ReadResult::Plain => {}
            ReadResult::Borrowed(text) => out.extend_from_slice(text),
            ReadResult::Value(value) => out.extend_from_slice(&value.into_text()),
        }
        true
    }

    /// Appends the value as JSON: a string, or a number if it is one in APISIX. Returns whether it
    /// is present.
    pub fn write_json(&self, x: &Exchange<'_>, out: &mut Vec<u8>) -> bool {
        if matches!(self.kind, Kind::Plain(Plain::Status | Plain::RequestLength | Plain::BytesSent)) {
            return self.write(x, out);
        }
        match self.value(x) {
            None => return false,
            Some(Value::Text(text)) => json_text(&text, out),
            Some(value) => out.extend_from_slice(&value.into_text()),
        }
        true
    }

    /// Whether the value contains the configured name of the chosen server.
    pub fn names_server(&self) -> bool {
        self.kind == Kind::Plain(Plain::UpstreamUnresolvedHost)
    }

    fn read<'a>(&'a self, x: &'a Exchange<'_>, out: &mut Vec<u8>) -> ReadResult<'a> {
        self.read_here(x, out)
    }

    /// As [`Var::read`], inlined: for log lines, which read many variables.
    #[inline(always)]
    fn read_here<'a>(&'a self, x: &'a Exchange<'_>, out: &mut Vec<u8>) -> ReadResult<'a> {
        match &self.kind {
            Kind::Plain(plain) => plain.read(x, out),
            Kind::Header(header) => header.value(&x.request().fields).into(),
            _ => self.read_other(x, out),
        }
    }

    #[inline(never)]
    fn read_other<'a>(&'a self, x: &'a Exchange<'_>, out: &mut Vec<u8>) -> ReadResult<'a> {
        match &self.kind {
            Kind::Arg(name) => argument(lookups::arg(x, name)),
            Kind::Forwarded(header, own) => {
                match (header.value(&x.request().fields).filter(|value| !value.is_empty()), own) {
                    (Some(value), _) => Some(value).into(),
                    (None, Forwarded::Proto) => ReadResult::Borrowed(x.client().scheme().as_bytes()),
                    (None, Forwarded::Host) => {
                        Some(x.request().authority()).filter(|host| !host.is_empty()).into()
                    }
                    (None, Forwarded::Port) => write(out, x.forwarded_port()),
                }
            }
            Kind::ResponseHeader(header) => header.value(&x.response().fields).into(),
            Kind::UpstreamHeader(header) if x.source() == Source::Upstream => {
                header.value(&x.response().fields).into()
            }
            Kind::UpstreamHeader(_) => ReadResult::Absent,
            Kind::Cookie(name) => lookups::cookie(x, name).into(),
            Kind::UriParam(name) => uri_param(x, name).into(),
            Kind::HostBefore(labels) => host_before(x.request().host(), *labels).into(),
            // Outside of conditions, an unreadable value is absent.
            Kind::PostArg(name) => argument(body::post_arg(x, name).unwrap_or_default()),
            Kind::PostPath(path) => parsed::at(x, path).unwrap_or_default().into(),
            Kind::Graphql(part) => parsed::part(x, *part).unwrap_or_default().into(),
            // Plain variables and headers are read above.
            Kind::Plain(_) | Kind::Header(_) => ReadResult::Absent,
            Kind::Unknown => x.note::<SetVars>().and_then(|vars| vars.get(&self.name)).into(),
        }
    }
}

/// Names and values of a query's arguments, decoded, in order; an argument without `=` has no
/// value.
pub fn args(query: &[u8]) -> impl Iterator<Item = (Cow<'_, [u8]>, Option<Cow<'_, [u8]>>)> {
    read::args(query).map(|(name, value)| match value {
        Arg::Bare => (name, None),
        Arg::Text(text) => (name, Some(text)),
    })
}

/// This machine's name. Reads a file at the first call, so it is for building instances.
pub fn hostname() -> &'static str {
    &HOSTNAME
}

/// The variable with the most similar name, if any is similar.
pub fn nearest(name: &str) -> Option<&'static str> {
    model::invalid::nearest(name, NAMES.iter().copied())
}

/// Evaluates many conditions and caches their lookups, so that a long query, form or list of
/// cookies is scanned once per name instead of once per condition. Without a long one nothing is
/// cached or allocated.
pub fn reading<T>(x: &mut Exchange<'_>, judge: impl FnOnce(&Exchange<'_>) -> T) -> T {
    if !lookups::is_worthwhile(x) {
        return judge(x);
    }
    x.set_note(Lookups::default());
    let verdict = judge(x);
    // The exchange may change from here on.
    x.take_note::<Lookups>();
    verdict
}

/// As [`reading`], for conditions that read several variables of the request's body: it is parsed
/// once instead of for each variable.
pub fn reading_body<T>(x: &mut Exchange<'_>, judge: impl FnOnce(&Exchange<'_>) -> T) -> T {
    x.set_note(Parsed::default());
    let verdict = reading(x, judge);
    // The parsed values may be large, and are not needed any more.
    x.take_note::<Parsed>();
    verdict
}

/// Whether a variable can have a value: the path of a body variable (`post_arg.`) may be invalid or
/// unsupported.
pub fn is_readable(name: &str) -> bool {
    name.strip_prefix("post_arg.").is_none_or(|path| body::Path::parse(path).is_some())
}

impl Kind {
    fn parse(name: &str) -> Kind {
        if let Some(plain) = Plain::named(name) {
            return Kind::Plain(plain);
        }
        type Make = fn(&str) -> Kind;
        let kinds: [(&str, Make); 10] = [
            ("post_arg.", |name| body::Path::parse(name).map_or(Kind::Unknown, Kind::PostPath)),
            ("post_arg_", |name| Kind::PostArg(name.as_bytes().into())),
            ("arg_", |name| Kind::Arg(name.as_bytes().into())),
            ("cookie_", |name| Kind::Cookie(name.as_bytes().into())),
            ("http_", |name| match name {
                "x_forwarded_proto" => Kind::Forwarded(Header::new(name), Forwarded::Proto),
                "x_forwarded_host" => Kind::Forwarded(Header::new(name), Forwarded::Host),
                "x_forwarded_port" => Kind::Forwarded(Header::new(name), Forwarded::Port),
                name => Kind::Header(Header::new(name)),
            }),
            ("sent_http_", |name| Kind::ResponseHeader(Header::new(name))),
            ("upstream_http_", |name| Kind::UpstreamHeader(Header::new(name))),
            ("uri_param_", |name| Kind::UriParam(name.into())),
            ("host_before_", |name| match name.parse() {
                Ok(labels @ 1..=127) => Kind::HostBefore(labels),
                _ => Kind::Unknown,
            }),
            ("graphql_", |name| graphql::Part::named(name).map_or(Kind::Unknown, Kind::Graphql)),
        ];
        kinds.iter().find_map(|(prefix, make)| name.strip_prefix(prefix).map(make)).unwrap_or(Kind::Unknown)
    }
}

impl<'a> From<Option<&'a [u8]>> for ReadResult<'a> {
    fn from(text: Option<&'a [u8]>) -> ReadResult<'a> {
        text.map_or(ReadResult::Absent, ReadResult::Borrowed)
    }
}

impl<'a> From<Option<&'a str>> for ReadResult<'a> {
    fn from(text: Option<&'a str>) -> ReadResult<'a> {
        text.map(str::as_bytes).into()
    }
}

impl<'a> From<Option<Cow<'a, [u8]>>> for ReadResult<'a> {
    fn from(text: Option<Cow<'a, [u8]>>) -> ReadResult<'a> {
        text.map(Value::Text).into()
    }
}

impl<'a> From<Option<Value<'a>>> for ReadResult<'a> {
    fn from(value: Option<Value<'a>>) -> ReadResult<'a> {
        match value {
            None => ReadResult::Absent,
            Some(Value::Text(Cow::Borrowed(text))) => ReadResult::Borrowed(text),
            Some(value) => ReadResult::Value(value),
        }
    }
}

fn argument(arg: Option<Arg<'_>>) -> ReadResult<'_> {
    match arg {
        None => ReadResult::Absent,
        Some(Arg::Bare) => ReadResult::Value(Value::Bool(true)),
        Some(Arg::Text(text)) => Some(text).into(),
    }
}

fn host_before(host: &[u8], labels: usize) -> Option<&[u8]> {
    let mut dots = (0..host.len()).rev().filter(|&at| host[at] == b'.');
    dots.nth(labels - 1).map(|dot| &host[..dot]).filter(|rest| !rest.is_empty())
}

fn uri_param<'a>(x: &'a Exchange<'_>, name: &str) -> Option<&'a [u8]> {
    match name {
        "_path" => Some(x.matched_uri().as_bytes()).filter(|uri| !uri.is_empty()),
        "_host" => Some(x.matched_host().as_bytes()).filter(|host| !host.is_empty()),
        "_method" => Some(method(x)),
        _ => x.path_param(name),
    }
}

#[cfg(test)]
mod tests;
