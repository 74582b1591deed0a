-- `ctx` of plugins and `apisix.core.ctx`.
local native, ngx, core = ...
local error, rawset, setmetatable, type = error, rawset, setmetatable, type

-- Variables that scripts have registered.
local registered = {}

local vars = {
    __index = function(_, name)
        if type(name) ~= "string" then
            error("invalid argument, expect string value", 2)
        end
        local entry = registered[name]
        if entry then
            return entry(native.session("ctx"))
        end
        return native.var(name)
    end,
    __newindex = function(_, name, value)
        native.set_var(name, value)
    end,
    __metatable = false,
}

-- Fields of `ctx` that are made when they are first read.
local fields = {
    var = function()
        return setmetatable({}, vars)
    end,
    matched_route = function()
        local route = native.route()
        return route and { key = "/apisix/routes/" .. route.id, value = route, modifiedIndex = 0, has_domain = false }
    end,
    route_id = function()
        local route = native.route()
        return route and route.id
    end,
    route_name = function()
        local route = native.route()
        return route and route.name
    end,
    service_id = function()
        local route = native.route()
        return route and route.service_id
    end,
    service_name = function()
        local route = native.route()
        return route and route.service_name
    end,
    conf_type = function()
        local route = native.route()
        return route and (route.service_id and "route&service" or "route")
    end,
    conf_id = function()
        local route = native.route()
        return route and route.id
    end,
    conf_version = function()
        return "0"
    end,
    curr_req_matched = function()
        return native.matched()
    end,
    headers = function()
        return ngx.req.get_headers(0)
    end,
    jwt_auth_payload = function()
        return native.token_claims()
    end,
    -- APISIX has it where a condition of the route has read the form.
    req_post_args = function()
        local kind = native.header("Content-Type") or ""
        if kind:find("application/x-www-form-urlencoded", 1, true) and not native.needs_body() then
            return ngx.req.get_post_args(0)
        end
    end,
}

-- Fields that change during the exchange.
local changing = {
    consumer = function()
        return native.consumer()
    end,
    consumer_name = function()
        local consumer = native.consumer()
        return consumer and consumer.consumer_name
    end,
    consumer_group_id = function()
        local consumer = native.consumer()
        return consumer and consumer.group_id
    end,
    -- A copy each time, as another plugin may set it as well.
    external_user = function()
        return native.external_user()
    end,
    -- Functions that take no context find one that is made while they run.
    _plugin_name = function()
        return native.running_plugin()
    end,
}

local contexts = {
    __index = function(ctx, key)
        local make = fields[key]
        if make then
            local value = make()
            if value ~= nil then
                rawset(ctx, key, value)
            end
            return value
        end
        make = changing[key]
        return make and make()
    end,
    __newindex = function(ctx, key, value)
        if key == "external_user" then
            native.set_external_user(value)
        else
            rawset(ctx, key, value)
        end
    end,
    __metatable = false,
}
native.contexts = contexts

-- The context of an exchange that has none yet.
function native.context()
    local ctx = setmetatable({}, contexts)
    native.set_ctx(ctx)
    return ctx
end

-- Whether a function may use its second argument.
local function_info = native.function_info
function native.takes_context(call)
    local info = function_info(call)
    return not info.params or info.isvararg or info.params > 1
end

local context = core.ctx or {}
core.ctx = context
package.loaded["apisix.core.ctx"] = context

function context.register_var(name, getter, _)
    if type(getter) ~= "function" then
        error("the getter of registered var should be a function", 2)
    end
    registered[name] = getter
end

function context.set_vars_meta() end

function context.release_vars() end

function context.add_tag() end
