//! Bounds of bodies and of outputs, and which bodies are touched at all.

use sdk::build::Owner;
use sdk::testing::FixedNames;

use super::*;

pub(super) fn built(config: Value, attr: Option<&Value>) -> BodyTransformer {
    let probe = Probe::get("/");
    let config = model::Schema::new(&BodyTransformer::schema()).unwrap().parse(config).unwrap();
    let owner = Owner { collection: "routes", id: "1".into() };
    let names = FixedNames::default();
    let mut cx = Build::new(&owner, &probe.services, &names);
    cx.attr = attr;
    BodyTransformer::build(serde_json::from_value(config).unwrap(), &mut cx).unwrap()
}

#[test]
fn a_request_body_has_a_bound() {
    let stage = built(
        json!({"max_req_body_size": 4, "request": {"input_format": "plain", "template": "{*_body*}!"}}),
        None,
    );
    for (body, status) in [("abcd", 200), ("abcde", 413)] {
        let mut probe = Probe::request("POST", "/", &[]);
        let mut x = probe.exchange();
        with_body(&mut x, body.as_bytes());
        let answered = match rewrite(&stage, &mut x) {
            Step::Next => 200,
            Step::Reply(reply) => reply.status,
            step => panic!("{step:?}"),
        };
        assert_eq!(answered, status, "{body}");
    }
    // One of which only the beginning is known.
    let mut probe = Probe::request("POST", "/", &[]);
    let mut x = probe.exchange();
    with_body(&mut x, b"abcd");
    (x.engine_mut().body_state, x.engine_mut().body_asked) = (Body::TooLarge, 4);
    assert!(matches!(rewrite(&stage, &mut x), Step::Reply(reply) if reply.status == 413));
}

#[test]
fn an_output_has_a_bound() {
    let attr = |most: usize| Some(json!({"max_output_size": most}));
    // Zero is no bound.
    for (attr, length, fits) in
        [(attr(5), 5, true), (attr(5), 6, false), (attr(0), 1000, true), (None, 1000, true)]
    {
        let parts = format!("{{*('x'):rep({})*}}y", length - 1);
        let one = format!("{{*('x'):rep({length})*}}");
        let replaced = format!("{{*('ab'):gsub('a', ('x'):rep({}))*}}", length - 1);
        for template in [parts, one, replaced] {
            let stage = built(json!({"request": {"template": template}}), attr.as_ref());
            let mut probe = Probe::request("POST", "/", &[]);
            let mut x = probe.exchange();
            with_body(&mut x, b"z");
            let step = rewrite(&stage, &mut x);
            assert_eq!(
                (matches!(step, Step::Next), x.body().len() == length),
                (fits, fits),
                "{attr:?}: {template}"
            );
        }
    }
}

#[test]
fn a_response_body_has_a_bound() {
    for (pieces, given, complaints) in
        [(&["abc"][..], "<abc>", 0), (&["abcd"], "<abc>", 1), (&["ab", "cd", "ef"], "<abc>", 1)]
    {
        let mut probe = Probe::get("/");
        let stage = built(json!({"max_resp_body_size": 3, "response": {"template": "<{*_body*}>"}}), None);
        let mut x = probe.exchange();
        respond(&mut x, 200, &[]);
        stage.header_filter(&mut x);
        assert!(stage.filters_body(&x) && stage.holds_body(&x));
        let mut out = Vec::new();
        for (index, piece) in pieces.iter().enumerate() {
            let mut chunk = chunk(piece.as_bytes(), index + 1 == pieces.len());
            filter(&stage, &mut x, &mut chunk);
            out.extend_from_slice(&chunk.data);
        }
        assert_eq!(String::from_utf8(out).unwrap(), given);
        drop(x);
        assert_eq!(probe.world.complaints.borrow().len(), complaints, "{pieces:?}");
    }
}

/// The body made of a response is held by the worker, and counts.
#[test]
fn what_comes_of_a_response_counts() {
    let mut probe = Probe::get("/");
    probe.world.budget = sdk::budget::Budget::new(10_000);
    let stage = built(json!({"response": {"template": "{*('x'):rep(20000)*}"}}), None);
    let mut x = probe.exchange();
    respond(&mut x, 200, &[]);
    stage.header_filter(&mut x);
    let mut chunk = chunk(b"a", true);
    filter(&stage, &mut x, &mut chunk);
    assert!(chunk.refused);
}

/// The plugin may stand on a route and on a global rule: each has its own body, and a second head starts over.
#[test]
fn two_of_them_do_not_meet() {
    let mut probe = Probe::get("/");
    let make = |mark: &str| built(json!({"response": {"template": format!("{mark}({{*_body*}})")}}), None);
    let (first, second, requests) =
        (make("a"), make("b"), built(json!({"request": {"template": "x"}}), None));
    assert_eq!(
        (requests.phases(), first.phases()),
        (Phases::REWRITE, Phases::HEADER_FILTER.with(Phases::BODY_FILTER))
    );
    let mut x = probe.exchange();
    respond(&mut x, 200, &[("Last-Modified", "x"), ("X-Other", "y")]);
    requests.header_filter(&mut x);
    assert!(!requests.filters_body(&x) && !requests.holds_body(&x));
    assert!(!first.filters_body(&x) && !first.holds_body(&x));
    first.header_filter(&mut x);
    assert!(first.filters_body(&x) && !second.filters_body(&x));
    second.header_filter(&mut x);
    first.header_filter(&mut x);
    assert!(first.filters_body(&x) && second.filters_body(&x) && first.holds_body(&x));
    assert_eq!((x.response_header("Last-Modified"), x.response_header("X-Other")), (None, Some(&b"y"[..])));
    for (data, last, given) in [("1", false, ""), ("2", true, "b(a(12))")] {
        let mut chunk = chunk(data.as_bytes(), last);
        filter(&first, &mut x, &mut chunk);
        filter(&second, &mut x, &mut chunk);
        assert_eq!(String::from_utf8_lossy(&chunk.data), given);
    }
}

