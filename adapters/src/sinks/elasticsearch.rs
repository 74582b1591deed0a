//! Elasticsearch and OpenSearch: the bulk API, an action and a document per entry.
//!
//! A record has the field `index`. Versions 5 and 6 need a type for each document, so the version is asked for before
//! the first batch. Documents that the answer reports as failed are sent again if their failure may pass.

use std::cell::Cell;

use sdk::chain::LocalFuture;
use sdk::log_entry::json_text;
use sdk::sink::{Batch, Deliver, Destination, Outcome, Taken};
use serde::Deserialize;
use serde_json::Value;

use super::api::{self, ANSWER, Answer, Api, Client, is_final};
use super::{Context, Kind};

pub const KIND: Kind = Kind { name: "elasticsearch", blocks: false, make };

/// Bytes of an answer for each document. The report of a failure repeats parts of the document.
const PER_DOCUMENT: usize = 1 << 10;

/// The most bytes of an answer, for any number of documents.
const MOST: usize = 8 << 20;

#[derive(Default)]
struct Elasticsearch {
    version: Cell<Option<u32>>,
}

/// The answer of the bulk API.
#[derive(Deserialize)]
struct Bulk {
    #[serde(default)]
    errors: bool,
    #[serde(default)]
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    index: Option<Done>,
}

#[derive(Deserialize)]
struct Done {
    #[serde(default)]
    status: u16,
    #[serde(default)]
    error: Value,
}

fn make(to: &Destination, context: &Context) -> Result<Box<dyn Deliver>, String> {
    api::make(Elasticsearch::default(), to, context)
}

impl Api for Elasticsearch {
    fn prepare<'a>(&'a self, client: &'a Client, batch: Batch<'a>) -> LocalFuture<'a, Result<(), String>> {
        Box::pin(async move {
            if self.version.get().is_some() {
                return Ok(());
            }
            let answer = client.get_root(batch).await?;
            match version(&answer) {
                Some(version) => self.version.set(Some(version)),
                // The next batch asks again.
                None => tracing::error!(
                    "failed to get Elasticsearch version: server returned status: {}, body: {}",
                    answer.status,
                    client.repeated(&answer.body)
                ),
            }
            Ok(())
        })
    }

    fn body(&self, _: &Client, records: &[Taken]) -> Vec<u8> {
        let has_types = matches!(self.version.get(), Some(5 | 6));
        documents(records, has_types)
    }

    fn answer_bound(&self, records: usize) -> usize {
        records.saturating_mul(PER_DOCUMENT).saturating_add(ANSWER).min(MOST)
    }

    fn outcome(&self, client: &Client, batch: Batch<'_>, answer: &Answer) -> Outcome {
        let status = answer.status;
        if status != 200 {
            let body = client.repeated(&answer.body);
            let reason = format!("elasticsearch server returned status: {status}, body: {body}");
            return if is_final(status) { Outcome::Rejected(reason) } else { Outcome::retry(reason) };
        }
        if !answer.is_whole {
            tracing::warn!(
                "an answer of Elasticsearch is too long or incomplete: failed documents are unknown"
            );
        }
        of_items(&answer.body, batch.records.len())
    }
}

fn version(answer: &Answer) -> Option<u32> {
    let about: Value = serde_json::from_slice(&answer.body).ok().filter(|_| answer.status == 200)?;
    about.pointer("/version/number")?.as_str()?.split('.').next()?.parse().ok()
}

fn documents(records: &[Taken], has_types: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(records.iter().map(|record| record.size() + 64).sum());
    for record in records {
        out.extend_from_slice(b"{\"index\":{\"_index\":");
        json_text(record.field("index").unwrap_or_default(), &mut out);
        out.extend_from_slice(if has_types { b",\"_type\":\"_doc\"}}\n" } else { b"}}\n" });
        out.extend_from_slice(record.bytes());
        out.push(b'\n');
    }
    out
}

/// Sorts the failed documents of an answer by whether their failure may pass.
fn of_items(body: &[u8], records: usize) -> Outcome {
    // Other answers with the status 200, such as an empty one of a proxy, report no failures.
    let Some(bulk) = serde_json::from_slice::<Bulk>(body).ok().filter(|bulk| bulk.errors) else {
        return Outcome::Delivered;
    };
    let (mut again, mut rejected, mut first) = (Vec::new(), 0, None);
    for (at, item) in bulk.items.iter().take(records).enumerate() {
        let Some(done) = item.index.as_ref().filter(|done| done.status >= 300) else { continue };
        if first.is_none() {
            let kind = done.error.get("type").and_then(Value::as_str).unwrap_or("unknown");
            first = Some((done.status, kind.chars().take(100).collect::<String>()));
        }
        if matches!(done.status, 429 | 500..) { again.push(at) } else { rejected += 1 }
    }
    let Some((status, kind)) = first else { return Outcome::Delivered };
    let failed = again.len() + rejected;
    Outcome::Partial {
        again,
        rejected,
        reason: format!(
            "elasticsearch failed {failed} of {records} documents, the first with status {status} ({kind})"
        ),
    }
}

#[cfg(test)]
mod tests {
    use sdk::sink::Record;

    use super::*;

    #[test]
    fn a_document_has_an_action() {
        let record = Record { fields: vec![("index", b"a\"b".to_vec())], bytes: b"{}".to_vec() };
        let records = super::super::tests::taken(vec![record]);
        assert_eq!(documents(&records, false), b"{\"index\":{\"_index\":\"a\\\"b\"}}\n{}\n");
        assert_eq!(
            documents(&records, true),
            b"{\"index\":{\"_index\":\"a\\\"b\",\"_type\":\"_doc\"}}\n{}\n"
        );
    }

    #[test]
    fn failed_documents_are_sorted() {
        let item = |status: u16| format!(r#"{{"index":{{"status":{status},"error":{{"type":"t"}}}}}}"#);
        let items = [200, 400, 429, 201, 503].map(item).join(",");
        let partial = |again: &[usize], rejected, text: &str| Outcome::Partial {
            again: again.to_vec(),
            rejected,
            reason: format!("elasticsearch failed {text} (t)"),
        };
        let body = format!(r#"{{"took":1,"errors":true,"items":[{items}]}}"#);
        assert_eq!(
            of_items(body.as_bytes(), 5),
            partial(&[2, 4], 1, "3 of 5 documents, the first with status 400")
        );
        // A server cannot name more documents than it was sent.
        assert_eq!(
            of_items(body.as_bytes(), 2),
            partial(&[], 1, "1 of 2 documents, the first with status 400")
        );
        for body in ["", "[]", "{\"errors\":false}", "{\"errors\":true}", "{\"errors\":1}"] {
            assert_eq!(of_items(body.as_bytes(), 2), Outcome::Delivered, "{body}");
        }
    }

    #[test]
    fn the_version_is_the_first_number() {
        let answer = |status, body: &'static str| Answer {
            status,
            body: body.into(),
            is_whole: true,
            retry_after: None,
        };
        let about = r#"{"version":{"number":"6.8.23"}}"#;
        assert_eq!(version(&answer(200, about)), Some(6));
        assert_eq!(version(&answer(401, about)), None);
        for body in ["", "{}", r#"{"version":1}"#, r#"{"version":{"number":"x.1"}}"#] {
            assert_eq!(version(&answer(200, body)), None, "{body}");
        }
    }
}
