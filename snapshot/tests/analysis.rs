//! Analyses of configurations, as text: a configuration, then one line for each finding.

use std::sync::Arc;

use crate::support::{Plugins, Table, desired, entry};
use model::Invalid;
use sdk::catalog::{About, Configured, Facts, SchemaType, Scope, Subsystem};
use sdk::consumers::Credential;
use sdk::{Catalog, Chain};
use serde_json::{Value, json};
use snapshot::Touched;
use snapshot::analysis::{Analysis, Code, Input, MOST, analyse};
use snapshot::router::{Mode, Options};
use wire::target::PathRules;

mod paths;
mod routes;
mod secrets;

fn look(desired: &model::Desired, mode: Mode, encrypts: bool) -> Analysis {
    analyse(Input {
        desired,
        mode,
        options: Options::default(),
        paths: PathRules::default(),
        catalog: &Plugins,
        encrypts,
        stream_ports: &[9100],
        now: 0,
    })
}

/// The findings with these codes, as `code key/pointer`.
fn found(text: &str, mode: Mode, codes: &[Code]) -> Vec<String> {
    let analysis = look(&desired(text), mode, false);
    let of_codes = analysis.findings.iter().filter(|one| codes.contains(&one.code));
    of_codes.map(|one| format!("{} {}{}", one.code.as_str(), one.key, one.invalid.pointer)).collect()
}

const UP: &str = "upstream: {nodes: {\"127.0.0.1:80\": 1}}";

#[test]
fn nodes_with_impossible_hosts() {
    let text = "upstreams:\n  - {id: 1, nodes: {\"http://127.0.0.1:80\": 1, \"a b:80\": 1, \"127.0.0.1:80\": 1}}\n\
                routes:\n  - {id: 1, uri: /a, upstream_id: 1}\n  \
                - {id: 2, uri: /b, upstream: {nodes: [{host: '*', port: 80, weight: 1}]}}\n  \
                - {id: 3, uri: /c, upstream: {nodes: {\"[::1]:80\": 1, \"a_b.test:80\": 1}}}\n";
    let analysis = look(&desired(text), Mode::HostUri, true);
    assert_eq!(
        analysis.to_string(),
        "no-host: routes/2/upstream/nodes: `*` is no host name: it has `*`\n  \
         help: write a name or an address that a server has\n\
         no-host: upstreams/1/nodes: `http://127.0.0.1:80` is a URL, not a host\n  \
         help: write `127.0.0.1:80`; `http` goes into the upstream's `scheme`\n\
         no-host: upstreams/1/nodes: `a b` is no host name: it has ` `\n  \
         help: write a name or an address that a server has\n"
    );
}

#[test]
fn unused_resources() {
    let text = format!(
        "upstreams:\n  - {{id: used, nodes: {{\"127.0.0.1:80\": 1}}}}\n  - {{id: chosen, nodes: {{\"127.0.0.1:80\": 1}}}}\n  \
         - {{id: idle, nodes: {{\"127.0.0.1:80\": 1}}}}\n\
         services:\n  - {{id: s, upstream_id: used}}\n  - {{id: idle, {UP}}}\n\
         plugin_configs:\n  - {{id: idle, plugins: {{log: {{}}}}}}\n\
         routes:\n  - {{id: 1, uri: /a, service_id: s, plugins: {{key: {{anonymous_consumer: guest}}, log: {{rules: [{{upstream_id: chosen}}]}}}}}}\n\
         consumers:\n  - {{username: jack, plugins: {{key: {{key: k1}}}}}}\n  - {{username: guest}}\n  - {{username: unused}}\n\
         consumer_groups:\n  - {{id: idle, plugins: {{log: {{}}}}}}\n"
    );
    assert_eq!(
        found(&text, Mode::HostUri, &[Code::Unused]),
        [
            "unused services/idle",
            "unused upstreams/idle",
            "unused consumers/unused",
            "unused consumer_groups/idle",
            "unused plugin_configs/idle",
        ]
    );
    let no_plugin = text.replace("key: {anonymous_consumer: guest}, ", "");
    assert_eq!(
        found(&no_plugin, Mode::HostUri, &[Code::Unused])
            .iter()
            .filter(|one| one.contains("consumers/"))
            .count(),
        3
    );
}

