//! hot path
//!
//! Variables: names for what is known of an exchange.
//!
//! A name is looked up once, when a configuration is built ([`Var::parse`]);
//! reading it then is a jump and, where the value lies in the exchange as it
//! is, no copy. Names and values are APISIX 3.x's (`apisix/core/ctx.lua`),
//! which are nginx's and a few more; a name nobody knows is always absent.

mod body;
mod charset;
mod graphql;
mod json;
mod logged;
mod looked;
pub mod multipart;
mod parsed;
mod plain;
pub(crate) mod read;
mod ssl;
mod time;
mod value;

use std::borrow::Cow;
use std::sync::LazyLock;

use crate::exchange::{Exchange, Source};
use crate::log_entry::json_text;
use crate::verdict::Doubt;
use looked::Looked;
use parsed::Parsed;
use plain::{HOSTNAME, NAMES, Plain, method, write};
use read::{Arg, Header};
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
    /// A header that tells of the client's own connection unless somebody said otherwise.
    Forwarded(Header, Forwarded),
    ResponseHeader(Header),
    UpstreamHeader(Header),
    Cookie(Box<[u8]>),
    UriParam(Box<str>),
    PostArg(Box<[u8]>),
    PostPath(body::Path),
    Graphql(graphql::Part),
    Unknown,
}

/// What the gateway itself knows of the client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Forwarded {
    Proto,
    Host,
    Port,
}

/// What reading a variable came to.
enum Found<'a> {
    Nothing,
    Borrowed(&'a [u8]),
    /// The text was written to the buffer that was handed in.
    Written,
    /// The same, and no log has to escape anything in it: letters, digits and the like.
    Plain,
    Value(Value<'a>),
}

impl Var {
    /// The variable of this name, without `$`. Unknown names give a variable that is always absent.
    pub fn parse(name: &str) -> Var {
        let kind = Kind::parse(name);
        if kind == Kind::Plain(Plain::Hostname) {
            // A worker must not read files: do it now.
            LazyLock::force(&HOSTNAME);
        }
        Var { name: name.into(), kind }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the name means something here.
    pub fn is_known(&self) -> bool {
        self.kind != Kind::Unknown
    }

    /// Whether the request's body must be in memory before it is read.
    pub fn needs_body(&self) -> bool {
        match self.kind {
            Kind::PostArg(_) | Kind::PostPath(_) | Kind::Graphql(_) => true,
            Kind::Plain(plain) => plain == Plain::RequestBody,
            _ => false,
        }
    }

    /// Its value as text; `None` if it is absent.
    #[inline]
    pub fn of<'a>(&'a self, x: &'a Exchange<'_>) -> Option<Cow<'a, [u8]>> {
        let mut written = Vec::new();
        match self.read(x, &mut written) {
            Found::Nothing => None,
            Found::Borrowed(text) => Some(Cow::Borrowed(text)),
            Found::Written | Found::Plain => Some(Cow::Owned(written)),
            Found::Value(value) => Some(value.into_text()),
        }
    }

    /// Its value with its type.
    #[inline]
    pub fn value<'a>(&'a self, x: &'a Exchange<'_>) -> Option<Value<'a>> {
        let mut written = Vec::new();
        match self.read(x, &mut written) {
            Found::Nothing => None,
            Found::Borrowed(text) => Some(Value::Text(Cow::Borrowed(text))),
            Found::Written | Found::Plain => Some(Value::Text(Cow::Owned(written))),
            Found::Value(value) => Some(value),
        }
    }

    /// Its value for a condition, which must not take what cannot be read for absent.
    #[inline]
    pub(crate) fn judge<'a>(&'a self, x: &'a Exchange<'_>) -> Result<Option<Value<'a>>, Doubt> {
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

    /// Appends its text; says whether it was there.
    #[inline]
    pub fn write(&self, x: &Exchange<'_>, out: &mut Vec<u8>) -> bool {
        match self.read(x, out) {
            Found::Nothing => return false,
            Found::Written | Found::Plain => {}
            Found::Borrowed(text) => out.extend_from_slice(text),
            Found::Value(value) => out.extend_from_slice(&value.into_text()),
        }
        true
    }

    /// Appends it as JSON: texts as strings, and as numbers those that are numbers to APISIX. Says
    /// whether it was there.
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

    /// Whether it tells which server was chosen, by the name its operator gave it.
    pub fn names_server(&self) -> bool {
        self.kind == Kind::Plain(Plain::UpstreamUnresolvedHost)
    }

    fn read<'a>(&'a self, x: &'a Exchange<'_>, out: &mut Vec<u8>) -> Found<'a> {
        self.read_here(x, out)
    }

    /// As [`Var::read`], at the place of the call: for lines of a log, which read many.
    #[inline(always)]
    fn read_here<'a>(&'a self, x: &'a Exchange<'_>, out: &mut Vec<u8>) -> Found<'a> {
        match &self.kind {
            Kind::Plain(plain) => plain.read(x, out),
            Kind::Header(header) => header.value(&x.request().fields).into(),
            _ => self.read_other(x, out),
        }
    }

    #[inline(never)]
    fn read_other<'a>(&'a self, x: &'a Exchange<'_>, out: &mut Vec<u8>) -> Found<'a> {
        match &self.kind {
            Kind::Arg(name) => argument(looked::arg(x, name)),
            Kind::Forwarded(header, own) => {
                match (header.value(&x.request().fields).filter(|value| !value.is_empty()), own) {
                    (Some(value), _) => Some(value).into(),
                    (None, Forwarded::Proto) => Found::Borrowed(x.client().scheme().as_bytes()),
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
            Kind::UpstreamHeader(_) => Found::Nothing,
            Kind::Cookie(name) => looked::cookie(x, name).into(),
            Kind::UriParam(name) => uri_param(x, name).into(),
            // Outside of conditions, what cannot be read is absent.
            Kind::PostArg(name) => argument(body::post_arg(x, name).unwrap_or_default()),
            Kind::PostPath(path) => parsed::at(x, path).unwrap_or_default().into(),
            Kind::Graphql(part) => parsed::part(x, *part).unwrap_or_default().into(),
            // The first two are read above.
            Kind::Plain(_) | Kind::Header(_) | Kind::Unknown => Found::Nothing,
        }
    }
}

