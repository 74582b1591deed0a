local str = require("apisix.core.string")
local test = {}

function test.find()
    eq(str.find("a.b", "."), 2)
    eq(str.find("a.b.c", ".", 3), 4)
    eq(str.find("abc", "."), nil)
end

function test.has_prefix()
    eq(str.has_prefix("abc", "ab"), true)
    eq(str.has_prefix("abc", "b"), false)
    eq(str.has_prefix("a", "abc"), false)
    raises("unexpected type: s:nil, prefix:string", str.has_prefix, nil, "a")
end

function test.has_suffix()
    eq(str.has_suffix("abc", "bc"), true)
    eq(str.has_suffix("abc", ""), true)
    eq(str.has_suffix("c", "abc"), false)
    raises("unexpected type: s:string, suffix:nil", str.has_suffix, "a")
end

function test.rfind_char()
    eq(str.rfind_char("a:b:c", ":"), 4)
    eq(str.rfind_char("a:b:c", ":", 3), 2)
    eq(str.rfind_char("abc", ":"), nil)
end

function test.args()
    eq(str.decode_args("a=1"), { a = "1" })
    eq(str.encode_args({ a = 1 }), "a=1")
end

function test.lua_s_own()
    eq(str.upper("a"), "A")
end

return test
