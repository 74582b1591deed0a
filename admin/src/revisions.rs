//! `/apisix/admin/revisions`: the history of writes and their authors, differences, and rollback.
//!
//! APISIX has no such API. A revision is one write with all its steps; its number is the store's revision
//! after it.

use control::store::history::{lists_together, together};
use control::store::{Changed, Listed, Record, Refused, Step, StoreError, View};
use http::{Method, StatusCode};
use model::invalid::push_pointer;
use model::{Key, private_keys};
use serde_json::{Value, json};

use crate::Admin;
use crate::answer::{self, Answer, ErrorAnswer, said};
use crate::author::Author;
use crate::request::Call;

/// The most revisions on one page.
const PAGE: usize = 500;
/// The most resources that a list names for one revision.
const NAMED: usize = 100;
/// The most differences that are shown for one resource.
const DIFFERENCES: usize = 1000;

impl Admin {
    pub(crate) async fn revisions(&self, call: &Call<'_>, rest: &[&str]) -> Answer {
        match rest {
            [] => self.list_revisions(call).await,
            ["diff"] => {
                let (from, to) = (number(call.query("from"), "from")?, number(call.query("to"), "to")?);
                let records = self.since(from.min(to)).await?.up_to(from.max(to))?;
                let (mut changes, mut listed) = (together(&records), lists_together(&records));
                if from > to {
                    changes.iter_mut().for_each(|one| std::mem::swap(&mut one.before, &mut one.after));
                    listed = listed.map(|Listed { before, after }| Listed { before: after, after: before });
                }
                let body = json!({ "from": from, "to": to, "changes": shown(&changes, listed.as_ref()) });
                Ok(answer::json(StatusCode::OK, &body))
            }
            [revision] => {
                let revision = number(Some(revision), "revision")?;
                let records = self.store.history(revision.saturating_sub(1), revision, 1).await?;
                let record = records.into_iter().find(|record| record.revision == revision);
                let Some(record) = record else {
                    return Err(missing(revision, self.store.revision().await?));
                };
                let mut body = summary(&record);
                body["changes"] = shown(&record.changes, record.plugins.as_ref());
                Ok(answer::json(StatusCode::OK, &body))
            }
            _ => Err(ErrorAnswer::bare(StatusCode::NOT_FOUND)),
        }
    }

    async fn list_revisions(&self, call: &Call<'_>) -> Answer {
        let limit = match call.query("limit") {
            Some(text) => number(Some(text), "limit")?.clamp(1, PAGE as u64) as usize,
            None => 50,
        };
        let until = match call.query("before") {
            Some(text) => number(Some(text), "before")?.saturating_sub(1),
            None => u64::MAX,
        };
        let records = self.store.history(0, until, limit).await?;
        let list: Vec<Value> = records.iter().map(summary).collect();
        let body = json!({ "list": list, "current": self.store.revision().await? });
        Ok(answer::json(StatusCode::OK, &body))
    }

