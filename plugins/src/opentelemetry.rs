//! hot path
//!
//! opentelemetry: a span for each sampled request, sent to a collector by OTLP over HTTP or gRPC.
//!
//! Settings, names and attributes as in APISIX 3.18. The collector and the like are in the plugin's metadata, else in
//! `plugin_attr.opentelemetry`; without both, the defaults hold. `traceparent` is set for the upstream whether the
//! request is sampled or not; a request that is not sampled costs no allocation.

mod sampler;
mod settings;

use model::Invalid;
use sdk::chain::Phases;
use sdk::exchange::Source;
use sdk::otlp::{self, Any, field};
use sdk::sink::Sink;
use sdk::trace::{SpanContext, Tracer, new_ids, unhex};
use sdk::vars::Var;
use sdk::{Build, Exchange, HeaderName, Named, Plugin, Step};
use serde::Deserialize;
use serde_json::{Value, json};
use smallvec::SmallVec;

use crate::logger::wrapped;
use sampler::{Sampler, SamplerConfig};
use settings::Settings;

/// The plugin instance.
pub struct Opentelemetry {
    sampler: Sampler,
    /// Differs for each instance of a request.
    salt: u64,
    of_request_id: bool,
    sets_variables: bool,
    names: Names,
    vars: Vars,
    /// `additional_attributes`.
    further: Vec<Var>,
    /// `additional_header_prefix_attributes`.
    headers: Vec<Wanted>,
    sink: Sink,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    sampler: SamplerConfig,
    #[serde(default)]
    additional_attributes: Vec<String>,
    #[serde(default)]
    additional_header_prefix_attributes: Vec<String>,
}

struct Names {
    traceparent: HeaderName,
    tracestate: HeaderName,
    request_id: HeaderName,
}

struct Vars {
    host: Var,
    request_uri: Var,
    user_agent: Var,
}

/// Headers whose values become attributes; names are in lower case.
enum Wanted {
    One(String),
    Prefix(String),
}

/// The span of a sampled request, by plugin instance.
struct Active {
    instance: usize,
    context: SpanContext,
    parent: Option<[u8; 8]>,
}

type Spans = SmallVec<[Active; 1]>;

/// Attributes of a span; text that is absent or empty has none.
struct Attributes<'o>(&'o mut Vec<u8>);

impl Plugin for Opentelemetry {
    const NAME: &'static str = "opentelemetry";
    const PRIORITY: i32 = 12009;
    const PHASES: Phases = Phases::REWRITE.with(Phases::LOG);

    type Config = Config;

    fn schema() -> Value {
        let names = || json!({"type": "array", "items": {"type": "string", "minLength": 1}});
        json!({
            "type": "object",
            "properties": {
                "sampler": sampler::schema(),
                "additional_attributes": names(),
                "additional_header_prefix_attributes": names(),
            },
        })
    }

    fn metadata_schema() -> Option<Value> {
        Some(settings::schema())
    }

