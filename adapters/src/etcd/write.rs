//! Writes: decided over the table, made in etcd if nothing that they rest on has changed.
//!
//! A decision reads the table, which may be a little behind. Its reads become conditions of the transaction: keys
//! that it read must have the revision they had, and in folders that it searched nothing may be newer than the table.
//! If a condition does not hold, or the decision is a refusal, the table first catches up with etcd, and the decision
//! is made again. So an accepted write was valid at the moment it was made, and a refused one was invalid at a moment
//! after its request.

use std::cell::RefCell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use control::store::{
    Changed, Claim, Decide, Listed, Record, Refused, Revision, Row, Step, StoreError, Stored, View,
    WriteResult, unix_ms,
};
use model::{Invalid, Key, Kind};
use prost::Message;
use serde_json::Value;

use super::client::{ANSWER, Trouble};
use super::conditions::{nothing_since, unchanged};
use super::history::LARGEST;
use super::keys::{self, Layout};
use super::proto::request_op::Request;
use super::proto::{Compare, DeleteRangeRequest, PutRequest, RequestOp, TxnRequest};
use super::{Inner, WRITE, pages, unavailable};

/// The operations that etcd accepts in one transaction by default (`--max-txn-ops`).
pub const MOST_AT_ONCE: usize = 128;

/// How often a write is tried beside the writes of other gateways.
const TRIES: u32 = 32;

/// How long a write waits for others of this process.
const TURN: Duration = Duration::from_secs(10);

/// Leases that were granted for a write, by their seconds.
type Leases = BTreeMap<u64, i64>;

impl Inner {
    /// See [`Store::write`](control::store::Store::write).
    pub async fn write(self: Arc<Self>, mut decide: Decide) -> Result<WriteResult, Refused> {
        let mut leases = Leases::new();
        // Most writes meet no other. Those of this process that do are made one at a time, in their order.
        if let Some(written) = self.write_in_time(&mut decide, &mut leases, 1).await? {
            return Ok(written);
        }
        let _turn = tokio::time::timeout(TURN, self.turn.lock()).await.map_err(|_| {
            let late = format!("etcd: other writes took {} s; this write was not made", TURN.as_secs());
            StoreError::Unavailable(late)
        })?;
        let written = self.write_in_time(&mut decide, &mut leases, TRIES).await?;
        written.ok_or_else(|| StoreError::Changed.into())
    }

    async fn write_in_time(
        self: &Arc<Self>,
        decide: &mut Decide,
        leases: &mut Leases,
        tries: u32,
    ) -> Result<Option<WriteResult>, Refused> {
        let mut sent = false;
        match tokio::time::timeout(WRITE, self.try_write(decide, leases, tries, &mut sent)).await {
            Ok(done) => done,
            Err(_) => {
                let made = match sent {
                    true => "the write may have been made or not",
                    false => "the write was not made",
                };
                let why = self.status().trouble.map(|why| format!(" ({why})")).unwrap_or_default();
                let late = format!("etcd: no answer within {} ms{why}; {made}", WRITE.as_millis());
                Err(StoreError::Unavailable(late).into())
            }
        }
    }

