-- `pl.types`: tests of values, with the results of Penlight.
local getmetatable, math, next, pairs, type = getmetatable, math, next, pairs, type

local _M = {}

function _M.is_callable(value)
    if type(value) == "function" then
        return true
    end
    local meta = getmetatable(value)
    return type(meta) == "table" and meta.__call ~= nil
end

function _M.is_type(value, kind)
    if type(kind) == "string" then
        return type(value) == kind
    end
    return getmetatable(value) == kind
end

function _M.type(value)
    local kind = type(value)
    if kind == "table" or kind == "userdata" then
        local meta = getmetatable(value)
        return type(meta) == "table" and meta._name or kind
    end
    return kind
end

function _M.is_integer(value)
    return type(value) == "number" and math.floor(value) == value
end

-- Whether a value is nil, an empty table or an empty text; with `blanks` also a text of spaces.
function _M.is_empty(value, blanks)
    if value == nil then
        return true
    elseif type(value) == "table" then
        return next(value) == nil
    elseif type(value) == "string" then
        return value == "" or (blanks and value:find("^%s+$") ~= nil) or false
    end
    return true
end

local function with(name)
    return function(value)
        if type(value) == "table" then
            return true
        end
        local meta = getmetatable(value)
        return type(meta) == "table" and meta[name] ~= nil and true or nil
    end
end

_M.is_indexable = with("__index")
_M.is_iterable = with("__pairs")
_M.is_writeable = with("__newindex")

local truths = { yes = true, y = true, ["true"] = true, t = true, ["1"] = true }

-- Whether a value means yes. Texts do by a list of words, numbers unless they are 0; with `objects` also others.
function _M.to_bool(value, more, objects)
    local kind = type(value)
    if kind == "string" then
        value = value:lower()
        if truths[value] then
            return true
        end
        for _, word in pairs(more or {}) do
            if value == word:lower() then
                return true
            end
        end
        return false
    elseif kind == "boolean" then
        return value
    elseif kind == "number" then
        return value ~= 0
    end
    return objects and value ~= nil or false
end

return _M
