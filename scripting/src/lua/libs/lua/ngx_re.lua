-- The module ngx.re: `split`.
local find, match, sub = ngx.re.find, ngx.re.match, string.sub
local tostring, type = tostring, type

local _M = { version = "0.1.28" }

-- Patterns have no settings of an engine here.
function _M.opt() end

-- `max` is the number of parts, 0 for all. The first group of a separator is a part as well. Without `max`, empty
-- parts at the end are left out.
function _M.split(subject, regex, options, ctx, max, res)
    subject = type(subject) == "string" and subject or tostring(subject)
    max, res = max or 0, res or {}
    local length, start = #subject, ctx and ctx.pos or 1
    local at, pieces, count = start, 0, 0
    while start <= length and (max <= 0 or pieces < max - 1) do
        local from, to, err = find(subject, regex, options, { pos = at })
        if err then
            return nil, err
        end
        if not from or to < from and from > length then
            break
        end
        if to < from and from == start then
            -- An empty match separates nothing from the part before.
            at = from + 1
        else
            pieces, count = pieces + 1, count + 1
            res[count] = sub(subject, start, from - 1)
            local groups = match(subject, regex, options, { pos = at })
            if groups and groups[1] then
                count = count + 1
                res[count] = groups[1]
            end
            start = to + 1
            at = to < from and from + 1 or start
        end
    end
    if start <= length then
        count = count + 1
        res[count] = sub(subject, start)
    elseif max <= 0 then
        while count > 0 and res[count] == "" do
            res[count] = nil
            count = count - 1
        end
    end
    res[count + 1] = nil
    return res
end

return _M
