-- `apisix.consumer`: consumers as auth plugins find them.
local native, _, core = ...
local error, rawget, rawset, setmetatable, tostring, type =
    error, rawget, rawset, setmetatable, tostring, type

local consumer = { version = 0.3 }
package.loaded["apisix.consumer"] = consumer

-- By the consumers that were found: the plugin and the key.
local found = setmetatable({}, { __mode = "k" })

local function find(plugin, field, value)
    if type(value) ~= "string" and type(value) ~= "number" then
        return nil
    end
    local one = native.find_consumer(plugin, field, tostring(value))
    if one then
        found[one] = { plugin, tostring(value) }
    end
    return one
end

-- Lists of more than 1,000 consumers are refused, as a list costs time on the worker.
local MOST = 1000

local function list(plugin)
    local all = native.all_consumers(plugin, MOST)
    if not all then
        error("more than " .. MOST .. " consumers have " .. plugin .. ": use find_consumer", 3)
    end
    local nodes = {}
    for at = 1, #all, 2 do
        nodes[#nodes + 1] = all[at]
        found[all[at]] = { plugin, all[at + 1] }
    end
    return nodes
end

-- All consumers with a credential for a plugin; nil if there are none. The list is made when it is read.
function consumer.plugin(plugin)
    local version = native.consumers_version(plugin)
    if version then
        return setmetatable({ conf_version = version }, {
            __index = function(all, name)
                if name == "nodes" then
                    rawset(all, "nodes", list(plugin))
                    return rawget(all, "nodes")
                end
            end,
        })
    end
end

-- A table that has consumers by the value of a field of their credentials.
function consumer.consumers_kv(plugin, _, field)
    return setmetatable({}, {
        __index = function(_, value)
            return find(plugin, field, value)
        end,
    })
end

function consumer.find_consumer(plugin, field, value)
    local all = consumer.plugin(plugin)
    if not all then
        return nil, nil, "Missing related consumer"
    end
    return find(plugin, field, value), all
end

function consumer.get_anonymous_consumer(name)
    local one = native.named_consumer(tostring(name))
    if not one then
        return nil, nil, "failed to get anonymous consumer " .. tostring(name)
    end
    return one, { conf_version = "0" }
end

function consumer.attach_consumer(ctx, one, _)
    local by = found[one] or {}
    local name = one.consumer_name or one.username
    if not native.attach_consumer(by[1], by[2], tostring(name)) then
        core.log.error("cannot attach the unknown consumer ", tostring(name))
        return
    end
    rawset(ctx, "consumer", nil)
end
