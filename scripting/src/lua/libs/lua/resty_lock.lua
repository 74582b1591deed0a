-- resty.lock: a lock in a shared dictionary. Waiting sleeps, longer each time.
local setmetatable, min, type, tostring = setmetatable, math.min, type, tostring

local _M = { _VERSION = "0.09" }
local meta = { __index = _M }

function _M.new(_, dict_name, opts)
    local dict = ngx.shared[dict_name]
    if not dict then
        return nil, "dictionary not found"
    end
    opts = opts or {}
    local timeout = opts.timeout or 5
    local exptime = opts.exptime or 30
    if type(exptime) ~= "number" or type(timeout) ~= "number" then
        return nil, "bad option"
    end
    return setmetatable({
        dict = dict,
        timeout = min(timeout, exptime),
        exptime = exptime,
        step = opts.step or 0.001,
        ratio = opts.ratio or 2,
        max_step = opts.max_step or 0.5,
    }, meta)
end

function _M.lock(self, key)
    if not key then
        return nil, "nil key"
    end
    if self.key then
        return nil, "locked"
    end
    key = tostring(key)
    local waited, step, left = 0, self.step, self.timeout
    while true do
        local ok, err = self.dict:add(key, true, self.exptime)
        if ok then
            self.key = key
            return waited
        end
        if err ~= "exists" then
            return nil, err
        end
        if left <= 0 then
            return nil, "timeout"
        end
        step = min(step, left, self.max_step)
        ngx.sleep(step)
        waited, left = waited + step, left - step
        step = step * self.ratio
    end
end

function _M.unlock(self)
    local key = self.key
    if not key then
        return nil, "unlocked"
    end
    self.key = nil
    self.dict:delete(key)
    return 1
end

function _M.expire(self, seconds)
    if not self.key then
        return nil, "unlocked"
    end
    local ok, err = self.dict:replace(self.key, true, seconds or self.exptime)
    if not ok then
        return nil, err
    end
    return true
end

return _M
