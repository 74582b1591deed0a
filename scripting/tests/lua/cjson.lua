local cjson, safe = require("cjson"), require("cjson.safe")
local test = {}

function test.encode_scalars()
    eq(cjson.encode("a\"\\/\n\r\t\b\f\1\127é"), [["a\"\\\/\n\r\t\b\f\u0001\u007fé"]])
    eq(cjson.encode(1), "1")
    eq(cjson.encode(-1.5), "-1.5")
    eq(cjson.encode(0.1), "0.1")
    eq(cjson.encode(1e100), "1e+100")
    eq(cjson.encode(12345678901234), "12345678901234")
    eq(cjson.encode(true), "true")
    eq(cjson.encode(nil), "null")
    eq(cjson.encode(cjson.null), "null")
    eq(cjson.null == ngx.null, true)
end

function test.encode_tables()
    eq(cjson.encode({ 1, 2, { a = "b" } }), '[1,2,{"a":"b"}]')
    eq(cjson.encode({}), "{}")
    eq(cjson.encode(cjson.empty_array), "[]")
    eq(cjson.encode(setmetatable({}, cjson.array_mt)), "[]")
    eq(cjson.encode(setmetatable({}, cjson.empty_array_mt)), "[]")
    eq(cjson.encode(setmetatable({ 1, a = 2 }, cjson.array_mt)), "[1]")
    eq(cjson.encode({ [2] = 1 }), "[null,1]")
    eq(cjson.encode({ [1.5] = 1 }), '{"1.5":1}')
    raises("excessively sparse array", cjson.encode, { [1000] = 1 })
    raises("type not supported", cjson.encode, print)
    raises("table key must be a number or string", cjson.encode, { [true] = 1 })
    raises("must not be NaN or Infinity", cjson.encode, 0 / 0)
end

function test.encode_depth()
    local deep = {}
    for _ = 1, 1100 do deep = { deep } end
    raises("excessive depth (1001)", cjson.encode, deep)
    local own = cjson.new()
    own.encode_max_depth(2)
    raises("excessive depth (3)", own.encode, { { {} } })
    eq(cjson.encode({ { {} } }), "[[{}]]")
    local round = {}
    round.self = round
    raises("excessive depth", cjson.encode, round)
end

function test.decode()
    eq(cjson.decode('{"a":[1,-2.5e3,true,false,null,"x\\u00e9\\ud83d\\ude00\\n"]}'),
        { a = { 1, -2500, true, false, ngx.null, "xé😀\n" } })
    eq(cjson.decode(" [ ] "), {})
    eq(cjson.decode('"a"'), "a")
    eq(cjson.decode("0x1F"), 31)
end

function test.decode_errors()
    for text, err in pairs({
        [""] = "Expected value but found T_END at character 1",
        ["{"] = "Expected object key string but found T_END at character 2",
        ['{"a"}'] = "Expected colon but found T_OBJ_END at character 5",
        ['{"a":1'] = "Expected comma or object end but found T_END at character 7",
        ["[1"] = "Expected comma or array end but found T_END at character 3",
        ["[1,]"] = "Expected value but found T_ARR_END at character 4",
        ["1 2"] = "Expected the end but found T_NUMBER at character 3",
        ["abc"] = "Expected value but found invalid token at character 1",
        ['"abc'] = "Expected value but found unexpected end of string at character 5",
        ['"\\x"'] = "Expected value but found invalid escape code at character 2",
        ['"\\ud800"'] = "Expected value but found invalid unicode escape code at character 2",
        ["-"] = "Expected value but found invalid number at character 1",
    }) do
        local value, reason = safe.decode(text)
        eq(value, nil)
        eq(reason, err)
        raises(err, cjson.decode, text)
    end
    raises("does not support UTF-16", cjson.decode, "\0a")
    raises("string expected, got table", cjson.decode, {})
    eq(select(2, safe.decode(nil)), "bad argument #1 to 'decode' (string expected, got no value)")
    eq(select(2, safe.decode(("["):rep(1001))),
        "Found too many nested data structures (1001) at character 1001")
end

function test.safe_encode()
    local text, err = safe.encode(print)
    eq(text, nil)
    eq(err, "Cannot serialise function: type not supported")
end

function test.settings()
    local own = safe.new()
    own.encode_empty_table_as_object(false)
    eq(own.encode({}), "[]")
    own.encode_escape_forward_slash(false)
    eq(own.encode("a/b"), '"a/b"')
    own.encode_number_precision(3)
    eq(own.encode(3.14159), "3.14")
    own.encode_sparse_array(true)
    eq(own.encode({ [1000] = 1 }), '{"1000":1}')
    own.encode_invalid_numbers("null")
    eq(own.encode(0 / 0), "null")
    own.encode_skip_unsupported_value_types(true)
    eq(own.encode({ a = print }), "{}")
    eq(own.encode({ 1, print, 2 }), "[1,2]")
    own.encode_sort_keys(true)
    eq(own.encode({ b = 1, a = 2 }), '{"a":2,"b":1}')
    own.encode_indent("  ")
    eq(own.encode({ a = { 1 } }), '{\n  "a": [\n    1\n  ]\n}')
    own.decode_invalid_numbers(false)
    eq(own.decode("NaN"), nil)
    eq(own.decode("012"), nil)
    own.decode_array_with_array_mt(true)
    eq(own.encode_empty_table_as_object(true), true)
    eq(own.encode(own.decode("[]")), "[]")
    own.decode_max_depth(1)
    eq(own.decode("[[]]"), nil)
    eq(own.encode_keep_buffer(), true)
    eq(safe.encode({}), "{}")
    raises("expected integer between 1 and 17", own.encode_number_precision, 99)
end

return test
