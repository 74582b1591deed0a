//! hot path
//!
//! Code shared by all loggers: their options, the bodies they collect, and the entry they make
//! of an exchange, as in APISIX 3.18 (`apisix/utils/log-util.lua`).

pub(crate) mod endpoint;
pub(crate) mod full;

use std::io::Read;

use flate2::bufread::MultiGzDecoder;
use model::Invalid;
use sdk::budget::Reservation;
use sdk::chain::Phases;
use sdk::expr::Expr;
use sdk::log_entry::{Bodies, EntryFormat, json_text};
use sdk::sink::{Batching, HOPS, Record};
use sdk::{Build, Chunk, Exchange, Step};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::decode::{zstd, zstd_window};

/// Bytes of a body that an entry has, where the plugin's configuration does not say.
const MAX_BODY: usize = 524_288;

/// The route's name in the entry of a request that matched no route, for some loggers.
pub(crate) const UNMATCHED: &str = "no-matched";

/// The phase functions of a plugin with a field `logger`, besides its log phase.
macro_rules! logger_phases {
    () => {
        fn phases(&self) -> sdk::chain::Phases {
            self.logger.phases()
        }

        fn access(&self, x: &mut sdk::Exchange<'_>) -> sdk::Step {
            self.logger.access(x)
        }

        fn filters_body(&self, x: &sdk::Exchange<'_>) -> bool {
            self.logger.collects(x)
        }

        fn body_filter(&self, x: &mut sdk::Exchange<'_>, chunk: &mut sdk::Chunk) {
            self.logger.collect(x, Self::NAME, chunk);
        }
    };
}
pub(crate) use logger_phases;

/// The phases in which a logger may have work.
pub(crate) const PHASES: Phases = Phases::ACCESS.with(Phases::BODY_FILTER).with(Phases::LOG);

/// The options of every logger.
#[derive(Debug, Deserialize)]
pub(crate) struct Options {
    log_format: Option<Value>,
    log_format_extra: Option<Value>,
    #[serde(default)]
    include_req_body: bool,
    include_req_body_expr: Option<Value>,
    #[serde(default)]
    include_resp_body: bool,
    include_resp_body_expr: Option<Value>,
    max_req_body_bytes: usize,
    max_resp_body_bytes: usize,
}

/// A logger's part of a plugin instance.
pub(crate) struct Logger {
    format: Format,
    /// How much of the request's body is read.
    read: Option<usize>,
    request: Option<Wanted>,
    response: Option<Wanted>,
}

enum Format {
    /// All there is to tell, and further fields.
    Full(Option<EntryFormat>),
    Own(EntryFormat),
}

/// A body that is to be logged.
struct Wanted {
    when: Option<Expr>,
    most: usize,
}

/// Responses' bodies, by the plugin instances that collect them.
#[derive(Default)]
struct Collected(Vec<Collecting>);

struct Collecting {
    instance: usize,
    /// The conditions hold, so the body is logged even if it is empty.
    logged: bool,
    /// There is no room for more of it.
    full: bool,
    bytes: Vec<u8>,
    held: Reservation,
}

impl Options {
    /// The properties of a logger's schema: its own and those of all.
    pub(crate) fn extend(mut properties: Value) -> Value {
        let all = json!({
            "log_format": {"type": "object"},
            "log_format_extra": {"type": "object"},
            "include_req_body": {"type": "boolean", "default": false},
            "include_req_body_expr": {"type": "array", "minItems": 1, "items": {"type": "array"}},
            "include_resp_body": {"type": "boolean", "default": false},
            "include_resp_body_expr": {"type": "array", "minItems": 1, "items": {"type": "array"}},
            "max_req_body_bytes": {"type": "integer", "minimum": 1, "default": MAX_BODY},
            "max_resp_body_bytes": {"type": "integer", "minimum": 1, "default": MAX_BODY},
        });
        if let (Value::Object(properties), Value::Object(all)) = (&mut properties, all) {
            properties.extend(all);
        }
        properties
    }

    /// The options of a logger that logs no bodies.
    pub(crate) fn without_bodies(log_format: Option<Value>, log_format_extra: Option<Value>) -> Options {
        Options {
            log_format,
            log_format_extra,
            include_req_body: false,
            include_req_body_expr: None,
            include_resp_body: false,
            include_resp_body_expr: None,
            max_req_body_bytes: 1,
            max_resp_body_bytes: 1,
        }
    }

    /// The properties that every logger's metadata has.
    pub(crate) fn metadata() -> Map<String, Value> {
        let object = || json!({"type": "object"});
        [("log_format".to_owned(), object()), ("log_format_extra".to_owned(), object())].into_iter().collect()
    }
}

