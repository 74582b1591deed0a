-- resty.radixtree: finds a route. Whole paths come first, then prefixes, the longest first.
local expr, ipmatcher = require("resty.expr.v1"), require("resty.ipmatcher")
local type, ipairs, pairs, setmetatable, sort = type, ipairs, pairs, setmetatable, table.sort
local sub, find, lower, upper = string.sub, string.find, string.lower, string.upper

local _M = { _VERSION = 2.9 }
local meta = { __index = _M }

local function list(value)
    if value == nil then
        return nil
    end
    return type(value) == "table" and value or { value }
end

-- Splits a path with `:name` and `*rest` into parts that are compared one by one.
local function with_parameters(path)
    local parts = {}
    for part in path:gmatch("[^/]+") do
        local kind, name = part:match("^([:*])(.*)$")
        if kind == ":" then
            parts[#parts + 1] = { name = name }
        elseif kind == "*" then
            parts[#parts + 1] = { name = name ~= "" and name or ":ext", rest = true }
        else
            parts[#parts + 1] = { text = part }
        end
    end
    return parts
end

local function match_parameters(parts, path, params)
    local at = 1
    for _, part in ipairs(parts) do
        if sub(path, at, at) ~= "/" then
            return false
        end
        at = at + 1
        if part.rest then
            params[part.name] = sub(path, at)
            return true
        end
        local stop = (find(path, "/", at, true) or #path + 1) - 1
        local text = sub(path, at, stop)
        if part.text then
            if part.text ~= text then
                return false
            end
        elseif text == "" then
            return false
        else
            params[part.name] = text
        end
        at = stop + 1
    end
    return at > #path
end

local function compile(route)
    local out = {
        metadata = route.metadata,
        handler = route.handler,
        filter_fun = route.filter_fun,
        priority = route.priority or 0,
    }
    local methods = list(route.methods)
    if methods and #methods > 0 then
        out.methods = {}
        for _, method in ipairs(methods) do
            out.methods[upper(method)] = true
        end
    end
    local hosts = list(route.hosts or route.host)
    if hosts and #hosts > 0 then
        out.hosts = {}
        for at, host in ipairs(hosts) do
            host = lower(host)
            local suffix = sub(host, 1, 1) == "*" and sub(host, 2)
            out.hosts[at] = { text = suffix or host, is_suffix = suffix and true or false, written = host }
        end
    end
    local addresses = list(route.remote_addrs or route.remote_addr)
    if addresses and #addresses > 0 then
        local err
        out.addresses, err = ipmatcher.new(addresses)
        if not out.addresses then
            return nil, err
        end
    end
    if route.vars then
        local err
        out.vars, err = expr.new(route.vars)
        if not out.vars then
            return nil, "failed to handle expression: " .. err
        end
    end
    return out
end

function _M.add_route(self, path, route)
    if type(path) ~= "string" then
        return nil, "invalid path"
    end
    self.count = self.count + 1
    local entry = { path = path, route = route, number = self.count }
    local special = find(path, "[:*]")
    local bucket
    if not special then
        bucket = self.exact[path]
        if not bucket then
            bucket = {}
            self.exact[path] = bucket
        end
    else
        -- A prefix ends with `*`; parameters are compared after the text before the first of them.
        local is_prefix = sub(path, special) == "*"
        if not is_prefix then
            entry.parts = with_parameters(path)
        end
        local prefix = sub(path, 1, special - 1)
        bucket = self.prefixes[prefix]
        if not bucket then
            bucket = {}
            self.prefixes[prefix] = bucket
            self.lengths[#self.lengths + 1] = #prefix
            sort(self.lengths, function(a, b) return a > b end)
        end
    end
    bucket[#bucket + 1] = entry
    sort(bucket, function(a, b)
        if a.route.priority ~= b.route.priority then
            return a.route.priority > b.route.priority
        end
        return a.number < b.number
    end)
    return true
end

function _M.new(routes, opts)
    if not routes then
        return nil, "missing argument route"
    end
    local self = setmetatable({ exact = {}, prefixes = {}, lengths = {}, count = 0, opts = opts or {} }, meta)
    for _, route in ipairs(routes) do
        local compiled, err = compile(route)
        if not compiled then
            return nil, err
        end
        for _, path in ipairs(list(route.paths or route.path) or {}) do
            local ok
            ok, err = self:add_route(path, compiled)
            if not ok then
                return nil, err
            end
        end
    end
    return self
end

local function fits_host(hosts, host)
    if not host then
        return nil
    end
    host = lower(host)
    for _, known in ipairs(hosts) do
        if known.is_suffix then
            if #host > #known.text and sub(host, -#known.text) == known.text then
                return known.written
            end
        elseif known.text == host then
            return known.written
        end
    end
end

local function fits(entry, path, opts, args)
    local route = entry.route
    local params = {}
    if route.methods and not (opts.method and route.methods[upper(opts.method)]) then
        return false
    end
    local host
    if route.hosts then
        host = fits_host(route.hosts, opts.host)
        if not host then
            return false
        end
    end
    if route.addresses and not (opts.remote_addr and route.addresses:match(opts.remote_addr)) then
        return false
    end
    if entry.parts then
        if not match_parameters(entry.parts, path, params) then
            return false
        end
    end
    local vars = opts.vars or ngx.var
    if route.vars and not route.vars:eval(vars) then
        return false
    end
    if route.filter_fun and not route.filter_fun(vars, opts, args and unpack(args, 1, args.n)) then
        return false
    end
    local matched = opts.matched
    if matched then
        for name, value in pairs(params) do
            matched[name] = value
        end
        if not entry.parts and sub(entry.path, -1) == "*" then
            matched[":ext"] = sub(path, #entry.path)
        end
        matched._path, matched._host = entry.path, host
        matched._method = route.methods and opts.method or nil
    end
    return true
end

local function lookup(self, path, opts, args)
    opts = opts or {}
    for _, entry in ipairs(self.exact[path] or {}) do
        if fits(entry, path, opts, args) then
            return entry.route
        end
    end
    local last
    for _, length in ipairs(self.lengths) do
        if length <= #path and length ~= last then
            last = length
            for _, entry in ipairs(self.prefixes[sub(path, 1, length)] or {}) do
                if fits(entry, path, opts, args) then
                    return entry.route
                end
            end
        end
    end
end

function _M.match(self, path, opts)
    if type(path) ~= "string" then
        error("invalid argument path", 2)
    end
    local route = lookup(self, path, opts)
    return route and route.metadata or nil
end

function _M.dispatch(self, path, opts, ...)
    if type(path) ~= "string" then
        error("invalid argument path", 2)
    end
    local args = { n = select("#", ...), ... }
    local route = lookup(self, path, opts, args)
    if not route then
        return nil
    end
    if not route.handler then
        return nil, "missing handler"
    end
    route.handler(...)
    return true
end

return _M
