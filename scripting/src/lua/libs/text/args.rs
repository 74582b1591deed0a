//! `ngx.encode_args` and `ngx.decode_args`.

use mlua::{Error, Lua, LuaString, Result, Table, Value};

use super::super::super::{machine, small};
use super::super::call::function;
use super::uri::{escape, in_component, unescape};

/// Arguments that `decode_args` returns unless a script wants more or fewer.
const MOST: usize = 100;

pub(super) fn add(lua: &Lua, ngx: &Table) -> Result<()> {
    ngx.raw_set(
        "encode_args",
        function(lua, "encode_args", |lua, args: Table| {
            let mut out = Vec::new();
            for pair in args.pairs::<Value, Value>() {
                let (key, value) = pair?;
                let Some(key) = lua.coerce_string(key)? else {
                    return Err(Error::runtime(
                        "attempt to use a non-string key in the \"args\" option table",
                    ));
                };
                match value {
                    Value::Table(values) => {
                        for value in values.sequence_values::<Value>() {
                            push(lua, &key, value?, &mut out)?;
                            machine::check_text(out.len())?;
                        }
                    }
                    value => push(lua, &key, value, &mut out)?,
                }
                machine::check_text(out.len())?;
            }
            out.pop();
            small::string(lua, out)
        })?,
    )?;
    ngx.raw_set(
        "decode_args",
        function(lua, "decode_args", |lua, (text, most): (LuaString, Option<i64>)| {
            let most = match most.map(usize::try_from) {
                None => MOST,
                Some(Ok(0)) => usize::MAX,
                Some(Ok(most)) => most,
                Some(Err(_)) => return Err(Error::runtime("bad number of arguments")),
            };
            decode(lua, &text.as_bytes(), most)
        })?,
    )
}

/// Appends an argument and `&`.
fn push(lua: &Lua, key: &LuaString, value: Value, out: &mut Vec<u8>) -> Result<()> {
    let value = match value {
        Value::Boolean(false) | Value::Nil => return Ok(()),
        Value::Boolean(true) => None,
        Value::String(text) => Some(text),
        Value::Integer(_) | Value::Number(_) => lua.coerce_string(value)?,
        other => {
            return Err(Error::runtime(format!("attempt to use {} as query arg value", other.type_name())));
        }
    };
    escape(&key.as_bytes(), in_component, out);
    if let Some(value) = value {
        out.push(b'=');
        escape(&value.as_bytes(), in_component, out);
    }
    out.push(b'&');
    Ok(())
}

/// The arguments of a query, and `truncated` if there are more than `most`.
fn decode(lua: &Lua, query: &[u8], most: usize) -> Result<(Table, Option<&'static str>)> {
    let args = lua.create_table()?;
    let mut count = 0;
    for part in query.split(|byte| *byte == b'&') {
        let split = part.iter().position(|byte| *byte == b'=');
        let (key, value) = match split {
            Some(at) => (&part[..at], Some(&part[at + 1..])),
            None => (part, None),
        };
        if key.is_empty() {
            continue;
        }
        if count == most {
            return Ok((args, Some("truncated")));
        }
        count += 1;
        let key = small::string(lua, unescape(key))?;
        let value = match value {
            Some(value) => Value::String(small::string(lua, unescape(value))?),
            None => Value::Boolean(true),
        };
        match args.raw_get(&key)? {
            Value::Nil => args.raw_set(key, value)?,
            Value::Table(values) => values.raw_push(value)?,
            first => args.raw_set(key, lua.create_sequence_from([first, value])?)?,
        }
    }
    Ok((args, None))
}
