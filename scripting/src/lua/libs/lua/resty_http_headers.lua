-- resty.http_headers: headers whose names compare without case; `-` and `_` are the same.
local type, setmetatable, rawget, rawset, lower, gsub = type, setmetatable, rawget, rawset, string.lower, string.gsub

local function new()
    local names = {}
    return setmetatable({}, {
        __index = function(tab, name)
            if type(name) ~= "string" then
                return nil
            end
            local known = names[lower(gsub(name, "_", "-"))]
            return known and rawget(tab, known) or nil
        end,
        __newindex = function(tab, name, value)
            local key = type(name) == "string" and lower(gsub(name, "_", "-")) or name
            local known = names[key]
            if not known then
                names[key] = name
                known = name
            end
            rawset(tab, known, value)
        end,
    })
end
return { new = new }
