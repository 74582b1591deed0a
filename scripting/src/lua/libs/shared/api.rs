//! The functions of a shared dictionary in Lua.

use std::sync::Arc;

use mlua::{Error, Function, IntoLuaMulti, Lua, LuaString, MultiValue, Result, Table, UserDataRef, Value};

use super::super::super::small;
use super::super::call::function;
use super::Dictionaries;
use super::dictionary::{Changed, Dictionary, LONGEST_KEY, When};
use super::entries::{Entry, Stored};

/// A dictionary in the machine of a script.
struct Shared(Arc<Dictionary>);

impl mlua::UserData for Shared {}

/// The longest time to live: a hundred years.
const LONGEST_TTL: f64 = 100.0 * 366.0 * 86_400.0;

/// Adds an empty `ngx.shared`.
pub(in super::super) fn add(lua: &Lua, ngx: &Table) -> Result<()> {
    ngx.raw_set("shared", lua.create_table()?)
}

/// Fills `ngx.shared` of a machine. Times come from `ngx.now`.
///
/// # Errors
/// Memory is short.
pub fn share(lua: &Lua, dictionaries: &Dictionaries) -> Result<()> {
    let ngx: Table = lua.globals().get("ngx")?;
    let shared: Table = ngx.get("shared")?;
    if dictionaries.0.is_empty() {
        return Ok(());
    }
    let methods = methods(lua)?;
    // Each script has a view of the dictionaries (`environment.lua`).
    let meta = lua.create_table()?;
    meta.raw_set("__index", methods)?;
    meta.raw_set("__library", true)?;
    let names = lua.create_table()?;
    names.raw_set("__library", true)?;
    shared.set_metatable(Some(names))?;
    for (name, dictionary) in &dictionaries.0 {
        let zone = lua.create_table()?;
        zone.raw_set(1, lua.create_userdata(Shared(dictionary.clone()))?)?;
        zone.set_metatable(Some(meta.clone()))?;
        shared.raw_set(name.as_str(), zone)?;
    }
    Ok(())
}

/// The time in milliseconds.
fn now(lua: &Lua) -> Result<u64> {
    let now: Function = lua.globals().get::<Table>("ngx")?.get("now")?;
    Ok((now.call::<f64>(())? * 1000.0) as u64)
}

/// A time of seconds from now, in milliseconds; 0 is never.
fn expiry(seconds: Option<f64>, now: u64) -> Result<u64> {
    let seconds = seconds.unwrap_or(0.0);
    if !(0.0..=LONGEST_TTL).contains(&seconds) {
        return Err(Error::runtime("bad \"exptime\" argument"));
    }
    let millis = (seconds * 1000.0) as u64;
    Ok(if seconds == 0.0 { 0 } else { now + millis.max(1) })
}

/// A key, or the reason why it is invalid.
fn key_of(lua: &Lua, key: Value) -> Result<std::result::Result<LuaString, &'static str>> {
    Ok(match lua.coerce_string(key.clone())? {
        None if key.is_nil() => Err("nil key"),
        None => Err("bad key type"),
        Some(key) => match key.as_bytes().len() {
            0 => Err("empty key"),
            length if length > LONGEST_KEY => Err("key too long"),
            _ => Ok(key),
        },
    })
}

fn stored(value: &Value) -> Option<Stored> {
    Some(match value {
        Value::Boolean(on) => Stored::Boolean(*on),
        Value::Integer(number) => Stored::Number(*number as f64),
        Value::Number(number) => Stored::Number(*number),
        Value::String(text) => Stored::Text(text.as_bytes().to_vec().into()),
        _ => return None,
    })
}

fn value_of(lua: &Lua, value: &Stored) -> Result<Value> {
    Ok(match value {
        Stored::Boolean(on) => Value::Boolean(*on),
        Stored::Number(number) => Value::Number(*number),
        Stored::Text(text) => Value::String(small::string(lua, text)?),
        Stored::List(_) => Value::Nil,
    })
}

