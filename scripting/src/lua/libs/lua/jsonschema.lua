-- jsonschema: checks tables and fills in defaults.
local _, native = ...
local compile, error = native("schema").compile, error

local _M = {}

function _M.generate_validator(schema)
    local checker, err = compile(schema)
    if not checker then
        error(err, 2)
    end
    return function(data)
        local ok, fault = checker:check(data)
        if ok then
            return true
        end
        return false, fault
    end
end

return _M
