-- `apisix.core.log`.
local native, ngx, core = ...
local rawset, setmetatable, tostring, type = rawset, setmetatable, tostring, type
local concat = table.concat

local levels = {
    stderr = ngx.STDERR or 0,
    emerg = ngx.EMERG or 1,
    alert = ngx.ALERT or 2,
    crit = ngx.CRIT or 3,
    error = ngx.ERR or 4,
    warn = ngx.WARN or 5,
    notice = ngx.NOTICE or 6,
    info = ngx.INFO or 7,
    debug = ngx.DEBUG or 8,
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
            if type(value) == "table" and core.json then
                value = core.json.encode(value)
            end
            return tostring(value)
        end,
    })
end

core.log = log
package.loaded["apisix.core.log"] = log
