//! The response: head, body, and its end.

use mlua::{LuaString, MultiValue, Result, Value};
use sdk::Exchange;

use super::super::access::{self, Place, exchange};
use super::super::machine;
use super::super::native::Natives;
use super::super::session::Session;
use super::super::small;
use super::request::{count_header, header_name, headers, texts};

pub(super) fn add(natives: &Natives<'_>) -> Result<()> {
    natives.add("status", |_, ()| {
        exchange(|x| match x.has_response() {
            true => x.status(),
            false => x.note::<Session>().and_then(|session| session.status).unwrap_or_default(),
        })
    })?;
    natives.add("set_status", |_, status: u16| {
        if !(100..=999).contains(&status) {
            return Err(mlua::Error::runtime(format!("invalid status {status}")));
        }
        exchange(|x| match x.has_response() {
            true => x.set_status(status),
            false => Session::of(x).status = Some(status),
        })
    })?;
    natives.add("headers_sent", |_, ()| Ok(matches!(access::place(), Place::BodyFilter | Place::Log)))?;
    heads(natives)?;
    bodies(natives)?;
    // Notes the end of the exchange; the code yields, where it can.
    natives.add("exit", |_, code: i32| {
        exchange(|x| Session::of(x).exit = Some(code))?;
        Ok(access::place().is_before_upstream())
    })
}

fn heads(natives: &Natives<'_>) -> Result<()> {
    natives.add("response_header", |lua, name: LuaString| {
        let name = name.as_bytes().to_vec();
        let values = exchange(|x| match x.has_response() {
            true => x.response().fields.all(&name).map(<[u8]>::to_vec).collect::<Vec<_>>(),
            false => early(x, &name),
        })?;
        match <[Vec<u8>; 1]>::try_from(values) {
            Ok([value]) => Ok(Value::String(small::string(lua, value)?)),
            Err(values) if values.is_empty() => Ok(Value::Nil),
            Err(values) => {
                let values =
                    values.into_iter().map(|value| small::string(lua, value)).collect::<Result<Vec<_>>>()?;
                Ok(Value::Table(lua.create_sequence_from(values)?))
            }
        }
    })?;
    natives.add("response_headers", |lua, ()| {
        let fields = exchange(|x| match x.has_response() {
            true => {
                let fields = x.response().fields.iter();
                fields.map(|(name, value, _)| (name.to_ascii_lowercase(), value.to_vec())).collect()
            }
            false => x.note::<Session>().map(|session| session.headers.clone()).unwrap_or_default(),
        })?;
        headers(lua, fields)
    })?;
    natives.add("set_response_header", |lua, (name, value): (LuaString, Value)| {
        let values = texts(lua, &value)?;
        let name = header_name(&name)?;
        exchange(|x| {
            x.remove_response_header(&name);
            let key = name.as_str().to_ascii_lowercase().into_bytes();
            note_headers(x, |headers| headers.retain(|(known, _)| *known != key));
            add_all(x, &name, &values)
        })?
    })?;
    natives.add("add_response_header", |lua, (name, value): (LuaString, Value)| {
        let values = texts(lua, &value)?;
        let name = header_name(&name)?;
        exchange(|x| add_all(x, &name, &values))?
    })
}

fn add_all(x: &mut Exchange<'_>, name: &sdk::HeaderName, values: &[Vec<u8>]) -> Result<()> {
    for value in values {
        count_header(x, name, value)?;
        x.add_response_header(name, value).map_err(|_| mlua::Error::runtime("invalid header value"))?;
        let key = name.as_str().to_ascii_lowercase().into_bytes();
        note_headers(x, |headers| headers.push((key, value.clone())));
    }
    Ok(())
}

/// Headers that are set before there is a response can be read again.
fn note_headers(x: &mut Exchange<'_>, change: impl FnOnce(&mut Vec<(Vec<u8>, Vec<u8>)>)) {
    if !x.has_response() {
        change(&mut Session::of(x).headers);
    }
}

fn early(x: &Exchange<'_>, name: &[u8]) -> Vec<Vec<u8>> {
    let headers = x.note::<Session>().map(|session| &*session.headers).unwrap_or_default();
    let named = headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
    named.map(|(_, value)| value.clone()).collect()
}

fn bodies(natives: &Natives<'_>) -> Result<()> {
    // Adds to the body of a response that a script makes.
    natives.add("write", |_, text: LuaString| {
        if !access::place().is_before_upstream() {
            return Err(disabled());
        }
        let most = machine::current().map_or(0, |machine| machine.host.settings.max_memory);
        exchange(|x| {
            let session = Session::of(x);
            session.wrote = true;
            let text = text.as_bytes();
            if session.output.len() + text.len() > most {
                return Err(mlua::Error::runtime("the response exceeds sluice.lua.max_memory"));
            }
            session.output.extend_from_slice(&text);
            Ok(())
        })?
    })?;
    natives.add("piece", |lua, at: u8| {
        if access::place() != Place::BodyFilter {
            return Err(disabled());
        }
        let piece = exchange(|x| {
            let piece = x.note::<Session>()?.piece.as_ref()?;
            Some((piece.data.clone(), piece.last))
        })?;
        match piece {
            Some((data, _)) if at == 1 => Ok(Value::String(small::string(lua, data)?)),
            Some((_, last)) => Ok(Value::Boolean(last)),
            None => Ok(Value::Nil),
        }
    })?;
    natives.add("set_piece", |lua, (at, value): (u8, Value)| {
        if access::place() != Place::BodyFilter {
            return Err(disabled());
        }
        let data = match &value {
            Value::Table(parts) => {
                let mut data = Vec::new();
                for part in parts.sequence_values::<LuaString>() {
                    data.extend_from_slice(&part?.as_bytes());
                    machine::check_text(data.len())?;
                }
                data
            }
            value => {
                lua.coerce_string(value.clone())?.map(|text| text.as_bytes().to_vec()).unwrap_or_default()
            }
        };
        exchange(|x| {
            let piece = x.note_mut::<Session>().and_then(|session| session.piece.as_mut());
            match piece {
                Some(piece) if at == 1 => piece.data = data,
                Some(piece) => piece.last = value.as_boolean().unwrap_or_default(),
                None => {}
            }
        })
    })?;
    // Holds a piece back. Returns the whole body with the last one.
    natives.add("hold", |lua, (name, copies, most): (String, bool, Option<usize>)| {
        let limit = machine::current().map_or(0, |machine| machine.host.settings.max_memory);
        let most = most.unwrap_or(limit).min(limit);
        let done = exchange(|x| {
            let session = x.note_mut::<Session>()?;
            let piece = session.piece.as_mut()?;
            let all: usize = session.held.iter().map(|(name, held)| name.len() + held.len()).sum();
            if all < limit && !session.held.iter().any(|(known, _)| *known == name) {
                session.held.push((name.clone(), Vec::new()));
            }
            let (_, held) = session.held.iter_mut().find(|(known, _)| *known == name)?;
            let room = most.saturating_sub(held.len()).min(limit.saturating_sub(all));
            held.extend_from_slice(&piece.data[..piece.data.len().min(room)]);
            if piece.last {
                return Some(std::mem::take(held));
            }
            if !copies {
                piece.data.clear();
            }
            None
        })?;
        let mut results = MultiValue::new();
        results.push_back(match done {
            Some(body) => Value::String(small::string(lua, body)?),
            None => Value::Nil,
        });
        Ok(results)
    })
}

fn disabled() -> mlua::Error {
    mlua::Error::runtime(format!("API disabled in the context of {}", access::context(access::place())))
}
