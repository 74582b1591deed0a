//! A whole configuration to look at: the snapshot, what it was compiled from, and what is kept out of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Desired, Key, Rejected};
use sdk::build::Names;
use snapshot::{Compiler, Snapshot, Touched};

use crate::fold::Fold;
use crate::store::history::lists_together;
use crate::store::{Change, Changed, Revision, Row, Store, StoreError};

/// One moment of a configuration.
#[derive(Debug, Clone)]
pub struct Look {
    pub snapshot: Snapshot,
    pub desired: Desired,
    /// Resources that are not served as written.
    pub rejected: Arc<[Rejected]>,
    /// It was compiled without asking anybody, and there are names or secrets to be asked for.
    pub unasked: bool,
}

/// Why there is nothing to look at.
#[derive(Debug, thiserror::Error)]
pub enum Unseen {
    #[error("there is no revision {0} yet; the current one is {1}")]
    Ahead(Revision, Revision),
    #[error("there is no revision {0} (the newest is {1}), or it was pruned")]
    Forgotten(Revision, Revision),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Look {
    /// Compiles these resources. The compiler must be a fresh one.
    pub fn of_rows(
        rows: Vec<Row>,
        plugins: Option<Vec<String>>,
        revision: Revision,
        compiler: &mut Compiler,
        names: &(dyn Names + Sync),
    ) -> Look {
        let mut fold = Fold::default();
        // The stream plugins do not matter when a request is explained.
        let (stream_plugins, rejected, parsed) = Default::default();
        let reset =
            Change::Reset { items: rows, plugins, stream_plugins, revision, rejected, parsed, anew: true };
        fold.apply(reset, &mut Touched::default());
        let compiled = compiler.compile(fold.desired(), &Touched::all(), names, revision);
        let rejected = fold.refused().iter().chain(&*compiled.rejected).cloned().collect();
        let unasked =
            !compiled.wanted_hosts.is_empty() || fold.take_secrets().is_some_and(|(all, _)| !all.is_empty());
        Look { snapshot: compiled.snapshot, desired: fold.desired().clone(), rejected, unasked }
    }

    /// Compiles the resources that a store holds, and once more with another value for one of them, or without it.
    /// `compiler` makes a fresh compiler.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn before_and_after<E: From<StoreError>>(
        store: &dyn Store,
        (key, json): (Key, Option<Arc<str>>),
        compiler: impl Fn() -> Result<Compiler, E>,
        names: &(dyn Names + Sync),
    ) -> Result<[Look; 2], E> {
        let mut rows = all_rows(store).await?;
        let (plugins, revision) = (store.plugins().await?, store.revision().await?);
        let look = |rows: &BTreeMap<Key, Row>| -> Result<Look, E> {
            let rows = rows.values().cloned().collect();
            Ok(Look::of_rows(rows, plugins.clone(), revision, &mut compiler()?, names))
        };
        let before = look(&rows)?;
        match json {
            Some(json) => {
                let created = rows.get(&key).map_or(revision, |row| row.created);
                let row = Row { key: key.clone(), json, created, modified: revision, expires: None };
                rows.insert(key, row);
            }
            None => _ = rows.remove(&key),
        }
        Ok([before, look(&rows)?])
    }

    /// Compiles the resources that a store held after a revision.
    ///
    /// # Errors
    /// The store does not know it.
    pub async fn at(
        store: &dyn Store,
        revision: Revision,
        compiler: &mut Compiler,
        names: &(dyn Names + Sync),
    ) -> Result<Look, Unseen> {
        let mut rows = all_rows(store).await?;
        let plugins = store.plugins().await?;
        // After the rows and the list: what was written while they were read is undone as well, and undoing what a row
        // has not seen yet changes nothing.
        let current = store.revision().await?;
        if revision > current {
            return Err(Unseen::Ahead(revision, current));
        }
        let records = store.history(revision, current, usize::MAX).await?;
        let is_known = match records.last() {
            Some(oldest) => oldest.from == revision,
            None => revision == current || !store.history(0, revision, 1).await?.is_empty(),
        };
        if !is_known {
            return Err(Unseen::Forgotten(revision, current));
        }
        let plugins = lists_together(&records).map_or(plugins, |listed| listed.before);
        // The newest first, so that what was there before the oldest is what stays.
        for Changed { key, before, .. } in records.into_iter().flat_map(|record| record.changes) {
            match before {
                Some(json) => {
                    let row = Row { key: key.clone(), json, created: 0, modified: revision, expires: None };
                    rows.insert(key, row);
                }
                None => _ = rows.remove(&key),
            }
        }
        let rows = rows.into_values().collect();
        Ok(Look::of_rows(rows, plugins, revision, compiler, names))
    }
}

/// Reads the rows of all kinds, one kind after the other.
///
/// # Errors
/// The store cannot be read.
pub async fn all_rows(store: &dyn Store) -> Result<BTreeMap<Key, Row>, StoreError> {
    let mut rows = BTreeMap::new();
    for kind in model::Kind::ALL {
        let (all, _) = store.rows(kind, "").await?;
        rows.extend(all.into_iter().map(|row| (row.key.clone(), row)));
    }
    Ok(rows)
}
