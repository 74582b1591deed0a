local stringx, tablex, url = require("pl.stringx"), require("pl.tablex"), require("socket.url")
local test = {}

function test.stringx()
    for _, case in ipairs({
        { stringx.startswith("abc", "ab"), true }, { stringx.startswith("abc", { "x", "a" }), true },
        { stringx.endswith("abc", "bc"), true }, { stringx.endswith("abc", "b"), false },
        { stringx.strip("  a b \n"), "a b" }, { stringx.lstrip("xxa", "x"), "a" }, { stringx.rstrip("a]]", "]"), "a" },
        { stringx.split("a,b,,c", ","), { "a", "b", "", "c" } }, { stringx.split(" a  b "), { "a", "b" } },
        { stringx.split("a,b,c", ",", 2), { "a", "b,c" } }, { stringx.splitlines("a\r\nb\n"), { "a", "b" } },
        { { stringx.partition("a=b=c", "=") }, { "a", "=", "b=c" } }, { { stringx.partition("a", "=") }, { "a", "", "" } },
        { { stringx.rpartition("a=b=c", "=") }, { "a=b", "=", "c" } },
        { stringx.replace("a.b.c", ".", "%"), "a%b%c" }, { stringx.replace("aaa", "a", "b", 2), "bba" },
        { stringx.count("a.b.c", "."), 2 }, { stringx.join(",", { 1, "b" }), "1,b" }, { stringx.lfind("abc", "c"), 3 },
        { stringx.ljust("a", 3), "a  " }, { stringx.rjust("a", 3, "0"), "00a" }, { stringx.center("a", 4), " a  " },
        { stringx.title("hello wORLD"), "Hello World" }, { stringx.shorten("abcdef", 5), "ab..." },
        { stringx.isalpha("ab"), true }, { stringx.isdigit("1a"), false }, { stringx.isalnum("1a"), true },
        { stringx.isspace(" "), true }, { stringx.islower("ab"), true }, { stringx.isupper("Ab"), false },
    }) do
        eq(case[1], case[2])
    end
    stringx.import()
    eq(("abc"):startswith("a"), true)
end

function test.tablex()
    eq(tablex.size({ 1, a = 2 }), 2)
    eq(tablex.copy({ a = 1 }), { a = 1 })
    eq(tablex.deepcopy({ a = { 1 } }), { a = { 1 } })
    eq(tablex.deepcompare({ a = { 1 } }, { a = { 1 } }), true)
    eq(tablex.deepcompare({ 1 }, { 1, 2 }), false)
    eq(tablex.keys({ a = 1 }), { "a" })
    eq(tablex.values({ a = 1 }), { 1 })
    eq(tablex.find({ "a", "b" }, "b"), 2)
    eq(tablex.map(function(v, by) return v * by end, { a = 2 }, 3), { a = 6 })
    eq(tablex.imap(tostring, { 1, 2 }), { "1", "2" })
    eq(tablex.filter({ 1, 2, 3 }, function(v) return v > 1 end), { 2, 3 })
    eq(tablex.reduce(function(a, b) return a + b end, { 1, 2, 3 }), 6)
    eq(tablex.update({ a = 1 }, { b = 2 }), { a = 1, b = 2 })
    eq(tablex.union({ a = 1 }, { b = 2 }), { a = 1, b = 2 })
    eq(tablex.intersection({ a = 1, c = 3 }, { a = 2 }), { a = 2 })
    eq(tablex.difference({ a = 1, b = 2 }, { a = 1 }), { b = 2 })
    eq(tablex.insertvalues({ 1, 4 }, 2, { 2, 3 }), { 1, 2, 3, 4 })
    eq(tablex.insertvalues({ 1 }, { 2 }), { 1, 2 })
    eq(tablex.makeset({ "a" }), { a = true })
    local order = {}
    for key in tablex.sort({ b = 1, a = 2 }) do order[#order + 1] = key end
    eq(order, { "a", "b" })
end

function test.url()
    local parsed = url.parse("http://user:pw@host:8080/path;p?q=1#frag")
    eq(parsed, {
        scheme = "http", authority = "user:pw@host:8080", userinfo = "user:pw", user = "user", password = "pw",
        host = "host", port = "8080", path = "/path", params = "p", query = "q=1", fragment = "frag",
    })
    eq(url.build(parsed), "http://user:pw@host:8080/path;p?q=1#frag")
    eq(url.parse("http://[::1]:80/").host, "::1")
    eq(url.parse("/x", { scheme = "https" }).scheme, "https")
    eq({ url.parse("") }, { nil, "invalid url" })
    eq(url.escape("a b/"), "a%20b%2f")
    eq(url.unescape("a%20b"), "a b")
    eq(url.parse_path("/a/b%20c/"), { "a", "b c", is_absolute = 1, is_directory = 1 })
end

return test
