//! Whole files, and what is said of bad ones.

use proptest::prelude::*;
use serde_json::json;

use super::shape::Shape;
use super::*;
use crate::Severity;

fn lookup(name: &str) -> Option<String> {
    (name == "PORT").then(|| "9999".to_owned())
}

const PLUGINS: &[&str] = &["cors", "limit-count", "prometheus", "redirect"];

fn parse(text: &str) -> Boot {
    let (boot, warnings) = Boot::parse("config.yaml", text, PLUGINS, &lookup).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    boot
}

fn refusals(text: &str) -> Vec<Diagnostic> {
    Boot::parse("config.yaml", text, PLUGINS, &lookup).unwrap_err()
}

fn warnings(text: &str) -> Vec<Diagnostic> {
    Boot::parse("config.yaml", text, PLUGINS, &lookup).unwrap().1
}

/// The only thing wrong with `text`, as line, column, pointer and message.
fn refusal(text: &str) -> (u32, u32, String, String) {
    let [only] = &refusals(text)[..] else { panic!("one finding in {text}") };
    (only.line, only.column, only.pointer.clone(), only.message.clone())
}

#[test]
fn an_empty_file_has_the_defaults() {
    let boot = parse("");
    assert_eq!(boot, Boot::default());
    assert_eq!(boot, parse("# nothing\n"));
    let listen: Vec<String> = boot.listen.iter().map(|listen| listen.address.to_string()).collect();
    assert_eq!(listen, ["0.0.0.0:9080", "[::]:9080"]);
    assert_eq!(boot.admin.listen.to_string(), "127.0.0.1:9180");
    assert_eq!(boot.admin.allow, ["127.0.0.0/24".parse::<IpNet>().unwrap()]);
    assert!(boot.admin.enabled && boot.admin.key_required && !boot.admin.on_node_listen);
    assert_eq!((boot.role, boot.provider), (Role::Traditional, Provider::Embedded));
    assert_eq!(boot.http.client_header_timeout, Duration::from_secs(10));
    assert_eq!(boot.http.max_head_size, 65_536);
    assert_eq!(boot.shutdown_timeout, Duration::from_secs(240));
    assert_eq!(boot.control.map(|at| at.port()), Some(9090));
    assert_eq!(boot.status, None);
    assert_eq!(boot.prometheus.export.map(|at| at.to_string()).as_deref(), Some("127.0.0.1:9091"));
    assert_eq!(boot.plugins, None);
    assert_eq!(boot.proxy_cache.zones.len(), 2);
}

/// A file in which every optional part is on.
fn everything_on() -> Value {
    json!({
        "apisix": {"status": {"port": 7086}, "stream_proxy": {"only": false, "tcp": [9100], "udp": [9200]}},
        "nginx_config": {"stream": {"enable_access_log": true}},
        "deployment": {
            "admin": {"https_admin": true, "admin_api_mtls": {"admin_ssl_cert": "c", "admin_ssl_cert_key": "k"}},
            "etcd": {"user": "u", "password": "p", "tls": {"cert": "c", "key": "k"}},
            "role_data_plane": {"config_provider": "yaml"},
        },
        "sluice": {
            "acme": {"accept_terms": true, "eab": {"kid": "i", "hmac_key": "k"}},
            "explain": {"key": "0123456789abcdef"},
        },
    })
}

/// A value of the setting that differs from `now`.
fn another(shape: Shape, now: &Value) -> Option<Value> {
    Some(match shape {
        Shape::Bool | Shape::Switch => json!(!values::switch(now).unwrap_or(false)),
        Shape::Count { min, max } => json!(if now.as_u64() == Some(max) { min } else { max }),
        Shape::Time => json!("7s"),
        Shape::Size => {
            json!(size(now).ok().filter(|bytes| *bytes > 0).map_or(32 << 10, |bytes| 2 * bytes))
        }
        Shape::Within(least, _) => json!(least),
        Shape::Text | Shape::LogPath => json!("https://another.test"),
        Shape::HeaderName => json!("X-Another"),
        Shape::Port => json!(4242),
        Shape::Ip => json!("127.0.0.9"),
        Shape::OneOf(names) => json!(names.iter().find(|name| *now != **name)),
        Shape::Workers => json!(3),
        Shape::Networks => json!(["10.0.0.0/8"]),
        _ => return None,
    })
}

