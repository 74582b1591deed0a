-- `ngx.req`.
local native, ngx = ...
local error, getmetatable, next, pairs, setmetatable, tonumber, tostring, type =
    error, getmetatable, next, pairs, setmetatable, tonumber, tostring, type
local gsub, lower = string.gsub, string.lower
local concat, sort = table.concat, table.sort

local req = ngx.req or {}
ngx.req = req
package.loaded["ngx.req"] = req

-- Names of headers are found in any spelling.
local any_case = {
    __index = function(headers, name)
        if type(name) ~= "string" then
            return nil
        end
        return rawget(headers, (gsub(lower(name), "_", "-")))
    end,
}

function req.get_headers(most, raw)
    local headers = native.headers(most)
    return raw and headers or setmetatable(headers, any_case)
end

function req.set_header(name, value)
    if type(value) == "table" and #value == 0 then
        value = nil
    end
    native.set_header(tostring(name), value)
end

function req.add_header(name, value)
    native.add_header(tostring(name), value)
end

function req.clear_header(name)
    native.set_header(tostring(name), nil)
end

req.get_method = native.method
req.http_version = native.http_version

local methods = {}
for _, name in next, {
    "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "MKCOL", "COPY", "MOVE",
    "PROPFIND", "PROPPATCH", "LOCK", "UNLOCK",
} do
    local number = ngx["HTTP_" .. name]
    if number then
        methods[number] = name
    end
end

function req.set_method(method)
    local name = type(method) == "string" and method or methods[method]
    native.set_method(name or error("unsupported HTTP method: " .. tostring(method), 2))
end

function req.start_time()
    return native.start_ms() / 1000
end

function req.is_internal()
    return false
end

-- Arguments

local decode, encode = ngx.decode_args, ngx.encode_args

function req.get_uri_args(most)
    return decode(native.query(), most)
end

function req.set_uri_args(args)
    if type(args) == "table" then
        args = encode(args)
    end
    native.set_query(tostring(args))
end

function req.set_uri(uri, jump)
    if jump then
        error("ngx.req.set_uri with jump is not available: the route is chosen already", 2)
    end
    if type(uri) ~= "string" or uri == "" then
        error("attempt to use zero-length uri", 2)
    end
    native.set_uri(uri)
end

-- Body

function req.read_body()
    native.read_body()
end

function req.get_body_data()
    return (native.body())
end

function req.get_body_file()
    return nil
end

function req.discard_body() end

function req.set_body_data(data)
    native.read_body()
    native.set_body(tostring(data))
end

function req.get_post_args(most)
    local body, err = native.body()
    if err then
        return nil, err
    end
    return decode(body or "", most)
end

function req.raw_header()
    local lines = {}
    for name, value in pairs(native.headers(0)) do
        for _, one in next, type(value) == "table" and value or { value } do
            lines[#lines + 1] = name .. ": " .. one
        end
    end
    sort(lines)
    return native.method() .. " " .. native.var("request_uri") .. " HTTP/" .. native.http_version() .. "\r\n"
        .. concat(lines, "\r\n") .. "\r\n\r\n"
end

function req.socket()
    return nil, "the request's socket is not available"
end
