-- resty.aes: AES with a key derived from a password (OpenSSL's EVP_BytesToKey), or with a key and an IV.
local _, native = ...
local cipher, digest = native("cipher"), native("digest").digest
local type, setmetatable, sub = type, setmetatable, string.sub

local _M = { _VERSION = "0.14", hash = {} }
local meta = { __index = _M }
local modes = { cbc = true, ctr = true, ecb = true, gcm = true }

for _, name in ipairs({ "md5", "sha1", "sha224", "sha256", "sha384", "sha512" }) do
    _M.hash[name] = name
end

function _M.cipher(size, mode)
    size, mode = size or 128, mode or "cbc"
    if not modes[mode] or size ~= 128 and size ~= 192 and size ~= 256 then
        return nil
    end
    return { size = size, cipher = mode }
end

local function derive(hash, rounds, key, salt, length)
    local out, block = "", ""
    while #out < length do
        block = digest(hash, block .. key .. (salt or ""))
        for _ = 2, rounds do
            block = digest(hash, block)
        end
        out = out .. block
    end
    return out
end

function _M.new(_, key, salt, wanted, hash, rounds, iv_len, padding)
    wanted, hash, rounds = wanted or _M.cipher(128, "cbc"), hash or "md5", rounds or 1
    if salt and #salt ~= 8 then
        return nil, "salt must be 8 characters or nil"
    end
    if type(rounds) ~= "number" or rounds < 1 or rounds > 1000000 then
        return nil, "invalid number of rounds"
    end
    local size, iv = wanted.size / 8, nil
    local iv_size = wanted.cipher == "gcm" and 12 or wanted.cipher == "ecb" and 0 or 16
    if type(hash) == "table" then
        iv = hash.iv or ""
        if hash.method then
            key = hash.method(key)
        end
        if #key < size then
            return nil, "bad key length"
        end
        if #iv ~= iv_size and wanted.cipher ~= "ecb" then
            return nil, "bad iv length"
        end
        key = sub(key, 1, size)
    else
        local both = derive(hash, rounds, key, salt, size + (iv_len or iv_size))
        key, iv = sub(both, 1, size), sub(both, size + 1, size + iv_size)
    end
    return setmetatable({ key = key, iv = iv, mode = wanted.cipher, padding = padding ~= false }, meta)
end

function _M.encrypt(self, text, aad)
    if self.mode == "gcm" then
        local out, tag = cipher.gcm_encrypt(self.key, self.iv, aad or "", text)
        if not out then
            return nil, "EVP_EncryptInit_ex failed"
        end
        return { out, tag }
    end
    local out = cipher.encrypt(self.mode, self.key, self.iv, self.padding, text)
    if not out then
        return nil, "EVP_EncryptFinal_ex failed"
    end
    return out
end

function _M.decrypt(self, text, tag, aad)
    if self.mode == "gcm" then
        if type(tag) ~= "string" then
            return nil, "tag is required"
        end
        local out = cipher.gcm_decrypt(self.key, self.iv, aad or "", text, tag)
        if not out then
            return nil, "EVP_DecryptFinal_ex failed"
        end
        return out
    end
    local out = cipher.decrypt(self.mode, self.key, self.iv, self.padding, text)
    if not out then
        return nil, "EVP_DecryptFinal_ex failed"
    end
    return out
end

return _M
