-- resty.template: templates are texts, compiled to Lua functions. There are no files, so a view is its text or a name
-- that `template.load` knows.
local _, native = ...
local compile_chunk = native("text").chunk
local type, tostring, setmetatable, find, sub, gsub = type, tostring, setmetatable, string.find, string.sub, string.gsub
local concat, format = table.concat, string.format

local template = { _VERSION = "2.0", cache = {} }
local is_caching = true
local cached, most = 0, 256

local entities = {
    ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;", ["'"] = "&#39;", ["/"] = "&#47;",
}
local codes = { ["{"] = "&#123;", ["}"] = "&#125;" }

function template.output(value)
    if value == nil or value == ngx.null then
        return ""
    end
    if type(value) == "function" then
        return template.output(value())
    end
    return tostring(value)
end

function template.escape(value, code)
    if type(value) == "string" then
        value = gsub(value, "[\">/<'&]", entities)
        return code and (gsub(value, "[}{]", codes)) or value
    end
    return template.output(value)
end

-- The text of a view. A script replaces it to name its views.
function template.load(view)
    return view
end

-- Directives: the opening bracket after `{`, its end, and the code that is generated.
local closing = { ["{"] = "}}", ["*"] = "*}", ["%"] = "%}", ["("] = ")}", ["["] = "]}", ["#"] = "#}", ["-"] = "-}" }

-- Turns a text into the source of a function with `context` as `...`.
function template.parse(text)
    local out, at = {}, 1
    local function add(code)
        out[#out + 1] = code
    end
    local function literal(from, to)
        if to >= from then
            add(format("___[#___ + 1] = %q\n", sub(text, from, to)))
        end
    end
    add("context = (...) or {}\nlocal ___, blocks, layout = {}, blocks or {}, nil\n"
        .. "local function include(v, c) return template.compile(v)(c or context) end\n"
        .. "local function echo(...) for i = 1, select('#', ...) do ___[#___ + 1] = tostring((select(i, ...))) end end\n")
    while true do
        local open = find(text, "{[{*%%(%[#-]", at)
        if not open then
            literal(at, #text)
            break
        end
        local kind = sub(text, open + 1, open + 1)
        local from, to = find(text, closing[kind], open + 2, true)
        if not from then
            literal(at, open + 1)
            at = open + 2
        elseif sub(text, open - 1, open - 1) == "\\" then
            literal(at, open - 2)
            literal(open, open + 1)
            at = open + 2
        else
            literal(at, open - 1)
            local code = sub(text, open + 2, from - 1)
            at = to + 1
            if kind == "{" then
                add("___[#___ + 1] = template.escape(" .. code .. ")\n")
            elseif kind == "*" then
                add("___[#___ + 1] = template.output(" .. code .. ")\n")
            elseif kind == "%" then
                add(code .. "\n")
                -- A line of code leaves no empty line.
                if sub(text, at, at) == "\n" then
                    at = at + 1
                end
            elseif kind == "(" then
                local view, context = code:match("^%s*([^,]-)%s*,%s*(.-)%s*$")
                view = view or code:match("^%s*(.-)%s*$")
                add(format("___[#___ + 1] = include(%q, %s)\n", view, context or "context"))
            elseif kind == "[" then
                add("___[#___ + 1] = include(" .. code .. ")\n")
            elseif kind == "-" then
                local name = code
                local mark = "{-" .. name .. "-}"
                local first, last = find(text, mark, at, true)
                if not first then
                    literal(open, to)
                else
                    local inner = sub(text, at, first - 1)
                    if name == "raw" or name == "verbatim" then
                        add(format("___[#___ + 1] = %q\n", inner))
                    else
                        add(format("blocks[%q] = include(%q)\n", name, inner))
                    end
                    at = last + 1
                end
            end
        end
    end
    add("return layout and include(layout, setmetatable({ view = table.concat(___), blocks = blocks }, "
        .. "{ __index = context })) or table.concat(___)")
    return concat(out)
end

local function environment()
    local env = { template = template, blocks = {} }
    return setmetatable(env, {
        __index = function(_, name)
            local context = rawget(env, "context")
            local value = context and context[name]
            if value == nil then
                value = _G[name]
            end
            return value
        end,
    })
end

-- A function that renders a view with a context; second whether it was made before.
function template.compile(view, key, plain)
    if type(view) ~= "string" then
        error("view was not provided for template.compile(view, key, plain)", 2)
    end
    key = key or view
    if is_caching and key ~= "no-cache" and template.cache[key] then
        return template.cache[key], true
    end
    local source = template.parse(plain and view or template.load(view))
    local make, err = compile_chunk(source, "=template")
    if not make then
        error(err, 2)
    end
    local function render(context)
        -- Each call has its own variables, so that renderings can wait for something in between.
        local chunk = make(environment())
        return chunk(context)
    end
    if is_caching and key ~= "no-cache" then
        if cached >= most then
            template.cache, cached = {}, 0
        end
        template.cache[key] = render
        cached = cached + 1
    end
    return render, false
end

function template.process(view, context, key, plain)
    return template.compile(view, key, plain)(context)
end

function template.render(view, context, key, plain)
    return template.print(template.process(view, context, key, plain))
end

function template.print(text)
    ngx.print(text)
end

function template.caching(enable)
    if enable ~= nil then
        is_caching = enable == true
    end
    return is_caching
end

-- An object whose fields are the context; with a layout, `view` is the text inside.
function template.new(view, layout)
    if type(view) == "table" then
        return template
    end
    local self = {}
    local function process()
        local text = template.process(view, self)
        if layout then
            local outer = setmetatable({ view = text }, { __index = self })
            text = template.process(layout, outer)
        end
        return text
    end
    return setmetatable(self, {
        __index = {
            process = process,
            render = function()
                template.print(process())
            end,
        },
        __tostring = process,
    })
end

template.compile_string = function(view, key)
    return template.compile(view, key, true)
end
template.process_string = function(view, context, key)
    return template.process(view, context, key, true)
end
template.render_string = function(view, context, key)
    return template.render(view, context, key, true)
end

return template
