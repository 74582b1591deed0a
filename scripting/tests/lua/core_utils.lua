local utils, core = require("apisix.core.utils"), require("apisix.core")
local test = {}

function test.parse_addr()
    for addr, want in pairs({
        ["127.0.0.1"] = { "127.0.0.1" },
        ["127.0.0.1:90"] = { "127.0.0.1", 90 },
        ["www.test.com:90"] = { "www.test.com", 90 },
        ["localhost"] = { "localhost" },
        ["localhost:90"] = { "localhost", 90 },
        ["[127.0.0.1:90"] = { "[127.0.0.1:90" },
        ["[::1]"] = { "[::1]" },
        ["[::1]:1234"] = { "[::1]", 1234 },
        ["::1"] = { "::1" },
        ["fe80::1:80"] = { "fe80::1:80" },
    }) do
        eq({ utils.parse_addr(addr) }, want)
    end
end

function test.resolve_var()
    local ctx = { remote_addr = "1.2.3.4", ["a.b"] = 5 }
    eq({ utils.resolve_var("x $remote_addr y${a.b}", ctx) }, { "x 1.2.3.4 y5", nil, 2 })
    eq(utils.resolve_var("${ none ?? other }", ctx), "other")
    eq(utils.resolve_var("$none!", ctx), "!")
    eq(utils.resolve_var("\\$remote_addr", ctx), "\\$remote_addr")
    eq(utils.resolve_var(nil, ctx), nil)
    eq(utils.resolve_var("$remote_addr", ctx, function(v) return "<" .. v .. ">" end), "<1.2.3.4>")
    eq(utils.resolve_var_with_captures("/$1/${2}-$3", { "a", "b" }), "/a/b-")
end

function test.uris()
    eq(utils.split_uri("/a/b"), { "", "a", "b" })
    eq(utils.uri_safe_encode("/a b?c#é<"), "/a%20b%3Fc%23%C3%A9%3C")
    eq(utils.escape_uri_control_chars("a\r\nb\0"), "a%0D%0Ab%00")
end

function test.headers()
    eq(utils.validate_header_field("X-A"), true)
    eq(utils.validate_header_field("X:A"), false)
    eq(utils.validate_header_field("X A"), false)
    eq(utils.validate_header_value("a b"), true)
    eq(utils.validate_header_value("a\r\nb"), false)
    eq(utils.validate_header_value(5), true)
end

function test.ids()
    assert(utils.generate_uuid_v7():match("^%x+%-%x+%-7%x%x%x%-[89ab]%x%x%x%-%x+$"))
    local one, two = utils.generate_uuid_v7(), utils.generate_uuid_v7()
    eq(one < two, true)
    eq(#one, 36)
    eq(type(utils.get_seed_from_urandom()), "number")
    eq(core.id.gen_uuid_v4() ~= core.id.gen_uuid_v4(), true)
    eq(core.id.get(), core.id.get())
    core.id.init("me")
    eq(core.id.get(), "me")
    eq(core.version.VERSION, "3.18.0")
end

function test.others()
    eq(utils.gethostname(), "unknown")
    utils.sleep(1)
    eq(utils.get_resolver(), nil)
    utils.set_resolver({ "1.1.1.1" })
    eq(utils.get_resolver(), { "1.1.1.1" })
    eq({ utils.dns_parse("a") }, { nil, "no resolver available" })
    eq(core.math.gcd(12, 18), 6)
    eq(utils.parse_ipv4("1.2.3.4"), 16909060)
    eq(utils.parse_ipv4("1.2.3"), false)
    eq(utils.parse_ipv6("::1"), { 0, 0, 0, 1 })
    eq(utils.parse_ipv6("1.2.3.4"), false)
end

function test.warnings()
    local logged = {}
    local log = ngx.log
    ngx.log = function(_, ...) logged[#logged + 1] = table.concat({ ... }) end
    utils.check_https({ "a.url", "list" }, { a = { url = "http://x" }, list = { "https://y" } }, "p")
    utils.check_tls_bool({ "ssl_verify" }, { ssl_verify = false }, "p")
    ngx.log = log
    eq(#logged, 2)
    local ctx = { var = {} }
    utils.set_var_rate_limiting_info(ctx, "k", 5, "4", 3)
    eq(require("cjson").decode(ctx.var.rate_limiting_info).rate_limiting_remaining, 4)
end

function test.tablepool()
    local t = core.tablepool.fetch("x", 0, 4)
    t.a = 1
    core.tablepool.release("x", t)
    eq(core.tablepool.fetch("x") == t, true)
    eq(t.a, nil)
    raises("object empty", core.tablepool.release, "x", nil)
end

return test