#[test]
fn references_from_stream_routes_and_consumers() {
    let node = "nodes: {\"127.0.0.1:80\": 1}";
    let text = format!(
        "upstreams: [{{id: u, {node}}}, {{id: by-number, {node}}}, {{id: 7, {node}}}]\n\
         services: [{{id: s, upstream_id: by-number}}]\n\
         stream_routes:\n  - {{id: 1, upstream_id: u}}\n  - {{id: 2, service_id: s}}\n  \
         - {{id: 3, upstream: {{{node}}}, protocol: {{name: redis, superior_id: '1'}}}}\n\
         consumer_groups: [{{id: g, plugins: {{log: {{upstream_id: 7}}}}}}]\n\
         consumers: [{{username: jack, group_id: g, plugins: {{key: {{key: k1}}}}}}]\n\
         routes: [{{id: 1, uri: /a, plugins: {{key: {{}}}}, {UP}}}]\n"
    );
    let analysis = look(&desired(&text), Mode::HostUri, true);
    assert_eq!(
        analysis.to_string(),
        "unused: stream_routes/3/protocol/superior_id: no connection reaches this stream route: it stands below \
         stream route 1, and redis chooses none of those, as in APISIX\n  \
         help: without `superior_id` it takes connections by its own conditions\n"
    );
}

/// `multi-auth` runs the plugins within its settings; other plugins may contain plugin names
/// without effect.
#[test]
fn plugins_within_the_settings_of_another() {
    for (plugins, is_known) in [
        (json!({"multi-auth": {"auth_plugins": [{"basic": {}}, {"key": {}}]}}), true),
        (json!({"multi-auth": {"auth_plugins": [{"basic": {}}]}}), false),
        (json!({"multi-auth": {"auth_plugins": [{"key": {}}], "_meta": {"disable": true}}}), false),
        (json!({"log": {"key": {}}}), false),
    ] {
        let mut all = model::Desired::default();
        let upstream = json!({"nodes": {"127.0.0.1:80": 1}});
        let route = json!({"uri": "/*", "plugins": plugins, "upstream": upstream});
        all.put(entry(model::Kind::Route, "1", route));
        let jack = json!({"username": "jack", "plugins": {"key": {"key": "k1"}}});
        all.put(entry(model::Kind::Consumer, "jack", jack));
        let analysis = look(&all, Mode::HostUri, true);
        let unused = analysis.findings.iter().filter(|one| one.code == Code::Unused).count();
        assert_eq!(unused, usize::from(!is_known), "{plugins}");
    }
}

/// A catalog with one plugin, which has different settings in each place.
#[derive(Debug)]
struct OnePlugin;

impl Catalog for OnePlugin {
    fn check(&self, _: &str, _: &Value, _: SchemaType) -> Result<(), Invalid> {
        Ok(())
    }

