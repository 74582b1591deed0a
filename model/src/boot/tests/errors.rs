//! Files that are refused: where the error is, its message and its help.

use proptest::prelude::*;

use super::*;
use crate::Severity;

/// The only thing wrong with `text`, as line, column, pointer and message.
fn refusal(text: &str) -> (u32, u32, String, String) {
    let [only] = &refusals(text)[..] else { panic!("one finding in {text}") };
    (only.line, only.column, only.pointer.clone(), only.message.clone())
}

#[test]
fn each_wrong_item_of_a_list_is_reported() {
    for (text, wants) in [
        (
            "apisix:\n  node_listen: [99999, 80, {port: x}]\n",
            vec!["/apisix/node_listen/0", "/apisix/node_listen/2/port"],
        ),
        (
            "deployment:\n  admin:\n    allow_admin: [a, 127.0.0.1, 10.0.0.0/99]\n",
            vec!["/deployment/admin/allow_admin/0", "/deployment/admin/allow_admin/2"],
        ),
        ("apisix:\n  node_listen: ['80', '81']\n", vec!["/apisix/node_listen/0", "/apisix/node_listen/1"]),
        ("apisix:\n  node_listen: []\n", vec!["/apisix/node_listen"]),
        (
            "deployment:\n  etcd:\n    host: ['a:1', 'http://a:x', 'http://a:1', 'https://[::1]', \
             'http://a/b', 'http://:1', 'http://a b', 'http://[a]']\n",
            vec![
                "/deployment/etcd/host/0",
                "/deployment/etcd/host/1",
                "/deployment/etcd/host/4",
                "/deployment/etcd/host/5",
                "/deployment/etcd/host/6",
                "/deployment/etcd/host/7",
            ],
        ),
        (
            "plugin_attr:\n  proxy-cache: {purge_allow: [localhost, 10.0.0.0/8, 10.0.0.0/33]}\n",
            vec!["/plugin_attr/proxy-cache/purge_allow/0", "/plugin_attr/proxy-cache/purge_allow/2"],
        ),
        (
            "discovery:\n  consul: {servers: [http://a, 1], weight: -1}\n",
            vec!["/discovery/consul/servers/1", "/discovery/consul/weight"],
        ),
    ] {
        let pointers: Vec<_> = refusals(text).into_iter().map(|error| error.pointer).collect();
        assert_eq!(pointers, wants, "{text}");
    }
}

#[test]
fn settings_of_plugins_have_bounds() {
    let long = "a".repeat(65);
    for (attr, pointer) in [
        ("prometheus: {metric_prefix: 1a}", "/prometheus/metric_prefix"),
        ("prometheus: {metric_prefix: 'a b'}", "/prometheus/metric_prefix"),
        (&*format!("prometheus: {{metric_prefix: {long}}}"), "/prometheus/metric_prefix"),
        ("prometheus: {default_buckets: [1, 1]}", "/prometheus/default_buckets/1"),
        ("prometheus: {default_buckets: []}", "/prometheus/default_buckets"),
        ("prometheus: {default_buckets: [0]}", "/prometheus/default_buckets"),
        ("prometheus: {max_series: 0}", "/prometheus/max_series"),
        ("prometheus: {forget_after: 1h}", "/prometheus/forget_after"),
        ("prometheus: {metrics: {bandwidth: {expire: 1h}}}", "/prometheus/metrics/bandwidth/expire"),
        ("proxy-cache: {purge_allow: 127.0.0.1}", "/proxy-cache/purge_allow"),
        ("proxy-mirror: {timeout: {read: soon}}", "/proxy-mirror/timeout/read"),
        ("forward-auth: {max_resp_body_size: much}", "/forward-auth/max_resp_body_size"),
        ("body-transformer: {max_steps: 0}", "/body-transformer/max_steps"),
        ("batch-requests: {max_response_size: 0}", "/batch-requests/max_response_size"),
    ] {
        let (.., found, _) = refusal(&format!("plugin_attr: {{{attr}}}\n"));
        assert_eq!(found, format!("/plugin_attr{pointer}"));
    }
}

#[test]
fn what_is_wrong_has_help() {
    let each = "each on a line of its own";
    let v4 = format!("write it as `ip: 127.0.0.1` and `port: 9180`, {each}");
    let v4 = Some(v4.as_str());
    let v6 = format!("write it as `ip: \"::1\"` and `port: 9180`, {each}");
    let all = format!("write it as `ip: 0.0.0.0` and `port: 9180`, {each}");
    let port = Some("write it as `port: 9180`, on a line of its own");
    let space = Some("write a space behind the colon");
    let url = Some("write `http://127.0.0.1:2379`, or `https://127.0.0.1:2379` for one with TLS");
    let user =
        Some("give the user and the password as `deployment.etcd.user` and `deployment.etcd.password`");
    for (text, help) in [
        ("deployment: {admin: {admin_listen: '127.0.0.1:9180'}}", v4),
        ("deployment: {admin: {admin_listen: 'localhost:9180'}}", v4),
        ("deployment: {admin: {admin_listen: '[::1]:9180'}}", Some(v6.as_str())),
        ("deployment: {admin: {admin_listen: '*:9180'}}", Some(all.as_str())),
        ("deployment: {admin: {admin_listen: ':9180'}}", port),
        ("deployment: {admin: {admin_listen: 9180}}", port),
        ("deployment: {admin: {admin_listen: 'port:9180'}}", space),
        ("deployment: {admin: {admin_listen: 'here'}}", None),
        ("plugin_attr: {prometheus: {export_addr: '127.0.0.1:9180'}}", v4),
        ("apisix: {control: '127.0.0.1:9180'}", v4),
        ("apisix: {node_listen: '127.0.0.1:9180'}", v4),
        ("apisix: {node_listen: ['port:9180']}", space),
        ("apisix: {ssl: {listen: ['127.0.0.1:9180']}}", v4),
        ("apisix: {ssl: {listen: [9180]}}", port),
        // No maps of an address.
        ("apisix: '127.0.0.1:9180'", None),
        ("apisix: 9180", None),
        ("apisix: 'node_listen:9180'", space),
        ("deployment: {etcd: 'http://127.0.0.1:2379'}", None),
        ("deployment: {etcd: {host: ['127.0.0.1:2379']}}", url),
        ("deployment: {etcd: {host: '127.0.0.1:2379'}}", url),
        ("deployment: {etcd: {host: ['http://a:b@127.0.0.1:2379']}}", user),
        ("deployment: {etcd: {host: ['http://127.0.0.1:x']}}", None),
        ("deployment: {etcd: {host: ['ftp://127.0.0.1:2379']}}", None),
    ] {
        let [only] = &refusals(text)[..] else { panic!("one finding in {text}") };
        assert_eq!(only.hint.as_deref(), help, "{text}");
        assert!(only.got.as_deref().is_none_or(|got| !got.contains("a:b")), "{text}");
    }
}

