//! Consumers: the one of the request, and those that auth plugins find.

use std::cell::RefCell;
use std::sync::Arc;

use hashbrown::HashMap;
use mlua::{LuaString, Result, Value};
use sdk::consumers::{Claims, ExternalUser, Identity, Mark};
use serde_json::{Value as Json, json};

use super::super::access::{self, exchange};
use super::super::libs::json::to_text;
use super::super::native::{Natives, to_lua};

/// Bytes of `ctx.external_user` as JSON, at most: it stays in memory until the request ends.
const LONGEST_USER: usize = 64 << 10;

pub(super) fn add(natives: &Natives<'_>) -> Result<()> {
    natives.add("consumer", |lua, ()| {
        let consumer = exchange(|x| x.identity().map(described))?;
        consumer.map_or(Ok(Value::Nil), |consumer| to_lua(lua, &consumer))
    })?;
    natives.add("token_claims", |lua, ()| {
        let claims = exchange(|x| x.note::<Claims>().map(|claims| claims.0.clone()))?;
        claims.map_or(Ok(Value::Nil), |claims| to_lua(lua, &claims))
    })?;
    natives.add("external_user", |lua, ()| {
        let user = exchange(|x| x.note::<ExternalUser>().map(|user| user.0.clone()))?;
        user.map_or(Ok(Value::Nil), |user| to_lua(lua, &user))
    })?;
    natives.add("set_external_user", |lua, user: Value| {
        if matches!(user, Value::Nil | Value::Boolean(false)) {
            return exchange(|x| drop(x.take_note::<ExternalUser>()));
        }
        let text = to_text(lua, user).map_err(mlua::Error::runtime)?;
        if text.len() > LONGEST_USER {
            return Err(mlua::Error::runtime("ctx.external_user is longer than 65536 bytes of JSON"));
        }
        let user = serde_json::from_slice(&text)
            .map_err(|_| mlua::Error::runtime("a text in ctx.external_user is not UTF-8"))?;
        exchange(|x| x.set_note(ExternalUser(user)))
    })?;
    // The version of the consumers with a credential for a plugin; nil without any.
    let versions: RefCell<HashMap<String, (Arc<Mark>, u64)>> = RefCell::default();
    natives.add("consumers_version", move |_, plugin: LuaString| {
        let plugin = plugin.to_string_lossy();
        exchange(|x| {
            let mark = x.consumers().mark(&plugin).filter(|_| x.consumers().any(&plugin))?;
            let mut versions = versions.borrow_mut();
            let next = versions.values().map(|(_, version)| version + 1).max().unwrap_or_default();
            match versions.get(&plugin) {
                Some((known, version)) if Arc::ptr_eq(known, mark) => Some(*version),
                _ => {
                    versions.insert(plugin.clone(), (mark.clone(), next));
                    Some(next)
                }
            }
        })
    })?;
    // All of them, each followed by the key of its credential; nil for more than `most`.
    natives.add("all_consumers", |lua, (plugin, most): (LuaString, usize)| {
        let plugin = plugin.to_string_lossy();
        let found = exchange(|x| {
            let all: Vec<_> = x.consumers().all(&plugin).take(most + 1).collect();
            let described = all.iter().map(|(key, identity)| (described(identity), key.to_vec()));
            (all.len() <= most).then(|| described.collect::<Vec<_>>())
        })?;
        let Some(found) = found else { return Ok(None) };
        let list = lua.create_table()?;
        for (consumer, key) in found {
            list.raw_push(to_lua(lua, &consumer)?)?;
            list.raw_push(lua.create_string(&key)?)?;
        }
        Ok(Some(list))
    })?;
    // The consumer whose credential for a plugin has this value in this field.
    natives.add("find_consumer", |lua, (plugin, field, value): (LuaString, LuaString, LuaString)| {
        let (plugin, field, value) = (plugin.to_string_lossy(), field.to_string_lossy(), value.as_bytes());
        let found = exchange(|x| {
            let identity = x.consumers().find(&plugin, &value)?;
            has_field(identity, &field, &value).then(|| described(identity))
        })?;
        found.map_or(Ok(Value::Nil), |consumer| to_lua(lua, &consumer))
    })?;
    natives.add("named_consumer", |lua, name: LuaString| {
        let name = name.to_string_lossy();
        let found =
            exchange(|x| x.consumers().by_name(&name).map(|found| described(&Identity::anonymous(found))))?;
        found.map_or(Ok(Value::Nil), |consumer| to_lua(lua, &consumer))
    })?;
    // Makes it the request's consumer: by its credential for a plugin, or by its name.
    natives.add(
        "attach_consumer",
        |_, (plugin, key, name): (Option<LuaString>, Option<LuaString>, LuaString)| {
            if !access::place().is_before_upstream() {
                return Err(mlua::Error::runtime("the request is forwarded already"));
            }
            let name = name.to_string_lossy();
            exchange(|x| {
                let identity = match (plugin, key) {
                    (Some(plugin), Some(key)) => {
                        x.consumers().find(&plugin.to_string_lossy(), &key.as_bytes()).cloned()
                    }
                    _ => x.consumers().by_name(&name).map(Identity::anonymous),
                };
                let identity = identity.filter(|identity| identity.consumer.name == name);
                let is_known = identity.is_some();
                if let Some(identity) = identity {
                    x.authenticate(identity);
                }
                is_known
            })
        },
    )
}

/// Credentials of plugins in Lua are kept as they were configured; of other plugins, the field is that of their key.
fn has_field(identity: &Identity, field: &str, value: &[u8]) -> bool {
    let Some(config) = identity.secret::<Json>() else { return true };
    match config.get(field) {
        Some(Json::String(text)) => text.as_bytes() == value,
        Some(Json::Number(number)) => number.to_string().as_bytes() == value,
        _ => false,
    }
}

fn described(identity: &Identity) -> Json {
    let consumer = &identity.consumer;
    let mut value = json!({"username": consumer.name, "consumer_name": consumer.name});
    if let Some(group) = &consumer.group_id {
        value["group_id"] = group.as_str().into();
    }
    if let Some(id) = &consumer.custom_id {
        value["custom_id"] = id.as_str().into();
    }
    if let Some(id) = &identity.credential_id {
        value["credential_id"] = id.as_str().into();
    }
    if !consumer.labels.is_empty() {
        let labels = consumer.labels.iter().map(|(key, text)| (key.clone(), text.as_str().into()));
        value["labels"] = Json::Object(labels.collect());
    }
    if let Some(config) = identity.secret::<Json>() {
        value["auth_conf"] = config.clone();
    }
    value
}
