//! OpenTelemetry collectors: spans by OTLP over HTTP or gRPC, in protobuf.
//!
//! A record is an encoded span. The settings have the attributes of the resource, and the name of the scope.

mod grpc;

use prost::Message;
use sdk::otlp::{self, Any, field};
use sdk::sink::{Batch, Deliver, Destination, Outcome, Taken};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::api::{self, Answer, Api, Client};
use super::{Context, Kind};

pub const KIND: Kind = Kind { name: "otlp", blocks: false, make };

#[derive(Debug, Deserialize)]
struct Settings {
    resource: Map<String, Value>,
    scope: String,
    version: String,
    #[serde(default)]
    grpc: bool,
}

struct Otlp {
    /// The encoded resource.
    resource: Vec<u8>,
    /// The encoded scope.
    scope: Vec<u8>,
}

/// `ExportTraceServiceResponse`.
#[derive(Clone, PartialEq, Message)]
struct Exported {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

/// `ExportTracePartialSuccess`.
#[derive(Clone, PartialEq, Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_spans: i64,
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
        Otlp { resource, scope }
    }

    fn request(&self, records: &[Taken]) -> Vec<u8> {
        let mut out = Vec::with_capacity(records.iter().map(|record| record.size() + 8).sum());
        otlp::message(field::REQUEST_RESOURCE_SPANS, &mut out, |out| {
            otlp::bytes(field::RESOURCE_SPANS_RESOURCE, &self.resource, out);
            otlp::message(field::RESOURCE_SPANS_SCOPE_SPANS, out, |out| {
                otlp::bytes(field::SCOPE_SPANS_SCOPE, &self.scope, out);
                for record in records {
                    otlp::bytes(field::SCOPE_SPANS_SPANS, record.bytes(), out);
                }
            });
        });
        out
    }
}

impl Api for Otlp {
    fn body(&self, _: &Client, records: &[Taken]) -> Vec<u8> {
        self.request(records)
    }

    fn outcome(&self, client: &Client, batch: Batch<'_>, answer: &Answer) -> Outcome {
        let ((host, port), status) = (client.place(batch), answer.status);
        match status {
            200..=299 => of_answer(&answer.body, batch.records.len()),
            // These may pass (OTLP specification, "OTLP/HTTP Response").
            429 | 502..=504 => {
                Outcome::retry(format!("the collector {host}:{port} answered with status {status}"))
            }
            _ => Outcome::Rejected(format!("the collector {host}:{port} answered with status {status}")),
        }
    }
}

/// A collector may have rejected some spans, which are not sent again.
fn of_answer(body: &[u8], spans: usize) -> Outcome {
    let rejected = Exported::decode(body).ok().and_then(|exported| exported.partial_success);
    let rejected =
        rejected.map_or(0, |partial| usize::try_from(partial.rejected_spans).unwrap_or(0)).min(spans);
    if rejected == 0 {
        return Outcome::Delivered;
    }
    let reason = format!("the collector rejected {rejected} of {spans} spans");
    Outcome::Partial { again: Vec::new(), rejected, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_a_resource_and_spans() {
        let settings = Settings {
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

    #[test]
    fn rejected_spans_are_counted() {
        let answer = |rejected_spans| {
            Exported { partial_success: Some(PartialSuccess { rejected_spans }) }.encode_to_vec()
        };
        for (body, lost) in [
            (Vec::new(), 0),
            (b"ok".to_vec(), 0),
            (answer(0), 0),
            (answer(-1), 0),
            (answer(2), 2),
            (answer(i64::MAX), 5),
        ] {
            let rejected = match of_answer(&body, 5) {
                Outcome::Delivered => 0,
                Outcome::Partial { rejected, .. } => rejected,
                other => panic!("{other:?}"),
            };
            assert_eq!(rejected, lost, "{body:?}");
        }
    }
}
