-- The bodies of resty.http: readers for each framing. With the most bytes of a piece, a reader returns the next piece,
-- and nil at the end.
local type, tonumber, min, match = type, tonumber, math.min, string.match
local new_headers = require("resty.http_headers").new

-- Heads and lines of chunks are at most as long as this.
local longest_head, longest_line = 64 * 1024, 4096

local function receive_headers(self)
    local headers, size = new_headers(), 0
    while true do
        local line, err = self.sock:receive("*l")
        if not line then
            return nil, err
        end
        if line == "" then
            return headers
        end
        size = size + #line
        if size > longest_head then
            return nil, "response headers are too long"
        end
        local name, value = match(line, "^([^:%s]+):%s*(.-)%s*$")
        if name then
            local old = headers[name]
            if old == nil then
                headers[name] = value
            elseif type(old) == "table" then
                old[#old + 1] = value
            else
                headers[name] = { old, value }
            end
        end
    end
end

local function one(value)
    return type(value) == "table" and value[#value] or value
end

local function read_chunks(self, default)
    local left, is_done = 0, false
    return function(max)
        max = max or default or 65536
        if is_done then
            return nil
        end
        if left == 0 then
            local line, err = self.sock:receive("*l")
            if not line then
                self.keepalive = false
                return nil, err
            end
            local digits = #line <= longest_line and match(line, "^%s*(%x+)")
            left = digits and #digits <= 12 and tonumber(digits, 16)
            if not left then
                self.keepalive = false
                is_done = true
                return nil, "unable to read chunksize"
            end
            if left == 0 then
                is_done = true
                local trailers
                trailers, err = receive_headers(self)
                if not trailers then
                    self.keepalive = false
                    return nil, err
                end
                self.trailers = trailers
                return nil
            end
        end
        local text, err = self.sock:receive(min(left, max))
        if not text then
            self.keepalive = false
            return nil, err
        end
        left = left - #text
        if left == 0 then
            self.sock:receive(2)
        end
        return text
    end
end

local function read_length(self, length, default)
    local left = length
    return function(max)
        if left == 0 then
            return nil
        end
        local text, err, partial = self.sock:receive(min(left, max or default or 65536))
        if not text then
            self.keepalive = false
            left = 0
            return partial ~= "" and partial or nil, err
        end
        left = left - #text
        return text
    end
end

local function read_to_end(self, default)
    local is_done = false
    self.keepalive = false
    return function(max)
        if is_done then
            return nil
        end
        local text, err, partial = self.sock:receive(max or default or 65536)
        if text then
            return text
        end
        is_done = true
        if err == "closed" then
            return partial ~= "" and partial or nil
        end
        return nil, err
    end
end

return { one = one, headers = receive_headers, chunks = read_chunks, length = read_length, to_end = read_to_end }
