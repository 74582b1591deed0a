-- Calls the functions of a plugin instance, as APISIX does: a returned code or body ends the request.
-- `functions` has lists of functions by phase.
local ngx, core, functions, conf, name = ...
local rawset, type = rawset, type
local before_upstream = { rewrite = true, access = true, before_proxy = true, preread = true }

return function(phase, ctx)
    local list = functions[phase]
    if not list then
        return
    end
    rawset(ctx, "_plugin_name", name)
    for at = 1, #list do
        local code, body = list[at](conf, ctx)
        if (code or body) and before_upstream[phase] then
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
