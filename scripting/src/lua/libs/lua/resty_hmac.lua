-- resty.hmac: HMAC, whole or piece by piece.
local _, native = ...
local new, to_hex = native("digest").new, native("text").to_hex

local _M = {
    _VERSION = "0.06",
    ALGOS = { MD5 = "md5", SHA1 = "sha1", SHA256 = "sha256", SHA384 = "sha384", SHA512 = "sha512" },
}
local meta = { __index = _M }

function _M.new(_, key, algorithm)
    if type(key) ~= "string" then
        return nil
    end
    return setmetatable({ running = new(algorithm or "md5", key) }, meta)
end

function _M.update(self, text)
    self.running:update(text)
    return true
end

function _M.final(self, text, as_hex)
    if text then
        self.running:update(text)
    end
    local done = self.running:final()
    return as_hex and to_hex(done) or done
end

function _M.reset(self)
    self.running:reset()
    return true
end

return _M