    /// `None` if another write came first in each of this many tries.
    async fn try_write(
        self: &Arc<Self>,
        decide: &mut Decide,
        leases: &mut Leases,
        tries: u32,
        sent: &mut bool,
    ) -> Result<Option<WriteResult>, Refused> {
        self.filled()?;
        let mut is_current = false;
        let mut lost = 0;
        loop {
            let from_copy = self.status().from_copy;
            let decided = self.table.decide(decide, |view, ask| {
                let looked = Looked::over(view);
                let steps = ask(&looked);
                let reads = looked.reads.into_inner();
                steps.map(|steps| Plan::of(view, reads, steps))
            });
            let plan = match decided {
                Ok(plan) => plan,
                Err(refused) if is_current => return Err(refused),
                Err(_) => {
                    self.catch_up().await?;
                    is_current = true;
                    continue;
                }
            };
            // A copy from disk holds no notes.
            if from_copy && !plan.reads.notes.is_empty() {
                return Err(StoreError::Unavailable(format!("etcd: {}", self.why())).into());
            }
            if plan.writes.is_empty() && plan.notes.is_empty() && plan.listed.is_none() {
                let seen = plan.seen;
                return Ok(Some(plan.written(seen)));
            }
            for ttl in plan.ttls() {
                if let Entry::Vacant(place) = leases.entry(ttl) {
                    place.insert(self.client.lease(ttl).await.map_err(unavailable)?);
                }
            }
            // Of the streams' plugins in the list, only etcd knows.
            let listed = match plan.listed {
                Some(_) => self.value(self.layout.plugins()).await.map_err(unavailable)?,
                None => None,
            };
            let mut request = plan.request(&self.layout, leases, listed.as_ref());
            let bytes: usize = request.success.iter().map(RequestOp::encoded_len).sum();
            let record = match request.success.len() < MOST_AT_ONCE && bytes < LARGEST {
                true => plan.record().and_then(|record| self.record(&record)),
                false => None,
            };
            let is_recorded = record.is_some();
            request.success.extend(record.map(|op| RequestOp { request: Some(op) }));
            *sent = true;
            let answer = match self.client.txn(request).await {
                Err(Trouble::Refused(why)) if is_recorded && why.contains("permission denied") => {
                    *sent = false;
                    tracing::warn!(
                        "etcd: the user of deployment.etcd may not write to {}: no history is kept ({why})",
                        String::from_utf8_lossy(&self.layout.records().0)
                    );
                    self.history_refused.store(true, Ordering::Relaxed);
                    continue;
                }
                answer => answer.map_err(|trouble| refusal(trouble, &plan))?,
            };
            let revision = keys::revision(answer.header.unwrap_or_default().revision);
            if answer.succeeded {
                if is_recorded {
                    self.recorded();
                }
                // Clients read their own writes; a broken watch delays the answer by no more than this.
                let _ = tokio::time::timeout(ANSWER / 4, self.table.reached(revision)).await;
                return Ok(Some(plan.written(revision)));
            }
            *sent = false;
            lost += 1;
            if lost == tries {
                return Ok(None);
            }
            self.catch_up().await?;
            is_current = true;
        }
    }

    /// Waits until the table holds all that etcd holds now.
    async fn catch_up(&self) -> Result<(), StoreError> {
        let there = pages::listing(&self.client, &self.layout, ANSWER).await.map_err(unavailable)?;
        self.table
            .until(|rows, revision| {
                if revision > there.revision {
                    return true;
                }
                if revision < there.notes {
                    return false;
                }
                let mut count = 0;
                for (key, modified) in rows {
                    if there.keys.get(key) != Some(&modified) {
                        return false;
                    }
                    count += 1;
                }
                count == there.keys.len()
            })
            .await;
        Ok(())
    }
}

/// A refusal of etcd's in words that help.
fn refusal(trouble: Trouble, plan: &Plan) -> Refused {
    match &trouble {
        Trouble::Refused(why) if why.contains("too many operations") => {
            Invalid::new(format!("etcd does not take {} changes in one transaction", plan.writes.len()))
                .expected(format!("at most {MOST_AT_ONCE}, unless etcd runs with another --max-txn-ops"))
                .hint("write them in several steps, or raise --max-txn-ops of etcd")
                .into()
        }
        Trouble::Refused(why) if why.contains("request is too large") => {
            Invalid::new("the write is larger than etcd accepts")
                .hint("make the resource smaller, or raise --max-request-bytes of etcd (1.5 MiB by default)")
                .into()
        }
        Trouble::Lost(why) => {
            StoreError::Unavailable(format!("etcd: {why}; the write may have been made or not")).into()
        }
        _ => unavailable(trouble).into(),
    }
}

/// The keys, folders and notes that a decision looked at.
#[derive(Debug, Default)]
struct Reads {
    keys: BTreeMap<Key, Revision>,
    searched: BTreeSet<(Kind, String)>,
    notes: BTreeSet<String>,
}

/// A view that notes what is looked at.
struct Looked<'a> {
    view: &'a dyn View,
    reads: RefCell<Reads>,
}

impl<'a> Looked<'a> {
    fn over(view: &'a dyn View) -> Looked<'a> {
        Looked { view, reads: RefCell::default() }
    }

    fn search(&self, kind: Kind, prefix: &str) {
        self.reads.borrow_mut().searched.insert((kind, prefix.to_owned()));
    }
}

impl View for Looked<'_> {
    fn get(&self, key: &Key) -> Option<Row> {
        let row = self.view.get(key);
        let revision = row.as_ref().map_or(0, |row| row.modified);
        self.reads.borrow_mut().keys.insert(key.clone(), revision);
        row
    }

