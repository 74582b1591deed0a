-- resty.lrucache: a cache of one machine with the entries used last. `get` returns stale values as second result.
local setmetatable, type = setmetatable, type

local _M = { _VERSION = "0.15" }
local meta = { __index = _M }

-- The order is a ring of nodes: `ring.next` was used last.
local function reset(self)
    local ring = {}
    ring.next, ring.prev = ring, ring
    self.ring, self.nodes, self.used = ring, {}, 0
end

function _M.new(size)
    if type(size) ~= "number" or size < 1 then
        return nil, "size too small"
    end
    local self = setmetatable({ size = size }, meta)
    reset(self)
    return self
end

local function unlink(node)
    node.prev.next, node.next.prev = node.next, node.prev
end

local function link(ring, node)
    node.prev, node.next = ring, ring.next
    ring.next.prev = node
    ring.next = node
end

function _M.get(self, key)
    local node = self.nodes[key]
    if not node then
        return nil
    end
    unlink(node)
    link(self.ring, node)
    if node.expires and node.expires < ngx.now() then
        return nil, node.value, node.flags
    end
    return node.value, nil, node.flags
end

function _M.set(self, key, value, ttl, flags)
    local node = self.nodes[key]
    if node then
        unlink(node)
    else
        if self.used >= self.size then
            node = self.ring.prev
            unlink(node)
            self.nodes[node.key] = nil
        else
            node = {}
            self.used = self.used + 1
        end
        node.key = key
        self.nodes[key] = node
    end
    node.value, node.flags = value, type(flags) == "number" and flags >= 0 and flags or 0
    node.expires = ttl and ngx.now() + ttl or nil
    link(self.ring, node)
end

function _M.delete(self, key)
    local node = self.nodes[key]
    if not node then
        return false
    end
    unlink(node)
    self.nodes[key] = nil
    self.used = self.used - 1
    return true
end

function _M.count(self)
    return self.used
end

function _M.capacity(self)
    return self.size
end

function _M.get_keys(self, max, res)
    res = res or {}
    local count, node = 0, self.ring.next
    while node ~= self.ring and (not max or max == 0 or count < max) do
        count = count + 1
        res[count] = node.key
        node = node.next
    end
    res[count + 1] = nil
    return res
end

function _M.flush_all(self)
    reset(self)
end

return _M