#[test]
fn every_setting_is_read() {
    let read = |value: &Value| read::boot(value, &|_| None).map_err(|invalid| invalid.reason);
    let base = read(&everything_on()).unwrap();
    let mut changed = 0;
    for row in keys::rows().filter(|row| row.idle.is_none() && !row.path.contains('*')) {
        let mut file = everything_on();
        let setting = row.path.split('.').fold(&mut file, |at, name| &mut at[name]);
        let now = if setting.is_null() { keys::find(row.path).unwrap().1 } else { &*setting };
        let Some(other) = another(row.shape, now) else { continue };
        *setting = other;
        assert!(read(&file).as_ref() != Ok(&base), "{} is not read", row.path);
        changed += 1;
    }
    assert!(changed > 150, "{changed}");
}

#[test]
fn node_listen_has_four_forms() {
    let ports = |text: &str| {
        let text = format!("apisix:\n  enable_ipv6: false\n  node_listen: {text}\n");
        parse(&text).listen.iter().map(|listen| listen.address.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(ports("9081"), ["0.0.0.0:9081"]);
    assert_eq!(ports("[9081, 9082]"), ["0.0.0.0:9081", "0.0.0.0:9082"]);
    assert_eq!(ports("[{port: 9081}, {ip: 127.0.0.2, port: 9082}]"), ["0.0.0.0:9081", "127.0.0.2:9082"]);
    assert_eq!(ports("{ip: '[::1]'}"), ["[::1]:9080"]);
    assert_eq!(ports("'${{PORT}}'"), ["0.0.0.0:9999"]);
}

#[test]
fn the_files_of_the_seeds_load() {
    let boot = parse(
        "apisix:\n  node_listen: 9080\n  enable_admin: true\n  enable_admin_on_node_listen: true\n\
             nginx_config:\n  worker_processes: 1\n\
             deployment:\n  admin:\n    admin_key_required: false\n    admin_key:\n      - name: admin\n        \
             key: edd1c9f034335f136f87ad84b625c8f1\n        role: admin\n      - {name: v, key: x, role: viewer}\n",
    );
    assert_eq!(boot.workers, Workers::Count(1));
    assert!(boot.admin.on_node_listen && !boot.admin.key_required);
    assert_eq!(boot.admin.keys[1].role, AdminRole::Viewer);
    assert!(!format!("{boot:?}").contains("edd1c9f"));

    let boot = parse("deployment:\n  role: data_plane\n  role_data_plane:\n    config_provider: yaml\n");
    assert_eq!((boot.role, boot.provider, boot.admin.enabled), (Role::DataPlane, Provider::Yaml, false));
}

#[test]
fn every_part_is_read() {
    let boot = parse(
        "apisix:
  router: {http: radixtree_uri}
  delete_uri_tail_slash: true
  proxy_cache:
    cache_ttl: 1m
    disk_read_timeout: 2s
    zones:
      - {name: d, memory_size: 1m, disk_size: 2g, disk_path: /c, cache_levels: '1:2'}
  status: {port: 7086}
  dns_resolver: [1.1.1.1, '9.9.9.9:5353', '[::1]', '::2']
  dns_resolver_valid: 30
  trusted_addresses: [10.0.0.0/8]
nginx_config:
  error_log_level: info
  http:
    client_max_body_size: 10m
    large_client_header_buffers: 4 8k
    underscores_in_headers: 'off'
    real_ip_from: ['unix:', 10.1.0.0/16]
    upstream: {keepalive: 10, keepalive_timeout: 5s}
    lua_shared_dict: {plugin-limit-count: 20m}
plugins: [cors, limit-count]
plugin_attr:
  prometheus:
    export_addr: {port: 9092}
    max_connections: 5
    send_timeout: 3s
    default_buckets: [1, 5.5]
    metrics: {http_status: {expire: 60, extra_labels: [{addr: $upstream_addr}]}}
  redirect: {https_port: 8443}
",
    );
    assert_eq!(boot.router, Router::Uri);
    assert!(boot.uri.delete_tail_slash);
    assert_eq!(boot.proxy_cache.read_timeout, Duration::from_secs(2));
    let disk = boot.proxy_cache.zones[0].disk.as_ref().unwrap();
    assert_eq!((disk.size, disk.levels.as_slice()), (2 << 30, &[1, 2][..]));
    assert_eq!(boot.status.map(|at| at.to_string()).as_deref(), Some("127.0.0.1:7086"));
    let servers: Vec<String> = boot.resolver.servers.iter().map(ToString::to_string).collect();
    assert_eq!(servers, ["1.1.1.1:53", "9.9.9.9:5353", "[::1]:53", "[::2]:53"]);
    assert_eq!(boot.resolver.valid, Some(Duration::from_secs(30)));
    assert_eq!(boot.trusted_addresses.map(|nets| nets.len()), Some(1));
    assert_eq!(boot.log_level, LogLevel::Info);
    assert_eq!(boot.http.client_max_body_size, Some(10 << 20));
    assert_eq!(boot.http.max_head_size, 32 << 10);
    assert!(!boot.http.underscores_in_headers);
    assert_eq!(boot.http.real_ip.from.len(), 1);
    assert_eq!(boot.http.upstream.size, 10);
    assert_eq!(boot.http.shared_dicts["plugin-limit-count"], 20 << 20);
    assert_eq!(boot.plugins.as_deref(), Some(&["cors".to_owned(), "limit-count".to_owned()][..]));
    assert_eq!(boot.prometheus.export.map(|at| at.port()), Some(9092));
    assert_eq!((boot.prometheus.connections, boot.prometheus.send_timeout), (5, Duration::from_secs(3)));
    assert_eq!(
        boot.prometheus.extra_labels["http_status"],
        [("addr".to_owned(), "upstream_addr".to_owned())]
    );
    assert_eq!(boot.prometheus.expire["http_status"], Duration::from_secs(60));
    assert_eq!(boot.plugin_attr["redirect"]["https_port"], 8443);
    assert_eq!(boot.plugin_attr["prometheus"]["export_addr"]["port"], 9092);
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
    ] {
        let pointers: Vec<_> = refusals(text).into_iter().map(|error| error.pointer).collect();
        assert_eq!(pointers, wants, "{text}");
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
fn what_is_wrong_is_told_with_its_place() {
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
fn what_is_not_known_is_ignored_and_told_with_its_place() {
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
            "plugins: [cors, zipkin, skywalking]\n",
            1,
            1,
            "/plugins",
            "this version does not have 2 plugins of the list: zipkin, skywalking",
        ),
        (
            "stream_plugins: [ip-restriction, mqtt-prox]\n",
            1,
            34,
            "/stream_plugins/1",
            "unknown plugin `mqtt-prox` in the list of plugins of streams",
        ),
        (
            "plugin_attr:\n  zipkin: {set_ngx_var: true}\n",
            2,
            3,
            "/plugin_attr/zipkin",
            "`plugin_attr.zipkin` has no effect: this version does not have that plugin",
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
        let told = (only.line, only.column, only.pointer.as_str(), only.message.as_str());
        assert_eq!(told, (line, column, pointer, message), "{text}");
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
fn the_access_log_is_on_and_can_be_off() {
    let http = |text: &str| parse(&format!("nginx_config: {{http: {{{text}}}}}\n")).http.access_log;
    let default = http("").unwrap();
    assert_eq!((default.path.as_str(), default.is_default), ("logs/access.log", true));
    assert!(
        default
            .format
            .starts_with("$remote_addr - $remote_user [$time_local] $http_host \"$request\" $status ")
    );
    assert!(
        default
            .format
            .ends_with(" \"$upstream_scheme://$upstream_host$upstream_uri\" \"$apisix_request_id\"")
    );
    assert_eq!((default.buffer, default.queue), (64 << 10, 1 << 20));
    for off in ["access_log: off", "access_log: false", "enable_access_log: false"] {
        assert_eq!(http(off), None, "{off}");
    }
    let all = "access_log: /dev/stdout, access_log_format: $uri, access_log_format_escape: json, \
               access_log_buffer: 4k, access_log_queue: 2m, access_log_flush: 100ms";
    let all = http(all).unwrap();
    assert_eq!((all.path.as_str(), all.is_default, all.format.as_str()), ("/dev/stdout", false, "$uri"));
    assert_eq!((all.escape, all.buffer, all.queue), (LogEscape::Json, 4 << 10, 2 << 20));
    assert_eq!(all.flush, Duration::from_millis(100));
    for wrong in [
        "access_log: 'syslog:server=a'",
        "access_log: '/log/$host'",
        "access_log_buffer: 1",
        "access_log_queue: 1k",
    ] {
        assert_eq!(refusals(&format!("nginx_config: {{http: {{{wrong}}}}}\n")).len(), 1, "{wrong}");
    }
}

#[test]
fn an_instance_is_named_by_a_number_or_a_word() {
    let id = |written: &str| {
        let text = format!("apisix: {{id: {written}}}\n");
        Boot::parse("config.yaml", &text, PLUGINS, &lookup).map(|(boot, _)| boot.id)
    };
    let longest = "a".repeat(64);
    for (written, read) in
        [("7", 7.into()), ("edge-1.a_B", "edge-1.a_B".into()), (&*longest, longest.clone().into())]
    {
        assert_eq!(id(written), Ok(Some(read)), "{written}");
    }
    for wrong in ["a/b", "''", "-7", "1.5", "true", "[a]", &format!("a{longest}")] {
        assert!(id(wrong).is_err(), "{wrong}");
    }
    assert_eq!(id("null"), Ok(None));
}

#[test]
fn all_that_is_wrong_is_told_in_order() {
    let found = refusals("plugins: 1\napisix:\n  extra_lua_path: x\n  enable_control: 3\nnope: 1\n");
    let lines: Vec<(u32, Severity)> = found.iter().map(|found| (found.line, found.severity)).collect();
    let (error, warning) = (Severity::Error, Severity::Warning);
    assert_eq!(lines, [(1, error), (3, warning), (4, error), (5, warning)]);
}

#[test]
fn keys_without_meaning_warn_once_each() {
    let text = "apisix:\n  extra_lua_path: x\n  ssl:\n    ssl_cert: x\nwasm: {}\n";
    let (boot, warnings) = Boot::parse("config.yaml", text, PLUGINS, &lookup).unwrap();
    assert_eq!(boot, Boot::default());
    let told: Vec<(u32, &str)> = warnings.iter().map(|found| (found.line, found.message.as_str())).collect();
    assert_eq!(
        told,
        [
            (2, "`apisix.extra_lua_path` has no effect: it is about Lua, and plugins here are native"),
            (
                4,
                "`apisix.ssl.ssl_cert` has no effect: certificates are ssl resources; a name without one is refused",
            ),
            (5, "`wasm` has no effect: WASM plugins are not served yet"),
        ]
    );
}

#[test]
fn tls_is_as_apisix_has_it() {
    let tls = |text: &str| parse(&format!("apisix:\n  enable_ipv6: false\n  ssl: {text}\n")).tls;
    let plain = tls("{}");
    assert_eq!(plain.listen[0].address.to_string(), "0.0.0.0:9443");
    assert!(plain.is_default && plain.tickets && plain.ciphers.is_none() && plain.trusted.is_none());
    assert_eq!(plain.protocols, ["TLSv1.2", "TLSv1.3"]);
    assert_eq!(tls("{enable: false}").listen, []);
    let all = tls(
        "{listen: [{ip: 127.0.0.3, port: 9445, enable_http3: false}], ssl_protocols: TLSv1.1 TLSv1.3, \
         ssl_ciphers: 'A:B', ssl_session_tickets: false, ssl_trusted_certificate: /ca.pem, fallback_sni: a.com, \
         handshake_timeout: 3s, ssl_session_timeout: 10m}",
    );
    assert_eq!(all.listen[0].address.to_string(), "127.0.0.3:9445");
    assert!(!all.is_default && !all.tickets);
    assert_eq!((all.protocols.len(), all.ciphers.unwrap().join(" ")), (2, "A B".to_owned()));
    assert_eq!(
        (all.trusted.unwrap().to_str(), all.fallback_sni.as_deref()),
        (Some("/ca.pem"), Some("a.com"))
    );
    assert_eq!((all.handshake_timeout.as_secs(), all.session_timeout.as_secs()), (3, 600));
    assert_eq!(tls("{ssl_trusted_certificate: system}").trusted, None);
    let refused = refusals("apisix:\n  node_listen: 9443\n  ssl: {enable: true}\n");
    assert_eq!(refused[0].message, "two listeners have the address 0.0.0.0:9443");
    assert!(!refusals("apisix: {ssl: {ssl_protocols: TLSv9}}\n").is_empty());
    assert!(!refusals("apisix: {ssl: {listen: [9443]}}\n").is_empty());
}

#[test]
fn the_environment_may_say_how_many_workers() {
    let with = |text: &str, count: &str| {
        let count = count.to_owned();
        Boot::parse("f", text, PLUGINS, &move |name| {
            (name == "APISIX_WORKER_PROCESSES").then(|| count.clone())
        })
    };
    assert_eq!(with("", "3").unwrap().0.workers, Workers::Count(3));
    assert_eq!(with("nginx_config: {worker_processes: 2}", "3").unwrap().0.workers, Workers::Count(2));
    assert!(with("", "many").unwrap_err()[0].message.contains("APISIX_WORKER_PROCESSES"));
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

/// An empty list of keys would refuse all clients, even those with the generated key.
#[test]
fn an_empty_list_of_admin_keys_is_as_none() {
    let boot = parse("deployment:\n  admin:\n    admin_key: []\n");
    assert_eq!(boot.admin.keys, parse("").admin.keys);
    assert_eq!(boot.admin.keys.len(), 1);
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
    let told: Vec<_> = warnings
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
    assert_eq!(told, expected);
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
