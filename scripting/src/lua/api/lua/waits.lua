-- Sleeping, timers, light threads, semaphores.
local native, ngx = ...
local EXIT = native.EXIT
local error, pcall, select, setmetatable, tostring, type, unpack =
    error, pcall, select, setmetatable, tostring, type, unpack
local create, resume, running, status, yield =
    coroutine.create, coroutine.resume, coroutine.running, coroutine.status, coroutine.yield

function ngx.sleep(time)
    native.sleep(time)
    native.wait()
end

-- Starts a timer. Its arguments stay in Lua: Rust refers to a few thousand values at most.
local function timer(name, delay, is_repeated, call, ...)
    if type(call) ~= "function" then
        error("bad argument #2 to '" .. name .. "' (function expected, got " .. type(call) .. ")", 3)
    end
    local run, count = call, select("#", ...)
    if count > 0 then
        local args = { ... }
        run = function(premature)
            return call(premature, unpack(args, 1, count))
        end
    end
    local ok, err = native.timer(delay, is_repeated, run)
    return ok and 1 or nil, err
end

ngx.timer = {
    -- As tail calls they would have no level of their own, at which the error is.
    at = function(delay, call, ...)
        local ok, err = timer("at", delay, false, call, ...)
        return ok, err
    end,
    every = function(delay, call, ...)
        local ok, err = timer("every", delay, true, call, ...)
        return ok, err
    end,
    running_count = function()
        return 0
    end,
    pending_count = function()
        return 0
    end,
}

-- Light threads: coroutines that run beside the one that started them.
local light = setmetatable({}, { __mode = "k" })

local function done(co, ...)
    local state = light[co]
    state.results = { n = select("#", ...), ... }
    native.post(state.signal, 1)
end

-- Runs a light thread up to its first wait.
local function begun(co, ok, mark)
    if not ok then
        error(mark, 0)
    elseif status(co) == "suspended" then
        if mark == EXIT then
            yield(EXIT)
        end
        native.adopt(co)
    end
    return co
end

ngx.thread = {
    spawn = function(call, ...)
        native.check_wait()
        local co
        co = create(function(...)
            done(co, pcall(call, ...))
        end)
        light[co] = { signal = native.signal(0) }
        return begun(co, resume(co, ...))
    end,
    -- Waits for the first of the threads that ends.
    wait = function(...)
        local threads = { ... }
        while true do
            local pending
            for at = 1, #threads do
                local state = light[threads[at]] or error("attempt to wait on a coroutine that is not a user thread", 2)
                if state.results then
                    if state.waited then
                        return nil, "already waited or killed"
                    end
                    state.waited = true
                    return unpack(state.results, 1, state.results.n)
                end
                if state.waited then
                    return nil, "already waited or killed"
                end
                pending = state
            end
            if #threads == 1 then
                native["await"](pending.signal)
                native.wait()
            else
                ngx.sleep(0.001)
            end
        end
    end,
    kill = function(co)
        local state = light[co]
        if not state or state.waited or state.results then
            return nil, state and "already terminated" or "not user thread"
        end
        state.waited = true
        native.kill(co)
        return 1
    end,
}

local Semaphore = {}
Semaphore.__index = Semaphore

function Semaphore:post(count)
    native.post(self.signal, count or 1)
    return true
end

function Semaphore:wait(time)
    if native.take(self.signal) then
        return true
    end
    if not time or time <= 0 then
        return nil, "timeout"
    end
    self.waiting = self.waiting + 1
    native["await"](self.signal, time)
    local ok = native.wait()
    self.waiting = self.waiting - 1
    if ok then
        return true
    end
    return nil, "timeout"
end

function Semaphore:count()
    local count = native.count(self.signal)
    return count > 0 and count or 0 - self.waiting
end

local semaphore = {
    new = function(count)
        count = count or 0
        if count < 0 then
            error("no negative number", 2)
        end
        return setmetatable({ signal = native.signal(count), waiting = 0 }, Semaphore)
    end,
}
package.loaded["ngx.semaphore"] = semaphore
