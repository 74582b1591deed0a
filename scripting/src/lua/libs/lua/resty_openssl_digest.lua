-- resty.openssl.digest and resty.openssl.hmac.
local name, native = ...
local new = native("digest").new
local is_hmac = name == "resty.openssl.hmac" or name == "resty.openssl.mac"
local pcall, select, type = pcall, select, type

local _M = {}
local meta = { __index = _M }

-- `new(algorithm)` of a digest, `new(key, algorithm)` of an HMAC.
function _M.new(first, second, third)
    local key, algorithm = nil, first or "sha1"
    if is_hmac then
        key, algorithm = first, second or "sha1"
        if name == "resty.openssl.mac" then
            algorithm = third or "sha256"
        end
        if type(key) ~= "string" then
            return nil, name:match("%w+$") .. ".new: expect a string at #1"
        end
    end
    local ok, running = pcall(new, algorithm, key)
    if not ok then
        return nil, name:match("%w+$") .. '.new: invalid digest type "' .. tostring(algorithm) .. '"'
    end
    return setmetatable({ running = running, algorithm = algorithm, parts = {} }, meta)
end

function _M.istype(value)
    return type(value) == "table" and getmetatable(value) == meta
end

function _M.update(self, ...)
    for at = 1, select("#", ...) do
        local text = (select(at, ...))
        if type(text) ~= "string" then
            return false, name:match("%w+$") .. ".update: expect a string at #" .. at
        end
        self.running:update(text)
        -- A signature of the digest is one of its text.
        if not is_hmac then
            self.parts[#self.parts + 1] = text
        end
    end
    return true
end

function _M.final(self, text)
    if text then
        self:update(text)
    end
    return self.running:final()
end

function _M.reset(self)
    self.running:reset()
    self.parts = {}
    return true
end

return _M
