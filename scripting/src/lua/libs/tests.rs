//! Runs the Lua tests of the libraries: `tests/lua/*.lua`, a file for a library, a function for a case.

use std::path::Path;

use mlua::{Function, Lua, LuaOptions, StdLib, Table};

use super::*;

/// Helpers of the test files: deep equality, expected errors, and a clock that stands still.
const PRELUDE: &str = r#"
local function show(v)
    if type(v) == "string" then return string.format("%q", v) end
    if type(v) ~= "table" then return tostring(v) end
    local parts = {}
    for k, x in pairs(v) do parts[#parts + 1] = "[" .. show(k) .. "]=" .. show(x) end
    table.sort(parts)
    return "{" .. table.concat(parts, ", ") .. "}"
end
local function same(a, b)
    if type(a) ~= "table" or type(b) ~= "table" then return a == b end
    for k, v in pairs(a) do if not same(v, b[k]) then return false end end
    for k in pairs(b) do if a[k] == nil then return false end end
    return true
end
function eq(actual, expected)
    if not same(actual, expected) then
        error("expected " .. show(expected) .. ", got " .. show(actual), 2)
    end
end
function raises(text, f, ...)
    local ok, err = pcall(f, ...)
    if ok then error("no error", 2) end
    if type(err) ~= "string" then error("the error is a " .. type(err), 2) end
    if not err:find(text, 1, true) then error("expected the error " .. text .. ", got " .. err, 2) end
end
clock = 1790000000
ngx.now = function() return clock end
ngx.time = function() return math.floor(clock) end
ngx.sleep = function(seconds) clock = clock + seconds end
ngx.update_time = function() end
ngx.log = function() end
"#;

fn machine() -> Lua {
    let safe = StdLib::TABLE | StdLib::STRING | StdLib::MATH | StdLib::PACKAGE | StdLib::BIT;
    let lua = Lua::new_with(safe, LuaOptions::default()).unwrap();
    install(&lua).unwrap();
    let sizes = [("test", 1 << 20), ("small", 2000), ("locks", 10_000)];
    shared::share(&lua, &shared::Dictionaries::new(sizes)).unwrap();
    lua.load(PRELUDE).set_name("=prelude").exec().unwrap();
    lua
}

#[test]
fn libraries_pass_their_lua_tests() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lua");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut failures = Vec::new();
    let mut count = 0;
    for path in files {
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        let lua = machine();
        let source = std::fs::read(&path).unwrap();
        let cases: Table = match lua.load(source).set_name(format!("={file}")).eval() {
            Ok(cases) => cases,
            Err(error) => {
                failures.push(format!("{file}: {error}"));
                continue;
            }
        };
        for pair in cases.pairs::<String, Function>() {
            let (case, run) = pair.unwrap();
            count += 1;
            if let Err(error) = run.call::<()>(()) {
                failures.push(format!("{file}: {case}: {error}"));
            }
        }
    }
    assert!(failures.is_empty(), "{} of {count} cases failed:\n{}", failures.len(), failures.join("\n"));
    assert!(count > 10, "only {count} cases were found");
}

#[test]
fn every_library_loads() {
    let lua = machine();
    for name in sources::names() {
        let loaded = lua.load(format!("return require({name:?})")).eval::<mlua::Value>();
        assert!(loaded.is_ok_and(|library| !library.is_boolean()), "{name}");
    }
}

#[test]
fn calls_of_unknown_functions_are_explained() {
    let lua = machine();
    let error = lua.load("require('apisix.core').string.has_prefx('a', 'b')").exec().unwrap_err().to_string();
    let similar = similar(&lua, &error).unwrap();
    assert!(similar.contains("apisix.core.string.has_prefix"), "{similar}");
    assert_eq!(super::similar(&lua, "attempt to index a nil value"), None);
}
