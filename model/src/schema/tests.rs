use proptest::prelude::*;
use serde_json::{Map, json};

use super::*;

/// The message for `value` under `schema`.
fn refusal(schema: Value, value: Value) -> Invalid {
    Schema::new(&schema).unwrap().check(&value).unwrap_err()
}

#[test]
fn every_built_in_schema_compiles() {
    for kind in Kind::ALL {
        assert!(of_kind(kind).check(&json!(1)).is_err(), "{kind}");
        assert!(document(kind).is_object());
    }
    for manager in ["vault", "aws", "gcp"] {
        assert!(of_secret(manager).is_some());
    }
    assert!(of_secret("unknown").is_none());
    assert!(of_hash_key("vars").is_some());
    assert!(of_hash_key("header").is_some());
}

#[test]
fn types_are_named_as_lua_names_them() {
    let cases = [
        (json!("integer"), json!("1"), "wrong type: expected integer, got string"),
        (json!("integer"), json!(1.5), "wrong type: expected integer, got number"),
        (json!("string"), json!(null), "wrong type: expected string, got userdata"),
        (json!("object"), json!([1]), "wrong type: expected object, got table"),
        (json!("array"), json!({"a": 1}), "wrong type: expected array, got table"),
        (json!("boolean"), json!(0), "wrong type: expected boolean, got number"),
        (json!(["string", "number"]), json!(true), "wrong type: expected one of string, number, got boolean"),
    ];
    for (kind, value, words) in cases {
        assert_eq!(refusal(json!({"type": kind}), value).reason, words);
    }
}

#[test]
fn lua_cannot_tell_an_empty_list_from_an_empty_map() {
    let object = Schema::new(&json!({"type": "object", "properties": {"a": {"default": 1}}})).unwrap();
    assert_eq!(object.parse(json!([])).unwrap(), json!({"a": 1}));
    let array = Schema::new(&json!({"type": "array", "minItems": 1})).unwrap();
    assert_eq!(array.check(&json!({})).unwrap_err().reason, "expect array to have at least 1 items");
    let integer = Schema::new(&json!({"type": "integer"})).unwrap();
    assert_eq!(integer.parse(json!(3.0)).unwrap(), json!(3));
}

