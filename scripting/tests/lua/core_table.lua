local core = require("apisix.core")
local test = {}

function test.insert_tail()
    local t = { 1 }
    eq(core.table.insert_tail(t, 2, 3), 3)
    eq(t, { 1, 2, 3 })
end

function test.set()
    local t = { "a", "b", "c" }
    core.table.set(t, 1, 2)
    eq(t, { 1, 2, "c" })
end

function test.lua_s_own()
    local t = core.table.new(4, 0)
    core.table.insert(t, "b")
    core.table.insert(t, "a")
    core.table.sort(t)
    eq(core.table.concat(t, ","), "a,b")
    core.table.clear(t)
    eq(t, {})
    eq(core.table.remove({ 1, 2 }), 2)
end

function test.counts()
    eq(core.table.nkeys({ 1, 2, a = 3 }), 3)
    eq(core.table.isarray({}), true)
    eq(core.table.isarray({ 1, nil, 3 }), true)
    eq(core.table.isarray({ a = 1 }), false)
    eq(core.table.isarray({ [1.5] = 1 }), false)
    eq(core.table.isempty({}), true)
    eq(core.table.isempty({ false }), false)
end

function test.clone()
    local inner = {}
    local t = setmetatable({ inner, a = 1 }, {})
    local copy = core.table.clone(t)
    eq(copy[1] == inner, true)
    eq(copy.a, 1)
    eq(copy == t, false)
end

function test.try_read_attr()
    eq(core.table.try_read_attr({ a = { b = { c = 1 } } }, "a", "b", "c"), 1)
    eq(core.table.try_read_attr({ a = 1 }, "a", "b"), nil)
    eq(core.table.try_read_attr(nil, "a"), nil)
end

function test.array_find()
    eq(core.table.array_find({ "a", "b" }, "b"), 2)
    eq(core.table.array_find({ "a" }, "b"), nil)
    eq(core.table.array_find(nil, "b"), nil)
end

function test.setmt__gc()
    local meta = { __gc = function() end, __index = { x = 1 } }
    eq(core.table.setmt__gc({}, meta).x, 1)
end

function test.deepcopy()
    local t = { a = { b = 1 }, c = { d = {} } }
    t.self = t
    local copy = core.table.deepcopy(t)
    eq(copy.a.b, 1)
    eq(copy.a == t.a, false)
    eq(copy.self == copy, true)
    local shallow = core.table.deepcopy(t, { shallows = { "self.c.d" } })
    eq(shallow.c.d == t.c.d, true)
    eq(shallow.c == t.c, false)
    eq(core.table.deepcopy("x"), "x")
end

function test.merge()
    eq(core.table.merge({ a = { b = 1 }, c = 1 }, { a = { d = 2 }, c = ngx.null, e = { 1 } }),
        { a = { b = 1, d = 2 }, e = { 1 } })
    eq(core.table.merge({ a = { 1, 2 } }, { a = { 3 } }), { a = { 3 } })
end

function test.set_eq()
    eq(core.table.set_eq({ a = 1, b = 2 }, { a = 3, b = 4 }), true)
    eq(core.table.set_eq({ a = 1 }, { b = 1 }), false)
    eq(core.table.set_eq({ a = 1 }, { a = 1, b = 1 }), false)
end

function test.deep_eq()
    eq(core.table.deep_eq({ a = { 1 } }, { a = { 1 } }), true)
    eq(core.table.deep_eq({ a = { 1 } }, { a = { 2 } }), false)
    eq(core.table.deep_eq({}, 1), false)
end

function test.pick()
    eq(core.table.pick({ a = 1, b = 2 }, { a = true }), { a = 1 })
end

return test
