//! Lua in templates: each expectation is the result of Lua 5.1.

use sdk::testing::{Probe, with_body};

use super::*;

const BODY: &str =
    r#"{"list": [1, 2, 3], "map": {"x": 1}, "none": null, "text": "hello", "empty": [], "hollow": {}}"#;

/// Templates, and what they make of it.
fn give(templates: &[(&str, &str)]) {
    for (template, expected) in templates {
        assert_eq!(output(template, BODY), *expected, "{template}");
    }
}

#[test]
fn arithmetic_and_comparisons() {
    give(&[
        ("{{7 - 2}} {{7 / 2}} {{2 * 3 + 1}} {{-7 % 4}} {{7 - 2 - 1}} {{8 / 4 / 2}}", "5 3.5 7 1 4 1"),
        (
            "{{1 <= 1}} {{1 >= 1}} {{1 < 1}} {{1 > 1}} {{1 <= 2}} {{2 <= 1}} {{2 >= 1}} {{1 >= 2}}",
            "true true false false true false true false",
        ),
        (
            "{{'a' < 'b'}} {{'b' < 'a'}} {{'a' < 'a'}} {{'a' <= 'a'}} {{'b' <= 'a'}} {{'a' > 'b'}} {{'b' >= 'a'}}",
            "true false false true false false true",
        ),
        (
            "{{nil == nil}} {{true == true}} {{true == false}} {{false == nil}} {{1 == 1}} {{1 == '1'}}",
            "true true false false true false",
        ),
        (
            "{{none == none}} {{none == nil}} {{list == list}} {{list == {} }} {{'a' == 'a'}} {{'a' ~= 'b'}}",
            "true false true false true true",
        ),
        ("{{#'four'}} {{#list}} {{#{} }} {{#(12 .. 3)}}", "4 3 0 3"),
        ("{{1 / 0}} {{-1 / 0}} {{0 / 0}}", "inf -inf nan"),
        (
            "{{true and false or 'else'}} {{nil and 1}}| {{false or nil}}|{{0 and 'zero is true'}}",
            "else | |zero is true",
        ),
        ("{{not nil == true}} {{not (nil == true)}} {{1 .. 2 == '12'}} {{1 + 1 .. ''}}", "true true true 2"),
        ("{{2 ^ -1}} {{-2 ^ 2}} {{2 ^ 0.5 > 1.4}}", "0.5 -4 true"),
        (
            "{{tonumber('0x1F')}} {{tonumber(' 12 ')}} {{tonumber('1e2')}} {{tonumber('a')}}| {{tonumber({})}}|",
            "31 12 100 | |",
        ),
    ]);
}

