//! Settings as they are read: defaults, forms and parts of a file.

use serde_json::json;

use super::shape::Shape;
use super::*;

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
    assert_eq!(boot.trusted_addresses.as_ref().map(Vec::len), Some(1));
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
    assert_eq!(boot.attr("/plugin_attr/prometheus").buckets("/default_buckets"), [1.0, 5.5]);
    assert_eq!(boot.attr("/plugin_attr/redirect").port("/https_port"), 8443);
    assert_eq!(boot.attr("/plugin_attr/proxy-mirror").time("/timeout/read"), Duration::from_secs(60));
    assert_eq!(boot.plugin_attr["redirect"]["https_port"], 8443);
    assert_eq!(boot.plugin_attr["prometheus"]["export_addr"]["port"], 9092);
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

/// An empty list of keys would refuse all clients, even those with the generated key.
#[test]
fn an_empty_list_of_admin_keys_is_as_none() {
    let boot = parse("deployment:\n  admin:\n    admin_key: []\n");
    assert_eq!(boot.admin.keys, parse("").admin.keys);
    assert_eq!(boot.admin.keys.len(), 1);
}
