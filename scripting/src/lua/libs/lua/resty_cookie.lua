-- resty.cookie: reads the request's cookies and sets those of the response.
local type, pairs, ipairs, tostring, setmetatable, find = type, pairs, ipairs, tostring, setmetatable, string.find

local _M = { _VERSION = "0.1.0" }
local meta = { __index = _M }

local function parse(text)
    local cookies = {}
    for part in text:gmatch("[^;]+") do
        local name, value = part:match("^%s*([^=]-)%s*=%s*(.-)%s*$")
        if name and name ~= "" then
            value = value:match('^"(.*)"$') or value
            cookies[name] = value
        end
    end
    return cookies
end

function _M.new(_)
    return setmetatable({}, meta)
end

local function load(self)
    if not self.cookies then
        local text = ngx.var.http_cookie
        if not text then
            return nil, "no cookie found in the current request"
        end
        self.cookies = parse(text)
    end
    return self.cookies
end

function _M.get(self, name)
    local cookies, err = load(self)
    if not cookies then
        return nil, err
    end
    return cookies[name]
end

function _M.get_all(self)
    return load(self)
end

function _M.get_cookie_size()
    return #(ngx.var.http_cookie or "")
end

local same_site = { strict = "Strict", lax = "Lax", none = "None" }

-- The text of a `Set-Cookie` header, or nil and the fault.
local function bake(cookie)
    if type(cookie) ~= "table" or not cookie.key or not cookie.value then
        return nil, 'missing cookie field "key" or "value"'
    end
    for name, value in pairs(cookie) do
        if type(value) == "string" and find(value, "[%c;]") and name ~= "extension" then
            return nil, 'cookie field "' .. name .. '" has an invalid character'
        end
    end
    local parts = { cookie.key .. "=" .. cookie.value }
    if cookie.max_age and not cookie.expires then
        cookie.expires = ngx.cookie_time(ngx.time() + cookie.max_age)
    end
    for _, attribute in ipairs({
        { "expires", "Expires" }, { "max_age", "Max-Age" }, { "domain", "Domain" }, { "path", "Path" },
    }) do
        local value = cookie[attribute[1]]
        if value then
            parts[#parts + 1] = attribute[2] .. "=" .. value
        end
    end
    if cookie.secure then
        parts[#parts + 1] = "Secure"
    end
    if cookie.httponly then
        parts[#parts + 1] = "HttpOnly"
    end
    local site = cookie.samesite and same_site[tostring(cookie.samesite):lower()]
    if site then
        parts[#parts + 1] = "SameSite=" .. site
    end
    if cookie.extension and not find(cookie.extension, "%c") then
        parts[#parts + 1] = cookie.extension
    end
    return table.concat(parts, "; ")
end

function _M.set(_, cookie)
    local text, err = bake(cookie)
    if not text then
        return nil, err
    end
    local set = ngx.header["Set-Cookie"]
    if not set then
        ngx.header["Set-Cookie"] = text
        return true
    end
    local all = type(set) == "table" and { unpack(set) } or { set }
    for _, old in ipairs(all) do
        if old == text then
            return true
        end
    end
    all[#all + 1] = text
    ngx.header["Set-Cookie"] = all
    return true
end

_M.bake, _M.parse = bake, parse

return _M