#[test]
fn texts() {
    give(&[
        (r#"{*"a\nb\tc\rd\065\10e\\ \" \' \0661"*}"#, "a\nb\tc\rdA\ne\\ \" ' B1"),
        ("{*'a\\\nb'*}{{'\"'}}", "a\nb&quot;"),
        ("{{text:len()}} {{text:upper()}} {{('ABC'):lower()}} {{string.len('')}}", "5 HELLO abc 0"),
        (
            "{{text:sub(2)}} {{text:sub(2, 3)}} {{text:sub(-3)}} {{text:sub(-3, -2)}} {{text:sub(0)}} {{text:sub(1, 0)}}|",
            "ello el llo ll hello |",
        ),
        ("{{text:sub(-99, 2)}} {{text:sub(4, 99)}} {{text:sub(9)}}| {{text:sub(3, 2)}}|", "he lo | |"),
        (
            "{{text:find('l')}} {{text:find('l', 4)}} {{text:find('l', 5)}}| {{text:find('')}} {{text:find('z')}}|",
            "3 4 | 1 |",
        ),
        // A place from the end, and before the beginning.
        (
            "{{text:find('l', -2)}} {{text:find('l', -3)}} {{text:find('h', -99)}} {{text:find('l', -1)}}|",
            "4 3 1 |",
        ),
        ("{{('a.b'):find('.', 1, true)}} {{('a.b'):find('%.')}} {{('a+b'):find('b', nil, true)}}", "2 2 3"),
        (
            "{{('a.b.c'):gsub('%.', '-')}} {{('aaa'):gsub('aa', 'b')}} {{('abc'):gsub('x', 'y')}} {{('%x'):gsub('%%', '#')}}",
            "a-b-c ba abc #x",
        ),
        ("{{('ab'):rep(0)}}|{{('ab'):rep(-1)}}|{{('ab'):rep(2)}}|", "||abab|"),
        (
            "{{string.format('%d %i %s %f %.1f %% %.0f', 3.9, -2, nil, 1.5, 0.26, 2)}}",
            "3 -2 nil 1.500000 0.3 % 2",
        ),
        (
            "{{(5):rep(2)}} {{type(nil)}} {{type('')}} {{type(1)}} {{type(true)}} {{type(none)}} {{type(type)}} {{type(string)}}",
            "55 nil string number boolean userdata function table",
        ),
        (
            "{{math.ceil(1.2)}} {{math.floor(-1.2)}} {{math.abs(-3)}} {{math.max(1, 3, 2)}} {{math.min(2, 1, 3)}} {{math.max(4)}}",
            "2 -2 3 3 1 4",
        ),
        ("{{ngx.time()}} {{next(empty)}}|{{next(list)}} {{next(map)}} {{next({})}}|", "1700000000 |1 x |"),
    ]);
}

#[test]
fn tables() {
    give(&[
        (
            "{{list[0]}}|{{list[1.5]}}|{{list[4]}}|{{list[-1]}}|{{map[1]}}|{{list.x}}|{{list[true]}}|",
            "|||||||",
        ),
        ("{% list[4] = 'new' list[1] = 'old' %}{*_escape_json(list)*}", r#"["old",2,3,"new"]"#),
        ("{% list[3] = nil list[3] = nil %}{*_escape_json(list)*}", "[1,2]"),
        ("{% list[1] = nil %}{*_escape_json(list)*}", "[null,2,3]"),
        ("{% map.x = nil map.y = nil map.z = 2 %}{*_escape_json(map)*}", r#"{"z":2}"#),
        (
            "{% local t = {1, a = 2; 'b', [3] = 'c', ['d e'] = 4, [1 + 3] = 5,} %}{*_escape_json(t)*}",
            r#"{"1":1,"2":"b","3":"c","4":5,"a":2,"d e":4}"#,
        ),
        (
            "{*_escape_json(empty)*} {*_escape_json(hollow)*} {*_escape_json({})*} {*_escape_json({{}})*}",
            "[] {} {} [{}]",
        ),
        // The end of a list is its last value.
        ("{% list[2] = nil list[3] = nil %}{{#list}}{*_escape_json(list)*}", "1[1]"),
        ("{{next({nil, 2})}} {{next({nil, nil, a = 1})}}|{% list[1] = nil %}{{next(list)}}", "2 a|2"),
        ("{% map.y = 2 map.self = map %}{*_escape_json(map)*}", r#"{"x":1,"y":2,"self":{"x":1,"y":2}}"#),
        // A value put into a table is a copy, and a list that came empty stays one.
        (
            "{% map.copy = empty map.other = list list[1] = 9 %}{*_escape_json(map)*}",
            r#"{"x":1,"copy":[],"other":[1,2,3]}"#,
        ),
        ("{*table.concat(list)*} {*table.concat(list, ', ')*} {*table.concat({}, 'x')*}|", "123 1, 2, 3 |"),
        (
            "{% table.insert(list, 4) table.insert(empty, 'a') %}{*_escape_json(list)*}{*_escape_json(empty)*}",
            r#"[1,2,3,4]["a"]"#,
        ),
        // ipairs ends at the first nil; pairs passes over it.
        (
            "{% for i, v in ipairs({1, nil, 3}) do %}{{i}}={{v}} {% end %}|{% for i, v in pairs({1, nil, 3}) do %}{{i}}={{v}} {% end %}",
            "1=1 |1=1 3=3 ",
        ),
        (
            "{% for i in ipairs(list) do %}{{i}}{% end %}{% for k in pairs(map) do %}{{k}}{% end %}{% for k, v in ipairs(map) do %}no{% end %}",
            "123x",
        ),
        ("{% for i = 3, 1 do %}no{% end %}{% for i = 1, 2, 0.5 do %}{{i}} {% end %}", "1 1.5 2 "),
        ("{% local i = 'out' for i = 1, 2 do local j = i end %}{{i}}{{j}}", "out"),
        ("{% if false then local a = 1 end; a = 2; ; local b; b = 3 %}{{a}}{{b}}", "23"),
        ("{% local f = string.upper local t = {g = f} %}{{f('a')}}{{t.g('b')}}{{f'c'}}", "ABC"),
        (
            "{% local j = require('cjson') local s = require 'cjson.safe' %}{*j.encode({1})*}{{s.decode('[2]')[1]}}{{s.decode('[')}}",
            "[1]2",
        ),
        (
            "{% local core = require('apisix.core') %}{*core.json.encode('a')*}{{core.none}}{{cjson}}{{core == nil}}",
            "\"a\"false",
        ),
        (
            "{{true}} {{false}} {{context.list[1]}} {{context._ctx.var.request_method}} {{map._ctx}}|{{_ctx.none}}|",
            "true false 1 POST ||",
        ),
        ("{*context._escape_json('/')*}{*context._escape_xml('<')*}", "\"/\"&lt;"),
        ("{{_ctx.consumer_name}}|{{_ctx.route_id}}|{{_ctx.var.arg_none == nil}}", "|1|true"),
    ]);
}

#[test]
fn tables_stand_in_each_other_so_deep_only() {
    for inner in ["{t}", "{a = t}"] {
        let nested = |times| {
            let template =
                format!("{{% local t = 1 for i = 1, {times} do t = {inner} end %}}{{*#_escape_json(t)*}}");
            json_in(&template, BODY)
        };
        assert!(nested(127).is_ok());
        assert!(nested(128).unwrap_err().1.contains("Found too many nested data structures"));
        assert!(nested(130).unwrap_err().1.contains("too deep"));
    }
}

/// Patterns that stand for more than themselves are refused.
#[test]
fn texts_are_looked_for_and_no_patterns() {
    for pattern in ["%a", "%1", "%", "^h", "l+", "[l]", "."] {
        let words = json_in(&format!("{{{{text:gsub('{pattern}', '')}}}}"), BODY).unwrap_err().1;
        assert!(words.contains("templates know plain texts"), "{pattern}: {words}");
    }
}

#[test]
fn templates_know_the_consumer() {
    let mut probe = Probe::request("POST", "/", &[("apikey", "k")])
        .consumer::<crate::key_auth::KeyAuth>("ann", json!({"key": "k"}));
    let template = "{{_ctx.consumer_name}} {{_ctx.consumer.username}} {{_ctx.consumer.consumer_name}} {{_ctx.consumer.none}}|";
    let auth: crate::key_auth::KeyAuth = probe.stage(json!({})).unwrap();
    let stage: BodyTransformer =
        probe.stage(json!({"request": {"input_format": "plain", "template": template}})).unwrap();
    let mut x = probe.exchange();
    with_body(&mut x, b"any");
    assert!(matches!(auth.rewrite(&mut x), Step::Next) && matches!(rewrite(&stage, &mut x), Step::Next));
    assert_eq!(x.body(), b"ann ann ann |");
}

#[test]
fn what_is_written_around_tags() {
    give(&[
        ("a{% local x = 1 %}\nb{% x = 2 %}\n\nc{{x}}\nd", "ab\nc2\nd"),
        ("a{# one\ntwo #}\nb{# three #} c", "ab c"),
        ("\\{{x}}\\{% y %}\n{}", "{{x}}{% y %}\n{}"),
        ("{{}}|{**}|{%%}|{##}", "|||"),
        ("{% -- all of this line is a comment\nx = 1 -- and the rest of this one %}{{x}}", "1"),
        ("{% x = [[a]] .. [[\n\nb]] %}{{x}}", "a\nb"),
        ("{% x = 1..2 %}{{x}}", "12"),
    ]);
}
