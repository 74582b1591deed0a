local types = require("pl.types")
local test = {}

function test.emptiness()
    for _, value in ipairs({ {}, "", 1, true }) do
        eq(types.is_empty(value), true)
    end
    eq(types.is_empty(nil), true)
    eq(types.is_empty(" "), false)
    eq(types.is_empty(" ", true), true)
    eq(types.is_empty("a", true), false)
    eq(types.is_empty({ 1 }), false)
end

function test.kinds()
    local callable = setmetatable({}, { __call = print, _name = "mine" })
    eq(types.is_callable(print), true)
    eq(types.is_callable(callable), true)
    eq(types.is_callable({}), false)
    eq(types.type(callable), "mine")
    eq(types.type("a"), "string")
    eq(types.is_integer(2), true)
    eq(types.is_integer(2.5), false)
    eq(types.is_type("a", "string"), true)
    eq(types.is_indexable({}), true)
    eq(types.is_iterable({}), true)
    eq(types.is_writeable({}), true)
    eq(types.is_writeable(1), nil)
end

function test.truth()
    for _, value in ipairs({ "yes", "TRUE", "1", 2, true }) do
        eq(types.to_bool(value), true)
    end
    for _, value in ipairs({ "no", 0, false }) do
        eq(types.to_bool(value), false)
    end
    eq(types.to_bool("ja", { "ja" }), true)
    eq(types.to_bool({}), false)
    eq(types.to_bool({}, nil, true), true)
end

return test
