local ipmatcher = require("resty.ipmatcher")
local tonumber, match = tonumber, string.match

local _M = {}

function _M.create_ip_matcher(list)
    local matcher, err = ipmatcher.new(list)
    if not matcher then
        ngx.log(ngx.ERR, "failed to create ip matcher: ", err)
        return nil
    end
    return matcher
end

function _M.validate_cidr_or_ip(ip)
    local address, length = match(ip, "^([^/]*)/(.*)$")
    local mask = 0
    if address then
        mask = tonumber(length)
        if not mask or mask < 0 or mask > 128 then
            return false
        end
    end
    address = address or ip
    if ipmatcher.parse_ipv4(address) then
        return mask <= 32
    end
    return ipmatcher.parse_ipv6(address)
end

return _M
