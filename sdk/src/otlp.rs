//! Messages of OTLP 1.x (`opentelemetry/proto/{trace,logs,metrics}/v1`), written field by field: a span, a log record
//! or a metric is encoded once, where its values are, and put into a request as it is.

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::protobuf::{bytes, fixed32, fixed64, message, number, text};

/// Numbers of fields of the messages used here.
pub mod field {
    // The requests of all signals, and the messages in them, differ only in their names.
    pub const REQUEST_RESOURCES: u32 = 1;
    pub const RESOURCES_RESOURCE: u32 = 1;
    pub const RESOURCES_SCOPES: u32 = 2;
    pub const SCOPES_SCOPE: u32 = 1;
    /// Spans, log records or metrics.
    pub const SCOPES_RECORDS: u32 = 2;
    pub const RESOURCE_ATTRIBUTES: u32 = 1;
    pub const SCOPE_NAME: u32 = 1;
    pub const SCOPE_VERSION: u32 = 2;

    pub const SPAN_TRACE_ID: u32 = 1;
    pub const SPAN_ID: u32 = 2;
    pub const SPAN_TRACE_STATE: u32 = 3;
    pub const SPAN_PARENT: u32 = 4;
    pub const SPAN_NAME: u32 = 5;
    pub const SPAN_KIND: u32 = 6;
    pub const SPAN_START: u32 = 7;
    pub const SPAN_END: u32 = 8;
    pub const SPAN_ATTRIBUTES: u32 = 9;
    pub const SPAN_STATUS: u32 = 15;
    pub const STATUS_MESSAGE: u32 = 2;
    pub const STATUS_CODE: u32 = 3;

    pub const LOG_TIME: u32 = 1;
    pub const LOG_SEVERITY: u32 = 2;
    pub const LOG_SEVERITY_TEXT: u32 = 3;
    pub const LOG_BODY: u32 = 5;
    pub const LOG_ATTRIBUTES: u32 = 6;
    pub const LOG_FLAGS: u32 = 8;
    pub const LOG_TRACE_ID: u32 = 9;
    pub const LOG_SPAN_ID: u32 = 10;
    pub const LOG_OBSERVED: u32 = 11;

    pub const METRIC_NAME: u32 = 1;
    pub const METRIC_DESCRIPTION: u32 = 2;
    pub const METRIC_GAUGE: u32 = 5;
    pub const METRIC_SUM: u32 = 7;
    pub const METRIC_HISTOGRAM: u32 = 9;
    /// Of gauges, sums and histograms.
    pub const POINTS: u32 = 1;
    /// Of sums and histograms.
    pub const TEMPORALITY: u32 = 2;
    pub const SUM_MONOTONIC: u32 = 3;
    /// Of points of numbers and of histograms.
    pub const POINT_START: u32 = 2;
    pub const POINT_TIME: u32 = 3;
    pub const NUMBER_INT: u32 = 6;
    pub const NUMBER_ATTRIBUTES: u32 = 7;
    pub const HISTOGRAM_COUNT: u32 = 4;
    pub const HISTOGRAM_SUM: u32 = 5;
    pub const HISTOGRAM_BUCKETS: u32 = 6;
    pub const HISTOGRAM_BOUNDS: u32 = 7;
    pub const HISTOGRAM_ATTRIBUTES: u32 = 9;
}

/// `AGGREGATION_TEMPORALITY_CUMULATIVE`.
pub const CUMULATIVE: u64 = 2;

/// `SPAN_KIND_SERVER`.
pub const KIND_SERVER: u64 = 2;

/// `STATUS_CODE_ERROR`.
pub const STATUS_ERROR: u64 = 2;

/// `SEVERITY_NUMBER_INFO`, `_WARN` and `_ERROR`.
pub const SEVERITY_INFO: u64 = 9;
pub const SEVERITY_WARN: u64 = 13;
pub const SEVERITY_ERROR: u64 = 17;

/// Bytes of a full request: collectors of gRPC take 4 MiB unless configured otherwise.
pub const REQUEST_BYTES: usize = 2 << 20;

/// The kind of telemetry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Signal {
    Traces,
    Logs,
    Metrics,
}

impl Signal {
    /// The path of OTLP over HTTP.
    pub fn path(self) -> &'static str {
        match self {
            Signal::Traces => "/v1/traces",
            Signal::Logs => "/v1/logs",
            Signal::Metrics => "/v1/metrics",
        }
    }

    /// The path of OTLP over gRPC: the service and its method.
    pub fn method(self) -> &'static str {
        match self {
            Signal::Traces => "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            Signal::Logs => "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
            Signal::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
        }
    }

    /// The parts of it that a collector may reject, for messages.
    pub fn parts(self) -> &'static str {
        match self {
            Signal::Traces => "spans",
            Signal::Logs => "log records",
            Signal::Metrics => "data points",
        }
    }
}

