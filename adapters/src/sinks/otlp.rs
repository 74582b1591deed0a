//! OpenTelemetry collectors: spans, log records and metrics by OTLP over HTTP or gRPC, in protobuf.
//!
//! A record is an encoded span or log record, or a list of metrics, each with its field. The body and further attributes
//! of a log record may be JSON in fields of their own. The settings have the attributes of the resource, and the name of
//! the scope.

mod grpc;

use std::cell::Cell;
use std::time::{Duration, Instant};

use prost::Message;
use sdk::otlp::{self, Any, Signal, field};
use sdk::sink::{Batch, Deliver, Destination, Outcome, Taken};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::api::{self, AT_ONCE, Answer, Api, Client};
use super::{Context, Kind};

/// The longest delay before a retry that a collector may state.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// Time between two messages about warnings of a collector.
const PAUSE: Duration = Duration::from_secs(60);

pub const KIND: Kind = Kind { name: "otlp", blocks: false, make };

#[derive(Debug, Deserialize)]
struct Settings {
    signal: Signal,
    resource: Map<String, Value>,
    scope: String,
    version: String,
    #[serde(default)]
    grpc: bool,
}

struct Otlp {
    signal: Signal,
    /// The encoded resource.
    resource: Vec<u8>,
    /// The encoded scope.
    scope: Vec<u8>,
    /// Time of the last message about a warning.
    warned: Cell<Option<Instant>>,
}

/// `ExportTraceServiceResponse`, and those of the other signals.
#[derive(Clone, PartialEq, Message)]
struct Exported {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

/// `ExportTracePartialSuccess`, and those of the other signals.
#[derive(Clone, PartialEq, Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected: i64,
    /// Without a rejection it is a warning.
    #[prost(bytes = "vec", tag = "2")]
    message: Vec<u8>,
}

fn make(to: &Destination, context: &Context) -> Result<Box<dyn Deliver>, String> {
    let settings: Settings = super::settings(to)?;
    let otlp = Otlp::new(&settings);
    if settings.grpc { grpc::make(otlp, to, context) } else { api::make(otlp, to, context) }
}

impl Otlp {
    fn new(settings: &Settings) -> Otlp {
        let (mut resource, mut scope) = (Vec::new(), Vec::new());
        for (key, value) in &settings.resource {
            let value = match value {
                Value::String(text) => Any::Text(text.as_bytes()),
                Value::Bool(value) => Any::Bool(*value),
                other => Any::Double(other.as_f64().unwrap_or_default()),
            };
            otlp::attribute(field::RESOURCE_ATTRIBUTES, key.as_bytes(), value, &mut resource);
        }
        otlp::text(field::SCOPE_NAME, settings.scope.as_bytes(), &mut scope);
        otlp::text(field::SCOPE_VERSION, settings.version.as_bytes(), &mut scope);
        Otlp { signal: settings.signal, resource, scope, warned: Cell::default() }
    }

    /// Deliveries under way at the same time. Values of metrics must arrive in order.
    fn deliveries(&self) -> usize {
        match self.signal {
            Signal::Traces | Signal::Logs => AT_ONCE,
            Signal::Metrics => 1,
        }
    }

    fn request(&self, records: &[Taken]) -> Vec<u8> {
        let mut out = Vec::with_capacity(records.iter().map(|record| record.size() + 8).sum());
        otlp::message(field::REQUEST_RESOURCES, &mut out, |out| {
            otlp::bytes(field::RESOURCES_RESOURCE, &self.resource, out);
            otlp::message(field::RESOURCES_SCOPES, out, |out| {
                otlp::bytes(field::SCOPES_SCOPE, &self.scope, out);
                for record in records {
                    match self.signal {
                        Signal::Traces | Signal::Logs => append(record, out),
                        Signal::Metrics => out.extend_from_slice(record.bytes()),
                    }
                }
            });
        });
        out
    }
}

/// Appends a record, with the parts of it that are JSON.
fn append(record: &Taken, out: &mut Vec<u8>) {
    let json = |name| record.field(name).and_then(|json| serde_json::from_slice::<Value>(json).ok());
    let (body, attributes) = (json("body"), json("attributes"));
    otlp::message(field::SCOPES_RECORDS, out, |out| {
        out.extend_from_slice(record.bytes());
        if let Some(body) = body {
            otlp::json(field::LOG_BODY, &body, out);
        }
        for (key, value) in attributes.as_ref().and_then(Value::as_object).into_iter().flatten() {
            otlp::json_attribute(field::LOG_ATTRIBUTES, key, value, out);
        }
    });
}

impl Api for Otlp {
    fn at_once(&self) -> usize {
        self.deliveries()
    }

    fn body(&self, _: &Client, records: &[Taken]) -> Vec<u8> {
        self.request(records)
    }

