-- `apisix.utils.batch-processor-manager`: a batch processor for each configuration of a logger.
local core = require("apisix.core")
local processor = require("apisix.utils.batch-processor")
local next, setmetatable = next, setmetatable

local Manager = {}
Manager.__index = Manager

function Manager.new(name)
    return setmetatable({ name = name, buffers = setmetatable({}, { __mode = "k" }) }, Manager)
end

-- A schema with the settings of batches.
function Manager.wrap_schema(_, schema)
    local wrapped = core.table.deepcopy(schema)
    wrapped.properties = wrapped.properties or {}
    for name, field in next, core.table.deepcopy(processor.schema.properties) do
        wrapped.properties[name] = wrapped.properties[name] or field
    end
    return wrapped
end

function Manager.wrap_metadata_schema(_, schema)
    local wrapped = core.table.deepcopy(schema)
    wrapped.properties = wrapped.properties or {}
    wrapped.properties.max_pending_entries = { type = "integer", minimum = 1 }
    return wrapped
end

local function is_full(buffer, most)
    if most and buffer.pending >= most then
        core.log.error("max pending entries limit exceeded. discarding entry.")
        return true
    end
end

-- Returns whether there is a processor for the configuration.
function Manager:add_entry(conf, entry, most)
    local buffer = self.buffers[conf]
    if not buffer then
        return false
    end
    if not is_full(buffer, most) then
        buffer:push(entry)
    end
    return true
end

function Manager:add_entry_to_new_processor(conf, entry, _, func)
    local config = { name = conf.name or self.name }
    for name in next, processor.schema.properties do
        if config[name] == nil then
            config[name] = conf[name]
        end
    end
    local buffer, err = processor:new(func, config)
    if not buffer then
        core.log.error("error when creating the batch processor: ", err)
        return false
    end
    buffer:push(entry)
    self.buffers[conf] = buffer
    -- The function of a logger often holds the configuration, so the table would keep both.
    buffer.on_idle = function()
        self.buffers[conf] = nil
    end
    return true
end

return Manager
