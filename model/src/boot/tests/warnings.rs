//! Files that are read with warnings: keys without effect, unknown keys and hints.

use super::*;

fn warnings(text: &str) -> Vec<Diagnostic> {
    Boot::parse("config.yaml", text, PLUGINS, &lookup).unwrap().1
}

#[test]
fn unknown_keys_are_ignored_with_a_warning() {
    let cases = [
        ("apisx: {}\n", 1, 1, "/apisx", "unknown key `apisx` is ignored"),
        (
            "apisix:\n  node_listn: 1\n",
            2,
            3,
            "/apisix/node_listn",
            "unknown key `apisix.node_listn` is ignored",
        ),
        (
            "apisix:\n  admin_key: null\n",
            2,
            3,
            "/apisix/admin_key",
            "unknown key `apisix.admin_key` is ignored",
        ),
        (
            "apisix:\n  node_listen: [{prt: 1}]\n",
            2,
            18,
            "/apisix/node_listen/0/prt",
            "unknown key `prt` is ignored",
        ),
        (
            "deployment:\n  etcd:\n    resync_delay: 9\n",
            3,
            5,
            "/deployment/etcd/resync_delay",
            "`deployment.etcd.resync_delay` has no effect: etcd is tried again at once, then less and less often, at \
             least once a second",
        ),
        (
            "plugins: [cors, limit-cout]\n",
            1,
            17,
            "/plugins/1",
            "unknown plugin `limit-cout` in the list of plugins",
        ),
        (
            "plugins: [cors, datadog, skywalking]\n",
            1,
            1,
            "/plugins",
            "this version does not have 2 plugins of the list: datadog, skywalking",
        ),
        (
            "stream_plugins: [ip-restriction, mqtt-prox]\n",
            1,
            34,
            "/stream_plugins/1",
            "unknown plugin `mqtt-prox` in the list of plugins of streams",
        ),
        (
            "plugin_attr:\n  skywalking: {service_name: a}\n",
            2,
            3,
            "/plugin_attr/skywalking",
            "`plugin_attr.skywalking` has no effect: this version does not have that plugin",
        ),
        (
            "apisix:\n  control: {router: radixtree_uri_with_parameter}\n",
            2,
            13,
            "/apisix/control/router",
            "`apisix.control.router` has no effect: the control API matches each path as it is meant",
        ),
        (
            "deployment:\n  admin:\n    allow_admin: [127.0.0.0/24, 0.0.0.0/0]\n",
            3,
            5,
            "/deployment/admin/allow_admin",
            "`deployment.admin.allow_admin` allows other machines, which cannot reach the Admin API: it listens on \
             127.0.0.1, where APISIX listens on 0.0.0.0",
        ),
        (
            "plugin_attr:\n  redirct: {}\n",
            2,
            3,
            "/plugin_attr/redirct",
            "unknown key `plugin_attr.redirct` is ignored",
        ),
    ];
    for (text, line, column, pointer, message) in cases {
        let [only] = &warnings(text)[..] else { panic!("one finding in {text}") };
        let reported = (only.line, only.column, only.pointer.as_str(), only.message.as_str());
        assert_eq!(reported, (line, column, pointer, message), "{text}");
    }
}

#[test]
fn hints_lead_to_the_right_key() {
    let hint = |text: &str| warnings(text)[0].hint.clone().unwrap_or_default();
    assert_eq!(hint("plugins: [limit-cout]\n"), "did you mean `limit-count`?");
    assert_eq!(hint("plugins: [open-telemetry]\n"), "did you mean `opentelemetry`?");
    assert_eq!(hint("stream_plugins: [mqtt-prox]\n"), "did you mean `mqtt-proxy`?");
    assert!(hint("stream_plugins: [key-auth]\n").starts_with("those of streams are ip-restriction, "));
    assert_eq!(hint("plugin_attr:\n  redirct: {}\n"), "did you mean `redirect`?");
    assert_eq!(hint("apisix:\n  node_listn: 1\n"), "did you mean `node_listen`?");
    assert_eq!(hint("plugn_attr: {}\n"), "did you mean `plugin_attr`?");
    assert_eq!(
        hint("apisix:\n  plugins: [cors]\n"),
        "`plugins` is a key of the top level: write it without indentation"
    );
    assert_eq!(hint("apisix:\n  admin_key: []\n"), "this moved to `deployment.admin.admin_key` in APISIX 3");
    assert_eq!(
        hint("nginx_config:\n  http:\n    upstream:\n      keepaliv: 1\n"),
        "did you mean `keepalive`?"
    );
}

