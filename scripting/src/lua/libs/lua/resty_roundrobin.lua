-- `resty.roundrobin` of lua-resty-balancer: ids in turn, each as often as its weight.
local error, floor, pairs, random, setmetatable, type = error, math.floor, pairs, math.random, setmetatable, type

local _M = {}
local mt = { __index = _M }

local function gcd(a, b)
    while b > 0 do
        a, b = b, a % b
    end
    return a
end

-- Sets the largest weight, and the step between the rounds.
local function measure(self)
    local most, step = 0, 0
    for _, weight in pairs(self.nodes) do
        most, step = weight > most and weight or most, gcd(weight, step)
    end
    self.max_weight, self.gcd = most, step
end

-- The id after this one, and its weight; nil at the end.
local function following(self, id)
    for at = id == nil and 1 or self.at[id] + 1, #self.ids do
        local next_id = self.ids[at]
        if next_id ~= nil then
            return next_id, self.nodes[next_id]
        end
    end
end

function _M.reinit(self, nodes)
    self.nodes, self.ids, self.at = {}, {}, {}
    for id, weight in pairs(nodes) do
        if type(weight) ~= "number" or weight < 0 then
            error("bad weight", 2)
        end
        self.nodes[id] = floor(weight)
        self.ids[#self.ids + 1] = id
        self.at[id] = #self.ids
    end
    measure(self)
    -- Workers that began at the same id would send their first requests to one server.
    self.last_id, self.cw = nil, self.max_weight
    for _ = 2, random(1, #self.ids > 0 and #self.ids or 1) do
        self:find()
    end
end

function _M.new(_, nodes)
    local self = setmetatable({}, mt)
    self:reinit(nodes)
    return self
end

function _M.find(self)
    if self.max_weight == 0 then
        return nil
    end
    while true do
        local id, weight = following(self, self.last_id)
        if id == nil then
            self.cw = self.cw - self.gcd
            if self.cw <= 0 then
                self.cw = self.max_weight
            end
            self.last_id = nil
        else
            self.last_id = id
            if weight >= self.cw then
                return id
            end
        end
    end
end
_M.next = _M.find

function _M.set(self, id, weight)
    local nodes = self.nodes
    weight = weight and floor(weight) or 0
    if weight < 0 then
        error("bad weight", 2)
    end
    if weight == 0 then
        nodes[id] = nil
    else
        nodes[id] = weight
    end
    self:reinit(nodes)
end

function _M.incr(self, id, weight)
    self:set(id, (self.nodes[id] or 0) + (weight or 1))
end

function _M.decr(self, id, weight)
    local left = (self.nodes[id] or 0) - (weight or 1)
    self:set(id, left > 0 and left or 0)
end

function _M.delete(self, id)
    self:set(id, 0)
end

return _M
