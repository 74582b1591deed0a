-- `apisix.core.log`.
local _, ngx, core = ...
local setmetatable, tostring, type = setmetatable, tostring, type

local levels = {
    stderr = ngx.STDERR,
    emerg = ngx.EMERG,
    alert = ngx.ALERT,
    crit = ngx.CRIT,
    error = ngx.ERR,
    warn = ngx.WARN,
    notice = ngx.NOTICE,
    info = ngx.INFO,
    debug = ngx.DEBUG,
}

local log = { version = 0.4 }
for name, level in next, levels do
    log[name] = function(...)
        return ngx.log(level, ...)
    end
end

function log.new(prefix)
    local prefixed = { version = log.version }
    for name, level in next, levels do
        prefixed[name] = function(...)
            return ngx.log(level, prefix, ...)
        end
    end
    return prefixed
end

-- Evaluates a value only if a line is written.
function log.delay_exec(call, ...)
    local args, count = { ... }, select("#", ...)
    return setmetatable({}, {
        __tostring = function()
            local value = call(unpack(args, 1, count))
            if type(value) == "table" then
                value = core.json.encode(value)
            end
            return tostring(value)
        end,
    })
end

core.log = log
package.loaded["apisix.core.log"] = log
