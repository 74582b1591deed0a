use sdk::testing::{FixedNames, Probe, now, with_body};
use sdk::world::Fetched;

use super::*;

fn stage(document: &Value, more: Value) -> OasValidator {
    let mut config = json!({"spec": document.to_string(), "verbose_errors": true});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Probe::default().stage(config).unwrap_or_else(|invalid| panic!("{invalid}"))
}

/// The mistake in a request, in words; empty if it passes.
fn wrong(
    plugin: &OasValidator,
    (method, target): (&str, &str),
    headers: &[(&str, &str)],
    body: &str,
) -> String {
    let mut probe = Probe::request(method, target, headers);
    let mut x = probe.exchange();
    with_body(&mut x, body.as_bytes());
    let step = match plugin.access(&mut x) {
        Step::Wait => now(plugin.wait(Phase::Access, &mut x)),
        step => step,
    };
    match step {
        Step::Next => String::new(),
        Step::Reply(reply) => {
            let body: Value = serde_json::from_slice(&reply.body).unwrap();
            let message = body["message"].as_str().unwrap();
            message.strip_prefix("failed to validate request. ").unwrap_or(message).to_owned()
        }
        step => panic!("{step:?}"),
    }
}

fn with_parameter(parameter: Value) -> OasValidator {
    let path = if parameter["in"] == "path" { "/x/{p}" } else { "/x" };
    stage(&json!({"openapi": "3.0.3", "paths": {path: {"get": {"parameters": [parameter]}}}}), json!({}))
}

fn query(schema: Value, more: Value, text: &str) -> String {
    let mut parameter = json!({"name": "p", "in": "query", "schema": schema});
    parameter.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    wrong(&with_parameter(parameter), ("GET", &format!("/x?{text}")), &[], "")
}

fn with_body_of(schema: Value, more: Value) -> OasValidator {
    let mut document = json!({
        "openapi": "3.1.0",
        "paths": {"/x": {"post": {"requestBody": {"required": true, "content": {"application/json": {"schema": schema}}}}}},
    });
    document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    stage(&document, json!({}))
}

const JSON: &[(&str, &str)] = &[("Content-Type", "application/json; charset=utf-8")];

fn body(plugin: &OasValidator, text: &str) -> bool {
    wrong(plugin, ("POST", "/x"), JSON, text).is_empty()
}

#[test]
fn requests_are_found_by_path_and_method() {
    let document = json!({
        "openapi": "3.0.0",
        "servers": [{"url": "https://h.test/{v}", "variables": {"v": {"default": "api"}}}, {"url": "/other/"}],
        "paths": {
            "/a/{id}": {"get": {"parameters": [{"name": "id", "in": "path", "required": true, "schema": {"type": "integer"}}]}},
            "/a/mine": {"get": {}},
            "/files/{name}.json": {"get": {"parameters": [{"name": "name", "in": "path", "schema": {"type": "integer"}}]}},
        },
    });
    let plugin = stage(&document, json!({}));
    let get = |target: &str| wrong(&plugin, ("GET", target), &[], "");
    assert_eq!(
        [get("/api/a/7"), get("/other/a/7"), get("/api/a/mine"), get("/api/files/7.json")],
        [const { String::new() }; 4]
    );
    assert!(get("/api/a/x").starts_with("path parameter id: wrong type"), "{}", get("/api/a/x"));
    assert!(get("/api/files/x.json").starts_with("path parameter name: "));
    for unknown in ["/a/7", "/apix/a/7", "/api/a", "/api/a/7/8", "/api/files/7.xml", "/api"] {
        assert_eq!(get(unknown), format!("no matching operation found for path {unknown}"));
    }
    assert_eq!(
        wrong(&plugin, ("DELETE", "/api/a/7"), &[], ""),
        "method DELETE is not defined for path /api/a/7"
    );
}