#[test]
fn words_are_apisix_words() {
    let cases = [
        (json!({"required": ["x"]}), json!({}), "property \"x\" is required"),
        (json!({"properties": {"x": {}}, "required": ["x"]}), json!({"y": 1}), "property \"x\" is required"),
        (
            json!({"properties": {"count": {"type": "integer", "exclusiveMinimum": 0}}}),
            json!({"count": -1}),
            "property \"count\" validation failed: expected -1 to be greater than 0",
        ),
        (
            json!({"properties": {"w": {"minimum": 1}}}),
            json!({"w": 0}),
            "property \"w\" validation failed: expected 0 to be at least 1",
        ),
        (json!({"maximum": 5}), json!(6.5), "expected 6.5 to be at most 5"),
        (json!({"exclusiveMaximum": 5}), json!(5), "expected 5 to be smaller than 5"),
        (json!({"multipleOf": 3}), json!(4), "expected 4 to be a multiple of 3"),
        (
            json!({"properties": {"uri": {}}, "additionalProperties": false}),
            json!({"uir": 1}),
            "additional properties forbidden, found uir",
        ),
        (
            json!({"additionalProperties": {"type": "string"}}),
            json!({"a": 1}),
            "failed to validate additional property a: wrong type: expected string, got number",
        ),
        (
            json!({"patternProperties": {".*": {"type": "string"}}}),
            json!({"a": 1}),
            "failed to validate a (matching \".*\"): wrong type: expected string, got number",
        ),
        (
            json!({"pattern": "^\\S+$"}),
            json!("a \"b"),
            "failed to match pattern \"^\\\\S+$\" with \"a \\\"b\"",
        ),
        (json!({"minLength": 2}), json!("é"), "string too short, expected at least 2, got 1"),
        (json!({"maxLength": 2}), json!("abc"), "string too long, expected at most 2, got 3"),
        (json!({"maxItems": 1}), json!([1, 2]), "expect array to have at most 1 items"),
        (json!({"minProperties": 1}), json!({}), "expect object to have at least 1 properties"),
        (json!({"maxProperties": 1}), json!({"a": 1, "b": 1}), "expect object to have at most 1 properties"),
        (
            json!({"items": {"type": "string"}}),
            json!(["a", 1]),
            "failed to validate item 2: wrong type: expected string, got number",
        ),
        (
            json!({"items": [{"type": "string"}], "additionalItems": false}),
            json!(["a", 1]),
            "found unexpected extra items in array",
        ),
        (
            json!({"uniqueItems": true}),
            json!([1, 2, {"a": 1, "b": 2}, {"b": 2, "a": 1.0}]),
            "expected unique items but items 3 and 4 are equal",
        ),
        (json!({"enum": ["a", 1]}), json!("b"), "matches none of the enum values"),
        (json!({"const": 1}), json!(2), "failed to check const value"),
        (
            json!({"anyOf": [{"required": ["a", "b"]}, {"required": ["c"]}]}),
            json!({}),
            "object matches none of the required: [\"a\",\"b\"] or [\"c\"]",
        ),
        (json!({"anyOf": [{"type": "string"}]}), json!(1), "object matches none of the required"),
        (
            json!({"allOf": [{}, {"type": "string"}]}),
            json!(1),
            "allOf 2 failed: wrong type: expected string, got number",
        ),
        (
            json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
            json!({}),
            "value should match only one schema, but matches none",
        ),
        (
            json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
            json!({"a": 1, "b": 1}),
            "value should match only one schema, but matches both schemas 1 and 2",
        ),
        (json!({"not": {"required": ["a"]}}), json!({"a": 1}), "value wasn't supposed to match schema"),
        (
            json!({"if": {"required": ["a"]}, "then": {"required": ["b"]}}),
            json!({"a": 1}),
            "then clause did not match",
        ),
        (
            json!({"if": {"required": ["a"]}, "else": {"required": ["b"]}}),
            json!({}),
            "else clause did not match",
        ),
        (json!({"format": "ipv4"}), json!("1.2.3.256"), "expect valid ipv4 format but got: 1.2.3.256"),
        (json!({"format": "ipv6"}), json!("::g"), "expect valid ipv6 format but got: ::g"),
        (
            json!({"properties": {"a": {}}, "dependencies": {"a": ["b"]}}),
            json!({"a": 1}),
            "property \"b\" is required when \"a\" is set",
        ),
        (
            json!({"dependencies": {"a": {"required": ["b"]}}}),
            json!({"a": 1}),
            "failed to validate dependent schema for \"a\": property \"b\" is required",
        ),
        (json!(false), json!(1), "expect false always"),
    ];
    for (schema, value, words) in cases {
        assert_eq!(refusal(schema, value).reason, words);
    }
}

#[test]
fn a_refusal_says_where_what_and_what_to_do() {
    let schema = json!({
        "type": "object",
        "properties": {"list": {"type": "array", "items": {
            "type": "object", "properties": {"a/b": {"type": "integer"}}, "additionalProperties": false,
        }}},
    });
    let invalid = refusal(schema.clone(), json!({"list": [{}, {"a/b": "5"}]}));
    assert_eq!(
        invalid.reason,
        "property \"list\" validation failed: failed to validate item 2: \
         property \"a/b\" validation failed: wrong type: expected integer, got string"
    );
    assert_eq!(invalid.pointer, "/list/1/a~1b");
    assert_eq!(invalid.expected.as_deref(), Some("integer"));
    assert_eq!(invalid.got.as_deref(), Some("string"));
    assert_eq!(invalid.hint.as_deref(), Some("remove the quotes around the number"));

    let invalid = refusal(schema, json!({"list": [{"a/c": 5}]}));
    assert_eq!(invalid.pointer, "/list/0/a~1c");
    assert_eq!(invalid.hint.as_deref(), Some("did you mean `a/b`?"));
}

