-- pl.stringx: functions on texts without patterns.
local find, sub, rep, match, gsub, floor = string.find, string.sub, string.rep, string.match, string.gsub, math.floor
local concat, ipairs, type, tostring = table.concat, ipairs, type, tostring
local M = {}

function M.startswith(s, prefix)
    for _, p in ipairs(type(prefix) == "table" and prefix or { prefix }) do
        if sub(s, 1, #p) == p then
            return true
        end
    end
    return false
end

function M.endswith(s, suffix)
    for _, p in ipairs(type(suffix) == "table" and suffix or { suffix }) do
        if p == "" or #s >= #p and sub(s, -#p) == p then
            return true
        end
    end
    return false
end

local function class(chars)
    return chars and "[" .. gsub(chars, "[%]%^%-%%]", "%%%0") .. "]" or "%s"
end

function M.lstrip(s, chars)
    return (gsub(s, "^" .. class(chars) .. "+", ""))
end

function M.rstrip(s, chars)
    local at, one = #s, "^" .. class(chars)
    while at > 0 and match(sub(s, at, at), one) do
        at = at - 1
    end
    return sub(s, 1, at)
end

function M.strip(s, chars)
    return M.rstrip(M.lstrip(s, chars), chars)
end

function M.split(s, separator, most)
    local out, at = {}, 1
    if not separator then
        s = M.lstrip(s)
    end
    while not most or #out < most - 1 do
        local from, to = find(s, separator or "%s+", at, separator ~= nil)
        if not from or to < from then
            break
        end
        out[#out + 1] = sub(s, at, from - 1)
        at = to + 1
    end
    local rest = sub(s, at)
    if rest ~= "" or separator then
        out[#out + 1] = rest
    end
    return out
end

function M.splitlines(s)
    local out = {}
    for line in (s:gsub("\r\n?", "\n") .. (match(s, "[\r\n]$") and "" or "\n")):gmatch("(.-)\n") do
        out[#out + 1] = line
    end
    return out
end

function M.partition(s, separator)
    local from, to = find(s, separator, 1, true)
    if not from then
        return s, "", ""
    end
    return sub(s, 1, from - 1), separator, sub(s, to + 1)
end

function M.rpartition(s, separator)
    local last
    local from, to = find(s, separator, 1, true)
    while from do
        last = { from, to }
        from, to = find(s, separator, to + 1, true)
    end
    if not last then
        return "", "", s
    end
    return sub(s, 1, last[1] - 1), separator, sub(s, last[2] + 1)
end

function M.replace(s, old, new, most)
    local out, at, count = {}, 1, 0
    while not most or count < most do
        local from, to = find(s, old, at, true)
        if not from or to < from then
            break
        end
        out[#out + 1] = sub(s, at, from - 1)
        out[#out + 1] = new
        at, count = to + 1, count + 1
    end
    out[#out + 1] = sub(s, at)
    return concat(out)
end

function M.count(s, text)
    local count, from, to = 0, find(s, text, 1, true)
    while from and to >= from do
        count = count + 1
        from, to = find(s, text, to + 1, true)
    end
    return count
end

function M.join(separator, list)
    local out = {}
    for at, item in ipairs(list) do
        out[at] = tostring(item)
    end
    return concat(out, separator)
end

function M.lfind(s, text, from, to)
    local at, last = find(s, text, from or 1, true)
    return at and (not to or last <= to) and at or nil
end

function M.ljust(s, width, char)
    return s .. rep(char or " ", width - #s)
end

function M.rjust(s, width, char)
    return rep(char or " ", width - #s) .. s
end

function M.center(s, width, char)
    local space = width - #s
    if space <= 0 then
        return s
    end
    local left = floor(space / 2)
    return rep(char or " ", left) .. s .. rep(char or " ", space - left)
end

function M.title(s)
    return (gsub(s, "(%S)(%S*)", function(first, others)
        return first:upper() .. others:lower()
    end))
end

function M.shorten(s, width)
    return #s <= width and s or sub(s, 1, width - 3) .. "..."
end

for name, shape in pairs({
    isalpha = "^%a+$", isdigit = "^%d+$", isalnum = "^%w+$", isspace = "^%s+$",
}) do
    M[name] = function(s)
        return find(s, shape) == 1
    end
end

function M.islower(s)
    return find(s, "^[%l%s]+$") == 1
end

function M.isupper(s)
    return find(s, "^[%u%s]+$") == 1
end

-- Adds the functions to the metatable of texts.
function M.import()
    for name, fun in pairs(M) do
        if string[name] == nil then
            string[name] = fun
        end
    end
end

return M
