local _, native = ...
local escape = native("text")
local ipmatcher, re = require("resty.ipmatcher"), ngx.re
local byte, sub, gsub, find, format = string.byte, string.sub, string.gsub, string.find, string.format
local type, tonumber, tostring, ipairs, floor = type, tonumber, tostring, ipairs, math.floor

local _M = {
    version = 0.2,
    parse_ipv4 = ipmatcher.parse_ipv4,
    parse_ipv6 = ipmatcher.parse_ipv6,
}

function _M.get_seed_from_urandom()
    local seed = 0
    for _, b in ipairs({ byte(native("digest").random(8), 1, 8) }) do
        seed = seed * 256 + b
    end
    return seed
end

function _M.split_uri(uri)
    return require("ngx.re").split(uri, "/")
end

-- Looks a name up; `require("resty.dns.resolver")` or the host has the function.
function _M.dns_parse(domain)
    local resolver = require("apisix.core").resolver
    if not resolver then
        return nil, "no resolver available"
    end
    local ip, err = resolver.parse_domain(domain)
    if not ip then
        return nil, err
    end
    return { address = ip, name = domain }
end

local resolvers
function _M.set_resolver(list)
    resolvers = list
end

function _M.get_resolver()
    return resolvers
end

-- Splits host and port. An IPv6 address has a port only in brackets.
function _M.parse_addr(addr)
    local host, port
    if sub(addr, 1, 1) == "[" then
        host, port = addr:match("^(%[.*%]):([^:]+)$")
    elseif addr:match("^[^:]*:[^:.]*:") and not addr:match("^[^:]*%.") then
        return addr, nil
    else
        host, port = addr:match("^(.*):([^:]+)$")
    end
    if not host then
        return addr, nil
    end
    return host, tonumber(port)
end

function _M.uri_safe_encode(uri)
    return escape.escape_path(uri)
end

function _M.escape_uri_control_chars(uri)
    return (gsub(uri, "[%z\1-\31\127]", function(c)
        return format("%%%02X", byte(c))
    end))
end

function _M.validate_header_field(field)
    return not find(field, "[^\33-\126]") and not find(field, ":", 1, true)
end

function _M.validate_header_value(value)
    return type(value) ~= "string" or not find(value, "[^\32-\126]")
end

-- `hostname` is a variable of each exchange.
local hostname
function _M.gethostname()
    if not hostname then
        local ok, name = pcall(function()
            return ngx.var.hostname
        end)
        hostname = ok and name or nil
    end
    return hostname or "unknown"
end

function _M.sleep(seconds)
    return ngx.sleep(seconds)
end

local variables = [[(?<!\\)\$(\{\s*([^}]+?)\s*\}|([\w\.]+))]]

-- Fills in `$name`, `${name}` and `${name ?? default}`; returns the text, an error and the number filled in.
function _M.resolve_var(tpl, ctx, escaper)
    if not tpl or not find(tpl, "$", 1, true) then
        return tpl, nil, 0
    end
    local count = 0
    local text, _, err = re.gsub(tpl, variables, function(m)
        local parts = require("ngx.re").split(m[2] or m[3], [[\s*\?\?\s*]])
        local value = ctx[parts[1]]
        if value == nil then
            value = parts[2]
        end
        if value == nil then
            return ""
        end
        count = count + 1
        value = tostring(value)
        return escaper and escaper(value) or value
    end, "jo")
    if not text then
        return nil, err
    end
    return text, nil, count
end

function _M.resolve_var_with_captures(tpl, captures)
    if not tpl or not find(tpl, "$", 1, true) then
        return tpl, nil
    end
    captures = captures or {}
    local text, _, err = re.gsub(tpl, [[(?<!\\)\$\{?(\d+)\}?]], function(m)
        return captures[tonumber(m[1])] or ""
    end, "jo")
    if not text then
        return nil, err
    end
    return text, nil
end

local function field_of(conf, path)
    local inner, last = conf, nil
    for name in path:gmatch("[^.]+") do
        if last then
            inner = inner[last]
            if type(inner) ~= "table" then
                return nil
            end
        end
        last = name
    end
    return inner[last]
end

local function warn(...)
    ngx.log(ngx.WARN, ...)
end

function _M.check_https(fields, conf, plugin)
    for _, field in ipairs(fields) do
        local value = field_of(conf, field)
        for _, url in ipairs(type(value) == "table" and value or { value }) do
            if type(url) == "string" and sub(url, 1, 5) ~= "https" then
                warn("Using ", plugin, " ", field, " with no TLS is a security risk")
            end
        end
    end
end

function _M.check_tls_bool(fields, conf, plugin)
    for _, field in ipairs(fields) do
        local value = field_of(conf, field)
        if value ~= true and value ~= nil then
            warn("Keeping ", field, " disabled in ", plugin, " configuration is a security risk")
        end
    end
end

function _M.set_var_rate_limiting_info(ctx, key, limit, remaining, reset)
    if ctx then
        ctx.var.rate_limiting_info = format(
            '{"rate_limiting_key":"%s","rate_limiting_limit":%d,"rate_limiting_remaining":%d,"rate_limiting_reset":%d}',
            key or "", limit or 0, tonumber(remaining) or 0, reset or 0)
    end
end

-- UUID of version 7 (RFC 9562): milliseconds, a counter, random bits.
local last_ms, counter = 0, 0
function _M.generate_uuid_v7()
    local ms = floor(ngx.now() * 1000)
    if ms > last_ms then
        last_ms, counter = ms, 0
    else
        counter = counter + 1
        if counter > 0x3ffff then
            last_ms, counter = last_ms + 1, 0
        end
    end
    local r = { byte(native("digest").random(7), 1, 7) }
    return format("%08x-%04x-7%03x-%02x%02x-%02x%02x%02x%02x%02x%02x", floor(last_ms / 0x10000), last_ms % 0x10000,
        floor(counter / 64), 0x80 + counter % 64, r[1], r[2], r[3], r[4], r[5], r[6], r[7])
end

return _M
