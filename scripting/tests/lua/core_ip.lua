local ip, ipmatcher = require("apisix.core.ip"), require("resty.ipmatcher")
local test = {}

function test.matcher()
    local matcher = ip.create_ip_matcher({ "10.0.0.0/8", "1.2.3.4", "2001:db8::/32" })
    eq(matcher:match("10.1.2.3"), true)
    eq(matcher:match("1.2.3.4"), true)
    eq(matcher:match("1.2.3.5"), false)
    eq(matcher:match("2001:db8::1"), true)
    eq(matcher:match("::1"), false)
    eq({ matcher:match("x") }, { false, "invalid ip address, not ipv4 and ipv6" })
    eq(matcher:match_bin("\1\2\3\4"), true)
    eq(matcher:match_bin("\32\1\13\184" .. ("\0"):rep(11) .. "\1"), true)
    eq(ip.create_ip_matcher({ "nonsense" }), nil)
    eq({ ipmatcher.new({ "1.2.3.4/40" }) }, { nil, "invalid ip address: 1.2.3.4/40" })
    raises("missing valid ip argument", ipmatcher.new, nil)
end

function test.new_with_value()
    local matcher = ipmatcher.new_with_value({ ["10.0.0.0/8"] = "wide", ["10.1.0.0/16"] = "narrow" })
    eq(matcher:match("10.1.0.1"), "narrow")
    eq(matcher:match("10.2.0.1"), "wide")
    eq(matcher:match("11.0.0.1"), false)
end

function test.validate_cidr_or_ip()
    eq(ip.validate_cidr_or_ip("1.2.3.4"), true)
    eq(ip.validate_cidr_or_ip("1.2.3.4/33"), false)
    eq(ip.validate_cidr_or_ip("1.2.3.4/x"), false)
    eq(ip.validate_cidr_or_ip("::1/64") and true, true)
    eq(ip.validate_cidr_or_ip("abc"), false)
end

return test
