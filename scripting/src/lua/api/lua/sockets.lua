-- `ngx.socket`: connections as coroutines see them.
local native, ngx = ...
local error, pairs, rawget, select, setmetatable, tonumber, tostring, type =
    error, pairs, rawget, select, setmetatable, tonumber, tostring, type
local concat, floor, sub = table.concat, math.floor, string.sub

-- Times are in milliseconds; nil and 0 are the default.
local default, longest = 60000, 86400000

local function time(value)
    value = tonumber(value)
    if not value or value == 0 then
        return default
    elseif value < 0 then
        error("bad timeout value", 3)
    end
    return value
end

local function handle(sock)
    return rawget(sock, 1)
end

local function settimeouts(sock, connect, send, receive)
    native.socket_timeouts(handle(sock), time(connect) / 1000, time(send) / 1000, time(receive) / 1000)
    return true
end

local function settimeout(sock, value)
    return settimeouts(sock, value, value, value)
end

-- Text of what is sent: of tables all elements.
local function add(parts, count, value)
    local kind = type(value)
    if kind == "table" then
        for at = 1, #value do
            count = add(parts, count, value[at])
        end
        return count
    elseif kind ~= "string" and kind ~= "number" then
        error("bad argument #1 to 'send' (string, number or array table expected, got " .. kind .. ")", 3)
    end
    parts[count + 1] = tostring(value)
    return count + 1
end

local function send(sock, value)
    if type(value) ~= "string" then
        local parts = {}
        value = concat(parts, "", 1, add(parts, 0, value))
    end
    native.socket_send(handle(sock), value)
    return native.wait()
end

local function close(sock)
    if native.socket_close(handle(sock)) then
        return 1
    end
    return nil, "closed"
end

local function connect(sock, is_udp, host, port, options)
    if type(port) == "table" then
        port, options = nil, port
    end
    host = tostring(host)
    local number = tonumber(port)
    if port ~= nil and (not number or number < 0 or number > 65535 or floor(number) ~= number) then
        error("bad port number: " .. tostring(port), 3)
    end
    local pool = type(options) == "table" and options.pool or host .. ":" .. tostring(port)
    local err = native.socket_connect(handle(sock), host, number, tostring(pool), is_udp)
    if err then
        return nil, err
    end
    return native.wait()
end

local Tcp = {}
Tcp.__index = Tcp

Tcp.settimeout, Tcp.settimeouts, Tcp.send, Tcp.close = settimeout, settimeouts, send, close

function Tcp:connect(host, port, options)
    self.server_name = type(host) == "string" and sub(host, 1, 5) ~= "unix:" and host or nil
    return connect(self, false, host, port, options)
end

-- The result is true: sessions are resumed by the worker.
function Tcp:sslhandshake(_, name, verify)
    native.socket_secure(handle(self), tostring(name or rawget(self, "server_name") or ""), verify and true or false)
    return native.wait()
end

function Tcp:setclientcert(certificate)
    if certificate == nil then
        return true
    end
    return nil, "client certificates are not available to scripts"
end

function Tcp:setoption()
    return true
end

local function whole(value, name)
    local number = tonumber(value)
    if not number or number < 0 or floor(number) ~= number or number > 2 ^ 52 then
        error("bad argument #1 to '" .. name .. "' (bad number)", 3)
    end
    return number
end

-- Without the mark of `receiveuntil`.
local function received(text, err, partial)
    if text ~= nil then
        return text
    elseif partial == nil then
        return nil, err
    end
    return nil, err, partial
end

function Tcp:receive(pattern)
    local kind, size = "line", nil
    if pattern == "*a" then
        kind = "all"
    elseif type(pattern) == "number" or pattern ~= nil and tonumber(pattern) then
        kind, size = "size", whole(pattern, "receive")
    elseif pattern ~= nil and pattern ~= "*l" then
        error("bad argument #1 to 'receive' (bad pattern argument: " .. tostring(pattern) .. ")", 2)
    end
    native.socket_receive(handle(self), kind, size)
    return received(native.wait())
end

function Tcp:receiveany(most)
    most = whole(most, "receiveany")
    if most == 0 then
        error("bad argument #1 to 'receiveany' (bad max argument)", 2)
    end
    native.socket_receive(handle(self), "any", most)
    return received(native.wait())
end

function Tcp:receiveuntil(pattern, options)
    pattern = tostring(pattern)
    local inclusive = type(options) == "table" and options.inclusive and true or false
    local is_over = false
    return function(size)
        if is_over then
            is_over = false
            return nil, nil, nil
        end
        size = size ~= nil and whole(size, "receiveuntil") or nil
        if size == 0 then
            return ""
        end
        native.socket_until(handle(self), pattern, inclusive, size)
        local text, err, partial, reached = native.wait()
        is_over = size ~= nil and reached == true
        return received(text, err, partial)
    end
end

function Tcp:getreusedtimes()
    local times = native.socket_reused(handle(self))
    if times then
        return times
    end
    return nil, "closed"
end

-- The worker bounds its pools itself.
function Tcp:setkeepalive(idle)
    idle = tonumber(idle) or default
    local err = native.socket_keep(handle(self), (idle == 0 and longest or idle) / 1000)
    if err then
        return nil, err
    end
    return 1
end

local Udp = {}
Udp.__index = Udp

Udp.settimeout, Udp.send, Udp.close = settimeout, send, close

function Udp:setpeername(host, port)
    return connect(self, true, host, port)
end

function Udp:send(value)
    local sent, err = send(self, value)
    if sent then
        return 1
    end
    return nil, err
end

function Udp:receive(size)
    size = size == nil and 8192 or whole(size, "receive")
    native.socket_datagram(handle(self), size)
    return native.wait()
end

local function tcp()
    return setmetatable({ native.socket() }, Tcp)
end

ngx.socket = {
    tcp = tcp,
    stream = tcp,
    udp = function()
        return setmetatable({ native.socket() }, Udp)
    end,
    connect = function(...)
        local sock = tcp()
        local ok, err = sock:connect(...)
        if ok then
            return sock
        end
        return nil, err
    end,
}
