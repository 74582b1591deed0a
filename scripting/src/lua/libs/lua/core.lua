-- apisix.core: parts that know no exchange are loaded when first used; the others are added by the host.
local lazy = {
    id = "apisix.core.id",
    ip = "apisix.core.ip",
    json = "apisix.core.json",
    lrucache = "apisix.core.lrucache",
    math = "apisix.core.math",
    schema = "apisix.core.schema",
    string = "apisix.core.string",
    table = "apisix.core.table",
    tablepool = "tablepool",
    utils = "apisix.core.utils",
    version = "apisix.core.version",
}

local core = {}

return setmetatable(core, {
    __index = function(_, key)
        local name = lazy[key]
        if not name then
            return nil
        end
        local part = require(name)
        core[key] = part
        return part
    end,
})
