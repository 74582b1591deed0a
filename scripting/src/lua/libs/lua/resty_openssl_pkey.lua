-- resty.openssl.pkey: loads keys, signs and verifies.
local _, native = ...
local load = native("pkey").load
local digest = require("resty.openssl.digest")
local type, concat, setmetatable, getmetatable = type, table.concat, setmetatable, getmetatable

local _M = { PADDINGS = { RSA_PKCS1_PADDING = 1, RSA_PKCS1_PSS_PADDING = 6 } }
local meta = { __index = _M }

function _M.new(text)
    if type(text) ~= "string" then
        return nil, "pkey.new: keys are loaded from PEM or DER; they are not generated here"
    end
    local key, err = load(text)
    if not key then
        return nil, "pkey.new: " .. err
    end
    return setmetatable({ key = key, kind = key:kind(), text = text }, meta)
end

function _M.istype(value)
    return type(value) == "table" and getmetatable(value) == meta
end

function _M.is_private(self)
    return self.key:is_private()
end

function _M.get_key_type(self)
    local kind = self.kind
    if kind == "RSA" then
        return { id = 6, nid = 6, sn = "rsaEncryption", ln = "rsaEncryption" }
    elseif kind == "Ed25519" then
        return { id = 1087, nid = 1087, sn = "ED25519", ln = "ED25519" }
    end
    return { id = 408, nid = 408, sn = "id-ecPublicKey", ln = "id-ecPublicKey" }
end

-- The text, hash and form of a signature.
local function wanted(self, message, hash, padding, opts)
    if digest.istype(message) then
        hash = message.algorithm
        message = concat(message.parts)
    end
    local form = ""
    if self.kind == "RSA" and padding == 6 then
        form = "pss"
    elseif self.kind:sub(1, 2) == "P-" and opts and opts.ecdsa_use_raw then
        form = "fixed"
    end
    hash = (hash or "sha256"):lower():gsub("-", "")
    return message, hash, form
end

function _M.sign(self, message, hash, padding, opts)
    local text, name, form = wanted(self, message, hash, padding, opts)
    if type(text) ~= "string" then
        return nil, "pkey:sign: expect a digest or a string at #1"
    end
    local signature, err = self.key:sign(name, form, text)
    if not signature then
        return nil, "pkey:sign: " .. err
    end
    return signature
end

function _M.verify(self, signature, message, hash, padding, opts)
    local text, name, form = wanted(self, message, hash, padding, opts)
    if type(text) ~= "string" or type(signature) ~= "string" then
        return nil, "pkey:verify: expect a signature and a digest or a string"
    end
    local fits, err = self.key:verify(name, form, text, signature)
    if fits == nil then
        return nil, "pkey:verify: " .. err
    end
    return fits
end

-- The text that was loaded; keys are not encoded again.
function _M.tostring(self)
    return self.text
end
_M.to_PEM = _M.tostring

return _M
