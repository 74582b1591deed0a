-- resty.openssl.x509: reads a certificate.
local _, native = ...
native = native("pkey")
local setmetatable, getmetatable, type = setmetatable, getmetatable, type

local _M = {}
local meta = { __index = _M }

function _M.new(text)
    local fields = type(text) == "string" and native.certificate(text)
    if not fields then
        return nil, "x509.new: not a certificate in PEM or DER"
    end
    return setmetatable({ fields = fields, text = text }, meta)
end

function _M.istype(value)
    return type(value) == "table" and getmetatable(value) == meta
end

local function named(text)
    return setmetatable({}, {
        __index = {
            tostring = function()
                return text
            end,
        },
        __tostring = function()
            return text
        end,
    })
end

function _M.get_subject_name(self)
    return named(self.fields.subject)
end

function _M.get_issuer_name(self)
    return named(self.fields.issuer)
end

function _M.get_not_before(self)
    return self.fields.not_before
end

function _M.get_not_after(self)
    return self.fields.not_after
end

function _M.get_lifetime(self)
    return self.fields.not_before, self.fields.not_after
end

function _M.get_version(self)
    return self.fields.version
end

function _M.get_serial_number(self)
    local serial = self.fields.serial
    return {
        to_hex = function()
            return serial:upper()
        end,
    }
end

function _M.get_pubkey(self)
    return require("resty.openssl.pkey").new(self.fields.public)
end

function _M.digest(self, algorithm)
    local digest, err = require("resty.openssl.digest").new(algorithm or "sha1")
    if not digest then
        return nil, err
    end
    return digest:final(self.fields.der)
end

function _M.tostring(self)
    return self.text
end
_M.to_PEM = _M.tostring

return _M
