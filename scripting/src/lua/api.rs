//! The functions of `ngx` and `apisix.core` that know the exchange or the worker.
//!
//! Their sources are Lua (`api/lua`), over Rust functions that the sources get as one table.

mod consumers;
mod exits;
mod logs;
mod modules;
mod request;
mod response;
mod sockets;
mod times;
mod upstreams;
mod variables;
mod waits;

pub(super) use request::limit as body_limit;

use mlua::{Function, Lua, Result, Table, Value};

use super::flow::Marks;
use super::native::Natives;
use super::{vm, watchdog};

/// The sources, in the order in which they are run. Each gets the table of Rust functions, `ngx` and `apisix.core`.
const SOURCES: &[(&str, &str)] = &[
    ("ngx", include_str!("api/lua/ngx.lua")),
    ("ngx.req", include_str!("api/lua/request.lua")),
    ("ngx.waits", include_str!("api/lua/waits.lua")),
    ("ngx.socket", include_str!("api/lua/sockets.lua")),
    ("apisix.core.log", include_str!("api/lua/core_log.lua")),
    ("apisix.core.request", include_str!("api/lua/core_request.lua")),
    ("apisix.core.response", include_str!("api/lua/core_response.lua")),
    ("apisix.core.ctx", include_str!("api/lua/core_ctx.lua")),
    ("apisix.consumer", include_str!("api/lua/consumer.lua")),
    ("apisix.core.others", include_str!("api/lua/core_others.lua")),
    ("apisix.upstream", include_str!("api/lua/upstream.lua")),
];

/// Adds everything to a machine. Returns the function that makes environments, and the table of Rust functions.
///
/// # Errors
/// Memory is short.
pub(super) fn install(lua: &Lua) -> Result<(Function, Table)> {
    let table = lua.create_table()?;
    let marks = [("WAIT", Marks::WAIT), ("EXIT", Marks::EXIT), ("BODY", Marks::BODY), ("DONE", Marks::DONE)];
    for (name, mark) in marks {
        table.raw_set(name, Marks::value(mark))?;
    }
    table.raw_set("TIME_LIMIT", watchdog::MESSAGE)?;
    table.raw_set("function_info", lua.named_registry_value::<Function>(vm::FUNCTION_INFO)?)?;
    let natives = Natives { lua, table: &table };
    consumers::add(&natives)?;
    exits::add(&natives)?;
    logs::add(&natives)?;
    modules::add(&natives)?;
    request::add(&natives)?;
    response::add(&natives)?;
    sockets::add(&natives)?;
    times::add(&natives)?;
    upstreams::add(&natives)?;
    variables::add(&natives)?;
    waits::add(&natives)?;
    let require: Function = lua.globals().get("require")?;
    let ngx: Table = lua.globals().get("ngx")?;
    let core: Table = require.call("apisix.core")?;
    for (name, source) in SOURCES {
        lua.load(*source).set_name(format!("={name}")).call::<()>((&table, &ngx, &core))?;
    }
    let environment: Value =
        lua.load(include_str!("environment.lua")).set_name("=environment").call(&table)?;
    let environment = environment.as_function().cloned();
    let environment =
        environment.ok_or_else(|| mlua::Error::runtime("environment.lua returns no function"))?;
    Ok((environment, table))
}