    fn outcome(&self, client: &Client, batch: Batch<'_>, answer: &Answer) -> Outcome {
        let ((host, port), status) = (client.place(batch), answer.status);
        match status {
            200..=299 => {
                self.of_answer(&answer.body, batch.records.len(), |message| client.repeated(message))
            }
            // These may pass (OTLP specification, "OTLP/HTTP Response").
            429 | 502..=504 => Outcome::Retry {
                after: answer.retry_after.map(|seconds| Duration::from_secs(seconds).min(LONGEST_DELAY)),
                reason: format!("the collector {host}:{port} answered with status {status}"),
            },
            _ => Outcome::Rejected(format!("the collector {host}:{port} answered with status {status}")),
        }
    }
}

impl Otlp {
    /// A collector may have rejected some of the records, which are not sent again. `repeated` removes secrets from
    /// its message.
    fn of_answer(&self, body: &[u8], records: usize, repeated: impl Fn(&[u8]) -> String) -> Outcome {
        let partial = Exported::decode(body).ok().and_then(|exported| exported.partial_success);
        let Some(PartialSuccess { rejected, message }) = partial else { return Outcome::Delivered };
        let parts = self.signal.parts();
        match usize::try_from(rejected).unwrap_or(0) {
            0 if message.is_empty() => Outcome::Delivered,
            0 => {
                if self.warned.get().is_none_or(|warned| warned.elapsed() >= PAUSE) {
                    self.warned.set(Some(Instant::now()));
                    tracing::warn!(
                        "the collector accepted all {parts} with a warning: {}",
                        repeated(&message)
                    );
                }
                Outcome::Delivered
            }
            rejected => {
                let reason = match self.signal {
                    Signal::Metrics => format!("the collector rejected {rejected} {parts}"),
                    _ => format!("the collector rejected {rejected} of {records} {parts}"),
                };
                let reason = match &message[..] {
                    [] => reason,
                    message => format!("{reason}: {}", repeated(message)),
                };
                Outcome::Partial { again: Vec::new(), rejected: rejected.min(records), reason }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_a_resource_and_spans() {
        let settings = Settings {
            signal: Signal::Traces,
            resource: [("a".to_owned(), Value::from("b"))].into_iter().collect(),
            scope: "s".to_owned(),
            version: "1".to_owned(),
            grpc: false,
        };
        let records = super::super::tests::taken(vec![vec![1, 2].into(), vec![3].into()]);
        let expected = [
            &[0x0a, 29, 0x0a, 10, 0x0a, 8, 0x0a, 1, b'a', 0x12, 3, 0x0a, 1, b'b'][..],
            &[0x12, 15, 0x0a, 6, 0x0a, 1, b's', 0x12, 1, b'1', 0x12, 2, 1, 2, 0x12, 1, 3],
        ];
        assert_eq!(Otlp::new(&settings).request(&records), expected.concat());
    }

    fn otlp(signal: Signal) -> Otlp {
        let (scope, version) = ("s".to_owned(), "1".to_owned());
        Otlp::new(&Settings { signal, resource: Map::new(), scope, version, grpc: false })
    }

    #[test]
    fn parts_of_a_log_record_may_be_json() {
        let record = sdk::sink::Record {
            fields: vec![("body", b"{\"a\":1}".to_vec()), ("attributes", b"{\"b\":\"c\"}".to_vec())],
            bytes: vec![0x10, 9],
        };
        let request = otlp(Signal::Logs).request(&super::super::tests::taken(vec![record]));
        let expected = [
            &[0x12, 25, 0x10, 9][..],
            &[0x2a, 11, 0x32, 9, 0x0a, 7, 0x0a, 1, b'a', 0x12, 2, 0x18, 1],
            &[0x32, 8, 0x0a, 1, b'b', 0x12, 3, 0x0a, 1, b'c'],
        ];
        let expected = expected.concat();
        assert!(request.ends_with(&expected), "{request:?}\n{expected:?}");
    }

    #[test]
    fn rejected_records_are_counted() {
        let answer = |rejected, message: &str| {
            let message = message.as_bytes().to_vec();
            Exported { partial_success: Some(PartialSuccess { rejected, message }) }.encode_to_vec()
        };
        for (body, lost, text) in [
            (Vec::new(), 0, ""),
            (b"ok".to_vec(), 0, ""),
            (answer(0, ""), 0, ""),
            (answer(0, "a warning"), 0, ""),
            (answer(-1, ""), 0, ""),
            (answer(2, ""), 2, "the collector rejected 2 of 5 log records"),
            (answer(2, "too old"), 2, "the collector rejected 2 of 5 log records: <too old>"),
            (answer(i64::MAX, ""), 5, "the collector rejected 9223372036854775807 of 5 log records"),
        ] {
            let repeated = |message: &[u8]| format!("<{}>", String::from_utf8_lossy(message));
            let (rejected, reason) = match otlp(Signal::Logs).of_answer(&body, 5, repeated) {
                Outcome::Delivered => (0, String::new()),
                Outcome::Partial { rejected, reason, .. } => (rejected, reason),
                other => panic!("{other:?}"),
            };
            assert_eq!((rejected, &reason[..]), (lost, text), "{body:?}");
        }
    }
}