    fn check_metadata(metadata: &Value, _cx: &Build<'_>) -> Result<(), Invalid> {
        Settings::read(metadata).map(drop)
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<Opentelemetry, Invalid> {
        let settings = match (cx.metadata(), cx.attr) {
            (Some(metadata), _) => Settings::read(metadata)?,
            (None, Some(attr)) => Settings::read(attr)
                .map_err(|invalid| invalid.said("plugin_attr.opentelemetry in config.yaml: "))?,
            (None, None) => Settings::read(&json!({}))?,
        };
        let name = |text: &str| HeaderName::new(text).map_err(|bad| Invalid::new(bad.to_string()));
        let wanted = |written: &String| {
            let name = written.to_ascii_lowercase();
            match name.strip_suffix('*').filter(|prefix| !prefix.is_empty()) {
                Some(prefix) => Wanted::Prefix(prefix.to_owned()),
                None => Wanted::One(name),
            }
        };
        Ok(Opentelemetry {
            sampler: Sampler::new(&config.sampler),
            salt: salt(cx.owner.collection, &cx.owner.id),
            of_request_id: settings.of_request_id,
            sets_variables: settings.sets_variables,
            names: Names {
                traceparent: name("traceparent")?,
                tracestate: name("tracestate")?,
                request_id: name("x-request-id")?,
            },
            vars: Vars {
                host: Var::parse("host"),
                request_uri: Var::parse("request_uri"),
                user_agent: Var::parse("http_user_agent"),
            },
            further: config.additional_attributes.iter().map(|name| Var::parse(name)).collect(),
            headers: config.additional_header_prefix_attributes.iter().map(wanted).collect(),
            sink: cx.sink(settings.spec(Self::NAME)),
        })
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        let parent = self.parent(x);
        let (made, span_id) = new_ids(x.unique(), self.salt);
        let trace_id = match parent {
            Some(parent) => parent.trace_id,
            None if self.of_request_id => self.request_id(x).unwrap_or(made),
            None => made,
        };
        let sampled = self.sampler.samples(parent.as_ref(), &trace_id);
        let context = SpanContext { trace_id, span_id, sampled };
        if parent.is_none() {
            // Without a valid parent its state has no meaning (W3C Trace Context, section 3.3).
            x.remove_header(&self.names.tracestate);
        }
        // The characters of the value are valid.
        let _ = x.set_header(&self.names.traceparent, &context.traceparent());
        if self.sets_variables {
            x.set_span(Tracer::OpenTelemetry, context);
        }
        if sampled {
            x.expect_log();
            let instance = std::ptr::from_ref(self).addr();
            let active = Active { instance, context, parent: parent.map(|parent| parent.span_id) };
            match x.note_mut::<Spans>() {
                Some(spans) => spans.push(active),
                None => x.set_note(Spans::from_iter([active])),
            }
        }
        Step::Next
    }

    fn logs_on_demand(&self) -> bool {
        true
    }

    fn log(&self, x: &mut Exchange<'_>) {
        let instance = std::ptr::from_ref(self).addr();
        let Some(active) =
            x.note::<Spans>().and_then(|spans| spans.iter().find(|one| one.instance == instance))
        else {
            return;
        };
        if let Some(record) = wrapped(x, || self.span(x, active)) {
            self.sink.push(x, record);
        }
    }
}

impl Opentelemetry {
    /// The span that the client sent; none if it is malformed, or there are several.
    fn parent(&self, x: &Exchange<'_>) -> Option<SpanContext> {
        let name = &self.names.traceparent;
        let mut all = x.request().fields.all_checked(name.id(), name.text());
        let first = all.next()?;
        if all.next().is_some() {
            return None;
        }
        SpanContext::parse(first)
    }