#[test]
fn values_of_a_query_are_read_by_their_schema() {
    let fits = |schema: Value, more: Value, text: &str| query(schema, more, text).is_empty();
    let numbers = || json!({"type": "array", "items": {"type": "integer"}, "maxItems": 2});
    let object = || json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]});
    for (schema, more, text, expected) in [
        (json!({"type": "integer"}), json!({}), "p=5", true),
        (json!({"type": "integer"}), json!({}), "p=5.5", false),
        (json!({"type": "integer"}), json!({}), "p=%35", true),
        (json!({"type": "integer"}), json!({}), "p=x", false),
        (json!({"type": "integer"}), json!({}), "p=1&p=2", false),
        (json!({"type": "string"}), json!({}), "p=5", true),
        (json!({"type": "boolean"}), json!({}), "p=true", true),
        (json!({"type": "boolean"}), json!({}), "p=1", false),
        (json!({"type": "string", "enum": ["a", "b"]}), json!({}), "p=c", false),
        (json!({"type": "integer", "nullable": true}), json!({}), "p=null", true),
        (json!({"type": "integer", "minimum": 1, "exclusiveMinimum": true}), json!({}), "p=1", false),
        (json!({"type": "integer", "minimum": 1, "exclusiveMinimum": false}), json!({}), "p=1", true),
        (json!({"enum": [1, 2]}), json!({}), "p=1", true),
        (json!({"enum": [1, 2]}), json!({}), "p=3", false),
        (numbers(), json!({}), "p=1&p=2", true),
        (numbers(), json!({}), "p=1", true),
        (numbers(), json!({}), "p=1&p=2&p=3", false),
        (numbers(), json!({"explode": false}), "p=1,2", true),
        (numbers(), json!({"explode": false}), "p=1,x", false),
        (numbers(), json!({"style": "pipeDelimited"}), "p=1%7C2", true),
        (numbers(), json!({"style": "spaceDelimited"}), "p=1%202", true),
        (object(), json!({}), "a=1&b=x", true),
        (object(), json!({}), "a=y", false),
        (object(), json!({"explode": false}), "p=a,1,b,x", true),
        (object(), json!({"style": "deepObject"}), "p%5Ba%5D=1&p[b]=2", true),
        (object(), json!({"style": "deepObject"}), "p[b]=2", false),
        (json!({"type": "string"}), json!({"required": true}), "q=1", false),
        (json!({"type": "integer"}), json!({"allowEmptyValue": true}), "p=", true),
        (json!({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}), json!({}), "p=true", true),
    ] {
        assert_eq!(fits(schema.clone(), more.clone(), text), expected, "{schema} {more} {text}");
    }
    for (schema, more, text) in [
        (numbers(), json!({"explode": false}), "p=1,2&p=x"),
        (json!({"type": "integer"}), json!({"explode": false}), "p=1&p=1"),
        (json!({}), json!({"explode": false}), "p=1&p=x"),
        (object(), json!({}), "a=1&a=2"),
        (object(), json!({"style": "deepObject"}), "p[a]=1&p[a]=2"),
    ] {
        assert!(query(schema, more, text).ends_with(" has several values"), "{text}");
    }
    let content = json!({"name": "p", "in": "query", "content": {"application/json": {"schema": {"type": "object", "required": ["a"]}}}});
    let plugin = with_parameter(content);
    let get = |text: &str| wrong(&plugin, ("GET", &format!("/x?p={text}")), &[], "");
    assert_eq!(get("%7B%22a%22:1%7D"), "");
    assert_eq!(get("%7B%22a%22:1%7D&p=x"), "p has several values");
    assert!(!get("%7B%7D").is_empty() && get("x").starts_with("query parameter p is not JSON"));
}

#[test]
fn parameters_stand_in_paths_headers_and_cookies_too() {
    let one = |place: &str, schema: Value, more: Value| {
        let mut parameter = json!({"name": "p", "in": place, "required": true, "schema": schema});
        parameter.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        with_parameter(parameter)
    };
    let numbers = || json!({"type": "array", "items": {"type": "integer"}});
    let object = || json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    for (schema, more, value, expected) in [
        (numbers(), json!({}), "1,2", true),
        (numbers(), json!({}), "1,x", false),
        (numbers(), json!({"style": "label", "explode": true}), ".1.2", true),
        (numbers(), json!({"style": "matrix"}), ";p=1,2", true),
        (numbers(), json!({"style": "matrix", "explode": true}), ";p=1;p=2", true),
        (object(), json!({}), "a,1", true),
        (object(), json!({"explode": true}), "a=1", true),
        (object(), json!({"style": "matrix", "explode": true}), ";a=1", true),
        (object(), json!({}), "b,1", false),
    ] {
        let plugin = one("path", schema, more.clone());
        let why = wrong(&plugin, ("GET", &format!("/x/{value}")), &[], "");
        assert_eq!(why.is_empty(), expected, "{more} {value}: {why}");
    }
    let header = one("header", numbers(), json!({}));
    let get = |plugin: &OasValidator, headers: &[(&str, &str)]| wrong(plugin, ("GET", "/x"), headers, "");
    assert_eq!(get(&header, &[("P", "1, 2"), ("p", "3")]), "");
    assert_eq!(get(&header, &[]), "header parameter p is required");
    assert!(get(&header, &[("p", "x")]).starts_with("header parameter p: "));
    let cookie = one("cookie", json!({"type": "integer"}), json!({}));
    assert_eq!(get(&cookie, &[("Cookie", "q=x; p=1")]), "");
    assert_eq!(get(&cookie, &[("Cookie", "q=1")]), "cookie parameter p is required");
}

