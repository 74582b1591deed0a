//! From changes of a store to what is desired.
//!
//! A value that cannot be read keeps the resource as it was before, and is
//! reported. Nothing here compiles, writes or waits.

mod dangling;
mod secrets;

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{Desired, Diagnostic, Entry, Invalid, Key, Kind, Rejected, Resource, Served, gaps};
use snapshot::{Touched, parallel};

use self::dangling::{Dangling, Reference, references};
use self::secrets::Referrers;
use crate::secrets::Configured;
use crate::store::{Change, Revision, Row};

/// The desired resources at a revision, and the values that could not be read.
#[derive(Debug, Default)]
pub struct Fold {
    desired: Desired,
    revision: Revision,
    /// Values that are no resources, with the revision of the value.
    refused: BTreeMap<Key, (Revision, Invalid)>,
    /// The report of it, kept until it changes.
    report: Option<Arc<[Rejected]>>,
    /// Items of a declarative file that were rejected.
    findings: Arc<[Diagnostic]>,
    /// Fields of new values that have no effect.
    ignored: Vec<(Key, Invalid)>,
    dangling: Dangling,
    unseen: Unseen,
    referrers: Referrers,
}

impl Fold {
    /// Takes a change over and notes what it touches.
    pub fn apply(&mut self, change: Change, touched: &mut Touched) {
        self.revision = change.revision();
        match change {
            Change::Put(row) if self.is_known(&row) => {}
            Change::Put(row) => {
                let parsed = parse(row);
                let key = parsed.row.key.clone();
                let was_there = self.there(&key).is_some();
                self.place(parsed, touched);
                let came = !was_there && self.there(&key).is_some();
                self.dangling.look(&key, came, &self.desired);
            }
            Change::Delete { key, .. } => {
                let went = self.delete(&key, touched);
                self.dangling.look(&key, went, &self.desired);
            }
            // The compiler itself sees whether the list differs.
            Change::Plugins { names, .. } => self.desired.plugins = names,
            // About resources, and none of them.
            Change::Note { .. } => {}
            Change::Reset { items, plugins, stream_plugins, rejected, parsed, anew, .. } => {
                // At the start everything is new, which is said once instead of a key at a time.
                touched.all |= self.desired.is_empty();
                let now: LazyCell<BTreeSet<&Key>, _> =
                    LazyCell::new(|| items.iter().map(|row| &row.key).collect());
                let known = self.desired.iter().map(|entry| &entry.key).chain(self.refused.keys());
                let gone: BTreeSet<Key> = known.filter(|key| !now.contains(key)).cloned().collect();
                gone.iter().for_each(|key| _ = self.delete(key, touched));
                let mut known = parsed.take();
                let news = items.into_iter().filter(|row| anew || !self.is_known(row));
                let news = news.map(|row| (known.of(&row.json), row)).collect();
                let parsed = parallel::map(news, |(known, row)| match known {
                    Some(resource) => taken(row, resource),
                    None => parse(row),
                });
                let entries = parsed.filter_map(|parsed| self.take_over(parsed, touched)).collect();
                self.desired.put_all(entries);
                self.dangling.look_at_all(&self.desired);
                self.desired.plugins = plugins;
                self.desired.stream_plugins = stream_plugins;
                self.findings = rejected.into();
            }
        }
    }

    pub fn desired(&self) -> &Desired {
        &self.desired
    }

    /// See [`Desired::put_to_rest`].
    pub fn put_to_rest(&mut self, key: &Key) -> Option<(Arc<Entry>, Arc<Entry>)> {
        self.desired.put_to_rest(key)
    }

    /// The store's revision after the last change.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Values that could not be read. The same `Arc` as before if nothing changed.
    pub fn refused(&mut self) -> Arc<[Rejected]> {
        let report = self.report.take().unwrap_or_else(|| {
            let refused = self.refused.iter().map(|(key, (_, invalid))| Rejected {
                key: key.clone(),
                invalid: invalid.clone(),
                served: Served::last_good(self.there(key).is_some()),
            });
            refused.collect()
        });
        self.report.insert(report).clone()
    }

    /// Returns fields without effect in values that came in since the last call.
    pub fn take_ignored(&mut self) -> Vec<(Key, Invalid)> {
        std::mem::take(&mut self.ignored)
    }

