use sdk::testing::{Probe, chunk, now, respond, with_body};

use super::*;

mod away;
mod cost;
mod limits;
mod lua;
mod xml;

/// The body that comes of a request, or status and message.
fn request(config: Value, headers: &[(&str, &str)], body: &[u8]) -> Result<String, (u16, String)> {
    request_within(1_000_000, config, headers, body)
}

/// The same with this number of steps.
fn request_within(
    steps: u64,
    config: Value,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Result<String, (u16, String)> {
    let stage = limits::built(json!({"request": config}), Some(&json!({"max_steps": steps})));
    let outcome = |on_worker: bool| {
        let mut probe = Probe::request("POST", "/hello?name=Ann&n=1&n=2", headers);
        let mut x = probe.exchange();
        with_body(&mut x, body);
        let step = if on_worker { stage.rewrite(&mut x) } else { now(stage.wait(Phase::Rewrite, &mut x)) };
        match step {
            Step::Next => Some(Ok(String::from_utf8_lossy(x.body()).into_owned())),
            Step::Reply(reply) => {
                let answer: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
                Some(Err((reply.status, answer["message"].as_str().unwrap_or_default().to_owned())))
            }
            Step::Wait => None,
            step => panic!("{step:?}"),
        }
    };
    // The place of the work makes no difference.
    let away = outcome(false).expect("it has waited");
    if let Some(here) = outcome(true) {
        assert_eq!(here, away);
    }
    away
}

/// Lets a stage rewrite a request, on the worker or where it wants to.
fn rewrite(stage: &BodyTransformer, x: &mut Exchange<'_>) -> Step {
    match stage.rewrite(x) {
        Step::Wait => now(stage.wait(Phase::Rewrite, x)),
        step => step,
    }
}

/// The same for a piece of a response.
fn filter(stage: &BodyTransformer, x: &mut Exchange<'_>, chunk: &mut Chunk) {
    match stage.body_action(x, chunk) {
        Step::Wait => _ = now(stage.wait_body(x, chunk)),
        step => assert!(matches!(step, Step::Next)),
    }
}

fn json_in(template: &str, body: &str) -> Result<String, (u16, String)> {
    request(json!({"input_format": "json", "template": template}), &[], body.as_bytes())
}

fn output(template: &str, body: &str) -> String {
    json_in(template, body).unwrap_or_else(|error| panic!("{template}: {error:?}"))
}

/// The same for templates that take many steps.
fn long_output(template: &str, body: &str) -> String {
    let config = json!({"input_format": "json", "template": template});
    let made = request_within(10_000_000, config, &[], body.as_bytes());
    made.unwrap_or_else(|error| panic!("{template}: {error:?}"))
}

#[test]
fn outputs_and_expressions() {
    let body = r#"{"name": "a<b>/\"c\"'&", "age": "10", "n": 2.5, "big": 100000000000000000, "list": [1, "two", null], "none": null, "yes": true}"#;
    for (template, expected) in [
        ("plain", "plain"),
        ("{{name}}", "a&lt;b&gt;&#47;&quot;c&quot;&#39;&amp;"),
        ("{*name*}", "a<b>/\"c\"'&"),
        ("{{age+10}} {{n * 2}} {{7 % 4}} {{-n}} {{2^3^2}}", "20 5 3 -2.5 512"),
        ("{{age .. ' years'}}{{1 .. 2}}", "10 years12"),
        ("{{missing}}|{{none}}|{{yes}}|{{not yes}}", "||true|false"),
        ("{{list[1]}} {{list[2]}} {{list[3]}} {{#list}} {{list[9]}}", "1 two  3 "),
        ("{{missing or 'else'}} {{yes and 1 or 2}} {{none == nil}}", "else 1 false"),
        ("{{1 < 2}} {{'a' <= 'b'}} {{age == 10}} {{age ~= '10'}}", "true true false false"),
        ("{*_escape_json(name)*}", r#""a<b>/\"c\"'&""#),
        ("{*_escape_xml(name)*}", "a&lt;b&gt;/&quot;c&quot;&apos;&amp;"),
        ("{*_escape_json(list)*} {*_escape_json(missing)*}", r#"[1,"two",null] null"#),
        ("{{_ctx.var.arg_name}} {{_ctx.var.request_method}} {{_ctx.consumer and 1 or 0}}", "Ann POST 0"),
        ("{*string.gsub(name, '<b>', '-')*} {{name:upper():sub(1, 1)}} {{('x'):rep(3)}}", "a-/\"c\"'& A xxx"),
        ("{{string.format('%s-%d-%.2f%%', 'a', 3, 1.5)}}", "a-3-1.50%"),
        ("{{big}} {{0.1}} {{1e3}}", "1e+17 0.1 1000"),
        ("{{type(list)}} {{tonumber('0x10')}} {{tostring(nil)}} {{math.floor(2.7)}}", "table 16 nil 2"),
        ("a{# nothing #}\nb", "ab"),
        ("\\{{name}} {(} {[} {", "{{name}} {(} {[} {"),
        (
            "{{table.concat({1, 2, 'x'}, ', ')}} {*_escape_json({a = 1, ['b c'] = {}})*}",
            "1, 2, x {\"a\":1,\"b c\":{}}",
        ),
    ] {
        assert_eq!(output(template, body), expected, "{template}");
    }
}

#[test]
fn statements() {
    let body = r#"{"list": ["a", "b"], "map": {"x": 1, "y": 2}, "n": 3}"#;
    for (template, expected) in [
        ("{% if n == 3 then %}three{% else %}other{% end %}", "three"),
        ("{% if n > 3 then %}more{% elseif n == 3 then %}same{% end %}!", "same!"),
        ("{% for i, v in ipairs(list) do %}{{i}}={{v}};{% end %}", "1=a;2=b;"),
        ("{% for k, v in pairs(map) do %}{{k}}{{v}} {% end %}", "x1 y2 "),
        ("{% for i = 1, n do %}{{i}}{% end %}{% for i = 3, 1, -2 do %}{{i}}{% end %}", "12331"),
        ("{% local x = n + 1 if x > 3 then x = 'big' end %}{{x}}{{y}}", "big"),
        ("{%\n  y = 'global'\n%}\n{{y}}", "global"),
        ("{% -- a comment\n local s = [[\nlong]] %}{{s}}", "long"),
        (
            "{% context.n = nil context.new = {1} context.new[2] = n %}{*_escape_json(context)*}",
            r#"{"list":["a","b"],"map":{"x":1,"y":2},"new":[1]}"#,
        ),
        (
            "{% local core = require 'apisix.core' context.map.z = core.json.decode('[1]') %}{*core.json.encode(context.map)*}",
            r#"{"x":1,"y":2,"z":[1]}"#,
        ),
        (
            "{% local t = {} for _, v in ipairs(list) do table.insert(t, v:upper()) end %}{{table.concat(t, '+')}}",
            "A+B",
        ),
    ] {
        // An empty expectation means that the template is refused.
        if expected.is_empty() {
            assert!(Template::parse(template.as_bytes()).is_err());
            continue;
        }
        assert_eq!(output(template, body), expected, "{template}");
    }
}

#[test]
fn formats() {
    let xml = r#"<?xml version="1.0"?><!-- c --><s:Envelope xmlns:s="u"><s:Body><c:country id="7"> <c:name>A &amp; B&#x21;</c:name><c:pop>5</c:pop><c:pop>6</c:pop><c:none/><t><![CDATA[<x>]]></t></c:country></s:Body></s:Envelope>"#;
    let template = "{*Envelope.Body.country.name*}|{{Envelope.Body.country.pop[2]}}|{{Envelope.Body.country.none}}|{*Envelope.Body.country.t*}|{{Envelope.Body.country._attr.id}}|{{Envelope._attr.s}}";
    let config = json!({"template": template});
    let kind = [("Content-Type", "text/xml")];
    assert_eq!(request(config.clone(), &kind, xml.as_bytes()).unwrap(), "A & B!|6||<x>|7|u");
    for bad in [
        "<a>",
        "<a></b>",
        "",
        "text",
        "<a>&own;</a>",
        "<!DOCTYPE a [<!ENTITY x 'y'>]><a/>",
        &"<a>".repeat(1000),
    ] {
        let config = json!({"input_format": "xml", "template": "x"});
        let outcome = request(config, &[], bad.as_bytes());
        if bad.is_empty() {
            assert_eq!(outcome.unwrap(), "x", "there is no body to read");
        } else {
            let (status, words) = outcome.unwrap_err();
            assert!(status == 400 && words.starts_with("request body decode: "), "{bad}: {words}");
        }
    }
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    assert_eq!(request(json!({"template": "{{a}} {{b[2]}}"}), &form, b"a=x%20y&b=1&b=2").unwrap(), "x y 2");
    assert_eq!(
        request(json!({"input_format": "args", "template": "{{name}} {{n[1]}}"}), &[], b"z").unwrap(),
        "Ann 1"
    );
    assert_eq!(
        request(json!({"input_format": "plain", "template": "<{*_body*}>"}), &[], b"any").unwrap(),
        "<any>"
    );
    assert_eq!(
        request(json!({"template": "{{a}}{*_body*}"}), &[], b"{}").unwrap(),
        "{}",
        "no format, no fields"
    );
    let parts = "--B\r\nContent-Disposition: form-data; name=\"age\"\r\n\r\n19\r\n--B--";
    let multipart = [("Content-Type", "multipart/form-data; boundary=B")];
    let template = "{% if tonumber(context.age) > 18 then context._multipart:set_simple('status', 'major') end local body = context._multipart:tostring() %}{* body *}";
    let made = request(json!({"template": template}), &multipart, parts.as_bytes()).unwrap();
    assert!(made.ends_with("name=\"status\"\r\n\r\nmajor\r\n--B--\r\n"), "{made}");
    assert_eq!(request(json!({"template": "x"}), &multipart, b"nonsense").unwrap_err().0, 400);
    let (status, words) = json_in("{{a}}", "{").unwrap_err();
    assert_eq!(
        (status, &words[..]),
        (400, "request body decode: Expected object key string but found T_END at character 2")
    );
    assert_eq!(json_in("{{a}}", "1").unwrap_err().0, 400);
}

#[test]
fn templates_may_be_in_base64() {
    let base64 = STANDARD.encode("{{name}}!");
    let config = |always: bool, format: &str| json!({"template": base64, "template_is_base64": always, "input_format": format});
    assert_eq!(request(config(false, "json"), &[], b"{\"name\":\"A\"}").unwrap(), "A!");
    assert_eq!(request(config(true, "encoded"), &[], b"name=A").unwrap(), "A!");
    assert_eq!(request(config(false, "encoded"), &[], b"name=A").unwrap(), base64);
}

#[test]
fn fields_do_not_stand_for_helpers() {
    let body = r#"{"_escape_json": "x", "_ctx": 1, "_body": 2, "a": "b"}"#;
    assert_eq!(output("{*_escape_json(a)*}{{_ctx.var.arg_name}}", body), "\"b\"Ann");
    assert_eq!(output("{*_body*}", body), body);
}

#[test]
fn errors_are_reported() {
    for (template, words) in [
        ("{{a.b.c}}", "attempt to index a nil value"),
        ("{{a()}}", "attempt to call a nil value"),
        ("{{a .. 'x'}}", "attempt to concatenate a nil value"),
        ("{{1 + {}}}", ""),
        ("{{#nil}}", "attempt to get length of a nil value"),
        ("{{#true}}", "attempt to get length of a boolean value"),
        ("{% for i = 1, 2, 0 do end %}", "'for' step is zero"),
        ("{% for i = 1, 2, 0 / 0 do end %}", "'for' step is zero"),
        ("{% for k in pairs(1) do end %}", "table expected, got number"),
        ("{% local t = {} t[2] = 1 %}", "at a list's places"),
        ("{% local t = {} t[0] = 1 %}", "at a list's places"),
        ("{% local t = {1} t[1.5] = 1 %}", "at a list's places"),
        ("{% local t = {} t[true] = 1 %}", "at a list's places"),
        ("{{('x'):upper(1):none()}}", "attempt to call method 'none'"),
        ("{{string.sub()}}", "bad argument #1 to 'sub' (string expected, got no value)"),
        ("{{('a'):sub()}}", "bad argument #2 to 'sub' (number expected, got no value)"),
        ("{{('a'):rep(nil)}}", "bad argument #2 to 'rep' (number expected, got nil)"),
        ("{{table.concat({1, nil, 3})}}", "invalid value (nil) at index 2 in table for 'concat'"),
        ("{{table.concat({true})}}", "invalid value (boolean) at index 1 in table for 'concat'"),
        ("{{string.find('a')}}", "bad argument #2 to 'find' (string expected, got no value)"),
        ("{{string.find('a', '[a]')}}", "not patterns"),
        ("{{string.find('a', '%')}}", "not patterns"),
        ("{{string.gsub('a', 'a', '%1')}}", "plain texts only"),
        ("{{string.gsub('a', '', 'b')}}", "plain texts only"),
        ("{{string.format('%x', 1)}}", "templates format with"),
        ("{{string.format('%5d', 1)}}", "templates format with"),
        ("{{string.format('%d')}}", "bad argument #2 to 'format' (no value)"),
        ("{{string.format('%')}}", "invalid option"),
        ("{{table.concat(1)}}", "table expected, got number"),
        ("{% table.insert({}, 1, 2) %}", "one value at a list's end"),
        ("{{_escape_json(1 / 0)}}", "must not be NaN or Infinity"),
        ("{{_escape_json({0 / 0})}}", "must not be NaN or Infinity"),
        ("{{_escape_json(type)}}", "type not supported"),
        ("{{next(1)}}", "table expected, got number"),
        ("{{('x'):rep(67108865)}}", "too long"),
        ("{{('a'):rep(1000000):gsub('a', ('c'):rep(100))}}", "too long"),
        ("{{'x' + 1}}", "attempt to perform arithmetic on a string value"),
        ("{{1 < 'x'}}", "attempt to compare number with string"),
        ("{{string.gsub('a', '%d+', '')}}", "not patterns"),
        ("{% for i = 1, 1000000000 do end %}", "too many steps"),
        ("{% local s = 'x' for i = 1, 100 do s = s .. s end %}", "too many steps"),
        ("{{('x'):rep(1000000000)}}", "too long"),
        ("{% local t = {} for i = 1, 1000 do t = {t} end %}", "too deep"),
    ] {
        if words.is_empty() {
            continue;
        }
        let (status, message) = json_in(template, "{}").unwrap_err();
        assert!(
            status == 503 && message.starts_with("request template rendering: ") && message.contains(words),
            "{template}: {message}"
        );
    }
    // A table that is put into itself is copied.
    assert_eq!(
        output("{% context.a = context %}{*_escape_json(context)*}", "{\"b\":1}"),
        r#"{"b":1,"a":{"b":1}}"#
    );
}

#[test]
fn what_is_not_understood_is_refused_with_its_line() {
    let probe = Probe::get("/");
    for (template, words) in [
        ("a\n{% while true do %}", "line 2: `while`"),
        ("ab\n\nc{% while true do %}", "line 3: `while`"),
        ("{{\n'a\nb'}}{% x\n= [[\n]] %}{#\n#}\n\\{{\n}}{% while true do %}", "line 8: `while`"),
        ("{% x = 'a\nb' y = [[c\n]]\nwhile true do %}", "line 4: `while`"),
        ("{{1 +\nend\n}}", "line 2: `end` where a value was expected"),
        ("{% then x %}", "`then` where a statement was expected"),
        ("{% for k, v in next(x) do %}", "`next` where `pairs` or `ipairs` was expected"),
        ("{% for k, v in x do %}", "`x` where `pairs` or `ipairs` was expected"),
        ("{{ {1 2} }}", "`2` where `}` was expected"),
        ("{{ {1, 2 }}", "where `}` was expected"),
        ("{{'\\256'}}", "an escape is beyond 255"),
        ("{{'\\x41'}}", "an escape is not known"),
        ("{{'a\\}}", "a text has no end"),
        ("{{1x}}", "`1x` is no number"),
        ("{% 'a' = 1 %}", "a statement was expected"),
        ("{% if a then %}", "`end` was expected"),
        ("{% end %}", "`end`"),
        ("{{a b}}", "the end of the output was expected"),
        ("{{'a}}", "a text has no end"),
        ("{{a ? b}}", "`?`"),
        ("{(file.html)}", "cannot include"),
        ("{% local function f() end %}", "`function`"),
        ("{% return 1 %}", "`return`"),
        ("a\n{% local yaml = require(\"tinyyaml\") %}", "line 2: there is no module `tinyyaml`"),
        ("{% local c = require 'socket' %}", "there is no module `socket`"),
        ("{% x == 1 %}", "`=` was expected"),
    ] {
        let error = probe.stage::<BodyTransformer>(json!({"request": {"template": template}})).err();
        let error = error.unwrap_or_else(|| panic!("{template}"));
        assert!(error.reason.contains(words), "{template}: {}", error.reason);
        assert_eq!(error.pointer, "/request/template");
    }
}

/// The tree of an expression is walked by recursion, and so is what drops it: a chain counts like parentheses.
#[test]
fn expressions_are_bounded_in_depth() {
    let probe = Probe::get("/");
    let accepted = |inner: &str| {
        let template = format!("{{% local x = {inner} %}}");
        match probe.stage::<BodyTransformer>(json!({"request": {"template": template}})) {
            Ok(_) => true,
            Err(error) => {
                assert!(error.reason.contains("nested more than 100 deep"), "{}", error.reason);
                false
            }
        }
    };
    let nested =
        |open: &str, close: &str, times: usize| format!("{}1{}", open.repeat(times), close.repeat(times));
    for (what, shape) in [
        ("parentheses", &(|n| nested("(", ")", n)) as &dyn Fn(usize) -> String),
        ("a chain to the left", &|n| format!("1{}", " + 1".repeat(n))),
        ("a chain to the right", &|n| format!("1{}", " .. 1".repeat(n))),
        ("powers", &|n| format!("1{}", "^1".repeat(n))),
        ("signs", &|n| format!("{}1", "- ".repeat(n))),
        ("negations", &|n| format!("{}1", "not ".repeat(n))),
        ("members", &|n| format!("a{}", ".b".repeat(n))),
        ("keys", &|n| format!("a{}", "[1]".repeat(n))),
        ("calls", &|n| format!("a{}", "()".repeat(n))),
        ("methods", &|n| format!("a{}", ":b()".repeat(n))),
        ("arguments", &|n| nested("a(", ")", n)),
        ("tables", &|n| nested("{", "}", n)),
        ("named members", &|n| nested("{a=", "}", n)),
        ("keys of tables", &|n| nested("{[", "]=1}", n)),
    ] {
        assert!(accepted(&shape(40)), "{what}");
        assert!(!accepted(&shape(100)), "{what}");
        assert!(!accepted(&shape(20_000)), "{what}");
    }
    // Chains within chains: none is long, and none is nested deep.
    for (open, close) in
        [("a[", "][1][1][1][1]"), ("(", ")+1+1+1+1"), ("a(", ")(1)(1)(1)(1)"), ("{", "}:a():a():a()")]
    {
        assert!(accepted(&nested(open, close, 10)), "{open}{close}");
        assert!(!accepted(&nested(open, close, 40)), "{open}{close}");
    }
    let statements = |n: usize| format!("{}{}", "{% if 1 then %}".repeat(n), "{% end %}".repeat(n));
    assert!(probe.stage::<BodyTransformer>(json!({"request": {"template": statements(40)}})).is_ok());
    assert!(probe.stage::<BodyTransformer>(json!({"request": {"template": statements(100)}})).is_err());
}

/// A tag without an end is text, and the end is looked for once: searched for from each place again, this would take minutes.
#[test]
fn tags_that_nothing_closes_are_text() {
    let open = "{{".repeat(300_000);
    assert_eq!(output(&open, "{}"), open);
    let mixed = "{{{*{%{#{({[".repeat(50_000);
    assert_eq!(output(&mixed, "{}"), mixed);
    assert_eq!(output("{% x {{1}} {* {{2}} *", "{}"), "{% x 1 {* 2 *");
}

/// Closing the places of removed values up one by one, this would take minutes.
#[test]
fn removing_members_of_a_long_body_is_cheap() {
    let (count, kept) = (200_000, [7, 150_000, 199_999]);
    let value = |at: usize| if kept.contains(&at) { "x" } else { "" };
    let members: Vec<String> =
        (0..count).map(|at| format!("\"a_rather_long_name_{at}\":\"{}\"", value(at))).collect();
    let template = "{% for k, v in pairs(context) do if v == '' then context[k] = nil end end %}{*_escape_json(context)*}";
    let left = kept.map(|at| format!("\"a_rather_long_name_{at}\":\"x\"")).join(",");
    assert_eq!(long_output(template, &format!("{{{}}}", members.join(","))), format!("{{{left}}}"));

    let template = "{% context.a = nil context.b = nil context.a = 3 %}{{next(context)}} {{context.b or 'no'}} {*_escape_json(context)*}";
    assert_eq!(
        output(template, "{\"b\": 1, \"a\": 2, \"c\": 4, \"d\": 5}"),
        "a no {\"a\":3,\"c\":4,\"d\":5}"
    );
    let members = "{% context.a = nil context.b = nil context.c = 3 context.a = 4 context.d = nil %}{{next(context)}} {*_escape_json(context)*}";
    assert_eq!(
        output(members, "{\"a\": 1, \"b\": 2, \"c\": 0, \"d\": 5, \"e\": 6}"),
        "a {\"a\":4,\"c\":3,\"e\":6}"
    );
    let emptied = "{% context.a = nil context.b = nil %}{{next(context)}}{*_escape_json(context)*}";
    assert_eq!(output(emptied, "{\"a\": 1, \"b\": 2}"), "{}");
}

/// Parts are looked up by name among all parts of a body, whose number the client chooses.
#[test]
fn looking_for_parts_is_paid_for() {
    let edit = |parts: usize, edit: &str| {
        let body: String = (0..parts)
            .map(|at| format!("--B\r\nContent-Disposition: form-data; name=\"{at}\"\r\n\r\n\r\n"))
            .collect();
        let multipart = [("Content-Type", "multipart/form-data; boundary=B")];
        let template = format!("{{% for i = 1, 20000 do context._multipart:{edit} end %}}done");
        request(json!({"template": template}), &multipart, format!("{body}--B--").as_bytes())
    };
    for method in ["set_simple('none', '')", "delete('none')"] {
        assert_eq!(edit(10, method).unwrap(), "done", "{method}");
        assert!(edit(900, method).unwrap_err().1.contains("too many steps"), "{method}");
    }
}

/// A loop over few variables and over many costs what it does: a name is searched for among them all.
#[test]
fn names_are_paid_for() {
    let count = |variables: usize, body: &str| {
        let declared: String = (0..variables).map(|at| format!("local a{at} = 1 ")).collect();
        json_in(&format!("{{% {declared} for i = 1, 50000 do {body} end %}}done"), "{}")
    };
    for body in ["local b = unknown", "unknown = 1"] {
        assert_eq!(count(10, body).unwrap(), "done", "{body}");
        assert!(count(3000, body).unwrap_err().1.contains("too many steps"), "{body}");
    }
}

/// To find a variable costs a look at all that the client sent, once: the first 64 are remembered.
#[test]
fn variables_are_remembered() {
    let body = format!("{{\"a\": \"{}\"}}", "x".repeat(400_000));
    let read = |variables: usize| {
        let read = |each: &str, times: usize| {
            format!("for i = 1, {times} do local a = _ctx.var['arg_' .. {each}] end")
        };
        json_in(&format!("{{% {} {} %}}done", read("i", variables), read(&variables.to_string(), 200)), &body)
    };
    assert_eq!(read(64).unwrap(), "done");
    assert!(read(65).unwrap_err().1.contains("too many steps"));
}

fn response(config: Value, head: &[(&str, &str)], pieces: &[&str]) -> String {
    let mut probe = Probe::get("/hello?name=Ann");
    let stage: BodyTransformer = probe.stage(config).unwrap();
    let mut x = probe.exchange();
    respond(&mut x, 200, head);
    stage.header_filter(&mut x);
    let mut out = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let mut chunk = chunk(piece.as_bytes(), index + 1 == pieces.len());
        if stage.filters_body(&x) {
            assert_eq!(x.response_header("ETag"), None);
            filter(&stage, &mut x, &mut chunk);
        }
        assert!(!chunk.refused);
        out.extend_from_slice(&chunk.data);
    }
    String::from_utf8(out).unwrap()
}

#[test]
fn responses_are_transformed_whole() {
    let config = json!({"response": {"template": "{{a}} {{_ctx.var.status}} {{_ctx.var.arg_name}}"}});
    let json = ("Content-Type", "application/json");
    assert_eq!(response(config.clone(), &[json, ("ETag", "\"1\"")], &["{\"a\"", ":1}"]), "1 200 Ann");
    assert_eq!(
        response(config.clone(), &[json], &["{\"a\""]),
        "{\"a\"",
        "what cannot be read stays as it is"
    );
    assert_eq!(response(config, &[json, ("Content-Encoding", "gzip")], &["packed"]), "packed");
    let cut = json!({"max_resp_body_size": 3, "response": {"template": "{*_body*}"}});
    assert_eq!(response(cut, &[], &["ab", "cdef"]), "abc");
}

#[test]
fn memory_is_asked_for() {
    let mut probe = Probe::request("POST", "/", &[]);
    probe.world.budget = sdk::budget::Budget::new(100_000);
    let config = json!({"request": {"input_format": "json", "template": "x"}});
    let stage: BodyTransformer = probe.stage(config).unwrap();
    let mut x = probe.exchange();
    with_body(&mut x, format!("[{}0]", "0,".repeat(5000)).as_bytes());
    assert!(matches!(rewrite(&stage, &mut x), Step::Reply(reply) if reply.status == 503));
}
