-- Environments of scripts. Each script has globals and libraries of its own, and its writes stay in them. The globals of
-- the machine are out of its reach, also once it has removed its own.
local native = ...
local base = _G
local package = package
local WAIT, EXIT, BODY = native.WAIT, native.EXIT, native.BODY

local collectgarbage, error, getfenv, getmetatable, load, next, rawset, select, setfenv, setmetatable =
    collectgarbage, error, getfenv, getmetatable, load, next, rawset, select, setfenv, setmetatable
local tonumber, tostring, type, xpcall = tonumber, tostring, type, xpcall
local create, resume, running, status, wrap, yield =
    coroutine.create, coroutine.resume, coroutine.running, coroutine.status, coroutine.wrap, coroutine.yield
local find, format = string.find, string.format
local base_require = require
local exchange_tables, null = native.exchange_tables, ngx.null

-- Strings of all scripts have one metatable.
getmetatable("").__metatable = false

-- The globals of all scripts.
local environments = setmetatable({}, { __mode = "k" })

-- Functions of the base library that reach no state of the machine. All scripts read them here; each script has versions
-- of its own of the others.
local harmless = {}
for _, name in next, {
    "_VERSION", "assert", "error", "ipairs", "next", "pairs", "pcall", "rawequal", "rawget", "rawlen", "rawset", "select",
    "tonumber", "tostring", "type", "unpack",
} do
    harmless[name] = base[name]
end

-- A table of functions is a library; other tables (empty ones, marks, data) keep their identity.
local function is_library(value)
    if type(value) ~= "table" then
        return false
    end
    for _, field in next, value do
        if type(field) == "function" then
            return true
        end
    end
    local meta = getmetatable(value)
    return type(meta) == "table" and (meta.__library or meta.__index ~= nil and next(value) == nil) or false
end

-- A view of a library: what is written to it stays in it. `seen` has the views of this environment.
local function view(library, seen)
    local known = seen[library]
    if known then
        return known
    end
    local mine = {}
    seen[library] = mine
    local meta = getmetatable(library)
    meta = type(meta) == "table" and meta or {}
    local call, set, dynamic = meta.__call, meta.__set, meta.__dynamic or {}
    return setmetatable(mine, {
        __index = function(_, key)
            local value = library[key]
            if dynamic[key] then
                return value
            elseif is_library(value) then
                value = view(value, seen)
                rawset(mine, key, value)
            elseif exchange_tables[value] then
                value = setmetatable({}, exchange_tables[value])
                rawset(mine, key, value)
            elseif type(value) == "function" or type(value) == "userdata" and value ~= null then
                rawset(mine, key, value)
            end
            return value
        end,
        __newindex = set and function(_, key, value)
            if not set(key, value) then
                rawset(mine, key, value)
            end
        end or nil,
        __call = call and function(_, ...)
            return call(library, ...)
        end or nil,
        -- As a library without a view: `pairs` has all of it.
        __pairs = function()
            local all = {}
            for key in next, library do
                all[key] = mine[key]
            end
            for key, value in next, mine do
                all[key] = value
            end
            return next, all, nil
        end,
    })
end

-- Coroutines of scripts pass on what the machine waits for.
local function passed(co, ok, first, ...)
    if ok and (first == WAIT or first == EXIT or first == BODY) and status(co) == "suspended" then
        return passed(co, resume(co, yield(first, ...)))
    end
    return ok, first, ...
end

local function resume_script(co, ...)
    return passed(co, resume(co, ...))
end

local function result(ok, first, ...)
    if not ok then
        error(first, 0)
    end
    return first, ...
end

-- Coroutines that scripts have seen, which serve no other script (`coroutines.lua`).
local seen_coroutines = setmetatable({}, { __mode = "k" })
native.seen_coroutines, native.running, native.yield = seen_coroutines, running, yield

local coroutines = {
    create = create,
    resume = resume_script,
    running = function()
        local co, is_main = running()
        if co then
            seen_coroutines[co] = true
        end
        return co, is_main
    end,
    status = status,
    yield = yield,
    isyieldable = coroutine.isyieldable,
    wrap = function(f)
        local co = create(f)
        return function(...)
            return result(resume_script(co, ...))
        end
    end,
}

-- The error of the time limit is raised within a hook. LuaJIT calls no hook in a handler for it, so a handler of the
-- script could not be stopped.
local function xpcall_script(f, handler, ...)
    return xpcall(f, function(err)
        if type(err) == "string" and find(err, native.TIME_LIMIT, 1, true) then
            return err
        end
        return handler(err)
    end, ...)
