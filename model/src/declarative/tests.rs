use proptest::prelude::*;
use serde_json::json;

use super::*;

const PLUGINS: &[&str] = &["cors", "key-auth", "limit-count"];

fn parse(text: &str) -> Declarative {
    Declarative::parse("apisix.yaml", text, Format::Yaml, PLUGINS, &|_| None).unwrap()
}

fn keys(declarative: &Declarative) -> Vec<String> {
    declarative.items.iter().map(|item| item.key.to_string()).collect()
}

const SEED: &str = "
routes:
  -
    uri: /hello
    plugins:
      key-auth:
      limit-count:
        count: 999999999
        time_window: 60
        rejected_code: 503
        key: remote_addr
    upstream:
      nodes:
        \"127.0.0.1:1980\": 1
      type: roundrobin
consumers:
  - username: jack
    plugins:
      key-auth:
        key: user-key
#END
";

#[test]
fn what_is_loaded_is_what_is_parsed_and_mistakes_have_their_places() {
    let routes =
        |uri: &str| format!("{{\"routes\": [\n{{\"id\": \"1\", \"uri\": {uri}, \"plugins\": {{}}}}]}}");
    for (format, end) in [(Format::Json, ""), (Format::Yaml, "\n#END\n")] {
        let read = |text: &str, load: bool| {
            let read = if load { Declarative::load } else { Declarative::parse };
            read("apisix", text, format, PLUGINS, &|_| None).unwrap()
        };
        for (text, wrong) in [(routes("\"/a\""), None), (routes("7"), Some(2))] {
            let text = text + end;
            let (loaded, parsed) = (read(&text, true), read(&text, false));
            assert_eq!(keys(&loaded), keys(&parsed));
            assert_eq!(loaded.diagnostics, parsed.diagnostics);
            assert_eq!(loaded.diagnostics.first().map(|found| found.line), wrong);
            for (loaded, parsed) in loaded.items.iter().zip(&parsed.items) {
                assert_eq!((&loaded.value, &loaded.resource), (&parsed.value, &parsed.resource));
            }
        }
    }
    assert!(Declarative::load("apisix.json", "{", Format::Json, PLUGINS, &|_| None).is_err());
}

#[test]
fn the_seeds_file_loads() {
    let declarative = parse(SEED);
    assert!(declarative.diagnostics.is_empty(), "{:?}", declarative.diagnostics);
    assert_eq!(keys(&declarative), ["routes/arr_1", "consumers/jack"]);
    let Resource::Route(route) = &declarative.items[0].resource else { panic!("a route") };
    assert_eq!(route.plugins["key-auth"], json!({}));
    assert_eq!(declarative.items[0].value["id"], json!("arr_1"));
    assert_eq!(declarative.items[1].pointer, "/consumers/0");
}

#[test]
fn every_section_is_read() {
    let declarative = parse(
        "routes:\n  - {id: 5, uri: /, upstream_id: 1}\n\
         upstreams:\n  - {id: 1, nodes: {'h:80': 1}}\n\
         services:\n  - {id: s}\n\
         consumers:\n  - {username: a}\n  - {id: a/credentials/x, plugins: {key-auth: {key: k}}}\n\
         consumer_groups:\n  - {id: g, plugins: {}}\n\
         global_rules:\n  - {id: 1, plugins: {cors: }}\n\
         plugin_configs:\n  - {id: 1, plugins: {}}\n\
         plugin_metadata:\n  - {id: http-logger, log_format: {}}\n\
         plugins:\n  - name: cors\n  - {name: mqtt-proxy, stream: true}\n\
         protos:\n  - {id: 1, content: x}\n\
         secrets:\n  - {id: vault/1, uri: 'http://v', prefix: p, token: t}\n\
         stream_routes:\n  - {id: 1, server_port: 9100}\n\
         ssls:\nroutes_conf_version: 3\n#END\n",
    );
    let refused: Vec<&str> = declarative.diagnostics.iter().map(|d| d.pointer.as_str()).collect();
    assert!(refused.is_empty(), "{refused:?}");
    assert_eq!(
        keys(&declarative),
        [
            "routes/5",
            "upstreams/1",
            "services/s",
            "consumers/a",
            "consumers/a/credentials/x",
            "consumer_groups/g",
            "global_rules/1",
            "plugin_configs/1",
            "plugin_metadata/http-logger",
            "protos/1",
            "secrets/vault/1",
            "stream_routes/1",
        ]
    );
    assert!(declarative.warnings.is_empty(), "{:?}", declarative.warnings);
    assert_eq!(declarative.plugins, Some(vec!["cors".to_owned()]));
    assert_eq!(declarative.stream_plugins, Some(vec!["mqtt-proxy".to_owned()]));
    assert_eq!(declarative.items[0].value["id"], json!(5));
}

