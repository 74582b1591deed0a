-- Calls the handler of the endpoint that public-api leads to; its results are the response.
local native, core, handlers = ...

return function(_, ctx)
    local code, body = handlers[native.called_endpoint()](ctx)
    if code or body then
        core.response.exit(code, body)
    end
end
