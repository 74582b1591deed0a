-- apisix.schema_def: patterns and shapes that plugins build their schemas of.
local id = { anyOf = {
    { type = "string", minLength = 1, maxLength = 64, pattern = [[^[a-zA-Z0-9-_.]+$]] },
    { type = "integer", minimum = 1 },
} }
local host = "^\\*?[0-9a-zA-Z-._\\[\\]:]+$"
local ipv4 = "([0-9]{1,3}\\.){3}[0-9]{1,3}"
local ipv6 = "([a-fA-F0-9]{0,4}:){1,8}(:[a-fA-F0-9]{0,4}){0,8}([a-fA-F0-9]{0,4})?"

local _M = {
    version = 0.5,
    id_schema = id,
    host_def_pat = host,
    host_def = { type = "string", pattern = host },
    uri_def = { type = "string", pattern = [=[^[^\/]+:\/\/([\da-zA-Z.-]+|\[[\da-fA-F:]+\])(:\d+)?]=] },
    ip_def = {
        { title = "IPv4", type = "string", pattern = "^" .. ipv4 .. "$" },
        { title = "IPv4/CIDR", type = "string", pattern = "^" .. ipv4 .. "/([12]?[0-9]|3[0-2])$" },
        { title = "IPv6", type = "string", pattern = "^" .. ipv6 .. "$" },
        { title = "IPv6/CIDR", type = "string", pattern = "^" .. ipv6 .. "/[0-9]{1,3}$" },
    },
    method_schema = {
        type = "string",
        enum = { "GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE", "PURGE" },
    },
    labels_def = {
        type = "object",
        patternProperties = { [".*"] = { type = "string", minLength = 1, maxLength = 256 } },
    },
    rule_name_def = { type = "string", minLength = 1, maxLength = 100 },
    timeout_def = {
        type = "object",
        properties = {
            connect = { type = "number", exclusiveMinimum = 0 },
            send = { type = "number", exclusiveMinimum = 0 },
            read = { type = "number", exclusiveMinimum = 0 },
        },
        required = { "connect", "send", "read" },
    },
    anonymous_consumer_schema = { type = "string", minLength = 1 },
    plugin_injected_schema = {
        ["$comment"] = "this is a mark for our injected plugin schema",
        _meta = {
            type = "object",
            properties = {
                disable = { type = "boolean" },
                error_response = { oneOf = { { type = "string" }, { type = "object" } } },
                priority = { type = "integer" },
                filter = { type = "array" },
                pre_function = { type = "string" },
            },
        },
    },
}

return _M
