-- rapidjson: the functions that APISIX plugins use.
local _, native = ...
native = native("json")
local encode, decode, setmetatable = native.encode, native.decode, setmetatable
local settings = { escape_slash = false }
local sorted = { escape_slash = false, sorted = true }

local _M = { null = ngx.null }

function _M.encode(value, opts)
    if opts and opts.pretty then
        return encode(value, { escape_slash = false, sorted = opts.sort_keys, indent = "    " })
    end
    return encode(value, opts and opts.sort_keys and sorted or settings)
end

function _M.decode(text)
    return decode(text, settings)
end

function _M.array(tab)
    return setmetatable(tab or {}, native.array_mt)
end

function _M.object(tab)
    return tab or {}
end

return _M