/// The memory that the tables of a query could need is taken from the budget before it is read.
#[test]
fn a_query_is_paid_for() {
    for (values, status) in [(100, 200), (2000, 503)] {
        let mut probe = Probe::request("GET", &format!("/?{}", "a=1&".repeat(values)), &[]);
        probe.world.budget = sdk::budget::Budget::new(100_000);
        let stage = built(json!({"request": {"input_format": "args", "template": "{{#a}}"}}), None);
        let mut x = probe.exchange();
        let answered = match rewrite(&stage, &mut x) {
            Step::Next => 200,
            Step::Reply(reply) => reply.status,
            step => panic!("{step:?}"),
        };
        assert_eq!(answered, status, "{values}");
    }
}

/// A text that is escaped grows to six times its length, one that is put together to many times. It is made as long
/// only as an output may be.
#[test]
fn what_is_made_has_a_bound() {
    for (template, most) in [
        ("{{#_escape_json(_body)}}", 122),
        ("{{#_escape_json({_body, _body})}}", 247),
        ("{{#_escape_json({[_body] = 1})}}", 126),
        ("{{#_escape_xml(_body .. \"''''\")}}", 44),
        ("{{#table.concat({_body, _body})}}", 40),
        ("{{#(_body .. _body)}}", 40),
        ("{{#_body:gsub('\u{1}', '22')}}", 40),
        ("{{#_body:gsub('\u{1}\u{1}\u{1}', '22222')}}", 32),
        ("{{#string.format('%s%s', _body, _body)}}", 40),
    ] {
        for (most, fits) in [(most, true), (most - 1, false)] {
            let attr = json!({"max_output_size": most});
            let stage =
                built(json!({"request": {"input_format": "plain", "template": template}}), Some(&attr));
            let mut probe = Probe::request("POST", "/", &[]);
            let mut x = probe.exchange();
            with_body(&mut x, &[1; 20]);
            assert_eq!(matches!(rewrite(&stage, &mut x), Step::Next), fits, "{template}, {most}");
        }
    }
}

/// Escaped output is checked for its length before it is made whole: that alone would take all steps.
#[test]
fn what_is_escaped_on_its_way_out_has_a_bound() {
    let template = r#"{% local s = ('"'):rep(11000000) %}{{s}}"#;
    let attr = json!({"max_output_size": 12_000_000, "max_steps": 1_000_000});
    let stage = built(json!({"request": {"input_format": "plain", "template": template}}), Some(&attr));
    let mut probe = Probe::request("POST", "/", &[]);
    let mut x = probe.exchange();
    with_body(&mut x, b"x");
    let Step::Reply(reply) = rewrite(&stage, &mut x) else { panic!("it fits") };
    let message = String::from_utf8_lossy(&reply.body);
    assert!(message.contains("the output is too long"), "{message}");
}

/// Deeper than a thread's stack would be where each let go of the next.
#[test]
fn tables_may_stand_in_each_other_deeper_than_a_stack_is() {
    for (template, body) in [
        (
            "{% local t = {} local c = t for i = 1, n do c.x = {} c = c.x end %}done",
            r#"{"n": 50000}"#.to_owned(),
        ),
        (
            "{% local t = {} local c = t for i = 1, n do table.insert(c, {}) c = c[1] end %}done",
            r#"{"n": 50000}"#.to_owned(),
        ),
        (
            "{% local t = {} local c = t for _, v in ipairs(l) do c[v] = {} c = c[v] end %}done",
            format!("{{\"l\": [{}\"a\"]}}", "\"a\",".repeat(99_999)),
        ),
    ] {
        assert_eq!(long_output(template, &body), "done");
    }
}

#[test]
fn a_body_that_is_a_list_is_one() {
    let list = |template: &str, body: &str| {
        request(json!({"input_format": "json", "template": template}), &[], body.as_bytes()).unwrap()
    };
    assert_eq!(list("{{context[2]}} {{#context}}{*_escape_json(context)*}", "[1, 2]"), "2 2[1,2]");
    assert_eq!(list("{*_escape_json(context)*}", "[]"), "[]");
    let parts = "--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n2\r\n--B--";
    let multipart = [("Content-Type", "multipart/form-data; boundary=B")];
    assert_eq!(
        request(json!({"template": "{{a[1]}}{{a[2]}}{{#a}}"}), &multipart, parts.as_bytes()).unwrap(),
        "122"
    );
}
