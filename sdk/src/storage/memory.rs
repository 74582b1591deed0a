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

use super::{Backend, Storage};
use crate::build::Build;
use crate::step::LocalFuture;
use crate::world::World;

#[derive(Debug, Default)]
pub struct Memory {
    values: Mutex<BTreeMap<Vec<u8>, Stored>>,
    /// Every call fails.
    pub is_away: AtomicBool,
}

/// A value and its time.
pub type Stored = (Vec<u8>, Option<Duration>);

impl Memory {
    pub fn values(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Stored>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer<T: 'static>(&self, value: T) -> LocalFuture<'static, Result<T, &'static str>> {
        Box::pin(ready(if self.is_away.load(Relaxed) { Err("the storage is away") } else { Ok(value) }))
    }
}

impl Storage for Memory {
    fn get<'a>(
        &'a self,
        _world: &'a dyn World,
        key: &'a [u8],
    ) -> LocalFuture<'a, Result<Option<Vec<u8>>, &'static str>> {
        let values = self.values();
        self.answer(values.get(key).map(|(value, _)| value.clone()))
    }

    fn set<'a>(
        &'a self,
        _world: &'a dyn World,
        key: &'a [u8],
        value: &'a [u8],
        ttl: Option<Duration>,
    ) -> LocalFuture<'a, Result<(), &'static str>> {
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
        ttl: Option<Duration>,
    ) -> LocalFuture<'a, Result<(), &'static str>> {
        let has = self.values().contains_key(key);
        if has { self.set(world, key, value, ttl) } else { self.answer(()) }
    }

    fn remove<'a>(
        &'a self,
        _world: &'a dyn World,
        key: &'a [u8],
    ) -> LocalFuture<'a, Result<(), &'static str>> {
        self.values().remove(key);
        self.answer(())
    }
}

/// The same storage for every instance.
impl Backend for Arc<Memory> {
    fn open(&self, _settings: &Map<String, Value>, _cx: &Build<'_>) -> Result<Arc<dyn Storage>, Invalid> {
        Ok(self.clone())
    }
}
