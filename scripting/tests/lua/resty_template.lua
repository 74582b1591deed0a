local template = require("resty.template")
local test = {}

function test.output()
    local render = template.compile("Hello, {{name}}! {*name*} {{none}}")
    eq(render({ name = "<b>" }), "Hello, &lt;b&gt;! <b> ")
    eq(template.escape("'\"/&"), "&#39;&quot;&#47;&amp;")
    eq(template.escape("{x}", true), "&#123;x&#125;")
    eq(template.output(nil), "")
    eq(template.output(5), "5")
    eq(template.process("{{a.b + 1}}", { a = { b = 1 } }), "2")
end

function test.code()
    eq(template.process("{% for i, v in ipairs(list) do %}\n{{i}}={{v}};\n{% end %}\n", { list = { "a", "b" } }),
        "1=a;\n2=b;\n")
    eq(template.process("{% local x = 5 %}{% if x > 3 then %}big{% else %}small{% end %}"), "big")
    eq(template.process("{% echo('a', 1) %}"), "a1")
    eq(template.process("{# a comment #}x"), "x")
    eq(template.process("{-raw-}{{x}}{-raw-}"), "{{x}}")
    eq(template.process("\\{{x}} { x } {", { x = 1 }), "{{x}} { x } {")
end

function test.includes()
    local load = template.load
    local views = { header = "<h1>{{title}}</h1>", layout = "<{*view*}>", page = "{% layout = 'layout' %}{{x}}" }
    template.load = function(view) return views[view] or view end
    eq(template.process("{(header)}!", { title = "T" }), "<h1>T</h1>!")
    eq(template.process("{(header, { title = 'U' })}"), "<h1>U</h1>")
    eq(template.process("{['head' .. 'er']}", { title = "T" }), "<h1>T</h1>")
    eq(template.process("page", { x = 7 }), "<7>")
    eq(template.process("{-side-}S{{x}}{-side-}[{*blocks.side*}]", { x = 1 }), "[S1]")
    local view = template.new("header", "layout")
    view.title = "V"
    eq(tostring(view), "<<h1>V</h1>>")
    eq(view:process(), "<<h1>V</h1>>")
    template.load = load
end

function test.render()
    local out
    ngx.print = function(text) out = text end
    template.render("{{x}}", { x = 1 })
    eq(out, "1")
    template.render_string("{{x}}!", { x = 2 })
    eq(out, "2!")
    local view = template.new("v{{x}}")
    view.x = 3
    view:render()
    eq(out, "v3")
    eq(template.process_string("{{x}}", { x = 4 }), "4")
end

function test.cache_and_errors()
    local one = template.compile("cached {{x}}")
    eq(template.compile("cached {{x}}") == one, true)
    eq(template.caching(), true)
    template.caching(false)
    eq(template.compile("cached {{x}}") == one, false)
    template.caching(true)
    raises("", template.compile, "{% if %}")
    raises("view was not provided", template.compile, nil)
    for i = 1, 600 do template.compile("many" .. i) end
    eq(template.compile_string("{{x}}")({ x = 1 }), "1")
    assert(template.parse("{{x}}"):find("template.escape(x)", 1, true))
end

return test
