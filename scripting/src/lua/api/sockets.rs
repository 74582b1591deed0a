//! `ngx.socket`: Rust functions over [`super::super::sockets`].

use std::path::Path;
use std::rc::Rc;

use mlua::{Error, FromLua, Lua, LuaString, Result, Value};
use sdk::connection::Server;

use super::super::access;
use super::super::machine;
use super::super::native::Natives;
use super::super::sockets::{self, Patience, Socket, Timeouts, Wanted};
use super::waits::{begin, seconds};

/// Patterns of `receiveuntil` are at most as long as this.
const LONGEST_PATTERN: usize = 256;

/// A socket in the hands of Lua.
#[derive(Clone)]
struct Handle(Rc<Socket>);

impl mlua::UserData for Handle {}

impl FromLua for Handle {
    fn from_lua(value: Value, _: &Lua) -> Result<Handle> {
        let Value::UserData(data) = value else { return Err(Error::runtime("bad request")) };
        let handle = data.borrow::<Handle>()?.clone();
        match handle.0.is_own() {
            true => Ok(handle),
            // Of another request, or where code cannot wait.
            false if access::place().may_wait() => Err(Error::runtime("bad request")),
            false => Err(disabled()),
        }
    }
}

fn disabled() -> Error {
    Error::runtime(format!("API disabled in the context of {}", access::context(access::place())))
}

pub(super) fn add(natives: &Natives<'_>) -> Result<()> {
    natives.add("socket", |lua, ()| {
        let socket = access::place().may_wait().then(Socket::new).flatten().ok_or_else(disabled)?;
        lua.create_userdata(Handle(socket))
    })?;
    natives.add(
        "socket_timeouts",
        |_, (Handle(socket), connect, send, receive): (Handle, f64, f64, f64)| {
            let (connect, send, receive) = (seconds(connect)?, seconds(send)?, seconds(receive)?);
            socket.timeouts.set(Timeouts { connect, send, receive });
            Ok(())
        },
    )?;
    // Begins to connect; the result is an error before there is something to wait for.
    natives.add(
        "socket_connect",
        |_, (Handle(socket), host, port, pool, is_udp): (Handle, LuaString, Option<u16>, LuaString, bool)| {
            let (host, pool) = (host.to_string_lossy(), pool.to_string_lossy());
            let server = match (host.strip_prefix("unix:"), port) {
                (Some(_), _) if is_udp => Err("datagrams are not sent over unix: sockets".to_owned()),
                (Some(path), _) => unix(path),
                (None, None) => Err("missing the port number".to_owned()),
                (None, Some(port)) => sockets::server(&host, port).map(|at| match is_udp {
                    true => Server::Udp(at),
                    false => Server::Tcp { at, tls: None },
                }),
            };
            match server {
                Ok(server) => begin(sockets::connect(socket, server, &pool)?).map(|()| None),
                Err(error) => Ok(Some(error)),
            }
        },
    )?;
    natives.add("socket_secure", |_, (Handle(socket), name, verified): (Handle, LuaString, bool)| {
        begin(sockets::secure(socket, &name.to_string_lossy(), verified)?)
    })?;
    natives.add("socket_send", |_, (Handle(socket), text): (Handle, LuaString)| {
        let patience = Patience::new(socket.timeouts.get().send)?;
        begin(sockets::send(socket, text, patience))
    })?;
    natives.add("socket_receive", |_, (Handle(socket), kind, size): (Handle, String, Option<usize>)| {
        let size = size.unwrap_or_default();
        let wanted = match kind.as_str() {
            "size" => Wanted::Size(size),
            "line" => Wanted::Line,
            "any" => Wanted::Any(size),
            _ => Wanted::All,
        };
        let patience = Patience::new(socket.timeouts.get().receive)?;
        begin(sockets::receive(socket, wanted, patience))
    })?;
    natives.add("socket_datagram", |_, (Handle(socket), size): (Handle, usize)| {
        let patience = Patience::new(socket.timeouts.get().receive)?;
        begin(sockets::receive_datagram(socket, size, patience))
    })?;
    natives.add(
        "socket_until",
        |_, (Handle(socket), pattern, inclusive, size): (Handle, LuaString, bool, Option<usize>)| {
            let pattern = pattern.as_bytes().to_vec();
            if pattern.is_empty() || pattern.len() > LONGEST_PATTERN {
                return Err(Error::runtime(format!("a pattern has 1 to {LONGEST_PATTERN} bytes")));
            }
            let patience = Patience::new(socket.timeouts.get().receive)?;
            begin(sockets::receive(socket, Wanted::Until { pattern, inclusive, size }, patience))
        },
    )?;
    natives.add("socket_close", |_, Handle(socket): Handle| Ok(socket.close()))?;
    natives.add("socket_reused", |_, Handle(socket): Handle| Ok(socket.reused_times()))?;
    natives
        .add("socket_keep", |_, (Handle(socket), idle): (Handle, f64)| Ok(socket.keep(seconds(idle)?).err()))
}

fn unix(path: &str) -> std::result::Result<Server, String> {
    let may = machine::current().is_some_and(|machine| machine.host.settings.unix_sockets);
    match may {
        true => Ok(Server::Unix(Path::new(path).into())),
        false => Err("unix: sockets are not open to scripts (sluice.lua.unix_sockets)".to_owned()),
    }
}