/// The value of an attribute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Any<'a> {
    /// Invalid UTF-8 becomes U+FFFD.
    Text(&'a [u8]),
    Bool(bool),
    Int(i64),
    Double(f64),
}

/// Appends an attribute: a `KeyValue` in this field.
pub fn attribute(field: u32, key: &[u8], value: Any<'_>, out: &mut Vec<u8>) {
    message(field, out, |out| {
        text(1, key, out);
        any(2, value, out);
    });
}

/// Appends an `AnyValue`.
pub fn any(field: u32, value: Any<'_>, out: &mut Vec<u8>) {
    message(field, out, |out| match value {
        Any::Text(value) => text(1, value, out),
        Any::Bool(value) => number(2, value.into(), out),
        // Negative numbers are those of two's complement.
        Any::Int(value) => number(3, value.cast_unsigned(), out),
        Any::Double(value) => fixed64(4, value.to_bits(), out),
    });
}

/// Appends an attribute whose value is JSON.
pub fn json_attribute(field: u32, key: &str, value: &Value, out: &mut Vec<u8>) {
    message(field, out, |out| {
        text(1, key.as_bytes(), out);
        json(2, value, out);
    });
}

/// Appends an `AnyValue` that is JSON. Whole numbers stay whole as far as they fit; null is no value.
pub fn json(field: u32, value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => bytes(field, &[], out),
        Value::Bool(value) => any(field, Any::Bool(*value), out),
        Value::String(value) => any(field, Any::Text(value.as_bytes()), out),
        Value::Number(value) => match value.as_i64() {
            Some(value) => any(field, Any::Int(value), out),
            None => any(field, Any::Double(value.as_f64().unwrap_or_default()), out),
        },
        Value::Array(all) => message(field, out, |out| {
            message(5, out, |out| all.iter().for_each(|one| json(1, one, out)));
        }),
        Value::Object(all) => message(field, out, |out| {
            message(6, out, |out| all.iter().for_each(|(key, one)| json_attribute(1, key, one, out)));
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_becomes_values() {
        let mut out = Vec::new();
        json(5, &serde_json::json!({"a": [true, null, -1, 0.5]}), &mut out);
        let (list, double) = ([0x0a, 2, 0x10, 1, 0x0a, 0, 0x0a, 11, 0x18], 0.5f64.to_le_bytes());
        let minus_one = [255, 255, 255, 255, 255, 255, 255, 255, 255, 1];
        let values = [&list[..], &minus_one, &[0x0a, 9, 0x21], &double].concat();
        let inner =
            [&[0x0a, 1, b'a', 0x12, values.len() as u8 + 2, 0x2a, values.len() as u8][..], &values].concat();
        let map = [&[0x0a, inner.len() as u8][..], &inner].concat();
        assert_eq!(out, [&[0x2a, map.len() as u8 + 2, 0x32, map.len() as u8][..], &map].concat());
        out.clear();
        json(1, &serde_json::json!(u64::MAX), &mut out);
        assert_eq!(out, [&[0x0a, 9, 0x21][..], &(u64::MAX as f64).to_le_bytes()].concat());
        out.clear();
        fixed32(8, 1, &mut out);
        assert_eq!(out, [0x45, 1, 0, 0, 0]);
    }

    #[test]
    fn bytes_are_those_of_the_protocol() {
        let mut out = Vec::new();
        number(field::SPAN_KIND, KIND_SERVER, &mut out);
        fixed64(field::SPAN_START, 1, &mut out);
        assert_eq!(out, [0x30, 2, 0x39, 1, 0, 0, 0, 0, 0, 0, 0]);
        out.clear();
        attribute(field::SPAN_ATTRIBUTES, b"k", Any::Text(b"v\xff"), &mut out);
        assert_eq!(out, [0x4a, 11, 0x0a, 1, b'k', 0x12, 6, 0x0a, 4, b'v', 0xef, 0xbf, 0xbd]);
        out.clear();
        attribute(1, b"i", Any::Int(-1), &mut out);
        assert_eq!(out[..7], [0x0a, 16, 0x0a, 1, b'i', 0x12, 11]);
        assert_eq!(out[7..], [0x18, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]);
        out.clear();
        attribute(1, b"b", Any::Bool(true), &mut out);
        assert_eq!(out, [0x0a, 7, 0x0a, 1, b'b', 0x12, 2, 0x10, 1]);
        out.clear();
        message(field::SPAN_STATUS, &mut out, |out| out.extend_from_slice(&[7; 200]));
        assert_eq!((&out[..3], out.len()), (&[0x7a, 0xc8, 1][..], 203));
    }
}
