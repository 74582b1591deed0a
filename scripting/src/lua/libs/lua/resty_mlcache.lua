-- resty.mlcache: values of a callback, kept in this machine and, as JSON, in a shared dictionary.
local lru, lock, cjson = require("resty.lrucache"), require("resty.lock"), require("cjson.safe")
local type, pcall, tostring, setmetatable, error = type, pcall, tostring, setmetatable, error

local _M = { _VERSION = "2.6.0" }
local meta = { __index = _M }
-- The mark of a value that is absent.
local absent = {}

function _M.new(name, shm, opts)
    if type(name) ~= "string" or type(shm) ~= "string" then
        error("name and shm must be strings", 2)
    end
    opts = opts or {}
    local dict = ngx.shared[shm]
    if not dict then
        return nil, "no such lua_shared_dict: " .. shm
    end
    return setmetatable({
        name = name,
        dict = dict,
        shm = opts.shm_locks or shm,
        near = opts.lru or lru.new(opts.lru_size or 100),
        ttl = opts.ttl or 30,
        neg_ttl = opts.neg_ttl or 5,
        serializer = opts.l1_serializer,
        lock_opts = opts.resty_lock_opts,
    }, meta)
end

local function keep_near(self, key, value, ttl, serializer)
    if value ~= nil and serializer then
        local ok, made, err = pcall(serializer, value)
        if not ok then
            return nil, "l1_serializer threw an error: " .. tostring(made)
        end
        if made == nil then
            return nil, err
        end
        value = made
    end
    self.near:set(key, value == nil and absent or value, ttl > 0 and ttl or nil)
    return value
end

-- Reads the shared dictionary: the entry, or nothing.
local function far(self, key)
    local text, err = self.dict:get(self.name .. key)
    if err then
        return nil, err
    end
    return text and cjson.decode(text)
end

local function store(self, key, value, ttl)
    local text, err = cjson.encode({ v = value, at = ngx.now(), ttl = ttl })
    if not text then
        return nil, "could not encode: " .. err
    end
    return self.dict:set(self.name .. key, text, ttl)
end

local function from_far(self, key, entry, serializer)
    local left = entry.ttl > 0 and entry.ttl - (ngx.now() - entry.at) or 0
    if entry.ttl > 0 and left <= 0 then
        left = 0.001
    end
    return keep_near(self, key, entry.v, left, serializer)
end

-- The value, an error, and the level that had it: 1 this machine, 2 the dictionary, 3 the callback.
function _M.get(self, key, opts, callback, ...)
    if type(key) ~= "string" then
        error("key must be a string", 2)
    end
    opts = opts or {}
    local value = self.near:get(key)
    if value == absent then
        return nil, nil, 1
    elseif value ~= nil then
        return value, nil, 1
    end
    local serializer = opts.l1_serializer or self.serializer
    local entry, err = far(self, key)
    if err then
        return nil, err
    end
    if entry then
        value, err = from_far(self, key, entry, serializer)
        return value, err, not err and 2 or nil
    end
    if callback == nil then
        return nil, nil, -1
    end
    local guard
    guard, err = lock:new(self.shm, opts.resty_lock_opts or self.lock_opts)
    if not guard then
        return nil, "could not create lock: " .. err
    end
    local waited
    waited, err = guard:lock("lock:" .. self.name .. key)
    if not waited and err ~= "timeout" then
        return nil, "could not acquire callback lock: " .. err
    end
    entry = far(self, key)
    if entry then
        guard:unlock()
        value, err = from_far(self, key, entry, serializer)
        return value, err, not err and 2 or nil
    end
    if not waited then
        return nil, "could not acquire callback lock: timeout"
    end
    local ok, made, failed, ttl = pcall(callback, ...)
    if not ok then
        guard:unlock()
        return nil, "callback threw an error: " .. tostring(made)
    end
    if failed then
        guard:unlock()
        return made, tostring(failed)
    end
    ttl = ttl or (made == nil and (opts.neg_ttl or self.neg_ttl) or (opts.ttl or self.ttl))
    if ttl >= 0 then
        ok, err = store(self, key, made, ttl)
    end
    guard:unlock()
    if not ok then
        return nil, err
    end
    if ttl < 0 then
        return made, nil, 3
    end
    value, err = keep_near(self, key, made, ttl, serializer)
    return value, err, not err and 3 or nil
end

-- The time left, an error, and the value in the dictionary.
function _M.peek(self, key)
    local entry, err = far(self, key)
    if not entry then
        return nil, err
    end
    return entry.ttl > 0 and entry.ttl - (ngx.now() - entry.at) or 0, nil, entry.v
end

function _M.set(self, key, opts, value)
    local ttl = opts and opts.ttl or self.ttl
    local ok, err = store(self, key, value, ttl)
    if not ok then
        return nil, err
    end
    keep_near(self, key, value, ttl, self.serializer)
    return true
end

function _M.delete(self, key)
    self.near:delete(key)
    self.dict:delete(self.name .. key)
    return true
end

function _M.purge(self, flush_expired)
    self.near:flush_all()
    self.dict:flush_all()
    if flush_expired then
        self.dict:flush_expired()
    end
    return true
end

-- Values of other workers' machines last until their time is over.
function _M.update()
    return true
end

return _M
