-- resty.openssl and resty.openssl.rand.
local name, native = ...
local random = native("digest").random
if name == "resty.openssl.rand" then
    return {
        bytes = function(length)
            return random(length)
        end,
    }
end
return {
    digest = require("resty.openssl.digest"),
    hmac = require("resty.openssl.hmac"),
    pkey = require("resty.openssl.pkey"),
    rand = require("resty.openssl.rand"),
    x509 = require("resty.openssl.x509"),
}