    /// Settings of resources that have no effect, and how many ask so. The same `Arc` as before if nothing changed.
    pub fn without_effect(&mut self) -> (Arc<[(Key, Invalid)]>, usize) {
        let Unseen { keys, report, .. } = &mut self.unseen;
        let list = report.get_or_insert_with(|| {
            let there = keys.iter().filter_map(|key| self.desired.get(key.kind, &key.id));
            let found = there.flat_map(|entry| {
                let ignored = gaps::ignored_by(&entry.key, &entry.peek());
                ignored.into_iter().map(|invalid| (entry.key.clone(), invalid))
            });
            found.take(MOST_WITHOUT_EFFECT).collect()
        });
        (list.clone(), keys.len())
    }

    /// The plugins that resources are served without, and how many name each.
    pub fn unseen(&self) -> Vec<(&'static str, usize)> {
        self.unseen.counts.iter().map(|(name, count)| (*name, *count)).collect()
    }

    /// The secrets that resources refer to, and the managers; `None` if neither changed since this was asked
    /// last.
    pub fn take_secrets(&mut self) -> Option<(BTreeSet<String>, Configured)> {
        let wanted = self.referrers.take()?;
        let managers = self.desired.of(Kind::Secret).map(|entry| (entry.key.id.clone(), entry.clone()));
        Some((wanted, managers.collect()))
    }

    /// Notes a name whose addresses changed, or a secret whose value did.
    pub fn touch(&self, name: String, touched: &mut Touched) {
        match name.starts_with(model::references::SECRET) {
            true => touched.keys.extend(self.referrers.users(&name).cloned()),
            false => _ = touched.hosts.insert(name),
        }
    }

    /// Resources that name others which do not exist. The same `Arc` as before if nothing changed.
    pub fn dangling(&mut self) -> Arc<[Rejected]> {
        self.dangling.report()
    }

    pub fn findings(&self) -> &Arc<[Diagnostic]> {
        &self.findings
    }

    /// Whether this is what is desired, or was refused, already.
    fn is_known(&self, row: &Row) -> bool {
        match self.refused.get(&row.key) {
            Some((revision, _)) => *revision == row.modified,
            None => self.there(&row.key).is_some_and(|there| there.modified == row.modified),
        }
    }

    fn there(&self, key: &Key) -> Option<&Arc<Entry>> {
        self.desired.get(key.kind, &key.id)
    }

    fn place(&mut self, parsed: Parsed, touched: &mut Touched) {
        if let Some(entry) = self.take_over(parsed, touched) {
            self.desired.put(entry);
        }
    }

    /// Notes all about a row, and gives what is to be desired if that changed.
    fn take_over(&mut self, parsed: Parsed, touched: &mut Touched) -> Option<Arc<Entry>> {
        let Parsed { row, read, ignored, unseen } = parsed;
        let Row { key, json, created, modified, .. } = row;
        self.unseen.set(&key, unseen, !ignored.is_empty());
        self.ignored.extend(ignored.into_iter().map(|invalid| (key.clone(), invalid)));
        match read {
            Ok(Read { resource, secrets, references }) => {
                self.forgive(&key);
                if self.there(&key).is_some_and(|there| *there.peek() == resource) {
                    return None;
                }
                if !touched.all {
                    touched.keys.insert(key.clone());
                }
                self.referrers.set(&key, secrets);
                self.dangling.set(&key, references);
                Some(Arc::new(Entry::of_text(key, resource, json, created, modified)))
            }
            Err(invalid) => {
                self.report = None;
                self.refused.insert(key, (modified, invalid));
                None
            }
        }
    }

    fn forgive(&mut self, key: &Key) {
        if self.refused.remove(key).is_some() {
            self.report = None;
        }
    }

    /// Whether it was there.
    fn delete(&mut self, key: &Key, touched: &mut Touched) -> bool {
        self.forgive(key);
        self.unseen.set(key, Vec::new(), false);
        if self.desired.delete(key).is_none() {
            return false;
        }
        self.referrers.set(key, BTreeSet::new());
        self.dangling.set(key, Vec::new());
        touched.keys.insert(key.clone());
        true
    }
}

