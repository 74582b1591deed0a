-- Calls the handler of an endpoint, to which public-api or the control API leads; its results are the response.
local native, core, handlers, list = ...
local ngx, type = ngx, type

return function(ctx)
    local code, body = handlers[native.called_endpoint()](ctx or native.context())
    if code or body then
        if list == "control_api" and type(body) == "table" and ngx.header["Content-Type"] == nil then
            core.response.set_header("Content-Type", "application/json")
        end
        core.response.exit(code, body)
    end
end