#[test]
fn bodies_fit_schemas_of_json_schema_2020() {
    let pairs = with_body_of(
        json!({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": {"type": "boolean"}}),
        json!({}),
    );
    assert!(body(&pairs, "[\"a\",1,true]") && !body(&pairs, "[1,1]") && !body(&pairs, "[\"a\",1,2]"));
    let nullable = with_body_of(json!({"type": ["string", "null"]}), json!({}));
    assert!(body(&nullable, "null") && body(&nullable, "\"a\"") && !body(&nullable, "1"));
    let beside = with_body_of(
        json!({"$ref": "#/components/schemas/A", "maxProperties": 1}),
        json!({"components": {"schemas": {"A": {"type": "object", "required": ["a"]}}}}),
    );
    assert!(body(&beside, "{\"a\":1}") && !body(&beside, "{\"a\":1,\"b\":1}") && !body(&beside, "{\"b\":1}"));
    let dynamic = with_body_of(
        json!({"type": "array", "items": {"$dynamicRef": "#item"}, "$defs": {"d": {"$dynamicAnchor": "item", "type": "string"}}}),
        json!({}),
    );
    assert!(body(&dynamic, "[\"a\"]") && !body(&dynamic, "[1]"));
    let depends = with_body_of(json!({"dependentRequired": {"a": ["b"]}}), json!({}));
    assert!(body(&depends, "{\"b\":1}") && !body(&depends, "{\"a\":1}"));
    let read_only = with_body_of(
        json!({"type": "object", "required": ["id", "n"], "properties": {"id": {"readOnly": true}, "n": {}}}),
        json!({}),
    );
    assert!(body(&read_only, "{\"n\":1}") && !body(&read_only, "{\"id\":1}"));
    let text = with_body_of(json!({"type": "string", "maxLength": 3}), json!({}));
    assert!(!body(&text, "\"$env://LONG\""), "a client's text refers to nothing");
}

#[test]
fn schemas_may_contain_themselves() {
    let tree = json!({"type": "object", "required": ["name"], "properties": {
        "name": {"type": "string"},
        "children": {"type": "array", "items": {"$ref": "#/components/schemas/Tree"}},
    }});
    let plugin = with_body_of(
        json!({"$ref": "#/components/schemas/Tree"}),
        json!({"components": {"schemas": {"Tree": tree}}}),
    );
    let nested = |inner: &str, depth: usize| {
        format!("{}{inner}{}", "{\"name\":\"a\",\"children\":[".repeat(depth), "]}".repeat(depth))
    };
    assert!(body(&plugin, &nested("{\"name\":\"b\"}", 20)) && !body(&plugin, &nested("{\"name\":1}", 20)));
    let circle = json!({"openapi": "3.0.0", "paths": {}, "components": {"schemas": {"A": {"allOf": [{"$ref": "#/components/schemas/A"}]}}}});
    let mut circle = circle;
    circle["paths"] = json!({"/x": {"post": {"requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/A"}}}}}}});
    let invalid = Probe::default().stage::<OasValidator>(json!({"spec": circle.to_string()})).err().unwrap();
    assert!(invalid.reason.contains("circle"), "{invalid}");
}

