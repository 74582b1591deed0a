local json = require("apisix.core.json")
local test = {}

function test.encode()
    eq(json.encode({ a = 1 }), '{"a":1}')
    local text, err = json.encode({ f = print })
    eq(text, nil)
    eq(err, "Cannot serialise function: type not supported")
    assert(json.encode({ f = print }, true):find('{"f":"function: ', 1, true))
    local round = { a = 1 }
    round.self = round
    assert(json.encode(round, true):find('"self":"table: ', 1, true))
    eq(json.encode(setmetatable({}, json.array_mt)), "[]")
end

function test.decode()
    eq(json.decode('{"a":null}'), { a = ngx.null })
    eq(json.decode('{"a":null,"b":{"c":null}}', { null_as_nil = true }), { b = {} })
    eq(json.decode("null", { null_as_nil = true }), nil)
    eq(select(2, json.decode("{")), "Expected object key string but found T_END at character 2")
end

function test.strip_nulls()
    eq(json.strip_nulls({ a = ngx.null, b = 1 }), { b = 1 })
end

function test.stably_encode()
    eq(json.stably_encode({ b = { 1, 2 }, a = "x/y", c = {} }), '{"a":"x/y","b":[1,2],"c":{}}')
    eq(json.canonical_encode({ b = 1, a = 2 }), '{"a":2,"b":1}')
end

function test.delay_encode()
    local delayed = json.delay_encode({ a = 1 })
    eq(tostring(delayed), '{"a":1}')
    assert(tostring(json.delay_encode({ print }, true)):find("function", 1, true))
end

function test.dkjson()
    local dkjson = require("dkjson")
    eq(dkjson.encode({ a = 1 }, { indent = true }), '{\n  "a": 1\n}')
    eq(dkjson.decode('{"a":1}'), { a = 1 })
    local value, position, err = dkjson.decode("{")
    eq(value, nil)
    eq(position, 1)
    assert(err:find("Expected", 1, true))
    eq(dkjson.quotestring("a\"b"), '"a\\"b"')
end

function test.rapidjson()
    local rapidjson = require("rapidjson")
    eq(rapidjson.encode({ b = 1, a = 2 }, { sort_keys = true }), '{"a":2,"b":1}')
    eq(rapidjson.encode(rapidjson.array({})), "[]")
    eq(rapidjson.encode(rapidjson.object({})), "{}")
    eq(rapidjson.decode("[1]"), { 1 })
end

return test
