-- dkjson: texts with sorted keys.
local _, native = ...
native = native("json")
local raw_encode, raw_decode = native.encode, native.decode

local _M = { version = "dkjson 2.5", null = ngx.null }
local plain = { sorted = true, escape_slash = false, sparse_convert = true, invalid_numbers = "null" }
local indented = {
    sorted = true, escape_slash = false, sparse_convert = true, invalid_numbers = "null", indent = "  ",
}

function _M.encode(value, state)
    return raw_encode(value, state and state.indent and indented or plain)
end

function _M.decode(text, position, nullval)
    position = position or 1
    local value, err = raw_decode(position > 1 and text:sub(position) or text, plain)
    if err then
        return nil, position, err
    end
    if value == ngx.null then
        value = nullval
    end
    return value, #text + 1
end

function _M.quotestring(text)
    return raw_encode(text, plain)
end

return _M
