local _, native = ...
native = native("text")
local encode, decode, type = native.encode_base64url, native.decode_base64url, type

local _M = { version = "0.1.28", decode_base64mime = ngx.decode_base64mime }

function _M.encode_base64url(text)
    if type(text) ~= "string" then
        return nil, "must provide a string"
    end
    return encode(text)
end

function _M.decode_base64url(text)
    if type(text) ~= "string" then
        return nil, "must provide a string"
    end
    local decoded = decode(text)
    if not decoded then
        return nil, "invalid input"
    end
    return decoded
end

return _M
