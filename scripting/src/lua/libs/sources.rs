//! The names of all libraries, and how one is made.

use mlua::{Function, Lua, Result, Table, Value};

use super::native;

/// Libraries in Lua, by name.
const SOURCES: &[(&str, &str)] = &[
    ("apisix.core", include_str!("lua/core.lua")),
    ("apisix.core.id", include_str!("lua/core_id.lua")),
    ("apisix.core.ip", include_str!("lua/core_ip.lua")),
    ("apisix.core.json", include_str!("lua/core_json.lua")),
    ("apisix.core.lrucache", include_str!("lua/core_lrucache.lua")),
    ("apisix.core.math", include_str!("lua/core_math.lua")),
    ("apisix.core.schema", include_str!("lua/core_schema.lua")),
    ("apisix.core.string", include_str!("lua/core_string.lua")),
    ("apisix.core.table", include_str!("lua/core_table.lua")),
    ("apisix.core.utils", include_str!("lua/core_utils.lua")),
    ("apisix.core.version", "return { VERSION = '3.18.0' }"),
    ("apisix.schema_def", include_str!("lua/schema_def.lua")),
    ("apisix.utils.batch-processor", include_str!("lua/batch_processor.lua")),
    ("apisix.utils.batch-processor-manager", include_str!("lua/batch_processor_manager.lua")),
    ("apisix.utils.log-util", include_str!("lua/log_util.lua")),
    ("cjson", include_str!("lua/cjson.lua")),
    ("cjson.safe", include_str!("lua/cjson.lua")),
    ("dkjson", include_str!("lua/dkjson.lua")),
    ("inspect", include_str!("lua/inspect.lua")),
    ("jsonschema", include_str!("lua/jsonschema.lua")),
    ("multipart", include_str!("lua/multipart.lua")),
    ("net.url", include_str!("lua/net_url.lua")),
    ("ngx.base64", include_str!("lua/ngx_base64.lua")),
    ("ngx.re", include_str!("lua/ngx_re.lua")),
    ("pl.stringx", include_str!("lua/pl_stringx.lua")),
    ("pl.tablex", include_str!("lua/pl_tablex.lua")),
    ("pl.types", include_str!("lua/pl_types.lua")),
    ("rapidjson", include_str!("lua/rapidjson.lua")),
    ("resty.aes", include_str!("lua/resty_aes.lua")),
    ("resty.cookie", include_str!("lua/resty_cookie.lua")),
    ("resty.expr.v1", include_str!("lua/resty_expr.lua")),
    ("resty.hmac", include_str!("lua/resty_hmac.lua")),
    ("resty.http", include_str!("lua/resty_http.lua")),
    ("resty.ipmatcher", include_str!("lua/resty_ipmatcher.lua")),
    ("resty.jit-uuid", include_str!("lua/resty_uuid.lua")),
    ("resty.http_headers", include_str!("lua/resty_http_headers.lua")),
    ("resty.jwt", include_str!("lua/resty_jwt.lua")),
    ("resty.jwt-validators", include_str!("lua/resty_jwt_validators.lua")),
    ("resty.lock", include_str!("lua/resty_lock.lua")),
    ("resty.lrucache", include_str!("lua/resty_lrucache.lua")),
    ("resty.md5", include_str!("lua/resty_digest.lua")),
    ("resty.mlcache", include_str!("lua/resty_mlcache.lua")),
    ("resty.openssl", include_str!("lua/resty_openssl.lua")),
    ("resty.openssl.digest", include_str!("lua/resty_openssl_digest.lua")),
    ("resty.openssl.hmac", include_str!("lua/resty_openssl_digest.lua")),
    ("resty.openssl.mac", include_str!("lua/resty_openssl_digest.lua")),
    ("resty.openssl.pkey", include_str!("lua/resty_openssl_pkey.lua")),
    ("resty.openssl.rand", include_str!("lua/resty_openssl.lua")),
    ("resty.openssl.x509", include_str!("lua/resty_openssl_x509.lua")),
    ("resty.radixtree", include_str!("lua/resty_radixtree.lua")),
    ("resty.random", include_str!("lua/resty_random.lua")),
    ("resty.redis", include_str!("lua/resty_redis.lua")),
    ("resty.roundrobin", include_str!("lua/resty_roundrobin.lua")),
    ("resty.sha1", include_str!("lua/resty_digest.lua")),
    ("resty.sha224", include_str!("lua/resty_digest.lua")),
    ("resty.sha256", include_str!("lua/resty_digest.lua")),
    ("resty.sha384", include_str!("lua/resty_digest.lua")),
    ("resty.sha512", include_str!("lua/resty_digest.lua")),
    ("resty.string", include_str!("lua/resty_string.lua")),
    ("resty.template", include_str!("lua/resty_template.lua")),
    ("resty.uuid", include_str!("lua/resty_uuid.lua")),
    ("sluice.http_bodies", include_str!("lua/http_bodies.lua")),
    ("sluice.regex", include_str!("lua/ngx_regex.lua")),
    ("socket.url", include_str!("lua/socket_url.lua")),
    ("table.clone", include_str!("lua/table_clone.lua")),
    ("table.isarray", include_str!("lua/table_isarray.lua")),
    ("table.isempty", "local next = next return function(t) return next(t) == nil end"),
    ("table.nkeys", include_str!("lua/table_nkeys.lua")),
    ("tablepool", include_str!("lua/tablepool.lua")),
];

