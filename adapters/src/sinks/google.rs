//! Google Cloud Logging: each batch is a call of `entries:write`, with the access token of a service account.
//!
//! A record is an entry without its `logName`, which has the project of the account. The account may be in a file, which
//! is read for each batch: then the servers are known only here, so this sink resolves their names itself.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use model::secret::GcpAuth;
use sdk::chain::LocalFuture;
use sdk::log_entry::json_text;
use sdk::sink::{Batch, Deliver, Destination, Outcome, Taken};
use serde::Deserialize;

use super::api::{ANSWER, HOPS, is_final, most_hops, repeated};
use super::{Context, Kind};
use crate::Trust;
use crate::http::{HttpAnswer, Question, Timeouts};
use crate::service_account::{self, Defaults, Slot, Tokens};

pub const KIND: Kind = Kind { name: "google", blocks: false, make };

/// Batches under way at the same time.
const AT_ONCE: usize = 4;

const DEFAULTS: Defaults = Defaults {
    scope: "https://www.googleapis.com/auth/cloud-platform",
    entries_uri: "https://logging.googleapis.com/v2/entries:write",
};

/// Milliseconds.
const TIMEOUTS: Timeouts = Timeouts { connect: 10_000, send: 10_000, read: 30_000, wait: 0 };

#[derive(Deserialize)]
struct Google {
    auth_config: Option<GcpAuth>,
    auth_file: Option<String>,
    ssl_verify: bool,
    log_id: String,
    #[serde(skip)]
    tokens: Tokens,
    #[serde(skip)]
    trust: Arc<OnceLock<Trust>>,
}

fn make(to: &Destination, context: &Context) -> Result<Box<dyn Deliver>, String> {
    let google: Google = super::settings(to)?;
    Ok(Box::new(Google { trust: context.trust.clone(), ..google }))
}

impl Deliver for Google {
    fn at_once(&self) -> usize {
        AT_ONCE
    }

    fn deliver<'a>(&'a self, batch: Batch<'a>) -> LocalFuture<'a, Outcome> {
        Box::pin(async move { self.write(batch.records).await.unwrap_or_else(Outcome::retry) })
    }
}

impl Google {
    /// # Errors
    /// A reason to try again.
    async fn write(&self, records: &[Taken]) -> Result<Outcome, String> {
        let trust = self.trust.get().ok_or("it is not known yet which servers are trusted")?;
        let account = match (&self.auth_config, &self.auth_file) {
            (Some(account), _) => account.clone(),
            (None, Some(path)) => service_account::of_file(path, &DEFAULTS).await?,
            (None, None) => return Err("there is no account".to_owned()),
        };
        let slot = self.tokens.of(&account);
        let token = service_account::token(&account, self.ssl_verify, trust, &slot, TIMEOUTS).await;
        let token = token.map_err(|why| format!("failed to get google oauth token: {why}"))?;
        let server = service_account::server(&account.entries_uri, self.ssl_verify, trust)?;
        let hops = most_hops(records).to_string();
        let headers =
            [("content-type", "application/json"), ("authorization", token.as_str()), (HOPS, hops.as_str())];
        let body = Bytes::from(entries(&account.project_id, &self.log_id, records));
        let question = Question { method: Method::POST, path: "", headers: &headers, body };
        let answer = server.send(question, TIMEOUTS, Duration::ZERO, ANSWER).await;
        let answer = answer.map_err(|why| format!("failed to write log to google, {why}"))?;
        Ok(outcome(&answer, &server.authority, &token, &slot).await)
    }
}

async fn outcome(answer: &HttpAnswer, place: &str, token: &str, slot: &Slot) -> Outcome {
    let status = answer.status;
    if status == 200 {
        return Outcome::Delivered;
    }
    if status == 401 {
        service_account::forget(slot, token).await;
    }
    let body = repeated(&answer.body, std::iter::once(token));
    let reason = format!("failed to write log to google, {place}: status {status}, body: {body}");
    if is_final(status) { Outcome::Rejected(reason) } else { Outcome::retry(reason) }
}

/// The request for these entries.
fn entries(project: &str, log_id: &str, records: &[Taken]) -> Vec<u8> {
    let mut name = Vec::new();
    json_text(format!("projects/{project}/logs/{log_id}").as_bytes(), &mut name);
    let mut out = Vec::with_capacity(records.iter().map(|record| record.size() + name.len() + 16).sum());
    out.extend_from_slice(b"{\"entries\":[");
    for (at, record) in records.iter().enumerate() {
        out.extend_from_slice(if at > 0 { b",{\"logName\":" } else { b"{\"logName\":" });
        out.extend_from_slice(&name);
        out.push(b',');
        // The fields of the entry, without the brace before them.
        out.extend_from_slice(record.bytes().get(1..).unwrap_or_default());
    }
    out.extend_from_slice(b"],\"partialSuccess\":false}");
    out
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn entries_have_the_name_of_the_log() {
        let records =
            super::super::tests::taken(vec![b"{\"a\":1}".to_vec().into(), b"{\"b\":2}".to_vec().into()]);
        let body: Value = serde_json::from_slice(&entries("p\"1", "l%2Fm", &records)).unwrap();
        assert_eq!(
            body,
            json!({
                "entries": [{"logName": "projects/p\"1/logs/l%2Fm", "a": 1}, {"logName": "projects/p\"1/logs/l%2Fm", "b": 2}],
                "partialSuccess": false,
            })
        );
    }

    #[tokio::test]
    async fn a_token_that_an_answer_repeats_is_not_logged() {
        let slot = Slot::default();
        let answer = |status, body: &str| HttpAnswer {
            status,
            headers: Default::default(),
            body: Bytes::from(body.to_owned()),
        };
        assert_eq!(outcome(&answer(200, ""), "h:1", "Bearer s3cr3t", &slot).await, Outcome::Delivered);
        for (status, is_retry) in [(401, true), (500, true), (400, false)] {
            let outcome = outcome(&answer(status, "what is s3cr3t?\n"), "h:1", "Bearer s3cr3t", &slot).await;
            let reason = match &outcome {
                Outcome::Retry { reason, .. } if is_retry => reason,
                Outcome::Rejected(reason) if !is_retry => reason,
                other => panic!("{other:?}"),
            };
            assert_eq!(
                *reason,
                format!("failed to write log to google, h:1: status {status}, body: what is ***? ")
            );
        }
    }
}