    /// Restores the configuration as it was after a revision.
    pub(crate) async fn rollback(&self, author: &Author, call: &Call<'_>, revision: &str) -> Answer {
        let revision = number(Some(revision), "revision")?;
        let since = self.since(revision).await?;
        let current = since.current;
        let (changes, listed) = (together(&since.records), lists_together(&since.records));
        let mut steps = Vec::with_capacity(changes.len() + 1);
        let message = match author.message.as_str() {
            "" => format!("rollback to {revision}"),
            message => message.to_owned(),
        };
        let author = Author { message, ..author.clone() };
        steps.push(author.step());
        for Changed { key, before, .. } in &changes {
            let Some(json) = before else {
                steps.push(Step::Delete { key: key.clone() });
                continue;
            };
            let value: Value = serde_json::from_str(json).unwrap_or_default();
            // `check` uses the current list of plugins, which does not apply if the list is restored, too.
            if !call.forced() && listed.is_none() {
                // A plugin may have been removed since, or a check may be stricter.
                self.check(key, &value).await.map_err(|refused| refused.about(key))?;
            }
            steps.push(Step::Put { key: key.clone(), value, ttl: None });
        }
        if let Some(Listed { before, .. }) = &listed {
            steps.push(Step::Plugins { names: before.clone() });
        }
        let listed = listed.map(|Listed { before, after }| Listed { before: after, after: before });
        let undone: Vec<Changed> = changes
            .into_iter()
            .map(|Changed { key, before, after }| Changed { key, before: after, after: before })
            .collect();
        let mut after = current;
        if !undone.is_empty() || listed.is_some() {
            let by = author.clone();
            let decide = move |view: &dyn View| match view.revision() == current {
                true => by.complete(view, steps.clone()),
                // Another write came first; the rollback would undo it without having seen it.
                false => Err(Refused::Store(StoreError::Changed)),
            };
            after = self.write_as(&author, Box::new(decide)).await?.revision;
            author.changed(&Method::POST, format_args!("revisions/{revision}/rollback"), after);
        }
        let body =
            json!({ "revision": after, "restored": revision, "changes": shown(&undone, listed.as_ref()) });
        let mut response = answer::json(StatusCode::OK, &body);
        if let Some(changed) = undone.first() {
            let outcome = self.program.verdict(&changed.key, after).await;
            answer::add_outcome(&mut response, after, &outcome);
        }
        Ok(response)
    }

    /// Returns all writes after a revision.
    async fn since(&self, revision: u64) -> Result<Since, ErrorAnswer> {
        let current = self.store.revision().await?;
        if revision > current {
            return Err(said(format!("there is no revision {revision} yet; the current one is {current}")));
        }
        let records = self.store.history(revision, current, usize::MAX).await?;
        let known = match records.last() {
            // The oldest write began exactly at that revision.
            Some(oldest) if oldest.from == revision => true,
            oldest => {
                let before = self.store.history(0, revision, 1).await?;
                match oldest {
                    // The number lies within a write, unless other nodes write to the store as well: then the
                    // write began from the revision that its node had seen.
                    Some(oldest) if oldest.from < revision => {
                        before.first().is_some_and(|record| record.revision == revision)
                    }
                    _ => revision == current || !before.is_empty(),
                }
            }
        };
        if known { Ok(Since { records, current }) } else { Err(missing(revision, current)) }
    }
}

struct Since {
    /// Newest first.
    records: Vec<Record>,
    current: u64,
}

impl Since {
    /// Returns the writes up to a revision.
    fn up_to(mut self, revision: u64) -> Result<Vec<Record>, ErrorAnswer> {
        if revision > self.current {
            return Err(missing(revision, self.current));
        }
        self.records.retain(|record| record.revision <= revision);
        Ok(self.records)
    }
}

fn missing(revision: u64, newest: u64) -> ErrorAnswer {
    let reason = format!("there is no revision {revision} (the newest is {newest}), or it was pruned");
    ErrorAnswer::new(StatusCode::NOT_FOUND, reason)
}

fn number(text: Option<&str>, name: &str) -> Result<u64, ErrorAnswer> {
    let number = text.and_then(|text| text.parse().ok());
    number.ok_or_else(|| said(format!("invalid argument {name}: should be the number of a revision")))
}

fn summary(record: &Record) -> Value {
    let changes = record
        .changes
        .iter()
        .take(NAMED)
        .map(|changed| json!({ "key": changed.key.to_string(), "change": word(changed) }));
    let changes = changes.chain(record.plugins.iter().map(|_| json!({ "key": LIST, "change": "changed" })));
    json!({
        "revision": record.revision,
        "from": record.from,
        "time": record.time_ms / 1000,
        "author": record.author,
        "message": record.message,
        "total": record.changes.len() + usize::from(record.plugins.is_some()),
        "changes": changes.collect::<Vec<_>>(),
    })
}

