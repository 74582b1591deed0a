//! `/apisix/admin/batch`: several writes in one transaction.
//!
//! Ours, APISIX has nothing like it. All are checked and made in their order, each seeing those
//! before it, or none is made.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use model::Key;
use serde_json::{Value, json};

use crate::answer::{self, Answer, ErrorAnswer, said};
use crate::author::Author;
use crate::request::Call;
use crate::resources::{Made, Target, Uncommitted};
use crate::{Admin, now, read_body};

/// Writes in one batch, at most.
const MOST: usize = 1000;

impl Admin {
    pub(crate) async fn batch(&self, author: &Author, body: &Bytes) -> Answer {
        let document = read_body(body)?.ok_or_else(|| said("missing configurations"))?;
        let operations = document.get("operations").and_then(Value::as_array).ok_or_else(|| {
            said("invalid batch: property \"operations\" is required, a list of {method, path, body}")
        })?;
        if operations.is_empty() || operations.len() > MOST {
            let count = operations.len();
            return Err(said(format!("invalid batch: expected 1 to {MOST} operations, got {count}")));
        }
        let mut changed = HashSet::new();
        let mut intents = Vec::with_capacity(operations.len());
        let read = |(at, written)| Operation::read(written).map_err(|refused| refused.of_operation(at));
        let operations: Vec<Operation<'_>> =
            operations.iter().enumerate().map(read).collect::<Result<_, ErrorAnswer>>()?;
        let checking = self.with_scripts(operations.iter().filter_map(Operation::put));
        for (at, operation) in operations.into_iter().enumerate() {
            let Operation { method, target, value, ttl, force } = operation;
            let intent = match checking.serves(&target) {
                Ok(()) => checking.intend(&target, &method, value.cloned(), ttl, force).await,
                Err(refused) => Err(refused),
            };
            let intent = intent.map_err(|refused| refused.of_operation(at))?;
            // A PATCH starts from what is there before the batch.
            let again = intent.changes.as_ref().is_some_and(|key| !changed.insert(key.clone()));
            if again && intent.is_patch() {
                let reason = "this batch has already changed this resource: combine both into one operation";
                return Err(said(reason).of_operation(at));
            }
            intents.push(intent);
        }
        let committed = match self.commit(author, intents).await {
            Ok(committed) => committed,
            Err(Uncommitted { at, refused }) => {
                return Err(ErrorAnswer::from(refused).of_operation(at));
            }
        };
        let mut results = Vec::with_capacity(committed.made.len());
        let mut last = None;
        for made in &committed.made {
            let response = made.answer(self.envelope()).unwrap_or_else(ErrorAnswer::into_response);
            let body: Value = serde_json::from_slice(response.body()).unwrap_or_default();
            results.push(json!({ "status": response.status().as_u16(), "body": body }));
            last = made.key().or(last);
        }
        let body = json!({ "revision": committed.revision, "time": now(), "results": results });
        let mut response = answer::json(StatusCode::OK, &body);
        answer::add_warnings(&mut response, committed.made.iter().filter_map(Made::written));
        author.changed(
            &Method::POST,
            format_args!("batch of {} operations", results.len()),
            committed.revision,
        );
        if let Some(key) = last {
            let outcome = self.program.verdict(key, committed.revision).await;
            answer::add_outcome(&mut response, committed.revision, &outcome);
        }
        Ok(response)
    }
}

/// An operation of a batch, as it is written.
struct Operation<'v> {
    method: Method,
    target: Target,
    value: Option<&'v Value>,
    ttl: Option<Duration>,
    force: bool,
}

impl<'v> Operation<'v> {
    fn read(written: &'v Value) -> Result<Operation<'v>, ErrorAnswer> {
        let text = |name: &str| written.get(name).and_then(Value::as_str);
        let method = match text("method") {
            Some("PUT") => Method::PUT,
            Some("POST") => Method::POST,
            Some("PATCH") => Method::PATCH,
            Some("DELETE") => Method::DELETE,
            _ => return Err(said("invalid operation: expected a `method` of PUT, POST, PATCH, DELETE")),
        };
        let path = text("path").filter(|path| path.starts_with('/'));
        let path = path.ok_or_else(|| said("invalid operation: expected a `path` such as /routes/1"))?;
        let path = path.strip_prefix("/apisix/admin").unwrap_or(path);
        let request = Request::builder().method(method.clone()).uri(format!("/apisix/admin{path}")).body(());
        let request = request.map_err(|_| said(format!("invalid operation: {path} is no path")))?;
        let (head, ()) = request.into_parts();
        let call = Call::read(&head).ok_or_else(|| said(format!("invalid operation: {path} is no path")))?;
        let target = Target::read(&call.path())?;
        target.allows(call.method)?;
        let value = written.get("body").filter(|body| !body.is_null());
        Ok(Operation { method, target, value, ttl: call.ttl()?, force: call.forced() })
    }

    /// The key and the value of a PUT.
    fn put(&self) -> Option<(Key, &'v Value)> {
        let key = self.target.named().filter(|_| self.method == Method::PUT)?;
        Some((key, self.value?))
    }
}