#[test]
fn fields_that_complete_a_value_are_expected() {
    let asks = |names: &[&str]| json!({"required": names});
    let schema = json!({"anyOf": [asks(&["a", "uri"]), asks(&["b", "uri"]), asks(&["a", "uris"]), asks(&["script", "uri"])]});
    let expected = |value| refusal(schema.clone(), value).expected;
    assert_eq!(expected(json!({"uri": 1})).as_deref(), Some("one of these fields as well: a, b"));
    assert_eq!(expected(json!({"a": 1})).as_deref(), Some("one of these fields as well: uri, uris"));
    assert_eq!(expected(json!({})).as_deref(), Some("one of a+uri, b+uri, a+uris, script+uri"));
}

#[test]
fn the_alternative_that_came_close_explains() {
    let schema = json!({"anyOf": [
        {"type": "object", "patternProperties": {".*": {"type": "integer"}}},
        {"type": "array"},
    ]});
    let invalid = refusal(schema, json!({"h:80": "x"}));
    assert_eq!(invalid.reason, "object matches none of the required");
    assert_eq!(invalid.pointer, "/h:80");
    assert_eq!((invalid.expected.as_deref(), invalid.got.as_deref()), (Some("integer"), Some("string")));
    assert_eq!(
        invalid.hint.as_deref(),
        Some("failed to validate h:80 (matching `.*`): wrong type: expected integer, got string")
    );

    let id = json!({"anyOf": [{"type": "string", "minLength": 1}, {"type": "integer", "minimum": 1}]});
    assert_eq!(refusal(id.clone(), json!(0)).expected.as_deref(), Some("at least 1"));
    assert_eq!(refusal(id, json!("")).expected.as_deref(), Some("at least 1 characters"));

    let titled = json!({"anyOf": [{"title": "IPv4", "format": "ipv4"}, {"title": "IPv6", "format": "ipv6"}]});
    assert_eq!(refusal(titled, json!("x")).expected.as_deref(), Some("one of IPv4, IPv6"));

    let by_word = json!({"oneOf": [
        {"properties": {"kind": {"enum": ["a", "b"]}}},
        {"properties": {"kind": {"const": "c"}, "size": {"type": "integer"}}, "required": ["size"]},
    ]});
    let hint = |value| refusal(by_word.clone(), value).hint.unwrap_or_default();
    assert_eq!(hint(json!({"kind": "c"})), "property `size` is required");
    assert_eq!(
        hint(json!({"kind": "d"})),
        "property `kind` validation failed: matches none of the enum values"
    );

    // As the headers of `response-rewrite` are: a map of them, or operations that hold lists.
    let named = json!({"anyOf": [
        {"type": "object", "patternProperties": {"^[^:]+$": {"oneOf": [{"type": "string"}, {"type": "number"}]}}},
        {"properties": {
            "add": {"type": "array", "items": {"type": "string", "pattern": "^[^:]+:[^:]*[^/]$"}},
            "remove": {"type": "array", "items": {"type": "string", "pattern": "^[^:]+$"}},
        }},
    ]});
    let hint = |value| refusal(named.clone(), value).hint.unwrap_or_default();
    assert_eq!(
        hint(json!({"add": {"X-A": "secret"}})),
        "write a list of texts, even of one: `[\"X-A: value\"]`"
    );
    assert_eq!(hint(json!({"remove": {"X-A": "secret"}})), "write a list, even of one item");
    assert_eq!(refusal(named.clone(), json!({"add": ["X-A"]})).pointer, "/add/0");
    assert_eq!(Schema::new(&named).unwrap().check(&json!({"add": "X-A: b"})), Ok(()));
}

#[test]
fn secret_references_stand_for_any_string() {
    let schema = json!({"type": "string", "minLength": 128});
    let schema = Schema::new(&schema).unwrap();
    assert!(schema.check(&json!("$secret://vault/1/a")).is_ok());
    assert!(schema.check(&json!("$ENV://CERT")).is_ok());
    assert!(schema.check(&json!("$env:/CERT")).is_err());
    assert!(Schema::new(&json!({"type": "integer"})).unwrap().check(&json!("$env://N")).is_err());
}

