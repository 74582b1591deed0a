//! A view of a store as it will be after the steps decided so far.
//!
//! One write may have many steps, and each is checked against those before it. This lies over a
//! view and holds them; it writes nothing.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use model::{Key, Kind};

use super::holders::claims;
use super::{Claim, Revision, Row, Step, Stored, View};

/// A view with steps laid over it.
pub struct Ahead<'a> {
    view: &'a dyn View,
    pending: BTreeMap<Key, Option<Row>>,
    listed: Option<Option<Vec<String>>>,
    revision: Revision,
}

impl<'a> Ahead<'a> {
    pub fn of(view: &'a dyn View) -> Ahead<'a> {
        Ahead { view, pending: BTreeMap::new(), listed: None, revision: view.revision() }
    }

    /// Takes a step in.
    pub fn take(&mut self, step: &Step) {
        match step {
            Step::Put { key, value, .. } => {
                let there = self.get(key);
                self.revision += 1;
                let stored = Stored {
                    key: key.clone(),
                    value: Arc::new(value.clone()),
                    created: there.map_or(self.revision, |there| there.created),
                    modified: self.revision,
                    expires: None,
                };
                self.pending.insert(key.clone(), Some(Row::from(&stored)));
            }
            Step::Delete { key } => {
                if self.get(key).is_some() {
                    self.revision += 1;
                    self.pending.insert(key.clone(), None);
                }
            }
            Step::Plugins { names } => {
                self.revision += 1;
                self.listed = Some(names.clone());
            }
            Step::Note { .. } | Step::By { .. } => {}
        }
    }
}

impl View for Ahead<'_> {
    fn get(&self, key: &Key) -> Option<Row> {
        self.pending.get(key).cloned().unwrap_or_else(|| self.view.get(key))
    }

    fn scan(&self, kind: Kind, prefix: &str, look: &mut dyn FnMut(&Row) -> ControlFlow<()>) {
        let from = Key::new(kind, prefix);
        let within = |key: &Key| key.kind == kind && key.id.starts_with(prefix);
        let mut pending = self.pending.range(&from..).take_while(|(key, _)| within(key)).peekable();
        let mut ended = false;
        self.view.scan(kind, prefix, &mut |row| {
            while let Some((_, ours)) = pending.next_if(|(key, _)| **key < row.key) {
                if ours.as_ref().is_some_and(|ours| look(ours).is_break()) {
                    ended = true;
                    return ControlFlow::Break(());
                }
            }
            let row = match pending.next_if(|(key, _)| **key == row.key) {
                Some((_, None)) => return ControlFlow::Continue(()),
                Some((_, Some(ours))) => ours,
                None => row,
            };
            let looked = look(row);
            ended = looked.is_break();
            looked
        });
        if !ended {
            _ = pending.filter_map(|(_, ours)| ours.as_ref()).try_for_each(look);
        }
    }

    fn holders(&self, claim: &Claim<'_>) -> Vec<Row> {
        let there = self.view.holders(claim).into_iter().filter(|row| !self.pending.contains_key(&row.key));
        let ours = self.pending.values().flatten();
        let ours = ours.filter(|row| matches!(row.key.kind, Kind::Consumer | Kind::Credential));
        there.chain(ours.filter(|row| claims(&row.value()).any(|own| own == *claim)).cloned()).collect()
    }

    fn revision(&self) -> Revision {
        self.revision
    }

    fn note(&self, name: &str) -> Option<String> {
        self.view.note(name)
    }

    fn plugins(&self) -> Option<Vec<String>> {
        self.listed.clone().unwrap_or_else(|| self.view.plugins())
    }

    fn spellings(&self, text: &str) -> Vec<String> {
        self.view.spellings(text)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::{Memory, Store};

    fn put(id: &str) -> Step {
        Step::Put { key: Key::new(Kind::Route, id), value: json!({}), ttl: None }
    }

    #[tokio::test]
    async fn what_is_decided_is_seen_by_what_comes_after() {
        let store = Memory::default();
        store.write(Box::new(|_| Ok(vec![put("b"), put("d"), put("e")]))).await.unwrap();
        let look = |view: &dyn View| {
            let mut ahead = Ahead::of(view);
            let gone = Step::Delete { key: Key::new(Kind::Route, "d") };
            let never = Step::Delete { key: Key::new(Kind::Route, "x") };
            [put("a"), put("b"), gone, never, put("f")].iter().for_each(|step| ahead.take(step));
            let ids = |prefix: &str, most: usize| {
                let mut ids = Vec::new();
                ahead.scan(Kind::Route, prefix, &mut |row| {
                    ids.push(row.key.id.clone());
                    if ids.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                ids.concat()
            };
            assert_eq!(
                (ids("", 9), ids("b", 9), ids("", 1), ids("", 3)),
                ("abef".into(), "b".into(), "a".into(), "abe".into())
            );
            assert_eq!((ahead.revision(), ahead.get(&Key::new(Kind::Route, "b")).unwrap().created), (7, 1));
            Ok(Vec::new())
        };
        store.write(Box::new(look)).await.unwrap();
    }
}
