local mlcache = require("resty.mlcache")
local test = {}

function test.levels()
    local cache = assert(mlcache.new("one", "test", { ttl = 10, neg_ttl = 2 }))
    local calls = 0
    local function callback(arg)
        calls = calls + 1
        return { arg }
    end
    eq({ cache:get("k", nil, callback, "x") }, { { "x" }, nil, 3 })
    eq({ cache:get("k", nil, callback, "x") }, { { "x" }, nil, 1 })
    local other = mlcache.new("one", "test", { ttl = 10 })
    eq({ other:get("k", nil, callback, "x") }, { { "x" }, nil, 2 })
    eq(calls, 1)
    eq({ cache:peek("k") }, { 10, nil, { "x" } })
    clock = clock + 11
    cache:get("k", nil, callback, "x")
    eq(calls, 2)
    cache:delete("k")
    eq(cache:peek("k"), nil)
    eq({ cache:get("k") }, { nil, nil, -1 })
end

function test.absent_values_and_errors()
    local cache = mlcache.new("two", "test", { neg_ttl = 5 })
    local calls = 0
    local function none()
        calls = calls + 1
        return nil
    end
    cache:get("n", nil, none)
    cache:get("n", nil, none)
    eq(calls, 1)
    eq({ cache:get("e", nil, function() return nil, "failed" end) }, { nil, "failed" })
    assert(select(2, cache:get("t", nil, function() error("thrown") end)):find("callback threw an error", 1, true))
    eq({ cache:get("u", nil, function() return 5, nil, -1 end) }, { 5, nil, 3 })
    eq(cache:peek("u"), nil)
    eq({ mlcache.new("x", "absent") }, { nil, "no such lua_shared_dict: absent" })
    raises("key must be a string", cache.get, cache, 5)
    raises("must be strings", mlcache.new, 1)
end

function test.set_and_serializer()
    local cache = mlcache.new("three", "test", { l1_serializer = function(v) return v .. "!" end })
    eq(cache:get("k", nil, function() return "a" end), "a!")
    eq(cache:set("s", { ttl = 3 }, "b"), true)
    eq(cache:get("s"), "b!")
    eq(cache:update(), true)
    eq(cache:purge(true), true)
    eq({ cache:get("s") }, { nil, nil, -1 })
end

return test
