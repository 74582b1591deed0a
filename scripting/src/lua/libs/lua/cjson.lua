-- cjson and cjson.safe: an encoder and a decoder with settings of their own in each.
local name, native = ...
native = native("json")
local error, tonumber, type = error, tonumber, type

local function number(value, what, low, high)
    value = tonumber(value)
    if not value or value < low or value > high then
        error("bad argument #1 to '" .. what .. "' (expected integer between " .. low .. " and " .. high .. ")", 3)
    end
    return value
end

local new

local function make(safe, settings)
    -- Made at first use, and again after a setting has changed.
    local encode, decode

    local _M = {
        _NAME = "cjson",
        _VERSION = "2.1.0.14",
        null = ngx.null,
        array_mt = native.array_mt,
        empty_array_mt = native.empty_array_mt,
        empty_array = native.empty_array,
    }

    function _M.encode(value)
        encode = encode or native.encoder(settings)
        local text, err = encode(value)
        if text == nil then
            if safe then
                return nil, err
            end
            error(err, 0)
        end
        return text
    end

    function _M.decode(text)
        if type(text) ~= "string" and type(text) ~= "number" then
            local err = "bad argument #1 to 'decode' (string expected, got "
                .. (text == nil and "no value" or type(text)) .. ")"
            if safe then
                return nil, err
            end
            error(err, 0)
        end
        decode = decode or native.decoder(settings)
        local value, err = decode(text)
        if err then
            if safe then
                return nil, err
            end
            error(err, 0)
        end
        return value
    end

    local function switch(function_name, key, default)
        settings[key] = settings[key] == nil and default or settings[key]
        _M[function_name] = function(on)
            if on == "on" then
                on = true
            elseif on == "off" then
                on = false
            end
            if on ~= nil then
                settings[key], encode, decode = on, nil, nil
            end
            return settings[key]
        end
    end
    switch("encode_empty_table_as_object", "empty_as_object", true)
    switch("encode_escape_forward_slash", "escape_slash", true)
    switch("encode_skip_unsupported_value_types", "skip_unsupported", false)
    switch("encode_invalid_numbers", "invalid_numbers", false)
    switch("encode_sort_keys", "sorted", false)
    switch("decode_invalid_numbers", "decode_invalid_numbers", true)
    switch("decode_array_with_array_mt", "decode_array_mt", false)
    -- The buffer of an encoder is never kept.
    switch("encode_keep_buffer", "keep_buffer", true)

    local function limit(function_name, key, default, low, high)
        settings[key] = settings[key] or default
        _M[function_name] = function(value)
            if value ~= nil then
                settings[key], encode, decode = number(value, function_name, low, high), nil, nil
            end
            return settings[key]
        end
    end
    limit("encode_max_depth", "depth", 1000, 1, 2147483647)
    limit("decode_max_depth", "decode_depth", 1000, 1, 2147483647)
    limit("encode_number_precision", "precision", 14, 1, 17)

    settings.sparse_convert = settings.sparse_convert or false
    settings.sparse_ratio = settings.sparse_ratio or 2
    settings.sparse_safe = settings.sparse_safe or 10
    function _M.encode_sparse_array(convert, ratio, safe_length)
        encode = nil
        if convert ~= nil then
            settings.sparse_convert = convert == true or convert == "on"
        end
        if ratio ~= nil then
            settings.sparse_ratio = number(ratio, "encode_sparse_array", 0, 2147483647)
        end
        if safe_length ~= nil then
            settings.sparse_safe = number(safe_length, "encode_sparse_array", 0, 2147483647)
        end
        return settings.sparse_convert, settings.sparse_ratio, settings.sparse_safe
    end

    function _M.encode_indent(indent)
        if indent ~= nil then
            settings.indent, encode = indent, nil
        end
        return settings.indent or ""
    end

    _M.new = function()
        return new(safe)
    end
    return _M
end

function new(safe)
    return make(safe, {})
end

return new(name == "cjson.safe")
