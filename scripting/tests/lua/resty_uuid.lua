local uuid = require("resty.jit-uuid")
local test = {}

function test.versions()
    uuid.seed()
    assert(uuid.generate_v4():match("^%x+%-%x+%-4%x%x%x%-[89ab]%x%x%x%-%x+$"))
    eq(uuid.is_valid(uuid()), true)
    eq(uuid.is_valid("x"), false)
    eq(uuid.is_valid(nil), false)
    local dns = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
    eq(uuid.generate_v3(dns, "www.example.com"), "5df41881-3aed-3515-88a7-2f4a814cf09e")
    eq(uuid.generate_v5(dns, "www.example.com"), "2ed6657d-e927-568b-95e1-2665a8aea6a2")
    eq(uuid.factory_v5(dns)("www.example.com"), uuid.generate_v5(dns, "www.example.com"))
    eq({ uuid.generate_v5("x", "y") }, { nil, "namespace must be a valid UUID" })
    eq(#require("resty.uuid").generate(), 36)
end

return test
