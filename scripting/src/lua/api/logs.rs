//! Lines of scripts in the error log.

use mlua::{LuaString, Result, Value};

use super::super::access;
use super::super::host::Level;
use super::super::machine;
use super::super::native::Natives;

/// Longer lines are cut, in bytes, as in nginx.
const LONGEST: usize = 4096;

pub(super) fn add(natives: &Natives<'_>) -> Result<()> {
    for (name, level) in [("ERR", 4), ("WARN", 5), ("NOTICE", 6), ("INFO", 7), ("DEBUG", 8)] {
        natives.table.raw_set(name, level)?;
    }
    natives.add("logs", |_, level: i64| Ok(is_written(level)))?;
    natives.add("log_level", |_, ()| {
        Ok(match machine::current().map(|machine| machine.host.log.level()) {
            Some(Level::Error) | None => 4,
            Some(Level::Warn) => 5,
            Some(Level::Info) => 7,
            Some(Level::Debug) => 8,
        })
    })?;
    natives.add("log", |lua, (level, text): (i64, LuaString)| {
        if !is_written(level) {
            return Ok(());
        }
        let Some(machine) = machine::current() else { return Ok(()) };
        // The first function on the stack that is a script's.
        let place = (1..12).find_map(|up| {
            lua.inspect_stack(up, |frame| {
                let (source, line) = (frame.source(), frame.current_line());
                let name = source.short_src?.into_owned();
                let is_host = source.source.is_some_and(|source| source.starts_with('='));
                line.filter(|_| !is_host).map(|line| format!("{name}:{line}: "))
            })
            .flatten()
        });
        let bytes = text.as_bytes();
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST)]);
        let route = access::with(|x| x.route().map(|route| route.id.to_string())).flatten();
        let mut line = format!("[lua] {}{text}", place.unwrap_or_default());
        if let Some(route) = route {
            line.push_str(&format!(", route: {route}"));
        }
        machine.host.log.line(level_of(level), line);
        Ok(())
    })?;
    natives.add("traceback", |lua, (message, level): (Value, Option<usize>)| match &message {
        Value::String(text) => {
            let text = text.to_string_lossy();
            Ok(Value::String(lua.traceback(Some(&text), level.unwrap_or(1) + 1)?))
        }
        Value::Nil => Ok(Value::String(lua.traceback(None, level.unwrap_or(1) + 1)?)),
        _ => Ok(message),
    })
}

fn level_of(level: i64) -> Level {
    match level {
        ..=4 => Level::Error,
        5 => Level::Warn,
        6 | 7 => Level::Info,
        _ => Level::Debug,
    }
}

fn is_written(level: i64) -> bool {
    machine::current().is_some_and(|machine| level_of(level) <= machine.host.log.level())
}