impl Logger {
    /// # Errors
    /// A condition that does not compile.
    pub(crate) fn build(options: Options, cx: &Build<'_>) -> Result<Logger, Invalid> {
        let metadata = |name: &str| cx.metadata().and_then(|metadata| metadata.get(name));
        // In the metadata an empty one counts for none; in the configuration it leaves nothing.
        let filled = |value: &&Value| value.as_object().is_some_and(|fields| !fields.is_empty());
        let own = options.log_format.as_ref().or_else(|| metadata("log_format").filter(filled));
        let extra = options.log_format_extra.as_ref().or_else(|| metadata("log_format_extra")).filter(filled);
        let format = match own {
            Some(format) => Format::Own(EntryFormat::new(format)),
            None => Format::Full(extra.map(EntryFormat::new)),
        };
        let needs_body = match &format {
            Format::Own(format) | Format::Full(Some(format)) => format.needs_body(),
            Format::Full(None) => false,
        };
        let wanted = |include: bool, name: &str, when: &Option<Value>, most| {
            let when = when.as_ref().map(|when| expr(name, when)).transpose()?;
            Ok(include.then_some(Wanted { when, most }))
        };
        let most = options.max_req_body_bytes;
        let request =
            wanted(options.include_req_body, "include_req_body_expr", &options.include_req_body_expr, most)?;
        let response = wanted(
            options.include_resp_body,
            "include_resp_body_expr",
            &options.include_resp_body_expr,
            options.max_resp_body_bytes,
        )?;
        let read = (needs_body || request.is_some()).then_some(most);
        Ok(Logger { format, read, request, response })
    }

    /// The phases it has work in.
    pub(crate) fn phases(&self) -> Phases {
        let read = if self.read.is_some() { Phases::ACCESS } else { Phases::NONE };
        let collect = if self.response.is_some() { Phases::BODY_FILTER } else { Phases::NONE };
        Phases::LOG.with(read).with(collect)
    }

    /// Has the request's body read, as far as it may be logged.
    pub(crate) fn access(&self, x: &mut Exchange<'_>) -> Step {
        let Some(most) = self.read else { return Step::Next };
        x.want_body_prefix();
        x.ask_for_optional_body(most).unwrap_or(Step::Next)
    }

    /// Whether the response's body is collected.
    pub(crate) fn collects(&self, x: &Exchange<'_>) -> bool {
        self.response.as_ref().is_some_and(|wanted| wanted.holds(x))
    }

    /// Keeps the beginning of the response's body.
    pub(crate) fn collect(&self, x: &mut Exchange<'_>, plugin: &'static str, chunk: &Chunk) {
        let Some(wanted) = &self.response else { return };
        let instance = std::ptr::from_ref(self).addr();
        if x.note::<Collected>().is_none() {
            x.set_note(Collected::default());
        }
        let known = x.note::<Collected>().is_some_and(|all| all.0.iter().any(|one| one.instance == instance));
        let now = !known && wanted.holds(x);
        let world = x.world();
        let Some(Collected(all)) = x.note_mut() else { return };
        if !known {
            all.push(Collecting {
                instance,
                logged: now,
                full: false,
                bytes: Vec::new(),
                held: Reservation::default(),
            });
        }
        let Some(one) = all.iter_mut().find(|one| one.instance == instance && one.logged && !one.full) else {
            return;
        };
        let more = chunk.data.len().min(wanted.most - one.bytes.len());
        if more == 0 {
            return;
        }
        if one.held.reserve(world.budget(), &mut one.bytes, more, wanted.most).is_err() {
            // The part collected until now is logged.
            one.full = true;
            x.complain(
                plugin,
                "the gateway holds as many bodies in memory as it may: a logged body is cut short",
            );
            return;
        }
        one.bytes.extend_from_slice(&chunk.data[..more]);
    }

    /// The format of entries with all fields, and its further fields; `None` for a format of their own.
    pub(crate) fn full_format(&self) -> Option<Option<&EntryFormat>> {
        match &self.format {
            Format::Full(extra) => Some(extra.as_ref()),
            Format::Own(_) => None,
        }
    }

    /// The entry for a server over HTTP; `None` if it would follow an entry of its own without an end, as it is sent to
    /// this gateway.
    pub(crate) fn record(&self, x: &Exchange<'_>, unmatched: Option<&str>) -> Option<Record> {
        wrapped(x, || self.entry(x, unmatched))
    }

    /// The request's body, if its conditions hold.
    pub(crate) fn logged_request_body<'x>(&self, x: &'x Exchange<'_>) -> Option<&'x [u8]> {
        let wanted = self.request.as_ref().filter(|wanted| wanted.holds(x))?;
        request_body(x, wanted.most)
    }

    /// The request's body as far as it was read, for variables of a format.
    pub(crate) fn read_request_body<'x>(&self, x: &'x Exchange<'_>) -> Option<&'x [u8]> {
        self.read.and_then(|most| request_body(x, most))
    }

