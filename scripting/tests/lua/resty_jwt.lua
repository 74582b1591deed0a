-- Keys for tests only.
local keys = {
    rsa = [[
-----BEGIN PRIVATE KEY-----
MIIEvgIBADANBgkqhkiG9w0BAQEFAASCBKgwggSkAgEAAoIBAQCRZI+XyNi7UqsN
g65aM1P3hUtcXV5F8gMNSINOKOOH5wifGtRb7Sn9jmPuN5fBubLg8K+o/55SP0B7
wN4VT6vIJf3KDryiWDqqAYjWQ+t8r2HXy6elXJCvvATU+lTTAR4Wlp5VFVGv7PsQ
Owo6mEx01OsqfNbT83un7Gps9CSXQUd338HgUnsEA1f+WOjq2QgMUz4bO1OmZ+zF
JRZdVShRPkdmNW1x0xKvS+u14+P4KoU3+43LNUSr29PVIUFqCvNDiYJv1gMZSTiB
ACIiSYP/Q/QWqQn+Zji1AJbB+OM7abyX8VmfJPfaMQfx5TtEBnEP2tp7LAC8ir+C
JNlu7yOpAgMBAAECggEAAvtxT4901JjMPeV4zsxVOVNAWbdnjt85LU1Stih0DE5S
mLLb7rvFW/hO9+ynffeBYghFzh1aIb0+5RruYzkEYMFYvIuDVoAhSenopN51RtQx
GVRJzsRAin48iiLNWRuhgpyZyEx85bMibjGL0upbTR0t6qvvWx8YJvhcMXprgrex
5VPiNH3V3BbH4/kN/LaZtysZYUM0kKC7PSoGMHNDsdJlMMwBy57zsOT79rpcdJA5
O+/fYo5aw3tQ4GWr4QVNdgmVCxoajWiCIyjuXAapiRvYplF75PugXMK4Au1K7ADk
7oFizIgXMpb90xv+CKeJHVVro91GTtKLU3bB2DWCgQKBgQDEz3j7d8/0O18Uvvl6
wvHu+l/D8t36QLB+PDR0PPPg9x7nlnFv3NY/tx9cvYL557fZZ1CvzAit6QOpU9Nz
9OwHg80y2LrJIKYtjdBDNWvvuryuDws3FaHogb+jmMzU5hQyHQ9IhVOq0DwOlPwR
ZXP8LeDeyP5D4h3TZsjgmmL+QQKBgQC9HmvpI8z4NKR0/98IgTPoH44nS2/nBZUt
hPAvZAr7QShexnGnqzjZSIG2Zg7lCC1jp7PN3tlOL88Zd7mief10U1GmEBp7n5gh
oMK+mymNpVepaJKwrw8vm9Z9QA/yePtIzAuq8fD3NgIJGkqYJ39oq/rYXNRvkDq2
fwoGEoQbaQKBgQC6aGwFehi8EdPfuXZggO5XVEuKM6lt0wGXvvxLsEOpq0ZZQVQW
CIvg81hAJbs9aeznfISezVjXJ6FxKtVXuf4oq/yaEU7xGvxqnyxHy/x8plj5X4RW
2yVsLCBQGnS/nWA5iu6j2KxDWFHZ2eDZtUbi7q1TNfomX6+yQGM44OGsQQKBgQCC
lHXIBWsqWhbPnjieg6+Wb+tUYHcEmcs2IdtBrZ8Texrnzbd+IPBgvvqpOXDBXVMR
wyKYXG3I2aPynsMzV23Umw7+TZIrl7eQSJMOzs3zOp37n/PhQQ6IPd7snoYkUrqW
uiS4RNOvrb/cDyZARs1nNZA/QmGAIqMXjUIbjT9gOQKBgFthYvWll53oGBhyfOCw
GBkBcxFNkhWLkYaIWzIJ0bjSLhGhMdPfz5RouyIqzWtL9/AYVVXEZD1vE90kAD0a
SUpEvKdhSfm87FMJ/jytY/ObZad/YtLUh+dgb2uXFVoQmh6qh7cdVJEWnOWgYaWB
V0EqazCScea76iSADtEi+XF1
-----END PRIVATE KEY-----
]],
    rsa_public = [[
-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAkWSPl8jYu1KrDYOuWjNT
94VLXF1eRfIDDUiDTijjh+cInxrUW+0p/Y5j7jeXwbmy4PCvqP+eUj9Ae8DeFU+r
yCX9yg68olg6qgGI1kPrfK9h18unpVyQr7wE1PpU0wEeFpaeVRVRr+z7EDsKOphM
dNTrKnzW0/N7p+xqbPQkl0FHd9/B4FJ7BANX/ljo6tkIDFM+GztTpmfsxSUWXVUo
UT5HZjVtcdMSr0vrtePj+CqFN/uNyzVEq9vT1SFBagrzQ4mCb9YDGUk4gQAiIkmD
/0P0FqkJ/mY4tQCWwfjjO2m8l/FZnyT32jEH8eU7RAZxD9raeywAvIq/giTZbu8j
qQIDAQAB
-----END PUBLIC KEY-----
]],
    ec = [[
-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIBRkv0aB70qjKSNT/UcRKNthGoLWXgsNf3NOiikjTAWXoAoGCCqGSM49
AwEHoUQDQgAEbqPEklSB1QD5Yj3idFdONkBmtZyJUzpFocjIw+FtTUTNEumTHAnK
g07T8XHZVxtnJFxjiApiSAD0/A2OHgdnXw==
-----END EC PRIVATE KEY-----
]],
    ec_public = [[
-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEbqPEklSB1QD5Yj3idFdONkBmtZyJ
UzpFocjIw+FtTUTNEumTHAnKg07T8XHZVxtnJFxjiApiSAD0/A2OHgdnXw==
-----END PUBLIC KEY-----
]],
    ed = [[
-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEICaOLtFhsElktT+RYy4pUeBE0V80ZwQ7COQCQZnLaRXT
-----END PRIVATE KEY-----
]],
    ed_public = [[
-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAxTH/EEtpsTixFaXkuyeRwOKvrySr2l9ksT7NDLTkmmU=
-----END PUBLIC KEY-----
]],
    certificate = [[
-----BEGIN CERTIFICATE-----
MIIDGzCCAgOgAwIBAgICEjQwDQYJKoZIhvcNAQELBQAwJTEUMBIGA1UEAwwLZXhh
bXBsZS5jb20xDTALBgNVBAoMBFRlc3QwIBcNMjYxMTI3MjEzMDM0WhgPMjEyNjEx
MDMyMTMwMzRaMCUxFDASBgNVBAMMC2V4YW1wbGUuY29tMQ0wCwYDVQQKDARUZXN0
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAkWSPl8jYu1KrDYOuWjNT
94VLXF1eRfIDDUiDTijjh+cInxrUW+0p/Y5j7jeXwbmy4PCvqP+eUj9Ae8DeFU+r
yCX9yg68olg6qgGI1kPrfK9h18unpVyQr7wE1PpU0wEeFpaeVRVRr+z7EDsKOphM
dNTrKnzW0/N7p+xqbPQkl0FHd9/B4FJ7BANX/ljo6tkIDFM+GztTpmfsxSUWXVUo
UT5HZjVtcdMSr0vrtePj+CqFN/uNyzVEq9vT1SFBagrzQ4mCb9YDGUk4gQAiIkmD
/0P0FqkJ/mY4tQCWwfjjO2m8l/FZnyT32jEH8eU7RAZxD9raeywAvIq/giTZbu8j
qQIDAQABo1MwUTAdBgNVHQ4EFgQU/l4xqSy1yXpFEkQhq70qxJWn3TswHwYDVR0j
BBgwFoAU/l4xqSy1yXpFEkQhq70qxJWn3TswDwYDVR0TAQH/BAUwAwEB/zANBgkq
hkiG9w0BAQsFAAOCAQEAgJK46nQHkLEZsQw87VzV2A/HSRXQcT8e7+IqwM8WPNgb
6RKrLbV5E0eQ8ldM9uDl4lmlfevZmTYua0X44TccskLqNC5aKfbsfXm1fBXfbdQx
qbb6BoiVMyAkHbz/9yruP9Vd6++JpvC++II4iGXm3o6FRVpXv/yoidRSb6dmJ14Z
SdBBMKQ3FTW2zbzxi2xh0cYixYKFogeNuKk1IGK7xzYRCdF3ncQJ/zlMP5V+za+H
Ltz9qjjfjq3dGdPNHaRoB2+jVJ5mEq6TeItwU7InbV+4OcAT054Btk9WOe6ODK+X
Q6RTTyDE9O6FeBWXyNm4y6bfBN4+jcUzsVm6iUks/A==
-----END CERTIFICATE-----
]],
}