    fn chain(&self, _: &[Configured<'_>], _: &Scope<'_>) -> Result<Arc<Chain>, Invalid> {
        Ok(Arc::default())
    }

    fn credential(&self, _: &str, _: &Value) -> Result<Option<(&'static str, Credential)>, Invalid> {
        Ok(None)
    }

    fn about(&self) -> Vec<About> {
        Vec::new()
    }

    fn facts(&self, subsystem: Subsystem, name: &str) -> Option<Facts> {
        let schema = |field: &str| json!({"properties": {field: {}}});
        let of = |setting: &str, consumer_schema, metadata_schema| Facts {
            version: json!(0.1),
            kind: None,
            scope: None,
            schema: schema(setting),
            consumer_schema,
            metadata_schema,
        };
        (name == "lock").then(|| match subsystem {
            Subsystem::Http => of("of_route", Some(schema("of_consumer")), Some(schema("of_all"))),
            Subsystem::Stream => of("of_stream", None, None),
        })
    }
}

#[test]
fn settings_unknown_at_this_kind_of_resource() {
    let settings = json!({"of_route": 1, "of_consumer": 1, "of_stream": 1, "of_all": 1});
    let plugins = json!({"lock": settings, "unknown": settings});
    let upstream = json!({"nodes": {"127.0.0.1:80": 1}});
    let mut all = model::Desired::default();
    for (kind, id, value) in [
        (model::Kind::Route, "1", json!({"uri": "/a", "plugins": plugins, "upstream": upstream})),
        (model::Kind::StreamRoute, "1", json!({"plugins": plugins, "upstream": upstream})),
        (model::Kind::Consumer, "jack", json!({"username": "jack", "plugins": {"lock": settings}})),
        (model::Kind::Credential, "jack/credentials/c", json!({"plugins": {"lock": settings}})),
        (model::Kind::PluginMetadata, "lock", settings.clone()),
    ] {
        all.put(entry(kind, id, value));
    }
    let analysis = analyse(Input {
        desired: &all,
        mode: Mode::HostUri,
        options: Options::default(),
        paths: PathRules::default(),
        catalog: &OnePlugin,
        encrypts: true,
        stream_ports: &[],
        now: 0,
    });
    let of_settings = analysis.findings.iter().filter(|one| one.code == Code::UnknownSetting);
    let findings: Vec<String> = of_settings
        .map(|one| {
            let on_consumer = one.invalid.hint.as_deref().is_some_and(|hint| hint.contains("on a consumer"));
            format!("{}{}{}", one.key, one.invalid.pointer, if on_consumer { ", on a consumer" } else { "" })
        })
        .collect();
    assert_eq!(
        findings,
        [
            "routes/1/plugins/lock/of_consumer, on a consumer",
            "routes/1/plugins/lock/of_stream",
            "routes/1/plugins/lock/of_all",
            "consumers/jack/plugins/lock/of_route",
            "consumers/jack/plugins/lock/of_stream",
            "consumers/jack/plugins/lock/of_all",
            "consumers/jack/credentials/c/plugins/lock/of_route",
            "consumers/jack/credentials/c/plugins/lock/of_stream",
            "consumers/jack/credentials/c/plugins/lock/of_all",
            "plugin_metadata/lock/of_route",
            "plugin_metadata/lock/of_consumer",
            "plugin_metadata/lock/of_stream",
            "stream_routes/1/plugins/lock/of_route",
            "stream_routes/1/plugins/lock/of_consumer",
            "stream_routes/1/plugins/lock/of_all",
        ]
    );
}

#[test]
fn the_number_of_findings_is_bounded() {
    let mut all = model::Desired::default();
    for n in 0..MOST + 50 {
        let value = json!({"uri": "/a", "upstream": {"nodes": {"127.0.0.1:80": 1}}});
        all.put(entry(model::Kind::Route, &format!("{n:04}"), value));
    }
    let analysis = look(&all, Mode::HostUri, true);
    assert_eq!(analysis.findings.len(), MOST);
    assert_eq!(analysis.more.get(&Code::Unreachable), Some(&49));
    assert_eq!(analysis.to_json()["total"], json!(MOST + 49));
    assert!(analysis.to_string().ends_with("\nand 49 more of unreachable\n"));
    assert_eq!(look(&model::Desired::default(), Mode::HostUri, true).to_string(), "nothing found\n");
}

#[test]
fn variables_without_a_value() {
    let codes = [Code::UnknownVariable, Code::LiteralParameter, Code::DoubleEncoding];
    for (route, host_uri, with_parameter) in [
        ("uri: '/a/:id'", "literal-parameter routes/1/uri", ""),
        ("uris: [/b, '/a/:id/c']", "literal-parameter routes/1/uris", ""),
        ("uri: '/a:id'", "", ""),
        ("uri: /a, vars: [[uri_param_id, '==', '1']]", "unknown-variable routes/1/vars/0", "="),
        (
            "uri: /a, vars: [OR, [arg_a, '==', '1'], [AND, [uri_param_id, '==', '1'], [arg_b, '==', uri_param_x]]]",
            "unknown-variable routes/1/vars/2/1",
            "=",
        ),
        ("uri: /a, vars: [[uri_param__path, '==', /a]]", "", ""),
        (
            "uri: /a, plugins: {limit-count: {key: remote_adr}}",
            "unknown-variable routes/1/plugins/limit-count/key",
            "=",
        ),
        (
            "uri: /a, plugins: {limit-req: {key: $remote_addr}}",
            "unknown-variable routes/1/plugins/limit-req/key",
            "=",
        ),
        (
            "uri: /a, plugins: {limit-conn: {key: '$remote_addr $consumr_name', key_type: var_combination}}",
            "unknown-variable routes/1/plugins/limit-conn/key",
            "=",
        ),
        ("uri: /a, plugins: {limit-count: {key: any text, key_type: constant}}", "", ""),
        ("uri: /a, plugins: {limit-count: {key: http_x_tenant}}", "", ""),
        ("uri: /a, plugins: {limit-count: {key: '$remote_addr $uri', key_type: var_combination}}", "", ""),
        (
            "uri: /a, plugins: {proxy-rewrite: {uri: '/b$request_uri'}}",
            "double-encoding routes/1/plugins/proxy-rewrite/uri",
            "=",
        ),
        ("uri: /a, plugins: {proxy-rewrite: {uri: '/b$uri'}}", "", ""),
    ] {
        let text = format!("routes:\n  - {{id: 1, {UP}, {route}}}\n");
        let expected = |text: &str| text.split_terminator(", ").map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(found(&text, Mode::HostUri, &codes), expected(host_uri), "{route}");
        let with_parameter = if with_parameter == "=" { host_uri } else { with_parameter };
        assert_eq!(found(&text, Mode::UriWithParameter, &codes), expected(with_parameter), "{route}");
    }
}
