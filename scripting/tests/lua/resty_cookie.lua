local cookie = require("resty.cookie")
local test = {}

function test.get()
    ngx.var = { http_cookie = 'a=1; b="two"; c=x=y;d' }
    local jar = cookie:new()
    eq(jar:get("a"), "1")
    eq(jar:get("b"), "two")
    eq(jar:get("none"), nil)
    eq(jar:get_all(), { a = "1", b = "two", c = "x=y" })
    eq(jar:get_cookie_size(), 21)
    ngx.var = {}
    eq({ cookie:new():get("a") }, { nil, "no cookie found in the current request" })
end

function test.set()
    ngx.header = {}
    local jar = cookie:new()
    eq(jar:set({
        key = "Name", value = "Bob", path = "/", domain = "example.com", secure = true, httponly = true,
        expires = "Wed, 09 Jun 2021 10:18:14 GMT", max_age = 50, samesite = "strict", extension = "a4334aebaec",
    }), true)
    eq(ngx.header["Set-Cookie"], "Name=Bob; Expires=Wed, 09 Jun 2021 10:18:14 GMT; Max-Age=50; Domain=example.com; "
        .. "Path=/; Secure; HttpOnly; SameSite=Strict; a4334aebaec")
    jar:set({ key = "b", value = "2" })
    jar:set({ key = "b", value = "2" })
    eq(#ngx.header["Set-Cookie"], 2)
    jar:set({ key = "c", value = "3", max_age = 10 })
    assert(ngx.header["Set-Cookie"][3]:find("Expires=", 1, true))
    eq({ jar:set({ key = "a" }) }, { nil, 'missing cookie field "key" or "value"' })
    eq({ jar:set({ key = "a", value = "b\r\nX: y" }) }, { nil, 'cookie field "value" has an invalid character' })
end

return test
