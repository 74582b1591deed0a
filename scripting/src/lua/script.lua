-- Calls the functions of a route's script, as APISIX does: with the context alone, and what they return has no effect.
local object = ...

return function(phase, ctx)
    local call = object[phase]
    if call then
        call(ctx)
    end
end
