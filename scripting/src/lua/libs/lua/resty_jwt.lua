-- resty.jwt: signs and verifies JSON web tokens. The algorithm `none` is refused, and a public key is no secret of
-- HMAC, so a token cannot choose to be checked by a text that everybody has.
local _, native = ...
local hmac, equal = native("digest").hmac, native("digest").equal
local load_key = native("pkey").load
local base64, cjson = require("ngx.base64"), require("cjson.safe")
local validators = require("resty.jwt-validators")
local type, pairs, pcall, tostring, find, format = type, pairs, pcall, tostring, string.find, string.format

local _M = { _VERSION = "0.2.3" }
local meta = { __index = _M }

-- Hash and form of signature by algorithm.
local algorithms = {
    HS256 = { "sha256", "hmac" }, HS384 = { "sha384", "hmac" }, HS512 = { "sha512", "hmac" },
    RS256 = { "sha256", "", "RSA" }, RS384 = { "sha384", "", "RSA" }, RS512 = { "sha512", "", "RSA" },
    PS256 = { "sha256", "pss", "RSA" }, PS384 = { "sha384", "pss", "RSA" }, PS512 = { "sha512", "pss", "RSA" },
    ES256 = { "sha256", "fixed", "P-256" }, ES384 = { "sha384", "fixed", "P-384" },
    ES512 = { "sha512", "fixed", "P-521" }, EdDSA = { "", "", "Ed25519" },
}

local function is_pem(secret)
    return find(secret, "-----BEGIN ", 1, true) ~= nil
end

function _M.new()
    return setmetatable({}, meta)
end

function _M.jwt_encode(_, value)
    if type(value) == "table" then
        value = cjson.encode(value)
    end
    return base64.encode_base64url(value)
end

function _M.jwt_decode(_, text, as_json)
    local decoded = base64.decode_base64url(text or "")
    if not decoded then
        return nil
    end
    if as_json then
        local value = cjson.decode(decoded)
        return type(value) == "table" and value or nil
    end
    return decoded
end

-- Only these algorithms are accepted, for example { RS256 = 1 }.
function _M.set_alg_whitelist(self, algs)
    self.alg_whitelist = algs
end

-- Signs a table with `header` and `payload`; an error is a table with `reason`.
function _M.sign(self, secret, token)
    local header = token.header or {}
    local alg = algorithms[header.alg]
    if not alg then
        error({ reason = "unsupported alg: " .. tostring(header.alg) }, 0)
    end
    if type(secret) == "function" then
        secret = secret(header.kid)
    end
    if type(secret) ~= "string" or secret == "" then
        error({ reason = "no secret or key to sign with" }, 0)
    end
    local signed = self:jwt_encode(token.raw_header or header) .. "."
        .. self:jwt_encode(token.raw_payload or token.payload)
    local signature
    if alg[2] == "hmac" then
        signature = hmac(alg[1], secret, signed)
    else
        local key, err = load_key(secret)
        if not key or key:kind() ~= alg[3] then
            error({ reason = err or "the key is not one of " .. header.alg }, 0)
        end
        signature, err = key:sign(alg[1], alg[2], signed)
        if not signature then
            error({ reason = err }, 0)
        end
    end
    return signed .. "." .. base64.encode_base64url(signature)
end

local function invalid(reason)
    return { valid = false, verified = false, reason = reason }
end

function _M.load_jwt(self, text)
    if type(text) ~= "string" then
        return invalid("invalid jwt string")
    end
    local raw_header, raw_payload, signature = text:match("^([%w_-]+)%.([%w_-]*)%.([%w_-]*)$")
    if not raw_header then
        return invalid("invalid jwt string")
    end
    local header = self:jwt_decode(raw_header, true)
    if not header then
        return invalid("invalid header: " .. raw_header)
    end
    local payload = self:jwt_decode(raw_payload, true)
    if not payload then
        return invalid("invalid payload: " .. raw_payload)
    end
    return {
        raw_header = raw_header,
        raw_payload = raw_payload,
        signature = signature,
        header = header,
        payload = payload,
        verified = false,
        valid = true,
    }
