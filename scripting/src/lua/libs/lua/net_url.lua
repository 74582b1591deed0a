-- `net.url`: parts of URLs, with the fields and functions of net-url.
local concat, sort = table.concat, table.sort
local pairs, setmetatable, tonumber, tostring, type = pairs, setmetatable, tonumber, tostring, type
local byte, char, format = string.byte, string.char, string.format

local Url = {}
Url.__index = Url

-- Bytes of a path that need no encoding.
local IN_PATH = "/:!'()*@&=+$,;"

local function decode(text)
    return (text:gsub("%%(%x%x)", function(digits)
        return char(tonumber(digits, 16))
    end))
end

local function encode(text, kept)
    return (tostring(text):gsub("[^%w%-%._~" .. (kept or "") .. "]", function(one)
        return format("%%%02X", byte(one))
    end))
end

-- The arguments of a query; of several of one name a list.
function Url.parseQuery(text)
    local query = setmetatable({}, { __tostring = Url.buildQuery })
    for pair in text:gmatch("[^&;]+") do
        local name, value = pair:match("^([^=]*)=?(.*)$")
        name, value = decode((name:gsub("%+", " "))), decode((value:gsub("%+", " ")))
        local known = query[name]
        if type(known) == "table" then
            known[#known + 1] = value
        elseif known ~= nil then
            query[name] = { known, value }
        else
            query[name] = value
        end
    end
    return query
end

-- A query in the order of its names.
function Url.buildQuery(query)
    local names, parts = {}, {}
    for name in pairs(query) do
        names[#names + 1] = tostring(name)
    end
    sort(names)
    for at = 1, #names do
        local value = query[names[at]]
        if value == nil then
            value = query[tonumber(names[at])]
        end
        for _, one in pairs(type(value) == "table" and value or { value }) do
            local text = tostring(one)
            parts[#parts + 1] = encode(names[at]) .. (text ~= "" and "=" .. encode(text) or "")
        end
    end
    return concat(parts, "&")
end

function Url:setQuery(query)
    if type(query) == "table" then
        query = Url.buildQuery(query)
    end
    self.query = Url.parseQuery(query)
    return query
end

function Url:setAuthority(text)
    self.authority, self.userinfo, self.user, self.password, self.host, self.port = text, nil, nil, nil, nil, nil
    local user, host = text:match("^(.*)@(.*)$")
    host = host or text
    if user then
        self.userinfo = decode(user)
        self.user, self.password = self.userinfo:match("^([^:]*):?(.*)$")
        if self.password == "" then
            self.password = nil
        end
    end
    local name, port = host:match("^(.*):(%d+)$")
    if name and not name:find(":", 1, true) or name and name:sub(-1) == "]" then
        host, self.port = name, tonumber(port)
    end
    if host ~= "" then
        self.host = host:lower()
    end
    return text
end

function Url.parse(text)
    local url = setmetatable({}, Url)
    Url.setAuthority(url, "")
    url.query = Url.parseQuery("")
    local rest = tostring(text or "")
    local before, fragment = rest:match("^([^#]*)#(.*)$")
    if before then
        rest, url.fragment = before, decode(fragment)
    end
    local scheme, after = rest:match("^(%a[%w+%-.]*):(.*)$")
    if scheme then
        url.scheme, rest = scheme:lower(), after
    end
    local path, query = rest:match("^([^?]*)%?(.*)$")
    if path then
        rest = path
        Url.setQuery(url, query)
    end
    local authority, inner = rest:match("^//([^/]*)(.*)$")
    if authority then
        Url.setAuthority(url, authority)
        rest = inner
    end
    url.path = encode(decode(rest), IN_PATH)
    return url
end

function Url:build()
    local text = ""
    if self.host then
        local port = self.port and ":" .. self.port or ""
        local user = self.userinfo and encode(self.userinfo, ":") .. "@" or ""
        text = "//" .. user .. self.host .. port
    end
    if self.scheme then
        text = self.scheme .. ":" .. text
    end
    local path = self.path or ""
    if self.host and path ~= "" and path:sub(1, 1) ~= "/" then
        path = "/" .. path
    end
    text = text .. path
    local query = type(self.query) == "table" and Url.buildQuery(self.query) or self.query or ""
    if query ~= "" then
        text = text .. "?" .. query
    end
    return self.fragment and text .. "#" .. encode(self.fragment, "/:@!$&'()*+,;=") or text
end

Url.__tostring = Url.build

return Url
