local radix, expr = require("resty.radixtree"), require("resty.expr.v1")
local test = {}

function test.paths()
    local tree = radix.new({
        { paths = { "/a", "/b/*" }, metadata = "first" },
        { paths = { "/b/c/*" }, metadata = "longer" },
        { paths = "/*", metadata = "all" },
    })
    eq(tree:match("/a", {}), "first")
    eq(tree:match("/b/x", {}), "first")
    eq(tree:match("/b/c/x", {}), "longer")
    eq(tree:match("/zzz", {}), "all")
    eq(tree:match("x", {}), nil)
    local matched = {}
    tree:match("/b/rest", { matched = matched })
    eq(matched, { _path = "/b/*", [":ext"] = "rest" })
    eq({ radix.new() }, { nil, "missing argument route" })
    raises("invalid argument path", tree.match, tree, nil)
end

function test.parameters()
    local tree = radix.new({
        { paths = { "/name/:name/id/:id" }, metadata = "names" },
        { paths = { "/files/*path" }, metadata = "files" },
    })
    local matched = {}
    eq(tree:match("/name/json/id/1", { matched = matched }), "names")
    eq({ matched.name, matched.id }, { "json", "1" })
    eq(tree:match("/name/json", {}), nil)
    eq(tree:match("/name//id/1", {}), nil)
    eq(tree:match("/files/a/b", { matched = matched }), "files")
    eq(matched.path, "a/b")
end

function test.conditions()
    local tree = radix.new({
        { paths = { "/x" }, methods = { "GET" }, metadata = "get" },
        { paths = { "/x" }, methods = { "POST" }, hosts = { "*.foo.com", "bar.com" }, metadata = "post" },
        { paths = { "/x" }, remote_addrs = { "10.0.0.0/8" }, metadata = "ip" },
        { paths = { "/x" }, vars = { { "arg_a", "==", "1" } }, metadata = "vars" },
        { paths = { "/x" }, filter_fun = function(vars) return vars.go == "yes" end, metadata = "fun" },
    })
    eq(tree:match("/x", { method = "GET" }), "get")
    eq(tree:match("/x", { method = "POST", host = "a.FOO.com", vars = {} }), "post")
    eq(tree:match("/x", { method = "POST", host = "bar.com", vars = {} }), "post")
    eq(tree:match("/x", { method = "POST", host = "foo.com", vars = {} }), nil)
    eq(tree:match("/x", { remote_addr = "10.1.1.1", vars = {} }), "ip")
    eq(tree:match("/x", { vars = { arg_a = "1" } }), "vars")
    eq(tree:match("/x", { vars = { go = "yes" } }), "fun")
    local matched = {}
    tree:match("/x", { method = "POST", host = "a.foo.com", matched = matched, vars = {} })
    eq(matched, { _path = "/x", _host = "*.foo.com", _method = "POST" })
    eq(radix.new({ { paths = { "/" }, remote_addrs = { "x" } } }), nil)
    eq(radix.new({ { paths = { "/" }, vars = { { "a", "??", 1 } } } }), nil)
end

function test.priority_and_dispatch()
    local got
    local tree = radix.new({
        { paths = { "/p" }, metadata = "low" },
        { paths = { "/p" }, metadata = "high", priority = 5, handler = function(arg) got = arg end },
        { paths = { "/q" } },
    })
    eq(tree:match("/p", {}), "high")
    eq(tree:dispatch("/p", {}, "arg"), true)
    eq(got, "arg")
    eq(tree:dispatch("/none", {}), nil)
    eq({ tree:dispatch("/q", {}) }, { nil, "missing handler" })
end

function test.expressions()
    local vars = { name = "json", age = "20", list = { "a", "b" }, addr = "127.0.0.1", empty = "" }
    for _, case in ipairs({
        { { "name", "==", "json" }, true }, { { { "name", "==", "json" } }, true }, { {}, true },
        { { "age", ">", 18 }, true }, { { "age", "<", "18" }, false }, { { "age", ">=", 20 }, true },
        { { "age", "<=", 20 }, true }, { { "age", "==", 20 }, true }, { { "age", "~=", 20 }, false },
        { { "none", "==", "x" }, false }, { { "none", "~=", "x" }, true }, { { "none", "==", nil }, true },
        { { "none", ">", 1 }, false },
        { { "name", "~~", "^js" }, true }, { { "name", "~*", "^JS" }, true }, { { "name", "~~", "^JS" }, false },
        { { "list", "~~", "^b" }, true },
        { { "name", "in", { "x", "json" } }, true }, { { "list", "has", "b" }, true }, { { "list", "has", "z" }, false },
        { { "name", "!", "in", { "x" } }, true }, { { "name", "!", "==", "json" }, false },
        { { "addr", "ipmatch", { "127.0.0.0/24" } }, true }, { { "addr", "ipmatch", "10.0.0.1" }, false },
        { { "OR", { "name", "==", "x" }, { "age", "==", 20 } }, true },
        { { "AND", { "name", "==", "x" }, { "age", "==", 20 } }, false },
        { { "!AND", { "name", "==", "x" }, { "age", "==", 20 } }, true },
        { { "!OR", { "name", "==", "x" }, { "age", "==", 21 } }, true },
        { { { "name", "==", "json" }, { "OR", { "age", ">", 30 }, { "age", "<", 25 } } }, true },
    }) do
        local compiled = assert(expr.new(case[1]))
        eq(compiled:eval(vars), case[2])
    end
    eq(expr.new(), nil)
    eq({ expr.new({ { "a", "??", 1 } }) }, { nil, "invalid operator '??'" })
    eq({ expr.new({ "OR" }) }, { nil, "rule too short" })
    eq({ expr.new({ { 1, "==", 1 } }) }, { nil, "rule should be wrapped inside brackets" })
    local deep = { "a", "==", 1 }
    for _ = 1, 50 do deep = { deep } end
    eq({ expr.new(deep) }, { nil, "conditions are nested too deeply" })
end

return test
