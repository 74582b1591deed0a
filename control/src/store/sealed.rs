//! A store that keeps private keys and the secrets of plugins encrypted, in APISIX's format.
//!
//! Writes are encrypted on their way to the inner store, so the answer to a
//! write shows secrets encrypted. Reads and watches are decrypted. A secret
//! that no key decrypts is passed on as it is, and watching logs a warning: it
//! was written before encryption was enabled, or with a key that is not in the
//! keyring any more.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::stream;
use model::{Key, Kind};
use sdk::catalog::Facts;
use serde_json::Value;
use snapshot::parallel;

use super::{
    Change, Changed, Changes, Claim, Decide, Record, Refused, Released, Revision, Row, Step, Store,
    StoreError, StoreFuture, Stored, View, Writing,
};

mod fields;
mod ring;

use fields::{Fields, is_private_key};
pub use ring::Ring;

/// An inner store with encryption over it.
#[derive(Debug)]
pub struct Sealed {
    inner: Arc<dyn Store>,
    sealer: Arc<Sealer>,
}

struct Sealer {
    ring: Ring,
    fields: Fields,
    /// Whether writes are encrypted. Reads are always decrypted.
    seals: bool,
}

impl Sealed {
    /// The `encrypt_fields` of the plugins' schemas name the secrets.
    pub fn over(
        inner: Arc<dyn Store>,
        ring: Ring,
        seals: bool,
        plugins: impl IntoIterator<Item = (&'static str, Facts)>,
    ) -> Sealed {
        let sealer = Sealer { ring, fields: Fields::of(plugins), seals };
        Sealed { inner, sealer: Arc::new(sealer) }
    }

    /// The place of the first secret that looks encrypted and that no key decrypts (see [`Opener::open`]), and how many
    /// resources have such.
    ///
    /// # Errors
    /// Those of the inner store.
    pub async fn unopened(&self) -> Result<Option<(String, usize)>, StoreError> {
        let mut found: Option<(String, usize)> = None;
        for kind in Kind::ALL.into_iter().filter(|kind| self.sealer.fields.are_in(*kind)) {
            let (rows, _) = self.inner.rows(kind, "").await?;
            let places = parallel::map(rows, |row| {
                self.sealer.open_value(&row.key, &mut row.value(), ring::may_be_sealed).1
            });
            for place in places.flatten() {
                found.get_or_insert((place, 0)).1 += 1;
            }
        }
        Ok(found)
    }
}

/// Decrypts what gateways of a cluster have written, where there is no store.
#[derive(Debug)]
pub struct Opener(Sealer);

impl Opener {
    /// As [`Sealed::over`].
    pub fn new(ring: Ring, plugins: impl IntoIterator<Item = (&'static str, Facts)>) -> Opener {
        Opener(Sealer { ring, fields: Fields::of(plugins), seals: false })
    }

    /// Gives the place of the first secret that looks encrypted and that no key decrypts. One that is in the clear, and
    /// base64 of whole blocks, is such a one, too.
    pub fn open(&self, key: &Key, value: &mut Value) -> Option<String> {
        self.0.open_value(key, value, ring::may_be_sealed).1
    }

    /// The value with its secrets in the clear; `None` if no key decrypts any of them.
    pub fn opened(&self, key: &Key, value: &Value) -> Option<Value> {
        if !self.0.fields.are_in(key.kind) {
            return None;
        }
        let mut value = value.clone();
        self.0.open_value(key, &mut value, |_| false).0.then_some(value)
    }
}

impl Store for Sealed {
    fn get<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Option<Stored>> {
        Box::pin(async move { Ok(self.inner.get(key).await?.map(|stored| self.sealer.open(stored))) })
    }

    fn list<'a>(&'a self, kind: Kind, prefix: &'a str) -> StoreFuture<'a, (Vec<Stored>, Revision)> {
        Box::pin(async move {
            let (rows, revision) = self.inner.rows(kind, prefix).await?;
            Ok((parallel::map(rows, |row| self.sealer.open(row.stored())).collect(), revision))
        })
    }

    fn rows<'a>(&'a self, kind: Kind, prefix: &'a str) -> StoreFuture<'a, (Vec<Row>, Revision)> {
        Box::pin(async move {
            let (rows, revision) = self.inner.rows(kind, prefix).await?;
            Ok((parallel::map(rows, |row| self.sealer.open_row(row).0).collect(), revision))
        })
    }