/// A row with what was read from it.
struct Parsed {
    row: Row,
    read: Result<Read, Invalid>,
    /// Features it uses that are not built; it is served without them.
    ignored: Vec<Invalid>,
    /// The plugins among that.
    unseen: Vec<&'static str>,
}

/// A resource, with the secrets and the resources that it names.
struct Read {
    resource: Resource,
    secrets: BTreeSet<String>,
    references: Vec<Reference>,
}

fn parse(row: Row) -> Parsed {
    let key = &row.key;
    let value = match row.read() {
        Ok(value) => value,
        Err(error) => {
            // Not the text: there may be a secret in it.
            let invalid = Invalid::new(format!("the value is not JSON: {error}"))
                .expected("a JSON object")
                .hint("write it again as JSON, or delete the key");
            return Parsed { row, read: Err(invalid), ignored: Vec::new(), unseen: Vec::new() };
        }
    };
    let ignored = gaps::ignored(key.kind, &value);
    let configured = gaps::plugins(key.kind, &value).into_iter().flatten();
    let unseen = gaps::unseen_plugins(key.kind, configured).map(|(name, _)| name).collect();
    let read = Resource::from_value(key.kind, &key.id, value).map(|resource| Read::of(key, resource));
    Parsed { row, read, ignored, unseen }
}

/// The same of a row that was read already by its store.
fn taken(row: Row, resource: Resource) -> Parsed {
    let configured = resource.plugins().into_iter().flatten();
    let unseen = gaps::unseen_plugins(row.key.kind, configured).map(|(name, _)| name).collect();
    let ignored = gaps::ignored_by(&row.key, &resource);
    let read = Ok(Read::of(&row.key, resource));
    Parsed { row, read, ignored, unseen }
}

impl Read {
    fn of(key: &Key, resource: Resource) -> Read {
        Read { secrets: resource.secrets(), references: references(key, &resource), resource }
    }
}

/// Resources whose effect is listed; a whole fleet may have a tracer.
const MOST_WITHOUT_EFFECT: usize = 1000;

/// Which resources ask for what is not built, and are served without it.
#[derive(Debug, Default)]
struct Unseen {
    keys: BTreeSet<Key>,
    /// The plugins among it.
    by_key: BTreeMap<Key, Vec<&'static str>>,
    counts: BTreeMap<&'static str, usize>,
    /// The report of it, kept until it changes.
    report: Option<Arc<[(Key, Invalid)]>>,
}