type Key<'a> = &'a [u8];

/// Adds a method. The key is checked first; an invalid one is returned as an error, as `nil, reason`.
fn method<A: mlua::FromLuaMulti, R: IntoLuaMulti>(
    lua: &Lua,
    methods: &Table,
    name: &'static str,
    call: impl Fn(&Lua, &Dictionary, Key<'_>, A) -> Result<R> + 'static,
) -> Result<()> {
    let call = function(lua, name, move |lua, mut args: MultiValue| {
        let zone = zone(args.pop_front())?;
        let key = match key_of(lua, args.pop_front().unwrap_or(Value::Nil))? {
            Ok(key) => key,
            Err(reason) => return (Value::Nil, reason).into_lua_multi(lua),
        };
        let args = A::from_lua_args(args, 2, Some(name), lua)?;
        let key = key.as_bytes();
        call(lua, &zone.0, &key, args)?.into_lua_multi(lua)
    })?;
    methods.raw_set(name, call)
}

fn zone(this: Option<Value>) -> Result<UserDataRef<Shared>> {
    let zone = match this {
        Some(Value::Table(table)) => table.get::<Value>(1)?,
        _ => Value::Nil,
    };
    match zone {
        Value::UserData(data) => data.borrow::<Shared>().map_err(|_| Error::runtime("bad \"zone\" argument")),
        _ => Err(Error::runtime("bad \"zone\" argument")),
    }
}

fn changed<T: mlua::IntoLua>(lua: &Lua, result: Changed<T>, failed: Value) -> Result<MultiValue> {
    match result {
        Ok((value, evicted)) => (value, Value::Nil, evicted).into_lua_multi(lua),
        Err(reason) => (failed, reason, false).into_lua_multi(lua),
    }
}

fn methods(lua: &Lua) -> Result<Table> {
    let all = lua.create_table()?;
    for (name, is_stale) in [("get", false), ("get_stale", true)] {
        method(lua, &all, name, move |lua, zone, key, ()| {
            let found = zone.get(key, now(lua)?);
            let Some((value, flags, expired)) = found.filter(|(.., expired)| is_stale || !expired) else {
                return Ok(MultiValue::from_vec(vec![Value::Nil]));
            };
            if matches!(value, Stored::List(_)) {
                return (Value::Nil, "value is a list").into_lua_multi(lua);
            }
            let flags = if flags == 0 { Value::Nil } else { Value::Number(flags.into()) };
            let mut results = vec![value_of(lua, &value)?, flags];
            if is_stale {
                results.push(Value::Boolean(expired));
            }
            Ok(MultiValue::from_vec(results))
        })?;
    }
    for (name, when, safe) in [
        ("set", When::Always, false),
        ("safe_set", When::Always, true),
        ("add", When::Absent, false),
        ("safe_add", When::Absent, true),
        ("replace", When::Present, false),
    ] {
        method(lua, &all, name, move |lua, zone, key, args: (Value, Option<f64>, Option<f64>)| {
            let (value, ttl, flags) = args;
            if value.is_nil() {
                if when != When::Always {
                    return (Value::Nil, "attempt to add or replace nil values").into_lua_multi(lua);
                }
                zone.delete(key);
                return changed(lua, Ok((true, false)), Value::Nil);
            }
            let Some(value) = stored(&value) else {
                return (Value::Nil, "bad value type").into_lua_multi(lua);
            };
            let now = now(lua)?;
            let entry = Entry {
                key: key.into(),
                value,
                flags: flags.unwrap_or(0.0) as u32,
                expires: expiry(ttl, now)?,
            };
            let set = zone.set(entry, when, safe, now).map(|((), evicted)| (true, evicted));
            let failed =
                if matches!(set, Err("no memory")) && safe { Value::Nil } else { Value::Boolean(false) };
            changed(lua, set, failed)
        })?;
    }
    method(lua, &all, "incr", |lua, zone, key, args: (f64, Option<f64>, Option<f64>)| {
        let (by, init, ttl) = args;
        let now = now(lua)?;
        if ttl.is_some() && init.is_none() {
            return Err(Error::runtime("must provide \"init\" when providing \"init_ttl\""));
        }
        let ttl = expiry(ttl, now)?.saturating_sub(now);
        changed(lua, zone.incr(key, by, init, ttl, now), Value::Nil)
    })?;
    method(lua, &all, "delete", |_, zone, key, ()| {
        zone.delete(key);
        Ok(true)
    })?;
    for (name, front) in [("lpush", true), ("rpush", false)] {
        method(lua, &all, name, move |lua, zone, key, value: Value| {
            let value = match value {
                Value::Boolean(_) => None,
                value => stored(&value),
            };
            let Some(value) = value else { return (Value::Nil, "bad value type").into_lua_multi(lua) };
            match zone.push(key, value, front, now(lua)?) {
                Ok((length, _)) => length.into_lua_multi(lua),
                Err(reason) => (Value::Nil, reason).into_lua_multi(lua),
            }
        })?;
    }
    for (name, front) in [("lpop", true), ("rpop", false)] {
        method(lua, &all, name, move |lua, zone, key, ()| match zone.pop(key, front, now(lua)?) {
            Ok(Some(item)) => value_of(lua, &item)?.into_lua_multi(lua),
            Ok(None) => Ok(MultiValue::from_vec(vec![Value::Nil])),
            Err(reason) => (Value::Nil, reason).into_lua_multi(lua),
        })?;
    }
    method(lua, &all, "llen", |lua, zone, key, ()| match zone.length(key, now(lua)?) {
        Ok(length) => length.into_lua_multi(lua),
        Err(reason) => (Value::Nil, reason).into_lua_multi(lua),
    })?;
    method(lua, &all, "ttl", |lua, zone, key, ()| match zone.ttl(key, now(lua)?) {
        Ok(millis) => (millis as f64 / 1000.0).into_lua_multi(lua),
        Err(reason) => (Value::Nil, reason).into_lua_multi(lua),
    })?;
    method(lua, &all, "expire", |lua, zone, key, seconds: f64| {
        let now = now(lua)?;
        match zone.expire(key, expiry(Some(seconds), now)?, now) {
            Ok(()) => true.into_lua_multi(lua),
            Err(reason) => (Value::Nil, reason).into_lua_multi(lua),
        }
    })?;
    whole(lua, &all)?;
    Ok(all)
}

/// The methods without a key.
fn whole(lua: &Lua, all: &Table) -> Result<()> {
    let most = |most: Option<f64>, default: usize| match most.map_or(default, |most| most as usize) {
        0 => usize::MAX,
        most => most,
    };
    all.raw_set(
        "flush_all",
        function(lua, "flush_all", |_, this: Value| {
            zone(Some(this))?.0.flush_all();
            Ok(())
        })?,
    )?;
    all.raw_set(
        "flush_expired",
        function(lua, "flush_expired", move |lua, (this, count): (Value, Option<f64>)| {
            Ok(zone(Some(this))?.0.flush_expired(most(count, 0), now(lua)?))
        })?,
    )?;
    all.raw_set(
        "get_keys",
        function(lua, "get_keys", move |lua, (this, count): (Value, Option<f64>)| {
            let keys = zone(Some(this))?.0.keys(most(count, 1024), now(lua)?);
            let keys = keys.iter().map(|key| small::string(lua, key)).collect::<Result<Vec<_>>>()?;
            lua.create_sequence_from(keys)
        })?,
    )?;
    all.raw_set("capacity", function(lua, "capacity", |_, this: Value| Ok(zone(Some(this))?.0.capacity()))?)?;
    all.raw_set(
        "free_space",
        function(lua, "free_space", |_, this: Value| Ok(zone(Some(this))?.0.free_space()))?,
    )
}
