-- `apisix.utils.log-util`: entries of loggers. Bodies are left out: they are gone in the log phase.
local core = require("apisix.core")
local ngx = ngx
local gsub, next, tonumber, type = string.gsub, next, tonumber, type
local floor = math.floor

local _M = { metadata_schema_log_format = { type = "object" } }

function _M.gen_log_format(format)
    return format
end

local function value_of(text, ctx)
    if type(text) == "table" then
        local made = {}
        for name, inner in next, text do
            made[name] = value_of(inner, ctx)
        end
        return made
    elseif type(text) == "string" and text:sub(1, 1) == "$" then
        return ctx.var[text:sub(2)]
    end
    return text
end

-- An entry of the fields of `format`: names of variables begin with a dollar sign.
function _M.get_custom_format_log(ctx, format)
    local entry = value_of(format, ctx)
    entry.service_id, entry.route_id = ctx.service_id, ctx.route_id
    return entry
end

-- Milliseconds: of the whole request, of the upstream, and of the gateway itself.
function _M.latency_details_in_ms(ctx)
    local all = (tonumber(ctx.var.request_time) or 0) * 1000
    local upstream = tonumber(ctx.var.upstream_response_time)
    upstream = upstream and upstream * 1000
    local own = all - (upstream or 0)
    return all, upstream, own > 0 and own or 0
end

function _M.get_full_log(_, _)
    local ctx = ngx.ctx.api_ctx
    local var = ctx.var
    local all, upstream, own = _M.latency_details_in_ms(ctx)
    local uri = var.request_uri or ""
    local entry = {
        request = {
            url = (var.scheme or "http") .. "://" .. (var.host or "") .. ":" .. (var.server_port or "") .. uri,
            uri = uri,
            method = core.request.get_method(),
            headers = ngx.req.get_headers(0),
            querystring = ngx.req.get_uri_args(0),
            size = tonumber(var.request_length),
        },
        response = {
            status = ngx.status,
            headers = ngx.resp.get_headers(0),
            size = tonumber(var.bytes_sent),
        },
        server = { hostname = core.utils.gethostname(), version = core.version.VERSION },
        upstream = var.upstream_addr,
        service_id = ctx.service_id or "",
        route_id = ctx.route_id,
        consumer = ctx.consumer and { username = ctx.consumer_name } or nil,
        client_ip = core.request.get_remote_client_ip(ctx),
        start_time = floor(ngx.req.start_time() * 1000),
        latency = all,
        upstream_latency = upstream,
        apisix_latency = own,
    }
    return entry
end

function _M.get_log_entry(name, conf, ctx)
    local metadata = require("apisix.plugin").plugin_metadata(name)
    local format = conf.log_format or metadata and metadata.value.log_format
    if format and next(format) then
        return _M.get_custom_format_log(ctx, format), true
    end
    return _M.get_full_log(ngx, conf), false
end

function _M.collect_body() end

function _M.check_log_schema()
    return true
end

function _M.get_rfc3339_zulu_timestamp(time)
    local now = time or ngx.now()
    local millis = ("%03d"):format(floor((now % 1) * 1000))
    return (gsub(os.date("!%Y-%m-%dT%H:%M:%S", floor(now)), "$", "." .. millis .. "Z"))
end

return _M
