//! A template may be anyone's, and its body is: what takes long or makes much is paid for in steps.

use super::*;

/// Whether `body` runs `times` times before the template's steps are spent.
fn runs(times: usize, before: &str, body: &str, given: &str) -> bool {
    let template = format!("{{% {before} for i = 1, {times} do %}}{body}{{% end %}}");
    match json_in(&template, given) {
        Ok(_) => true,
        Err((503, words)) if words.contains("too many steps") => false,
        Err(other) => panic!("{body}: {other:?}"),
    }
}

/// Each costs as much as here within a third, of a million steps.
#[test]
fn long_work_costs_steps() {
    let long = "local s = ('x'):rep(6400) ";
    let digits = "local d = ('1'):rep(6400) ";
    let number = "local n = {} for i = 1, 1000 do table.insert(n, 1) end ";
    let words = "local w = {} for i = 1, 10 do table.insert(w, 'y') end ";
    let half_empty =
        "local m = {} for i = 1, 10000 do m['a' .. i] = i end for i = 1, 4800 do m['a' .. i] = nil end ";
    for (body, before, steps) in [
        ("{% local a = s:upper() %}", long, 206),
        ("{% local a = s:lower() %}", long, 206),
        ("{% local a = tostring(s) %}", long, 206),
        ("{% local a = s:len() %}", long, 106),
        ("{% local a = _escape_xml(s) %}", long, 206),
        ("{% local a = s .. '' %}", long, 206),
        ("{% local a = ('x'):rep(6400) %}", "", 210),
        ("{% local a = s:find('y') %}", long, 907),
        ("{% local a = s:gsub('y', 'z') %}", long, 1008),
        ("{% local a = s:sub(2) %}", long, 206),
        ("{% local a = string.format('%s', s) %}", long, 208),
        ("{% local a = _escape_json(s) %}", long, 206),
        (
            "{% local a = core_decode(j) %}",
            "local core_decode = require('cjson').decode local j = '[' .. ('0,'):rep(300) .. '0]' ",
            1050,
        ),
        ("{% local a = table.concat(n, '') %}", number, 1020),
        ("{% local a = table.concat(w, s) %}", &format!("{long}{words}"), 2020),
        ("{% local a = {n} %}", number, 1007),
        ("{% local a = _escape_json(n) %}", number, 1040),
        ("{% for k, v in pairs(n) do end %}", number, 1010),
        ("{% local a = next(m) %}", half_empty, 305),
        (
            "{% for k, v in pairs(h) do end %}",
            &format!("{number} local h = n for i = 1, 999 do h[i] = nil end "),
            1020,
        ),
        ("{% local a = string.format('%d', n) %}", "local n = 1e300 ", 313),
        ("{% local a = string.format('%f', n) %}", "local n = 1e300 ", 320),
        ("{% local a = string.format('%.99f', n) %}", "local n = 1e300 ", 417),
        ("{% local a = string.format('%.2f', n) %}", "local n = 12.5 ", 14),
        ("{* s *}", long, 203),
        ("{% local a = s == r %}", &format!("{long}local r = s:upper() "), 206),
        ("{% local a = s < r %}", &format!("{long}local r = s:upper() "), 206),
        ("{% local a = m[s] %}", &format!("{long}local m = {{a = 1, b = 2}} "), 106),
        ("{% m[s] = i %}", &format!("{long}local m = {{a = 1, b = 2}} "), 106),
        ("{% local a = {[s] = 1} %}", long, 106),
        ("{% local a = {m} %}", &format!("{long}local m = {{[s] = 1}} "), 108),
        ("{% local a = _escape_json(m) %}", &format!("{long}local m = {{[s] = 1}} "), 208),
        ("{% local a = d + 1 %}", digits, 106),
        ("{% local a = -d %}", digits, 105),
        ("{% local a = tonumber(d) %}", digits, 106),
        ("{% local a = math.max(1, d) %}", digits, 108),
        ("{% local a = ('x'):rep(z) %}", "local z = ('0'):rep(6400) ", 108),
        ("{% for n = d, 1 do end %}", digits, 106),
        (&"y".repeat(640), "", 12),
    ] {
        assert!(runs(750_000 / steps, before, body, "{}"), "{body} costs more than {steps}");
        assert!(!runs(1_350_000 / steps, before, body, "{}"), "{body} costs less than {steps}");
    }
}

