local re, split = ngx.re, require("ngx.re").split
local test = {}

function test.match()
    eq(re.match("hello, 1234", "([0-9])([0-9]+)"), { [0] = "1234", "1", "234" })
    eq(re.match("hello", "[0-9]"), nil)
    eq(re.match("hello, world", "(world)|(hello)|(?<named>howdy)"),
        { [0] = "hello", false, "hello", false, named = false })
    eq(re.match("a1", "(?<letter>[a-z])(?P<digit>\\d)").digit, "1")
    local ctx = { pos = 4 }
    eq(re.match("12 34", "\\d+", "jo", ctx)[0], "34")
    eq(ctx.pos, 6)
    local found, err = re.match("x", "(")
    eq(found, nil)
    assert(err:find("pcre_compile() failed", 1, true), err)
    local res = { old = 1 }
    eq(re.match("ab", "a", nil, nil, res) == res, true)
    eq(res[0], "a")
    eq(re.match(12, "2")[0], "2")
end

function test.options()
    eq(re.match("ABC", "abc", "i")[0], "ABC")
    eq(re.match("a\nb", "a.b"), nil)
    eq(re.match("a\nb", "a.b", "s")[0], "a\nb")
    eq(re.match("a\nb", "^b", "m")[0], "b")
    eq(re.match("ab", "a b # both", "x")[0], "ab")
    eq(re.match("ba", "a", "a"), nil)
    eq(re.match("ba", "a", "a", { pos = 2 })[0], "a")
    eq(re.match("é", "^.$"), nil)
    eq(re.match("é", "^.$", "u")[0], "é")
    eq(re.match("ab\n", "b$")[0], "b")
    local _, err = re.match("a", "a", "q")
    assert(err:find('unknown flag "q"', 1, true), err)
end

function test.look_around()
    eq(re.match("foobar", "foo(?=bar)")[0], "foo")
    eq(re.match("foobaz", "foo(?!baz)"), nil)
    eq(re.match("abab", "(ab)\\1")[0], "abab")
    eq(re.match("x1", "(?<=x)\\d", "", { pos = 2 })[0], "1")
    local text = ("a"):rep(200000) .. "b"
    local _, err = re.match(text, "^(?=(a+)+$)")
    assert(err:find("pcre_exec() failed", 1, true), err)
end

function test.find()
    local from, to = re.find("hello, 1234", "([0-9]+)")
    eq({ from, to }, { 8, 11 })
    eq({ re.find("hello, 1234", "([0-9])([0-9]+)", nil, nil, 2) }, { 9, 11 })
    eq(re.find("a", "b"), nil)
    local ctx = { pos = 3 }
    eq({ re.find("a1b2", "\\d", "jo", ctx) }, { 4, 4 })
    eq(ctx.pos, 5)
    local _, _, err = re.find("a", "a", nil, nil, 3)
    eq(err, "nth out of bound")
    eq({ re.find("abc", "") }, { 1, 0 })
end

function test.gmatch()
    local words = {}
    for m in re.gmatch("hello, world!", "([a-z]+)", "i") do words[#words + 1] = m[1] end
    eq(words, { "hello", "world" })
    local it = re.gmatch("ab", "x*")
    eq(it()[0], "")
    eq(it()[0], "")
    eq(it()[0], "")
    eq(it(), nil)
    eq(it(), nil)
    eq(select(2, re.gmatch("a", "(")) ~= nil, true)
end

function test.sub()
    eq({ re.sub("hello, 1234", "([0-9])[0-9]", "[$0][$1]") }, { "hello, [12][1]34", 1 })
    eq({ re.sub("hello, 1234", "[0-9]", "${0}x$$") }, { "hello, 1x$234", 1 })
    eq({ re.sub("abc", "x", "y") }, { "abc", 0 })
    eq({ re.sub("abc", "b", function(m) return "[" .. m[0] .. "$0]" end) }, { "a[b$0]c", 1 })
    local _, _, err = re.sub("a", "a", "$x")
    assert(err:find("replacement template", 1, true), err)
    raises("string, number, or function expected", re.sub, "a", "a", {})
end

function test.gsub()
    eq({ re.gsub("hello, world", "([a-z])[a-z]+", "[$0,$1]", "i") }, { "[hello,h], [world,w]", 2 })
    eq({ re.gsub("abc", "", "-") }, { "-a-b-c-", 4 })
    eq({ re.gsub("a.b.c", "\\.", function() return "" end, "jo") }, { "abc", 2 })
    eq({ re.gsub("aXbX", "x", "", "i") }, { "ab", 2 })
    eq({ re.gsub("abc", "", function() return "-" end) }, { "-a-b-c-", 4 })
    eq({ re.gsub("  a,  b", "^\\s+", "", "mjo") }, { "a,  b", 1 })
end

function test.cache_is_bounded()
    for i = 1, 1500 do
        eq(re.match("a" .. i, "^a" .. i .. "$")[0], "a" .. i)
    end
    eq(re.match("a1", "^a1$")[0], "a1")
end

-- The cases of lua-resty-core's documentation and behaviour.
function test.split()
    for _, case in ipairs({
        { { "a,b,c,d", "," }, "a b c d" },
        { { "a;,b;,c", "(;)," }, "a ; b ; c" },
        { { "a,b,c", "(;)|," }, "a b c" },
        { { "a,b,c,d,e", ",", nil, nil, 3 }, "a b c,d,e" },
        { { "a,b,c", "(,)", nil, nil, 2 }, "a , b,c" },
        { { "a,b", ",", nil, nil, 1 }, "a,b" },
        { { "a,b", ",", nil, nil, -1 }, "a b" },
        { { "a,b,c,d,e", ",", nil, { pos = 5 } }, "c d e" },
        { { "a,b", ",", nil, { pos = 10 } }, "" },
        { { ",a,b,", "," }, " a b" },
        { { "abcd", "," }, "abcd" },
        { { 1234512345, "23", "jo" }, "1 451 45" },
        { { "12345", "" }, "1 2 3 4 5" },
        { { "12345", "", "jo", nil, 3 }, "1 2 345" },
        { { "12345", "", "jo", { pos = 2 }, 2 }, "2 345" },
        { { "abcd", "|" }, "a b c d" },
        { { "abcd", "()" }, "a  b  c  d" },
        { { "ab\ncd", "^" }, "ab\ncd" },
        { { "ab\ncd\nef", "^", "m" }, "ab\n cd\n ef" },
        { { "a,b,cd,,,", "," }, "a b cd" },
        { { "a,b,cd,,,", ",", nil, nil, 4 }, "a b cd ,," },
        { { "/a/b", "/" }, " a b" },
    }) do
        eq(table.concat(split(unpack(case[1], 1, 5)), " "), case[2])
    end
    local res = { "x", "x", "x", "x" }
    eq(split("a,b", ",", nil, nil, nil, res) == res, true)
    eq({ res[1], res[2], res[3] }, { "a", "b" })
    eq(select(2, split("a", "(")) ~= nil, true)
end

return test
