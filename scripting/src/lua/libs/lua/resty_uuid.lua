-- resty.jit-uuid and resty.uuid.
local name, native = ...
local digest = native("digest")
local byte, format, match, type, gsub = string.byte, string.format, string.match, type, string.gsub

local _M = { _VERSION = "0.0.7" }

-- Sixteen bytes as the text of a version.
local function text_of(bytes, version)
    local b = { byte(bytes, 1, 16) }
    b[7] = b[7] % 16 + version * 16
    b[9] = b[9] % 64 + 128
    return format("%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", unpack(b))
end

-- Random numbers come from the system; a seed has no effect.
function _M.seed() end

function _M.generate_v4()
    return text_of(digest.random(16), 4)
end

function _M.is_valid(text)
    if type(text) ~= "string" then
        return false
    end
    local x = "%x"
    local shape = "^" .. x:rep(8) .. "%-" .. x:rep(4) .. "%-" .. x:rep(4) .. "%-[89aAbB]" .. x:rep(3) .. "%-"
        .. x:rep(12) .. "$"
    return match(text, shape) ~= nil
end

local function named(algorithm, version)
    local function generate(namespace, text)
        if not _M.is_valid(namespace) then
            return nil, "namespace must be a valid UUID"
        end
        if type(text) ~= "string" then
            return nil, "name must be a string"
        end
        local space = native("text").from_hex((gsub(namespace, "-", "")))
        return text_of(digest.digest(algorithm, space .. text), version)
    end
    return generate, function(namespace)
        return function(text)
            return generate(namespace, text)
        end
    end
end
_M.generate_v3, _M.factory_v3 = named("md5", 3)
_M.generate_v5, _M.factory_v5 = named("sha1", 5)

if name == "resty.uuid" then
    _M.generate, _M.generate_random = _M.generate_v4, _M.generate_v4
end

return setmetatable(_M, {
    __call = _M.generate_v4,
})