#[test]
fn errors_name_their_place() {
    let cases = [
        (
            "apisix:\n  enable_admin: 'yes'\n",
            (2, 17, "/apisix/enable_admin", "wrong type: expected boolean, got string"),
        ),
        (
            "apisix:\n  node_listen:\n    - 9080\n    - port: 99999\n",
            (4, 13, "/apisix/node_listen/1/port", "expected a port from 1 to 65535, got `99999`"),
        ),
        (
            "apisix:\n  node_listen: [1, 1]\n",
            (2, 3, "/apisix/node_listen", "two listeners have the address 0.0.0.0:1"),
        ),
        ("apisix: 1\n", (1, 9, "/apisix", "wrong type: expected object, got number")),
        (
            "deployment:\n  admin:\n    send_timeout: 0\n",
            (3, 19, "/deployment/admin/send_timeout", "a time of 0 would refuse every client"),
        ),
        (
            "deployment:\n  role: data_plane\n  role_data_plane:\n    config_provider: xds\n",
            (
                4,
                22,
                "/deployment/role_data_plane/config_provider",
                "xds is not supported yet; use etcd, yaml or json",
            ),
        ),
        (
            "deployment:\n  etcd:\n    host: [\"127.0.0.1:2379\"]\n",
            (3, 12, "/deployment/etcd/host/0", "this is not the address of an etcd server"),
        ),
        (
            "deployment:\n  admin:\n    https_admin: true\n",
            (3, 18, "/deployment/admin/https_admin", "missing ssl cert for https admin"),
        ),
        (
            "deployment:\n  etcd:\n    host: []\n",
            (3, 5, "/deployment/etcd/host", "the list has no address of an etcd server"),
        ),
        (
            "deployment:\n  etcd:\n    prefix: apisix\n",
            (3, 13, "/deployment/etcd/prefix", "this is not a prefix for keys"),
        ),
        (
            "deployment:\n  etcd:\n    user: root\n",
            (3, 11, "/deployment/etcd/user", "`deployment.etcd.user` without `deployment.etcd.password`"),
        ),
        (
            "deployment:\n  etcd:\n    timeout: 0\n",
            (3, 14, "/deployment/etcd/timeout", "a time of 0 leaves etcd no chance to answer"),
        ),
        (
            "deployment:\n  role: data_plane\n",
            (2, 9, "/deployment/role", "a data plane needs a `config_provider`"),
        ),
        (
            "nginx_config:\n  http:\n    send_timeout: soon\n",
            (
                3,
                19,
                "/nginx_config/http/send_timeout",
                "expected a time such as 60s, 500ms or 1h30m, got `soon`",
            ),
        ),
        (
            "nginx_config:\n  http:\n    client_header_buffer_size: 10\n",
            (
                3,
                32,
                "/nginx_config/http/client_header_buffer_size",
                "a request's head cannot be bounded by 10 bytes",
            ),
        ),
        ("a: [\n", (1, 4, "", "unclosed bracket '['")),
        ("a: 1\na: 2\n", (2, 1, "", "duplicate mapping key: a")),
        (
            "apisix:\n  node_listen: ${{NOPE}}\n",
            (2, 16, "", "failed to handle configuration: can't find environment variable NOPE"),
        ),
    ];
    for (text, (line, column, pointer, message)) in cases {
        assert_eq!(refusal(text), (line, column, pointer.to_owned(), message.to_owned()), "{text}");
    }
}

#[test]
fn all_that_is_wrong_is_reported_in_order() {
    let found = refusals("plugins: 1\napisix:\n  extra_lua_cpath: x\n  enable_control: 3\nnope: 1\n");
    let lines: Vec<(u32, Severity)> = found.iter().map(|found| (found.line, found.severity)).collect();
    let (error, warning) = (Severity::Error, Severity::Warning);
    assert_eq!(lines, [(1, error), (3, warning), (4, error), (5, warning)]);
}

proptest! {
    #[test]
    fn no_text_panics(
        section in "(apisix|nginx_config|deployment|plugin_attr|plugins)",
        key in "(node_listen|http|admin|role|prometheus|proxy_cache|status|x)",
        value in r#"[-\[\]{}:,'" a-z0-9./$]{0,40}"#,
    ) {
        let _ = Boot::parse("f", &format!("{section}:\n  {key}: {value}\n"), PLUGINS, &lookup);
        let _ = Boot::parse("f", &format!("{section}: {value}\n"), PLUGINS, &lookup);
    }
}
