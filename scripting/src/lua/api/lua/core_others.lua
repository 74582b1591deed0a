-- The rest of `apisix.core`: resolver, timers, `os`, and modules that plugins load by name.
local native, ngx, core = ...
local error, getfenv, pcall, setmetatable, tostring, type = error, getfenv, pcall, setmetatable, tostring, type
local loaded = package.loaded

local function module(name, value)
    loaded[name] = value
    return value
end

core.resolver = module("apisix.core.resolver", {
    parse_domain = function(host)
        native.resolve(host, 5)
        local address, err = native.wait()
        if not address then
            return nil, "failed to parse domain: " .. tostring(host) .. ", error: " .. tostring(err)
        end
        return address
    end,
    -- The resolver of the gateway returns one address at a time.
    parse_domain_all = function(host)
        local address, err = core.resolver.parse_domain(host)
        if not address then
            return nil, err
        end
        return { { address = address } }
    end,
})

core.timer = module("apisix.core.timer", {
    new = function(name, call, options)
        options = options or {}
        local timer = { name = name, check_interval = options.check_interval or 1 }
        local function run()
            local ok, err = pcall(call, timer)
            if not ok then
                core.log.error("failed to run the timer: ", name, " err: ", err)
            end
        end
        local ok, err = ngx.timer.every(timer.check_interval, run)
        if not ok then
            return nil, err
        end
        return timer
    end,
})

-- Plugins look for optional settings there.
function os.getenv()
    return nil
end

core.os = module("apisix.core.os", {
    setenv = function()
        return false, "scripts have no environment variables"
    end,
    usleep = function(time)
        ngx.sleep(time / 1000000)
    end,
    waitpid = function()
        return nil, "scripts have no processes"
    end,
})

-- A part of APISIX's own runtime.
module("resty.apisix.client", {
    set_client_max_body_size = function(size)
        native.set_max_body(size)
        return true
    end,
})

core.io = module("apisix.core.io", {
    get_file = function(name)
        return nil, "failed to open file: " .. tostring(name) .. ", scripts have no files"
    end,
})

core.sleep = ngx.sleep
core.empty_tab = core.empty_tab or setmetatable({}, {
    __newindex = function()
        error("core.empty_tab cannot be changed", 2)
    end,
})

-- Settings of plugins in files, which the host sets.
native.attrs, native.metadata = {}, {}

-- Scripts see only `plugin_attr` of `config.yaml`; other settings may hold keys.
local function local_conf()
    return { plugin_attr = native.attrs }
end

core.config = core.config or { type = "sluice", local_conf = local_conf }
core.config_util = core.config_util or {}
module("apisix.core.config_local", { local_conf = local_conf })

-- Each name has a timer of its own, on each worker: there is no privileged process. A timer never ends, so a name that is
-- registered again uses the timer that it has.
local timers, is_started, interval = {}, {}, 1

local function start(name)
    local ok, err = ngx.timer.every(interval, function(premature)
        local current = timers[name]
        if current and not premature then
            current()
        end
    end)
    if ok then
        is_started[name] = true
    else
        timers[name] = nil
        core.log.error("lua timer not started name=", name, ' error="', err, '"')
    end
end

module("apisix.timers", {
    init_worker = function() end,
    register_timer = function(name, call)
        timers[name] = call
        if not is_started[name] then
            start(name)
        end
    end,
    unregister_timer = function(name)
        -- A previous version may be destroyed after the next one has registered the name: that function stays.
        local call, globals = timers[name], native.destroyed
        if not globals or type(call) ~= "function" or getfenv(call) == globals then
            timers[name] = nil
        end
    end,
    check_interval = function()
        return interval
    end,
})

-- No event of the gateway reaches scripts, and scripts share no state through events.
core.event = module("apisix.core.event", {
    CONST = { BUILD_ROUTER = 1, CONSUMER = 2 },
    push = function() end,
    register = function() end,
    unregister = function() end,
})

core.env = module("apisix.core.env", {
    PREFIX = "$env://",
    init = function() end,
    get = function()
        return nil
    end,
    fetch_by_uri = function()
        return nil, "scripts have no environment variables"
    end,
})

-- References to secrets in settings are resolved before scripts get them.
module("apisix.secret", {
    fetch_secrets = function(settings)
        return settings
    end,
    fetch_by_uri = function()
        return nil, "secrets are resolved with the configuration"
    end,
    is_secret_ref = function()
        return false
    end,
    has_secret_ref = function()
        return false
    end,
})

module("apisix.constants", {
    HTTP_ETCD_DIRECTORY = {},
    STREAM_ETCD_DIRECTORY = {},
    CONSUMER_HEADERS = {},
})

module("apisix.plugin", {
    -- Settings never change within an exchange.
    conf_version = function()
        return "0"
    end,
    set_plugins_meta_parent = function() end,
    plugin_attr = function(name)
        return native.attrs[name]
    end,
    plugin_metadata = function(name)
        local value = native.metadata[name]
        return value and { value = value }
    end,
})
