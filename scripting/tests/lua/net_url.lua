local url = require("net.url")
local test = {}

function test.parts()
    local one = url.parse("https://us%20er:pw@Example.com:8443/a%20b/c?x=1&y=%40&x=2&flag#top")
    eq({ one.scheme, one.user, one.password, one.host, one.port, one.path, one.fragment },
        { "https", "us er", "pw", "example.com", 8443, "/a%20b/c", "top" })
    eq(one.query.x, { "1", "2" })
    eq({ one.query.y, one.query.flag }, { "@", "" })
    eq(one.authority, "us%20er:pw@Example.com:8443")
end

function test.parts_that_are_missing()
    local one = url.parse("args=%40%23%24%25%5E%26")
    eq(one.path, "args=@%23$%25%5E&")
    eq({ one.scheme == nil, one.host == nil, one.port == nil }, { true, true, true })
    eq(url.parse("http://[::1]:80/").host, "[::1]")
    eq(url.parse("http://[::1]/").port, nil)
    eq(url.parse(nil).path, "")
end

function test.a_url_is_built_of_its_parts()
    eq(tostring(url.parse("HTTP://u:p@a.com:80/b c?z=1&a=%26#f")), "http://u:p@a.com:80/b%20c?a=%26&z=1#f")
    local one = url.parse("http://a.com")
    one.path = "x"
    one:setQuery({ b = { 1, 2 } })
    eq(one:build(), "http://a.com/x?b=1&b=2")
    eq(tostring(url.parseQuery("b=1&a=2")), "a=2&b=1")
end

return test
