local test = {}

function test.encode_base64()
    eq(ngx.encode_base64("hello"), "aGVsbG8=")
    eq(ngx.encode_base64("hello", true), "aGVsbG8")
    eq(ngx.encode_base64(nil), "")
    eq(ngx.encode_base64(12), "MTI=")
end

function test.decode_base64()
    eq(ngx.decode_base64("aGVsbG8="), "hello")
    eq(ngx.decode_base64("aGVsbG8"), "hello")
    eq(ngx.decode_base64("a"), nil)
    eq(ngx.decode_base64("!!!!"), nil)
    raises("string argument only", ngx.decode_base64, nil)
    eq(ngx.decode_base64mime("aGVs\r\nbG8="), "hello")
end

function test.escape_uri()
    eq(ngx.escape_uri("a b/&=é~"), "a%20b%2F%26%3D%C3%A9~")
    eq(ngx.escape_uri("/a b?c#d%", 0), "/a%20b%3Fc%23d%25")
    eq(ngx.escape_uri(nil), "")
    raises("is not expected", ngx.escape_uri, "a", 7)
end

function test.unescape_uri()
    eq(ngx.unescape_uri("b%20r56+7"), "b r56 7")
    eq(ngx.unescape_uri("try %search%%20%again%"), "try %search% %again%")
    eq(ngx.unescape_uri("%2"), "%2")
end

function test.encode_args()
    eq(ngx.encode_args({ foo = { "baz", "" } }), "foo=baz&foo=")
    eq(ngx.encode_args({ foo = true }), "foo")
    eq(ngx.encode_args({ foo = false }), "")
    eq(ngx.encode_args({ ["a b"] = "c&d" }), "a%20b=c%26d")
    raises("attempt to use function as query arg value", ngx.encode_args, { a = print })
end

function test.decode_args()
    eq(ngx.decode_args("a=1&b&c=&a=2&=x&d=%20+"), { a = { "1", "2" }, b = true, c = "", d = "  " })
    local args, err = ngx.decode_args("a=1&b=2&c=3", 2)
    eq(args, { a = "1", b = "2" })
    eq(err, "truncated")
    local many = {}
    for i = 1, 150 do many[i] = "k" .. i .. "=v" end
    local query = table.concat(many, "&")
    eq(select(2, ngx.decode_args(query)), "truncated")
    eq(ngx.decode_args(query, 0).k150, "v")
end

function test.md5()
    eq(ngx.md5("hello"), "5d41402abc4b2a76b9719d911017c592")
    eq(#ngx.md5_bin("hello"), 16)
    eq(ngx.md5(nil), "d41d8cd98f00b204e9800998ecf8427e")
end

function test.sha1_bin()
    eq(ngx.encode_base64(ngx.sha1_bin("hello")), "qvTGHdzF6KLavt4PO0gs2a6pQ00=")
end

function test.hmac_sha1()
    eq(ngx.encode_base64(ngx.hmac_sha1("thisisverysecretstuff", "some string we want to sign")),
        "R/pvxzHC4NLtj7S+kXFg/NePTmk=")
end

function test.crc32()
    eq(ngx.crc32_short("hello"), 907060870)
    eq(ngx.crc32_long("hello"), 907060870)
end

function test.quote_sql_str()
    eq(ngx.quote_sql_str("a'b\"c\\\n\0"), [['a\'b\"c\\\n\0']])
end

function test.http_time()
    eq(ngx.http_time(1290079655), "Thu, 18 Nov 2010 11:27:35 GMT")
    eq(ngx.cookie_time(1290079655), "Thu, 18-Nov-10 11:27:35 GMT")
    eq(ngx.cookie_time(2290079655), "Sun, 27-Jul-2042 13:14:15 GMT")
    eq(ngx.parse_http_time("Thu, 18 Nov 2010 11:27:35 GMT"), 1290079655)
    eq(ngx.parse_http_time("soon"), nil)
    raises("outside of the years", ngx.http_time, -1)
    raises("outside of the years", ngx.http_time, 0 / 0)
end

function test.constants()
    eq(ngx.OK, 0)
    eq(ngx.ERR, 4)
    eq(ngx.HTTP_GET, 2)
    eq(ngx.HTTP_TOO_MANY_REQUESTS, 429)
    eq(type(ngx.null), "userdata")
end

function test.errors_are_texts_with_a_position()
    local ok, err = pcall(function() local _ = ngx.quote_sql_str({}) end)
    eq(ok, false)
    assert(err:find("ngx_text.lua:%d+: bad argument #1 to 'quote_sql_str' %(string expected, got table%)"), err)
end

function test.unknown_modules()
    raises("similar names: apisix.core.table", require, "apisix.core.tabel")
end

return test
