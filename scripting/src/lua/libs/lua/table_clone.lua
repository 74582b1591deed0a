-- A shallow copy without its metatable.
local next = next
return function(tab)
    local out = {}
    for key, value in next, tab do
        out[key] = value
    end
    return out
end
