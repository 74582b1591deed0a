//! The writes of an undo: the resources as they were before it, unless later writes need them as they are.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use control::references::needed_by;
use control::store::{Changed, Listed, Record, Step, View};
use model::{Key, Kind};
use serde_json::Value;

/// The result of an undo.
pub(super) struct Plan {
    pub steps: Vec<Step>,
    /// Resources that keep their value, since later writes have changed or need them.
    pub left: Vec<String>,
}

/// A resource that goes back.
struct Back {
    /// `None` if the change created it.
    before: Option<Value>,
    /// `None` if the change deleted it.
    after: Option<Value>,
}

pub(super) fn plan(view: &dyn View, record: &Record) -> Plan {
    let parsed = |json: &Option<_>| json.as_deref().and_then(|json| serde_json::from_str::<Value>(json).ok());
    let (mut back, mut left) = (BTreeMap::new(), Vec::new());
    for Changed { key, before, after } in &record.changes {
        let (before, after) = (parsed(before), parsed(after));
        match view.get(key).map(|row| row.value()) == after {
            true => _ = back.insert(key.clone(), Back { before, after }),
            false => left.push(key.to_string()),
        }
    }
    leave_needed(view, record.revision, &mut back, &mut left);
    let mut steps: Vec<Step> = back
        .into_iter()
        .map(|(key, Back { before, .. })| match before {
            Some(value) => Step::Put { key, value, ttl: None },
            None => Step::Delete { key },
        })
        .collect();
    if let Some(Listed { before, after }) = &record.plugins {
        match view.plugins() == *after {
            true => steps.push(Step::Plugins { names: before.clone() }),
            false => left.push("plugins".to_owned()),
        }
    }
    Plan { steps, left }
}

/// Takes out what later writes need as it is now, and what would name a resource that they have deleted.
fn leave_needed(view: &dyn View, made: u64, back: &mut BTreeMap<Key, Back>, left: &mut Vec<String>) {
    let mut needed = Vec::new();
    for kind in Kind::ALL {
        view.scan(kind, "", &mut |row| {
            if row.modified > made && !back.contains_key(&row.key) {
                needed.extend(needed_by(&row.key, &row.value()));
            }
            ControlFlow::Continue(())
        });
    }
    loop {
        while let Some(key) = needed.pop() {
            if let Some(Back { before: None, after }) = back.get(&key) {
                needed.extend(after.iter().flat_map(|after| needed_by(&key, after)));
                left.push(key.to_string());
                back.remove(&key);
            }
        }
        let is_gone = |key: &Key| !back.contains_key(key) && view.get(key).is_none();
        let broken = back.iter().find(|(key, Back { before, after })| {
            let lost: Vec<Key> =
                before.iter().flat_map(|before| needed_by(key, before)).filter(is_gone).collect();
            let named: Vec<Key> = after.iter().flat_map(|after| needed_by(key, after)).collect();
            lost.iter().any(|key| !named.contains(key))
        });
        let Some(key) = broken.map(|(key, _)| key.clone()) else { return };
        let stays = back.remove(&key).and_then(|Back { after, .. }| after);
        needed.extend(stays.iter().flat_map(|after| needed_by(&key, after)));
        left.push(key.to_string());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use control::store::{Memory, Store};
    use serde_json::json;

    use super::*;

    fn put(kind: Kind, id: &str, value: Value) -> Step {
        Step::Put { key: Key::new(kind, id), value, ttl: None }
    }

    fn delete(kind: Kind, id: &str) -> Step {
        Step::Delete { key: Key::new(kind, id) }
    }

    fn changed(kind: Kind, id: &str, before: Value, after: Value) -> Changed {
        let text = |value: Value| (!value.is_null()).then(|| Arc::from(value.to_string()));
        Changed { key: Key::new(kind, id), before: text(before), after: text(after) }
    }

    /// The resources that an undo after later writes leaves, and those it writes back.
    async fn undone(change: Vec<Changed>, later: Vec<Step>) -> (Vec<String>, Vec<String>) {
        let store = Memory::default();
        let write = async |steps: Vec<Step>| {
            store.write(Box::new(move |_: &dyn View| Ok(steps.clone()))).await.unwrap().revision
        };
        let step = |key: &Key, json: &Option<Arc<str>>| match json {
            Some(json) => {
                Step::Put { key: key.clone(), value: serde_json::from_str(json).unwrap(), ttl: None }
            }
            None => Step::Delete { key: key.clone() },
        };
        write(change.iter().map(|one| step(&one.key, &one.before)).collect()).await;
        let revision = write(change.iter().map(|one| step(&one.key, &one.after)).collect()).await;
        write(later).await;
        let (author, message) = (String::new(), String::new());
        let record =
            Record { from: 0, revision, time_ms: 0, author, message, changes: change, plugins: None };
        let seen = Arc::new(Mutex::new(None));
        let found = seen.clone();
        let look = move |view: &dyn View| {
            *found.lock().unwrap() = Some(plan(view, &record));
            Ok(Vec::new())
        };
        store.write(Box::new(look)).await.unwrap();
        let Plan { steps, mut left } = seen.lock().unwrap().take().unwrap();
        left.sort();
        let back = steps.iter().map(|step| match step {
            Step::Put { key, .. } => format!("put {key}"),
            Step::Delete { key } => format!("delete {key}"),
            other => format!("{other:?}"),
        });
        (left, back.collect())
    }

    #[tokio::test]
    async fn resources_that_later_writes_need_stay() {
        let chain = || {
            vec![
                changed(Kind::Upstream, "u", json!(null), json!({"nodes": {}})),
                changed(Kind::Upstream, "alone", json!(null), json!({"nodes": {}})),
                changed(Kind::Service, "s", json!(null), json!({"upstream_id": "u"})),
                changed(Kind::Route, "r", json!({"uri": "/old"}), json!({"uri": "/new"})),
            ]
        };
        let (left, back) = undone(chain(), vec![put(Kind::Route, "own", json!({"service_id": "s"}))]).await;
        assert_eq!(left, ["services/s", "upstreams/u"]);
        assert_eq!(back, ["put routes/r", "delete upstreams/alone"]);
        let (left, back) = undone(chain(), vec![]).await;
        assert_eq!((left.len(), back.len()), (0, 4));
        let (left, _) = undone(chain(), vec![put(Kind::Route, "r", json!({"upstream_id": "u"}))]).await;
        assert_eq!(left, ["routes/r", "upstreams/u"]);
    }

    #[tokio::test]
    async fn resources_with_deleted_references_are_not_restored() {
        let change = || {
            vec![
                changed(Kind::Upstream, "new", json!(null), json!({"nodes": {}})),
                changed(Kind::Route, "r", json!({"upstream_id": "old"}), json!({"upstream_id": "new"})),
            ]
        };
        let old = put(Kind::Upstream, "old", json!({"nodes": {}}));
        let (left, back) = undone(change(), vec![old.clone(), delete(Kind::Upstream, "old")]).await;
        assert_eq!((left, back), (vec!["routes/r".to_owned(), "upstreams/new".to_owned()], vec![]));
        let (left, back) = undone(change(), vec![old]).await;
        assert_eq!(left, Vec::<String>::new());
        assert_eq!(back, ["put routes/r", "delete upstreams/new"]);
        // It named that before the change and after it.
        let change = vec![changed(
            Kind::Route,
            "r",
            json!({"upstream_id": "x"}),
            json!({"upstream_id": "x", "uri": "/"}),
        )];
        assert_eq!(undone(change, vec![]).await, (vec![], vec!["put routes/r".to_owned()]));
    }
}
