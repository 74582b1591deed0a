local _, native = ...
local random, pcall = native("digest").random, pcall
local _M = { _VERSION = "0.14" }

-- All bytes are cryptographically strong; `nil` for an invalid length.
function _M.bytes(length)
    local ok, bytes = pcall(random, length)
    return ok and bytes or nil
end

function _M.number(min, max)
    return math.random(min, max)
end

local letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
function _M.token(length, chars)
    chars = chars or letters
    local parts = {}
    for at, b in ipairs({ random(length):byte(1, -1) }) do
        local index = b % #chars + 1
        parts[at] = chars:sub(index, index)
    end
    return table.concat(parts)
end

return _M
