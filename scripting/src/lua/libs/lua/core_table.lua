local byte, sub, concat = string.byte, string.sub, table.concat
local getmetatable, setmetatable, select, tostring = getmetatable, setmetatable, select, tostring
local ipairs, pairs, type = ipairs, pairs, type
local nkeys, isarray = require("table.nkeys"), require("table.isarray")
local null = ngx.null

local _M = {
    version = 0.2,
    new = require("table.new"),
    clear = require("table.clear"),
    nkeys = nkeys,
    insert = table.insert,
    concat = concat,
    sort = table.sort,
    clone = require("table.clone"),
    isarray = isarray,
    isempty = require("table.isempty"),
}
setmetatable(_M, { __index = table })

function _M.insert_tail(tab, ...)
    local last = #tab
    for at = 1, select("#", ...) do
        last = last + 1
        tab[last] = (select(at, ...))
    end
    return last
end

function _M.set(tab, ...)
    for at = 1, select("#", ...) do
        tab[at] = (select(at, ...))
    end
end

function _M.try_read_attr(tab, ...)
    for at = 1, select("#", ...) do
        if type(tab) ~= "table" then
            return nil
        end
        tab = tab[select(at, ...)]
    end
    return tab
end

function _M.array_find(array, wanted)
    if type(array) ~= "table" then
        return nil
    end
    for at, value in ipairs(array) do
        if value == wanted then
            return at
        end
    end
    return nil
end
local array_find = _M.array_find

-- Sets a metatable. Its __gc is not called: LuaJIT would run it without hooks, so nothing could stop it.
_M.setmt__gc = setmetatable

local function is_below(path, prefix)
    return sub(path, 1, #prefix) == prefix and (#path == #prefix or byte(path, #prefix + 1) == 46)
end

local function copy(orig, seen, parent, opts)
    local out = {}
    seen[orig] = out
    for key, value in pairs(orig) do
        if type(value) == "table" then
            local path = parent .. "." .. tostring(key)
            local shallow = opts and (array_find(opts.shallows, path)
                or opts.shallow_prefix and is_below(parent, opts.shallow_prefix))
            if not shallow then
                value = seen[value] or copy(value, seen, path, opts)
            end
        end
        out[key] = value
    end
    local meta = getmetatable(orig)
    return type(meta) == "table" and setmetatable(out, meta) or out
end

function _M.deepcopy(orig, opts)
    if type(orig) ~= "table" then
        return orig
    end
    return copy(orig, {}, "self", opts)
end

local function merge(origin, extend)
    for key, value in pairs(extend) do
        local old = origin[key]
        if type(value) == "table" and type(old) == "table" and not isarray(old) and not isarray(value) then
            merge(old, value)
        elseif value == null then
            origin[key] = nil
        else
            origin[key] = value
        end
    end
    return origin
end
_M.merge = merge

function _M.patch(node_value, sub_path, conf)
    local names = require("ngx.re").split(sub_path, "/")
    local inner = node_value
    for at = 1, #names - 1 do
        if inner[names[at]] == nil then
            inner[names[at]] = {}
        end
        inner = inner[names[at]]
        if type(inner) ~= "table" then
            return 400, "invalid sub-path: /" .. concat(names, 1, at)
        end
    end
    if type(inner) ~= "table" then
        return 400, "invalid sub-path: /" .. sub_path
    end
    local name = names[#names]
    if name and name ~= "" then
        inner[name] = conf
    else
        node_value = conf
    end
    return nil, nil, node_value
end

function _M.set_eq(a, b)
    if nkeys(a) ~= nkeys(b) then
        return false
    end
    for key in pairs(a) do
        if b[key] == nil then
            return false
        end
    end
    return true
end

local function deep_eq(a, b)
    if type(a) ~= "table" or type(b) ~= "table" then
        return a == b
    end
    if nkeys(a) ~= nkeys(b) then
        return false
    end
    for key, value in pairs(a) do
        if not deep_eq(value, b[key]) then
            return false
        end
    end
    return true
end
_M.deep_eq = deep_eq

function _M.pick(obj, attrs)
    local picked = {}
    for key, value in pairs(obj) do
        if attrs[key] ~= nil then
            picked[key] = value
        end
    end
    return picked
end

return _M