impl Unseen {
    fn set(&mut self, key: &Key, names: Vec<&'static str>, ignores: bool) {
        if !ignores && !self.keys.contains(key) {
            return;
        }
        self.report = None;
        match ignores {
            true => _ = self.keys.insert(key.clone()),
            false => _ = self.keys.remove(key),
        }
        for name in self.by_key.remove(key).into_iter().flatten() {
            if let Some(count) = self.counts.get_mut(name) {
                *count -= 1;
            }
        }
        if !names.is_empty() {
            names.iter().for_each(|name| *self.counts.entry(name).or_default() += 1);
            self.by_key.insert(key.clone(), names);
        }
        self.counts.retain(|_, count| *count > 0);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::store::Parsed;

    fn stored(id: &str, modified: Revision, value: Value) -> Row {
        let (key, json) = (Key::new(Kind::Route, id), value.to_string().into());
        Row { key, json, created: 1, modified, expires: None }
    }

    fn route(uri: &str) -> Value {
        json!({"uri": uri, "plugins": {}})
    }

    fn reset(items: Vec<Row>, revision: Revision) -> Change {
        let (rejected, parsed) = Default::default();
        Change::Reset { items, plugins: None, stream_plugins: None, revision, rejected, parsed, anew: false }
    }

    fn touched(fold: &mut Fold, change: Change) -> Vec<String> {
        let mut touched = Touched::default();
        fold.apply(change, &mut touched);
        touched.keys.into_iter().map(|key| key.id).collect()
    }

    #[test]
    fn only_what_differs_is_touched() {
        let mut fold = Fold::default();
        let first = vec![stored("a", 1, route("/a")), stored("b", 2, route("/b"))];
        let mut all = Touched::default();
        fold.apply(reset(first.clone(), 2), &mut all);
        assert_eq!((all, fold.desired().len()), (Touched::all(), 2));
        assert_eq!(touched(&mut fold, reset(first, 2)), [""; 0]);
        // The same value at another revision changes nothing.
        assert_eq!(touched(&mut fold, Change::Put(stored("a", 3, route("/a")))), [""; 0]);
        assert_eq!(touched(&mut fold, Change::Put(stored("a", 4, route("/x")))), ["a"]);
        let second = vec![stored("a", 4, route("/x")), stored("c", 5, route("/c"))];
        assert_eq!(touched(&mut fold, reset(second, 5)), ["b", "c"]);
        let delete = |id: &str| Change::Delete { key: Key::new(Kind::Route, id), revision: 6 };
        assert_eq!(touched(&mut fold, delete("c")), ["c"]);
        assert_eq!(touched(&mut fold, delete("c")), [""; 0]);
        assert_eq!((fold.revision(), fold.desired().len()), (6, 1));
    }

    /// Every store is read through here, so the table of unbuilt features applies to all writers.
    #[test]
    fn what_is_not_built_is_refused_or_noted() {
        for (effect, kind, id, value) in gaps::samples() {
            let mut fold = Fold::default();
            let (key, json) = (Key::new(kind, id), value.to_string().into());
            let row = Row { key, json, created: 1, modified: 1, expires: None };
            fold.apply(Change::Put(row), &mut Touched::default());
            let refused = effect == gaps::Effect::Refused;
            assert_eq!((fold.refused().len(), fold.desired().len()), (refused.into(), (!refused).into()));
            assert_eq!(fold.take_ignored().is_empty(), refused, "{kind} {value}");
        }
    }

    #[test]
    fn plugins_nobody_would_miss_are_counted() {
        let mut fold = Fold::default();
        let with = |id, modified, plugins| stored(id, modified, json!({"uri": "/", "plugins": plugins}));
        let loggly = || json!({"loggly": {"customer_token": "t"}, "cors": {}});
        touched(&mut fold, reset(vec![with("1", 1, loggly()), with("2", 2, loggly())], 2));
        assert_eq!(fold.unseen(), [("loggly", 2)]);
        let (list, resources) = fold.without_effect();
        assert_eq!((list.len(), resources, &*list[0].1.pointer), (2, 2, "/plugins/loggly"));
        touched(
            &mut fold,
            Change::Put(with(
                "1",
                3,
                json!({"sls-logger": {"host": "h", "port": 1, "project": "p", "logstore": "l", "access_key_id": "i", "access_key_secret": "s"}}),
            )),
        );
        assert_eq!(fold.unseen(), [("loggly", 1), ("sls-logger", 1)]);
        touched(&mut fold, Change::Put(with("1", 4, json!({"loggly": {"_meta": {"disable": true}}}))));
        touched(&mut fold, Change::Delete { key: Key::new(Kind::Route, "2"), revision: 5 });
        assert_eq!(fold.unseen(), []);
        assert_eq!(fold.without_effect().1, 0);
    }

    #[test]
    fn a_value_that_is_not_json_is_reported_as_such() {
        let mut fold = Fold::default();
        let row = Row { json: "{\"uri\": ".into(), ..stored("a", 1, json!({})) };
        fold.apply(Change::Put(row), &mut Touched::default());
        let refused = fold.refused();
        assert!(refused[0].invalid.reason.starts_with("the value is not JSON: "), "{refused:?}");
    }

    #[test]
    fn a_bad_value_keeps_the_good_one_before_it() {
        let mut fold = Fold::default();
        touched(&mut fold, Change::Put(stored("a", 1, route("/a"))));
        assert_eq!(touched(&mut fold, Change::Put(stored("a", 2, json!({"uri": 1})))), [""; 0]);
        assert_eq!(touched(&mut fold, Change::Put(stored("b", 3, json!({})))), [""; 0]);
        let refused: Vec<_> = fold.refused().iter().map(|r| (r.key.id.clone(), r.kept())).collect();
        assert_eq!(refused, [("a".to_owned(), true), ("b".to_owned(), false)]);
        // Back to what is there: nothing to compile, and nothing wrong any more.
        touched(&mut fold, Change::Put(stored("a", 4, route("/a"))));
        touched(&mut fold, Change::Delete { key: Key::new(Kind::Route, "b"), revision: 5 });
        assert_eq!(fold.refused().len(), 0);
    }

    #[test]
    fn a_reset_forgets_bad_values_that_are_gone() {
        let mut fold = Fold::default();
        let bad = || json!({"uri": 1});
        let first = vec![stored("a", 1, bad()), stored("b", 2, bad()), stored("c", 3, route("/c"))];
        touched(&mut fold, reset(first, 3));
        touched(&mut fold, Change::Put(stored("c", 4, bad())));
        assert_eq!(fold.refused().len(), 3);
        // One of them is still there, one is gone, one with a good form before it is gone.
        assert_eq!(touched(&mut fold, reset(vec![stored("a", 1, bad())], 6)), ["c"]);
        let refused: Vec<_> = fold.refused().iter().map(|r| r.key.id.clone()).collect();
        assert_eq!((refused, fold.desired().len()), (vec!["a".to_owned()], 0));
        // A value that was deleted and written again at another revision is read again.
        touched(&mut fold, reset(vec![stored("b", 2, route("/b"))], 7));
        assert_eq!((fold.refused().len(), fold.desired().len()), (0, 1));
    }

    #[test]
    fn what_was_read_already_is_not_read_again() {
        let mut fold = Fold::default();
        let rows = [stored("a", 1, route("/a")), stored("b", 1, route("/b"))];
        let read = |value| Resource::parse(Kind::Route, "a", &value).unwrap();
        // That it is another shows which of the two is taken.
        let plugins = json!({"loggly": {}, "key-auth": {"key": "$secret://vault/1/a"}});
        let known = read(json!({"uri": "/known", "plugins": plugins, "service_id": "s"}));
        // The text of `b` is another by now: a secret in it was decrypted, say.
        let parsed =
            Parsed::new(vec![(rows[0].json.clone(), known.clone()), ((*rows[1].json).into(), known.clone())]);
        let change = |parsed: &Parsed, revision| Change::Reset {
            items: rows.iter().map(|row| Row { modified: revision, ..row.clone() }).collect(),
            plugins: None,
            stream_plugins: None,
            revision,
            rejected: Vec::new(),
            parsed: parsed.clone(),
            anew: false,
        };
        touched(&mut fold, change(&parsed, 1));
        let uris = |fold: &Fold| -> Vec<_> {
            let of = |entry: &Arc<Entry>| match entry.resource() {
                Resource::Route(route) => route.uris[0].clone(),
                _ => panic!(),
            };
            fold.desired().iter().map(of).collect()
        };
        assert_eq!(uris(&fold), ["/known", "/b"]);
        assert_eq!((fold.unseen(), fold.dangling().len()), (vec![("loggly", 1)], 1));
        assert_eq!(fold.take_secrets().map(|(wanted, _)| wanted.len()), Some(1));
        // It is handed on once.
        assert_eq!(touched(&mut fold, change(&parsed, 2)), ["a"]);
        assert_eq!(uris(&fold), ["/a", "/b"]);
    }

    #[test]
    fn dangling_references_are_reported_after_each_kind_of_change() {
        let mut fold = Fold::default();
        let user = |id: &str, modified| stored(id, modified, json!({"uri": "/", "upstream_id": "u"}));
        let upstream = |modified| Row {
            key: Key::new(Kind::Upstream, "u"),
            ..stored("u", modified, json!({"nodes": {"127.0.0.1:80": 1}}))
        };
        let report =
            |fold: &mut Fold| fold.dangling().iter().map(|one| one.key.to_string()).collect::<Vec<_>>();
        touched(&mut fold, reset(vec![user("1", 1), upstream(2)], 2));
        assert_eq!(report(&mut fold), [""; 0]);
        touched(&mut fold, Change::Delete { key: upstream(2).key, revision: 3 });
        assert_eq!(report(&mut fold), ["routes/1"]);
        touched(&mut fold, Change::Put(user("2", 4)));
        assert_eq!(report(&mut fold), ["routes/1", "routes/2"]);
        touched(&mut fold, Change::Put(upstream(5)));
        assert_eq!(report(&mut fold), [""; 0]);
        touched(&mut fold, reset(vec![user("2", 4)], 6));
        assert_eq!(report(&mut fold), ["routes/2"]);
    }
}
