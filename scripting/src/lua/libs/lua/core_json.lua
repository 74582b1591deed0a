local cjson = require("cjson.safe")
local encode, decode, null, array_mt = cjson.encode, cjson.decode, cjson.null, cjson.array_mt
local pairs, type, tostring, setmetatable = pairs, type, tostring, setmetatable
local tojson = require("dkjson").encode

local _M = {
    version = 0.1,
    array_mt = array_mt,
    null = null,
    stably_encode = tojson,
    canonical_encode = tojson,
}

local function strip_nulls(tab)
    for key, value in pairs(tab) do
        if value == null then
            tab[key] = nil
        elseif type(value) == "table" then
            strip_nulls(value)
        end
    end
    return tab
end
_M.strip_nulls = strip_nulls

function _M.decode(text, opts)
    local value, err = decode(text)
    if opts and opts.null_as_nil then
        if value == null then
            return nil, err
        end
        if type(value) == "table" then
            strip_nulls(value)
        end
    end
    return value, err
end

-- A copy in which functions and tables that were met before are texts.
local function plain(value, seen)
    local kind = type(value)
    if kind == "table" then
        if seen[value] then
            return tostring(value)
        end
        seen[value] = true
        local copy = {}
        for key, inner in pairs(value) do
            if type(key) ~= "string" and type(key) ~= "number" then
                key = tostring(key)
            end
            copy[key] = plain(inner, seen)
        end
        return copy
    end
    if kind == "function" or kind == "userdata" or kind == "thread" then
        return tostring(value)
    end
    return value
end

function _M.encode(value, force)
    if force then
        value = plain(value, {})
    end
    return encode(value)
end
local core_encode = _M.encode

-- Encodes only when the text is wanted, which a log level may prevent.
local delayed = {
    __tostring = function(self)
        local text, err = core_encode(self.data, self.force)
        if not text then
            ngx.log(ngx.WARN, "failed to encode: ", err, " force: ", tostring(self.force))
            return ""
        end
        return text
    end,
}

function _M.delay_encode(value, force)
    return setmetatable({ data = value, force = force or false }, delayed)
end

return _M
