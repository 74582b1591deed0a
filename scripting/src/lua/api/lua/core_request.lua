-- `apisix.core.request`. `ctx` may be nil: there is one exchange.
local native, ngx, core = ...
local error, tonumber, tostring, type = error, tonumber, tostring, type
local find, format, lower = string.find, string.format, string.lower
local req = ngx.req

local request = core.request or {}
core.request = request
package.loaded["apisix.core.request"] = request

local function var(name)
    return native.var(name)
end

function request.headers(_)
    return req.get_headers(0)
end

function request.header(_, name)
    if type(name) ~= "string" then
        return nil
    end
    if not find(name, "_", 1, true) then
        return native.header(name)
    end
    return native.header((name:gsub("_", "-"))) or native.header(name)
end

local function change(native_change)
    return function(ctx, name, value)
        if type(ctx) == "string" then
            name, value = ctx, name
        end
        if type(name) ~= "string" then
            error(format("invalid header name %q: got %s, expected string", tostring(name), type(name)), 2)
        end
        native_change(name, value)
    end
end

request.set_header = change(req.set_header)
request.add_header = change(req.add_header)

function request.get_ip(_)
    return var("realip_remote_addr") or var("remote_addr") or ""
end

function request.get_remote_client_ip(_)
    return var("remote_addr") or ""
end

function request.get_remote_client_port(_)
    return tonumber(var("remote_port"))
end

function request.get_uri_args(ctx)
    ctx = ctx or ngx.ctx.api_ctx
    local args = rawget(ctx, "req_uri_args")
    if not args then
        args = req.get_uri_args(0)
        rawset(ctx, "req_uri_args", args)
    end
    return args
end

function request.set_uri_args(ctx, args)
    ctx = ctx or ngx.ctx.api_ctx
    rawset(ctx, "req_uri_args", nil)
    return req.set_uri_args(args)
end

function request.get_post_args(ctx)
    ctx = ctx or ngx.ctx.api_ctx
    local args = rawget(ctx, "req_post_args")
    if not args then
        req.read_body()
        local err
        args, err = req.get_post_args(0)
        if not args then
            core.log.error("the post form cannot be read: ", err)
            args = {}
        end
        rawset(ctx, "req_post_args", args)
    end
    return args
end

local function too_large(size, most)
    return most and size > most and format(
        "request size %d is greater than the maximum size %d allowed", size, most)
end

function request.get_body(most, _)
    local length = tonumber(native.header("Content-Length"))
    local err = length and too_large(length, most)
    if err then
        return nil, err
    end
    native.read_body()
    local body
    body, err = native.body()
    if not body then
        return nil, err
    end
    err = too_large(#body, most)
    if err then
        return nil, err
    end
    return body
end

-- The body as a table, by its content type.
function request.get_request_body_table(ctx, content_type, most)
    ctx = ctx or ngx.ctx.api_ctx
    local known = rawget(ctx, "_request_body_table")
    if known ~= nil then
        local kind = rawget(ctx, "_request_body_type")
        if content_type and kind ~= content_type then
            return nil, "request body type mismatch: cached type is " .. (kind or "unknown") .. ", expected "
                .. content_type
        end
        return known
    end
    local kind = content_type or native.header("Content-Type") or ""
    local result, err
    if kind:find("application/json", 1, true) then
        local body
        body, err = request.get_body(most, ctx)
        if not body then
            return nil, "could not get body: " .. (err or "request body is empty")
        end
        result, err = core.json.decode(body)
        if not result then
            return nil, "could not parse JSON request body: " .. (err or "invalid JSON")
        end
        kind = "application/json"
    elseif kind:find("application/x-www-form-urlencoded", 1, true) then
        result = request.get_post_args(ctx)
        kind = "application/x-www-form-urlencoded"
    else
        return nil, "unsupported content-type: " .. kind
            .. ", supported types are: application/json, application/x-www-form-urlencoded"
    end
    rawset(ctx, "_request_body_table", result)
    rawset(ctx, "_request_body_type", kind)
    return result
end

function request.get_json_request_body_table(most)
    local body, err = request.get_request_body_table(nil, "application/json", most)
    if not body then
        return nil, { message = err }
    end
    return body
end

function request.get_scheme(_)
    return var("scheme") or ""
end

function request.get_host(_)
    return var("host") or ""
end

function request.get_port(_)
    return tonumber(var("server_port"))
end

function request.get_path(_)
    return var("uri") or ""
end

function request.get_http_version()
    return req.http_version()
end

function request.get_method()
    return native.method()
end

function request.has_json_body(ctx)
    local kind = request.header(ctx, "Content-Type")
    return kind ~= nil and lower(kind):find("application/json", 1, true) ~= nil
end
