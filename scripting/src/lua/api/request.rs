//! The request: head and body.

use mlua::{LuaString, MultiValue, Result, Table, Value};
use sdk::exchange::{Body, NotSet};
use sdk::{Exchange, HeaderName, Method, Version};

use super::super::access::{self, exchange};
use super::super::machine;
use super::super::native::Natives;
use super::super::session::Session;
use super::super::small;

/// Headers of a request that `ngx.req.get_headers` returns unless it is called with another number.
const MOST_HEADERS: usize = 100;

pub(super) fn add(natives: &Natives<'_>) -> Result<()> {
    natives.add("phase", |_, ()| Ok(access::place().name()))?;
    natives.add("has_exchange", |_, ()| Ok(access::with(|_| ()).is_some()))?;
    natives.add("method", |lua, ()| {
        let method = exchange(|x| match x.upstream_method() {
            Method::Other => x.request().method_bytes().to_vec(),
            method => method.as_str().as_bytes().to_vec(),
        })?;
        small::string(lua, method)
    })?;
    natives.add("set_method", |_, name: LuaString| {
        let name = name.as_bytes().to_vec();
        exchange(|x| x.set_upstream_method(Method::from_bytes(&name), &name))
    })?;
    natives.add("headers", |lua, most: Option<usize>| {
        let most = match most.unwrap_or(MOST_HEADERS) {
            0 => usize::MAX,
            most => most,
        };
        let fields = exchange(|x| {
            let fields = &x.request().fields;
            fields
                .iter()
                .take(most)
                .map(|(name, value, _)| (name.to_ascii_lowercase(), value.to_vec()))
                .collect::<Vec<_>>()
        })?;
        headers(lua, fields)
    })?;
    natives.add("header", |lua, name: LuaString| {
        let name = name.as_bytes().to_vec();
        let value = exchange(|x| x.request().fields.get_named(&name).map(<[u8]>::to_vec))?;
        value.map(|value| small::string(lua, value)).transpose()
    })?;
    natives.add("set_header", |lua, (name, value): (LuaString, Value)| {
        let values = texts(lua, &value)?;
        let name = header_name(&name)?;
        exchange(|x| {
            x.remove_header(&name);
            add_all(x, &name, &values)
        })?
    })?;
    natives.add("add_header", |lua, (name, value): (LuaString, Value)| {
        let values = texts(lua, &value)?;
        let name = header_name(&name)?;
        exchange(|x| add_all(x, &name, &values))?
    })?;
    natives.add("query", |lua, ()| small::string(lua, exchange(|x| x.query().to_vec())?))?;
    natives.add("set_query", |_, query: LuaString| {
        let query = escaped(&query.as_bytes());
        exchange(|x| {
            x.set_query(&query);
            // A URI that was set for the upstream has a query of its own.
            if let Some(uri) = x.rewritten_uri() {
                let path = uri.split(|byte| *byte == b'?').next().unwrap_or_default().to_vec();
                x.set_upstream_uri(&with_query(path, &query));
            }
        })
    })?;
    natives.add("set_uri", |_, uri: LuaString| {
        let uri = uri.as_bytes().to_vec();
        if !uri.starts_with(b"/") {
            return Err(mlua::Error::runtime("attempt to use a URI that does not begin with /"));
        }
        exchange(|x| {
            let query = x.query().to_vec();
            let path = escaped(&uri);
            x.set_upstream_uri(&if path.contains(&b'?') { path } else { with_query(path, &query) });
        })
    })?;
    natives.add("http_version", |_, ()| {
        exchange(|x| match x.request().version {
            Version::Http10 => 1.0,
            Version::Http11 => 1.1,
            Version::Http2 => 2.0,
            _ => 3.0,
        })
    })?;
    natives.add("start_ms", |_, ()| exchange(|x| x.start_ms() as f64))?;
    bodies(natives)
}

/// Bytes of headers that scripts may add to one exchange.
const MOST_ADDED: usize = 1 << 20;

/// Counts a header that a script adds: it is stored outside of the machine's memory.
pub(super) fn count_header(x: &mut Exchange<'_>, name: &HeaderName, value: &[u8]) -> Result<()> {
    let session = Session::of(x);
    session.added += name.as_str().len() + value.len();
    if session.added > MOST_ADDED {
        return Err(mlua::Error::runtime(format!("scripts add headers of more than {MOST_ADDED} bytes")));
    }
    Ok(())
}

fn add_all(x: &mut Exchange<'_>, name: &HeaderName, values: &[Vec<u8>]) -> Result<()> {
    for value in values {
        count_header(x, name, value)?;
        x.add_header(name, value).map_err(|_| mlua::Error::runtime("invalid header value"))?;
    }
    Ok(())
}

