local roundrobin = require("resty.roundrobin")
local test = {}

local function counted(turns, times)
    local counts = {}
    for _ = 1, times do
        local id = turns:find()
        counts[id] = (counts[id] or 0) + 1
    end
    return counts
end

function test.ids_take_turns_by_weight()
    eq(counted(roundrobin:new({ a = 2, b = 1 }), 6), { a = 4, b = 2 })
    eq(counted(roundrobin:new({ a = 20, b = 10, c = 0 }), 6), { a = 4, b = 2 })
    local key = {}
    eq(roundrobin:new({ [key] = 1 }):find(), key)
end

function test.weights_change()
    local turns = roundrobin:new({ a = 1 })
    turns:set("b", 3)
    eq(counted(turns, 8), { a = 2, b = 6 })
    turns:incr("a", 2)
    turns:decr("b", 2)
    eq(counted(turns, 8), { a = 6, b = 2 })
    turns:delete("a")
    eq(counted(turns, 3), { b = 3 })
    turns:decr("b")
    eq(turns:find(), nil)
end

function test.without_ids_there_is_none()
    eq(roundrobin:new({}):find(), nil)
    eq(roundrobin:new({ a = 0 }):next(), nil)
    raises("bad weight", roundrobin.new, nil, { a = "1" })
end

return test