/// A variable is looked for in all that the client sent, once.
#[test]
fn variables_cost_what_they_are_looked_for_in() {
    let long = [("x-long", &*"v".repeat(64_000)), ("cookie", "c=1")];
    let runs = |times: usize, name: &str| {
        let template = format!("{{% for i = 1, {times} do local a = _ctx.var[{name}] end %}}");
        match request(json!({"template": template}), &long, b"") {
            Ok(_) => true,
            Err((503, words)) if words.contains("too many steps") => false,
            Err(other) => panic!("{name}: {other:?}"),
        }
    };
    for name in ["'cookie_c'", "'http_x_long'", "'arg_none'"] {
        assert!(runs(100_000, name), "{name}");
    }
    // Names that the template makes are others each time.
    assert!(runs(700, "'arg_' .. i"));
    assert!(!runs(1100, "'arg_' .. i"));
}

/// Each look at the parts costs by how many there are, and by how long the name is that is compared.
#[test]
fn looks_at_many_parts_cost_steps() {
    let part = "--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n";
    let kind = [("Content-Type", "multipart/form-data; boundary=B")];
    for (edit, length, steps) in
        [("delete(n)", 1, 107), ("set_simple(n, '')", 1, 108), ("delete(n)", 640, 1127)]
    {
        let runs = |times: usize| {
            let template =
                format!("{{% local n = ('x'):rep({length}) for i = 1, {times} do _multipart:{edit} end %}}");
            let body = format!("{}--B--", part.repeat(1600));
            match request(json!({"template": template}), &kind, body.as_bytes()) {
                Ok(_) => true,
                Err((503, words)) if words.contains("too many steps") => false,
                Err(other) => panic!("{edit}: {other:?}"),
            }
        };
        assert!(runs(750_000 / steps), "{edit} costs more than {steps}");
        assert!(!runs(1_350_000 / steps), "{edit} costs less than {steps}");
    }
}

/// The bound is a setting. A run that reaches it is refused, and the log says so.
#[test]
fn steps_have_a_bound() {
    let body = format!("{{\"a\":\"{}\"}}", "x".repeat(400_000));
    for (attr, most) in
        [(None, 100_000), (Some(json!({"max_steps": 1000})), 1000), (Some(json!({"max_steps": 0})), 100_000)]
    {
        for (times, fits) in [(most * 9 / 10, true), (most * 11 / 10, false)] {
            let template = format!("{{% for i = 1, {times} do %}}{{% end %}}done");
            let config = json!({"request": {"input_format": "json", "template": template}, "response": {"template": template}});
            let stage = limits::built(config, attr.as_ref());
            let mut probe = Probe::request("POST", "/", &[]);
            let mut x = probe.exchange();
            with_body(&mut x, body.as_bytes());
            match rewrite(&stage, &mut x) {
                Step::Next => assert!(fits && x.body() == b"done"),
                Step::Reply(reply) => assert!(!fits && reply.status == 503),
                step => panic!("{step:?}"),
            }
            respond(&mut x, 200, &[]);
            stage.header_filter(&mut x);
            let mut chunk = chunk(b"plain", true);
            filter(&stage, &mut x, &mut chunk);
            assert_eq!(chunk.data, if fits { b"done".as_slice() } else { b"plain" });
            drop(x);
            let complaints = probe
                .world
                .complaints
                .take()
                .iter()
                .filter(|(_, reason)| reason.contains("max_steps"))
                .count();
            assert_eq!(complaints, if fits { 0 } else { 2 });
        }
    }
}

#[test]
fn tables_stand_in_each_other_so_deep_only() {
    let nested = |times: usize, of: &str| {
        json_in(
            &format!("{{% local t = {{}} for i = 1, {times} do t = {of} end %}}{{*_escape_json(t)*}}"),
            "{}",
        )
    };
    for of in ["{t}", "{a = t}"] {
        assert!(nested(120, of).is_ok(), "{of}");
        assert!(nested(140, of).unwrap_err().1.contains("too deep"), "{of}");
    }
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let body = |depth: usize| format!("{{\"a\":{}1{}}}", open.repeat(depth), close.repeat(depth));
        assert_eq!(output("{*_escape_json(a)*}", &body(100)), &body(100)[5..body(100).len() - 1]);
    }
}
