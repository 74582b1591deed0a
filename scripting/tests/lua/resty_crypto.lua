local str = require("resty.string")
local test = {}

function test.resty_string()
    eq(str.to_hex("\1\171"), "01ab")
    eq(str.atoi(" 42abc"), 42)
    eq(str.atoi("x"), 0)
end

function test.digests()
    for name, hex in pairs({
        md5 = "900150983cd24fb0d6963f7d28e17f72",
        sha1 = "a9993e364706816aba3e25717850c26c9cd0d89d",
        sha224 = "23097d223405d8228642a477bda255b32aadbce4bda0b3f7e36c9da7",
        sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        sha384 = "cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed"
            .. "8086072ba1e7cc2358baeca134c825a7",
        sha512 = "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a"
            .. "2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
    }) do
        local digest = require("resty." .. name):new()
        eq(digest:update("a"), true)
        digest:update("bc")
        eq(str.to_hex(digest:final()), hex)
        digest:update("x")
        digest:reset()
        digest:update("abc")
        eq(str.to_hex(digest:final()), hex)
        eq(str.to_hex(require("resty.openssl.digest").new(name):final("abc")), hex)
    end
end

function test.random()
    local random = require("resty.random")
    eq(#random.bytes(16), 16)
    eq(#random.bytes(16, true), 16)
    eq(random.bytes(-1), nil)
    eq(random.bytes(1e9), nil)
    eq(#random.token(20), 20)
    assert(random.number(1, 3) <= 3)
    eq(#require("resty.openssl.rand").bytes(8), 8)
end

function test.hmac()
    local hmac = require("resty.hmac")
    -- RFC 2202 and RFC 4231, test case 2.
    for name, hex in pairs({
        MD5 = "750c783e6ab0b503eaa86e310a5db738",
        SHA1 = "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79",
        SHA256 = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
    }) do
        local running = hmac:new("Jefe", hmac.ALGOS[name])
        running:update("what do ya want ")
        eq(running:final("for nothing?", true), hex)
        running:reset()
        eq(running:final("what do ya want for nothing?", true), hex)
        local openssl = require("resty.openssl.hmac").new("Jefe", name:lower())
        openssl:update("what do ya want ", "for nothing?")
        eq(str.to_hex(openssl:final()), hex)
    end
    -- A key that is longer than a block (RFC 4231, test case 6).
    eq(hmac:new(("\170"):rep(131), "sha512"):final("Test Using Larger Than Block-Size Key - Hash Key First", true):sub(1, 16),
        "80b24263c7c1a3eb")
    eq(hmac:new(nil), nil)
    eq({ require("resty.openssl.hmac").new("k", "x") }, { nil, 'hmac.new: invalid digest type "x"' })
    eq({ require("resty.openssl.digest").new("x") }, { nil, 'digest.new: invalid digest type "x"' })
    eq(require("resty.openssl.digest").istype(require("resty.openssl.digest").new()), true)
    eq({ require("resty.openssl.digest").new():update(5) }, { false, "digest.update: expect a string at #1" })
    eq(require("resty.openssl.digest").new():reset(), true)
    eq(#require("resty.openssl.mac").new("k", "HMAC", "sha256"):final("x"), 32)
end

function test.aes_of_a_password()
    local aes = require("resty.aes")
    -- openssl enc -aes-128-cbc -md md5 -nosalt -k AKeyForAES
    local cipher = aes:new("AKeyForAES")
    local sealed = cipher:encrypt("hello")
    eq(#sealed, 16)
    eq(cipher:decrypt(sealed), "hello")
    eq(cipher:decrypt("short"), nil)
    local other = aes:new("AKeyForAES", "saltsalt", aes.cipher(256, "cbc"), aes.hash.sha512, 5)
    eq(other:decrypt(other:encrypt("hello")), "hello")
    eq(other:decrypt(sealed), nil)
    eq({ aes:new("k", "short") }, { nil, "salt must be 8 characters or nil" })
    eq(aes.cipher(100, "cbc"), nil)
    eq(aes.cipher(128, "xyz"), nil)
end

function test.aes_of_a_key()
    local aes = require("resty.aes")
    -- NIST SP 800-38A, F.2.1, first block.
    local key = ("2b7e151628aed2a6abf7158809cf4f3c"):gsub("..", function(h) return string.char(tonumber(h, 16)) end)
    local iv = ("000102030405060708090a0b0c0d0e0f"):gsub("..", function(h) return string.char(tonumber(h, 16)) end)
    local text = ("6bc1bee22e409f96e93d7e117393172a"):gsub("..", function(h) return string.char(tonumber(h, 16)) end)
    local plain = aes:new(key, nil, aes.cipher(128, "cbc"), { iv = iv }, nil, nil, false)
    eq(str.to_hex(plain:encrypt(text)), "7649abac8119b246cee98e9b12e9197d")
    eq(plain:decrypt(plain:encrypt(text)), text)
    for _, mode in ipairs({ "cbc", "ctr", "ecb" }) do
        for _, size in ipairs({ 128, 192, 256 }) do
            local cipher = aes:new(("k"):rep(size / 8), nil, aes.cipher(size, mode), { iv = iv })
            eq(cipher:decrypt(cipher:encrypt("some text")), "some text")
        end
    end
    local gcm = aes:new(("k"):rep(32), nil, aes.cipher(256, "gcm"), { iv = ("i"):rep(12) })
    local sealed = gcm:encrypt("secret", "head")
    eq(#sealed[2], 16)
    eq(gcm:decrypt(sealed[1], sealed[2], "head"), "secret")
    eq(gcm:decrypt(sealed[1], sealed[2], "other"), nil)
    eq({ gcm:decrypt(sealed[1]) }, { nil, "tag is required" })
    eq({ aes:new("short", nil, aes.cipher(128, "cbc"), { iv = iv }) }, { nil, "bad key length" })
    eq({ aes:new(key, nil, aes.cipher(128, "cbc"), { iv = "x" }) }, { nil, "bad iv length" })
end

return test
