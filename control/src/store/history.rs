//! The history of a store: its writes and their authors.
//!
//! A record is one write with all its steps, each with what was there before and after. Nothing
//! here keeps records; a store that does bounds them ([`History`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use model::Key;
use serde_json::{Value, json};

use super::Revision;

/// How much of it is kept; the oldest goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History {
    /// Writes; 0 keeps none.
    pub records: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

impl Default for History {
    fn default() -> History {
        History { records: 1000, bytes: 64 << 20 }
    }
}

/// One write.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The store's revision before it.
    pub from: Revision,
    /// The store's revision after it.
    pub revision: Revision,
    /// Milliseconds since 1970.
    pub time_ms: u64,
    /// The name of the key; empty if no key was required.
    pub author: String,
    pub message: String,
    pub changes: Vec<Changed>,
    /// The change of the list of plugins.
    pub plugins: Option<Listed>,
}

/// The list of plugins before and after a write; `None` leaves it to the boot file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub before: Option<Vec<String>>,
    pub after: Option<Vec<String>>,
}

/// The change of one resource by a write.
#[derive(Debug, Clone, PartialEq)]
pub struct Changed {
    pub key: Key,
    pub before: Option<Arc<str>>,
    pub after: Option<Arc<str>>,
}

impl Record {
    /// As a store keeps it.
    pub fn to_json(&self) -> Value {
        let changes = self.changes.iter().map(|changed| {
            json!([changed.key.path(""), changed.before.as_deref(), changed.after.as_deref()])
        });
        let mut json = json!({
            "from": self.from,
            "time": self.time_ms,
            "author": self.author,
            "message": self.message,
            "changes": changes.collect::<Vec<_>>(),
        });
        if let Some(Listed { before, after }) = &self.plugins {
            json["plugins"] = json!([before, after]);
        }
        json
    }

    /// Reads the output of [`to_json`](Record::to_json); `None` for anything else.
    pub fn of_json(revision: Revision, value: &Value) -> Option<Record> {
        let text = |value: &Value| value.as_str().map(Arc::from);
        let changes = value.get("changes")?.as_array()?.iter().map(|changed| {
            let [path, before, after] = changed.as_array()?.as_slice() else { return None };
            Some(Changed { key: Key::parse("", path.as_str()?)?, before: text(before), after: text(after) })
        });
        let names = |value: &Value| serde_json::from_value::<Option<Vec<String>>>(value.clone()).ok();
        let plugins = match value.get("plugins").and_then(Value::as_array).map(Vec::as_slice) {
            Some([before, after]) => Some(Listed { before: names(before)?, after: names(after)? }),
            _ => None,
        };
        Some(Record {
            from: value.get("from")?.as_u64()?,
            revision,
            time_ms: value.get("time")?.as_u64()?,
            author: value.get("author")?.as_str()?.to_owned(),
            message: value.get("message")?.as_str()?.to_owned(),
            changes: changes.collect::<Option<_>>()?,
            plugins,
        })
    }
}

/// Merges these writes, newest first: each resource with its value before the first of them and after
/// the last. Resources that end as they began are left out.
pub fn together(records: &[Record]) -> Vec<Changed> {
    let mut all: BTreeMap<&Key, Changed> = BTreeMap::new();
    for changed in records.iter().rev().flat_map(|record| &record.changes) {
        let there = all.entry(&changed.key).or_insert_with(|| changed.clone());
        there.after.clone_from(&changed.after);
    }
    all.into_values().filter(|changed| changed.before != changed.after).collect()
}

/// The same for the list of plugins.
pub fn lists_together(records: &[Record]) -> Option<Listed> {
    let mut lists = records.iter().filter_map(|record| record.plugins.as_ref());
    let newest = lists.next()?;
    let oldest = lists.next_back().unwrap_or(newest);
    let listed = Listed { before: oldest.before.clone(), after: newest.after.clone() };
    (listed.before != listed.after).then_some(listed)
}

#[cfg(test)]
mod tests {
    use model::Kind;

    use super::*;

    fn record(revision: Revision, changes: &[(&str, Option<&str>, Option<&str>)]) -> Record {
        let changes = changes.iter().map(|(id, before, after)| Changed {
            key: Key::new(Kind::Route, *id),
            before: before.map(Arc::from),
            after: after.map(Arc::from),
        });
        let (from, time_ms) = (revision - 1, 5);
        Record {
            from,
            revision,
            time_ms,
            author: "a".into(),
            message: "m".into(),
            changes: changes.collect(),
            plugins: None,
        }
    }

    #[test]
    fn a_record_is_kept_whole() {
        let record = record(7, &[("1", None, Some("{}")), ("2", Some("{}"), None)]);
        let listed = Listed { before: None, after: Some(vec!["cors".to_owned()]) };
        let with_list = Record { plugins: Some(listed), ..record.clone() };
        for record in [record, with_list] {
            assert_eq!(Record::of_json(7, &record.to_json()), Some(record));
        }
        assert_eq!(Record::of_json(7, &json!({"from": 1})), None);
    }

    #[test]
    fn several_lists_are_one_change() {
        let listed = |revision, before: &[&str], after: &[&str]| {
            let names = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect());
            Record {
                plugins: Some(Listed { before: names(before), after: names(after) }),
                ..record(revision, &[])
            }
        };
        let newest_first = [listed(9, &["b"], &["c"]), record(8, &[]), listed(7, &["a"], &["b"])];
        assert_eq!(lists_together(&newest_first), listed(1, &["a"], &["c"]).plugins);
        assert_eq!(lists_together(&newest_first[..2]), listed(1, &["b"], &["c"]).plugins);
        assert_eq!(lists_together(&[listed(9, &["b"], &["a"]), listed(7, &["a"], &["b"])]), None);
        assert_eq!(lists_together(&[record(8, &[])]), None);
    }

    #[test]
    fn several_writes_are_one_change_a_resource() {
        let newest_first = [
            record(3, &[("a", Some("2"), Some("3")), ("b", None, Some("1"))]),
            record(2, &[("a", Some("1"), Some("2")), ("c", Some("1"), None), ("b", Some("1"), None)]),
            record(1, &[("c", None, Some("1"))]),
        ];
        let changes: Vec<_> = together(&newest_first)
            .into_iter()
            .map(|changed| (changed.key.id, changed.before.as_deref().map(str::to_owned), changed.after))
            .collect();
        assert_eq!(changes, [("a".to_owned(), Some("1".to_owned()), Some("3".into()))]);
    }
}