#[test]
fn bodies_are_read_by_their_type() {
    let document = json!({"openapi": "3.0.0", "paths": {"/x": {"post": {"requestBody": {"content": {
        "application/*": {"schema": {"type": "object", "required": ["a"]}},
        "application/x-www-form-urlencoded": {"schema": {"type": "object", "properties": {
            "n": {"type": "integer"}, "l": {"type": "array", "items": {"type": "integer"}},
        }, "required": ["n"]}},
        "text/plain": {"schema": {"type": "string", "maxLength": 3}},
        "image/png": {},
    }}}}}});
    let plugin = stage(&document, json!({}));
    let post = |kind: &str, body: &str| wrong(&plugin, ("POST", "/x"), &[("Content-Type", kind)], body);
    for (kind, body) in [
        ("application/json", "{\"a\":1}"),
        ("application/problem+json", "{\"a\":1}"),
        ("application/x-www-form-urlencoded", "n=1&l=2&l=3"),
        ("application/x-www-form-urlencoded", "n=1&l=2"),
        ("text/plain; charset=utf-8", "abc"),
        ("image/png", "anything"),
        ("application/json", ""),
    ] {
        assert_eq!(post(kind, body), "", "{kind} {body}");
    }
    assert!(post("application/json", "{").starts_with("body is not JSON: Expected "));
    assert!(post("application/x-www-form-urlencoded", "n=x").starts_with("body: "));
    assert!(!post("text/plain", "abcd").is_empty());
    assert_eq!(post("audio/ogg", "x"), "content type audio/ogg is not defined for the body");
    assert_eq!(wrong(&plugin, ("POST", "/x"), &[], "{\"a\":1}"), "", "a body without a type is JSON");
    assert!(post("application/xml", "<a/>").starts_with("body: wrong type"), "only a range describes it");
    let several = [("Content-Type", "image/png"), ("Content-Type", "application/json")];
    assert_eq!(wrong(&plugin, ("POST", "/x"), &several, "{}"), "there are several headers Content-Type");
    let long = "x".repeat(100_000);
    assert_eq!(wrong(&plugin, ("POST", "/x"), &several, &long), "there are several headers Content-Type");
    assert_eq!(post("application/json", &format!("{{\"a\":\"{long}\"}}")), "");
    assert!(!post("application/json", &format!("{{\"b\":\"{long}\"}}")).is_empty());
    let required = with_body_of(json!({}), json!({}));
    assert_eq!(wrong(&required, ("POST", "/x"), JSON, ""), "body is required");
}

#[test]
fn settings_skip_parts_and_choose_the_answer() {
    let document = json!({"openapi": "3.0.0", "paths": {"/x/{id}": {
        "parameters": [{"name": "id", "in": "path", "schema": {"type": "integer"}}],
        "post": {
            "parameters": [
                {"name": "q", "in": "query", "required": true, "schema": {"type": "integer"}},
                {"name": "h", "in": "header", "required": true},
            ],
            "requestBody": {"required": true, "content": {"application/json": {}}},
        },
    }}});
    let skips = ["path_params", "query_param", "request_header", "request_body"];
    let all: Map<String, Value> =
        skips.iter().map(|part| (format!("skip_{part}_validation"), json!(true))).collect();
    let post = |config: &Map<String, Value>| {
        wrong(&stage(&document, Value::Object(config.clone())), ("POST", "/x/y"), JSON, "")
    };
    assert_eq!(post(&all), "");
    for (part, why) in
        skips.iter().zip(["path parameter id", "query parameter q", "header parameter h", "body is required"])
    {
        let mut others = all.clone();
        others.remove(&format!("skip_{part}_validation"));
        assert!(post(&others).starts_with(why), "{part}: {}", post(&others));
    }
    let silent = stage(&document, json!({"verbose_errors": false}));
    assert_eq!(wrong(&silent, ("POST", "/x/y"), JSON, ""), "");
    let lenient = stage(&document, json!({"reject_if_not_match": false}));
    let mut probe = Probe::request("POST", "/x/y", JSON);
    let mut x = probe.exchange();
    with_body(&mut x, b"");
    assert!(matches!(lenient.access(&mut x), Step::Next));
    drop(x);
    assert_eq!(probe.world.complaints.borrow().len(), 1);
    let code = stage(&document, json!({"rejection_status_code": 422}));
    let mut probe = Probe::request("GET", "/none", &[]);
    let Step::Reply(reply) = code.access(&mut probe.exchange()) else { panic!() };
    assert_eq!(reply.status, 422);
}

#[test]
fn documents_are_fetched() {
    let mut probe = Probe::request("GET", "/x?p=y", &[]);
    let config = json!({
        "spec_url": "http://127.0.0.1/spec.json", "verbose_errors": true, "spec_url_request_headers": {"X-Token": "t"},
    });
    let metadata = json!({"spec_url_ttl": 10});
    let plugin: OasValidator = probe.stage_with(config, Some(&metadata), &FixedNames::default()).unwrap();
    let document = json!({"openapi": "3.0.0", "paths": {"/x": {"get": {"parameters": [{"name": "p", "in": "query", "schema": {"type": "integer"}}]}}}});
    let mut run = |answer: Option<(u16, String)>| {
        if let Some((status, body)) = answer {
            let fetched = Fetched { status, body: body.into_bytes(), ..Fetched::default() };
            probe.world.answers.borrow_mut().push(Ok(fetched));
        }
        probe.world.now_ms.set(probe.world.now_ms.get() + 2000);
        let mut x = probe.exchange();
        assert!(matches!(plugin.access(&mut x), Step::Wait));
        let step = now(plugin.wait(Phase::Access, &mut x));
        drop(x);
        let sent = probe.world.sent.take();
        assert!(sent.iter().all(|fetch| fetch.fields.get_named(b"x-token") == Some(b"t")));
        match step {
            Step::Reply(reply) => (reply.status, sent.len()),
            step => panic!("{step:?}"),
        }
    };
    assert_eq!(run(None), (500, 1));
    assert_eq!(run(Some((404, String::new()))), (500, 1));
    assert_eq!(run(Some((200, "not JSON".to_owned()))), (500, 1));
    assert_eq!(run(Some((200, "{}".to_owned()))), (500, 1));
    assert_eq!(run(Some((200, document.to_string()))), (400, 1));
    assert_eq!(run(None), (400, 0), "it is kept");
    for _ in 0..4 {
        run(None);
    }
    assert_eq!(run(Some((200, document.to_string()))).1, 1, "and fetched again when it is old");
}

