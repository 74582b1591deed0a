-- Makes the functions that call a plugin instance in its phases, as APISIX does: a returned code or body ends the
-- request. `functions` has lists of functions by phase.
local native, core, functions, conf, name = ...
local rawset, type = rawset, type
local context, takes_context = native.context, native.takes_context
local before_upstream = { rewrite = true, access = true, before_proxy = true, preread = true }

return function(phase)
    local list, ends = functions[phase], before_upstream[phase]
    local count = list and #list or 0
    if count == 0 then
        return nil
    end
    -- Pieces that are held back are kept by the name of the plugin, which is in the context.
    local needs_context = phase == "body_filter"
    for at = 1, count do
        needs_context = needs_context or takes_context(list[at])
    end
    return function(ctx)
        if needs_context and not ctx then
            ctx = context()
        end
        if ctx then
            rawset(ctx, "_plugin_name", name)
        end
        for at = 1, count do
            local code, body = list[at](conf, ctx)
            if (code or body) and ends then
                if type(code) == "number" and code >= 400 then
                    core.log.warn(name, " exits with http status code ", code)
                end
                core.response.exit(code, body)
                if not code then
                    break
                end
            end
        end
        if ctx then
            rawset(ctx, "_plugin_name", nil)
        end
    end
end
