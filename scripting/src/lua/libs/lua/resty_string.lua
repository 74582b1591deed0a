local _, native = ...
native = native("text")

local _M = { _VERSION = "0.14", to_hex = native.to_hex }

-- The number that a text begins with, 0 without one.
function _M.atoi(text)
    local digits = text:match("^%s*([+-]?%d+)")
    return digits and tonumber(digits) or 0
end

return _M
