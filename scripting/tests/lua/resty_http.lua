local http = require("resty.http")
local test = {}

-- A socket that reads from a text and keeps the texts it gets.
local function fake(answer, last_error)
    local sock = { sent = {}, calls = {}, answer = answer }
    local function record(name, result)
        sock[name] = function(self, ...)
            self.calls[#self.calls + 1] = { name, ... }
            return result
        end
    end
    for name, result in pairs({
        connect = 1, close = 1, setkeepalive = 1, settimeout = true, settimeouts = true, sslhandshake = true,
        getreusedtimes = 0, setclientcert = true,
    }) do
        record(name, result)
    end
    function sock:send(data)
        self.sent[#self.sent + 1] = data
        return #data
    end
    function sock:receive(wanted)
        if type(wanted) == "number" then
            if #self.answer < wanted then
                local rest = self.answer
                self.answer = ""
                return nil, last_error or "closed", rest
            end
            local text = self.answer:sub(1, wanted)
            self.answer = self.answer:sub(wanted + 1)
            return text
        end
        local line, rest = self.answer:match("^(.-)\r\n(.*)$")
        if not line then
            return nil, last_error or "closed", self.answer
        end
        self.answer = rest
        return line
    end
    function sock:called(name)
        for _, call in ipairs(self.calls) do
            if call[1] == name then return call end
        end
    end
    ngx.socket = { tcp = function() return sock end }
    return sock
end

local function lines(sock)
    local head = table.concat(sock.sent)
    local found = {}
    for line in head:gmatch("([^\r\n]+)\r\n") do found[line] = true end
    return found, head
end

function test.parse_uri()
    local client = http.new(fake("") and nil)
    eq(client:parse_uri("http://a.com/x?y=1"), { "http", "a.com", 80, "/x?y=1", "" })
    eq(client:parse_uri("https://a.com:8443/x?y=1#z", false), { "https", "a.com", 8443, "/x", "y=1" })
    eq(client:parse_uri("https://a.com"), { "https", "a.com", 443, "/", "" })
    eq(client:parse_uri("http://[::1]:80/"), { "http", "[::1]", 80, "/", "" })
    eq(client:parse_uri("http://a.com?x=1", false), { "http", "a.com", 80, "/", "x=1" })
    eq({ client:parse_uri("ftp://x") }, { nil, "bad uri: ftp://x" })
    eq(client:parse_uri(nil), nil)
end

function test.request_uri()
    local sock = fake("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: 1\r\nX-A: 2\r\n\r\nhello")
    local client = http.new()
    client:set_timeout(1000)
    client:set_timeouts(1, 2, 3)
    local res = assert(client:request_uri("http://a.com:8080/p?q=1", {
        method = "POST", body = "data", headers = { ["Content-Type"] = "text/plain" },
    }))
    eq({ res.status, res.reason, res.body, res.headers["x_a"] }, { 200, "OK", "hello", { "1", "2" } })
    local sent, head = lines(sock)
    eq(sent["POST /p?q=1 HTTP/1.1"], true)
    eq(sent["Host: a.com:8080"], true)
    eq(sent["Content-Length: 4"], true)
    eq(sent["Content-Type: text/plain"], true)
    eq(head:sub(-8), "\r\n\r\ndata")
    eq(sock:called("connect")[2], "a.com")
    eq(sock:called("connect")[3], 8080)
    assert(sock:called("setkeepalive"))
    assert(sock:called("settimeouts"))
end

function test.https()
    local sock = fake("HTTP/1.1 204 No Content\r\n\r\n")
    local res = assert(http.new():request_uri("https://a.com/", { ssl_verify = false }))
    eq(res.status, 204)
    eq(res.has_body, false)
    eq(sock:called("sslhandshake")[3], "a.com")
    eq(sock:called("sslhandshake")[4], false)
    eq(sock:called("connect")[3], 443)
end

function test.chunked()
    fake("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nX-T: 1\r\n\r\n")
    local client = http.new()
    client:connect({ host = "a.com", port = 80, scheme = "http" })
    local res = client:request({ path = "/" })
    eq(res.has_body, true)
    eq(res.body_reader(3), "hel")
    eq(res:read_body(), "lo world")
    eq(res:read_trailers()["x-t"], "1")
    eq(client:set_keepalive(), 1)
    fake("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
    local _, err = http.new():request_uri("http://a.com/")
    eq(err, "unable to read chunksize")
end

function test.bodies_and_keepalive()
    local sock = fake("HTTP/1.0 200 OK\r\n\r\nuntil the end")
    local client = http.new()
    client:connect("a.com", 80)
    local res = client:request({ method = "get", path = "/x", query = { a = 1 } })
    eq(res:read_body(), "until the end")
    eq(lines(sock)["GET /x?a=1 HTTP/1.1"], true)
    eq(client:set_keepalive(), 2)
    assert(sock:called("close"))
    fake("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort")
    local _, err = http.new():request_uri("http://a.com/")
    eq(err, "closed")
    fake("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n")
    _, err = http.new():request_uri("http://a.com/")
    eq(err, "invalid Content-Length")
    fake("nonsense\r\n")
    _, err = http.new():request_uri("http://a.com/")
    eq(err, "malformed status line")
    fake("", "timeout")
    _, err = http.new():request_uri("http://a.com/")
    eq(err, "timeout")
    fake("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    eq(http.new():request_uri("http://a.com/").body, "")
    fake("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
    eq(http.new():request_uri("http://a.com/", { method = "HEAD" }).body, nil or "")
end

function test.request_bodies()
    local sock = fake("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    local parts = { "ab", "c" }
    assert(http.new():request_uri("http://a.com/", {
        method = "POST",
        headers = { ["Transfer-Encoding"] = "chunked" },
        body = function() return table.remove(parts, 1) end,
    }))
    eq(table.concat(sock.sent):match("\r\n\r\n(.*)$"), "2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")
    sock = fake("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    assert(http.new():request_uri("http://a.com/", { method = "PUT", body = { "a", "b" } }))
    eq(lines(sock)["Content-Length: 2"], true)
    fake("")
    local _, err = http.new():request_uri("http://a.com/", { method = "POST", body = function() end })
    assert(err:find("length or chunked encoding is not specified", 1, true))
end

function test.nothing_is_smuggled()
    for _, params in ipairs({
        { headers = { ["X-A"] = "a\r\nX-B: b" } }, { headers = { ["X A"] = "a" } }, { path = "/a b" },
        { method = "GET / HTTP/1.1\r\nX: y" }, { query = "a\r\nb" },
    }) do
        local sock = fake("HTTP/1.1 200 OK\r\n\r\n")
        local res, err = http.new():request_uri("http://a.com/", params)
        eq(res, nil)
        eq(#sock.sent, 0)
        assert(err:find("invalid", 1, true), err)
    end
end

function test.pipeline_and_others()
    fake("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\naHTTP/1.1 404 No\r\nContent-Length: 1\r\n\r\nb")
    local client = http.new()
    client:connect({ host = "a.com" })
    local responses = client:request_pipeline({ { path = "/a" }, { path = "/b" } })
    eq({ responses[1].status, responses[1]:read_body(), responses[2].status, responses[2]:read_body() },
        { 200, "a", 404, "b" })
    eq({ client:set_proxy_options({}) }, { nil, "proxies are not supported" })
    eq({ client:connect({}) }, { nil, "host is required" })
    eq(client:get_reused_times(), 0)
    eq(client:close(), 1)
    eq(client:ssl_handshake(), true)
    local sock = fake("abcdef")
    ngx.var = { http_content_length = "4" }
    local reader = client:get_client_body_reader(3, sock)
    eq({ reader(), reader(), reader() }, { "abc", "d" })
    local headers = require("resty.http_headers").new()
    headers["X-Y"] = 1
    eq(headers.x_y, 1)
end

return test
