local lock = require("resty.lock")
local test = {}

function test.lock_and_unlock()
    local one, two = lock:new("locks"), lock:new("locks", { timeout = 1 })
    eq(one:lock("k"), 0)
    eq({ one:lock("k") }, { nil, "locked" })
    local before = clock
    eq({ two:lock("k") }, { nil, "timeout" })
    assert(clock - before >= 1)
    eq(one:expire(60), true)
    eq(one:unlock(), 1)
    eq({ one:unlock() }, { nil, "unlocked" })
    eq({ one:expire(1) }, { nil, "unlocked" })
    eq(two:lock("k"), 0)
    two:unlock()
end

function test.expired_locks_are_free()
    local one, two = lock:new("locks", { exptime = 2 }), lock:new("locks", { timeout = 5 })
    one:lock("e")
    assert(two:lock("e") > 1)
    eq({ lock:new("absent") }, { nil, "dictionary not found" })
    eq({ two:lock(nil) }, { nil, "nil key" })
end

return test