fn word(changed: &Changed) -> &'static str {
    match (&changed.before, &changed.after) {
        (None, _) => "created",
        (_, None) => "deleted",
        _ => "changed",
    }
}

/// Returns each change with its differences, without private keys.
fn shown(changes: &[Changed], listed: Option<&Listed>) -> Value {
    let shown = changes.iter().map(|changed| {
        let value = |json: &Option<std::sync::Arc<str>>| {
            let value: Option<Value> = json.as_ref().and_then(|json| serde_json::from_str(json).ok());
            value.map(|value| concealed(&changed.key, value))
        };
        let (before, after) = (value(&changed.before), value(&changed.after));
        let mut found = Vec::new();
        if let (Some(before), Some(after)) = (&before, &after) {
            differences(before, after, &mut String::new(), &mut found);
        }
        json!({
            "key": changed.key.to_string(),
            "change": word(changed),
            "before": before,
            "after": after,
            "diff": found,
        })
    });
    let listed = listed.map(|Listed { before, after }| {
        let (before, after) = (json!(before), json!(after));
        let diff = [json!({ "op": "replace", "path": "", "from": before, "to": after })];
        json!({ "key": LIST, "change": "changed", "before": before, "after": after, "diff": diff })
    });
    shown.chain(listed).collect()
}

/// The name of the list of plugins among the keys.
const LIST: &str = "plugins";

fn concealed(key: &Key, mut value: Value) -> Value {
    private_keys::take_out(key.kind, &mut value);
    value
}

/// Collects the differences between two values, each with its JSON pointer.
fn differences(before: &Value, after: &Value, place: &mut String, found: &mut Vec<Value>) {
    if before == after || found.len() >= DIFFERENCES {
        return;
    }
    let end = place.len();
    match (before, after) {
        (Value::Object(old), Value::Object(new)) => {
            for (name, was) in old {
                push_pointer(place, name);
                match new.get(name) {
                    Some(is) => differences(was, is, place, found),
                    None => found.push(json!({ "op": "remove", "path": place, "from": was })),
                }
                place.truncate(end);
            }
            for (name, is) in new.iter().filter(|(name, _)| !old.contains_key(*name)) {
                push_pointer(place, name);
                found.push(json!({ "op": "add", "path": place, "to": is }));
                place.truncate(end);
            }
        }
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            for (at, (was, is)) in old.iter().zip(new).enumerate() {
                push_pointer(place, &at.to_string());
                differences(was, is, place, found);
                place.truncate(end);
            }
        }
        _ => found.push(json!({ "op": "replace", "path": place, "from": before, "to": after })),
    }
}

#[cfg(test)]
mod tests {
    use model::Kind;

    use super::*;

    #[test]
    fn differences_have_json_pointers() {
        let before = json!({"a": 1, "b": {"c": [1, 2]}, "d": [1], "gone": true});
        let after = json!({"a": 1, "b": {"c": [1, 3]}, "d": [1, 2], "e/f": "new"});
        let mut found = Vec::new();
        differences(&before, &after, &mut String::new(), &mut found);
        assert_eq!(
            Value::from(found),
            json!([
                {"op": "replace", "path": "/b/c/1", "from": 2, "to": 3},
                {"op": "replace", "path": "/d", "from": [1], "to": [1, 2]},
                {"op": "remove", "path": "/gone", "from": true},
                {"op": "add", "path": "/e~1f", "to": "new"},
            ])
        );
    }

    #[test]
    fn private_keys_are_not_shown() {
        let changed = Changed {
            key: Key::new(Kind::Ssl, "1"),
            before: Some(r#"{"key":"secret","sni":"a"}"#.into()),
            after: Some(r#"{"key":"other","sni":"b","keys":["more"]}"#.into()),
        };
        let text = shown(&[changed], None).to_string();
        assert!(!text.contains("secret") && !text.contains("other") && !text.contains("more"), "{text}");
    }
}
