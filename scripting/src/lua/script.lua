-- Makes the functions that call a route's script, as APISIX does: with the context alone, and what they return has no
-- effect.
local native, object = ...
local context = native.context

return function(phase)
    return function(ctx)
        local call = object[phase]
        if call then
            call(ctx or context())
        end
    end
end
