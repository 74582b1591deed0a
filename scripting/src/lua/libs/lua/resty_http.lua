-- resty.http: an HTTP/1.1 client over ngx.socket.tcp.
local type, tonumber, tostring, pairs, ipairs, setmetatable = type, tonumber, tostring, pairs, ipairs, setmetatable
local find, lower, upper, sub, gsub, match, format = string.find, string.lower, string.upper, string.sub, string.gsub,
    string.match, string.format
local concat, min = table.concat, math.min

local _M = { _VERSION = "0.17.2" }
local meta = { __index = _M }
_M._USER_AGENT = "lua-resty-http/" .. _M._VERSION .. " (Lua) sluice"

local header_table, bodies = require("resty.http_headers").new, require("sluice.http_bodies")
local one, receive_headers = bodies.one, bodies.headers
local read_chunks, read_length, read_to_end = bodies.chunks, bodies.length, bodies.to_end

-- A body that is read whole is at most as long as this.
local longest_body = 64 * 1024 * 1024

function _M.new()
    local sock, err = ngx.socket.tcp()
    if not sock then
        return nil, err
    end
    return setmetatable({ sock = sock, keepalive = true }, meta)
end

function _M.debug() end

function _M.set_timeout(self, timeout)
    return self.sock:settimeout(timeout)
end

function _M.set_timeouts(self, connect, send, read)
    return self.sock:settimeouts(connect, send, read)
end

function _M.parse_uri(_, uri, query_in_path)
    if query_in_path == nil then
        query_in_path = true
    end
    local scheme, rest = match(uri or "", "^(https?)://(.+)$")
    if not scheme then
        if match(uri or "", "^//") then
            scheme, rest = ngx.var and ngx.var.scheme or "http", sub(uri, 3)
        else
            return nil, "bad uri: " .. tostring(uri)
        end
    end
    local authority, path = match(rest, "^([^/?#]+)(.*)$")
    if not authority or find(authority, "[%c%s]") then
        return nil, "bad uri: " .. uri
    end
    authority = match(authority, "@(.*)$") or authority
    local host, port = match(authority, "^(%[[^%]]*%]):?(%d*)$")
    if not host then
        host, port = match(authority, "^([^:]+):?(%d*)$")
    end
    if not host then
        return nil, "bad uri: " .. uri
    end
    port = tonumber(port) or (scheme == "https" and 443 or 80)
    path = gsub(path, "#.*$", "")
    local query = match(path, "%?(.*)$") or ""
    path = match(path, "^([^?]*)")
    if path == "" then
        path = "/"
    end
    if query_in_path and query ~= "" then
        path = path .. "?" .. query
        query = ""
    end
    return { scheme, host, port, path, query }
end

local function handshake(self, opts)
    if opts.scheme ~= "https" then
        return true
    end
    local verify = opts.ssl_verify
    if verify == nil then
        verify = true
    end
    if opts.ssl_client_cert and opts.ssl_client_priv_key then
        local ok, err = self.sock:setclientcert(opts.ssl_client_cert, opts.ssl_client_priv_key)
        if not ok then
            return nil, err
        end
    end
    local session, err = self.sock:sslhandshake(opts.ssl_reused_session, opts.ssl_server_name or opts.host, verify,
        opts.ssl_send_status_req)
    if not session then
        return nil, err
    end
    self.ssl_session = session
    return true
end

-- Connects, and shakes hands for https. The older form is connect(host, port, options).
function _M.connect(self, first, port, opts)
    if not self.sock then
        return nil, "not initialized"
    end
    if type(first) ~= "table" then
        self.host, self.port, self.scheme = first, port, "http"
        if type(port) == "number" then
            return self.sock:connect(first, port, opts or {})
        end
        self.port = nil
        return self.sock:connect(first, port)
    end
    opts = first
    local host = opts.host
    if not host then
        return nil, "host is required"
    end
    local is_unix = sub(host, 1, 5) == "unix:"
    port = opts.port or (opts.scheme == "https" and 443 or 80)
    self.host, self.port, self.scheme = host, not is_unix and port or nil, opts.scheme or "http"
    local proxy = opts.proxy_opts and opts.proxy_opts[self.scheme .. "_proxy"]
    if proxy then
        return nil, "proxies are not supported"
    end
    local options = {
        pool = opts.pool or format("%s:%s:%s:%s:%s", self.scheme, host, tostring(port),
            tostring(opts.ssl_server_name or host), tostring(opts.ssl_verify ~= false)),
        pool_size = opts.pool_size,
        backlog = opts.backlog,
    }
    local ok, err
    if is_unix then
        ok, err = self.sock:connect(host, options)
    else
        ok, err = self.sock:connect(host, port, options)
    end
    if not ok then
        return nil, err
    end
    local reused = self.sock:getreusedtimes()
    if not reused or reused == 0 then
        ok, err = handshake(self, opts)
        if not ok then
            self:close()
            return nil, err
        end
    end
    return true, nil, self.ssl_session