    fn scan(&self, kind: Kind, prefix: &str, look: &mut dyn FnMut(&Row) -> ControlFlow<()>) {
        self.search(kind, prefix);
        self.view.scan(kind, prefix, look);
    }

    fn holders(&self, claim: &Claim<'_>) -> Vec<Row> {
        // Credentials are below their consumers.
        self.search(Kind::Consumer, "");
        self.view.holders(claim)
    }

    fn revision(&self) -> Revision {
        self.view.revision()
    }

    fn note(&self, name: &str) -> Option<String> {
        self.reads.borrow_mut().notes.insert(name.to_owned());
        self.view.note(name)
    }

    fn plugins(&self) -> Option<Vec<String>> {
        self.view.plugins()
    }

    fn spellings(&self, text: &str) -> Vec<String> {
        self.view.spellings(text)
    }
}

/// The change of a key.
#[derive(Debug)]
struct Change {
    before: Option<Row>,
    /// `None` deletes it.
    after: Option<(Arc<Value>, Option<u64>)>,
}

/// A write as it is sent.
#[derive(Debug)]
struct Plan {
    reads: Reads,
    /// The table's revision at the decision.
    seen: Revision,
    writes: BTreeMap<Key, Change>,
    notes: BTreeMap<&'static str, String>,
    /// The list of plugins as it was, and as it is to be.
    listed: Option<Listed>,
    /// Its author and message, for the history.
    by: (String, String),
    /// For each step the key it is about, and the value it puts or the one it deletes.
    steps: Vec<Option<(Key, Outcome)>>,
}

#[derive(Debug)]
enum Outcome {
    Put { value: Arc<Value>, created: Option<Revision>, ttl: Option<u64> },
    Deleted(Box<Stored>),
}

impl Plan {
    fn of(view: &dyn View, reads: Reads, steps: Vec<Step>) -> Plan {
        let mut plan = Plan {
            reads,
            seen: view.revision(),
            writes: BTreeMap::new(),
            notes: BTreeMap::new(),
            listed: None,
            by: Default::default(),
            steps: Vec::new(),
        };
        for step in steps {
            let outcome = plan.take(view, step);
            plan.steps.push(outcome);
        }
        // A key that this write creates and deletes again does not change.
        plan.writes.retain(|_, change| change.before.is_some() || change.after.is_some());
        plan
    }

    fn take(&mut self, view: &dyn View, step: Step) -> Option<(Key, Outcome)> {
        match step {
            Step::Put { key, value, ttl } => {
                let change = self.change(view, &key);
                let (value, ttl) = (Arc::new(value), ttl.map(seconds));
                change.after = Some((value.clone(), ttl));
                let created = change.before.as_ref().map(|row| row.created);
                Some((key, Outcome::Put { value, created, ttl }))
            }
            Step::Delete { key } => {
                let seen = view.revision();
                let change = self.change(view, &key);
                let gone = match change.after.take() {
                    Some((value, _)) => {
                        let (created, modified) =
                            change.before.as_ref().map_or((seen, seen), |row| (row.created, row.modified));
                        Stored { key: key.clone(), value, created, modified, expires: None }
                    }
                    None => change.before.clone()?.stored(),
                };
                Some((key, Outcome::Deleted(Box::new(gone))))
            }
            Step::Note { name, text } => {
                self.notes.insert(name, text);
                None
            }
            Step::Plugins { names } => {
                let before = self.listed.take().map_or_else(|| view.plugins(), |listed| listed.before);
                self.listed = Some(Listed { before, after: names });
                None
            }
            Step::By { author, message } => {
                self.by = (author, message);
                None
            }
        }
    }

    fn change(&mut self, view: &dyn View, key: &Key) -> &mut Change {
        self.writes.entry(key.clone()).or_insert_with(|| {
            let before = view.get(key);
            let after = before.as_ref().map(|row| (Arc::new(row.value()), None));
            Change { before, after }
        })
    }

