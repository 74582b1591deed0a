local schema = require("apisix.core.schema")
local test = {}

function test.check_fills_defaults()
    local conf = { inner = {}, list = { {} } }
    eq(schema.check({
        type = "object",
        properties = {
            limit = { type = "integer", default = 5 },
            inner = { type = "object", properties = { on = { type = "boolean", default = true } } },
            list = { type = "array", items = { type = "object", properties = { x = { default = "y" } } } },
        },
    }, conf), true)
    eq(conf, { limit = 5, inner = { on = true }, list = { { x = "y" } } })
end

function test.check_fails()
    local shape = { type = "object", properties = { a = { type = "string" } }, required = { "a" } }
    eq({ schema.check(shape, { a = 1 }) },
        { false, 'property "a" validation failed: wrong type: expected string, got number' })
    eq({ schema.check(shape, {}) }, { false, 'property "a" is required' })
end

function test.valid()
    eq(type(schema.valid({ type = "string" })), "function")
    local validator, err = schema.valid({ type = 5 })
    eq(validator, nil)
    eq(type(err), "string")
    eq(schema.check({ type = 5 }, 1), false)
    raises("no modification allowed", function() schema.x = 1 end)
    eq(schema.TYPE_CONSUMER, 1)
    eq(schema.check(schema.id_schema, "a-1"), true)
    eq(schema.check(schema.host_def, "a b"), false)
    eq(schema.check({ anyOf = schema.ip_def }, "10.0.0.0/8"), true)
end

function test.jsonschema()
    local generate = require("jsonschema").generate_validator
    local validator = generate({ type = "array", items = { type = "integer" }, minItems = 1 })
    eq(validator({ 1 }), true)
    eq(validator({ "a" }), false)
    eq(validator({}), false)
    raises("", generate, { type = 5 })
end

return test
