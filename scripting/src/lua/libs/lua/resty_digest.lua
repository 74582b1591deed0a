-- resty.md5, resty.sha1, resty.sha256 …: a digest that takes its text piece by piece.
local name, native = ...
local new = native("digest").new
local algorithm = name:match("%.(%w+)$")

local _M = { _VERSION = "0.14" }
local meta = { __index = _M }

function _M.new()
    return setmetatable({ running = new(algorithm) }, meta)
end

function _M.update(self, text)
    self.running:update(text)
    return true
end

function _M.final(self)
    return self.running:final()
end

function _M.reset(self)
    self.running:reset()
    return true
end

return _M