/// Other names of libraries.
const ALIASES: &[(&str, &str)] = &[("resty.lrucache.pureffi", "resty.lrucache")];

/// Libraries that run code of scripts: each script has its own, with its globals.
const OWN: &[&str] = &["resty.template"];

/// Libraries whose functions every machine has anyway; `require` of one returns an empty table.
const BUILT_IN: &[&str] = &[
    "resty.core",
    "resty.core.base",
    "resty.core.base64",
    "resty.core.ctx",
    "resty.core.exit",
    "resty.core.hash",
    "resty.core.misc",
    "resty.core.ndk",
    "resty.core.phase",
    "resty.core.regex",
    "resty.core.request",
    "resty.core.response",
    "resty.core.shdict",
    "resty.core.time",
    "resty.core.uri",
    "resty.core.utils",
    "resty.core.var",
    "resty.core.worker",
];

/// The name under which `package.preload` finds a library.
fn source(name: &str) -> Option<(&'static str, &'static str)> {
    let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, real)| real);
    SOURCES.iter().find(|(known, _)| *known == name).copied()
}

/// All names that `require` accepts.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let sources = SOURCES.iter().map(|(name, _)| *name);
    sources.chain(ALIASES.iter().map(|(name, _)| *name)).chain(BUILT_IN.iter().copied())
}

pub(super) fn install(lua: &Lua) -> Result<()> {
    let native = natives(lua)?;
    let package: Table = lua.globals().get("package")?;
    let preload: Table = package.get("preload")?;
    let meta = lua.create_table()?;
    meta.raw_set(
        "__index",
        lua.create_function(move |lua, (_, name): (Table, Value)| {
            let name = name.as_string().map(mlua::LuaString::to_string_lossy).unwrap_or_default();
            find(lua, &name, &native)
        })?,
    )?;
    preload.set_metatable(Some(meta))?;
    let require: Function = lua.globals().get("require")?;
    let ngx: Table = lua.globals().get("ngx")?;
    ngx.raw_set("re", require.call::<Table>("sluice.regex")?)?;
    require.call::<()>("apisix.core")
}

fn natives(lua: &Lua) -> Result<Function> {
    lua.create_function(|lua, group: String| native::group(lua, &group))
}

/// The function that makes a library of a script's own; `None` if all scripts share the library.
pub(in super::super) fn own(lua: &Lua, name: &str, globals: Table) -> Result<Option<Function>> {
    let Some((name, source)) = source(name).filter(|(name, _)| OWN.contains(name)) else { return Ok(None) };
    let chunk = lua.load(source).set_name(format!("={name}")).set_environment(globals).into_function()?;
    chunk.bind((name, natives(lua)?)).map(Some)
}

/// The function that makes a library; its first result is the library.
fn find(lua: &Lua, name: &str, native: &Function) -> Result<Option<Function>> {
    if let Some((real, source)) = source(name) {
        if real != name {
            // The same table under both names.
            let require: Function = lua.globals().get("require")?;
            return lua.create_function(move |_, ()| require.call::<Value>(real)).map(Some);
        }
        let chunk = lua.load(source).set_name(format!("={name}")).into_function()?;
        return chunk.bind((name, native)).map(Some);
    }
    if BUILT_IN.contains(&name) {
        return lua.create_function(|lua, ()| lua.create_table()).map(Some);
    }
    Ok(None)
}
