-- rapidjson: the functions that APISIX plugins use.
local _, native = ...
native = native("json")
local setmetatable = setmetatable
local settings = { escape_slash = false }
local encode, decode = native.encoder(settings), native.decoder(settings)
local encode_sorted = native.encoder({ escape_slash = false, sorted = true })

local _M = { null = ngx.null }

function _M.encode(value, opts)
    if opts and opts.pretty then
        return native.encoder({ escape_slash = false, sorted = opts.sort_keys, indent = "    " })(value)
    end
    if opts and opts.sort_keys then
        return encode_sorted(value)
    end
    return encode(value)
end

function _M.decode(text)
    return decode(text)
end

function _M.array(tab)
    return setmetatable(tab or {}, native.array_mt)
end

function _M.object(tab)
    return tab or {}
end

return _M
