//! Writes through the Admin API, and waiting until they are live.

use super::World;
use crate::client::{Answer, Call};
use crate::gateway::{KEY, Snapshot};
use crate::http::Message;
use anyhow::{Context, Result, bail};
use indexmap::IndexMap;
use serde_json::Value;
use std::time::{Duration, Instant};

/// A change that is not live by then never will be.
const PATIENCE: Duration = Duration::from_secs(30);
/// After this a write whose answer names no revision is taken for one that changed nothing.
const UNCHANGED: Duration = Duration::from_millis(300);

/// PUTs every resource of every section, then waits until all are live.
pub fn put_all(world: &mut World, sections: &IndexMap<String, Vec<Value>>) -> Result<()> {
    for (section, items) in sections {
        for (number, item) in (1..).zip(items) {
            put(world, section, number, item).with_context(|| format!("{section}, entry {number}"))?;
        }
    }
    Ok(())
}

fn put(world: &mut World, section: &str, number: usize, item: &Value) -> Result<()> {
    let mut item = world.names.fill_value(item)?;
    let name_key = if section == "consumers" { "username" } else { "id" };
    let id = match &item[name_key] {
        Value::String(text) => text.clone(),
        Value::Null => number.to_string(),
        other => other.to_string(),
    };
    if section == "plugin_metadata" {
        item.as_object_mut().map(|map| map.remove("id"));
    }
    let path = format!("/apisix/admin/{section}/{id}");
    let before = world.gateway.snapshot()?;
    let answer = call(world, Call::new("PUT", &path).body(item.to_string().into_bytes()))?;
    let message = &answer.message;
    if !(200..300).contains(&message.status()) {
        bail!("PUT {path}: {}: {}", message.line, String::from_utf8_lossy(&message.body));
    }
    wait_live(world, &before, message)
}

/// A call to the admin with the runner's key.
pub fn call(world: &mut World, call: Call) -> Result<Answer> {
    let address = world.address(Some("admin"))?;
    world.client.call(&address, &call.header("X-API-KEY", KEY))
}

/// Waits until a write runs on every worker: up to the revision that its answer names, or what was
/// published since `before`.
pub fn wait_live(world: &World, before: &Snapshot, answer: &Message) -> Result<()> {
    let start = Instant::now();
    let wanted = answer.first("X-Sluice-Revision").map(str::parse::<u64>).transpose()?;
    loop {
        let now = world.gateway.snapshot()?;
        let moved = match wanted {
            Some(revision) => now.published >= revision,
            None => now.published > before.published || start.elapsed() > UNCHANGED,
        };
        if moved && now.is_everywhere() {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            bail!("the change is not live after {PATIENCE:?}: {now:?}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
