-- socket.url: takes URLs apart and builds them.
local match, gsub, format = string.match, string.gsub, string.format
local M = { _VERSION = "URL 1.0.3" }

function M.escape(text)
    return (gsub(text, "[^A-Za-z0-9_.~-]", function(c)
        return format("%%%02x", c:byte())
    end))
end

function M.unescape(text)
    return (gsub(text, "%%(%x%x)", function(digits)
        return string.char(tonumber(digits, 16))
    end))
end

function M.parse(url, default)
    local out = {}
    for key, value in pairs(default or {}) do
        out[key] = value
    end
    if not url or url == "" then
        return nil, "invalid url"
    end
    local rest = url
    local function take(pattern, set)
        local found, after = match(rest, pattern)
        if found then
            rest = after
            set(found)
        end
    end
    take("^([%w][%w+.-]*):(.*)$", function(text) out.scheme = text end)
    take("^//([^/?#]*)(.*)$", function(text) out.authority = text end)
    local path, fragment = match(rest, "^([^#]*)#(.*)$")
    if path then
        rest, out.fragment = path, fragment
    end
    local before, query = match(rest, "^([^?]*)%?(.*)$")
    if before then
        rest, out.query = before, query
    end
    local plain, params = match(rest, "^([^;]*);(.*)$")
    if plain then
        rest, out.params = plain, params
    end
    if rest ~= "" then
        out.path = rest
    end
    local authority = out.authority
    if authority then
        local userinfo, host = match(authority, "^(.*)@(.*)$")
        if userinfo then
            out.userinfo, authority = userinfo, host
            local user, password = match(userinfo, "^([^:]*):(.*)$")
            out.user, out.password = user or userinfo, password
        end
        local name, port = match(authority, "^(.*):(%d*)$")
        if name and not match(name, "^%[[^%]]*$") then
            authority, out.port = name, port
        end
        out.host = match(authority, "^%[(.*)%]$") or authority
    end
    return out
end

function M.build(parts)
    local url = parts.path or ""
    if parts.params then
        url = url .. ";" .. parts.params
    end
    if parts.query then
        url = url .. "?" .. parts.query
    end
    local authority = parts.authority
    if parts.host then
        authority = parts.host:find(":", 1, true) and "[" .. parts.host .. "]" or parts.host
        if parts.port then
            authority = authority .. ":" .. parts.port
        end
        local user = parts.userinfo or parts.user and (parts.password and parts.user .. ":" .. parts.password or parts.user)
        if user then
            authority = user .. "@" .. authority
        end
    end
    if authority then
        url = "//" .. authority .. url
    end
    if parts.scheme then
        url = parts.scheme .. ":" .. url
    end
    if parts.fragment then
        url = url .. "#" .. parts.fragment
    end
    return url
end

function M.parse_path(path)
    local out = {}
    for part in (path or ""):gmatch("[^/]+") do
        out[#out + 1] = M.unescape(part)
    end
    out.is_absolute = path and path:sub(1, 1) == "/" and 1 or nil
    out.is_directory = path and path:sub(-1) == "/" and 1 or nil
    return out
end

return M