fn bodies(natives: &Natives<'_>) -> Result<()> {
    // Whether code must yield for the body, and what is left of it then.
    natives.add("set_max_body", |_, bytes: f64| {
        if !access::place().is_before_upstream() || !(0.0..=1e15).contains(&bytes) {
            return Err(mlua::Error::runtime("the limit of the request's body cannot be set"));
        }
        exchange(|x| x.set_max_body(bytes as u64))
    })?;
    natives.add("needs_body", |_, ()| {
        let may_wait = access::place().is_before_upstream();
        exchange(|x| may_wait && x.lacks_body(limit()))
    })?;
    natives.add("body", |lua, ()| {
        let body = exchange(|x| match x.body_state() {
            Body::Whole => Ok(Some(x.body().to_vec())),
            Body::None => Ok(None),
            Body::Streaming => Err("request body not read yet"),
            Body::TooLarge => Err("request body exceeds sluice.lua.max_memory"),
        })?;
        let mut results = MultiValue::new();
        match body {
            // nginx has no empty body.
            Ok(Some(body)) if !body.is_empty() => results.push_back(Value::String(small::string(lua, body)?)),
            Ok(_) => results.push_back(Value::Nil),
            Err(error) => {
                results.push_back(Value::Nil);
                results.push_back(Value::String(small::string(lua, error)?));
            }
        }
        Ok(results)
    })?;
    natives.add("set_body", |_, body: LuaString| {
        let body = body.as_bytes().to_vec();
        exchange(|x| x.set_body(body))?.map_err(|error| {
            mlua::Error::runtime(match error {
                NotSet::Unread => "request body not read yet",
                NotSet::Spent => "no memory for the request body (nginx_config.http.max_held_bodies)",
            })
        })
    })
}

/// Bodies beyond this length are not read for scripts.
pub(in crate::lua) fn limit() -> usize {
    machine::current().map_or(0, |machine| machine.host.settings.max_memory / 2)
}

/// A table of headers, as `ngx.req.get_headers` returns: several values of one name are a list.
pub(super) fn headers(lua: &mlua::Lua, fields: Vec<(Vec<u8>, Vec<u8>)>) -> Result<Table> {
    // With the entries of tables.
    let bytes = fields.iter().map(|(name, value)| name.len() + value.len() + 512).sum();
    small::lifted(lua, bytes, || {
        let table = lua.create_table()?;
        for (name, value) in fields {
            let name = lua.create_string(name)?;
            let value = Value::String(lua.create_string(value)?);
            match table.raw_get::<Value>(&name)? {
                Value::Nil => table.raw_set(&name, value)?,
                Value::Table(list) => list.raw_push(value)?,
                first => table.raw_set(&name, lua.create_sequence_from([first, value])?)?,
            }
        }
        Ok(table)
    })
}

pub(super) fn header_name(name: &LuaString) -> Result<HeaderName> {
    let text = name.to_string_lossy();
    HeaderName::new(&text).map_err(|_| mlua::Error::runtime(format!("invalid header name {text:?}")))
}

/// The values of a header: none for nil, several for a list. Bytes that a header cannot have are escaped, as in
/// OpenResty.
pub(super) fn texts(lua: &mlua::Lua, value: &Value) -> Result<Vec<Vec<u8>>> {
    match value {
        Value::Nil => Ok(Vec::new()),
        Value::Table(list) => {
            let (mut texts, mut bytes) = (Vec::new(), 0);
            for value in list.sequence_values::<Value>() {
                texts.push(text(lua, value?)?);
                bytes += texts.last().map_or(0, Vec::len);
                machine::check_text(bytes)?;
            }
            Ok(texts)
        }
        value => Ok(vec![text(lua, value.clone())?]),
    }
}

fn text(lua: &mlua::Lua, value: Value) -> Result<Vec<u8>> {
    let bytes = match &value {
        Value::Boolean(truth) => truth.to_string().into_bytes(),
        value => match lua.coerce_string(value.clone())? {
            Some(text) => text.as_bytes().to_vec(),
            None => {
                return Err(mlua::Error::runtime(format!(
                    "invalid header value: string, number or boolean expected, got {}",
                    value.type_name()
                )));
            }
        },
    };
    if !bytes.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
        return Ok(bytes);
    }
    let mut out = Vec::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'\r' | b'\n' | 0 => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            byte => out.push(byte),
        }
    }
    Ok(out)
}

/// Escapes bytes that a request line cannot have.
fn escaped(uri: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(uri.len());
    for &byte in uri {
        match byte {
            0..=b' ' | 0x7f..=0xff | b'#' => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            byte => out.push(byte),
        }
    }
    out
}

fn with_query(mut path: Vec<u8>, query: &[u8]) -> Vec<u8> {
    if !query.is_empty() {
        path.push(b'?');
        path.extend_from_slice(query);
    }
    path
}