/// The names and values of a query's arguments, decoded, in order; one without `=` has no value.
pub fn args(query: &[u8]) -> impl Iterator<Item = (Cow<'_, [u8]>, Option<Cow<'_, [u8]>>)> {
    read::args(query).map(|(name, value)| match value {
        Arg::Bare => (name, None),
        Arg::Text(text) => (name, Some(text)),
    })
}

/// The variable whose name is most like this one, if one is.
pub fn nearest(name: &str) -> Option<&'static str> {
    model::invalid::nearest(name, NAMES.iter().copied())
}

/// Judges many conditions, so that a long query, form or list of cookies is gone through once for each
/// name and not for each condition. Without a long one nothing is remembered, and nothing allocated.
pub fn reading<T>(x: &mut Exchange<'_>, judge: impl FnOnce(&Exchange<'_>) -> T) -> T {
    if !looked::is_worthwhile(x) {
        return judge(x);
    }
    x.set_note(Looked::default());
    let verdict = judge(x);
    // The exchange may change from here on.
    x.take_note::<Looked>();
    verdict
}

/// As [`reading`], for conditions that read several variables of the request's body: it is read
/// once and not at every variable.
pub fn reading_body<T>(x: &mut Exchange<'_>, judge: impl FnOnce(&Exchange<'_>) -> T) -> T {
    x.set_note(Parsed::default());
    let verdict = reading(x, judge);
    // What was found may be large, and is of no use once the conditions are judged.
    x.take_note::<Parsed>();
    verdict
}

/// Whether a name of a variable can be read: a path into the body (`post_arg.`) may be no path, or of a kind that is
/// not understood, and then stands for nothing.
pub fn is_readable(name: &str) -> bool {
    name.strip_prefix("post_arg.").is_none_or(|path| body::Path::parse(path).is_some())
}

impl Kind {
    fn parse(name: &str) -> Kind {
        if let Some(plain) = Plain::named(name) {
            return Kind::Plain(plain);
        }
        type Make = fn(&str) -> Kind;
        let kinds: [(&str, Make); 9] = [
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
            ("graphql_", |name| graphql::Part::named(name).map_or(Kind::Unknown, Kind::Graphql)),
        ];
        kinds.iter().find_map(|(prefix, make)| name.strip_prefix(prefix).map(make)).unwrap_or(Kind::Unknown)
    }
}

impl<'a> From<Option<&'a [u8]>> for Found<'a> {
    fn from(text: Option<&'a [u8]>) -> Found<'a> {
        text.map_or(Found::Nothing, Found::Borrowed)
    }
}

impl<'a> From<Option<&'a str>> for Found<'a> {
    fn from(text: Option<&'a str>) -> Found<'a> {
        text.map(str::as_bytes).into()
    }
}

impl<'a> From<Option<Cow<'a, [u8]>>> for Found<'a> {
    fn from(text: Option<Cow<'a, [u8]>>) -> Found<'a> {
        text.map(Value::Text).into()
    }
}

impl<'a> From<Option<Value<'a>>> for Found<'a> {
    fn from(value: Option<Value<'a>>) -> Found<'a> {
        match value {
            None => Found::Nothing,
            Some(Value::Text(Cow::Borrowed(text))) => Found::Borrowed(text),
            Some(value) => Found::Value(value),
        }
    }
}

fn argument(arg: Option<Arg<'_>>) -> Found<'_> {
    match arg {
        None => Found::Nothing,
        Some(Arg::Bare) => Found::Value(Value::Bool(true)),
        Some(Arg::Text(text)) => Some(text).into(),
    }
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
