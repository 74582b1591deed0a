-- The body of coroutines that are used again. Nothing of a function stays with its coroutine: a coroutine that a script
-- has seen serves no other function.
local native = ...
local running, yield = native.running, native.yield
local DONE, seen = native.DONE, native.seen_coroutines

return function(call, ctx)
    local this = running()
    while true do
        call(ctx)
        call, ctx = nil, nil
        if seen[this] then
            return
        end
        call, ctx = yield(DONE)
    end
end
