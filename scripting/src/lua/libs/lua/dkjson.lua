-- dkjson: texts with sorted keys.
local _, native = ...
native = native("json")

local _M = { version = "dkjson 2.5", null = ngx.null }
local plain = { sorted = true, escape_slash = false, sparse_convert = true, invalid_numbers = "null" }
local indented = {
    sorted = true, escape_slash = false, sparse_convert = true, invalid_numbers = "null", indent = "  ",
}
local encode, encode_indented, decode = native.encoder(plain), native.encoder(indented), native.decoder(plain)

function _M.encode(value, state)
    if state and state.indent then
        return encode_indented(value)
    end
    return encode(value)
end

function _M.decode(text, position, nullval)
    position = position or 1
    local value, err = decode(position > 1 and text:sub(position) or text)
    if err then
        return nil, position, err
    end
    if value == ngx.null then
        value = nullval
    end
    return value, #text + 1
end

function _M.quotestring(text)
    return encode(text)
end

return _M
