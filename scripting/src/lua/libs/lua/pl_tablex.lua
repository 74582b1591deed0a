-- pl.tablex: functions on tables.
local pairs, ipairs, type = pairs, ipairs, type
local M = {}

function M.size(t)
    local count = 0
    for _ in pairs(t) do
        count = count + 1
    end
    return count
end

function M.copy(t)
    local out = {}
    for key, value in pairs(t) do
        out[key] = value
    end
    return out
end

function M.deepcopy(t)
    return require("apisix.core.table").deepcopy(t)
end

function M.deepcompare(a, b)
    if type(a) ~= "table" or type(b) ~= "table" then
        return a == b
    end
    for key, value in pairs(a) do
        if not M.deepcompare(value, b[key]) then
            return false
        end
    end
    for key in pairs(b) do
        if a[key] == nil then
            return false
        end
    end
    return true
end

function M.keys(t)
    local out = {}
    for key in pairs(t) do
        out[#out + 1] = key
    end
    return out
end

function M.values(t)
    local out = {}
    for _, value in pairs(t) do
        out[#out + 1] = value
    end
    return out
end

function M.find(t, wanted, from)
    for at = from or 1, #t do
        if t[at] == wanted then
            return at
        end
    end
end

function M.map(fun, t, ...)
    local out = {}
    for key, value in pairs(t) do
        out[key] = fun(value, ...)
    end
    return out
end

function M.imap(fun, t, ...)
    local out = {}
    for at, value in ipairs(t) do
        out[at] = fun(value, ...)
    end
    return out
end

function M.filter(t, test, ...)
    local out = {}
    for _, value in ipairs(t) do
        if test(value, ...) then
            out[#out + 1] = value
        end
    end
    return out
end

function M.reduce(fun, t, memo)
    local from = 1
    if memo == nil then
        memo, from = t[1], 2
    end
    for at = from, #t do
        memo = fun(memo, t[at])
    end
    return memo
end

function M.update(t, other)
    for key, value in pairs(other) do
        t[key] = value
    end
    return t
end

-- The keys of both with the values of the second, or with `all` those of either.
function M.merge(a, b, all)
    local out = {}
    for key, value in pairs(a) do
        if all or b[key] ~= nil then
            out[key] = value
        end
    end
    if all then
        M.update(out, b)
    else
        for key in pairs(out) do
            out[key] = b[key]
        end
    end
    return out
end

function M.union(a, b)
    return M.merge(a, b, true)
end

function M.intersection(a, b)
    return M.merge(a, b, false)
end

function M.difference(a, b)
    local out = {}
    for key, value in pairs(a) do
        if b[key] == nil then
            out[key] = value
        end
    end
    return out
end

function M.insertvalues(t, at, values)
    if not values then
        at, values = #t + 1, at
    end
    for offset, value in ipairs(values) do
        table.insert(t, at + offset - 1, value)
    end
    return t
end

function M.makeset(t)
    local out = {}
    for _, value in ipairs(t) do
        out[value] = true
    end
    return out
end

function M.sort(t, before)
    local keys = M.keys(t)
    table.sort(keys, before)
    local at = 0
    return function()
        at = at + 1
        return keys[at], t[keys[at]]
    end
end

return M
