local lrucache, lru = require("apisix.core.lrucache"), require("resty.lrucache")
local test = {}

function test.versions()
    local cache = lrucache.new({ count = 2, ttl = 10 })
    local made = 0
    local function make(text)
        made = made + 1
        return { text }
    end
    local one = cache("k", 1, make, "a")
    eq(cache("k", 1, make, "a") == one, true)
    eq(cache("k", 2, make, "b")[1], "b")
    eq(made, 2)
    clock = clock + 20
    cache("k", 2, make, "b")
    eq(made, 2)
end

function test.invalid_stale()
    local cache = lrucache.new({ ttl = 10, invalid_stale = true })
    local made = 0
    local function make()
        made = made + 1
        return made
    end
    cache("k", 1, make)
    clock = clock + 20
    eq(cache("k", 1, make), 2)
end

function test.failures()
    local cache = lrucache.new({ neg_ttl = 5, neg_count = 10 })
    local calls = 0
    local function fail()
        calls = calls + 1
        return nil, "no"
    end
    eq({ cache("k", 1, fail) }, { nil, "no" })
    eq({ cache("k", 1, fail) }, { nil, "no" })
    eq(calls, 1)
    clock = clock + 6
    cache("k", 1, fail)
    eq(calls, 2)
    local plain = lrucache.new({ serial_creating = true })
    raises("broken", plain, "k", 1, function() error("broken") end)
    eq(plain("k", 1, function() return 5 end), 5)
end

function test.plugin_ctx()
    local ctx = { conf_type = "route", conf_id = "1", conf_version = 3 }
    local cache = lrucache.new({ type = "plugin" })
    eq(lrucache.plugin_ctx(cache, ctx, "x", function(a) return a end, 9), 9)
    eq(lrucache.plugin_ctx_id(ctx, "x"), "route#1#x#3")
    eq(lrucache.plugin_ctx_id(ctx), "route#1#3")
    eq(lrucache.plugin("p", "k", 1, function() return 7 end), 7)
    eq(lrucache.plugin("p", "k", 1, function() return 8 end), 7)
    eq(lrucache.global("k", 1, function() return 1 end), 1)
end

function test.resty_lrucache()
    local cache = lru.new(2)
    cache:set("a", 1)
    cache:set("b", 2, 5, 3)
    eq(cache:get("a"), 1)
    cache:set("c", 3)
    eq(cache:get("b"), nil)
    eq(cache:count(), 2)
    eq(cache:capacity(), 2)
    eq(cache:get_keys(), { "c", "a" })
    eq(cache:get_keys(1), { "c" })
    cache:set("a", 4, 5)
    clock = clock + 6
    eq({ cache:get("a") }, { nil, 4, 0 })
    cache:delete("a")
    eq(cache:get("a"), nil)
    cache:flush_all()
    eq(cache:count(), 0)
    eq({ lru.new(0) }, { nil, "size too small" })
    eq(require("resty.lrucache.pureffi") == lru, true)
end

return test
