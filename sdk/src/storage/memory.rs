//! A storage in memory, for tests.
#![cfg_attr(not(test), expect(clippy::disallowed_types, reason = "for tests"))]

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::Invalid;
use serde_json::{Map, Value};

use super::{Answer, Backend, Storage};
use crate::build::Build;
use crate::step::LocalFuture;
use crate::world::World;

#[derive(Debug, Default)]
pub struct Memory {
    values: Mutex<Values>,
    /// The values after the next read, as another node leaves them.
    next: Mutex<Option<Values>>,
    /// Every call fails.
    pub is_away: AtomicBool,
}

/// Values and their times, by key.
pub type Values = BTreeMap<Vec<u8>, (Vec<u8>, Duration)>;

impl Memory {
    pub fn values(&self) -> MutexGuard<'_, Values> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another node sets these values after the next read.
    pub fn then(&self, values: Values) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(values);
    }

    fn answer<T: 'static>(&self, value: T) -> LocalFuture<'static, Result<T, &'static str>> {
        Box::pin(ready(if self.is_away.load(Relaxed) { Err("the storage is away") } else { Ok(value) }))
    }
}

impl Storage for Memory {
    fn get<'a>(&'a self, _world: &'a dyn World, key: &'a [u8]) -> Answer<'a, Option<Vec<u8>>> {
        let mut values = self.values();
        let found = values.get(key).map(|(value, _)| value.clone());
        if let Some(next) = self.next.lock().unwrap_or_else(PoisonError::into_inner).take() {
            *values = next;
        }
        self.answer(found)
    }

    fn set<'a>(
        &'a self,
        _world: &'a dyn World,
        key: &'a [u8],
        value: &'a [u8],
        ttl: Duration,
    ) -> Answer<'a, ()> {
        if !self.is_away.load(Relaxed) {
            let mut values = self.values();
            values.insert(key.to_vec(), (value.to_vec(), ttl));
        }
        self.answer(())
    }

    fn replace<'a>(
        &'a self,
        world: &'a dyn World,
        key: &'a [u8],
        value: &'a [u8],
        ttl: Duration,
    ) -> Answer<'a, bool> {
        let has = self.values().contains_key(key);
        if has {
            drop(self.set(world, key, value, ttl));
        }
        self.answer(has)
    }

    fn remove<'a>(&'a self, _world: &'a dyn World, key: &'a [u8]) -> Answer<'a, ()> {
        if !self.is_away.load(Relaxed) {
            self.values().remove(key);
        }
        self.answer(())
    }
}

/// The same storage for every instance.
impl Backend for Arc<Memory> {
    fn open(&self, _settings: &Map<String, Value>, _cx: &Build<'_>) -> Result<Arc<dyn Storage>, Invalid> {
        Ok(self.clone())
    }
}
