-- tablepool: tables are cleared and used again; a pool keeps up to 100.
local clear = require("table.clear")
local pools, _M = {}, {}

function _M.fetch(tag)
    local pool = pools[tag]
    local count = pool and #pool or 0
    if count == 0 then
        return {}
    end
    local tab = pool[count]
    pool[count] = nil
    return tab
end

function _M.release(tag, tab, noclear)
    if not tab then
        error("object empty", 2)
    end
    local pool = pools[tag]
    if not pool then
        pool = {}
        pools[tag] = pool
    end
    if not noclear then
        setmetatable(tab, nil)
        clear(tab)
    end
    if #pool < 100 then
        pool[#pool + 1] = tab
    end
end

return _M
