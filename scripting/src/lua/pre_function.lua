-- Calls the code of `_meta.pre_function` before a plugin, as APISIX does: its errors are logged, what it returns has no
-- effect.
local core, phases, call, conf, name = ...
local pcall = pcall

return function(phase, ctx)
    if not phases[phase] then
        return
    end
    local ok, err = pcall(call, conf, ctx)
    if not ok then
        core.log.error("pre_function execution for plugin ", name, " failed: ", err)
    end
end