    /// For the history; `None` if nothing changes.
    fn record(&self) -> Option<Record> {
        let changes = self.writes.iter().map(|(key, change)| Changed {
            key: key.clone(),
            before: change.before.as_ref().map(|row| row.json.clone()),
            after: change.after.as_ref().map(|(value, _)| value.to_string().into()),
        });
        let changes: Vec<Changed> = changes.filter(|changed| changed.before != changed.after).collect();
        let plugins = self.listed.clone().filter(|listed| listed.before != listed.after);
        let (author, message) = self.by.clone();
        (!changes.is_empty() || plugins.is_some()).then(|| Record {
            from: self.seen,
            revision: self.seen,
            time_ms: unix_ms(),
            author,
            message,
            changes,
            plugins,
        })
    }

    fn ttls(&self) -> Vec<u64> {
        self.writes.values().filter_map(|change| change.after.as_ref()?.1).collect()
    }

    /// `listed` is the list of plugins that etcd has, with its revision.
    fn request(&self, layout: &Layout, leases: &Leases, listed: Option<&(Vec<u8>, i64)>) -> TxnRequest {
        let mut keys = self.reads.keys.clone();
        for (key, change) in &self.writes {
            keys.insert(key.clone(), change.before.as_ref().map_or(0, |row| row.modified));
        }
        let number = |revision: Revision| i64::try_from(revision).unwrap_or(i64::MAX);
        let of_keys = keys.iter().map(|(key, revision)| unchanged(layout.key(key), number(*revision)));
        let of_folders = self
            .reads
            .searched
            .iter()
            .map(|(kind, prefix)| nothing_since(layout.of_kind(*kind, prefix), self.seen));
        let of_notes =
            self.reads.notes.iter().map(|name| nothing_since((layout.note(name), Vec::new()), self.seen));
        let mut success = Vec::with_capacity(self.writes.len() + self.notes.len());
        for (key, change) in &self.writes {
            let key = layout.key(key);
            success.push(match &change.after {
                Some((value, ttl)) => {
                    let lease = ttl.and_then(|ttl| leases.get(&ttl).copied()).unwrap_or(0);
                    Request::RequestPut(PutRequest { key, value: value.to_string().into_bytes(), lease })
                }
                None => Request::RequestDeleteRange(DeleteRangeRequest { key, range_end: Vec::new() }),
            });
        }
        for (name, text) in &self.notes {
            let (key, value) = (layout.note(name), text.clone().into_bytes());
            success.push(Request::RequestPut(PutRequest { key, value, lease: 0 }));
        }
        let mut compare: Vec<Compare> = of_keys.chain(of_folders).chain(of_notes).collect();
        if let Some(Listed { after, .. }) = &self.listed {
            let key = layout.plugins();
            compare.push(unchanged(key.clone(), listed.map_or(0, |(_, revision)| *revision)));
            success.push(match after {
                Some(names) => {
                    let list = keys::with_plugins(names, listed.map(|(value, _)| &**value));
                    Request::RequestPut(PutRequest { key, value: list.to_string().into_bytes(), lease: 0 })
                }
                None => Request::RequestDeleteRange(DeleteRangeRequest { key, range_end: Vec::new() }),
            });
        }
        let success = success.into_iter().map(|op| RequestOp { request: Some(op) }).collect();
        TxnRequest { compare, success }
    }

    /// Returns the results of the steps, written at a revision.
    fn written(self, revision: Revision) -> WriteResult {
        let values = self.steps.into_iter().map(|step| {
            let (key, outcome) = step?;
            Some(match outcome {
                Outcome::Deleted(stored) => *stored,
                Outcome::Put { value, created, ttl } => Stored {
                    key,
                    value,
                    created: created.unwrap_or(revision),
                    modified: revision,
                    expires: ttl.map(|ttl| unix_ms().saturating_add(ttl.saturating_mul(1000))),
                },
            })
        });
        WriteResult { values: values.collect(), revision }
    }
}

