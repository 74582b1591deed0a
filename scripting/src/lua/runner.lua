-- Calls the functions of a plugin instance, as APISIX does: a returned code or body ends the request.
-- `functions` has lists of functions by phase.
local ngx, core, functions, conf, name = ...
local rawset, type = rawset, type

return function(phase, ctx)
    local list = functions[phase]
    if not list then
        return
    end
    rawset(ctx, "_plugin_name", name)
    for at = 1, #list do
        local code, body = list[at](conf, ctx)
        if (code or body) and (phase == "rewrite" or phase == "access" or phase == "before_proxy") then
            if type(code) == "number" and code >= 400 then
                core.log.warn(name, " exits with http status code ", code)
            end
            core.response.exit(code, body)
            if not code then
                break
            end
        end
    end
    rawset(ctx, "_plugin_name", nil)
end
