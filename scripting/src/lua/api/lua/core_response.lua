-- `apisix.core.response`.
local native, ngx, core = ...
local error, pairs, select, tostring, type = error, pairs, select, tostring, type
local concat = table.concat

local response = core.response or {}
core.response = response
package.loaded["apisix.core.response"] = response

local function encode(value)
    local text, err = core.json.encode(value)
    return text or error("failed to encode data: " .. tostring(err), 3)
end

-- Callbacks of `exit-transformer` and of plugins, which change what is sent.
local function transformed(callbacks, code, body)
    local headers = {}
    for at = 1, #callbacks, 2 do
        local new
        new, body, headers = callbacks[at](code, body, headers, callbacks[at + 1])
        -- A callback without a code leaves it: the request would be forwarded.
        code = new or code
    end
    for name, value in pairs(headers or {}) do
        ngx.header[name] = value
    end
    return code, body
end

local function exit(code, ...)
    local parts, count = {}, 0
    local function add(value)
        if type(value) == "table" then
            parts[count + 1], parts[count + 2], count = encode(value), "\n", count + 2
        elseif value ~= nil then
            parts[count + 1], count = tostring(value), count + 1
        end
    end
    local first
    if code and type(code) ~= "number" then
        first, code = code, nil
    end
    local context = ngx.ctx
    local callbacks = context and context.apisix_exit_callback_funcs
    if callbacks then
        local body = first
        for at = 1, body == nil and select("#", ...) or 0 do
            body = select(at, ...)
            if body ~= nil then
                break
            end
        end
        code, body = transformed(callbacks, code, body)
        add(body)
    else
        add(first)
        for at = 1, select("#", ...) do
            add((select(at, ...)))
        end
    end
    if code then
        ngx.status = code
    end
    if count > 0 then
        native.write(concat(parts, "", 1, count))
    end
    if code then
        return ngx.exit(code)
    end
end

response.exit = exit

-- A response that is no script's: its code, its body, and whether that is JSON. Returns the same of the new one.
function native.exit_callbacks(code, body, is_json)
    local context = ngx.ctx
    local callbacks = context and context.apisix_exit_callback_funcs
    if not callbacks then
        return code, body, is_json
    end
    if is_json and body then
        body = core.json.decode(body) or body
    end
    code, body = transformed(callbacks, code, body)
    if type(body) == "table" then
        return code, encode(body) .. "\n", true
    end
    return code, body ~= nil and tostring(body) or nil, false
end

function response.exit_insert_callback(call, conf)
    local context = ngx.ctx
    local callbacks = context.apisix_exit_callback_funcs or {}
    callbacks[#callbacks + 1] = call
    callbacks[#callbacks + 1] = conf == nil and false or conf
    context.apisix_exit_callback_funcs = callbacks
    native.filter_replies()
end

function response.say(...)
    exit(nil, ...)
end

local function set(append, ...)
    if native.headers_sent() then
        error("headers have already been sent", 3)
    end
    local one = append and native.add_response_header or function(name, value)
        ngx.header[name] = value
    end
    local count = select("#", ...)
    if count == 1 then
        local headers = ...
        if type(headers) ~= "table" then
            ngx.header[headers] = nil
            return
        end
        for name, value in pairs(headers) do
            one(name, value)
        end
        return
    end
    for at = 1, count, 2 do
        local name, value = select(at, ...)
        one(name, value)
    end
end

function response.set_header(...)
    set(false, ...)
end

function response.add_header(...)
    set(true, ...)
end

function response.get_upstream_status(_)
    return native.upstream_status()
end

function response.get_response_source(ctx)
    return ctx and ctx._resp_source
end

function response.set_response_source(ctx, source)
    if ctx then
        ctx._resp_source = source
    end
end

function response.clear_header_as_body_modified()
    ngx.header.content_length = nil
    ngx.header.content_encoding = nil
    ngx.header.last_modified = nil
    ngx.header.etag = nil
end

function response.hold_body_chunk(ctx, copies, most, _)
    return native.hold(ctx and ctx._plugin_name or "", copies and true or false, most)
end
