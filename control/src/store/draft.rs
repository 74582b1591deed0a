//! Writes that are decided, and not made yet.
//!
//! A draft lies over a table: what is decided next sees what was decided
//! before, as if that were written already. It touches neither the table nor a
//! disk; its owner writes its changes, or drops them all.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, RwLockReadGuard};

use model::{Key, Kind};

use super::holders::claims_in;
use super::table::Rows;
use super::{
    Change, Changed, Claim, Decide, Listed, Record, Refused, Revision, Row, Step, StoreError, Stored, Table,
    View, WriteResult, lease_end, unix_ms,
};

/// New values by key; `None` is deleted.
type Pending = BTreeMap<Key, Option<Row>>;

/// Changes that will be made together.
pub(super) struct Draft<'a> {
    table: &'a Table,
    pending: Pending,
    /// The list of plugins, if it is to be replaced.
    listed: Option<Option<Vec<String>>>,
    pub changes: Vec<Change>,
    /// The writes that `changes` come from.
    pub records: Vec<Record>,
    /// The store's revision after `changes`.
    pub revision: Revision,
}

impl Draft<'_> {
    /// Only the holder may write to `table` meanwhile.
    pub fn over(table: &Table) -> Draft<'_> {
        let (pending, changes, records) = (Pending::new(), Vec::new(), Vec::new());
        Draft { table, pending, listed: None, changes, records, revision: table.revision() }
    }

    /// Asks what is to be written and takes it in; see [`Store::write`](super::Store::write).
    pub fn decide(&mut self, mut decide: Decide) -> Result<WriteResult, Refused> {
        let view = Seen {
            rows: self.table.read(),
            pending: &self.pending,
            listed: self.listed.as_ref(),
            revision: self.revision,
        };
        let steps = ask(&mut decide, &view);
        drop(view);
        let mut record = self.record("", "");
        let values = steps?.into_iter().map(|step| self.take(step, &mut record)).collect();
        self.keep(record);
        Ok(WriteResult { values, revision: self.revision })
    }

    /// A record to be filled.
    fn record(&self, author: &str, message: &str) -> Record {
        let (author, message) = (author.to_owned(), message.to_owned());
        let (from, time_ms) = (self.revision, unix_ms());
        Record { from, revision: from, time_ms, author, message, changes: Vec::new(), plugins: None }
    }

    fn keep(&mut self, mut record: Record) {
        record.revision = self.revision;
        record.plugins = record.plugins.filter(|listed| listed.before != listed.after);
        if !record.changes.is_empty() || record.plugins.is_some() {
            self.records.push(record);
        }
    }

    fn take(&mut self, step: Step, record: &mut Record) -> Option<Stored> {
        match step {
            Step::Put { key, value, ttl } => {
                let there = self.there(&key);
                let before = there.as_ref().map(|there| there.json.clone());
                self.revision += 1;
                let stored = Stored {
                    key,
                    value: Arc::new(value),
                    created: there.map_or(self.revision, |there| there.created),
                    modified: self.revision,
                    expires: lease_end(ttl),
                };
                let row = Row::from(&stored);
                let after = Some(row.json.clone());
                record.changes.push(Changed { key: row.key.clone(), before, after });
                self.pending.insert(row.key.clone(), Some(row.clone()));
                self.changes.push(Change::Put(row));
                Some(stored)
            }
            Step::Delete { key } => self.delete(key, record).map(Row::stored),
            Step::Plugins { names } => {
                self.list(names, record);
                None
            }
            Step::Note { name, text } => {
                self.changes.push(Change::Note { name: name.into(), text, revision: self.revision });
                None
            }
            Step::By { author, message } => {
                (record.author, record.message) = (author, message);
                None
            }
        }
    }

    /// Deletes what had a lease that has ended.
    pub fn expire(&mut self, keys: impl IntoIterator<Item = Key>) {
        let mut record = self.record("", "its lease ended");
        for key in keys {
            self.delete(key, &mut record);
        }
        self.keep(record);
    }

    /// Deletes what is under a key, and gives it.
    fn delete(&mut self, key: Key, record: &mut Record) -> Option<Row> {
        let there = self.there(&key)?;
        let before = Some(there.json.clone());
        record.changes.push(Changed { key: key.clone(), before, after: None });
        self.revision += 1;
        self.pending.insert(key.clone(), None);
        self.changes.push(Change::Delete { key, revision: self.revision });
        Some(there)
    }

    /// Replaces the list of plugins.
    fn list(&mut self, names: Option<Vec<String>>, record: &mut Record) {
        let there = self.listed.take().unwrap_or_else(|| self.table.plugins());
        self.revision += 1;
        self.changes.push(Change::Plugins { names: names.clone(), revision: self.revision });
        self.listed = Some(names.clone());
        let before = record.plugins.take().map_or(there, |listed| listed.before);
        record.plugins = Some(Listed { before, after: names });
    }

    fn there(&self, key: &Key) -> Option<Row> {
        self.pending.get(key).cloned().unwrap_or_else(|| self.table.get(key))
    }
}

