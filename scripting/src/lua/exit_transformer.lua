-- Has the chunks of an instance called with each response that the gateway makes.
local core, chunks = ...
local pcall = pcall

local function transform(code, body, headers, chunk)
    local ok, new_code, new_body, new_headers = pcall(chunk, code, body, headers)
    if not ok then
        core.log.error("failed to run lua code: ", new_code)
        return code, body, headers
    end
    return new_code, new_body, new_headers
end

return function(phase)
    return phase == "rewrite" and function()
        for at = 1, #chunks do
            core.response.exit_insert_callback(transform, chunks[at])
        end
    end or nil
end
