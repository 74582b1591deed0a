-- ngx.re over the native search. Functions that make replacements are called from here, so they may wait.
local _, native = ...
native = native("regex")
local search, iterate, replace = native.search, native.iterate, native.replace
local type, tostring, error, concat, sub = type, tostring, error, table.concat, string.sub

local re = {}

local function text_of(value)
    if type(value) == "string" then
        return value
    end
    return tostring(value)
end

function re.match(subject, regex, options, ctx, res)
    local found, next_pos, _, err = search(text_of(subject), text_of(regex), options, ctx and ctx.pos, nil, res)
    if found and ctx then
        ctx.pos = next_pos
    end
    if err then
        return nil, err
    end
    return found
end

function re.find(subject, regex, options, ctx, nth)
    local from, to, next_pos, err = search(text_of(subject), text_of(regex), options, ctx and ctx.pos, nth or 0)
    if next_pos and ctx then
        ctx.pos = next_pos
    end
    if err then
        return nil, nil, err
    end
    return from, to
end

function re.gmatch(subject, regex, options)
    local step, err = iterate(text_of(subject), text_of(regex), options)
    if not step then
        return nil, err
    end
    return function()
        local found, _, _, failed = step()
        if failed then
            return nil, failed
        end
        return found
    end
end

local function substitute(subject, regex, template, options, all)
    subject, regex = text_of(subject), text_of(regex)
    if type(template) ~= "function" then
        if type(template) ~= "string" and type(template) ~= "number" then
            error("bad argument #3 to '" .. (all and "gsub" or "sub")
                .. "' (string, number, or function expected, got " .. type(template) .. ")", 3)
        end
        local new, count, _, err = replace(subject, regex, text_of(template), options, all)
        if err then
            return nil, nil, err
        end
        return new or subject, count
    end
    local step, err = iterate(subject, regex, options)
    if not step then
        return nil, nil, err
    end
    local parts, count, kept = {}, 0, 1
    while true do
        local found, from, to, failed = step()
        if failed then
            return nil, nil, failed
        end
        if not found then
            break
        end
        local new = template(found)
        if type(new) ~= "string" then
            new = tostring(new)
        end
        parts[#parts + 1] = sub(subject, kept, from - 1)
        parts[#parts + 1] = new
        count, kept = count + 1, to + 1
        if not all then
            break
        end
    end
    if count == 0 then
        return subject, 0
    end
    parts[#parts + 1] = sub(subject, kept)
    return concat(parts), count
end

function re.sub(subject, regex, template, options)
    return substitute(subject, regex, template, options, false)
end

function re.gsub(subject, regex, template, options)
    return substitute(subject, regex, template, options, true)
end

return re