/// Leases are of whole seconds.
fn seconds(ttl: Duration) -> u64 {
    ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::etcd::proto::compare::{CompareResult, TargetUnion};

    /// A view of a few rows.
    struct Few(Vec<Row>);

    impl View for Few {
        fn get(&self, key: &Key) -> Option<Row> {
            self.0.iter().find(|row| row.key == *key).cloned()
        }

        fn scan(&self, kind: Kind, prefix: &str, look: &mut dyn FnMut(&Row) -> ControlFlow<()>) {
            let within = |row: &&Row| row.key.kind == kind && row.key.id.starts_with(prefix);
            let _ = self.0.iter().filter(within).try_for_each(look);
        }

        fn revision(&self) -> Revision {
            40
        }
    }

    fn key(id: &str) -> Key {
        Key::new(Kind::Route, id)
    }

    fn put(id: &str, value: Value) -> Step {
        Step::Put { key: key(id), value, ttl: None }
    }

    fn plan(decide: impl FnOnce(&dyn View) -> Vec<Step>) -> Plan {
        let row = Row { key: key("1"), json: "{}".into(), created: 3, modified: 7, expires: None };
        let view = Few(vec![row]);
        let looked = Looked::over(&view);
        let steps = decide(&looked);
        let reads = looked.reads.into_inner();
        Plan::of(&view, reads, steps)
    }

    #[test]
    fn what_was_looked_at_is_compared() {
        let plan = plan(|view| {
            view.get(&key("1"));
            view.get(&Key::new(Kind::Service, "s"));
            view.scan(Kind::Upstream, "", &mut |_| ControlFlow::Continue(()));
            view.holders(&Claim { plugin: "key-auth", field: "key", text: "x" });
            view.note("n");
            vec![put("2", json!({"a": 1}))]
        });
        let request = plan.request(&Layout::new("/apisix"), &BTreeMap::new(), None);
        let compared: Vec<(String, CompareResult, i64)> = request
            .compare
            .iter()
            .map(|one| {
                let Some(TargetUnion::ModRevision(revision)) = one.target_union else { panic!() };
                (String::from_utf8_lossy(&one.key).into_owned(), one.result(), revision)
            })
            .collect();
        let (equal, less) = (CompareResult::Equal, CompareResult::Less);
        for wanted in [
            ("/apisix/routes/1", equal, 7),
            ("/apisix/routes/2", equal, 0),
            ("/apisix/services/s", equal, 0),
            ("/apisix/upstreams/", less, 41),
            ("/apisix/consumers/", less, 41),
            ("/apisix/sluice/notes/n", less, 41),
        ] {
            assert!(
                compared.contains(&(wanted.0.to_owned(), wanted.1, wanted.2)),
                "{wanted:?}: {compared:?}"
            );
        }
        assert_eq!(compared.len(), 6);
        let Some(Request::RequestPut(put)) = &request.success[0].request else { panic!() };
        assert_eq!((&*put.key, &*put.value), (&b"/apisix/routes/2"[..], &br#"{"a":1}"#[..]));
        let written = plan.written(50);
        let stored = written.values[0].as_ref().unwrap();
        assert_eq!((stored.created, stored.modified), (50, 50));
    }

    #[test]
    fn a_key_is_sent_once_however_often_it_is_written() {
        let gone = |id: &str| Step::Delete { key: key(id) };
        let steps =
            vec![put("1", json!(1)), gone("1"), put("1", json!(2)), put("2", json!(3)), gone("2"), gone("3")];
        let plan = plan(|_| steps);
        let request = plan.request(&Layout::new("/apisix"), &BTreeMap::new(), None);
        assert_eq!(request.success.len(), 1);
        let Some(Request::RequestPut(put)) = &request.success[0].request else { panic!() };
        assert_eq!(&*put.value, b"2");
        let values: Vec<_> = plan
            .written(9)
            .values
            .into_iter()
            .map(|stored| stored.map(|stored| stored.value.to_string()))
            .collect();
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(values, [text("1"), text("1"), text("2"), text("3"), text("3"), None]);
    }

    #[test]
    fn a_lease_lasts_whole_seconds() {
        assert_eq!([seconds(Duration::from_millis(1)), seconds(Duration::from_secs(2))], [1, 2]);
        let step = Step::Put { key: key("1"), value: json!({}), ttl: Some(Duration::from_secs(5)) };
        let plan = plan(|_| vec![step]);
        assert_eq!(plan.ttls(), [5]);
        let request = plan.request(&Layout::new("/apisix"), &BTreeMap::from([(5, 77)]), None);
        assert!(matches!(
            &request.success[0].request,
            Some(Request::RequestPut(PutRequest { lease: 77, .. }))
        ));
    }
}
