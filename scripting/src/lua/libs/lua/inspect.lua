-- inspect: a readable text of any value, for logs.
local type, tostring, pairs, ipairs, sort, format, concat = type, tostring, pairs, ipairs, table.sort, string.format, table.concat
local huge, floor = math.huge, math.floor

local inspect = { _VERSION = "inspect.lua 3.1.0", KEY = setmetatable({}, {}), METATABLE = setmetatable({}, {}) }
local deepest = 64

local function quoted(text)
    if text:find('"', 1, true) and not text:find("'", 1, true) then
        return "'" .. text .. "'"
    end
    return '"' .. text:gsub('[%c"\\]', function(c)
        local short = { ["\n"] = "\\n", ["\t"] = "\\t", ["\r"] = "\\r", ['"'] = '\\"', ["\\"] = "\\\\" }
        return short[c] or format("\\%d", c:byte())
    end) .. '"'
end

local rank = { number = 1, boolean = 2, string = 3, table = 4, ["function"] = 5, userdata = 6, thread = 7 }

local function before(a, b)
    local ta, tb = type(a), type(b)
    if ta == tb and (ta == "number" or ta == "string") then
        return a < b
    end
    return (rank[ta] or 9) < (rank[tb] or 9)
end

function inspect.inspect(root, options)
    options = options or {}
    local depth, process = options.depth or huge, options.process
    local newline, indent = options.newline or "\n", options.indent or "  "
    local ids, count, seen = {}, 0, {}

    local function id_of(value)
        if not ids[value] then
            count = count + 1
            ids[value] = count
        end
        return ids[value]
    end

    local show
    local function key_of(key, level)
        if type(key) == "string" and key:match("^[_%a][_%w]*$") then
            return key
        end
        return "[" .. show(key, level) .. "]"
    end

    local function table_of(value, level)
        if seen[value] then
            return "<table " .. id_of(value) .. ">"
        end
        if level >= depth or level >= deepest then
            return "{...}"
        end
        seen[value] = true
        local length, keys, parts = #value, {}, {}
        for key in pairs(value) do
            if not (type(key) == "number" and key >= 1 and key <= length and floor(key) == key) then
                keys[#keys + 1] = key
            end
        end
        sort(keys, before)
        for _, item in ipairs(value) do
            parts[#parts + 1] = " " .. show(item, level + 1)
        end
        for _, key in ipairs(keys) do
            local lead = newline .. indent:rep(level + 1)
            parts[#parts + 1] = lead .. key_of(key, level) .. " = " .. show(value[key], level + 1)
        end
        local meta = getmetatable(value)
        if type(meta) == "table" then
            parts[#parts + 1] = newline .. indent:rep(level + 1) .. "<metatable> = " .. show(meta, level + 1)
        end
        local has_lines = #keys > 0 or type(meta) == "table"
        return "{" .. concat(parts, ",") .. (has_lines and newline .. indent:rep(level) or #parts > 0 and " " or "")
            .. "}"
    end

    function show(value, level)
        if process then
            value = process(value)
        end
        local kind = type(value)
        if kind == "string" then
            return quoted(value)
        elseif kind == "table" then
            return table_of(value, level)
        elseif kind == "number" or kind == "boolean" or kind == "nil" then
            return tostring(value)
        end
        return "<" .. kind .. " " .. id_of(value) .. ">"
    end
    return show(root, 0)
end

return setmetatable(inspect, {
    __call = function(_, root, options)
        return inspect.inspect(root, options)
    end,
})
