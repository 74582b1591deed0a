-- resty.expr.v1: conditions such as { "arg_age", ">", 18 }, joined by "AND", "OR", "!AND" and "!OR".
local re_find, ipmatcher = ngx.re.find, require("resty.ipmatcher")
local type, tostring, tonumber, ipairs, setmetatable = type, tostring, tonumber, ipairs, setmetatable
local upper = string.upper

local _M = { _VERSION = "1.3" }
local meta = { __index = _M }
-- Conditions inside conditions, at most.
local deepest = 32

local function is_equal(left, right)
    if type(left) == "number" and type(right) ~= "number" then
        right = tonumber(right)
    elseif type(right) == "number" and type(left) ~= "number" then
        left = tonumber(left)
    elseif type(left) ~= type(right) then
        left, right = tostring(left), tostring(right)
    end
    return left == right
end

local function ordered(compare)
    return function(left, right)
        left, right = tonumber(left), tonumber(right)
        return left ~= nil and right ~= nil and compare(left, right)
    end
end

local function any(list, test)
    for _, item in ipairs(type(list) == "table" and list or {}) do
        if test(item) then
            return true
        end
    end
    return false
end

local function matches(options)
    return function(left, pattern)
        if type(left) == "table" then
            return any(left, function(item)
                return re_find(tostring(item), pattern, options) ~= nil
            end)
        end
        return left ~= nil and re_find(tostring(left), pattern, options) ~= nil
    end
end

local operators = {
    ["=="] = function(left, right)
        if left == nil or right == nil then
            return left == right
        end
        return is_equal(left, right)
    end,
    ["~="] = function(left, right)
        if left == nil or right == nil then
            return left ~= right
        end
        return not is_equal(left, right)
    end,
    [">"] = ordered(function(a, b) return a > b end),
    ["<"] = ordered(function(a, b) return a < b end),
    [">="] = ordered(function(a, b) return a >= b end),
    ["<="] = ordered(function(a, b) return a <= b end),
    ["~~"] = matches("jo"),
    ["~*"] = matches("joi"),
    ["in"] = function(left, list)
        return left ~= nil and any(list, function(item)
            return is_equal(left, item)
        end)
    end,
    ["has"] = function(list, right)
        return any(list, function(item)
            return is_equal(item, right)
        end)
    end,
}

local compile

local function condition(rule)
    local name = rule[1]
    local at, negated = 2, false
    if rule[2] == "!" then
        at, negated = 3, true
    end
    local operator = rule[at]
    if type(name) ~= "string" or type(operator) ~= "string" then
        return nil, "rule should be wrapped inside brackets"
    end
    operator = operator:lower()
    local right, test = rule[at + 1], nil
    if operator == "ipmatch" then
        local matcher, err = ipmatcher.new(type(right) == "table" and right or { right })
        if not matcher then
            return nil, err
        end
        test = function(left)
            return left ~= nil and matcher:match(left) == true
        end
    else
        local compare = operators[operator]
        if not compare then
            return nil, "invalid operator '" .. rule[at] .. "'"
        end
        test = function(left)
            return compare(left, right)
        end
    end
    return function(ctx)
        local holds = test(ctx[name])
        return holds ~= negated
    end
end

local joins = { AND = { true, false }, OR = { false, false }, ["!AND"] = { true, true }, ["!OR"] = { false, true } }

function compile(rule, depth)
    if depth > deepest then
        return nil, "conditions are nested too deeply"
    end
    if type(rule) ~= "table" then
        return nil, "rule should be wrapped inside brackets"
    end
    local first = rule[1]
    local join = type(first) == "string" and joins[upper(first)]
    if type(first) == "string" and not join then
        return condition(rule)
    end
    local parts = {}
    for at = join and 2 or 1, #rule do
        local part, err = compile(rule[at], depth + 1)
        if not part then
            return nil, err
        end
        parts[#parts + 1] = part
    end
    if join and #parts < 2 then
        return nil, "rule too short"
    end
    local all, negated = true, false
    if join then
        all, negated = join[1], join[2]
    end
    return function(ctx)
        local holds = all
        for _, part in ipairs(parts) do
            if part(ctx) ~= all then
                holds = not all
                break
            end
        end
        return holds ~= negated
    end
end

function _M.new(rule)
    if type(rule) ~= "table" then
        return nil, "missing rule"
    end
    local test, err = compile(rule, 1)
    if not test then
        return nil, err
    end
    return setmetatable({ test = test }, meta)
end

function _M.eval(self, ctx)
    return self.test(ctx or ngx.var)
end

return _M
