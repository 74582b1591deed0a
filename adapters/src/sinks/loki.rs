//! Grafana Loki: entries with equal labels are a stream of the push API (`/loki/api/v1/push`).
//!
//! A record has two fields: `labels`, a JSON object of texts, and `time`, nanoseconds since the Unix epoch.

use std::collections::HashMap;

use sdk::log_entry::json_text;
use sdk::sink::{Batch, Deliver, Destination, Outcome, Taken};

use super::api::{self, Answer, Api, Client, is_final};
use super::{Context, Kind};

pub const KIND: Kind = Kind { name: "loki", blocks: false, make };

struct Loki;

fn make(to: &Destination, context: &Context) -> Result<Box<dyn Deliver>, String> {
    api::make(Loki, to, context)
}

impl Api for Loki {
    fn body(&self, _: &Client, records: &[Taken]) -> Vec<u8> {
        streams(records)
    }

    fn outcome(&self, client: &Client, _: Batch<'_>, answer: &Answer) -> Outcome {
        if answer.status < 300 {
            return Outcome::Delivered;
        }
        let body = client.repeated(&answer.body);
        let reason = format!("loki server returned status: {}, body: {body}", answer.status);
        if is_final(answer.status) { Outcome::Rejected(reason) } else { Outcome::retry(reason) }
    }
}

/// The streams in the order of their first entries.
fn streams(records: &[Taken]) -> Vec<u8> {
    let mut streams: Vec<(&[u8], Vec<&Taken>)> = Vec::new();
    let mut by_labels = HashMap::new();
    for record in records {
        let labels = record.field("labels").unwrap_or(b"{}");
        let at = *by_labels.entry(labels).or_insert_with(|| {
            streams.push((labels, Vec::new()));
            streams.len() - 1
        });
        streams[at].1.push(record);
    }
    let mut out = Vec::with_capacity(records.iter().map(|record| record.size() * 5 / 4 + 64).sum());
    out.extend_from_slice(b"{\"streams\":[");
    for (at, (labels, records)) in streams.iter().enumerate() {
        out.extend_from_slice(if at > 0 { b",{\"stream\":" } else { b"{\"stream\":" });
        out.extend_from_slice(labels);
        out.extend_from_slice(b",\"values\":[");
        for (at, record) in records.iter().enumerate() {
            out.extend_from_slice(if at > 0 { b",[" } else { b"[" });
            json_text(record.field("time").unwrap_or(b"0"), &mut out);
            out.push(b',');
            json_text(record.bytes(), &mut out);
            out.push(b']');
        }
        out.extend_from_slice(b"]}");
    }
    out.extend_from_slice(b"]}");
    out
}

#[cfg(test)]
mod tests {
    use sdk::sink::Record;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn entries_with_equal_labels_are_a_stream() {
        let record = |labels: &str, time: &str, bytes: &str| Record {
            fields: vec![("labels", labels.into()), ("time", time.into())],
            bytes: bytes.into(),
        };
        let records = super::super::tests::taken(vec![
            record(r#"{"a":"1"}"#, "1000000", r#"{"n":1}"#),
            record(r#"{"a":"2"}"#, "2000000", r#"{"n":"\n"}"#),
            record(r#"{"a":"1"}"#, "3000000", r#"{"n":3}"#),
        ]);
        let pushed: Value = serde_json::from_slice(&streams(&records)).unwrap();
        assert_eq!(
            pushed,
            json!({"streams": [
                {"stream": {"a": "1"}, "values": [["1000000", "{\"n\":1}"], ["3000000", "{\"n\":3}"]]},
                {"stream": {"a": "2"}, "values": [["2000000", "{\"n\":\"\\n\"}"]]},
            ]})
        );
    }
}
