-- Calls a function with the variables of the request that is matched.
local native, call = ...
local setmetatable, type = setmetatable, type

local meta = {
    __index = function(_, name)
        return type(name) == "string" and native.matched_var(name) or nil
    end,
    __metatable = false,
}

return function()
    return call(setmetatable({}, meta)) and true or false
end
