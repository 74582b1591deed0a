-- The host sets the identifier of this instance with `init`.
local uuid = require("resty.jit-uuid")
local _M = { version = 0.1, gen_uuid_v4 = uuid.generate_v4 }
local id

function _M.init(known)
    id = known
end

function _M.get()
    id = id or uuid.generate_v4()
    return id
end

return _M
