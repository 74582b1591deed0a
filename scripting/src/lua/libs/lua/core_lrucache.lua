-- Caches of made objects: an object lasts while its version stays the same.
local new_cache = require("resty.lrucache").new

local function new(opts)
    opts = opts or {}
    local is_plugin = opts.type == "plugin"
    local count = opts.count or (is_plugin and 8 or 1024)
    local ttl = opts.ttl or (is_plugin and 300 or 3600)
    local objects = new_cache(count)
    local failures = opts.neg_ttl and opts.neg_count and new_cache(opts.neg_count)
    local making = {}

    local function cached(key, version)
        local found, stale = objects:get(key)
        if found and found.ver == version then
            return found
        end
        if stale and stale.ver == version and not opts.invalid_stale then
            objects:set(key, stale, ttl)
            return stale
        end
    end

    return function(key, version, create, ...)
        if failures then
            local failed = failures:get(key)
            if failed and failed.ver == version then
                return nil, failed.err
            end
        end
        local found = cached(key, version)
        if found then
            return found.val
        end
        if opts.serial_creating then
            -- One machine runs on one worker: waiting for another coroutine needs no lock between workers.
            local waited = 0
            while making[key] and waited < 5 do
                ngx.sleep(0.005)
                waited = waited + 0.005
            end
            found = cached(key, version)
            if found then
                return found.val
            end
        end
        making[key] = true
        local ok, value, err = pcall(create, ...)
        making[key] = nil
        if not ok then
            error(value, 0)
        end
        if value ~= nil then
            objects:set(key, { val = value, ver = version }, ttl)
        elseif failures then
            failures:set(key, { err = err, ver = version }, opts.neg_ttl)
        end
        return value, err
    end
end

local _M = { version = 0.1, new = new, global = new() }

-- The form of earlier versions: a cache for each plugin.
local of_plugins = {}
function _M.plugin(name, key, version, create, ...)
    local cache = of_plugins[name]
    if not cache then
        cache = new({ type = "plugin" })
        of_plugins[name] = cache
    end
    return cache(key, version, create, ...)
end

local function key_of(ctx, extra)
    local key = ctx.conf_type .. "#" .. ctx.conf_id
    if extra then
        key = key .. "#" .. extra
    end
    return key, ctx.conf_version
end

function _M.plugin_ctx(cache, ctx, extra, create, ...)
    local key, version = key_of(ctx, extra)
    return cache(key, version, create, ...)
end

function _M.plugin_ctx_id(ctx, extra)
    local key, version = key_of(ctx, extra)
    return key .. "#" .. version
end

-- Stale objects are made again when they are used.
function _M.init_worker() end

return _M
