-- resty.jwt-validators: checks of claims. A validator gets a value, the name of its claim and the text of the token;
-- it returns false or raises an error if the claim is refused.
local type, ipairs, tostring, error = type, ipairs, tostring, error
local match, format = string.match, string.format

local _M = { _VERSION = "0.2.3" }
local leeway = 0
local clock = function()
    return ngx.now()
end

function _M.set_system_leeway(seconds)
    if type(seconds) ~= "number" or seconds < 0 then
        error("leeway must be a non-negative number", 2)
    end
    leeway = seconds
end

function _M.set_system_clock(now)
    if type(now) ~= "function" then
        error("clock must be a function", 2)
    end
    clock = now
end

function _M.chain(...)
    local all = { ... }
    return function(value, claim, token)
        for _, validator in ipairs(all) do
            if validator(value, claim, token) == false then
                return false
            end
        end
        return true
    end
end

function _M.required(validator)
    return function(value, claim, token)
        if value == nil then
            error(format("'%s' claim is required.", claim), 0)
        end
        if validator then
            return validator(value, claim, token)
        end
        return true
    end
end

-- Adds a check that needs its claim, and `opt_NAME`, which accepts a token without the claim.
local function add(name, make)
    _M["opt_" .. name] = function(...)
        local check = make(...)
        return function(value, claim, token)
            if value == nil then
                return true
            end
            return check(value, claim, token)
        end
    end
    _M[name] = function(...)
        return _M.required(make(...))
    end
end

add("check", function(wanted, compare, _, kind)
    return function(value)
        if kind and type(value) ~= kind then
            return false
        end
        return compare(value, wanted)
    end
end)

local function compared(compare, kind)
    return function(wanted)
        return function(value)
            return (not kind or type(value) == kind) and compare(value, wanted)
        end
    end
end
add("equals", compared(function(a, b) return a == b end))
add("greater_than", compared(function(a, b) return a > b end, "number"))
add("greater_than_or_equal", compared(function(a, b) return a >= b end, "number"))
add("less_than", compared(function(a, b) return a < b end, "number"))
add("less_than_or_equal", compared(function(a, b) return a <= b end, "number"))
add("matches", compared(function(a, b) return match(a, b) ~= nil end, "string"))

local function any_of(compare)
    return function(wanted)
        return function(value)
            for _, one in ipairs(wanted) do
                if compare(value, one) then
                    return true
                end
            end
            return false
        end
    end
end
add("equals_any_of", any_of(function(a, b) return a == b end))
add("matches_any_of", any_of(function(a, b) return type(a) == "string" and match(a, b) ~= nil end))
add("contains_any_of", any_of(function(list, b)
    for _, a in ipairs(type(list) == "table" and list or {}) do
        if a == b then
            return true
        end
    end
    return false
end))

local function timed(check)
    return function()
        return function(value, claim)
            if type(value) ~= "number" then
                error(format("'%s' is malformed.  Expected to be a positive numeric value.", claim), 0)
            end
            check(value, claim)
            return true
        end
    end
end

local function date(seconds)
    return ngx.http_time and seconds >= 0 and seconds < 253402300800 and ngx.http_time(seconds) or tostring(seconds)
end

add("is_not_before", timed(function(value, claim)
    if clock() < value - leeway then
        error(format("'%s' claim not valid until %s", claim, date(value)), 0)
    end
end))
add("is_not_expired", timed(function(value, claim)
    if clock() >= value + leeway then
        error(format("'%s' claim expired at %s", claim, date(value)), 0)
    end
end))
add("is_at", timed(function(value, claim)
    local now = clock()
    if now < value - leeway or now > value + leeway then
        error(format("'%s' claim is only valid at %s", claim, date(value)), 0)
    end
end))

return _M
