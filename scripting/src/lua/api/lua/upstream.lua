-- `apisix.upstream`: upstreams that plugins set for their request.
local native, _, core = ...
local error, rawset, tostring, type = error, rawset, tostring, type

local function resolved(settings)
    local addresses, names = {}, native.upstream_names(settings)
    for at = 1, #names do
        -- A node whose name cannot be resolved gets no requests.
        addresses[names[at]] = core.resolver.parse_domain(names[at])
    end
    return addresses
end

package.loaded["apisix.upstream"] = {
    -- A version is not needed: other settings are another upstream.
    set = function(ctx, key, version, settings)
        for name, value in pairs({ ctx = ctx or false, key = key or false, ver = version or false, conf = settings or false }) do
            if not value then
                error("missing argument " .. name, 2)
            end
        end
        native.set_upstream(tostring(key), settings, resolved(settings))
        rawset(ctx, "upstream_conf", settings)
        rawset(ctx, "upstream_version", version)
        rawset(ctx, "upstream_key", key)
    end,
    check_schema = function(settings)
        if type(settings) ~= "table" then
            return false, "invalid upstream"
        end
        local err = native.check_upstream(settings)
        return err == nil, err
    end,
    scheme_to_port = { http = 80, https = 443, grpc = 80, grpcs = 443 },
}
