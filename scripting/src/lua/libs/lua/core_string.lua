local error, type = error, type
local find, sub, byte = string.find, string.sub, string.byte
local decode_args, encode_args, gsub = ngx.decode_args, ngx.encode_args, ngx.re.gsub

local _M = setmetatable({ version = 0.1 }, { __index = string })

function _M.find(haystack, needle, from)
    return find(haystack, needle, from or 1, true)
end

local function check(s, other, name)
    if type(s) ~= "string" or type(other) ~= "string" then
        error("unexpected type: s:" .. type(s) .. ", " .. name .. ":" .. type(other), 3)
    end
end

function _M.has_prefix(s, prefix)
    check(s, prefix, "prefix")
    return sub(s, 1, #prefix) == prefix
end

function _M.has_suffix(s, suffix)
    check(s, suffix, "suffix")
    return #s >= #suffix and sub(s, #s - #suffix + 1) == suffix
end

function _M.rfind_char(s, ch, idx)
    local wanted = byte(ch)
    for at = idx or #s, 1, -1 do
        if byte(s, at) == wanted then
            return at
        end
    end
    return nil
end

-- Removes the indentation of a script, and the space after commas.
function _M.compress_script(s)
    s = gsub(s, "^\\s+", "", "mjo")
    return (gsub(s, ",\\s+", ",", "mjo"))
end

function _M.decode_args(args)
    return decode_args(args, 0)
end

function _M.encode_args(args)
    return encode_args(args)
end

return _M
