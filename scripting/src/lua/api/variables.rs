//! Variables, and the facts of `ctx`.

use std::cell::RefCell;

use hashbrown::HashMap;
use mlua::{Lua, LuaString, Result, Table, Value};
use sdk::Exchange;
use sdk::vars::{self, Var};

use super::super::access::{self, exchange};
use super::super::condition;
use super::super::machine;
use super::super::native::{Natives, to_lua};
use super::super::session::{self, Kind};
use super::super::small;

/// Names whose lookup is kept, and their length. Others, such as names made of a request's data, are looked up each
/// time.
const MOST_NAMES: usize = 512;
const LONGEST_NAME: usize = 128;

pub(super) fn add(natives: &Natives<'_>) -> Result<()> {
    let known: RefCell<HashMap<String, Var>> = RefCell::default();
    natives.add("var", move |lua, name: LuaString| {
        if let Some(set) = session::known(Kind::Vars)? {
            let value: Value = set.raw_get(&name)?;
            if !value.is_nil() {
                return Ok(value);
            }
        }
        let bytes = name.as_bytes();
        let name = String::from_utf8_lossy(&bytes);
        let mut known = known.borrow_mut();
        if let Some(var) = known.get(&*name) {
            return read(lua, var);
        }
        let var = Var::parse(&name);
        let value = read(lua, &var);
        if known.len() < MOST_NAMES && name.len() <= LONGEST_NAME {
            known.insert(name.into_owned(), var);
        }
        value
    })?;
    natives.add("set_var", |lua, (name, value): (String, Value)| {
        let text = match &value {
            Value::Boolean(truth) => Some(truth.to_string().into_bytes()),
            Value::Table(_) => None,
            value => lua.coerce_string(value.clone())?.map(|text| text.as_bytes().to_vec()),
        };
        let is_forwarding = exchange(|x| match &text {
            Some(text) if value.is_string() && forward(x, &name, text) => true,
            text => {
                // Without room it is for scripts alone.
                let _ = vars::set(x, &name, text.as_deref());
                false
            }
        })?;
        if is_forwarding {
            return Ok(());
        }
        // A variable that is set to nil has its own value again.
        session::table(lua, Kind::Vars)?.raw_set(name, value)
    })?;
    natives.add("matched_var", |lua, name: LuaString| {
        let var = Var::parse(&name.to_string_lossy());
        match access::seen(|x| Ok(Read::of(var.judge(x)?))) {
            Some(Ok(value)) => Read::to_lua(value, lua),
            Some(Err(unread)) => match condition::doubt(unread) {
                true => Err(mlua::Error::runtime("the variable cannot be read")),
                false => Ok(Value::Nil),
            },
            None => Err(mlua::Error::runtime("variables of another request")),
        }
    })?;
    natives.add("session", |lua, what: String| match what.as_str() {
        "ctx" => session::table(lua, Kind::Ctx),
        _ => session::table(lua, Kind::NgxCtx),
    })?;
    natives.add("running_plugin", |_, ()| Ok(machine::current().and_then(|machine| machine.plugin.get())))?;
    natives.add("set_ngx_ctx", |lua, table: Table| session::set(lua, Kind::NgxCtx, &table))?;
    natives.add("set_ctx", |lua, table: Table| session::set(lua, Kind::Ctx, &table))?;
    facts(natives)
}

/// The value of a variable, apart from its exchange.
enum Read {
    Text(Vec<u8>),
    Number(f64),
    Bool(bool),
    Json(serde_json::Value),
}

impl Read {
    fn of(value: Option<vars::Value<'_>>) -> Option<Read> {
        Some(match value? {
            vars::Value::Text(text) => Read::Text(text.into_owned()),
            vars::Value::Number(number) => Read::Number(number),
            vars::Value::Bool(truth) => Read::Bool(truth),
            vars::Value::Json(json) => Read::Json(json.into_owned()),
        })
    }

    fn to_lua(value: Option<Read>, lua: &Lua) -> Result<Value> {
        Ok(match value {
            None => Value::Nil,
            Some(Read::Text(text)) => Value::String(small::string(lua, text)?),
            Some(Read::Number(number)) => Value::Number(number),
            Some(Read::Bool(truth)) => Value::Boolean(truth),
            Some(Read::Json(json)) => to_lua(lua, &json)?,
        })
    }
}

fn read(lua: &Lua, var: &Var) -> Result<Value> {
    Read::to_lua(exchange(|x| Read::of(var.value(x)))?, lua)
}

/// Sets a variable that decides how the request is forwarded. Returns false for all others.
fn forward(x: &mut Exchange<'_>, name: &str, text: &[u8]) -> bool {
    match name {
        "upstream_uri" if text.starts_with(b"/") => x.set_upstream_uri(text),
        "upstream_host" if !text.is_empty() => x.set_upstream_host(text),
        "args" => x.set_query(text),
        _ => return false,
    }
    true
}

/// Facts of the exchange for `ctx`, as JSON.
fn facts(natives: &Natives<'_>) -> Result<()> {
    natives.add("route", |lua, ()| {
        let route = exchange(|x| {
            x.route().map(|route| {
                let mut value = serde_json::json!({"id": &*route.id});
                for (key, text) in [
                    ("name", &route.name),
                    ("service_id", &route.service_id),
                    ("service_name", &route.service_name),
                ] {
                    if !text.is_empty() {
                        value[key] = text.as_str().into();
                    }
                }
                if !route.labels.is_empty() {
                    let labels = route.labels.iter().map(|(key, text)| (key.clone(), text.as_str().into()));
                    value["labels"] = serde_json::Value::Object(labels.collect());
                }
                value
            })
        })?;
        route.map_or(Ok(Value::Nil), |route| to_lua(lua, &route))
    })?;
    natives.add("matched", |lua, ()| {
        let matched = exchange(|x| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let mut value = serde_json::json!({"_method": text(x.request().method_bytes())});
            if !x.matched_uri().is_empty() {
                value["_path"] = x.matched_uri().into();
            }
            if !x.matched_host().is_empty() {
                value["_host"] = x.matched_host().into();
            }
            value
        })?;
        to_lua(lua, &matched)
    })?;
    natives.add("upstream_status", |_, ()| {
        exchange(|x| match x.upstream_status() {
            0 => None,
            status => Some(status),
        })
    })
}