/// Asks for a decision. A panic must not take the store along; nothing has changed by then.
fn ask(decide: &mut Decide, view: &dyn View) -> Result<Vec<Step>, Refused> {
    catch_unwind(AssertUnwindSafe(|| decide(view)))
        .unwrap_or_else(|_| Err(StoreError::Unavailable("a check has failed".to_owned()).into()))
}

impl Table {
    /// Asks for a decision about what is here now. `around` lies over the view, for callers that
    /// record the reads. The table cannot change meanwhile.
    pub fn decide<T>(
        &self,
        decide: &mut Decide,
        around: impl FnOnce(&dyn View, &mut dyn FnMut(&dyn View) -> Result<Vec<Step>, Refused>) -> T,
    ) -> T {
        let (rows, pending) = (self.read(), Pending::new());
        let revision = rows.revision();
        around(&Seen { rows, pending: &pending, listed: None, revision }, &mut |view| ask(decide, view))
    }
}

/// The table as it will be.
struct Seen<'a> {
    rows: RwLockReadGuard<'a, Rows>,
    pending: &'a Pending,
    listed: Option<&'a Option<Vec<String>>>,
    revision: Revision,
}

impl View for Seen<'_> {
    fn get(&self, key: &Key) -> Option<Row> {
        match self.pending.get(key) {
            Some(pending) => pending.clone(),
            None => self.rows.by_key.get(key).map(|placed| placed.0.clone()),
        }
    }

    fn scan(&self, kind: Kind, prefix: &str, look: &mut dyn FnMut(&Row) -> ControlFlow<()>) {
        let from = Key::new(kind, prefix);
        let within = |key: &Key| key.kind == kind && key.id.starts_with(prefix);
        let rows = self.rows.by_key.range::<Key, _>(&from..).map(|placed| (&placed.0.key, &placed.0));
        let mut rows = rows.take_while(|(key, _)| within(key)).peekable();
        let mut pending = self.pending.range(&from..).take_while(|(key, _)| within(key)).peekable();
        loop {
            let row = match (rows.peek(), pending.peek()) {
                (None, None) => return,
                (Some((key, _)), Some((other, _))) if key == other => {
                    rows.next();
                    continue;
                }
                (Some((key, _)), Some((other, _))) if other < key => pending.next().map(|(_, row)| row),
                (None, Some(_)) => pending.next().map(|(_, row)| row),
                (Some((_, row)), _) => {
                    let looked = look(row);
                    rows.next();
                    match looked {
                        ControlFlow::Continue(()) => continue,
                        ControlFlow::Break(()) => return,
                    }
                }
            };
            if let Some(Some(row)) = row
                && look(row).is_break()
            {
                return;
            }
        }
    }

    fn holders(&self, claim: &Claim<'_>) -> Vec<Row> {
        let there = self.rows.holders().of_claim(claim).iter();
        let there = there.filter(|key| !self.pending.contains_key(key));
        let pending = self.pending.values().flatten().filter(|row| claims_in(row.key.kind));
        there
            .filter_map(|key| self.rows.by_key.get(key))
            .map(|placed| &placed.0)
            .chain(pending)
            .cloned()
            .collect()
    }

    fn revision(&self) -> Revision {
        self.revision
    }

    fn note(&self, name: &str) -> Option<String> {
        self.rows.note(name)
    }

    fn plugins(&self) -> Option<Vec<String>> {
        self.listed.cloned().unwrap_or_else(|| self.rows.plugins())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::holders::claims;
    use super::*;

    fn key(id: &str) -> Key {
        Key::new(Kind::Route, id)
    }

    fn put(id: &str) -> Step {
        Step::Put { key: key(id), value: json!({ "id": id }), ttl: None }
    }

    fn ids(view: &dyn View, prefix: &str) -> Vec<String> {
        let mut ids = Vec::new();
        view.scan(Kind::Route, prefix, &mut |row| {
            ids.push(row.key.id.clone());
            ControlFlow::Continue(())
        });
        ids
    }

    #[test]
    fn what_is_decided_next_sees_what_was_before() {
        let table = Table::new([], None, 0);
        let mut draft = Draft::over(&table);
        draft.decide(Box::new(|_| Ok(vec![put("b"), put("d"), put("e")]))).unwrap();
        table.apply(std::mem::take(&mut draft.changes));
        let mut draft = Draft::over(&table);
        let steps = vec![put("a"), put("b"), Step::Delete { key: key("d") }, put("f")];
        let written = draft.decide(Box::new(move |_| Ok(steps.clone()))).unwrap();
        let revisions: Vec<_> =
            written.values.iter().flatten().map(|stored| (stored.created, stored.modified)).collect();
        // A deleted resource is returned as it was.
        assert_eq!(revisions, [(4, 4), (1, 5), (2, 2), (7, 7)]);
        let refused = draft.decide(Box::new(|view| {
            assert_eq!(ids(view, ""), ["a", "b", "e", "f"]);
            assert_eq!(ids(view, "b"), ["b"]);
            assert!(view.get(&key("d")).is_none() && view.get(&key("e")).is_some());
            assert_eq!((view.get(&key("b")).unwrap().modified, view.revision()), (5, 7));
            Err(Refused::Missing("x"))
        }));
        assert!(matches!(refused, Err(Refused::Missing("x"))), "{refused:?}");
        assert_eq!((draft.revision, draft.changes.len()), (7, 4));
        assert_eq!(table.revision(), 3);
    }

    #[test]
    fn who_has_what_is_known_with_what_was_decided_before() {
        let consumer = |name: &str, text: &str| Step::Put {
            key: Key::new(Kind::Consumer, name),
            value: json!({"plugins": {"key-auth": {"key": text}}}),
            ttl: None,
        };
        let who = |view: &dyn View, text: &str| -> Vec<String> {
            let claim = Claim { plugin: "key-auth", field: "key", text };
            let has_it = |row: &Row| claims(&row.value()).any(|own| own == claim);
            view.holders(&claim).iter().filter(|row| has_it(row)).map(|row| row.key.id.clone()).collect()
        };
        let table = Table::new([], None, 0);
        let mut draft = Draft::over(&table);
        let steps = vec![consumer("a", "1"), consumer("b", "2"), consumer("c", "3")];
        draft.decide(Box::new(move |_| Ok(steps.clone()))).unwrap();
        table.apply(std::mem::take(&mut draft.changes));
        let mut draft = Draft::over(&table);
        let gone = Step::Delete { key: Key::new(Kind::Consumer, "c") };
        let steps = vec![consumer("b", "4"), consumer("d", "5"), gone];
        draft.decide(Box::new(move |_| Ok(steps.clone()))).unwrap();
        for apply in [false, true] {
            let changes = if apply { std::mem::take(&mut draft.changes) } else { Vec::new() };
            draft
                .decide(Box::new(move |view| {
                    let all = ["1", "2", "3", "4", "5"].map(|text| who(view, text).join(","));
                    assert_eq!(all, ["a", "", "", "b", "d"]);
                    Ok(Vec::new())
                }))
                .unwrap();
            table.apply(changes);
        }
        let draft = Draft::over(&table);
        let view = Seen { rows: table.read(), pending: &draft.pending, listed: None, revision: 0 };
        assert_eq!(["1", "2", "3", "4", "5"].map(|text| who(&view, text).join(",")), ["a", "", "", "b", "d"]);
    }

    #[test]
    fn a_look_ends_at_the_break() {
        let table = Table::new([], None, 0);
        let mut draft = Draft::over(&table);
        draft.decide(Box::new(|_| Ok(vec![put("a"), put("b")]))).unwrap();
        table.apply(std::mem::take(&mut draft.changes));
        for pending in [false, true] {
            let mut draft = Draft::over(&table);
            if pending {
                draft.decide(Box::new(|_| Ok(vec![put("a"), put("b")]))).unwrap();
            }
            let mut seen = 0;
            let mut count = |view: &dyn View| {
                view.scan(Kind::Route, "", &mut |_| {
                    seen += 1;
                    ControlFlow::Break(())
                });
                seen
            };
            assert_eq!(
                count(&Seen { rows: table.read(), pending: &draft.pending, listed: None, revision: 0 }),
                1
            );
        }
    }

    #[test]
    fn a_panic_refuses_its_own_write_alone() {
        let table = Table::new([], None, 0);
        let mut draft = Draft::over(&table);
        let refused = draft.decide(Box::new(|_| panic!("asked to")));
        assert!(matches!(refused, Err(Refused::Store(StoreError::Unavailable(_)))), "{refused:?}");
        assert_eq!(draft.decide(Box::new(|_| Ok(vec![put("a")]))).unwrap().revision, 1);
    }
}
