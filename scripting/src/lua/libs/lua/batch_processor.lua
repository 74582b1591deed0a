-- `apisix.utils.batch-processor`: gathers entries and hands them to a function in lists.
local core = require("apisix.core")
local ngx = ngx
local ipairs, pcall, setmetatable, tostring, type = ipairs, pcall, setmetatable, tostring, type

local schema = {
    type = "object",
    properties = {
        name = { type = "string", default = "log buffer" },
        max_retry_count = { type = "integer", minimum = 0, default = 0 },
        retry_delay = { type = "integer", minimum = 0, default = 1 },
        buffer_duration = { type = "integer", minimum = 1, default = 60 },
        inactive_timeout = { type = "integer", minimum = 1, default = 5 },
        batch_max_size = { type = "integer", minimum = 1, default = 1000 },
    },
}

local Processor = { schema = schema, name = "batch-processor" }
Processor.__index = Processor

local deliver

-- Entries that one processor holds at most.
local MOST = 65536

local function later(time, call, ...)
    local ok, err = ngx.timer.at(time, call, ...)
    if not ok then
        core.log.error("failed to create a timer of a batch processor: ", err)
    end
    return ok
end

-- Hands a list to the function, and what failed again after a while.
function deliver(premature, self, batch)
    if premature then
        return
    end
    local ran, ok, err, first_fail = pcall(self.func, batch.entries, self.batch_max_size)
    if not ran then
        ok, err = false, ok
    end
    if ok then
        self.pending = self.pending - #batch.entries
        return
    end
    if first_fail and first_fail > 1 then
        self.pending = self.pending - (first_fail - 1)
        local rest = {}
        for at = first_fail, #batch.entries do
            rest[#rest + 1] = batch.entries[at]
        end
        batch.entries = rest
    end
    batch.tries = batch.tries + 1
    if batch.tries > self.max_retry_count then
        self.pending = self.pending - #batch.entries
        core.log.error("Batch Processor[", self.name, "] exceeded the max_retry_count[", batch.tries,
            "] dropping the entries, err: ", tostring(err))
        return
    end
    core.log.warn("Batch Processor[", self.name, "] failed to process entries: ", tostring(err))
    if not later(self.retry_delay, deliver, self, batch) then
        self.pending = self.pending - #batch.entries
    end
end

local function flush(self)
    if #self.entries > 0 then
        local batch = { entries = self.entries, tries = 0 }
        if later(0, deliver, self, batch) then
            self.entries = {}
        end
    end
end

-- Looks after the entries until there are none.
local function tick(premature, self)
    if premature then
        return
    end
    local now = ngx.now()
    if now - self.last >= self.inactive_timeout or now - self.first >= self.buffer_duration then
        flush(self)
    end
    if #self.entries == 0 then
        self.ticking = false
        if self.on_idle then
            self.on_idle()
        end
        return
    end
    self.ticking = later(1, tick, self)
end

function Processor.new(_, func, config)
    if type(func) ~= "function" then
        return nil, "Invalid argument, arg #1 must be a function"
    end
    local self = core.table.clone(config)
    local ok, err = core.schema.check(schema, self)
    if not ok then
        return nil, err
    end
    for name, field in next, schema.properties do
        if self[name] == nil then
            self[name] = field.default
        end
    end
    -- Entries that are gathered, on their way or tried again.
    self.pending = 0
    self.func, self.entries, self.first, self.last, self.ticking = func, {}, 0, 0, false
    return setmetatable(self, Processor)
end

function Processor:push(entry)
    local entries, now = self.entries, ngx.now()
    if self.pending >= MOST then
        core.log.error("max pending entries limit exceeded. discarding entry.")
        return
    end
    self.pending = self.pending + 1
    entries[#entries + 1] = entry
    self.last = now
    if #entries == 1 then
        self.first = now
    end
    if #entries >= self.batch_max_size then
        flush(self)
    elseif not self.ticking then
        self.ticking = later(1, tick, self)
    end
end

return Processor
