-- resty.redis: a Redis client over ngx.socket.tcp. Each method that is no function here is a command.
local type, tostring, tonumber, select, setmetatable, rawget = type, tostring, tonumber, select, setmetatable, rawget
local pairs, ipairs, concat, byte, sub = pairs, ipairs, table.concat, string.byte, string.sub
local null = ngx.null

local _M = { _VERSION = "0.30" }
-- The longest text of a reply, and the most items of all its lists.
local longest, most, deepest = 64 * 1024 * 1024, 1000000, 16

local subscriptions = {
    subscribe = true, psubscribe = true, ssubscribe = true, unsubscribe = true, punsubscribe = true,
    sunsubscribe = true,
}

function _M.set_timeout(self, timeout)
    if not self._sock then
        return nil, "not initialized"
    end
    return self._sock:settimeout(timeout)
end

function _M.set_timeouts(self, connect, send, read)
    if not self._sock then
        return nil, "not initialized"
    end
    return self._sock:settimeouts(connect, send, read)
end

function _M.connect(self, host, port, opts)
    local sock = self._sock
    if not sock then
        return nil, "not initialized"
    end
    self._subscribed = false
    local ok, err
    if type(port) == "number" or type(port) == "string" then
        ok, err = sock:connect(host, port, opts)
    else
        opts = port
        ok, err = sock:connect(host, opts)
    end
    if not ok then
        return ok, err
    end
    if type(opts) == "table" and opts.ssl then
        ok, err = sock:sslhandshake(false, opts.server_name, opts.ssl_verify)
        if not ok then
            return ok, "failed to do ssl handshake: " .. err
        end
    end
    return ok, err
end

function _M.set_keepalive(self, ...)
    if not self._sock then
        return nil, "not initialized"
    end
    if self._subscribed then
        return nil, "subscribed state"
    end
    return self._sock:setkeepalive(...)
end

function _M.get_reused_times(self)
    if not self._sock then
        return nil, "not initialized"
    end
    return self._sock:getreusedtimes()
end

function _M.close(self)
    if not self._sock then
        return nil, "not initialized"
    end
    return self._sock:close()
end

local function fail(self, err)
    if err == "timeout" then
        self._sock:close()
    end
    return nil, err
end

-- A reply; an error of Redis is `false` and its text.
local function read(self, budget, depth)
    local line, err = self._sock:receive()
    if not line then
        if err == "timeout" and not self._subscribed then
            self._sock:close()
        end
        return nil, err
    end
    local kind, rest = byte(line), sub(line, 2)
    if kind == 43 then
        return rest
    elseif kind == 45 then
        return false, rest
    elseif kind == 58 then
        return tonumber(rest)
    elseif kind == 36 then
        local size = tonumber(rest)
        if not size or size < 0 then
            return null
        end
        if size > longest then
            self._sock:close()
            return nil, "reply is too long"
        end
        local text
        text, err = self._sock:receive(size)
        if not text then
            return fail(self, err)
        end
        local dummy
        dummy, err = self._sock:receive(2)
        if not dummy then
            return fail(self, err)
        end
        return text
    elseif kind == 42 then
        local count = tonumber(rest)
        if not count or count < 0 then
            return null
        end
        budget.left = budget.left - count
        if budget.left < 0 or depth >= deepest then
            self._sock:close()
            return nil, "reply is too long"
        end
        local items = {}
        for at = 1, count do
            local item
            item, err = read(self, budget, depth + 1)
            if item == nil then
                return nil, err
            end
            -- An error inside a list is a pair.
            items[at] = item == false and { false, err } or item
        end
        return items
    end
    return nil, 'unknown prefix: "' .. tostring(kind) .. '"'
end

local function read_reply(self)
    return read(self, { left = most }, 0)
end

local function add(parts, value)
    local text = type(value) == "string" and value or tostring(value)
    parts[#parts + 1] = "$" .. #text .. "\r\n" .. text .. "\r\n"
end

local function request(name, ...)
    local parts, count = { "" }, 1
    for word in name:gmatch("%S+") do
        add(parts, word)
        count = #parts - 1
    end
    for at = 1, select("#", ...) do
        local value = (select(at, ...))
        if type(value) == "table" then
            for _, item in ipairs(value) do
                add(parts, item)
            end
        else
            add(parts, value)
        end
        count = #parts - 1
    end
    parts[1] = "*" .. count .. "\r\n"
    return concat(parts)
end

local function command(self, name, ...)
    if not self._sock then
        return nil, "not initialized"
    end
    local text = request(name, ...)
    if self._pipeline then
        self._pipeline[#self._pipeline + 1] = text
        return
    end
    if self._subscribed and not subscriptions[name] and name ~= "ping" and name ~= "quit" then
        return nil, "subscribed state"
    end
    local sent, err = self._sock:send(text)
    if not sent then
        return nil, err
    end
    local reply
    reply, err = read_reply(self)
    if reply ~= nil and subscriptions[name] then
        self._subscribed = type(reply) ~= "table" or reply[3] ~= 0
    end
    return reply, err
end

-- The next message of a subscription.
function _M.read_reply(self)
    if not self._sock then
        return nil, "not initialized"
    end
    if not self._subscribed then
        return nil, "not subscribed"
    end
    local reply, err = read_reply(self)
    local kind = type(reply) == "table" and reply[1]
    if kind and sub(kind, -11) == "unsubscribe" and reply[3] == 0 then
        self._subscribed = false
    end
    return reply, err
end

function _M.init_pipeline(self)
    self._pipeline = {}
end

function _M.cancel_pipeline(self)
    self._pipeline = nil
end

function _M.commit_pipeline(self)
    local requests = self._pipeline
    if not requests then
        return nil, "no pipeline"
    end
    self._pipeline = nil
    if not self._sock then
        return nil, "not initialized"
    end
    local sent, err = self._sock:send(concat(requests))
    if not sent then
        return nil, err
    end
    local replies = {}
    for at = 1, #requests do
        local reply
        reply, err = read_reply(self)
        if reply == nil then
            return nil, err
        end
        replies[at] = reply == false and { false, err } or reply
    end
    return replies
end

-- Takes a table as fields and values.
function _M.hmset(self, key, first, ...)
    if type(first) ~= "table" then
        return command(self, "hmset", key, first, ...)
    end
    local flat = {}
    for field, value in pairs(first) do
        flat[#flat + 1] = field
        flat[#flat + 1] = value
    end
    return command(self, "hmset", key, flat)
end

function _M.array_to_hash(_, items)
    local hash = {}
    for at = 1, #items, 2 do
        hash[items[at]] = items[at + 1]
    end
    return hash
end

-- Commands of modules are methods like all others.
function _M.register_module_prefix() end

function _M.add_commands() end


local function method(name)
    return function(self, ...)
        return command(self, name, ...)
    end
end

local meta = {
    __index = function(_, name)
        local known = rawget(_M, name)
        if known ~= nil then
            return known
        end
        if type(name) ~= "string" or sub(name, 1, 1) == "_" then
            return nil
        end
        known = method(name)
        _M[name] = known
        return known
    end,
}

function _M.new()
    local sock, err = ngx.socket.tcp()
    if not sock then
        return nil, err
    end
    return setmetatable({ _sock = sock, _subscribed = false }, meta)
end

return _M