    fn write(&self, mut decide: Decide) -> Writing<'_> {
        let sealer = self.sealer.clone();
        self.inner.write(Box::new(move |view| {
            let mut steps = decide(&Seen { view, sealer: &sealer })?;
            for step in &mut steps {
                if let Step::Put { key, value, .. } = step {
                    sealer.seal(key, value, &mut |key| view.get(key))?;
                }
            }
            Ok(steps)
        }))
    }

    fn revision(&self) -> StoreFuture<'_, Revision> {
        self.inner.revision()
    }

    fn plugins(&self) -> StoreFuture<'_, Option<Vec<String>>> {
        self.inner.plugins()
    }

    fn stream_plugins(&self) -> StoreFuture<'_, Option<Vec<String>>> {
        self.inner.stream_plugins()
    }

    fn note<'a>(&'a self, name: &'a str) -> StoreFuture<'a, Option<String>> {
        self.inner.note(name)
    }

    fn moved_since<'a>(&'a self, note: &'a str) -> StoreFuture<'a, Option<bool>> {
        self.inner.moved_since(note)
    }

    fn history(&self, after: Revision, until: Revision, limit: usize) -> StoreFuture<'_, Vec<Record>> {
        Box::pin(async move {
            let mut records = self.inner.history(after, until, limit).await?;
            for Changed { key, before, after } in records.iter_mut().flat_map(|record| &mut record.changes) {
                for json in [before, after].into_iter().flatten() {
                    *json = self.sealer.open_text(key, json);
                }
            }
            Ok(records)
        })
    }

    fn copy(&self) -> StoreFuture<'_, Option<PathBuf>> {
        self.inner.copy()
    }

    fn watch(&self) -> Changes {
        let follower = (self.inner.watch(), self.sealer.clone());
        Changes::new(stream::unfold(follower, |(mut changes, sealer)| async move {
            let change = changes.next().await?;
            Some((sealer.open_change(change), (changes, sealer)))
        }))
    }

    fn release(&self) -> StoreFuture<'_, Option<Released>> {
        self.inner.release()
    }

    fn open_secret(&self, text: &str) -> Option<String> {
        self.sealer.ring.open(text)
    }

    fn writable(&self) -> bool {
        self.inner.writable()
    }

    fn is_shared(&self) -> bool {
        self.inner.is_shared()
    }
}

/// The inner store at the moment of a write. A single resource is decrypted, as it may be changed and
/// written again, or compared with one that a client sent. Scans and holders stay encrypted: callers that
/// scan all resources only look for names and ids, or compare secrets in all their spellings.
struct Seen<'a> {
    view: &'a dyn View,
    sealer: &'a Sealer,
}

impl View for Seen<'_> {
    fn get(&self, key: &Key) -> Option<Row> {
        self.view.get(key).map(|row| self.sealer.open_row(row).0)
    }

    fn scan(&self, kind: Kind, prefix: &str, look: &mut dyn FnMut(&Row) -> std::ops::ControlFlow<()>) {
        self.view.scan(kind, prefix, look);
    }

    fn holders(&self, claim: &Claim<'_>) -> Vec<Row> {
        self.view.holders(claim)
    }

    fn revision(&self) -> Revision {
        self.view.revision()
    }

    fn note(&self, name: &str) -> Option<String> {
        self.view.note(name)
    }

    fn plugins(&self) -> Option<Vec<String>> {
        self.view.plugins()
    }

    fn spellings(&self, text: &str) -> Vec<String> {
        let mut all = self.view.spellings(text);
        all.extend(self.sealer.ring.seals(text));
        all
    }
}

impl Sealer {
    /// Encrypts secrets. A value that `before` holds encrypted by a key that is not in the ring comes back as it was
    /// shown, and stays unchanged: encrypted once more, it could not be read when that key is back.
    fn seal(
        &self,
        key: &Key,
        value: &mut Value,
        before: &mut dyn FnMut(&Key) -> Option<Row>,
    ) -> Result<(), Refused> {
        let mut failed = false;
        if self.seals {
            let foreign = self.foreign(key, value, before);
            let mut seal = |_: &str, text: &mut String| {
                if foreign.contains(text) {
                    return;
                }
                match self.ring.seal(text) {
                    Some(sealed) => *text = sealed,
                    None => failed |= !self.ring.is_empty(),
                }
            };
            self.fields.each(key, value, &mut seal);
            Fields::each_key(key.kind, value, &mut |place, text| {
                // One that was encrypted elsewhere by the same keys comes as it is.
                if is_private_key(text) {
                    seal(place, text);
                }
            });
        }
        match failed {
            // Never store a secret in the clear because encryption failed.
            true => Err(StoreError::Unavailable("a secret could not be encrypted".to_owned()).into()),
            false => Ok(()),
        }
    }