local jwt, validators = require("resty.jwt"), require("resty.jwt-validators")
local pkey = require("resty.openssl.pkey")
local test = {}

local function signed(secret, alg, payload, header)
    header = header or {}
    header.typ, header.alg = "JWT", alg
    return jwt:sign(secret, { header = header, payload = payload or { sub = "me" } })
end

function test.known_token()
    -- The example of RFC 7519, section 3.1, with the key of RFC 7515, appendix A.1.
    local token = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly"
        .. "9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
    local key = require("ngx.base64").decode_base64url(
        "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow")
    local obj = jwt:verify(key, token)
    eq(obj.valid, true)
    eq(obj.payload.iss, "joe")
    eq(obj.verified, false)
    eq(obj.reason, "'exp' claim expired at Tue, 22 Mar 2011 18:43:00 GMT")
    eq(jwt:verify(key, token, { iss = validators.equals("joe") }).verified, true)
end

function test.algorithms()
    for _, case in ipairs({
        { "HS256", "secret", "secret" }, { "HS384", "secret", "secret" }, { "HS512", "secret", "secret" },
        { "RS256", keys.rsa, keys.rsa_public }, { "RS384", keys.rsa, keys.rsa_public },
        { "RS512", keys.rsa, keys.certificate }, { "PS256", keys.rsa, keys.rsa_public },
        { "ES256", keys.ec, keys.ec_public }, { "EdDSA", keys.ed, keys.ed_public },
    }) do
        local token = signed(case[2], case[1])
        local obj = jwt:verify(case[3], token)
        eq({ obj.verified, obj.reason }, { true, "everything is awesome~ :p" })
        eq(obj.payload.sub, "me")
        eq(jwt:verify(case[3], token:gsub("%.[^.]+%.", "." .. jwt:jwt_encode({ sub = "you" }) .. ".")).verified, false)
    end
