-- Calls the handler of an endpoint, to which public-api or the control API leads; its results are the response.
local native, core, handlers = ...
local ngx, type = ngx, type

return function(phase, ctx)
    local code, body = handlers[native.called_endpoint()](ctx)
    if code or body then
        if phase == "control_api" and type(body) == "table" and ngx.header["Content-Type"] == nil then
            core.response.set_header("Content-Type", "application/json")
        end
        core.response.exit(code, body)
    end
end