#[test]
fn defaults_are_filled_where_a_branch_holds() {
    let schema = Schema::new(&json!({
        "type": "object",
        "properties": {
            "policy": {"type": "string", "default": "local"},
            "meta": {"type": "object", "properties": {"n": {"default": 1}}},
        },
        "if": {"properties": {"policy": {"enum": ["redis"]}}},
        "then": {"properties": {"port": {"type": "integer", "default": 6379}}, "required": ["host"]},
        "oneOf": [
            {"properties": {"lost": {"default": 1}}, "required": ["never"]},
            {"properties": {"kept": {"default": 2}}},
        ],
    }))
    .unwrap();
    assert_eq!(schema.parse(json!({})).unwrap(), json!({"policy": "local", "kept": 2}));
    assert_eq!(
        schema.parse(json!({"policy": "redis", "host": "h", "meta": {}})).unwrap(),
        json!({"policy": "redis", "host": "h", "meta": {"n": 1}, "port": 6379, "kept": 2})
    );
    assert_eq!(schema.check(&json!({"policy": "redis"})).unwrap_err().reason, "then clause did not match");
}

#[test]
fn a_schema_that_cannot_work_is_refused_with_its_place() {
    for (schema, pointer) in [
        (json!({"type": "text"}), "/type"),
        (json!({"properties": {"a": {"pattern": "("}}}), "/properties/a/pattern"),
        (json!({"items": {"$ref": "#/definitions/x"}}), "/items/$ref"),
        (json!({"$ref": "#"}), "/$ref"),
        (json!({"required": "x"}), "/required"),
        (json!("x"), ""),
    ] {
        assert_eq!(Schema::new(&schema).unwrap_err().pointer, pointer, "{schema}");
    }
}

#[test]
fn references_do_not_multiply_without_bound() {
    // Each definition names the next one ten times: 10^12 subschemas in a kilobyte or two.
    let mut definitions = Map::new();
    for at in 0..12 {
        let next = json!({"$ref": format!("#/definitions/d{}", at + 1)});
        definitions.insert(format!("d{at}"), json!({"allOf": vec![next; 10]}));
    }
    definitions.insert("d12".to_owned(), json!({"type": "string"}));
    let error = Schema::new(&json!({"$ref": "#/definitions/d0", "definitions": definitions})).unwrap_err();
    assert_eq!(error.reason, "schema is too large");
    // Nor does a long list.
    assert!(Schema::new(&json!({"anyOf": vec![json!({}); 20_000]})).is_err());
    assert!(Schema::new(&json!({"anyOf": vec![json!({}); 19_000]})).is_ok());
}

#[test]
fn a_reference_works_inside_the_document() {
    let schema = json!({
        "definitions": {"port": {"type": "integer"}},
        "properties": {"p": {"$ref": "#/definitions/port"}},
    });
    assert_eq!(
        refusal(schema, json!({"p": "x"})).reason,
        "property \"p\" validation failed: wrong type: expected integer, got string"
    );
}

/// JSON with the keywords schemas have.
fn near_schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        (-3..9_i64).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "(object|array|string|integer|#|#/items|ipv4|uri|[a-z^$*(\\[]{0,4})".prop_map(Value::from),
    ];
    let keyword = "(type|properties|required|items|anyOf|oneOf|allOf|not|if|then|enum|const|pattern|format|default\
                   |minItems|maxLength|uniqueItems|multipleOf|dependencies|additionalProperties|\\$ref|contains|a)";
    leaf.prop_recursive(4, 40, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            proptest::collection::vec((keyword, inner), 0..5)
                .prop_map(|members| members.into_iter().collect()),
        ]
    })
}