end

function test.unsafe_tokens_are_refused()
    local none = jwt:jwt_encode({ typ = "JWT", alg = "none" }) .. "." .. jwt:jwt_encode({ sub = "me" }) .. "."
    eq(jwt:verify("secret", none).verified, false)
    eq(jwt:verify("secret", none).reason, "unsupported alg: none")
    -- A public key as the secret of HMAC.
    local confused = signed(keys.rsa_public, "HS256")
    eq(jwt:verify(keys.rsa_public, confused).verified, false)
    -- An algorithm that does not fit the key.
    eq(jwt:verify(keys.ec_public, signed(keys.rsa, "RS256")).verified, false)
    eq(jwt:verify("secret", signed(keys.rsa, "RS256")).verified, false)
    eq(jwt:verify("", signed("secret", "HS256")).verified, false)
    eq(jwt:verify("secret", signed("secret", "HS256", nil, { crit = { "x" } })).verified, false)
    eq(jwt:verify("other", signed("secret", "HS256")).reason:match("^signature mismatch: "), "signature mismatch: ")
    local strict = jwt.new()
    strict:set_alg_whitelist({ RS256 = 1 })
    eq(strict:verify("secret", signed("secret", "HS256")).reason, "whitelist unsupported alg: HS256")
    local ok, err = pcall(jwt.sign, jwt, "secret", { header = { alg = "none" }, payload = {} })
    eq({ ok, err.reason }, { false, "unsupported alg: none" })
    eq(select(2, pcall(jwt.sign, jwt, keys.ec, { header = { alg = "RS256" }, payload = {} })).reason,
        "the key is not one of RS256")
end

function test.load_jwt()
    for _, text in ipairs({ "", "a.b", "a.b.c", "....", "e30.e30" }) do
        eq(jwt:load_jwt(text).valid, false)
        eq(jwt:verify("k", text).verified, false)
    end
    eq(jwt:load_jwt(nil).reason, "invalid jwt string")
    local obj = jwt:load_jwt(signed("secret", "HS256", { a = 1 }, { kid = "k1" }))
    eq({ obj.valid, obj.verified, obj.payload.a, obj.header.kid }, { true, false, 1, "k1" })
    local by_kid = function(kid) return kid == "k1" and "secret" or nil end
    eq(jwt:verify_jwt_obj(by_kid, obj).verified, true)
    eq(jwt:jwt_decode(jwt:jwt_encode({ a = 1 }), true), { a = 1 })
end

function test.times()
    local function check(payload, ...) return jwt:verify("s", signed("s", "HS256", payload), ...) end
    eq(check({ exp = clock + 10 }).verified, true)
    eq(check({ exp = clock - 10 }).verified, false)
    eq(check({ nbf = clock + 10 }).verified, false)
    eq(check({ nbf = clock - 10 }).verified, true)
    eq(check({ exp = "soon" }).verified, false)
    eq(check({ exp = clock - 10 }, { lifetime_grace_period = 60 }).verified, true)
    eq(check({}, { require_exp_claim = true }).reason, "'exp' claim is required.")
    eq(check({ iss = "a" }, { valid_issuers = { "a", "b" } }).verified, true)
    eq(check({ iss = "c" }, { valid_issuers = { "a", "b" } }).verified, false)
    validators.set_system_leeway(30)
    eq(check({ exp = clock - 10 }).verified, true)
    validators.set_system_leeway(0)
    validators.set_system_clock(function() return 100 end)
    eq(check({ exp = 150, nbf = 50 }).verified, true)
    eq(check({ iat = 100 }, { iat = validators.is_at() }).verified, true)
    validators.set_system_clock(function() return ngx.now() end)
    raises("non-negative", validators.set_system_leeway, -1)
    raises("function", validators.set_system_clock, 1)