#[test]
fn a_bad_item_is_told_with_its_place_and_the_others_load() {
    let declarative = parse(
        "rotues: []\nroutes:\n  - uri: /a\n    plugins: {}\n  - uris: []\n    plugins: {}\n  - 7\n  - id: arr_1\n    uri: /\n    plugins: {}\nupstreams: {a: 1}\n#END\n",
    );
    assert_eq!(keys(&declarative), ["routes/arr_1"]);
    let reported: Vec<(u32, u32, &str, &str)> = declarative
        .diagnostics
        .iter()
        .map(|d| (d.line, d.column, d.pointer.as_str(), d.message.as_str()))
        .collect();
    assert_eq!(
        reported,
        [
            (1, 1, "/rotues", "unknown section `rotues`"),
            (
                5,
                5,
                "/routes/1/uris",
                "invalid configuration: property \"uris\" validation failed: expect array to have at least 1 items"
            ),
            (7, 5, "/routes/2", "invalid item data of [routes/3], it should be an object"),
            (8, 9, "/routes/3/id", "found duplicate route id: arr_1"),
            (11, 1, "/upstreams", "section `upstreams` must be a list"),
        ]
    );
    assert_eq!(declarative.diagnostics[0].hint.as_deref(), Some("did you mean `routes`?"));
}

#[test]
fn a_holder_of_anchors_is_ignored_and_a_misspelled_section_counts_only_without_the_real_one() {
    let unread = |text: &str| {
        let text = format!("{text}\n#END\n");
        let read = [Declarative::parse, Declarative::load].map(|read| {
            let read = read("apisix.yaml", &text, Format::Yaml, PLUGINS, &|_| None).unwrap();
            (read.unread, read.diagnostics.len())
        });
        assert_eq!(read[0], read[1], "{text}");
        read[0].clone()
    };
    for name in ["x-consumers", "x-route", "x-plugins", ".routes", ".x", "x-"] {
        assert_eq!(unread(&format!("{name}: &a [{{}}]\nroutes: []")), (vec![], 0), "{name}");
        assert_eq!(unread(&format!("{name}: {{}}")), (vec![], 0), "{name}");
    }
    assert_eq!(unread("rotues: []"), (vec![Kind::Route], 1));
    assert_eq!(unread("rotues: []\nroutes: []"), (vec![], 1));
    assert_eq!(unread("routes:\nrotues: []"), (vec![], 1));
    assert_eq!(unread("rotues: []\nroutes: {a: 1}"), (vec![Kind::Route], 2));
}

#[test]
fn a_file_without_its_end_is_refused() {
    let refused =
        |text| Declarative::parse("apisix.yaml", text, Format::Yaml, PLUGINS, &|_| None).unwrap_err();
    let diagnostic = refused("routes: []\n# END\n");
    assert_eq!(diagnostic.message, "missing valid end flag in file apisix.yaml");
    assert_eq!(diagnostic.line, 2);
    for (text, help) in [
        ("routes: []\n# END\n", "write `#END` without a space"),
        ("routes: []\n  #\tEND", "write `#END` without a space"),
        ("routes: []\n# End\n", "write `#END` in capital letters, without a space"),
        ("# END\nroutes: []\n", "add a line `#END` after everything else"),
        ("routes: []\n# the END\n", "add a line `#END` after everything else"),
        ("routes: []\nEND\n", "add a line `#END` after everything else"),
    ] {
        assert!(refused(text).hint.is_some_and(|hint| hint.starts_with(help)), "{text}");
    }
    assert_eq!(refused("").message, "missing valid end flag in file apisix.yaml");
    // Text behind `#END` may not be complete.
    assert_eq!(refused("routes: []\n#END\nservices: []\n").line, 3);
    assert_eq!(refused("").line, 1);
    assert_eq!(refused("a: [\n#END").line, 1);
    assert!(parse("#END").items.is_empty());
    assert!(parse("routes: [] #END\n\n").items.is_empty());
    assert_eq!(parse("# about #END\nservices: [{}]\n  #END\n").items.len(), 1);
    assert_eq!(parse("services: [{}]\n#END\nroutes:\n  - {uri: /, plugins: {}}\n#END\n").items.len(), 2);
    assert_eq!(refused("services: [{}]\n#END\nroutes:\n").line, 3, "still being written");
    assert_eq!(refused("services: [{}]\nx#END").line, 2);
    assert_eq!(refused("- 1\n#END\n").got.as_deref(), Some("array"));
}