#[test]
fn keys_that_say_what_happens_anyway_do_not_warn() {
    let boot = parse("apisix: {proxy_mode: http, extra_lua_path: '', router: {ssl: radixtree_sni}}\n");
    assert_eq!(boot, Boot::default());
}

#[test]
fn keys_without_meaning_warn_once_each() {
    let text = "apisix:\n  extra_lua_cpath: x\n  ssl:\n    ssl_cert: x\nwasm: {}\n";
    let (boot, warnings) = Boot::parse("config.yaml", text, PLUGINS, &lookup).unwrap();
    assert_eq!(boot, Boot::default());
    let reported: Vec<(u32, &str)> =
        warnings.iter().map(|found| (found.line, found.message.as_str())).collect();
    assert_eq!(
        reported,
        [
            (2, "`apisix.extra_lua_cpath` has no effect: scripts cannot load machine code"),
            (
                4,
                "`apisix.ssl.ssl_cert` has no effect: certificates are ssl resources; a name without one is refused",
            ),
        ]
    );
}

#[test]
fn keys_of_registries_without_effect_are_named() {
    let text = "\
discovery:
  consul:
    servers: [http://127.0.0.1:8500]
    shared_size: 64m
    default_server: {host: a}
    default_service: {host: a, port: 1, metadata: {weight: 2}}
    dump: {path: consul.dump, load_on_ini: false}
  consul_kv: {servers: [http://127.0.0.1:8500], keepalive: true, timeout: {wait: 60}}
  kubernetes:
    - {id: a, service: {host: a, port: '1'}, client: {token: t}, shared_size: 1m}
  nacos: {host: [http://127.0.0.1:8848], timeout: {connect: 1}}
";
    let (_, warnings) = Boot::parse("config.yaml", text, PLUGINS, &lookup).unwrap();
    let reported: Vec<_> = warnings
        .iter()
        .map(|it| {
            let reason = it.message.split(':').next().unwrap_or_default();
            (it.line, reason, it.hint.as_deref().unwrap_or_default())
        })
        .collect();
    let expected = [
        (4, "`discovery.consul.shared_size` has no effect", ""),
        (5, "unknown key `discovery.consul.default_server` is ignored", "did you mean `default_service`?"),
        (6, "`discovery.consul.default_service.metadata` has no effect", ""),
        (7, "unknown key `discovery.consul.dump.load_on_ini` is ignored", "did you mean `load_on_init`?"),
        (8, "`discovery.consul_kv.keepalive` has no effect", ""),
        (8, "`discovery.consul_kv.timeout.wait` has no effect", ""),
        (10, "`discovery.kubernetes.shared_size` has no effect", ""),
    ];
    assert_eq!(reported, expected);
    let asked =
        "discovery: {consul_kv: {servers: [a], keepalive: false}, kubernetes: {service: {schema: http}}}";
    assert!(Boot::parse("config.yaml", asked, PLUGINS, &lookup).unwrap().1.is_empty());
    for (wrong, at) in [
        ("{tars: {}}", "/discovery/tars"),
        ("{zookeeper: {}}", "/discovery/zookeeper"),
        ("{consul: {timeout: 5}}", "/discovery/consul/timeout"),
    ] {
        let found = refusals(&format!("discovery: {wrong}\n"));
        assert_eq!((found.len(), &*found[0].pointer), (1, at));
    }
}

#[test]
fn networks_that_can_reach_the_admin_api_are_no_warning() {
    for text in [
        "deployment: {admin: {allow_admin: [127.0.0.0/24, '::1']}}",
        "deployment: {admin: {allow_admin: [0.0.0.0/0], admin_listen: {ip: 0.0.0.0, port: 9180}}}",
        "deployment: {admin: {allow_admin: [10.0.0.0/8], admin_listen: {ip: 127.0.0.1, port: 9180}}}",
        "{apisix: {enable_admin_on_node_listen: true}, deployment: {admin: {allow_admin: [10.0.0.0/8]}}}",
        "{apisix: {enable_admin: false}, deployment: {admin: {allow_admin: [10.0.0.0/8]}}}",
        "deployment: {role: data_plane, role_data_plane: {config_provider: yaml}, admin: {allow_admin: [10.0.0.0/8]}}",
    ] {
        assert!(warnings(text).is_empty(), "{text}");
    }
    let port = "deployment: {admin: {allow_admin: ['fd00::/8'], admin_listen: {port: 9280}}}";
    assert_eq!(warnings(port).len(), 1);
}