end

function _M.ssl_handshake(self, ...)
    self.scheme = "https"
    return self.sock:sslhandshake(...)
end

function _M.set_keepalive(self, ...)
    if self.keepalive then
        return self.sock:setkeepalive(...)
    end
    -- The server closes this connection, or its body was not read.
    local ok, err = self.sock:close()
    if not ok then
        return ok, err
    end
    return 2, "connection must be closed"
end

function _M.get_reused_times(self)
    return self.sock:getreusedtimes()
end

function _M.close(self)
    return self.sock:close()
end

function _M.get_client_body_reader(_, chunk_size, sock)
    local length = tonumber(ngx.var.http_content_length)
    if not sock then
        local err
        sock, err = ngx.req.socket()
        if not sock then
            return nil, err
        end
    end
    local left = length or 0
    return function(max)
        if left <= 0 then
            return nil
        end
        local text, err = sock:receive(min(max or chunk_size or 65536, left))
        if not text then
            return nil, err
        end
        left = left - #text
        return text
    end
end

local function clean(text)
    text = tostring(text)
    if find(text, "[\r\n%z]") then
        return nil
    end
    return text
end

local has_body = { POST = true, PUT = true, PATCH = true }

local function send_head(self, params, headers)
    local path = params.path or "/"
    if params.query and params.query ~= "" then
        local query = type(params.query) == "table" and ngx.encode_args(params.query) or params.query
        path = path .. (sub(query, 1, 1) == "?" and "" or "?") .. query
    end
    local lines = { upper(params.method) .. " " .. path .. " HTTP/" .. (params.version == 1 and "1.0" or "1.1") }
    if find(lines[1], "[%c]") or find(path, " ", 1, true) then
        return nil, "invalid method or path"
    end
    for name, values in pairs(headers) do
        for _, value in ipairs(type(values) == "table" and values or { values }) do
            local text = clean(value)
            if type(name) ~= "string" or not match(name, "^[%w!#$&'*+.^_`|~-]+$") or not text then
                return nil, "invalid header " .. tostring(name)
            end
            lines[#lines + 1] = name .. ": " .. text
        end
    end
    lines[#lines + 1] = "\r\n"
    return self.sock:send(concat(lines, "\r\n"))
end

local function send_body(self, body, is_chunked)
    if type(body) == "table" then
        body = concat(body)
    end
    if type(body) ~= "function" then
        return self.sock:send(body)
    end
    while true do
        local part, err = body()
        if err then
            return nil, err
        end
        if part == nil or part == "" and not is_chunked then
            break
        end
        local sent
        if is_chunked and part ~= "" then
            part = format("%x\r\n", #part) .. part .. "\r\n"
        end
        if part ~= "" then
            sent, err = self.sock:send(part)
            if not sent then
                return nil, err
            end
        end
    end
    if is_chunked then
        return self.sock:send("0\r\n\r\n")
    end
    return true
end

function _M.send_request(self, params)
    params.method = params.method or "GET"
    local headers = header_table()
    for name, value in pairs(params.headers or {}) do
        headers[name] = value
    end
    local body = params.body
    local encoding = headers["Transfer-Encoding"]
    local is_chunked = type(body) == "function" and encoding ~= nil
        and find(lower(tostring(encoding)), "chunked", 1, true) ~= nil
    if type(body) == "function" and not is_chunked and not headers["Content-Length"] then
        return nil, "Request body is a function but a length or chunked encoding is not specified"
    end
    if not headers["Content-Length"] and not encoding then
        local length
        if type(body) == "string" then
            length = #body
        elseif type(body) == "table" then
            length = #concat(body)
        elseif body == nil and has_body[upper(params.method)] then
            length = 0
        end
        headers["Content-Length"] = length
    end
    if not headers["Host"] and self.host then
        local host = sub(self.host, 1, 5) == "unix:" and "localhost" or self.host
        local standard = self.scheme == "https" and 443 or 80
        headers["Host"] = (self.port and self.port ~= standard) and host .. ":" .. self.port or host
    end
    headers["User-Agent"] = headers["User-Agent"] or _M._USER_AGENT
    local sent, err = send_head(self, params, headers)
    if not sent then
        return nil, err
    end
    if body and lower(tostring(headers["Expect"])) ~= "100-continue" then
        sent, err = send_body(self, body, is_chunked)
        if not sent then
            return nil, err
        end
    end
    return true
end

local function receive_status(self)
    local line, err = self.sock:receive("*l")
    if not line then
        return nil, err
    end
    local version, status, reason = match(line, "^HTTP/(%d%.%d) (%d%d%d) ?(.*)$")
    if not version then
        return nil, "malformed status line"
    end
    return tonumber(status), tonumber(version), reason
end

local function no_body_reader()
    return nil
end

local function read_body(res)
    local reader = res.body_reader
    if not reader then
        return nil, "no body to be read"
    end
    local parts, size = {}, 0
    while true do
        local part, err = reader()
        if err then
            return nil, err, concat(parts)
        end
        if not part then
            return concat(parts)
        end
        size = size + #part
        if size > longest_body then
            return nil, "body is longer than " .. longest_body .. " bytes", concat(parts)
        end
        parts[#parts + 1] = part
    end
end

function _M.read_response(self, params)
    local status, version, reason
    repeat
        status, version, reason = receive_status(self)
        if not status then
            self.keepalive = false
            return nil, version
        end
        if status == 100 then
            local headers, err = receive_headers(self)
            if not headers then
                return nil, err
            end
            if params.body and params.headers and lower(tostring(params.headers["Expect"])) == "100-continue" then
                local sent
                sent, err = send_body(self, params.body, false)
                if not sent then
                    return nil, err
                end
            end
        end
    until status ~= 100
    local headers, err = receive_headers(self)
    if not headers then
        self.keepalive = false
        return nil, err
    end
    local connection = lower(tostring(one(headers["Connection"]) or ""))
    self.keepalive = version >= 1.1 and not find(connection, "close", 1, true)
        or version < 1.1 and find(connection, "keep-alive", 1, true) ~= nil

    local reader, exists = no_body_reader, false
    local method = upper(params.method or "GET")
    if method ~= "HEAD" and status ~= 204 and status ~= 304 and not (method == "CONNECT" and status < 300) then
        exists = true
        local encoding = headers["Transfer-Encoding"]
        local length = headers["Content-Length"]
        if encoding and find(lower(tostring(one(encoding))), "chunked", 1, true) then
            reader = read_chunks(self, params.chunk_size)
        elseif length then
            length = tonumber(one(length))
            if not length or length < 0 or length % 1 ~= 0 then
                self.keepalive = false
                return nil, "invalid Content-Length"
            end
            reader = read_length(self, length, params.chunk_size)
        else
            reader = read_to_end(self, params.chunk_size)
        end
    end
    return {
        status = status,
        reason = reason,
        headers = headers,
        has_body = exists,
        body_reader = reader,
        read_body = read_body,
        trailer_headers = nil,
        read_trailers = function()
            return self.trailers
        end,
    }
end

function _M.request(self, params)
    local sent, err = self:send_request(params)
    if not sent then
        return nil, err
    end
    return self:read_response(params)
end

-- A whole request: connects, reads the body, keeps the connection.
function _M.request_uri(self, uri, params)
    local request = {}
    for name, value in pairs(params or {}) do
        request[name] = value
    end
    local parts, err = self:parse_uri(uri, false)
    if not parts then
        return nil, err
    end
    local scheme, host, port, path, query = parts[1], parts[2], parts[3], parts[4], parts[5]
    request.path = request.path or path
    request.query = request.query or query
    request.scheme, request.host, request.port = request.scheme or scheme, request.host or host, request.port or port
    request.ssl_server_name = request.ssl_server_name or (request.headers and request.headers.Host
        and match(request.headers.Host, "^([^:]+)")) or request.host
    local ok
    ok, err = self:connect(request)
    if not ok then
        return nil, err
    end
    local res
    res, err = self:request(request)
    if not res then
        self:close()
        return nil, err
    end
    local body
    body, err = res:read_body()
    if err then
        self:close()
        return nil, err
    end
    res.body = body
    if params and params.keepalive == false then
        self:close()
    else
        self:set_keepalive(params and params.keepalive_timeout, params and params.keepalive_pool)
    end
    return res
end

-- Sends several requests at once; their responses are read in order.
function _M.request_pipeline(self, requests)
    for _, params in ipairs(requests) do
        if params.headers and params.headers["Expect"] then
            return nil, "Cannot pipeline request specifying Expect: 100-continue"
        end
        local ok, err = self:send_request(params)
        if not ok then
            return nil, err
        end
    end
    local responses = {}
    for at, params in ipairs(requests) do
        local res, err = self:read_response(params)
        if not res then
            return nil, err
        end
        -- The next head follows this body.
        res.body = read_body(res)
        res.read_body = function()
            return res.body
        end
        responses[at] = res
    end
    return responses
end

function _M.set_proxy_options()
    return nil, "proxies are not supported"
end

return _M
