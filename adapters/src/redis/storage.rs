//! Values that expire: GET, SET and DEL.

use std::sync::Arc;
use std::time::Duration;

use model::Invalid;
use redis::Value;
use sdk::storage::{Answer, Backend, Storage};
use sdk::{Build, World};
use serde_json::Map;

use super::command::command;
use super::servers::Access;
use super::settings::Settings;

/// One server, with settings as APISIX's plugins have them for sessions.
pub struct RedisBackend;

struct RedisStorage(Access);

const UNEXPECTED: &str = "the Redis server gave an unexpected answer";

impl Backend for RedisBackend {
    fn open(
        &self,
        settings: &Map<String, serde_json::Value>,
        cx: &Build<'_>,
    ) -> Result<Arc<dyn Storage>, Invalid> {
        Ok(Arc::new(RedisStorage(Access::new(Settings::of_sessions(settings)?, cx))))
    }
}

impl RedisStorage {
    async fn call(&self, world: &dyn World, key: &[u8], bytes: &[u8]) -> Result<Value, &'static str> {
        let servers = self.0.servers(world);
        let answer = servers.call(world, key, bytes, &mut self.0.deadline(world)).await;
        answer.map(|(value, _)| value).map_err(|error| error.as_str())
    }

    /// Returns whether the value was set.
    async fn write(
        &self,
        world: &dyn World,
        key: &[u8],
        value: &[u8],
        must_exist: bool,
        ttl: Duration,
    ) -> Result<bool, &'static str> {
        let millis = ttl.as_millis().max(1).to_string();
        let mut arguments = vec![&b"SET"[..], key, value, b"PX", millis.as_bytes()];
        if must_exist {
            arguments.push(b"XX");
        }
        Ok(self.call(world, key, &command(&arguments)).await? != Value::Nil)
    }
}

impl Storage for RedisStorage {
    fn get<'a>(&'a self, world: &'a dyn World, key: &'a [u8]) -> Answer<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            match self.call(world, key, &command(&[b"GET", key])).await? {
                Value::Nil => Ok(None),
                Value::BulkString(value) => Ok(Some(value)),
                _ => Err(UNEXPECTED),
            }
        })
    }

    fn set<'a>(
        &'a self,
        world: &'a dyn World,
        key: &'a [u8],
        value: &'a [u8],
        ttl: Duration,
    ) -> Answer<'a, ()> {
        Box::pin(async move { self.write(world, key, value, false, ttl).await.map(|_| ()) })
    }

    fn replace<'a>(
        &'a self,
        world: &'a dyn World,
        key: &'a [u8],
        value: &'a [u8],
        ttl: Duration,
    ) -> Answer<'a, bool> {
        Box::pin(self.write(world, key, value, true, ttl))
    }

    fn remove<'a>(&'a self, world: &'a dyn World, key: &'a [u8]) -> Answer<'a, ()> {
        Box::pin(async move { self.call(world, key, &command(&[b"DEL", key])).await.map(|_| ()) })
    }
}
