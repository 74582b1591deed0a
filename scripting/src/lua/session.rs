//! The state that scripts keep with an exchange.

use std::rc::Rc;

use bytes::Bytes;
use mlua::{Lua, Table};
use sdk::{Exchange, Reply};

use super::access::exchange;
use super::flow::Flow;
use super::kept::Slot;
use super::machine::{self, Machine};
use super::small;
use super::sockets::Sockets;

/// The state of the scripts of one exchange, a note of it. Scripts that keep none have no session.
#[derive(Default)]
pub(super) struct Session {
    tables: Tables,
    /// `ngx.status` before there is a response.
    pub status: Option<u16>,
    /// The code of `ngx.exit`.
    pub exit: Option<i32>,
    /// The body of a response made by `ngx.say` and `ngx.print`.
    pub output: Vec<u8>,
    /// Whether one of them was called.
    pub wrote: bool,
    /// Response headers that scripts have set before there is a response.
    pub headers: Vec<(Vec<u8>, Vec<u8>)>,
    /// Bytes of the headers that scripts have added.
    pub added: usize,
    /// The piece of the body in a body filter: `ngx.arg`.
    pub piece: Option<Piece>,
    /// Pieces held back by `core.response.hold_body_chunk`, by plugin.
    pub held: Vec<(String, Vec<u8>)>,
    /// Code that waits.
    pub flow: Option<Flow>,
    /// The sockets that scripts have made, if they have, closed with the exchange.
    pub sockets: Option<Rc<Sockets>>,
}

/// A table of an exchange.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// `ctx` of plugins, `ngx.ctx.api_ctx`.
    Ctx,
    /// `ngx.ctx`.
    NgxCtx,
    /// Variables that scripts have set; most set none.
    Vars,
}

/// The tables of an exchange that scripts have used, by [`Kind`]. The machine keeps them until the exchange ends.
#[derive(Default)]
struct Tables([Option<Slot>; 3]);

impl Drop for Tables {
    fn drop(&mut self) {
        if self.0.iter().all(Option::is_none) {
            return;
        }
        if let Some(machine) = machine::current() {
            self.0.iter().flatten().for_each(|slot| machine.kept.remove(&machine.lua, *slot));
        }
    }
}

/// A piece of a response's body.
pub(super) struct Piece {
    pub data: Vec<u8>,
    pub last: bool,
}

impl Session {
    /// The session of an exchange, made at first use.
    pub(super) fn of<'a>(x: &'a mut Exchange<'_>) -> &'a mut Session {
        x.note_or_default()
    }
}

/// A table of the exchange, if scripts have used it.
pub(super) fn table_of(x: &Exchange<'_>, machine: &Machine, kind: Kind) -> mlua::Result<Option<Table>> {
    let slot = x.note::<Session>().and_then(|session| session.tables.0[kind as usize]);
    slot.map(|slot| machine.kept.get(slot)).transpose()
}

/// A table of the exchange for which code runs, if scripts have used it.
pub(super) fn known(kind: Kind) -> mlua::Result<Option<Table>> {
    let slot = exchange(|x| x.note::<Session>().and_then(|session| session.tables.0[kind as usize]))?;
    match slot {
        Some(slot) => current()?.kept.get(slot).map(Some),
        None => Ok(None),
    }
}

/// Sets a table of the exchange for which code runs.
pub(super) fn set(lua: &Lua, kind: Kind, table: &Table) -> mlua::Result<()> {
    let machine = current()?;
    match exchange(|x| x.note::<Session>().and_then(|session| session.tables.0[kind as usize]))? {
        Some(slot) => machine.kept.set(slot, table),
        None => {
            let slot = machine.kept.put(lua, table)?;
            exchange(|x| Session::of(x).tables.0[kind as usize] = Some(slot))
        }
    }
}

/// A table of the exchange for which code runs, made at first use.
pub(super) fn table(lua: &Lua, kind: Kind) -> mlua::Result<Table> {
    if let Some(known) = known(kind)? {
        return Ok(known);
    }
    let table = small::lifted(lua, 2048, || {
        let table = lua.create_table()?;
        match kind {
            Kind::Ctx => table.set_metatable(Some(current()?.contexts.clone()))?,
            Kind::NgxCtx => table.raw_set("api_ctx", self::table(lua, Kind::Ctx)?)?,
            Kind::Vars => {}
        }
        Ok::<_, mlua::Error>(table)
    })?;
    set(lua, kind, &table)?;
    Ok(table)
}

fn current() -> mlua::Result<Rc<Machine>> {
    machine::current().ok_or_else(|| mlua::Error::runtime("no machine"))
}

/// Whether a script has written a response without ending the request.
pub(super) fn has_written(x: &Exchange<'_>) -> bool {
    x.note::<Session>().is_some_and(|session| session.wrote && session.exit.is_none())
}

/// The reply to which a script has exited or that it has written, if any.
pub(super) fn reply(x: &mut Exchange<'_>) -> Option<Reply> {
    let reply = x.note_mut::<Session>()?.taken_reply()?;
    Some(Reply { is_final: true, ..reply })
}

impl Session {
    fn taken_reply(&mut self) -> Option<Reply> {
        let exit = self.exit.take();
        let wrote = std::mem::take(&mut self.wrote);
        let output = std::mem::take(&mut self.output);
        let status = self.status.take();
        let code = match exit {
            // `ngx.exit(ngx.ERROR)`; streams are also ended with 1.
            Some(..=-1 | 1..=99) => 500,
            Some(code @ 100..=999) => code as u16,
            // `ngx.exit(ngx.OK)` ends the phase only.
            Some(_) | None if !wrote => return None,
            Some(_) | None => 200,
        };
        // A status that was set before wins over the 200 of `ngx.exit(ngx.HTTP_OK)`, as the head has it.
        let status = match status {
            Some(status) if code == 200 || wrote => status,
            _ => code,
        };
        if !wrote {
            return Some(page(status));
        }
        Some(Reply::text(status, Bytes::from(output)))
    }
}

/// A response without a body of its own: nginx shows its page of the error.
fn page(status: u16) -> Reply {
    if !(400..=599).contains(&status) || status == 444 {
        return Reply::status(status);
    }
    let words = format!("{status} {}", sdk::reason(status));
    let body = format!(
        "<html>\r\n<head><title>{words}</title></head>\r\n<body>\r\n<center><h1>{words}</h1></center>\r\n</body>\r\n</html>\r\n"
    );
    let content_type = b"text/html; charset=utf-8".to_vec();
    Reply { status, headers: vec![("Content-Type", content_type)], body: body.into(), ..Reply::default() }
}
