//! A store that forgets, for tests.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model::{Key, Kind};
use serde_json::Value;

use super::{Answer, Change, Changes, Expect, Revision, Row, Store, StoreError, Stored, Table, lease_end};

/// Keeps everything in memory and nothing longer. Leases never end by themselves.
#[derive(Debug)]
pub struct Memory {
    table: Table,
    /// Held while looking and writing, so that both are one step.
    writing: Mutex<()>,
}

impl Default for Memory {
    fn default() -> Self {
        Memory { table: Table::new([], None, 0), writing: Mutex::new(()) }
    }
}

impl Memory {
    fn write(
        &self,
        key: Key,
        value: Value,
        expect: Expect,
        ttl: Option<Duration>,
    ) -> Result<Stored, StoreError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let there = self.table.get(&key);
        if !expect.holds(there.as_ref()) {
            return Err(StoreError::Changed);
        }
        let modified = self.table.revision() + 1;
        let created = there.map_or(modified, |there| there.created);
        let stored = Stored { key, value: Arc::new(value), created, modified, expires: lease_end(ttl) };
        self.table.apply([Change::Put(Row::from(&stored))]);
        Ok(stored)
    }

    fn remove(&self, key: Key, expect: Expect) -> Result<Option<Stored>, StoreError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let there = self.table.get(&key);
        if !expect.holds(there.as_ref()) {
            return Err(StoreError::Changed);
        }
        if there.is_some() {
            self.table.apply([Change::Delete { key, revision: self.table.revision() + 1 }]);
        }
        Ok(there.map(Row::stored))
    }
}

impl Store for Memory {
    fn get<'a>(&'a self, key: &'a Key) -> Answer<'a, Option<Stored>> {
        Box::pin(async { Ok(self.table.get(key).map(Row::stored)) })
    }

    fn rows<'a>(&'a self, kind: Kind, prefix: &'a str) -> Answer<'a, (Vec<Row>, Revision)> {
        Box::pin(async move { Ok(self.table.list(kind, prefix)) })
    }

    fn put(&self, key: Key, value: Value, expect: Expect, ttl: Option<Duration>) -> Answer<'_, Stored> {
        Box::pin(async move { self.write(key, value, expect, ttl) })
    }

    fn delete(&self, key: Key, expect: Expect) -> Answer<'_, Option<Stored>> {
        Box::pin(async move { self.remove(key, expect) })
    }

    fn revision(&self) -> Answer<'_, Revision> {
        Box::pin(async { Ok(self.table.revision()) })
    }

    fn plugins(&self) -> Answer<'_, Option<Vec<String>>> {
        Box::pin(async { Ok(self.table.plugins()) })
    }

    fn put_plugins(&self, names: Vec<String>) -> Answer<'_, Revision> {
        Box::pin(async move {
            let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
            let revision = self.table.revision() + 1;
            self.table.apply([Change::Plugins { names: Some(names), revision }]);
            Ok(revision)
        })
    }

    fn watch(&self) -> Changes {
        self.table.watch()
    }
}
