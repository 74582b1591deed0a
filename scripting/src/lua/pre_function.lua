-- Makes the functions that call the code of `_meta.pre_function` before a plugin, as APISIX does: its errors are
-- logged, what it returns has no effect.
local native, core, phases, call, conf, name = ...
local pcall = pcall
local context = native.context

return function(phase)
    if not phases[phase] then
        return nil
    end
    return function(ctx)
        local ok, err = pcall(call, conf, ctx or context())
        if not ok then
            core.log.error("pre_function execution for plugin ", name, " failed: ", err)
        end
    end
end