end

function test.validators()
    local v = validators
    for _, case in ipairs({
        { v.equals(5), 5, 6 }, { v.greater_than(5), 6, 5 }, { v.greater_than_or_equal(5), 5, 4 },
        { v.less_than(5), 4, 5 }, { v.less_than_or_equal(5), 5, 6 }, { v.matches("^a"), "ab", "b" },
        { v.equals_any_of({ 1, 2 }), 2, 3 }, { v.matches_any_of({ "^a", "^b" }), "bc", "c" },
        { v.contains_any_of({ "x", "y" }), { "y" }, { "z" } },
        { v.check(5, function(a, b) return a == b end, "same", "number"), 5, 6 },
        { v.chain(v.required(), v.greater_than(1)), 2, 1 },
    }) do
        local function verified(value)
            return jwt:verify("s", signed("s", "HS256", { c = value }), { c = case[1] }).verified
        end
        eq(verified(case[2]), true)
        eq(verified(case[3]), false)
        eq(verified(nil), false)
    end
    for _, name in ipairs({ "equals", "matches", "less_than", "is_not_before", "is_not_expired" }) do
        eq(v["opt_" .. name](1)(nil, "c"), true)
    end
    eq(jwt:verify("s", signed("s", "HS256", { c = 1 }), { c = v.equals(2) }).reason, "Claim 'c' ('1') returned failure")
    eq(jwt:verify("s", signed("s", "HS256"), { __jwt = function(_, _, t) return t.header.alg == "HS256" end }).verified,
        true)
    eq(jwt:verify("s", signed("s", "HS256"), { c = 5 }).verified, false)
end

function test.pkey()
    local digest = require("resty.openssl.digest")
    for _, pair in ipairs({ { keys.rsa, keys.rsa_public }, { keys.ec, keys.ec_public }, { keys.ed, keys.ed_public } }) do
        local private, public = assert(pkey.new(pair[1])), assert(pkey.new(pair[2]))
        eq({ private:is_private(), public:is_private() }, { true, false })
        local signature = assert(private:sign("text", "sha256"))
        eq(public:verify(signature, "text", "sha256"), true)
        eq(public:verify(signature, "other", "sha256"), false)
        local of_digest = digest.new("sha256")
        of_digest:update("te", "xt")
        eq(public:verify(assert(private:sign(of_digest)), "text", "SHA-256"), true)
        eq(public:sign("text"), nil)
        eq(public:tostring(), pair[2])
    end
    local ec = pkey.new(keys.ec)
    eq(#ec:sign("x", "sha256", nil, { ecdsa_use_raw = true }), 64)
    eq(pkey.new(keys.rsa):verify(pkey.new(keys.rsa):sign("x", "sha256", 6), "x", "sha256", 6), true)
    eq(ec:get_key_type().sn, "id-ecPublicKey")
    eq(pkey.istype(ec), true)
    eq({ pkey.new("nonsense") }, { nil, "pkey.new: not a public key of a known kind (RSA keys have 2048 to 8192 bits)" })
    eq(pkey.new({ type = "RSA" }), nil)
    eq({ ec:sign("x", "md5") }, { nil, "pkey:sign: the digest does not fit the key" })
    eq(require("resty.openssl").pkey == pkey, true)
end

function test.x509()
    local x509 = require("resty.openssl.x509")
    local certificate = assert(x509.new(keys.certificate))
    eq(tostring(certificate:get_subject_name()), "CN=example.com, O=Test")
    eq(certificate:get_issuer_name():tostring(), "CN=example.com, O=Test")
    eq(certificate:get_serial_number():to_hex(), "1234")
    eq(certificate:get_version(), 3)
    assert(certificate:get_not_after() > certificate:get_not_before())
    local from, to = certificate:get_lifetime()
    assert(to > from)
    local signature = pkey.new(keys.rsa):sign("x", "sha256")
    eq(certificate:get_pubkey():verify(signature, "x", "sha256"), true)
    eq(#certificate:digest("sha256"), 32)
    eq(x509.istype(certificate), true)
    eq(certificate:to_PEM(), keys.certificate)
    eq({ x509.new("x") }, { nil, "x509.new: not a certificate in PEM or DER" })
end

return test