    /// The entry of an exchange that has ended, without a line end.
    pub(crate) fn entry(&self, x: &Exchange<'_>, unmatched: Option<&str>) -> Vec<u8> {
        let response = self.response_body(x);
        let read = self.read_request_body(x);
        let mut out =
            Vec::with_capacity(1024 + read.map_or(0, <[u8]>::len) + response.as_ref().map_or(0, Vec::len));
        let bodies = Bodies { request: read, response: response.as_deref() };
        let route = x.route();
        out.push(b'{');
        match &self.format {
            Format::Own(format) => {
                // The entry of a request that matched a route always has these.
                let own = |name: &str| route.is_some() && matches!(name, "route_id" | "service_id");
                let mut comma = format.write(x, bodies, own, false, &mut out);
                let ids = match route {
                    Some(route) => [
                        (&b"\"service_id\":"[..], Some(&route.service_id[..]).filter(|id| !id.is_empty())),
                        (b"\"route_id\":", Some(&route.id[..])),
                    ],
                    None => [
                        (&b""[..], None),
                        (
                            b"\"route_id\":",
                            unmatched.filter(|_| !format.names().any(|name| name == "route_id")),
                        ),
                    ],
                };
                for (key, id) in ids {
                    let Some(id) = id else { continue };
                    if std::mem::replace(&mut comma, true) {
                        out.push(b',');
                    }
                    out.extend_from_slice(key);
                    json_text(id.as_bytes(), &mut out);
                }
            }
            Format::Full(extra) => {
                let logged = self.request.as_ref().filter(|wanted| wanted.holds(x)).and(read);
                full::write(x, logged, response.as_deref(), unmatched, &mut out);
                if let Some(extra) = extra {
                    extra.write(x, bodies, |name| full::has(x, name, unmatched), true, &mut out);
                }
            }
        }
        out.push(b'}');
        out
    }

    /// Returns the part collected of the response's body, decoded from the upstream's coding.
    pub(crate) fn response_body(&self, x: &Exchange<'_>) -> Option<Vec<u8>> {
        let wanted = self.response.as_ref()?;
        let instance = std::ptr::from_ref(self).addr();
        let Collected(all) = x.note()?;
        let one = all.iter().find(|one| one.instance == instance && one.logged)?;
        // Our own plugins compress behind all filters, so the collected bytes are plain.
        let coding = x.response_header("Content-Encoding").filter(|_| !x.codes_body());
        Some(decoded(coding, &one.bytes, wanted.most).unwrap_or_else(|| one.bytes.clone()))
    }
}

/// As [`Logger::record`], with another entry.
pub(crate) fn wrapped(x: &Exchange<'_>, entry: impl FnOnce() -> Vec<u8>) -> Option<Record> {
    if x.is_loop() {
        return None;
    }
    let mut record = Record::from(entry());
    if x.hops() > 0 {
        record.fields.push((HOPS, x.hops().to_string().into_bytes()));
    }
    Some(record)
}

/// A body out of its coding, as far as it may be logged; none if it is in no coding we know, or broken
/// from its beginning.
fn decoded(coding: Option<&[u8]>, bytes: &[u8], most: usize) -> Option<Vec<u8>> {
    let most = most as u64;
    let mut out = Vec::new();
    // If decoding fails, also because the body was cut, the part before the failure is logged.
    let _ = match coding? {
        b"gzip" => MultiGzDecoder::new(bytes).take(most).read_to_end(&mut out),
        b"br" => brotli::Decompressor::new(bytes, 4096).take(most).read_to_end(&mut out),
        b"zstd" => zstd(bytes, zstd_window(bytes)).take(most).read_to_end(&mut out),
        _ => return None,
    };
    (!out.is_empty()).then_some(out)
}

impl Wanted {
    fn holds(&self, x: &Exchange<'_>) -> bool {
        self.when.as_ref().is_none_or(|when| when.matches(x))
    }
}

/// Returns the part of the request's body to log.
fn request_body<'x>(x: &'x Exchange<'_>, most: usize) -> Option<&'x [u8]> {
    let body = x.body_prefix();
    (!body.is_empty()).then(|| &body[..body.len().min(most)])
}

/// The metadata of a logger with a batch processor.
pub(crate) fn metadata_schema() -> Value {
    let mut properties = Options::metadata();
    Batching::extend_metadata(&mut properties);
    json!({"type": "object", "properties": properties})
}

/// # Errors
/// It is not a valid port.
pub(crate) fn port(written: i64) -> Result<u16, Invalid> {
    u16::try_from(written).ok().filter(|&port| port != 0).ok_or_else(|| {
        Invalid::new("this is not a valid port").at("/port").expected("1 to 65535").got(written.to_string())
    })
}

/// A condition of the configuration.
pub(crate) fn expr(name: &str, written: &Value) -> Result<Expr, Invalid> {
    Expr::compile(written).map_err(|invalid| {
        invalid.said(&format!("failed to validate the '{name}' expression: ")).at(format!("/{name}"))
    })
}

#[cfg(test)]
mod tests;