#[test]
fn schemas_may_contain_themselves() {
    let schema = |written: Value| Schema::new(&written);
    let list = json!({"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}}, "required": ["v"]});
    let list = schema(list).unwrap();
    assert!(list.check(&json!({"v": 1, "next": {"v": 2, "next": {"v": 3}}})).is_ok());
    assert!(list.check(&json!({"v": 1, "next": {"v": 2, "next": {"v": "x"}}})).is_err());
    let both = json!({
        "a": {"type": "object", "properties": {"b": {"$ref": "#/b"}}, "additionalProperties": false},
        "b": {"type": "array", "items": {"$ref": "#/a"}},
    });
    let both = Schema::at(&both, "/a").unwrap();
    assert!(both.check(&json!({"b": [{"b": [{}]}]})).is_ok());
    assert!(both.check(&json!({"b": [{"b": [{"c": 1}]}]})).is_err());
    for circle in [
        json!({"$ref": "#"}),
        json!({"allOf": [{"$ref": "#"}]}),
        json!({"not": {"$ref": "#"}}),
        json!({"anyOf": [{"type": "string"}, {"if": {"$ref": "#"}}]}),
        json!({"properties": {"a": {"$ref": "#/definitions/a"}}, "definitions": {"a": {"oneOf": [{"$ref": "#/definitions/b"}]}, "b": {"$ref": "#/definitions/a"}}}),
    ] {
        assert_eq!(
            schema(circle.clone()).unwrap_err().reason,
            "the reference leads round in a circle",
            "{circle}"
        );
    }
    assert!(Schema::at(&json!({}), "/none").is_err());
    let endless =
        schema(json!({"type": "object", "properties": {"a": {"$ref": "#", "default": {}}}})).unwrap();
    assert!(endless.check(&json!({})).is_ok(), "a default is not walked");
    assert!(list.check(&json!({"v": 1})).is_ok());
}

#[test]
fn texts_of_clients_refer_to_nothing() {
    let short = json!({"type": "string", "maxLength": 3});
    let text = json!("$env://LONG");
    assert!(Schema::new(&short).unwrap().check(&text).is_ok());
    assert!(Schema::new(&short).unwrap().for_clients().check(&text).is_err());
    assert!(Schema::new(&short).unwrap().check(&text).is_ok());
}

#[test]
fn the_steps_of_a_walk_are_bounded() {
    let again = json!({"$ref": "#"});
    let either = Schema::new(&json!({"oneOf": [
        {"type": "object", "properties": {"not": again}, "additionalProperties": false},
        {"type": "object", "properties": {"not": again, "x": {}}, "additionalProperties": false},
        {"type": "integer"},
    ]}))
    .unwrap();
    let deep = |levels: usize| (0..levels).fold(json!({"x": 1}), |inner, _| json!({ "not": inner }));
    let reason = |value: Value| either.check(&value).unwrap_err().reason;
    assert!(either.check(&deep(0)).is_ok());
    assert!(either.check(&json!({"not": 1})).is_err(), "it fits two");
    assert_eq!(reason(deep(40)), "the check was given up: it takes too many steps");
    // Nor does `not` let pass a value that was not checked.
    let not = Schema::new(&json!({"not": {"properties": {"a": {"$ref": "#"}}, "minProperties": 1}})).unwrap();
    let deep = (0..120).fold(json!({}), |inner, _| json!({ "a": inner }));
    assert!(not.check(&deep).unwrap_err().reason.starts_with("the check was given up"));
    // A long text and a long list take more steps, which they have.
    let parts = json!({"items": {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^a*$"}]}});
    let parts = Schema::new(&parts).unwrap().for_clients();
    assert!(parts.check(&json!(vec![1; 200_000])).is_ok());
    assert!(parts.check(&json!(vec!["a".repeat(20_000_000)])).is_ok());
}

#[test]
fn copies_for_alternatives_are_bounded() {
    let leaf = || json!({"x": vec![1; 10_000]});
    let reason = |written: &Value, value: &Value| {
        let schema = Schema::new(written).unwrap().for_clients();
        schema.check(value).map_err(|invalid| invalid.reason)
    };
    let given_up = || Err("the check was given up: it takes too many steps".to_owned());
    // Each part is a step.
    let not = json!({"not": {"type": "object", "properties": {"x": {"type": "array"}}, "required": ["y"]}});
    assert_eq!(reason(&json!({"allOf": vec![not.clone(); 60]}), &leaf()), Ok(()));
    assert_eq!(reason(&json!({"allOf": vec![not; 80]}), &leaf()), given_up());
    // Those of outer values are kept until the inner ones fit.
    let nested = json!({"anyOf": [
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "object", "properties": {"x": {"type": "array"}}, "required": ["x"]},
    ]});
    let deep = |levels: usize| (0..levels).fold(leaf(), |inner, _| json!({ "a": inner }));
    assert_eq!(reason(&nested, &deep(10)), Ok(()));
    assert_eq!(reason(&nested, &deep(12)), given_up());
    let again = json!({"type": "object", "properties": {"not": {"not": {"$ref": "#"}}}});
    let deep = (0..30).fold(leaf(), |inner, _| json!({ "not": inner }));
    assert_eq!(reason(&again, &deep), given_up());
}

#[test]
fn names_are_read_and_searched_within_the_steps() {
    let mut names: Map<String, Value> = (0..2000).map(|n| (format!("n{n}"), json!(1))).collect();
    let schema = |written: Value| Schema::new(&written).unwrap().for_clients();
    let asks = json!({"not": {"required": ["x"]}});
    assert!(schema(json!({"allOf": vec![asks.clone(); 800]})).check(&json!(names)).is_ok());
    assert!(schema(json!({"allOf": vec![asks; 1000]})).check(&json!(names)).is_err());
    // A search of this name is undecided.
    names.insert("n".repeat(20_000), json!(1));
    let patterns: Map<String, Value> = (0..200).map(|n| (format!("(?!x)y{n}"), json!({}))).collect();
    let searching = schema(json!({"patternProperties": patterns}));
    assert!(searching.check(&json!(names)).unwrap_err().reason.starts_with("the check was given up"));
    assert!(!pattern::is_in_doubt(), "no name is searched");
    let few: Map<String, Value> = names.into_iter().skip(1980).collect();
    assert!(searching.check(&json!(few)).unwrap_err().reason.contains("look-around"));
}

#[test]
fn values_of_a_document_stay_as_they_are() {
    let written = json!({"type": "object", "properties": {"a": {"default": 1}, "b": {"type": "integer"}}, "minProperties": 1});
    let filled = Schema::new(&written).unwrap().for_clients().parse(json!({"b": 1.0}));
    assert_eq!(filled.unwrap(), json!({"a": 1, "b": 1}));
    let schemas = Schemas::of(&written);
    let schema = schemas.at("").unwrap();
    schemas.finish().unwrap();
    assert_eq!(schema.parse(json!({"b": 1.0})).unwrap(), json!({"b": 1.0}));
    assert!(schema.parse(json!({})).is_err() && schema.parse(json!([])).is_err());
}

#[test]
fn schemas_of_a_document_are_shared() {
    let mut definitions = json!({"many": {"anyOf": vec![json!({"type": "string"}); 19_000]}});
    for at in 0..1000 {
        definitions[format!("d{at}")] = json!({"items": {"$ref": "#/many"}});
    }
    let schemas = Schemas::of(&definitions);
    let made: Vec<_> = (0..1000).map(|at| schemas.at(&format!("/d{at}")).unwrap()).collect();
    assert!(Arc::ptr_eq(&made[5], &schemas.at("/d5").unwrap()));
    assert!(made[0].check(&json!(["a"])).is_err(), "it is not finished");
    schemas.finish().unwrap();
    assert!(made.iter().all(|schema| schema.check(&json!(["a"])).is_ok()));
    assert!(made[999].check(&json!([1])).is_err());
    for (wrong, at) in [
        (json!({"a": {"$ref": "#/b"}, "b": {"type": 1}}), "/b/type"),
        (json!({"a": {"$ref": "#/b"}, "b": {"$ref": "#/a"}}), "/$ref"),
    ] {
        let schemas = Schemas::of(&wrong);
        let _ = schemas.at("/a").unwrap();
        assert_eq!(schemas.finish().unwrap_err().pointer, at);
    }
    let large = json!(vec![json!({"anyOf": vec![json!({}); 19_000]}); 6]);
    let schemas = Schemas::of(&large);
    assert!((0..5).all(|at| schemas.at(&format!("/{at}")).is_ok()) && schemas.at("/5").is_err());
}

proptest! {
    #[test]
    fn no_schema_and_no_value_panics(schema in near_schema(), value in near_schema()) {
        if let Ok(schema) = Schema::new(&schema) {
            let filled = schema.parse(value.clone());
            prop_assert_eq!(filled.is_ok(), schema.check(&value).is_ok());
            schema.fill_defaults(&mut value.clone());
        }
    }
}
