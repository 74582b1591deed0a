-- `multipart`: forms of the type multipart/form-data, with the functions of lua-multipart.
local concat, find, gmatch, lower, setmetatable, sub, tostring =
    table.concat, string.find, string.gmatch, string.lower, setmetatable, string.sub, tostring

local Form = {}
Form.__index = Form

-- Parts of one form, and characters of a boundary (RFC 2046 section 5.1.1): the client chooses both.
local MOST, LONGEST = 1000, 70

-- The texts between two delimiters, in order.
local function split(body, delimiter)
    local parts = {}
    local _, last = find(body, delimiter, 1, true)
    while last do
        local first, next_last = find(body, "\r\n" .. delimiter, last + 1, true)
        if not first then
            break
        end
        if #parts == MOST then
            return nil
        end
        parts[#parts + 1] = sub(body, last + 1, first - 1)
        last = next_last
    end
    return parts
end

local function part_of(text)
    local first, last = find(text, "\r\n\r\n", 1, true)
    if not first then
        return nil
    end
    local headers = {}
    for line in gmatch(sub(text, 1, first), "[^\r\n]+") do
        headers[#headers + 1] = line
    end
    local name
    for at = 1, #headers do
        if find(lower(headers[at]), "^content%-disposition:") then
            name = headers[at]:match('[ ;]name="([^"]*)"') or headers[at]:match("[ ;]name=([^ ;]+)")
        end
    end
    return name and { name = name, headers = headers, value = sub(text, last + 1) }
end

local function new(_, body, content_type)
    local form = { parts = {} }
    local kind = content_type or ""
    form.boundary = kind:match('boundary="([^"]+)"') or kind:match("boundary=([^;]+)")
    if form.boundary and #form.boundary > LONGEST then
        return nil, "the boundary is too long"
    end
    if form.boundary and body then
        local parts = split(body, "--" .. form.boundary)
        if not parts then
            return nil, "the form has too many parts"
        end
        for at = 1, #parts do
            form.parts[#form.parts + 1] = part_of(parts[at])
        end
    end
    return setmetatable(form, Form)
end

function Form:get(name)
    for at = 1, #self.parts do
        if self.parts[at].name == name then
            return self.parts[at]
        end
    end
end

-- The values by name; of several the last one.
function Form:get_all()
    local all = {}
    for at = 1, #self.parts do
        all[self.parts[at].name] = self.parts[at].value
    end
    return all
end

function Form:get_all_as_arrays()
    local all = {}
    for at = 1, #self.parts do
        local part = self.parts[at]
        all[part.name] = all[part.name] or {}
        all[part.name][#all[part.name] + 1] = part.value
    end
    return all
end

function Form:set_simple(name, value, filename, content_type)
    local disposition = 'Content-Disposition: form-data; name="' .. name .. '"'
    if filename then
        disposition = disposition .. '; filename="' .. filename .. '"'
    end
    local part = { name = name, value = value, headers = { disposition } }
    if content_type then
        part.headers[2] = "Content-Type: " .. content_type
    end
    for at = 1, #self.parts do
        if self.parts[at].name == name then
            self.parts[at] = part
            return
        end
    end
    self.parts[#self.parts + 1] = part
end

function Form:delete(name)
    for at = #self.parts, 1, -1 do
        if self.parts[at].name == name then
            table.remove(self.parts, at)
        end
    end
end

function Form:tostring()
    local out = {}
    for at = 1, #self.parts do
        local part = self.parts[at]
        out[#out + 1] = "--" .. self.boundary .. "\r\n" .. concat(part.headers, "\r\n") .. "\r\n\r\n"
            .. tostring(part.value) .. "\r\n"
    end
    out[#out + 1] = "--" .. (self.boundary or "") .. "--\r\n"
    return concat(out)
end

return setmetatable({}, { __call = new, __library = true })