#[test]
fn what_has_no_effect_is_told_and_the_resource_is_used() {
    let declarative = parse(
        "upstreams:\n  - id: 1\n    nodes: {}\nservices:\n  - {plugins: {loggly: {}}}\n\
         plugins:\n  - name: cors\n  - name: key-aut\n  - {name: mqtt-proxy, stream: true}\n#END\n",
    );
    assert!(declarative.diagnostics.is_empty());
    assert_eq!(declarative.items.len(), 2);
    let reported: Vec<(u32, u32, &str)> =
        declarative.warnings.iter().map(|found| (found.line, found.column, found.pointer.as_str())).collect();
    assert_eq!(reported, [(5, 16, "/services/0/plugins/loggly"), (8, 5, "/plugins/1")]);
    assert_eq!(declarative.warnings[1].hint.as_deref(), Some("did you mean `key-auth`?"));
}

#[test]
fn json_files_need_no_end() {
    let text = "{\"routes\": [{\"uri\": \"/${{P}}\", \"plugins\": {}}]}";
    let lookup = |name: &str| (name == "P").then(|| "x".to_owned());
    let declarative = Declarative::parse("apisix.json", text, Format::Json, PLUGINS, &lookup).unwrap();
    assert_eq!(declarative.items[0].value["uri"], json!("/x"));
    let error = Declarative::parse("apisix.json", text, Format::Json, PLUGINS, &|_| None).unwrap_err();
    assert_eq!((error.line, error.column), (1, 21));
}

/// A value with fields of a route, most of which make one.
fn near_route() -> impl Strategy<Value = Value> {
    // Few digits: the last bit of others depends on who reads them.
    let number = || {
        prop_oneof![
            any::<i32>().prop_map(|n| json!(f64::from(n) / 8.0)),
            any::<i64>().prop_map(Value::from),
            Just(json!(1.0)),
        ]
    };
    let config = prop_oneof![
        Just(json!({})),
        Just(Value::Null),
        Just(json!([])),
        number().prop_map(|n| json!({"n": n}))
    ];
    let timeout = prop::option::of((1..100_000_u32).prop_map(|n| f64::from(n) / 8.0));
    let id = prop_oneof![Just(Value::Null), Just(json!(7)), Just(json!("a"))];
    (id, "[a-z0-9 é\"\\\\#:]{0,6}", number(), config, timeout).prop_map(
        |(id, text, number, config, timeout)| {
            let mut value = json!({
                "uri": format!("/{text}"), "desc": text, "host": "A.com", "vars": [["arg_a", "==", number]],
                "plugins": {"cors": config},
                "upstream": {"nodes": {"a.com:80": 1}, "retry_timeout": number, "checks": {"active": {}}},
            });
            if !id.is_null() {
                value["id"] = id;
            }
            if let Some(timeout) = timeout {
                value["timeout"] = json!({"connect": timeout, "send": timeout, "read": 3});
            }
            value
        },
    )
}

proptest! {
    #[test]
    fn an_item_is_what_is_read_of_its_text(routes in proptest::collection::vec(near_route(), 1..4), yaml: bool) {
        let text = json!({ "routes": routes }).to_string();
        let (text, format) = match yaml {
            true => (format!("{text}\n#END\n"), Format::Yaml),
            false => (text, Format::Json),
        };
        let read = Declarative::load("f", &text, format, PLUGINS, &|_| None).unwrap();
        for Item { key, resource, value, .. } in read.items {
            let again: Value = serde_json::from_str(&value.to_string()).unwrap();
            prop_assert_eq!(Resource::parse(key.kind, &key.id, &again).unwrap(), resource);
        }
    }

    #[test]
    fn no_document_panics(text in "(routes|upstreams|consumers|plugins|ssls|x)?:? ?[-a-z\\n :{}\\[\\]\"0-9,.]{0,80}\\n#END") {
        let _ = Declarative::parse("f", &text, Format::Yaml, PLUGINS, &|_| None);
        let _ = Declarative::parse("f", &text, Format::Json, PLUGINS, &|_| None);
    }
}
