-- The parts of `ngx` that know the exchange: status, headers, variables, output, times, logs.
local native, ngx = ...
local EXIT, BODY, WAIT = native.EXIT, native.BODY, native.WAIT
local error, rawget, rawset, select, setmetatable, tonumber, tostring, type =
    error, rawget, rawset, select, setmetatable, tonumber, tostring, type
local concat, floor, gsub = table.concat, math.floor, string.gsub
local yield = coroutine.yield

-- The metatables of tables whose accesses reach the exchange. Each script has such tables of its own.
local exchange_tables = {}
native.exchange_tables = exchange_tables

local function exchange_table(index, newindex)
    local meta = { __index = index, __newindex = newindex, __metatable = false }
    local made = setmetatable({}, meta)
    exchange_tables[made] = meta
    return made
end

-- Ends a wait: returns its results, or raises its error.
local function finish(ok, first, ...)
    if not ok then
        error(first, 3)
    end
    return first, ...
end

function native.wait()
    return finish(yield(WAIT))
end

-- Yields until the request's body is buffered.
function native.read_body()
    while native.needs_body() do
        yield(BODY)
    end
end

ngx.var = exchange_table(function(_, name)
    if type(name) ~= "string" then
        return nil
    end
    local value = native.var(name)
    return value ~= nil and type(value) ~= "table" and tostring(value) or nil
end, function(_, name, value)
    native.set_var(name, value ~= nil and tostring(value) or nil)
end)

local function header_name(name)
    return (gsub(name, "_", "-"))
end

ngx.header = exchange_table(function(_, name)
    return type(name) == "string" and native.response_header(header_name(name)) or nil
end, function(_, name, value)
    if type(value) == "table" and #value == 0 then
        value = nil
    end
    native.set_response_header(header_name(tostring(name)), value)
end)

ngx.arg = exchange_table(function(_, at)
    if at == 1 or at == 2 then
        return native.piece(at)
    end
end, function(_, at, value)
    if at == 1 or at == 2 then
        native.set_piece(at, value)
    end
end)

-- Sets a field that belongs to the exchange; returns false for all others.
local function set(key, value)
    if key == "ctx" then
        native.set_ngx_ctx(value)
        return true
    elseif key == "status" then
        native.set_status(tonumber(value) or error("number expected, got " .. type(value), 4))
        return true
    end
    return false
end

-- `__dynamic` names the fields of the exchange: views of `ngx` never keep them, and set them by `__set`.
setmetatable(ngx, {
    __dynamic = { ctx = true, status = true, headers_sent = true, is_subrequest = true },
    __set = set,
    __index = function(_, key)
        if key == "ctx" then
            return native.has_exchange() and native.session("ngx_ctx") or nil
        elseif key == "status" then
            return native.status()
        elseif key == "headers_sent" then
            return native.headers_sent()
        elseif key == "is_subrequest" then
            return false
        end
    end,
    __newindex = function(table, key, value)
        if not set(key, value) then
            rawset(table, key, value)
        end
    end,
})

-- Text of all arguments: of tables all elements, of others what `tostring` makes of them.
local function write(parts, count, value)
    if type(value) == "table" then
        for at = 1, #value do
            count = write(parts, count, value[at])
        end
        return count
    elseif value == ngx.null then
        value = "null"
    end
    parts[count + 1] = tostring(value)
    return count + 1
end

local function text_of(...)
    local parts, count = {}, 0
    for at = 1, select("#", ...) do
        count = write(parts, count, (select(at, ...)))
    end
    return concat(parts, "", 1, count)
end

function ngx.print(...)
    native.write(text_of(...))
    return 1
end

function ngx.say(...)
    native.write(text_of(...) .. "\n")
    return 1
end

function ngx.flush()
    return 1
end

-- The response is sent once the phase is over.
function ngx.eof()
    return 1
end

function ngx.send_headers()
    return 1
end

function ngx.on_abort()
    return nil, "lua_check_client_abort is off"
end

function ngx.exit(code)
    if native.exit(tonumber(code) or error("number expected, got " .. type(code), 2)) then
        return yield(EXIT)
    end
end

function ngx.redirect(uri, status)
    status = status or 302
    if status ~= 301 and status ~= 302 and status ~= 303 and status ~= 307 and status ~= 308 then
        error("only 301, 302, 303, 307 and 308 are allowed", 2)
    end
    native.set_response_header("Location", uri)
    return ngx.exit(status)
end

function ngx.exec()
    error("ngx.exec is not available: there are no locations; use ngx.req.set_uri", 2)
end

function ngx.time()
    return floor(native.now_ms() / 1000)
end

function ngx.now()
    return native.now_ms() / 1000
end

function ngx.update_time() end

local date = os.date

function ngx.utctime()
    return date("!%Y-%m-%d %H:%M:%S", ngx.time())
end

function ngx.localtime()
    return date("%Y-%m-%d %H:%M:%S", ngx.time())
end

function ngx.today()
    return date("%Y-%m-%d", ngx.time())
end

function ngx.get_phase()
    return native.phase()
end

function ngx.log(level, ...)
    if type(level) ~= "number" then
        error("bad argument #1 to 'log' (number expected, got " .. type(level) .. ")", 2)
    end
    if not native.logs(level) then
        return
    end
    local parts = {}
    for at = 1, select("#", ...) do
        parts[at] = tostring((select(at, ...)))
    end
    native.log(level, concat(parts))
end

ngx.config = {
    subsystem = "http",
    debug = false,
    ngx_lua_version = 10028,
    nginx_version = 1027001,
    prefix = function()
        return "/usr/local/apisix/"
    end,
    nginx_configure = function()
        return ""
    end,
    is_console = false,
}

ngx.worker = {
    id = native.worker_id,
    pid = native.process_id,
    count = function()
        return 1
    end,
    exiting = function()
        return false
    end,
    pids = function()
        return { native.process_id() }
    end,
}

ngx.process = {
    type = function()
        return "worker"
    end,
}

ngx.resp = {
    get_headers = function()
        return native.response_headers()
    end,
    add_header = function(name, value)
        native.add_response_header(name, value)
    end,
}

local loaded = package.loaded
loaded["ngx.resp"] = ngx.resp
loaded["ngx.process"] = ngx.process
loaded["ngx.errlog"] = {
    get_sys_filter_level = native.log_level,
    raw_log = function(level, text)
        native.log(level, text)
    end,
    set_filter_level = function()
        return true
    end,
}