#[test]
fn a_document_may_have_control_characters_in_its_texts() {
    let read = |text: &str| document::read(text.as_bytes());
    assert_eq!(read("{\"a\":\n\"b\nc\\\"\td\\\\\"}"), Ok(json!({"a": "b\nc\"\td\\"})));
    assert_eq!(read("{\"a\"\n}"), Err("Expected colon but found T_OBJ_END at character 6".to_owned()));
    assert!(read("{\"a\":\"b").is_err());
}

#[test]
fn mistakes_are_named() {
    let refused = |config: Value| Probe::default().stage::<OasValidator>(config).err().unwrap();
    assert_eq!(
        refused(json!({"spec": "invalid json string"})).reason,
        "invalid JSON string provided, err: Expected value but found invalid token at character 1"
    );
    refused(json!({}));
    refused(json!({"spec": "{}", "spec_url": "http://h/"}));
    assert_eq!(refused(json!({"spec_url": "ftp://h/"})).pointer, "/spec_url");
    let header = json!({"spec_url": "http://h/", "spec_url_request_headers": {"a": "b\nc"}});
    assert_eq!(refused(header).pointer, "/spec_url_request_headers/a");
    let in_document = |document: Value| refused(json!({"spec": document.to_string()}));
    for (document, why) in [
        (json!({"swagger": "2.0"}), "the document is not of OpenAPI 3.0 or 3.1"),
        (json!({"openapi": "3.0.0", "paths": {"/x": {"$ref": "#/nowhere"}}}), "leads nowhere"),
        (
            json!({"openapi": "3.0.0", "paths": {"/x": {"get": {"parameters": [{"in": "query"}]}}}}),
            "has no name",
        ),
        (
            json!({"openapi": "3.0.0", "paths": {"/x": {"get": {"parameters": [{"name": "a", "in": "query", "schema": {"type": "text"}}]}}}}),
            "invalid JSON type: text",
        ),
    ] {
        let invalid = in_document(document);
        assert!(invalid.reason.contains(why) && invalid.pointer == "/spec", "{invalid}");
    }
}

#[test]
fn documents_are_compiled_within_bounds() {
    let reference = json!({"$ref": "#/components/schemas/Node"});
    let content = json!({"application/json": {"schema": reference}, "application/x-www-form-urlencoded": {"schema": reference}});
    let many = |names: std::ops::Range<usize>, schema: &Value| -> Map<String, Value> {
        names.map(|at| (format!("p{at}"), schema.clone())).collect()
    };
    let document = |operation: Value, node: Value| {
        let document = json!({"openapi": "3.0.0", "paths": {"/x": {"post": operation}}, "components": {"schemas": {"Node": node}}});
        Probe::default().stage::<OasValidator>(json!({"spec": document.to_string(), "verbose_errors": true}))
    };
    let node = json!({"type": "object", "properties": many(0..40, &reference)});
    let plugin = document(json!({"requestBody": {"content": content}}), node).unwrap();
    assert!(body(&plugin, "{\"p1\":{\"p2\":{}}}") && !body(&plugin, "{\"p1\":{\"p2\":1}}"));
    let large = json!({"type": "object", "properties": many(0..19_000, &json!({"type": "integer"}))});
    let parameters = |count: usize| -> Vec<Value> {
        (0..count).map(|at| json!({"name": format!("q{at}"), "in": "query", "schema": reference})).collect()
    };
    assert!(document(json!({"parameters": parameters(1000)}), large.clone()).is_ok());
    let invalid = document(json!({"parameters": parameters(1001)}), large).err().unwrap();
    assert!(invalid.reason.contains("too many parameters"), "{invalid}");
}
