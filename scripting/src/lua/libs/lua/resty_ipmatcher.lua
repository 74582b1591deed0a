-- resty.ipmatcher: addresses and networks.
local _, native = ...
native = native("ip")
local parse, networks = native.parse, native.networks
local type, pairs, ipairs, setmetatable, find = type, pairs, ipairs, setmetatable, string.find

local _M = { _VERSION = 0.3 }
local meta = { __index = _M }

function _M.parse_ipv4(ip)
    if type(ip) ~= "string" or find(ip, ":", 1, true) then
        return false
    end
    return parse(ip)[1] or false
end

function _M.parse_ipv6(ip)
    if type(ip) ~= "string" or not find(ip, ":", 1, true) then
        return false
    end
    local parts = parse(ip)
    return parts[1] and parts or false
end

local function make(ips, values)
    local found, wrong = networks(ips)
    if not found then
        return nil, "invalid ip address: " .. wrong
    end
    return setmetatable({ networks = found, values = values }, meta)
end

function _M.new(ips)
    if not ips or type(ips) ~= "table" then
        error("missing valid ip argument", 2)
    end
    for at, ip in ipairs(ips) do
        if type(ip) ~= "string" then
            return nil, "invalid ip address: " .. tostring(ips[at])
        end
    end
    return make(ips)
end

function _M.new_with_value(ips)
    if not ips or type(ips) ~= "table" then
        error("missing valid ip argument", 2)
    end
    local keys, values = {}, {}
    for ip, value in pairs(ips) do
        keys[#keys + 1] = ip
        values[#keys] = value
    end
    return make(keys, values)
end

function _M.match(self, ip)
    if type(ip) ~= "string" then
        return false, "invalid ip address, not ipv4 and ipv6"
    end
    local at, is_invalid = self.networks:find(ip)
    if is_invalid then
        return false, "invalid ip address, not ipv4 and ipv6"
    end
    if not at then
        return false
    end
    return self.values and self.values[at] or true
end

-- An address as 4 or 16 bytes.
function _M.match_bin(self, bin)
    if #bin == 4 then
        return self:match(("%d.%d.%d.%d"):format(bin:byte(1, 4)))
    end
    if #bin ~= 16 then
        return false, "invalid ip address, not ipv4 and ipv6"
    end
    local parts = {}
    for at = 1, 15, 2 do
        parts[#parts + 1] = ("%02x%02x"):format(bin:byte(at, at + 1))
    end
    return self:match(table.concat(parts, ":"))
end

return _M
