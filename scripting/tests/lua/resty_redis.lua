local redis = require("resty.redis")
local test = {}

local function fake(answer)
    local sock = { sent = {}, answer = answer, calls = {} }
    for name, result in pairs({
        connect = 1, close = 1, setkeepalive = 1, settimeout = true, settimeouts = true, sslhandshake = true,
        getreusedtimes = 2,
    }) do
        sock[name] = function(self, ...)
            self.calls[name] = { ... }
            return result
        end
    end
    function sock:send(data)
        self.sent[#self.sent + 1] = data
        return #data
    end
    function sock:receive(size)
        if size then
            if #self.answer < size then return nil, "timeout" end
            local text = self.answer:sub(1, size)
            self.answer = self.answer:sub(size + 1)
            return text
        end
        local line, rest = self.answer:match("^(.-)\r\n(.*)$")
        if not line then return nil, "timeout" end
        self.answer = rest
        return line
    end
    ngx.socket = { tcp = function() return sock end }
    local red = redis:new()
    red:connect("127.0.0.1", 6379)
    return red, sock
end

function test.commands()
    local red, sock = fake("+OK\r\n$3\r\ndog\r\n$-1\r\n:5\r\n-ERR wrong\r\n*2\r\n$1\r\na\r\n-E\r\n*-1\r\n")
    eq(red:set("animal", "dog"), "OK")
    eq(sock.sent[1], "*3\r\n$3\r\nset\r\n$6\r\nanimal\r\n$3\r\ndog\r\n")
    eq(red:get("animal"), "dog")
    eq(red:get("none"), ngx.null)
    eq(red:incrby("n", 5), 5)
    eq(sock.sent[4], "*3\r\n$6\r\nincrby\r\n$1\r\nn\r\n$1\r\n5\r\n")
    eq({ red:bad() }, { false, "ERR wrong" })
    eq(red:mget("a", "b"), { "a", { false, "E" } })
    eq(red:brpop("x", 0), ngx.null)
    local _, err = red:get("gone")
    eq(err, "timeout")
    assert(sock.calls.close)
end

function test.tables()
    local red, sock = fake("+OK\r\n+OK\r\n:1\r\n")
    red:hmset("h", { a = "1" })
    eq(sock.sent[1], "*4\r\n$5\r\nhmset\r\n$1\r\nh\r\n$1\r\na\r\n$1\r\n1\r\n")
    red:hmset("h", "a", "1", "b", "2")
    red:sadd("s", { "x", "y" })
    eq(sock.sent[3], "*4\r\n$4\r\nsadd\r\n$1\r\ns\r\n$1\r\nx\r\n$1\r\ny\r\n")
    eq(red:array_to_hash({ "a", 1, "b", 2 }), { a = 1, b = 2 })
    red:add_commands("x")
    red:register_module_prefix("bf")
end

function test.pipeline()
    local red, sock = fake("+OK\r\n-ERR x\r\n$1\r\nv\r\n")
    red:init_pipeline()
    red:set("a", 1)
    red:bad()
    red:get("a")
    eq(#sock.sent, 0)
    eq(red:commit_pipeline(), { "OK", { false, "ERR x" }, "v" })
    eq({ red:commit_pipeline() }, { nil, "no pipeline" })
    red:init_pipeline(3)
    red:cancel_pipeline()
    eq({ red:commit_pipeline() }, { nil, "no pipeline" })
end

function test.subscriptions()
    local red = fake("*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n"
        .. "*3\r\n$11\r\nunsubscribe\r\n$1\r\nc\r\n:0\r\n+OK\r\n")
    eq({ red:read_reply() }, { nil, "not subscribed" })
    eq(red:subscribe("c"), { "subscribe", "c", 1 })
    eq({ red:set_keepalive() }, { nil, "subscribed state" })
    eq({ red:get("x") }, { nil, "subscribed state" })
    eq(red:read_reply(), { "message", "c", "m" })
    eq(red:unsubscribe("c"), { "unsubscribe", "c", 0 })
    eq(red:set("a", 1), "OK")
end

function test.connection()
    local red, sock = fake("+OK\r\n")
    red:set_timeout(100)
    red:set_timeouts(1, 2, 3)
    eq(red:auth("secret"), "OK")
    eq(red:get_reused_times(), 2)
    eq(red:set_keepalive(1000, 10), 1)
    red:connect("unix:/x")
    red:connect("h", 1, { ssl = true, ssl_verify = true, server_name = "n" })
    eq(sock.calls.sslhandshake[2], "n")
    eq(red:close(), 1)
    for _, name in ipairs({ "get", "connect", "set_keepalive", "close", "set_timeout" }) do
        eq({ red[name]({}) }, { nil, "not initialized" })
    end
end

function test.replies_are_bounded()
    local _, err = fake("$99999999999\r\n"):get("x")
    eq(err, "reply is too long")
    _, err = fake("*99999999\r\n"):get("x")
    eq(err, "reply is too long")
    _, err = fake(("*1\r\n"):rep(100)):get("x")
    eq(err, "reply is too long")
    _, err = fake("?\r\n"):get("x")
    assert(err:find("unknown prefix", 1, true))
end

return test