    /// The identifier of a request as one of its trace: 32 hexadecimal digits.
    fn request_id(&self, x: &Exchange<'_>) -> Option<[u8; 16]> {
        let trace_id = match x.header(&self.names.request_id) {
            Some(text) => {
                let mut digits: [u8; 32] = text.try_into().ok()?;
                digits.make_ascii_lowercase();
                unhex(&digits)?
            }
            None => {
                let [high, low] = x.unique();
                (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
            }
        };
        (trace_id != [0; 16]).then_some(trace_id)
    }

    /// The encoded span of an exchange that has ended.
    fn span(&self, x: &Exchange<'_>, active: &Active) -> Vec<u8> {
        let mut out = Vec::with_capacity(1024);
        let (context, route) = (&active.context, x.route());
        otlp::bytes(field::SPAN_TRACE_ID, &context.trace_id, &mut out);
        otlp::bytes(field::SPAN_ID, &context.span_id, &mut out);
        if active.parent.is_some()
            && let Some(state) = x.header(&self.names.tracestate)
        {
            otlp::text(field::SPAN_TRACE_STATE, state, &mut out);
        }
        if let Some(parent) = &active.parent {
            otlp::bytes(field::SPAN_PARENT, parent, &mut out);
        }
        let method = x.request().method_bytes();
        let name = match route {
            Some(_) => [method, b" ", x.matched_uri().as_bytes()].concat(),
            None => method.to_vec(),
        };
        otlp::text(field::SPAN_NAME, &name, &mut out);
        otlp::number(field::SPAN_KIND, otlp::KIND_SERVER, &mut out);
        let start = x.start_ms().saturating_mul(1_000_000);
        otlp::fixed64(field::SPAN_START, start, &mut out);
        let took = x.timing().total_us.saturating_mul(1000);
        otlp::fixed64(field::SPAN_END, start.saturating_add(took), &mut out);
        self.attributes(x, Attributes(&mut out));
        if x.status() >= 500 {
            otlp::message(field::SPAN_STATUS, &mut out, |out| {
                let message = format!("{} error: {}", response_source(x), x.status());
                otlp::text(field::STATUS_MESSAGE, message.as_bytes(), out);
                otlp::number(field::STATUS_CODE, otlp::STATUS_ERROR, out);
            });
        }
        out
    }

    fn attributes(&self, x: &Exchange<'_>, mut to: Attributes<'_>) {
        let method = x.request().method_bytes();
        let scheme = x.client().scheme().as_bytes();
        let agent = self.vars.user_agent.of(x).unwrap_or_default();
        to.text("net.host.name", &self.vars.host.of(x).unwrap_or_default());
        to.text("http.method", method);
        to.text("http.scheme", scheme);
        to.text("http.target", &self.vars.request_uri.of(x).unwrap_or_default());
        to.text("http.user_agent", &agent);
        to.text("http.request.method", method);
        to.text("url.scheme", scheme);
        to.text("url.path", x.path());
        to.text("user_agent.original", &agent);
        if let Some(route) = x.route() {
            to.text("apisix.route_id", route.id.as_bytes());
            to.text("apisix.route_name", route.name.as_bytes());
            to.text("http.route", x.matched_uri().as_bytes());
            to.text("apisix.service_id", route.service_id.as_bytes());
            to.text("apisix.service_name", route.service_name.as_bytes());
        }
        to.text("apisix.response_source", response_source(x).as_bytes());
        to.number("http.status_code", x.status());
        to.number("http.response.status_code", x.status());
        for var in &self.further {
            to.text(var.name(), &var.of(x).unwrap_or_default());
        }
        for wanted in &self.headers {
            wanted.write(x, &mut to);
        }
    }
}

impl Attributes<'_> {
    fn text(&mut self, key: &str, value: &[u8]) {
        if !value.is_empty() {
            otlp::attribute(field::SPAN_ATTRIBUTES, key.as_bytes(), Any::Text(value), self.0);
        }
    }

    fn number(&mut self, key: &str, value: u16) {
        otlp::attribute(field::SPAN_ATTRIBUTES, key.as_bytes(), Any::Int(value.into()), self.0);
    }
}

impl Wanted {
    /// Values of equal names are joined.
    fn write(&self, x: &Exchange<'_>, to: &mut Attributes<'_>) {
        let mut all: Vec<(String, Vec<u8>)> = Vec::new();
        for (name, value, _) in x.request().fields.iter() {
            let name = String::from_utf8_lossy(name).to_ascii_lowercase();
            let is_wanted = match self {
                Wanted::One(one) => name == *one,
                Wanted::Prefix(prefix) => name.starts_with(prefix),
            };
            if !is_wanted {
                continue;
            }
            match all.iter_mut().find(|(known, _)| *known == name) {
                Some((_, joined)) => {
                    joined.extend_from_slice(b", ");
                    joined.extend_from_slice(value);
                }
                None => all.push((name, value.to_vec())),
            }
        }
        for (name, value) in &all {
            to.text(name, value);
        }
    }
}

/// The span of an exchange that goes to a collector: of several, the one that the upstream knows.
pub(crate) fn sent_span(x: &Exchange<'_>) -> Option<SpanContext> {
    x.note::<Spans>()?.last().map(|active| active.context)
}

/// APISIX's words for the origin of a response.
pub(crate) fn response_source(x: &Exchange<'_>) -> &'static str {
    match x.source() {
        Source::Upstream => "upstream",
        // An error of a proxied request.
        Source::Gateway if x.upstream_addr().is_some() => "nginx",
        _ => "apisix",
    }
}

/// Spans of a global rule and of a route differ (FNV-1a).
pub(crate) fn salt(collection: &str, id: &str) -> u64 {
    let bytes = collection.bytes().chain([0]).chain(id.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests;
