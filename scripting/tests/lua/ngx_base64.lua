local base64 = require("ngx.base64")
local test = {}

function test.url()
    eq(base64.encode_base64url("\255\254\253"), "__79")
    eq(base64.encode_base64url("a"), "YQ")
    eq(base64.decode_base64url("__79"), "\255\254\253")
    eq({ base64.decode_base64url("+/79") }, { nil, "invalid input" })
    eq({ base64.encode_base64url(5) }, { nil, "must provide a string" })
    eq(base64.decode_base64mime("YQ\n=="), "a")
end

return test
