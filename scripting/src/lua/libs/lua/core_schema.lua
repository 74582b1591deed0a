local lrucache = require("apisix.core.lrucache")
local generate, pcall = require("jsonschema").generate_validator, pcall
local known = lrucache.new({ count = 1000, ttl = 0 })

local _M = { version = 0.3, TYPE_CONSUMER = 1, TYPE_METADATA = 2 }

local function create(schema)
    local ok, validator = pcall(generate, schema)
    if ok then
        return validator
    end
    return nil, validator
end

function _M.valid(schema)
    return known(schema, nil, create, schema)
end

function _M.check(schema, value)
    local validator, err = known(schema, nil, create, schema)
    if not validator then
        return false, err
    end
    return validator(value)
end

return setmetatable(_M, {
    __index = require("apisix.schema_def"),
    __newindex = function()
        error("no modification allowed", 2)
    end,
})
