local dict, small = ngx.shared.test, ngx.shared.small
local test = {}

function test.unknown_dictionary()
    eq(ngx.shared.absent, nil)
    raises('bad "zone" argument', dict.get, {}, "a")
end

function test.get_and_set()
    eq({ dict:set("a", "text", 0, 7) }, { true, nil, false })
    eq({ dict:get("a") }, { "text", 7 })
    dict:set("n", 1.5)
    dict:set("b", false)
    eq(dict:get("n"), 1.5)
    eq(dict:get("b"), false)
    eq(dict:get("none"), nil)
    dict:set("a", nil)
    eq(dict:get("a"), nil)
    dict:set(12, "number")
    eq(dict:get("12"), "number")
end

function test.invalid_arguments()
    eq({ dict:get(nil) }, { nil, "nil key" })
    eq({ dict:set("", 1) }, { nil, "empty key" })
    eq({ dict:set(("k"):rep(70000), 1) }, { nil, "key too long" })
    eq({ dict:set("a", {}) }, { nil, "bad value type" })
    raises('bad "exptime" argument', dict.set, dict, "a", 1, -1)
    raises('bad "exptime" argument', dict.set, dict, "a", 1, 0 / 0)
end

function test.expiry()
    dict:set("e", 1, 10)
    eq(dict:ttl("e"), 10)
    clock = clock + 9
    eq(dict:get("e"), 1)
    eq(dict:ttl("e"), 1)
    eq(dict:expire("e", 5), true)
    clock = clock + 6
    eq(dict:get("e"), nil)
    eq({ dict:get_stale("e") }, { 1, nil, true })
    eq({ dict:ttl("e") }, { nil, "not found" })
    eq({ dict:expire("e", 5) }, { nil, "not found" })
    dict:set("forever", 1)
    eq(dict:ttl("forever"), 0)
    eq({ dict:get_stale("forever") }, { 1, nil, false })
end

function test.add_and_replace()
    dict:delete("x")
    eq({ dict:replace("x", 1) }, { false, "not found", false })
    eq(dict:add("x", 1), true)
    eq({ dict:add("x", 2) }, { false, "exists", false })
    eq(dict:replace("x", 3), true)
    eq(dict:get("x"), 3)
    dict:set("short", 1, 1)
    clock = clock + 2
    eq(dict:add("short", 2), true)
end

function test.incr()
    dict:delete("i")
    eq({ dict:incr("i", 1) }, { nil, "not found", false })
    eq({ dict:incr("i", 2, 10) }, { 12, nil, false })
    eq(dict:incr("i", -1), 11)
    dict:set("s", "x")
    eq({ dict:incr("s", 1) }, { nil, "not a number", false })
    dict:incr("limited", 1, 0, 10)
    eq(dict:ttl("limited"), 10)
    raises("init", dict.incr, dict, "i", 1, nil, 5)
end

function test.lists()
    dict:delete("l")
    eq(dict:llen("l"), 0)
    eq(dict:lpop("l"), nil)
    eq(dict:rpush("l", "b"), 1)
    eq(dict:rpush("l", 3), 2)
    eq(dict:lpush("l", "a"), 3)
    eq(dict:llen("l"), 3)
    eq({ dict:get("l") }, { nil, "value is a list" })
    eq(dict:lpop("l"), "a")
    eq(dict:rpop("l"), 3)
    eq(dict:rpop("l"), "b")
    eq(dict:rpop("l"), nil)
    dict:set("s", "x")
    eq({ dict:lpush("s", 1) }, { nil, "value not a list" })
    eq({ dict:llen("s") }, { nil, "value not a list" })
    eq({ dict:lpop("s") }, { nil, "value not a list" })
    eq({ dict:lpush("s", {}) }, { nil, "bad value type" })
end

function test.oldest_entries_are_evicted()
    small:flush_all()
    local forced = false
    for i = 1, 100 do
        local ok, err, evicted = small:set("k" .. i, ("v"):rep(50))
        eq(ok, true)
        eq(err, nil)
        forced = forced or evicted
    end
    eq(forced, true)
    eq(small:get("k100"), ("v"):rep(50))
    assert(#small:get_keys(0) < 20)
    eq({ small:set("big", ("v"):rep(3000)) }, { false, "no memory", false })
    eq({ small:safe_set("k101", ("v"):rep(1000)) }, { nil, "no memory", false })
    eq({ small:safe_add("k102", ("v"):rep(1000)) }, { nil, "no memory", false })
    assert(small:free_space() < 200)
    eq(small:capacity(), 2000)
    local list = small:rpush("list", ("v"):rep(1000))
    eq(list, 1)
end

function test.keys_and_flush()
    dict:set("a", 1)
    dict:flush_all()
    eq(dict:flush_expired() > 0, true)
    eq(dict:get_keys(), {})
    for i = 1, 20 do dict:set("k" .. i, i) end
    eq(#dict:get_keys(5), 5)
    eq(#dict:get_keys(0), 20)
    dict:flush_all()
    eq(dict:get("k1"), nil)
    eq(dict:flush_expired(3), 3)
    eq(dict:flush_expired(), 17)
    eq(dict:free_space(), dict:capacity())
end

return test