end

local function collectgarbage_script(option)
    if option == nil or option == "collect" or option == "step" then
        return 0
    end
    if option == "count" then
        return collectgarbage("count")
    end
    error("bad argument #1 to 'collectgarbage' (not available to scripts)", 2)
end

-- Makes an environment. `find_module(name, globals)` returns the function of a module of the script's own, or nil.
local function environment(find_module)
    local seen, loaded, preload = {}, {}, {}
    local env = {}
    environments[env] = true
    -- The metatables that this script has set.
    local metatables = setmetatable({}, { __mode = "k" })

    -- Loads text, never machine code or bytecode, with the globals of this script.
    local function load_script(chunk, name, mode, globals)
        if type(chunk) == "function" then
            local parts, part = {}, chunk()
            while type(part) == "string" and part ~= "" do
                parts[#parts + 1] = part
                part = chunk()
            end
            chunk = table.concat(parts)
        end
        return load(chunk, name or chunk, "t", globals or env)
    end

    local function module_of(name)
        if preload[name] then
            return preload[name]
        end
        return find_module and find_module(name, env) or native.own_library(name, env)
    end

    local function require_script(name)
        if type(name) ~= "string" then
            error("bad argument #1 to 'require' (string expected, got " .. type(name) .. ")", 2)
        end
        local known = loaded[name]
        if known ~= nil then
            return known
        end
        local made
        local maker = module_of(name)
        if maker then
            loaded[name] = true
            local value = maker(name)
            made = value == nil and loaded[name] or value
        elseif package.loaded[name] ~= nil or package.preload[name] then
            made = base_require(name)
            if is_library(made) then
                made = view(made, seen)
            end
        else
            local near = native.near_module(name)
            error(format("module '%s' not found%s", name, near and ": did you mean '" .. near .. "'?" or ""), 2)
        end
        loaded[name] = made
        return made
    end

    -- Functions of the machine and of other scripts keep their globals, and do not show them.
    local function is_own(globals)
        return globals ~= base and (globals == env or not environments[globals])
    end

    -- A level that counts from the caller of this function's caller.
    local function level_of(level)
        level = tonumber(level)
        if not level or not (level >= 1) then
            error("bad argument #1 (function or level expected)", 3)
        end
        return level + 1
    end

    env._G = env
    env.require = require_script
    env.package = { loaded = loaded, preload = preload, path = "", cpath = "", config = package.config }
    env.load = load_script
    env.loadstring = function(chunk, name)
        return load_script(chunk, name)
    end
    env.coroutine = view(coroutines, seen)
    env.collectgarbage = collectgarbage_script
    env.xpcall = xpcall_script
    env.getfenv = function(f)
        if f == 0 then
            return env
        end
        local globals = getfenv(type(f) == "function" and f or level_of(f or 1))
        return is_own(globals) and globals or env
    end
    env.setfenv = function(f, globals)
        local target = type(f) == "function" and f or level_of(f)
        if not is_own(getfenv(target)) then
            error("'setfenv' cannot change environment of given object", 2)
        end
        -- As a tail call it would count levels from this function's caller.
        local changed = setfenv(target, globals)
        return changed
    end
    env.setmetatable = function(value, meta)
        local changed = setmetatable(value, meta)
        if meta then
            metatables[meta] = true
        end
        return changed
    end
    -- A metatable of a library is seen as the library is.
    env.getmetatable = function(value)
        local meta = getmetatable(value)
        if type(meta) == "table" and not metatables[meta] and (is_library(meta) or is_library(meta.__index)) then
            return view(meta, seen)
        end
        return meta
    end
    env.print = function(...)
        local texts = {}
        for at = 1, select("#", ...) do
            texts[at] = tostring((select(at, ...)))
        end
        native.log(native.NOTICE, table.concat(texts, "\t"))
    end
    env.debug = { traceback = native.traceback }

    for _, name in next, { "ngx", "string", "table", "math", "bit", "os" } do
        env[name] = view(base[name], seen)
        loaded[name] = env[name]
    end
    loaded._G = env
    loaded.coroutine = env.coroutine
    loaded.package = env.package
    -- Without the libraries, `require` of one returns the view.
    return setmetatable(env, { __index = harmless, __metatable = false })
end

-- The sources of this room keep these in locals. A script that finds a way to the machine's globals finds none of them.
for _, name in next, { "_G", "coroutine", "getfenv", "load", "loadstring", "package", "setfenv" } do
    base[name] = nil
end

return environment