    /// The secrets of a value that look encrypted, that no key opens, and that are in what was stored before.
    fn foreign(
        &self,
        key: &Key,
        value: &mut Value,
        before: &mut dyn FnMut(&Key) -> Option<Row>,
    ) -> HashSet<String> {
        let mut found = HashSet::new();
        let mut look = |_: &str, text: &mut String| {
            if ring::may_be_sealed(text) && self.ring.open(text).is_none() {
                found.insert(text.clone());
            }
        };
        self.fields.each(key, value, &mut look);
        // Few writes come this far.
        if !found.is_empty() {
            let mut there = HashSet::new();
            if let Some(row) = before(key) {
                let mut value = row.value();
                let mut look = |_: &str, text: &mut String| _ = there.insert(text.clone());
                self.fields.each(key, &mut value, &mut look);
            }
            found.retain(|text| there.contains(text));
        }
        found
    }

    fn open(&self, mut stored: Stored) -> Stored {
        if self.fields.are_in(stored.key.kind) {
            self.open_value(&stored.key, Arc::make_mut(&mut stored.value), |_| true);
        }
        stored
    }

    /// Decrypts a row. Also returns the place of the first secret that no key decrypts.
    fn open_row(&self, row: Row) -> (Row, Option<String>) {
        if !self.fields.may_stand_in(row.key.kind, &row.json) {
            return (row, None);
        }
        let mut value = row.value();
        let (changed, kept) = self.open_value(&row.key, &mut value, |_| true);
        let json = if changed { value.to_string().into() } else { row.json };
        (Row { json, ..row }, kept)
    }

    /// Decrypts a value that is written out.
    fn open_text(&self, key: &Key, json: &Arc<str>) -> Arc<str> {
        let row = Row { key: key.clone(), json: json.clone(), created: 0, modified: 0, expires: None };
        self.open_row(row).0.json
    }

    /// Whether something was decrypted, and the place of the first secret that no key decrypts, of those that `counts`.
    fn open_value(
        &self,
        key: &Key,
        value: &mut Value,
        counts: impl Fn(&str) -> bool,
    ) -> (bool, Option<String>) {
        let (mut changed, mut kept) = (false, None);
        let mut open = |place: &str, text: &mut String| match self.ring.open(text) {
            Some(opened) => {
                *text = opened;
                changed = true;
            }
            None if kept.is_none() && counts(text) => kept = Some(format!("{key}: {place}")),
            None => {}
        };
        self.fields.each(key, value, &mut open);
        Fields::each_key(key.kind, value, &mut |place, text| {
            if !is_private_key(text) {
                open(place, text);
            }
        });
        (changed, kept)
    }

    fn open_change(&self, change: Change) -> Change {
        match change {
            Change::Put(row) => {
                let (row, kept) = self.open_row(row);
                self.log_undecryptable(usize::from(kept.is_some()), kept);
                Change::Put(row)
            }
            Change::Reset { items, plugins, stream_plugins, revision, rejected, parsed, anew } => {
                let (mut count, mut first) = (0, None);
                let opened = parallel::map(items, |row| self.open_row(row));
                let items = opened.map(|(row, kept)| {
                    count += usize::from(kept.is_some());
                    first = first.take().or(kept);
                    row
                });
                let items = items.collect();
                self.log_undecryptable(count, first);
                Change::Reset { items, plugins, stream_plugins, revision, rejected, parsed, anew }
            }
            change => change,
        }
    }

    /// One warning per change, however many secrets it concerns: there may be very many.
    fn log_undecryptable(&self, count: usize, first: Option<String>) {
        if let Some(first) = first.filter(|_| self.seals && !self.ring.is_empty()) {
            tracing::warn!(
                "{first} cannot be decrypted and is used as it is{}; it was written before encryption was \
                 enabled, or with a key that is not in apisix.data_encryption.keyring: add that key, or write \
                 the resource again",
                match count {
                    1 => String::new(),
                    _ => format!(", and so are secrets of {} other resources", count - 1),
                }
            );
        }
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("seals", &self.seals).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
