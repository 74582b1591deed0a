//! Callbacks of scripts that change responses which the gateway makes itself (`core.response.exit_insert_callback`).
//!
//! Responses of scripts pass through them in Lua (`core_response.lua`), all others here.

use bytes::Bytes;
use mlua::{Function, LuaString, Result, Value};
use sdk::endpoint::Called;
use sdk::{Exchange, Reply};

use super::super::access::{self, Place, exchange};
use super::super::host::Level;
use super::super::machine::{self, Machine};
use super::super::native::Natives;
use super::super::text;

pub(super) fn add(natives: &Natives<'_>) -> Result<()> {
    natives
        .add("called_endpoint", |_, ()| exchange(|x| x.note::<Called>().map_or(0, |called| called.0) + 1))?;
    // The callbacks are in `ngx.ctx`; this exchange has some from here on.
    natives.add("filter_replies", |_, ()| exchange(|x| x.filter_replies(changed)))
}

/// Passes a reply through the callbacks.
fn changed(x: &mut Exchange<'_>, reply: Reply) -> Reply {
    let Some(machine) = machine::current() else { return reply };
    match called(&machine, x, &reply) {
        Ok(outcome) => outcome.over(reply),
        Err(error) => {
            let (route, error) = (x.route().map_or("", |route| &*route.id), text::message(&error));
            machine
                .host
                .log
                .line(Level::Error, format!("exit callback failed route={route} error={error:?}"));
            Reply::status(500).because("a script failed")
        }
    }
}

/// The results of the callbacks.
struct Outcome {
    status: u16,
    body: Option<Bytes>,
    /// Whether the body is a table, as JSON.
    is_table: bool,
}

impl Outcome {
    fn over(self, mut reply: Reply) -> Reply {
        reply.status = self.status;
        match self.body {
            Some(body) => {
                let was_json = is_json(&reply);
                if was_json && !self.is_table {
                    reply.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("Content-Type"));
                }
                if reply.headers.iter().all(|(name, _)| !name.eq_ignore_ascii_case("Content-Type")) {
                    reply.headers.push(("Content-Type", b"text/plain; charset=utf-8".to_vec()));
                }
                (reply.body, reply.streamed) = (body, false);
            }
            // A streamed body is not shown to callbacks.
            None if reply.streamed => {}
            None => reply.body = Bytes::new(),
        }
        reply
    }
}

fn called(machine: &Machine, x: &mut Exchange<'_>, reply: &Reply) -> Result<Outcome> {
    machine.make_room();
    let lua = &machine.lua;
    let call: Function = machine.natives.get("exit_callbacks")?;
    let body = match reply.body.is_empty() {
        true => Value::Nil,
        false => Value::String(lua.create_string(&reply.body)?),
    };
    let args = (reply.status, body, is_json(reply));
    let (status, body, is_table): (u16, Option<LuaString>, bool) =
        access::run(Place::Answer, Some(x), || machine.run(|| call.call(args)))?;
    if !(200..=999).contains(&status) {
        return Err(mlua::Error::runtime(format!("invalid status {status}")));
    }
    let body = body.map(|body| Bytes::copy_from_slice(&body.as_bytes()));
    Ok(Outcome { status, body, is_table })
}

fn is_json(reply: &Reply) -> bool {
    let mut headers = reply.headers.iter();
    headers.any(|(name, value)| {
        name.eq_ignore_ascii_case("Content-Type") && value.starts_with(b"application/json")
    })
}
