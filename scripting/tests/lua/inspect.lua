local inspect = require("inspect")
local test = {}

function test.values()
    eq(inspect(1), "1")
    eq(inspect('a"b'), "'a\"b'")
    eq(inspect("a\n"), '"a\\n"')
    eq(inspect(nil), "nil")
    eq(inspect({}), "{}")
    eq(inspect({ 1, "a" }), '{ 1, "a" }')
    eq(inspect({ a = 1, ["b c"] = true }), '{\n  a = 1,\n  ["b c"] = true\n}')
    eq(inspect({ { 1 }, x = {} }), "{ { 1 },\n  x = {}\n}")
    eq(inspect(print), "<function 1>")
    local round = {}
    round.me = round
    eq(inspect(round), "{\n  me = <table 1>\n}")
    eq(inspect({ a = { b = { c = 1 } } }, { depth = 1 }), "{\n  a = {...}\n}")
    eq(inspect.inspect({ a = 1 }, { newline = "", indent = "" }), "{a = 1}")
    eq(inspect({ a = 1 }, { process = function(v) return v == 1 and 2 or v end }), "{\n  a = 2\n}")
    eq(inspect(setmetatable({}, { x = 1 })), "{\n  <metatable> = {\n    x = 1\n  }\n}")
end

return test