end

-- A list of options of earlier versions as a claim specification.
local legacy = { valid_issuers = true, lifetime_grace_period = true, require_nbf_claim = true, require_exp_claim = true }

local function modern(spec)
    for name in pairs(spec) do
        if not legacy[name] then
            return spec
        end
    end
    if next(spec) == nil then
        return spec
    end
    local grace = spec.lifetime_grace_period or 0
    local claims = {}
    if spec.valid_issuers then
        claims.iss = validators.equals_any_of(spec.valid_issuers)
    end
    local function shifted(by)
        return function(check)
            return function(value, claim, token)
                return check(type(value) == "number" and value + by or value, claim, token)
            end
        end
    end
    local nbf = spec.require_nbf_claim and validators.is_not_before() or validators.opt_is_not_before()
    local exp = spec.require_exp_claim and validators.is_not_expired() or validators.opt_is_not_expired()
    claims.nbf, claims.exp = shifted(-grace)(nbf), shifted(grace)(exp)
    return claims
end

local function check_claims(token, spec)
    for claim, validator in pairs(spec) do
        local value = token.payload[claim]
        if claim == "__jwt" then
            value = token
        end
        if type(validator) ~= "function" then
            return format("Claim spec value must be a function - see jwt-validators.lua for helper functions")
        end
        local ok, result = pcall(validator, value, claim, token)
        if not ok then
            return type(result) == "string" and (result:gsub("^[^\n]-:%d+: ", "")) or "Claim '" .. claim .. "' failed"
        elseif result == false then
            return format("Claim '%s' ('%s') returned failure", claim, tostring(value))
        end
    end
end

-- Whether the signature fits, or the reason why not.
local function check_signature(self, secret, token)
    local name = token.header.alg
    local alg = type(name) == "string" and algorithms[name]
    if self.alg_whitelist and not (type(name) == "string" and self.alg_whitelist[name]) then
        return "whitelist unsupported alg: " .. tostring(name)
    end
    if not alg then
        return "unsupported alg: " .. tostring(name)
    end
    if token.header.crit ~= nil then
        return "critical headers are not supported"
    end
    if type(secret) == "function" then
        secret = secret(token.header.kid)
    end
    if type(secret) ~= "string" or secret == "" then
        return "no secret or key to verify with"
    end
    local signature = base64.decode_base64url(token.signature)
    if not signature then
        return "wrongly encoded signature"
    end
    local signed = token.raw_header .. "." .. token.raw_payload
    if alg[2] == "hmac" then
        if is_pem(secret) then
            return "a key in PEM is not a secret of " .. name
        end
        return not equal(hmac(alg[1], secret, signed), signature) and "signature mismatch: " .. token.signature or nil
    end
    local key, err = load_key(secret)
    if not key then
        return "failed to load the key: " .. err
    end
    if key:kind() ~= alg[3] then
        return "the key is not one of " .. name
    end
    if not key:verify(alg[1], alg[2], signed, signature) then
        return "signature mismatch: " .. token.signature
    end
end

function _M.verify_jwt_obj(self, secret, token, ...)
    if not token.valid then
        return token
    end
    token.verified = false
    local ok, fault = pcall(check_signature, self, secret, token)
    if not ok then
        fault = "signature could not be checked: " .. tostring(fault)
    end
    local specs = { ... }
    if not fault and #specs == 0 then
        fault = check_claims(token, { nbf = validators.opt_is_not_before(), exp = validators.opt_is_not_expired() })
    end
    for _, spec in ipairs(specs) do
        if fault then
            break
        end
        fault = check_claims(token, modern(spec))
    end
    token.verified = fault == nil
    token.reason = fault or "everything is awesome~ :p"
    return token
end

function _M.verify(self, secret, text, ...)
    return self:verify_jwt_obj(secret, self:load_jwt(text), ...)
end

return _M
