local multipart = require("multipart")
local test = {}

local body = "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n"
    .. "--x\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f.txt\"\r\nContent-Type: text/plain\r\n\r\nline\r\n\r\nmore\r\n"
    .. "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n2\r\n--x--\r\n"

function test.parts_are_found()
    local form = multipart(body, "multipart/form-data; boundary=x")
    eq(form:get("a").value, "1")
    eq(form:get("f").value, "line\r\n\r\nmore")
    eq(form:get("f").headers[2], "Content-Type: text/plain")
    eq(form:get("none"), nil)
    eq(form:get_all(), { a = "2", f = "line\r\n\r\nmore" })
    eq(form:get_all_as_arrays().a, { "1", "2" })
end

function test.a_form_is_written_as_it_was_read()
    eq(multipart(body, 'multipart/form-data; boundary="x"'):tostring(), body)
end

function test.parts_change()
    local form = multipart(body, "multipart/form-data; boundary=x")
    form:delete("a")
    form:set_simple("b", "3")
    form:set_simple("f", "new", "g.txt", "text/html")
    eq(form:get_all(), { b = "3", f = "new" })
    eq(form:get("f").headers, { 'Content-Disposition: form-data; name="f"; filename="g.txt"', "Content-Type: text/html" })
end

function test.what_is_no_form_has_no_parts()
    for _, kind in ipairs({ "multipart/form-data", "text/plain", "multipart/form-data; boundary=y" }) do
        eq(multipart(body, kind):get_all(), {})
    end
    eq(multipart("--x\r\nno head\r\n--x--", "multipart/form-data; boundary=x"):get_all(), {})
    eq(multipart(nil, "multipart/form-data; boundary=x"):get_all(), {})
end

function test.long_boundaries_and_lists_are_refused()
    local form, err = multipart(body, "multipart/form-data; boundary=" .. ("-"):rep(71))
    eq({ form, err }, { nil, "the boundary is too long" })
    local parts = ("--x\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n"):rep(1001) .. "--x--"
    form, err = multipart(parts, "multipart/form-data; boundary=x")
    eq({ form, err }, { nil, "the form has too many parts" })
end

return test
