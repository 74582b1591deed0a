//! A store that forgets, for tests.

use std::sync::{Mutex, PoisonError};

use model::{Key, Kind};

use super::draft::Draft;
use super::{
    Changes, Decide, Record, Refused, Revision, Row, Store, StoreFuture, Stored, Table, WriteResult, Writing,
};

/// Keeps everything in memory and nothing longer. Leases never end by themselves.
#[derive(Debug)]
pub struct Memory {
    table: Table,
    /// Held while looking and writing, so that both are one step.
    writing: Mutex<()>,
    history: Mutex<Vec<Record>>,
}

impl Default for Memory {
    fn default() -> Self {
        Memory { table: Table::new([], None, 0), writing: Mutex::new(()), history: Mutex::default() }
    }
}

impl Memory {
    fn decide(&self, decide: Decide) -> Result<WriteResult, Refused> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut draft = Draft::over(&self.table);
        let written = draft.decide(decide)?;
        self.history.lock().unwrap_or_else(PoisonError::into_inner).append(&mut draft.records);
        self.table.apply(draft.changes);
        Ok(written)
    }
}

impl Store for Memory {
    fn get<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Option<Stored>> {
        Box::pin(async { Ok(self.table.get(key).map(Row::stored)) })
    }

    fn rows<'a>(&'a self, kind: Kind, prefix: &'a str) -> StoreFuture<'a, (Vec<Row>, Revision)> {
        Box::pin(async move { Ok(self.table.list(kind, prefix)) })
    }

    fn write(&self, decide: Decide) -> Writing<'_> {
        Box::pin(async move { self.decide(decide) })
    }

    fn revision(&self) -> StoreFuture<'_, Revision> {
        Box::pin(async { Ok(self.table.revision()) })
    }

    fn plugins(&self) -> StoreFuture<'_, Option<Vec<String>>> {
        Box::pin(async { Ok(self.table.plugins()) })
    }

    fn note<'a>(&'a self, name: &'a str) -> StoreFuture<'a, Option<String>> {
        Box::pin(async move { Ok(self.table.note(name)) })
    }

    fn history(&self, after: Revision, until: Revision, limit: usize) -> StoreFuture<'_, Vec<Record>> {
        Box::pin(async move {
            let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
            let within = |record: &&Record| after < record.revision && record.revision <= until;
            Ok(history.iter().rev().filter(within).take(limit).cloned().collect())
        })
    }

    fn watch(&self) -> Changes {
        self.table.watch()
    }
}
